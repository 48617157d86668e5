"""Lines of a file with their numbers: a marked place with carets below it, or the change of a correction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate, pairwise, takewhile
from textwrap import wrap
from typing import Literal, NamedTuple
from unicodedata import east_asian_width

Level = Literal["bad", "unsure", "advice"]
"""How serious a marked place is, as a style of its carets."""

_ELLIPSIS = "..."
"""Stands where a line is cut; ASCII, as the rest of the frame, for any terminal."""

_LEAST_LEFT = 12
"""Characters from a change to the end of the row below which its line is cut on the left."""

_MOST_CHANGED = 6
"""Most lines at the start of a change that are shown, and as many at its end: the removal of a block may have
hundreds."""

_MOST_COMPARED = 500
"""Most lines in which equal ones between changes are looked for, which takes quadratic time."""

_KEY = re.compile(r'"(?:[^"\\]|\\.)*"[ \t]*:')


class Change(NamedTuple):
    """The characters, from 0, of a changed line at which its key and its change begin, and behind the longer one of the
    old and the new text; the length of the longer line. is_further: whether the same line has a change before it."""

    key: int
    column: int
    end: int
    longest: int
    is_further: bool = False


class ExcerptLine(NamedTuple):
    """A line of a file; 0 is no number. marked: number of characters from the excerpt's column that are marked. sign:
    ">" marks a whole line, which is wrapped where others are cut, "/" a place in a file, which is cut on the left."""

    number: int
    text: str
    sign: Literal["|", "-", "+", ">", "/"] = "|"
    marked: int = 0
    change: Change | None = None


class ExcerptRow(NamedTuple):
    """A printed row: the gutter with the line's number, and the text. role: what the text is, for its colour."""

    gutter: str
    text: str
    role: Literal["marked", "carets", "context", "-", "+", ">"]


