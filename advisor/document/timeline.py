"""Areas over a run in a given width: the positions that are drawn, and the names of the stretches below them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

_ITERATION = "iteration"
"""What the numbers in the names of stretches count."""


def column_of(x: float, xs: Sequence[float], columns: int) -> int:
    """Return the column of a position."""
    return min(columns - 1, int((x - xs[0]) / ((xs[-1] - xs[0]) or 1) * columns))


def highest_in_columns(xs: Sequence[float], sums: Sequence[float], columns: int) -> list[int]:
    """Return for each column the position with the largest sum of its interval, so that no peak is lost; without one,
    that of the column before."""
    found = dict[int, int]()
    for at, x in enumerate(xs):
        column = column_of(x, xs, columns)
        if column not in found or sums[at] > sums[found[column]]:
            found[column] = at
    shown = [found[0]]
    for column in range(1, columns):
        shown.append(found.get(column, shown[-1]))
    return shown


class StretchNames(NamedTuple):
    """Names of stretches, each with its place."""

    words: list[tuple[str, float]]
    numbers: list[tuple[str, float]]
    """The iterations."""
    meanings: dict[str, str]
    """What stands for what: the words by their initials, and `iterations` by bare numbers."""
    unnamed: tuple[str, ...] = ()
    """Words without room for a name, if others have it."""


def stretch_names(
    stretches: Sequence[tuple[float, str]], end: float, length: Callable[[str], float] = len
) -> StretchNames:
    """Return the names of stretches such as `forward 2` by words and numbers.

    stretches: each with the place of its beginning. end: the place of the last one's end. length: of a text.

    A word is shown in the same way everywhere: whole if each of its stretches has room, with a space behind it, else as
    its initial, where a stretch is longer than that."""
    ends = [begin for begin, _ in stretches[1:]] + [end]
    named = [
        (*name.partition(" ")[::2], begin, after) for (begin, name), after in zip(stretches, ends, strict=True) if name
    ]
    least: dict[str, float] = {}
    for word, _, begin, after in named:
        least[word] = min(least.get(word, end), after - begin)
    shown = {word: word if length(word) < room else _initial(word, least) for word, room in least.items()}
    words = [(shown[word], begin) for word, _, begin, after in named if after - begin > length(shown[word])]
    firsts = {number: begin for _, number, begin, _ in reversed(named) if number}
    places = sorted(firsts.values())
    room = min((after - begin for begin, after in pairwise([*places, end])), default=0)
    title = _ITERATION if room > length(f"{_ITERATION} {len(places)}") else ""
    numbers = [(f"{title} {number}".strip(), begin) for number, begin in firsts.items()]
    used = {name for name, _ in words}
    meanings = {initial: word for word, initial in shown.items() if initial != word and initial in used}
    meanings |= {" ".join(sorted(firsts, key=int)): f"{_ITERATION}s"} if firsts and not title else {}
    unnamed = tuple(word for word, name in shown.items() if used and name not in used)
    return StretchNames(words, numbers, meanings, unnamed)


def _initial(word: str, words: Iterable[str]) -> str:
    """Return the shortest beginning of a word that no other word has."""
    others = [other for other in words if other != word]
    beginnings = (word[:length] for length in range(1, len(word)))
    return next((each for each in beginnings if not any(other.startswith(each) for other in others)), word)
