"""Figures of a training over the ranks of this node."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ...probes.real_run.ranks import Rank, Ranks
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
        """The phases of a step: median times of the slowest rank, and the highest memory of all ranks. The times are of
        one rank: where one is late the others wait, so those of several would be more than the step."""
        medians = [_medians(rank) for rank in self.ranks]
        slowest = max(medians, key=lambda of_rank: sum(of_rank.values()), default={})
        return tuple(PhaseFigures(name=name, seconds=slowest[name], peak_bytes=self._peak(name)) for name in slowest)

    def _peak(self, phase: str) -> int | None:
        every = [parts[phase] for rank in self.ranks for _, parts in rank.phases if phase in parts]
        return int(max(each.get("allocated_bytes", 0) for each in every)) or None


def _medians(rank: Rank) -> dict[str, float]:
    """The median seconds of a rank's phases of a step."""
    steps = {name: [parts[name]["seconds"] for _, parts in rank.phases if name in parts] for name in STEP_PHASES}
    # The first step compiles and allocates.
    return {name: median(taken[1:] or taken) for name, taken in steps.items() if taken}