class Excerpt(NamedTuple):
    """Lines of a file. column: the character, from 0, around which a marked line that is too long is cut; without the
    lines of its context then."""

    lines: Sequence[ExcerptLine]
    column: int = 0
    level: Level = "advice"

    def rows(self, columns: int) -> Iterator[ExcerptRow]:
        """Yield the rows within a number of columns, with an ellipsis where a line is cut."""
        width = max((len(str(line.number)) for line in self.lines), default=1)
        room = columns - width - len(" | ")
        longest = max((len(line.text) for line in self.lines if line.marked), default=0)
        around = max(0, min(self.column - room // 3, longest - room))
        for line in _needed(self.lines, room):
            begin = _begin(line.change, room) if line.sign in "+-" else around
            if line.sign == ">":
                for at, part in enumerate(wrap(line.text, room, break_on_hyphens=False)):
                    yield ExcerptRow(f"{'' if at else line.number or '':>{width}} {'|' if at else '>'} ", part, ">")
                continue
            if line.sign == "/":
                text = line.text if len(line.text) <= room else _ELLIPSIS + line.text[len(_ELLIPSIS) - room :]
                yield ExcerptRow(f"{line.number or '':>{width}} | ", text, "context")
                continue
            if line.sign == "|" and not line.marked and begin:  # the same columns of another line say nothing
                continue
            text, role = _cut(line.text, begin, room), line.sign if line.sign != "|" else "context"
            yield ExcerptRow(f"{line.number or '':>{width}} {line.sign} ", text, "marked" if line.marked else role)
            if line.marked:
                before, found = text[: self.column - begin], text[self.column - begin :][: line.marked]
                carets = " " * _columns(before) + "^" * max(1, _columns(found))
                yield ExcerptRow(f"{'':{width}} | ", carets[:room], "carets")

    def texts(self, columns: int) -> list[str]:
        return [f"{row.gutter}{row.text}".rstrip() for row in self.rows(columns)]


def marked_excerpt(text: str, line: int, column: int, length: int, level: Level) -> Excerpt:
    """Return a place of a text, with a line before and a line after it. line, column: from 1."""
    lines = text.split("\n")
    numbers = range(max(1, line - 1), min(len(lines), line + 1) + 1)
    shown = [ExcerptLine(each, _printable(lines[each - 1]), marked=length * (each == line)) for each in numbers]
    return Excerpt([each for each in shown if each.text or each.marked], column - 1, level)


def _begin(change: Change | None, room: int) -> int:
    """The first character of a changed line that is shown: its key, if the change begins or ends too far to the
    right."""
    if change is None or max(change.column + _LEAST_LEFT, min(change.end + len(_ELLIPSIS), change.longest)) <= room:
        return 0
    return max(0, min(change.key - len(_ELLIPSIS), change.longest - room))


def _needed(lines: Sequence[ExcerptLine], room: int) -> Iterator[ExcerptLine]:
    """Yield the lines without further changes that are seen beside the ones before them."""
    seen, is_needed = {"-": 0, "+": 0}, True
    for line, other in zip(lines, [*lines[1:], None], strict=False):
        if line.change is not None and line.sign == "-":
            pair = [(each, each.change) for each in (line, other) if each is not None and each.change is not None]
            is_needed = not line.change.is_further or any(change.end > seen[each.sign] for each, change in pair)
            for each, change in pair if is_needed else ():
                end = _begin(change, room) + room
                seen[each.sign] = end if end >= len(each.text) else end - len(_ELLIPSIS)
        if is_needed or line.change is None:
            yield line


def changed_excerpt(old: str, new: str) -> Excerpt:
    """Return the lines of a text that a change replaces, and their replacements, without the lines between them."""
    before, after = ([*map(_printable, text.split("\n"))] for text in (old, new))
    first = _common(before, after)
    last = _common(before[first:][::-1], after[first:][::-1])
    removed, added = ([*enumerate(lines[first : len(lines) - last], first + 1)] for lines in (before, after))
    lines = [line for pair in _hunks(removed, added) for line in _changed_lines(*pair)]
    return Excerpt(_ends(lines, 2 * _MOST_CHANGED))


_Numbered = Sequence[tuple[int, str]]


def _hunks(removed: _Numbered, added: _Numbered) -> Iterator[tuple[_Numbered, _Numbered]]:
    """Yield the lines of each change: the old ones and the new ones."""
    if max(len(removed), len(added)) > _MOST_COMPARED:
        yield removed, added
        return
    before, after = ([text for _, text in lines] for lines in (removed, added))
    for tag, start, end, new_start, new_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            yield removed[start:end], added[new_start:new_end]


def _changed_lines(removed: _Numbered, added: _Numbered) -> Iterator[ExcerptLine]:
    old, new = [ExcerptLine(*line, "-") for line in removed], [ExcerptLine(*line, "+") for line in added]
    if len(old) == len(new) == 1:
        yield from _changes_of_one(old[0], new[0])
        return
    if len(old) == len(new):
        changes = [_change(*pair) for pair in zip(old, new, strict=True)]
        old, new = (
            [each._replace(change=how) for each, how in zip(lines, changes, strict=True)] for lines in (old, new)
        )
    yield from (*_ends(old, _MOST_CHANGED), *_ends(new, _MOST_CHANGED))


def _change(old: ExcerptLine, new: ExcerptLine) -> Change:
    column = _common(old.text, new.text)
    keys = [key.start() for line in (old, new) for key in _KEY.finditer(line.text) if key.start() <= column]
    longest = max(len(old.text), len(new.text))
    same = _common(old.text[column:][::-1], new.text[column:][::-1])
    return Change(max(keys, default=column), column, longest - same, longest)


def _changes_of_one(old: ExcerptLine, new: ExcerptLine) -> Iterator[ExcerptLine]:
    """Yield a line and its replacement for each change: runs of keys that differ."""
    before, after = _parts(old.text), _parts(new.text)
    starts = [[0, *accumulate(map(len, parts))] for parts in (before, after)]
    longest, is_further = max(len(old.text), len(new.text)), False
    for tag, *places in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        spans = [(starts[0][places[0]], starts[0][places[1]]), (starts[1][places[2]], starts[1][places[3]])]
        texts = [line.text[start:end] for line, (start, end) in zip((old, new), spans, strict=True)]
        common, length = _common(*texts), max(map(len, texts))
        same = min(_common(texts[0][::-1], texts[1][::-1]), min(map(len, texts)) - common)
        for line, (start, _) in zip((old, new), spans, strict=True):
            yield line._replace(change=Change(start, start + common, start + length - same, longest, is_further))
        is_further = True


def _parts(line: str) -> list[str]:
    """Return the parts of a line, each of which but the first begins with a key."""
    starts = [0, *(key.start() for key in _KEY.finditer(line) if key.start()), len(line)]
    return [line[start:end] for start, end in pairwise(starts)]


def _ends(lines: Sequence[ExcerptLine], most: int) -> list[ExcerptLine]:
    """Return the first and the last of many lines. most: their number at each end."""
    if len(lines) <= 2 * most:
        return [*lines]
    return [*lines[:most], lines[most]._replace(text=_ELLIPSIS, change=None), *lines[-most:]]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of equal items at the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(text: str, begin: int, room: int) -> str:
    shown = text[begin : begin + room]
    if begin and text:
        shown = _ELLIPSIS + shown[len(_ELLIPSIS) :]
    return shown[: room - len(_ELLIPSIS)] + _ELLIPSIS if len(text) > begin + room else shown


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else " " for char in line.rstrip())


def _columns(text: str) -> int:
    """Return the width of a text in columns of a terminal."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)
