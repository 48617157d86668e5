"""Figures of a training over the ranks of this node."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ...probes.real_run.ranks import Ranks
from ..verification.prediction import STEP_PHASES, PhaseFigures


def nan_from(losses: Sequence[tuple[int, float | None]]) -> int:
    """The first step after which the weights may be NaN, of (step, loss) that end in losses that are NaN (None): the
    first of these steps, or the one before it if there is no other, because the training began with such weights."""
    finite = [step for step, loss in losses if loss is not None]
    lost = next(step for step, _ in losses if not finite or step > finite[-1])
    return lost if finite else lost - 1


class Records(Ranks):
    @property
    def first_step(self) -> int | None:
        return next((next(iter(rank.steps)) for rank in self.ranks if rank.steps), None)

    def highest(self, name: str) -> int | None:
        """The maximum over the ranks of a counter of torch's allocator; None if there is none."""
        return max((rank.latest[name] for rank in self.ranks if name in rank.latest), default=None)

    @property
    def phases(self) -> tuple[PhaseFigures, ...]:
        """The phases of a step: the median time of the slowest rank, and the highest memory of all ranks."""
        return tuple(found for name in STEP_PHASES if (found := self._phase(name)) is not None)

    def _phase(self, name: str) -> PhaseFigures | None:
        ranks = [[parts[name] for _, parts in rank.phases if name in parts] for rank in self.ranks]
        ranks = [steps for steps in ranks if steps]
        if not ranks:
            return None
        peak = max(step.get("allocated_bytes", 0) for steps in ranks for step in steps)
        return PhaseFigures(
            name=name,
            # The first step compiles and allocates.
            seconds=max(median(step["seconds"] for step in steps[1:] or steps) for steps in ranks),
            peak_bytes=int(peak) or None,
        )
