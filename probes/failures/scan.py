"""The errors of a log, each with its traceback and the lines around it, in one pass of bounded memory."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, takewhile
from pathlib import PurePath
from typing import BinaryIO, NamedTuple

from .log_command import Ranks, command_in, ranks_in
from .log_lines import TRIGGERS, LogLine, LogReader
from .log_runs import RunStarts
from .logged_steps import count_steps, is_not_finite, step_number
from .messages import may_be_known

_BEFORE, _AFTER, _FRAMES = 30, 14, 80
"""Lines before an error, lines after it, and frames of its traceback that are kept."""

_EARLIER = 20
"""Earlier runs of a log that are kept."""

_FIRST, _LAST = 300, 100
"""Errors that are kept: the first and the last ones of a log with more."""

_PROCESSES = 2_048
"""Processes whose last lines are kept."""

_LONGEST_FRAME = 400
"""Longest part of a frame that goes on in the next line."""

_QUIET = 100
"""Lines without a frame after which a traceback has no exception any more: its end is missing, or it was none."""

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r'^>?\s*File\s*"(?P<file>[^"]+)",\s*line\s*(?P<line>\d+)(?:,\s*in\s*(?P<name>\S+)|$)')
"""A frame; that of a file that Python could not compile is in no function."""
_CUT_FRAME = re.compile(r'^>?\s*File(?:\s*"[^"]*(?:",?\s*(?:line\s*)?(?:\d+,?)?(?:\s*in)?)?)?$')
"""A frame that a terminal, or a logger of its width, broke into lines."""
_NO_REST = re.compile(r"^\s+(?!\d*,?\s*in\s)\S|^\s*$")
"""What follows a whole frame without a function: its code."""
_WHOLE_FRAME = re.compile(r'"[^"]+", line \d+$')
_TEST_FRAME = re.compile(r"^(?P<file>\S+\.py):(?P<line>\d+): in (?P<name>\w+)$")
"""A frame of pytest."""
_RAY_FRAME = re.compile(r"(?P<file>ray)::(?:\w+\.)*(?P<name>\w+)\(\) \(pid=")
"""The method of Ray's actor, in front of the traceback of its process."""
_RICH_FRAME = re.compile(r"(?:^|(?P<file>\S+?):(?P<line>\d*)\s?|^\d+ )in(?: (?P<name>[\w<>.]+))?$")
_NAME = re.compile(r"^[\w<>.]+$")
_BOX = ("╭", "│", "╰")
"""What a line of rich's traceback begins with."""
_CELL_FRAME = re.compile(r"^(?:File )?(?P<file>[~\w./<>-]+?)(?::(?P<line>\d+))?,? in (?:\w+\.)*(?P<name>[\w<>]+)\(")
"""A frame of IPython's traceback."""
_NO_CODE = re.compile(r"^[\s^~]+$|^ +\d+(?: |$)")
"""The marks under a frame's code, and the lines around the code in a notebook."""
_CELL_CODE = re.compile(r"^-+> \d+ ")
_FRAMES_OF = (_FRAME, _TEST_FRAME, _RAY_FRAME, _CELL_FRAME)
_BEGINS = re.compile(
    r'^>?\s*File\s*"[^"]+",\s*line\s*\d|^\S+\.py:\d+: in \w+$|'
    r"^\s*│ |^(?:File )?[~/]\S+,? in [\w.<>]+\("
)
"""A frame that stands without the traceback's first line."""
_EXCEPTION = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::(?:\s|$)|$)")
_BARE = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Timeout)(?::|$)")
_CHAINED = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_IGNORED = re.compile(r"^Exception ignored in")
_ENDS = re.compile(
    r"^(?:\s*$|Traceback|During handling|The above exception|Exception ignored|\[\d{4}-|\[[EWIF]\d{3,4} |slurmstepd:|"
    r"\[?(?:INFO|WARNING|ERROR|rank)\b|Exception raised from|E\d{4} |W\d{4} |={8}|-{8}|wandb:|\s*\d+%\||[╭╰│])"
)
"""What a line after an error begins with if it no longer belongs to the message."""

_ENDED = ("'train_runtime'", "exits successfully")
"""In the line that the Trainer prints after its last step, and in that of DeepSpeed's launcher on a process with exit
code 0 (0.19.8 launcher/launch.py)."""

GAP = 3
"""Training steps after an error that show that the training survived it. The other ranks may report a step that was
complete."""

