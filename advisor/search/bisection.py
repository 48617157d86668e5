"""The largest number that holds, where what holds of a number holds of every smaller one."""

from __future__ import annotations

from collections.abc import Callable


def largest(holds: Callable[[int], bool], most: int, *, parts: int = 0) -> tuple[int, int]:
    """(the largest number found that holds, the smallest found that does not) of 1 to `most`.

    Numbers are doubled until one does not hold, and the gap is halved until nothing is left between, or less than one
    part in `parts` of the lower end. Where none holds the answer is (0, 1), where all do (most, most + 1). The same
    numbers are tried whatever is asked about, so that an answer can only rise where more holds. log2(most) tries twice.
    """
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > max(1, low // parts if parts else 1):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
