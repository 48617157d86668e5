"""Seconds of one call, several times over, within a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

SAMPLE_S = 0.004
"""Shorter calls are repeated until a measurement takes this long: a thousand times the clock's and the settling's
error."""

LEAST, MOST = 3, 20
"""Measurements of a figure: enough for a spread, and no more than tell something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopwatch:
    """Times calls on a device, by all ranks together."""

    settle: Callable[[], None]
    """Waits until the device has done what it was asked to."""
    agree: Callable[[int], int]
    """Rank 0's number on every rank, so that all call equally often; itself for a single rank."""
    clock: Callable[[], float] = time.perf_counter
    """Tells seconds; for a process of one thread that waits for nobody, those in which it had a core."""

    def once(self, action: Callable[[], object]) -> float:
        """Seconds of one call after a first one, which loads kernels and fills caches; rank 0's on every rank."""
        self._calls(action, 1)
        return self.agree(math.ceil(self._calls(action, 1) * 1e9)) / 1e9

    def samples(self, action: Callable[[], object], budget_s: float) -> list[float]:
        """Seconds of one call, measured `LEAST` to `MOST` times, in about `budget_s` unless the least takes longer."""
        once = max(self.once(action), 1e-9)
        calls = math.ceil(SAMPLE_S / once)
        repeats = min(MOST, max(LEAST, int(budget_s / (calls * once))))
        return [self._calls(action, calls) / calls for _ in range(repeats)]

    def fits(self, once_s: float, budget_s: float) -> bool:
        """Whether the least number of measurements of a call that takes `once_s` fits in the budget; rank 0 decides."""
        return bool(self.agree(int(once_s * (LEAST + 2) <= budget_s)))

    def _calls(self, action: Callable[[], object], calls: int) -> float:
        self.settle()
        started = self.clock()
        for _ in range(calls):
            action()
        self.settle()
        return self.clock() - started