_LIBRARY = re.compile(
    r"(?:^|[/\\])(?:(?:site|dist)-packages|python\d[\d.]*|torch|deepspeed|transformers|accelerate|trl|peft|ray|bin|"
    r"lightning|pytorch_lightning)[/\\]|^<|^(?:ray|)$"
)
"""Found in the file of a frame that is not the user's: an installed package, Python's library, or a launcher."""

_LONGEST_CODE = 400

_WORDS = tuple(word.decode() for word in TRIGGERS)

_NOISE = re.compile(r"\d{3,}|0x[0-9a-fA-F]+")


class NumberedLine(NamedTuple):
    """A line of the log without what launchers put in front of it, and its number."""

    number: int
    text: str


class Frame(NamedTuple):
    """A frame of a traceback. number: of its line in the log. place: the line of the file, "" if it is not known."""

    number: int
    file: str
    place: str
    name: str
    code: str = ""

    def __str__(self) -> str:
        """`file:function code`."""
        return f"{self.file}:{self.name} {self.code}".rstrip()

    @property
    def is_own(self) -> bool:
        """Whether the file is the user's, not a library's."""
        return not _LIBRARY.search(self.file)

    @property
    def short_file(self) -> str:
        """The path of a library's file from the folder of the packages; the whole path of the user's."""
        parts = PurePath(self.file).parts
        begin = next((at for at, part in enumerate(parts, 1) if part in ("site-packages", "dist-packages")), 0)
        return self.file if self.is_own else str(PurePath(*parts[begin or -3 :]))

    def with_code(self, code: str) -> Frame:
        return self._replace(code=f"{self.code} {code.strip()}".strip()[:_LONGEST_CODE])


@dataclass(slots=True, kw_only=True)
class LogError:
    """One error of a log."""

    line: int
    """Number of its line."""
    process: str
    rank: int | None
    steps: int
    """Training steps that the log shows before it."""
    until: int = 0
    """Those up to the last of its repetitions: a loss that is not a number stays so."""
    head: str
    """The line of the message."""
    is_exception: bool = False
    frames: tuple[Frame, ...] = ()
    """Of its traceback, the outermost first."""
    before: tuple[str, ...] = ()
    after: list[NumberedLine] = field(default_factory=list)
    chain: int = 0
    """Number of its chain: exceptions raised while another one was handled."""
    ignored: bool = False
    """Whether Python ignored it (a destructor)."""

    @property
    def lines(self) -> list[NumberedLine]:
        """The lines of the message."""
        lines = [NumberedLine(self.line, self.head), *takewhile(lambda line: not _ENDS.match(line.text), self.after)]
        frame = next((at for at, line in enumerate(lines) if frame_of(line) is not None), 0)
        if not frame or any(_TRACEBACK.search(line.text) for line in lines):
            return lines
        # A traceback of another rank goes on, whose lines are mixed with this one's.
        while frame > 1 and lines[frame - 1].text.startswith("    "):
            frame -= 1
        return lines[:frame]

    @property
    def step(self) -> int | None:
        """The number of the last training step before it; None if the log does not name it."""
        return step_number(self.before)

    @property
    def text(self) -> str:
        """The message in one line."""
        return " ".join([self.head, *(line.text.strip() for line in self.lines[1:])])

    @property
    def around(self) -> tuple[str, ...]:
        """The traceback and the lines before and after it."""
        return (*map(str, self.frames), *self.before, *(line.text for line in self.after))


@dataclass(slots=True)
class _Process:
    """The state of a process while its lines are read."""

    last: deque[str] = field(default_factory=lambda: deque(maxlen=_BEFORE))
    frames: deque[Frame] | None = None
    """The frames of an open traceback."""
    has_head: bool = True
    """Whether the traceback's first line was seen."""
    quiet: int = 0
    """Lines since its last frame."""
    open: list[LogError] = field(default_factory=list)
    """Errors whose following lines are collected."""
    chain: int = 0
    continues: bool = False
    """Whether the next traceback belongs to the chain of the last one."""
    ignored: bool = False


@dataclass(slots=True, kw_only=True)
class Scan:
    """The errors of a log; of several trainings, one appended to the other, those of the last one."""

    begin: int
    """Number of its first line."""

    errors: Sequence[LogError]
    """In the order of their lines."""
    last_lines: dict[str, tuple[str, ...]]
    """The last lines of each process."""
    ranks: dict[str, int | None]
    lines: int
    steps: int
    """Training steps that the log shows."""
    last_line: str
    """That is not empty."""
    ended: int
    """Number of the last line that reports the end of the training; 0 without one."""
    command: tuple[str, ...]
    """Words of the first command of the log that started a training; none if it shows none."""
    started: Ranks
    """The ranks that launchers and libraries report."""
    earlier: Sequence[Scan] = ()
    """The trainings before it in the log."""


