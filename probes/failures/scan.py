"""The errors of a log, each with its traceback and the lines around it, in one pass of bounded memory."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from .log_command import Ranks, command_in, is_typed, ranks_in
from .log_error import TRACEBACK, LogError
from .log_lines import LogLine, LogReader
from .log_runs import RunStarts
from .logged_steps import count_steps, course_of, is_not_finite, last_place
from .messages import may_be_known
from .scanned import Scan
from .signs import Sign, signs_in
from .traceback_frames import (
    BOX,
    CELL_CODE,
    FORMS,
    RAY_FRAME,
    Frame,
    NumberedLine,
    code_above,
    frame_in,
    indent_of,
    read_box,
)

_BEFORE, _AFTER, _FRAMES = 30, 14, 80
"""Lines before an error, lines after it, and frames of its traceback that are kept."""

MOST_EARLIER = 20
"""Earlier runs of a log that are kept."""

_FIRST, _LAST = 300, 100
"""Errors that are kept: the first and the last ones of a log with more."""

_PROCESSES = 2_048
"""Processes whose last lines are kept."""

_LONGEST_FRAME = 400
"""Longest part of a frame that goes on in the next line."""

_QUIET = 100
"""Lines without a frame after which a traceback has no exception any more: its end is missing, or it was none."""

_CUT_FRAME = re.compile(r'^>?\s*File(?:\s*"[^"]*(?:",?\s*(?:line\s*)?(?:\d+,?)?(?:\s*in)?)?)?$')
"""A frame that a terminal, or a logger of its width, broke into lines."""
_NO_REST = re.compile(r"^\s+(?!\d*,?\s*in\s)\S|^\s*$")
"""What follows a whole frame without a function: its code."""
_WHOLE_FRAME = re.compile(r'"[^"]+", line \d+$')
_NO_CODE = re.compile(r"^[\s^~]+$|^ +\d+(?: |$)")
"""The marks under a frame's code, and the lines around the code in a notebook."""
_BEGINS = re.compile(
    r'^>?\s*File\s*"[^"]+",\s*line\s*\d|^\S+\.py:\d+: in \w+$|'
    r"^\s*│ |^(?:File )?[~/]\S+,? in [\w.<>]+\("
)
"""A frame that stands without the traceback's first line."""
_EXCEPTION = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::(?:\s|$)|$)")
_BARE = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Timeout)(?::|$)")
_OF_BOX = re.compile(r"^\s*│[\s│]*(?:❱\s*)?\d")
"""Code in rich's traceback: also what is around the line that ran."""
_CHAINED = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_IGNORED = re.compile(r"^Exception ignored in")
_ORIGINAL = re.compile(r"^Original Traceback")
"""What follows `Caught ... in replica 0` or `in DataLoader worker process 0` (torch 2.13 _utils.py `ExceptionWrapper`):
the traceback of the thread or process that failed."""
_TRAINED = "'train_runtime'"
"""In the line that the Trainer prints after its last step."""
_ENDED = (_TRAINED, "exits successfully")
"""In that line, and in that of DeepSpeed's launcher on a process with exit code 0 (0.19.8 launcher/launch.py)."""

_ROOT = "Root Cause (first observed failure)"
_RANK_OF_FAILURE = re.compile(r"\s*rank\s*: (\d+) \(local_rank")
_TIME_OF_FAILURE = re.compile(r"\s*time\s*: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)$")
"""In torchrun's table of failures, and its lines of each rank (torch 2.13 distributed/elastic/multiprocessing/errors).
"""

GAP = 3
"""Training steps after an error that show that the training survived it. The other ranks may report a step that was
complete."""


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
    indent: int = 0
    """Blanks in front of that."""
    above: Frame | None = None
    """The code in its last line, if it is some."""
    wrapped: LogError | None = None
    """The error in front of the open traceback that only repeats that of another thread or process (`Caught ...`)."""
    told: LogError | None = None
    """The error in front of the open traceback, which may be that of the traceback."""
    open: list[LogError] = field(default_factory=list)
    """Errors whose following lines are collected."""
    chain: int = 0
    continues: bool = False
    """Whether the next traceback belongs to the chain of the last one."""
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class LogOfRank:
    """A log of several."""

    stream: BinaryIO
    name: str = ""
    """"" for the only one."""
    rank: int | None = None
    """The rank that wrote it; None if that is not known, or if there are several in it."""


