"""How fast a core is at the moment, so that seconds of different machines, and of a busy and an idle one, compare."""

from __future__ import annotations

from ds_advise.probes.benchmark_rank import HostScore


def core_score() -> str:
    """The project's single-thread score as a line of a benchmark: the least and the most of five, half a second."""
    score = HostScore()
    measured = sorted(1000 * score.measure() for _ in range(5))
    return f"single-thread score of this core {measured[0]:.0f} to {measured[-1]:.0f} ms (less is faster)"