def frame_of(line: NumberedLine) -> Frame | None:
    """The frame of Python's traceback in a line; None for any other line."""
    found = _FRAME.match(line.text.strip())
    return None if found is None else Frame(line.number, found["file"], found["line"], found["name"] or "")


def frames_of(traceback: str) -> tuple[str, ...]:
    """The frames of Python's traceback, `file:function code`, the outermost first."""
    return tuple(
        f"{found['file']}:{found['name'] or ''} {code.strip()}"
        for found, code in ((_FRAME.match(line), after) for line, after in pairwise([*traceback.splitlines(), ""]))
        if found is not None
    )


def scan(stream: BinaryIO) -> Scan:
    """Read a log to its end."""
    reader, starts, earlier = LogReader(stream), RunStarts(), deque[Scan](maxlen=_EARLIER)
    scanner = _Scanner(reader, begin=1)
    for line in reader:
        if starts.begins(line.text) and scanner.is_run:
            earlier.append(scanner.result())
            scanner = _Scanner(reader, begin=line.number)
        scanner.read(line)
    return replace(scanner.result(), earlier=tuple(earlier))


class _Scanner:
    """Reads the lines of one training."""

    def __init__(self, reader: LogReader, *, begin: int) -> None:
        self._reader = reader
        self._begin_line, self._steps_before = begin, reader.steps
        self._processes: OrderedDict[str, _Process] = OrderedDict()
        self._ranks: dict[str, int | None] = {}
        self._first: list[LogError] = []
        self._last: deque[LogError] = deque(maxlen=_LAST)
        self._chains = 0
        self._recent: deque[str] = deque(maxlen=_BEFORE)
        self._cut: LogLine | None = None
        self._command: tuple[str, ...] = ()
        self._started = Ranks()
        self._ended = 0
        self._not_finite: LogError | None = None
        """The first step of the last ones that are not finite."""

    @property
    def is_run(self) -> bool:
        """Whether the lines show that a training ran."""
        return bool(self._first or self._steps or self._ended)

    @property
    def _steps(self) -> int:
        return self._reader.steps - self._steps_before

    def read(self, line: LogLine) -> None:
        line = self._joined(line)
        process = self._process(line)
        self._command = self._command or command_in(line.text)
        self._started = self._started.joined(ranks_in(line.text))
        self._ended = line.number if any(word in line.text for word in _ENDED) else self._ended
        self._read(line, process)
        process.last.append(line.text)
        self._recent.append(line.text)
        self._reader.wants_all = process.frames is not None or bool(process.open)

    def result(self) -> Scan:
        return Scan(
            begin=self._begin_line,
            errors=[*self._first, *self._last],
            last_lines={name: tuple(process.last) for name, process in self._processes.items()},
            ranks=self._ranks,
            lines=self._reader.lines,
            steps=self._steps,
            last_line=next((line for line in reversed(self._recent) if line.strip()), ""),
            ended=self._ended,
            command=self._command,
            started=self._started,
        )

    def _joined(self, line: LogLine) -> LogLine:
        """The line, with the part of a frame that it continues in front."""
        cut, self._cut = self._cut, None
        if cut is not None and _WHOLE_FRAME.search(cut.text) and _NO_REST.match(line.text):
            return line
        if cut is not None and line.process in ("", cut.process):
            line = cut._replace(number=line.number, text=cut.text + line.text.strip())
        if "File" in line.text and _CUT_FRAME.match(line.text) and len(line.text) < _LONGEST_FRAME:
            self._cut = line
        return line

    def _process(self, line: LogLine) -> _Process:
        found = self._processes.pop(line.process, None) or _Process()
        self._processes[line.process] = found
        if line.rank is not None:
            self._ranks[line.process] = line.rank
        if len(self._processes) > _PROCESSES:
            self._processes.popitem(last=False)
        return found

    def _read(self, line: LogLine, process: _Process) -> None:
        if line.text.startswith("E   "):  # pytest's mark of the lines of an exception
            line = line._replace(text=line.text.lstrip("E "))
        text = line.text
        for error in process.open:
            error.after.append(NumberedLine(line.number, text))
        process.open = [error for error in process.open if len(error.after) < _AFTER]
        if _CHAINED.match(text):
            process.continues = True
        elif _IGNORED.match(text):
            process.ignored = True
        elif _TRACEBACK.search(text):
            self._begin(process, has_head=True)
        elif process.frames is not None:
            self._in_traceback(line, process, process.frames)
        elif _BEGINS.match(text) or ("ray::" in text and _RAY_FRAME.search(text)):
            # The first line is missing: the log is the end of one, or ranks are mixed.
            self._begin(process, has_head=False)
            assert process.frames is not None
            self._in_traceback(line, process, process.frames)
        elif _BARE.match(text) or _is_known(text):
            # NCCL's `ncclSystemError: ...` is a line of torch's exception above it.
            inside = any(error.frames and error.lines[-1].number == line.number for error in process.open)
            self._keep(line, process, is_exception=not inside and bool(_BARE.match(text)))

    def _begin(self, process: _Process, *, has_head: bool) -> None:
        process.frames, process.has_head, process.quiet = deque(maxlen=_FRAMES), has_head, 0
        if not process.continues:
            self._chains += 1
            process.chain = self._chains
        process.continues = False

    def _in_traceback(self, line: LogLine, process: _Process, frames: deque[Frame]) -> None:
        text, process.quiet = line.text, process.quiet + 1
        if text.lstrip().startswith(_BOX):
            _in_box(line._replace(text=text.strip("╭│╰ ")), frames)
            process.quiet = 0
        elif found := next(filter(None, (form.search(text) for form in _FRAMES_OF)), None):
            frames.append(_frame(line, found))
            process.quiet = 0
        elif frames and (found := _CELL_CODE.match(text)):
            frames[-1] = frames[-1].with_code(text[found.end() :])
        elif text[:1] in (" ", "\t", ""):
            if frames and text.strip() and not _NO_CODE.match(text):
                frames[-1] = frames[-1].with_code(text)
            if process.quiet > 1 and _is_known(text):  # a compiler's error among the lines of another rank
                self._keep(line, process, is_exception=False)
        elif (_EXCEPTION if process.has_head else _BARE).match(text):
            self._keep(line, process, is_exception=True)
            process.frames, process.ignored = None, False
        elif _is_known(text):
            self._keep(line, process, is_exception=False)
        elif process.quiet > _QUIET:
            process.frames = None

    def _keep(self, line: LogLine, process: _Process, *, is_exception: bool) -> None:
        own_steps = count_steps(line.text.encode())
        not_finite = not is_exception and bool(own_steps) and is_not_finite(line.text)
        if not_finite and self._not_finite is not None and self._steps - self._not_finite.until < GAP:
            self._not_finite.until = self._steps
            return
        chain = process.chain
        if not is_exception or process.frames is None:  # not of a traceback
            self._chains += 1
            chain = self._chains
        error = LogError(
            line=line.number,
            process=line.process,
            rank=line.rank,
            steps=self._steps - own_steps,
            until=self._steps,
            head=line.text,
            is_exception=is_exception,
            frames=tuple(process.frames or ()),
            before=tuple(self._recent) + tuple(process.last if line.process else ()),
            chain=chain,
            ignored=process.ignored,
        )
        self._not_finite = error if not_finite else self._not_finite
        process.open.append(error)
        (self._first if len(self._first) < _FIRST else self._last).append(error)


def _frame(line: LogLine, found: re.Match[str]) -> Frame:
    place = found.groupdict().get("line") or ""
    return Frame(line.number, found["file"] or "", place, found["name"] or "")


def _in_box(line: LogLine, frames: deque[Frame]) -> None:
    """Add a line of rich's traceback to the frames: a place, whose name may follow in the next line, or its code."""
    inner = line.text
    if found := _RICH_FRAME.search(inner):
        frames.append(_frame(line, found))
    elif inner.startswith("❱"):
        frame = frames.pop() if frames else Frame(line.number, "", "", "")
        frames.append(frame.with_code(inner.lstrip("❱ 0123456789│")))
    elif frames and not frames[-1].name and not frames[-1].code and _NAME.match(inner):
        frames[-1] = frames[-1]._replace(name=inner)


def _is_known(text: str) -> bool:
    return any(word in text for word in _WORDS) and _is_known_form(_NOISE.sub("999", text))


@lru_cache(maxsize=8_192)
def _is_known_form(text: str) -> bool:
    """Whether a line is a known message; lines that differ in long numbers only are searched once."""
    return may_be_known(text)