def scan(log: LogOfRank, before: int = 0) -> Scan:
    """Read a log to its end. before: the lines of the logs before it."""
    reader, starts, earlier = LogReader(log.stream), RunStarts(), deque[Scan](maxlen=MOST_EARLIER)
    scanner = _Scanner(reader, log, begin=1, before=before)
    for line in reader:
        if log.name:
            line = line._replace(
                process=f"{log.name}:{line.process}", rank=log.rank if line.rank is None else line.rank
            )
        if (starts.begins(line.text) or is_typed(line.text)) and scanner.is_run:
            earlier.append(scanner.result())
            scanner = _Scanner(reader, log, begin=line.number, before=before)
        scanner.read(line)
    return replace(scanner.result(), earlier=tuple(earlier))


class _Scanner:
    """Reads the lines of one training."""

    def __init__(self, reader: LogReader, log: LogOfRank, *, begin: int, before: int) -> None:
        self._reader = reader
        self._log, self._before = log, before
        self._begin_line, self._steps_before = begin, reader.steps
        reader.first_step = ""
        self._processes: OrderedDict[str, _Process] = OrderedDict()
        self._ranks: dict[str, int | None] = {}
        self._first: list[LogError] = []
        self._last: deque[LogError] = deque(maxlen=_LAST)
        self._chains = 0
        self._recent: deque[str] = deque(maxlen=_BEFORE)
        self._cut: LogLine | None = None
        self._command: tuple[str, ...] = ()
        self._started = Ranks()
        self._signs = frozenset[Sign]()
        self._ended = self._trained = 0
        self._roots, self._is_root = set[int](), False
        self._failure_times, self._failure_time = dict[int, str](), ""
        self._not_finite: LogError | None = None
        """The first step of the last ones that are not finite."""

    @property
    def is_run(self) -> bool:
        """Whether the lines show that a training ran."""
        return bool(self._first or self._steps or self._ended)

    @property
    def _unnamed(self) -> str:
        """The process of lines in front of which the launcher wrote nothing."""
        return f"{self._log.name}:" if self._log.name else ""

    @property
    def _steps(self) -> int:
        return self._reader.steps - self._steps_before

    def read(self, line: LogLine) -> None:
        line = self._joined(line)
        process = self._process(line)
        self._command = self._command or command_in(line.text)
        self._started = self._started.joined(ranks_in(line.text))
        if not _OF_BOX.match(line.text):
            self._signs |= signs_in(line.text)
        self._ended = line.number if any(word in line.text for word in _ENDED) else self._ended
        self._trained = line.number if _TRAINED in line.text else self._trained
        self._is_root = self._is_root or _ROOT in line.text
        self._read_table(line.text)
        self._read(line, process)
        process.above = code_above(line, process.above) if line.text[:1] in (" ", "\t", "") else None
        process.last.append(line.text)
        self._recent.append(line.text)
        self._reader.wants_all = process.frames is not None or bool(process.open)

    def _read_table(self, text: str) -> None:
        """Read a line of torchrun's table of failures."""
        if found := _TIME_OF_FAILURE.match(text):
            self._failure_time = found[1]
        elif found := _RANK_OF_FAILURE.match(text):
            rank = int(found[1])
            if self._failure_time:
                self._failure_times[rank] = self._failure_time
            if self._is_root:
                self._roots.add(rank)
            self._is_root, self._failure_time = False, ""

    def result(self) -> Scan:
        for name, process in self._processes.items():
            self._cut_off(name, process)
        return Scan(
            begin=self._begin_line,
            log=self._log.name,
            errors=[*self._first, *self._last],
            last_lines={name: tuple(process.last) for name, process in self._processes.items()},
            ranks=self._ranks,
            lines=self._reader.lines,
            steps=self._steps,
            course=course_of(self._reader.first_step, self._recent),
            place=last_place(self._recent) if self._steps else None,
            last_line=next((line for line in reversed(self._recent) if line.strip()), ""),
            ended=self._ended,
            command=self._command,
            started=self._started,
            signs=self._signs,
            roots=frozenset(self._roots),
            failure_times=self._failure_times,
        )

    def _joined(self, line: LogLine) -> LogLine:
        """The line, with the part of a frame that it continues in front."""
        cut, self._cut = self._cut, None
        if cut is not None and _WHOLE_FRAME.search(cut.text) and _NO_REST.match(line.text):
            return line
        if cut is not None and line.process in (self._unnamed, cut.process):
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
        elif TRACEBACK.search(text):
            self._begin(process, has_head=True, text=text)
        elif process.frames is not None:
            self._in_traceback(line, process, process.frames)
        elif _BEGINS.match(text) or ("ray::" in text and RAY_FRAME.search(text)):
            # The first line is missing: the log is the end of one, or ranks are mixed.
            self._begin(process, has_head=False)
            assert process.frames is not None
            self._in_traceback(line, process, process.frames)
        elif _BARE.match(text) or may_be_known(text):
            # NCCL's `ncclSystemError: ...` is a line of torch's exception above it.
            inside = any(error.frames and error.lines[-1].number == line.number for error in process.open)
            self._keep(line, process, is_exception=not inside and bool(_BARE.match(text)))

    def _cut_off(self, name: str, process: _Process) -> None:
        """Read a traceback at whose end the log ends: of the error in front of it, or raised by its last line."""
        frames, told = process.frames, process.told
        if frames and told is not None and not any(frame.is_launcher for frame in frames):
            told.frames = tuple(frames)
        elif frames and process.above is not None and process.above.raises:
            code = process.above
            frames[-1] = frames[-1]._replace(code="")  # it is the message
            self._keep(LogLine(code.number, name, self._ranks.get(name), code.code), process, is_exception=True)

    def _begin(self, process: _Process, *, has_head: bool, text: str = "") -> None:
        before = process.open[-1] if has_head and process.open else None
        process.told = before if before is not None and not before.frames and before.is_followed else None
        process.frames, process.has_head = deque(maxlen=_FRAMES), has_head
        process.wrapped = before if before is not None and _ORIGINAL.match(text) else None
        if process.wrapped is not None:
            process.frames.extend(process.wrapped.frames)
            process.continues = True
        process.quiet = process.indent = 0
        if not process.continues:
            self._chains += 1
            process.chain = self._chains
        process.continues = False

    def _in_traceback(self, line: LogLine, process: _Process, frames: deque[Frame]) -> None:
        text, process.quiet = line.text, process.quiet + 1
        if 0 < indent_of(text) < process.indent and _BARE.match(text.lstrip()):  # the whole traceback is indented
            line = line._replace(text=text.lstrip())
            text = line.text
        if text.lstrip().startswith(BOX):
            read_box(line._replace(text=text.strip("╭│╰ ")), frames)
            process.quiet = 0
        elif found := next(filter(None, (form.search(text) for form in FORMS)), None):
            frames.append(frame_in(line, found))
            process.quiet, process.indent = 0, indent_of(text)
        elif frames and (found := CELL_CODE.match(text)):
            frames[-1] = frames[-1].with_code(text[found.end() :])
        elif text[:1] in (" ", "\t", ""):
            if frames and text.strip() and not _NO_CODE.match(text):
                frames[-1] = frames[-1].with_code(text)
            if process.quiet > 1 and may_be_known(text):  # a compiler's error among the lines of another rank
                self._keep(line, process, is_exception=False)
        elif (_EXCEPTION if process.has_head else _BARE).match(text):
            self._keep(line, process, is_exception=True)
            process.frames, process.ignored = None, False
        elif may_be_known(text):
            self._keep(line, process, is_exception=False)
        elif process.quiet > _QUIET:
            process.frames = None

    @staticmethod
    def _frames(process: _Process, *, is_exception: bool) -> tuple[Frame, ...]:
        if process.frames is None and is_exception and process.above is not None:
            return (process.above,)
        return tuple(process.frames or ())

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
            log=self._log.name,
            line=line.number,
            order=self._before + line.number,
            process=line.process,
            rank=line.rank,
            steps=self._steps - own_steps,
            until=self._steps,
            trained=self._trained,
            head=line.text,
            is_exception=is_exception,
            frames=self._frames(process, is_exception=is_exception),
            before=tuple(self._recent) + tuple(process.last if line.process != self._unnamed else ()),
            chain=chain,
            ignored=process.ignored,
        )
        self._not_finite = error if not_finite else self._not_finite
        if is_exception and process.wrapped is not None:
            for kept in (self._first, self._last):
                if process.wrapped in kept:
                    kept.remove(process.wrapped)
            process.wrapped = None
        process.open.append(error)
        (self._first if len(self._first) < _FIRST else self._last).append(error)
