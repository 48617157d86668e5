"""The frames of tracebacks, as Python, pytest, IPython, rich and Ray write them."""

from __future__ import annotations

import re
from collections import deque
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from .log_lines import LogLine

_FRAME = re.compile(r'^>?\s*File\s*"(?P<file>[^"]+)",\s*line\s*(?P<line>\d+)(?:,\s*in\s*(?P<name>\S+)|$)')
"""A frame; that of a file that Python could not compile is in no function."""
_TEST_FRAME = re.compile(r"^(?P<file>\S+\.py):(?P<line>\d+): in (?P<name>\w+)$")
"""A frame of pytest."""
RAY_FRAME = re.compile(r"(?P<file>ray)::(?:\w+\.)*(?P<name>\w+)\(\) \(pid=")
"""The method of Ray's actor, in front of the traceback of its process."""
_RICH_FRAME = re.compile(r"(?:^|(?P<file>\S+?):(?P<line>\d*)\s?|^\d+ )in(?: (?P<name>[\w<>.]+))?$")
_NAME = re.compile(r"^[\w<>.]+$")
BOX = ("╭", "│", "╰")
"""What a line of rich's traceback begins with."""
_CELL_FRAME = re.compile(r"^(?:File )?(?P<file>[~\w./<>-]+?)(?::(?P<line>\d+))?,? in (?:\w+\.)*(?P<name>[\w<>]+)\(")
"""A frame of IPython's traceback."""
CELL_CODE = re.compile(r"^-+> \d+ ")
_CODE = re.compile(r"^\s{3,}(?:return |raise |[\w.]+\(|[\w.]+(?:\[[^]]*\])?(?:, [\w.]+)* = )")
"""The code of a frame whose own line is missing."""
_MARKS = re.compile(r"^[\s^~]*$")
"""What stands under it."""
_RAISED = re.compile(r"raise [\w.]+\(.*[\"']")
FORMS = (_FRAME, _TEST_FRAME, RAY_FRAME, _CELL_FRAME)

_LIBRARY = re.compile(
    r"(?:^|[/\\])(?:(?:site|dist)-packages|python\d[\d.]*|torch|deepspeed|transformers|accelerate|trl|peft|ray|bin|"
    r"lightning|pytorch_lightning)[/\\]|^<|^(?:ray|)$"
)
"""Found in the file of a frame that is not the user's: an installed package, Python's library, or a launcher."""

_LAUNCHER = re.compile(r"accelerate/commands/|torch/distributed/(?:run|launcher)|deepspeed/launcher/")

LONGEST_CODE = 400


class NumberedLine(NamedTuple):
    """A line of the log without what launchers put in front of it, and its number."""

    number: int
    text: str


class Frame(NamedTuple):
    """A frame of a traceback. number: of its line in the log. place: the line of the file, "" if it is not known. file:
    "" if the traceback is cut to the code of its last frame."""

    number: int
    file: str
    place: str
    name: str
    code: str = ""

    def __str__(self) -> str:
        """`file:function code`, also of a file on Windows with `/`."""
        return f"{self.posix_file}:{self.name} {self.code}".rstrip()

    @property
    def posix_file(self) -> str:
        """The file with `/`, also on Windows."""
        return self.file.replace("\\", "/")

    @property
    def is_own(self) -> bool:
        """Whether the file is the user's, not a library's."""
        return not _LIBRARY.search(self.file)

    @property
    def short_file(self) -> str:
        """The path of a library's file from the folder of the packages; the whole path of the user's."""
        parts = PurePath(self.posix_file).parts
        return self.file if self.is_own else str(PurePath(*parts[self._packages or -3 :]))

    @property
    def package(self) -> str:
        """The installed package that it is in; "" for any other file."""
        return PurePath(self.posix_file).parts[self._packages] if self._packages else ""

    @property
    def _packages(self) -> int:
        """Number of the parts of its path down to the folder of the installed packages; 0 without that folder."""
        folders = PurePath(self.posix_file).parts[:-1]
        return next((at for at, part in enumerate(folders, 1) if part in ("site-packages", "dist-packages")), 0)

    @property
    def is_launcher(self) -> bool:
        """Whether the file is of a launcher, which only repeats that a rank failed."""
        return bool(_LAUNCHER.search(str(self)))

    @property
    def raises(self) -> bool:
        """Whether its code raises an exception whose words it has."""
        return bool(_RAISED.match(self.code))

    def with_code(self, code: str) -> Frame:
        return self._replace(code=f"{self.code} {code.strip()}".strip()[:LONGEST_CODE])


def frame_of(line: NumberedLine) -> Frame | None:
    """The frame of Python's traceback in a line; None for any other line."""
    found = _FRAME.match(line.text.strip())
    return None if found is None else frame_in(line, found)


def code_above(line: LogLine, above: Frame | None) -> Frame | None:
    """What is left of a traceback whose frames are cut off, if it ends at a line: the code of the last one; None for
    none. above: the same before that line."""
    if _CODE.match(line.text):
        return Frame(line.number, "", "", "").with_code(line.text)
    return above if _MARKS.match(line.text) else None


def frames_of(traceback: str) -> tuple[str, ...]:
    """The frames of Python's traceback, `file:function code`, the outermost first."""
    return tuple(
        str(Frame(0, found["file"], "", found["name"] or "", code.strip()))
        for found, code in ((_FRAME.match(line), after) for line, after in pairwise([*traceback.splitlines(), ""]))
        if found is not None
    )


def frame_in(line: LogLine | NumberedLine, found: re.Match[str]) -> Frame:
    place = found.groupdict().get("line") or ""
    return Frame(line.number, found["file"] or "", place, found["name"] or "")


def indent_of(text: str) -> int:
    """The number of blanks in front of a text."""
    return len(text) - len(text.lstrip())


def read_box(line: LogLine, frames: deque[Frame]) -> None:
    """Add a line of rich's traceback to the frames: a place, whose name may follow in the next line, or its code."""
    inner = line.text
    if found := _RICH_FRAME.search(inner):
        frames.append(frame_in(line, found))
    elif inner.startswith("❱"):
        frame = frames.pop() if frames else Frame(line.number, "", "", "")
        frames.append(frame.with_code(inner.lstrip("❱ 0123456789│")))
    elif frames and not frames[-1].name and not frames[-1].code and _NAME.match(inner):
        frames[-1] = frames[-1]._replace(name=inner)
