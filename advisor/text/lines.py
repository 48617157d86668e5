"""Lines on a terminal: wrapped sentences, table rows, and commands to copy, in 80 columns and in any encoding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from .language import can_encode
from .units import FIRM, GLUE, glued, printable

WIDTH = 80
"""Width of tables and bars in columns; a narrower terminal folds them."""

LONGEST = 120
"""Largest width of sentences in columns: longer lines are hard to read."""

NARROWEST = 40

_LEAST_ROOM = 30
"""Columns of a sentence's text below which its lines begin further to the left."""

WARNING = "color(166)"
"""Style of a warning: yellow is unreadable on a white screen."""

SPARKS, PLAIN_SPARKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
"""Bars of a column from the lowest to the highest, and without block characters."""

_WIDE = "\u3000-\u9fff\uff00-\uffef"
"""Characters of two columns each, between which a line may be broken: Chinese characters and their punctuation."""

_WORD = rf"(?:[{_WIDE}]|[^\s{_WIDE}]+(?:(?<={GLUE})[{_WIDE}])?)"

_PIECES = rf"\s*(?:\S*{FIRM}\S*|\uff08*{_WORD}[\uff0c\u3002\uff1b\uff1a\u3001\uff09]*)\s*"
"""Unbreakable pieces: a word, or a wide character with its punctuation. Compiled only for texts with wide characters,
because compilation takes as long as printing the answer."""


def _pieces(text: str) -> Iterator[re.Match[str]]:
    has_wide = any("\u3000" <= char <= "\u9fff" or char >= "\uff00" for char in text)
    return re.finditer(_PIECES if has_wide else r"\s*\S+\s*", text)


def _line_width(console: Console) -> int:
    return min(LONGEST, max(console.width, NARROWEST)) - 1


def has_columns(console: Console, hang: int) -> bool:
    """Return whether a text indented by `hang` has enough room beside the names."""
    return _line_width(console) - hang >= _LEAST_ROOM


