"""The lines of a log of any launcher and size: without escape codes and progress bars, with the process of each."""

from __future__ import annotations

import ast
import json
import re
from collections import deque
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from .log_command import COMMAND_WORDS
from .logged_steps import count_steps, first_step
from .signs import SIGN_WORDS

_CHUNK = 1 << 18
"""Bytes that are read, and skipped if they hold no trigger, at once."""

_LONGEST = 4_000
"""Longest part of a line that is kept; messages of errors are shorter."""

_LONGEST_RECORD, _LONGEST_FRONT = 200_000, 200
"""Longest record of JSON that is read, which may hold a traceback, and longest text in front of one."""

_TAIL, _KEPT = 4_096, 32
"""Bytes of a skipped chunk, and lines, that are kept as the lines before an error."""

TRIGGERS = tuple(
    word.encode()
    for word in (
        *("rror", "xception", "raceback", "illed", "oom-kill", "atchdog", "ailed", "return code", "xitcode", "denied"),
        *("annot", "an't open", "Duplicate GPU", "ssertion", "not found", "terminate", "NCCL WARN", "NET/IB : Got"),
        *("Segmentation", "Interrupt", "wandb: ERROR", "Xid (", '", line ', "SIGTERM", "death signal"),
        # steps whose figures are not finite, and the end of a training
        *("nan", "NaN", "inf,", "inf}", "inf'", "oss inf", "oss: inf", "oss=inf", "norm: inf", "Infinity"),
        *("'train_runtime'", "exits successfully", "waitForInput"),
        *("ssh: ", "client_loop", "nvcc fatal"),
        *("已杀死", "错误"),  # of a shell and a compiler in Chinese
    )
)
"""Every message of the table has one of them (tests), so that lines without any are not searched."""

_WORDS = (*TRIGGERS, *COMMAND_WORDS, *SIGN_WORDS)
"""Lines without any of them are skipped."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

_TIME = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?: (?:stdout|stderr) [FP])?[ :\t]\s?"
    r"(?:(?:\[(?:INFO|ERROR)\]|INFO|ERROR):? (?:\[\w+\] )?)?"
)
"""The time that docker, Kubernetes and CI systems put in front of a line, and the level of loggers. That of warnings
stays: a warning is no error."""

_LEVEL = re.compile(r"(?:\[(?:INFO|ERROR|CRITICAL)\]|INFO|ERROR|CRITICAL)(?::[\w.]+:| ?[:|-])? ?(?=\s*File \"|\s{3})")
"""The level, and the logger's name, in front of a frame or its code, without a time."""

_BRACKETED = re.compile(r"\[\d{4}-\d\d-\d\d[ T][\d:.,]+\] (?=\[(?:rank|default) ?\d+\]:)")
"""A time in front of torch's rank. DeepSpeed's lines begin with one, too, which stays."""

_SYSLOG = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w.@-]+\[\d+\]"

_RANKS = {
    "[": (
        re.compile(r"\[rank ?(?P<rank>\d+)\]: ?"),  # torch 2.3 and later
        re.compile(r"\[pod/(?P<name>[\w.-]+/[\w.-]+)\] ?"),  # kubectl logs --prefix
        re.compile(r"\[[A-Za-z][\w-]*?:?(?P<rank>\d+)\]: ?"),  # torchrun --tee, with its --role
        # mpirun --tag-output, also of SageMaker
        re.compile(r"\[\d+,(?:mpirank:)?(?P<rank>\d+)(?:,[\w-]+)?\]<std(?:out|err)>: ?"),
    ),
    "(": (re.compile(r"\((?P<name>[\w.:-]+(?: |, )?pid=\d+(?:, ip=[\w.:]+)?)\) ?"),),  # Ray, SkyPilot
    "": (
        re.compile(r"\s{0,4}(?P<rank>\d{1,4}): (?=\S|  )"),  # srun --label
        re.compile(rf"(?P<name>{_SYSLOG}): ?"),  # systemd's journal
        re.compile(r"(?P<name>(?=[\w.-]*[\d-])[\w.-]{1,60}) +\|(?: |$)"),  # docker compose
        re.compile(r"(?P<name>[\w.-]{1,60}) +(?=\[(?:rank|default) ?\d+\]:)"),  # a name in front of torch's rank
        re.compile(
            r"(?P<name>(?=[\w.-]*[\d-])(?![\w.]*(?:Error|Exception|Warning):)[A-Za-z0-9][\w.-]{1,60}): (?=\S| {2})"
        ),
    ),
}
"""What launchers put in front of a line, by its first character; the last one is pdsh's name of the node."""


class LogLine(NamedTuple):
    """A line of a log."""

    number: int
    """From 1."""
    process: str
    """What the launcher wrote in front of it; "" for a log of one process, or of several that are not told apart."""
    rank: int | None
    text: str


