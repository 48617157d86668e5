"""What it costs that a provider may take a machine back: work done again, restarts, and waiting for another machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from .job import young_interval_s

_HOPELESS = 20.0
"""Time to the next checkpoint over the time between interruptions above which nothing is ever finished: e^20 attempts
for each checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """Expected seconds of a run that is interrupted at random."""

    paid_s: float
    """While all machines run: work, checkpoints, restarts, and work that is done again."""
    waiting_s: float
    """Between an interruption and the next start, while nothing runs."""
    count: float
    """Interruptions."""
    interval_s: float
    """Work between two checkpoints."""

    @property
    def elapsed_s(self) -> float:
        return self.paid_s + self.waiting_s


def interrupted_run(
    work_s: float, *, write_s: float, restart_s: float, between_s: float, wait_s: float
) -> Interrupted | None:
    """The expected run of `work_s` seconds of work; None where it would hardly ever reach a checkpoint.

        paid = M exp(R / M) (exp((tau + w) / M) - 1) work / tau
        tau = sqrt(2 w M), at most the work (Young)

    with M = between_s, w = write_s, R = restart_s. It is exact for interruptions at random times (exponentially
    distributed), also during a checkpoint or a restart, and checkpoints that survive (J. T. Daly, "A higher order
    estimate of the optimum checkpoint interval for restart dumps", 2006, doi:10.1016/j.future.2004.11.016; the interval
    is Young's, `young_interval_s`). One of several machines that stops stops all: M is that of the whole group.

    between_s: mean seconds between interruptions of the group. wait_s: mean seconds until another machine is had.

    Not covered: warnings minutes before the end, in which a last checkpoint may be written; prices that change.
    """
    tau = min(work_s, young_interval_s(write_s, between_s))
    segment, restart = (tau + write_s) / between_s, restart_s / between_s
    if max(segment, restart) > _HOPELESS:
        return None
    paid_s = between_s * exp(restart) * (exp(segment) - 1) * work_s / tau
    count = paid_s / between_s
    return Interrupted(paid_s=paid_s, waiting_s=count * wait_s, count=count, interval_s=tau)
