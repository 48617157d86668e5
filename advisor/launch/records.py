"""Figures of a training over the ranks of this node."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, median
from typing import Any

from ...probes.real_run.ranks import Ranks
from ..verification.prediction import STEP_PHASES, PhaseFigures


class Records(Ranks):
    @property
    def step(self) -> int:
        """The last step that all ranks have completed."""
        return min((rank.step for rank in self.ranks), default=0)

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(step, mean over the ranks) of each step for which every rank has reported a loss."""
        losses = [dict(rank.losses) for rank in self.ranks]
        steps = set.intersection(*map(set, losses)) if losses else set()
        return [(step, fmean(each[step] for each in losses)) for step in sorted(steps)]

    @property
    def first_step(self) -> int | None:
        return next((next(iter(rank.steps)) for rank in self.ranks if rank.steps), None)

    def last_losses(self, count: int) -> list[float]:
        """The most recent losses of the rank that has reported the fewest."""
        fewest = min((rank.losses for rank in self.ranks), key=len, default=[])
        return [loss for _, loss in fewest[-count:]]

    def speed(self, world_size: int, last: int | None = None) -> tuple[float | None, float | None]:
        """(tokens per step, seconds per step) of the whole job, or (None, None) before the second step.

        Both are medians over the `last` steps, or over all but the first. Tokens: the mean of the ranks, padding
        included; the ranks of other nodes are assumed to have as many. Seconds: those of the slowest rank.
        """
        done = [list(rank.steps.values()) for rank in self.ranks if len(rank.steps) > 1]
        # One more than `last`: n end times have n - 1 intervals.
        steps = [each[-last - 1 if last else 0 :] for each in done]
        if not steps:
            return None, None
        tokens = fmean(median(count for _, count in each[1:]) for each in steps) * world_size
        return tokens or None, max(
            median(after - before for (before, _), (after, _) in pairwise(each)) for each in steps
        )

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

    def first(self, name: str) -> Any:
        """The last value of a key from the first rank that has the key, such as `engine`, `trainer` or `checkpoint`."""
        return next((rank.latest[name] for rank in self.ranks if name in rank.latest), None)