class LogReader:
    """Reads a log once, in bounded memory. Lines without a trigger are skipped unless `wants_all`, except the last ones
    before a line with one, and the last ones of the log."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._skipped: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self.lines = 0
        """Lines that were seen."""
        self.steps = 0
        """Lines that show that a training step was done."""
        self.first_step = ""
        """The line of the first step; a reader of several trainings empties it between them."""
        self.wants_all = False

    def __iter__(self) -> Iterator[LogLine]:
        rest = b""
        while chunk := self._stream.read(_CHUNK):
            chunk = rest + chunk
            cut = chunk.rfind(b"\n") + 1
            if not cut and len(chunk) < 8 * _CHUNK:
                rest = chunk
                continue
            cut = cut or len(chunk)
            rest, chunk = chunk[cut:], chunk[:cut]
            if self.wants_all or any(word in chunk for word in _WORDS):
                yield from self._read(chunk)
            else:
                self._skip(chunk)
        yield from self._read(rest)
        yield from self._unskip()

    def _skip(self, chunk: bytes) -> None:
        last = chunk[-_TAIL:].split(b"\n")[len(chunk) > _TAIL : -1]  # the first one is a part of a line
        self.lines += chunk.count(b"\n")
        self._count(chunk)
        self._skipped += [(self.lines - len(last) + place, line) for place, line in enumerate(last, 1)]

    def _count(self, lines: bytes) -> None:
        steps = count_steps(lines)
        if steps and not self.first_step:
            self.first_step = first_step(lines)
        self.steps += steps

    def _unskip(self) -> Iterator[LogLine]:
        while self._skipped:
            yield from _cleaned(*self._skipped.popleft())

    def _read(self, chunk: bytes) -> Iterator[LogLine]:
        lines = chunk.split(b"\n")
        if not lines[-1]:
            lines.pop()
        for line in lines:
            self.lines += 1
            self._count(line)
            if self.wants_all or any(word in line for word in _WORDS):
                yield from self._unskip()
                yield from _cleaned(self.lines, line)
            else:
                self._skipped.append((self.lines, line))


def _cleaned(number: int, line: bytes) -> Iterator[LogLine]:
    """The parts of a line between carriage returns: the last states of a progress bar, and what follows it."""
    for part in line.split(b"\r")[-4:]:
        longest = _LONGEST_RECORD if any(mark in part[:_LONGEST_FRONT] for mark in (b'{"', b"['Tra")) else _LONGEST
        text = part[:longest].decode("utf-8", "replace")
        text = _ESCAPE.sub("", text).rstrip() if "\x1b" in text else text.rstrip()
        if text or not line:
            yield from _logged(_attributed(number, text))


_MESSAGES = ("log", "message", "msg", "event")
"""Keys of the message in a record of JSON: of docker's json-file driver, of most loggers, and of structlog."""

_TRACEBACKS = ("exc_info", "exception", "traceback", "stack_trace")
"""Keys of the traceback, where it is not in the message."""

_OF_RECORDS = {"log", "time", "timestamp", "@timestamp", "ts", "asctime", "level", "levelname", "severity"}
"""Keys that tell a logger's record from data in JSON."""


_LISTED = re.compile(r"\['Traceback \(most recent call last\):\\n', .*\]$")
"""The list of strings of `traceback.format_exception`, which Megatron's logs have in one line."""


def _logged(line: LogLine) -> Iterator[LogLine]:
    """The lines in a record of a logger in JSON, each with what launchers put in front of it, and those of a traceback
    that is written as a list; any other line as it is. All have the number of the record."""
    if (found := _LISTED.search(line.text)) is not None and (listed := _strings(found[0])):
        yield from (line._replace(text=text) for text in "".join(listed).splitlines())
        return
    record = _record(line.text)
    said = next((record[key] for key in _MESSAGES if isinstance(record.get(key), str)), None)
    if said is None or record.keys().isdisjoint(_OF_RECORDS):
        yield line._replace(text=line.text[:_LONGEST])
        return
    rank = record.get("rank")
    if isinstance(rank, int) and line.rank is None:
        line = line._replace(rank=rank, process=f"{line.process}rank {rank}")
    level = str(record.get("level") or record.get("levelname") or record.get("severity"))
    front = "WARNING: " * level.upper().startswith("WARN")
    parts = [said, *(record[key] for key in _TRACEBACKS if isinstance(record.get(key), str))]
    for text in "\n".join(part.rstrip() for part in parts).split("\n"):
        inner = _attributed(line.number, front + text.rstrip())
        inner_rank = line.rank if inner.rank is None else inner.rank
        yield from _logged(inner._replace(process=line.process + inner.process, rank=inner_rank))


def _strings(text: str) -> list[str]:
    """The strings of a list that a text is; none for any other text."""
    try:
        return [str(each) for each in ast.literal_eval(text)]
    except (ValueError, SyntaxError):
        return []


def _record(text: str) -> dict[str, Any]:
    """The record of JSON that a text is; none for any other text, and for one that was too long."""
    if not text.startswith('{"'):
        return {}
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        return {}


def _attributed(number: int, text: str) -> LogLine:
    """The line without what launchers put in front of it."""
    process, rank, rest = "", None, text
    for _ in range(3):
        while rest[:1].isdigit() and (found := _TIME.match(rest)):
            rest = rest[found.end() :]
        if rest[:2] == "[2" and (found := _BRACKETED.match(rest)):
            rest = rest[found.end() :]
        if rest[:1] in "[IEC" and (found := _LEVEL.match(rest)):
            rest = rest[found.end() :]
        match = next(filter(None, (form.match(rest) for form in _RANKS.get(rest[:1], _RANKS[""]))), None)
        if match is None:
            break
        found_rank = match.groupdict().get("rank")
        rank = rank if found_rank is None else int(found_rank)
        process += match.group().strip()
        rest = rest[match.end() :]
    return LogLine(number, process, rank, rest)