def sentence(console: Console, text: str | Text, *, style: str = "", hang: int = 2) -> None:
    """Print a sentence, wrapped but not between a figure and its unit, nor within a short command of this program;
    continuation lines are indented by `hang`."""
    styled = Text(text, style=style) if isinstance(text, str) else text
    styled.plain = glued(_whole_commands(styled.plain) if "ds-advise" in styled.plain else styled.plain)
    width = _line_width(console)
    if not has_columns(console, hang):  # a separate column for the names would leave too little for the text
        hang = min(hang, width // 4)
        styled = styled[max(0, len(styled.plain) - len(styled.plain.lstrip(" ")) - hang) :]
    breaks = _breaks(styled.plain, width, max(width - hang, NARROWEST // 2))
    for number, line in enumerate(styled.divide(breaks)):
        line.rstrip()
        row(console, Text(" " * (1 + hang if number else 1)) + line)


_OPTION, _FILE = r"--?[\w-]*(?: [^\s-]\S*)?", r"[\w./-]*[./][\w./-]*\w|[A-Z_]{4,}"
_NAMED = rf"(?:ds-advise|pip install|npm pack) (?:{_OPTION}|\S+)(?: [\w.-]+(?= --))?"
COMMAND = rf"{_NAMED}(?: (?:{_OPTION}|{_FILE}))*|--[\w-]+ [^\s-]\S*"
"""A command in a sentence: its first words, then options with their values, files and placeholders."""


_SHORT_COMMAND = NARROWEST - 8
"""Most characters of a command that is not broken in a sentence: it fits on a line of the narrowest terminal."""


def _whole_commands(text: str) -> str:
    def firm(found: re.Match[str]) -> str:
        is_short = found[0].startswith("ds-advise") and found[0].isascii() and len(found[0]) <= _SHORT_COMMAND
        return found[0].replace(" ", FIRM) if is_short else found[0]

    return re.sub(COMMAND, firm, text)


def wrapped(text: str, columns: int, *, hang: int = 2) -> str:
    """Return a message in lines of the terminal's width, the continuation lines indented by `hang`. Words, paths and
    commands are not broken; a longer one overflows, so that it can be copied."""
    width = min(LONGEST, max(columns, NARROWEST)) - 1
    text = glued(re.sub(COMMAND, lambda found: found[0].replace(" ", FIRM), text))
    breaks = _breaks(text, width, width - hang, cuts=False)
    lines = (text[start:end].rstrip() for start, end in pairwise([0, *breaks, len(text)]))
    return f"\n{' ' * hang}".join(lines).replace(GLUE, " ").replace(FIRM, " ")


def folded(text: str, first: int, following: int) -> list[str]:
    """Return a text in lines of at most these columns; a longer path is cut at a mark."""
    breaks = _breaks(text, first, following)
    return [text[start:end].strip() for start, end in pairwise([0, *breaks, len(text)])]


def _breaks(text: str, first: int, following: int, *, cuts: bool = True) -> list[int]:
    """Return where lines end, given the columns of the first and of the following lines. cuts: whether a longer piece
    is cut."""
    breaks, room, start, filled = list[int](), first, 0, 0
    for piece in _pieces(text):
        columns = cell_len(piece[0].rstrip())
        if filled and filled + columns > room:
            breaks.append(piece.start())
            room, filled = following, 0
        start = piece.start()
        while cuts and columns > room and "://" not in piece[0]:  # a part of a URL is of no use
            part = _part(text, start, room)
            start += part
            breaks.append(start)
            columns, room = columns - part, following
        filled += cell_len(text[start : piece.end()])
        if "\n" in piece[0]:
            breaks.append(piece.end())
            room, filled = following, 0
    return breaks


def _part(text: str, start: int, room: int) -> int:
    """Return the characters of a longer path, URL or expression that a line takes: up to a slash, else up to another
    mark, if possible one that is not part of a name."""
    ends = [text.rfind(mark, start + 1, start + room) + 1 - start for mark in "/=(,_.-"]
    return next((part for part in ends if part > room // 2), max((part for part in ends[:4] if part > 0), default=room))


def padded(text: str, width: int) -> str:
    """Return a table's cell. A wide character takes two columns; a negative width aligns to the left."""
    space = " " * (abs(width) - cell_len(text))
    return text + space if width < 0 else space + text


def copyable(console: Console, lines: Sequence[str]) -> None:
    """Print lines of a file without wrapping, so that they can be copied; a narrow terminal indents them less."""
    has_room = console.width >= min(WIDTH, max(map(cell_len, lines), default=0) + 3)
    for line in lines:
        row(console, Text(f"{'   ' if has_room else ' '}{line}", style="bold"))


def commands(console: Console, lines: Sequence[str], *, is_python: bool = False) -> None:
    """Print shell commands or Python; on a narrow terminal, a line continues after a backslash, or inside the
    parentheses of Python."""
    depth = 0
    for command in lines:
        columns = max(console.width, NARROWEST)
        if command.startswith("#"):  # a comment ends with its line
            import textwrap  # imported here: most answers have no comment

            words = textwrap.wrap(command, columns - 3, subsequent_indent="# ", break_long_words=False)
            copyable(console, words)
            continue
        parts = _continued_in_parentheses(command, columns, depth) if is_python else continued(command, columns)
        depth = _depths(command, depth)[-1]
        for part in parts:
            row(console, Text(part, style="bold"))


def _depths(source: str, depth: int) -> list[int]:
    """Return the number of open parentheses before each character of Python source, and after the last one. depth:
    their number before the source."""
    depths = [depth]
    for character in _without_strings(source):
        depths.append(depths[-1] + (character in "([{") - (character in ")]}"))
    return depths


def _without_strings(source: str) -> str:
    """Return the source with strings and comments of the same length without spaces and parentheses."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|#.*", lambda found: "_" * len(found[0]), source)


def _continued_in_parentheses(source: str, columns: int, depth: int) -> list[str]:
    """Return the lines of Python source, broken at a space or behind an opening parenthesis, as far out as possible;
    where nothing is open, after a backslash. depth: the parentheses that are open before the source."""
    margin, step = 3, len(source) - len(source.lstrip()) + 4
    parts, indent, rest = list[str](), 0, source
    while margin + indent + len(rest) > columns:
        shown, depths, room = _without_strings(rest), _depths(rest, depth), columns - margin - indent
        start = len(rest) - len(rest.lstrip())
        ends = [at + (shown[at] == "(") for at in range(start, len(rest)) if shown[at] in " ("]
        ends = [end for end in ends if 0 < end <= room and end < len(rest) and depths[end] > 0]
        if not ends:
            return parts + [f"{' ' * indent}{part}" for part in continued(rest, columns - indent, is_python=True)]
        at = max(ends, key=lambda end: (end > room // 2, -depths[end], end))
        parts.append(f"{' ' * (margin + indent)}{rest[:at].rstrip()}")
        rest, indent, depth = rest[at:].lstrip(), step, depths[at]
    return [*parts, f"{' ' * (margin + indent)}{rest}"]


_WITH_VALUE = r"(?<=\s)--?\w[\w-]* [^\s-]\S*"
"""An option and its value, between which a command is not broken unless they are longer than a line."""


def continued(command: str, columns: int, *, is_python: bool = False) -> list[str]:
    """Return the lines of a command, broken at a space; a word longer than a line is broken after `=`, a comma or a
    parenthesis, else in a shell's command after a dot.

    The backslash joins both sides, so the rest of a word is not indented. Quoted text and comments are not broken.
    """
    parts, indent, rest = [], "   ", command
    while len(indent) + len(rest) > columns:
        room = columns - len(indent) - 2
        open_text = re.sub(r"'[^']*'|\"[^\"]*\"|\s#.*|^\s+", lambda found: "_" * len(found[0]), rest)
        for found in re.finditer(_WITH_VALUE, open_text):
            if len(found[0]) < room:
                open_text = open_text.replace(found[0], found[0].replace(" ", "_"))
        at = open_text.rfind(" ", 1, room + 1)
        if len(open_text[at + 1 :].partition(" ")[0]) > columns - len("      \\"):
            marks = ["=(),", *([] if is_python else ["."])]  # a module that a command runs has no other mark
            ends = ([1 + open_text.rfind(mark, at + 2, room) for mark in each] for each in marks)
            at = max(at, next((max(each) for each in ends if any(each)), 0))
        if at <= 0:
            at = open_text.find(" ", 1)  # a longer word stands on a line of its own
        if at <= 0:
            break
        is_space = open_text[at] == " "
        parts.append(f"{indent}{rest[:at]}{' ' * is_space}\\")
        rest, indent = rest[at + is_space :], "     " * is_space
    return [*parts, indent + rest]


def encodable(text: str, console: Console) -> str:
    """Return the text with the nearest ASCII for characters that the encoding lacks."""
    return text if can_encode(console, text) else text.replace("·", "|").encode("ascii", "replace").decode("ascii")


def row(console: Console, line: str | Text, *, style: str = "") -> None:
    """Print one line unwrapped; characters missing in the encoding are replaced by the nearest ASCII."""
    text = Text(line, style=style) if isinstance(line, str) else line
    text.plain = printable(text.plain.replace(GLUE, " ").replace(FIRM, " "))  # a name may have an escape byte
    if not can_encode(console, text.plain):
        text = Text(encodable(text.plain, console))
    console.print(text, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True, highlight=False)


def blank(console: Console) -> None:
    console.print()
