"""The cause of a failed training, by its log: the first error of the process that failed first."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import attrgetter
from typing import BinaryIO, Literal

from .log_command import Ranks, seen_ranks
from .messages import (
    ErrorKind,
    MemoryPhase,
    Message,
    filled,
    find_message,
    loading_bar,
    loading_phase,
    memory_phase,
    waiting_message,
)
from .out_of_memory import MemoryFigures, memory_figures
from .scan import GAP, Frame, LogError, Scan, scan

_OF_THE_HOST = ("host-memory", "killed", "kernel-oom-killer")
"""Messages about the host's memory of which the phase says more than they do."""

_REPEATS = "launcher-repeats"
"""The message that only says that some rank failed."""

_NEAR = 100
"""Lines between a message and the same one with its traceback."""

_RANK = re.compile(r"\b[Rr]ank[ :]+(\d+)")
_COLLECTIVE = re.compile(r"SeqNum=(\d+), OpType=(\w+).*?Timeout\(ms\)=(\d+)|OpType=(\w+), Timeout\(ms\)=(\d+)")

_GROUP = re.compile(r"\[PG (?:ID )?(\d+)")

_CLOCK = re.compile(r"\[E(\d{3,4}) (\d\d:\d\d:\d\d[.\d]*)")
"""Day and time in front of a message of torch's C++ code."""

_KILLED = re.compile(r"exitcode ?: -(\d+)|return code = -(\d+)")
_LOCAL_RANK = re.compile(r"local_rank(?:: |=)(\d+)")

_STAGE_3 = re.compile(
    r"deepspeed/runtime/zero/(?:stage3|partition_parameters|parameter_offload|partitioned_param\w+)\.py"
)
"""Files of DeepSpeed that only ZeRO-3 runs."""

_FAILED = re.compile(r"exitcode ?: (\d+)\)? local_rank: (\d+)")
"""The elastic agent's word on a rank."""

_AROUND = "'\"`,:;.!/"
"""Signs around a word of a title that are not part of it."""

_LONGEST_HEADLINE = 100
"""Characters of an error that are its headline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A collective operation in which ranks waited until it timed out."""

    operation: str
    sequence: int | None
    """Its number since the start of the group; None if the message does not name it."""
    minutes: float
    """The timeout."""
    group: str
    """The process group; "" if the message does not name it."""
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        """`ALLREDUCE 48209`, as the message has it."""
        number = "" if self.sequence is None else f" {self.sequence}"
        return f"{self.operation}{number}{self.group and f' of process group {self.group}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An error of the log, and the known message that it is."""

    error: LogError
    message: Message | None
    """None for an exception that is not known."""

    @property
    def role(self) -> Literal["cause", "late", "effect", "unknown"]:
        if self.error.ignored:
            return "effect"
        return "unknown" if self.message is None else self.message.role

    @property
    def rank(self) -> int | None:
        """The rank: by what the launcher wrote in front of the line, or by the message."""
        found = _RANK.search(self.error.head)
        return self.error.rank if self.error.rank is not None or found is None else int(found[1])

    @property
    def own_frame(self) -> Frame | None:
        """The last frame in a file of the user's; None without one."""
        return next((frame for frame in reversed(self.error.frames) if frame.is_own), None)

    @property
    def deciding(self) -> int:
        """Number of the line in which the known message ends; of the error's first line without one."""
        lines = self.error.lines
        ends = accumulate(len(line.text.strip()) + 1 for line in lines)
        found = self.message and self.message.pattern.search(" ".join(line.text.strip() for line in lines))
        numbered = zip(lines, ends, strict=True)
        return next((line.number for line, end in numbered if found and found.end() <= end), self.error.line)

    @property
    def named(self) -> dict[str, str]:
        """What the message names, by the pattern's groups; empty if it does not name all."""
        return self.message.names(self.error.text) if self.message else {}

    @property
    def headline(self) -> str:
        """What the message says: the table's sentence, or the signal that ended the process, or the parts of the title
        that the log has, or the log's own words."""
        text, message = self.error.text, self.message
        if message is not None:
            if message.headline and (self.named or "{" not in message.headline):
                return filled(message.headline, self.named)
            if killed := _KILLED.search(text):
                number, local = int(killed[1] or killed[2]), _LOCAL_RANK.search(text)
                place = "a process" if local is None else f"local rank {local[1]}"
                place = place if self.rank is None else f"rank {self.rank}"
                name = next((each.name for each in signal.Signals if each == number), f"signal {number}")
                return f"{place} was killed by {name} (exit code -{number})"
            if known := ", ".join(_filled(part, text) for part in message.title.split(", ") if _says(text, part)):
                return known
        found = message and (message.pattern.search(self.error.head) or message.pattern.search(text))
        words = self.error.head.partition(". ")[0]
        if found and (not self.error.is_exception or found.start() > len(words)):
            words = found.string[found.start() :].partition(". ")[0]
        words = words.strip(" :")
        return words if len(words) <= _LONGEST_HEADLINE else f"{words[:_LONGEST_HEADLINE].rstrip()}..."

    @property
    def failed_rank(self) -> str:
        """What the elastic agent says of a rank whose own error is missing; "" for any other line."""
        found = _FAILED.search(self.error.text)
        return "" if found is None else f"local rank {found[2]} ended with exit code {found[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The cause of a failure. `first` is None for a log without any error."""

    first: Finding | None
    effects: tuple[str, ...]
    """Headlines of the other errors of the log, each once."""
    followers: tuple[int, ...]
    """The other ranks that report an error."""
    waits: tuple[Wait, ...]
    """Where the ranks waited whose collective operations timed out: the operation of most ranks first."""
    silent: tuple[int, ...]
    """The ranks that reported no timeout, if a collective operation timed out: the others of the log, and those that it
    lacks."""
    ended: bool
    """Whether the Trainer reported the end of the training."""
    command: tuple[str, ...]
    """Words of the command that started the training; none if the log does not show it."""
    started: Ranks
    """The number of ranks, as far as the log shows it."""
    lines: int
    steps: int
    """Training steps that the log shows."""
    last_line: str
    """That is not empty."""

    @property
    def message(self) -> Message | None:
        """The known cause with what the log names; None for an unknown one, and for a log that shows only effects."""
        if self.first is None or self.first.role == "effect" or self.first.message is None:
            return None
        return self.first.message.about(self.first.error.text)

    @property
    def kind(self) -> ErrorKind:
        return self.message.kind if self.message else "crash"

    @property
    def memory(self) -> MemoryFigures | None:
        """The figures of memory that ran out."""
        return memory_figures(self.first.error.text) if self.first and self.ran_out_of_memory else None

    @property
    def timed_out(self) -> bool:
        return self.kind == "communication_timeout"

    @property
    def ran_out_of_memory(self) -> bool:
        return self.kind in ("gpu_out_of_memory", "host_out_of_memory")

    @property
    def phase(self) -> MemoryPhase | None:
        """What the rank was doing when memory ran out."""
        if self.first is None or not self.ran_out_of_memory:
            return None
        error = self.first.error
        if self.kind == "host_out_of_memory" and not error.frames and loading_bar(error.before):
            return loading_phase()
        return memory_phase([*map(str, error.frames)])

    @property
    def explanation(self) -> Message | MemoryPhase | None:
        """What has the cause and the fix: the phase for memory that ran out in no special way, else the message."""
        message, phase = self.message, self.phase
        if message is None or phase is None:
            return message
        if message.kind == "host_out_of_memory":
            of_host = replace(phase, cause=phase.host_cause, fix=phase.host_fix)
            return of_host if phase.host_cause and message.id in _OF_THE_HOST else message
        if message.id != "gpu-memory":
            return message
        files = [frame.file for frame in self.first.error.frames] if self.first is not None else []
        return replace(phase, fix=phase.stage3_fix) if phase.stage3_fix and any(map(_STAGE_3.search, files)) else phase

    @property
    def collective(self) -> Wait | None:
        """The collective operation in which the first rank waited; None if it did not wait in one."""
        return None if self.first is None else timed_out(self.first.error.text, self.first.rank)


def _says(text: str, title: str) -> bool:
    """Whether a text has all words of a part of a title as they are written, besides its remark in parentheses and its
    placeholders."""
    words = re.sub(r"\(.*?\)|\b[A-Z]+\b|\.\.\.", " ", title).casefold().split()
    words = [word for word in (each.strip(_AROUND) for each in words) if word]
    return bool(words) and all(re.search(rf"(?<![^\W_]){re.escape(word)}", text.casefold()) for word in words)


def _filled(title: str, text: str) -> str:
    """A part of a title with the text's words in place of its placeholders, which are single capitals."""
    words = r"\S+".join(map(re.escape, re.split(r"(?<!\S)[A-Z](?!\S)", title)))
    found = re.search(words, text, re.IGNORECASE)
    return found[0] if found else title


def timed_out(text: str, rank: int | None = None) -> Wait | None:
    """The collective operation in the message of NCCL's watchdog (torch 2.13 ProcessGroupNCCL.cpp); None for none."""
    found, group = _COLLECTIVE.search(text), _GROUP.search(text)
    if found is None:
        return None
    return Wait(
        operation=found[2] or found[4],
        sequence=int(found[1]) if found[1] else None,
        minutes=int(found[3] or found[5]) / 60_000,
        group=group[1] if group else "",
        ranks=() if rank is None else (rank,),
    )


def diagnose_text(text: str) -> Diagnosis:
    """The cause in a piece of a log."""
    return diagnose(io.BytesIO(text.encode()))


def diagnose(stream: BinaryIO) -> Diagnosis:
    """The cause of the failure that a log shows.

    - Of a chain of exceptions, each raised while the one before was handled, the first known one counts.
    - An exception in a process that then trains on, or that raises another one, has been handled.
    - Python ignores exceptions of destructors; launchers and the other ranks repeat that something failed.
    - Among what remains, the first cause counts. A lost process or a timeout counts if no exception came before it.
    """
    found = scan(stream)
    findings = [*_findings(found)]
    chosen = _choose(findings) or _waiting(found)
    timeouts = [*filter(_is_timeout, findings)]
    waits = _waits(timeouts)
    if len(waits) > 1 and chosen in timeouts:  # the rank that waits elsewhere is shown
        chosen = next(each for each in timeouts if each.rank == waits[-1].ranks[0])
    ranks = {each.rank for each in findings if chosen is not None and each.role != "effect"}
    seen = [rank for rank in {*found.ranks.values(), *(each.rank for each in findings)} if rank is not None]
    waiting = {rank for wait in waits for rank in wait.ranks}
    started = found.started if found.started.nodes else found.started.joined(seen_ranks(seen))
    there = {rank for rank in found.ranks.values() if rank is not None} - waiting if waits else set[int]()
    absent = {*range(max(started.total, max(waiting, default=-1) + 1))} - waiting
    # As many as those that wait are on a node whose output is not in the log.
    silent = there | absent if len(absent) < len(waiting) else there
    named = [each for each in findings if each is not chosen and (each.message or each.error.is_exception)]
    told = chosen.message if chosen else None
    # Effects are noise beside a cause, and all that there is without one.
    telling = [each for each in named if each.role != "effect"] if chosen and chosen.role != "effect" else named
    others = [e for e in telling if e.message is None or (e.message.id != _REPEATS and e.message != told)]
    return Diagnosis(
        first=chosen,
        effects=tuple({each.message or each.headline: each.headline for each in reversed(others)}.values())[::-1],
        followers=tuple(sorted(rank for rank in ranks if rank is not None and chosen and rank != chosen.rank)),
        waits=waits,
        silent=tuple(sorted(silent)),
        ended=found.ended,
        command=found.command,
        started=started,
        lines=found.lines,
        steps=found.steps,
        last_line=found.last_line,
    )


def _is_timeout(finding: Finding) -> bool:
    return finding.message is not None and finding.message.kind == "communication_timeout"


def _waits(timeouts: Sequence[Finding]) -> tuple[Wait, ...]:
    """The collective operations in which ranks waited, by the first message of each rank."""
    first = dict[int, Wait]()
    for wait in filter(None, (timed_out(each.error.text, each.rank) for each in timeouts)):
        for rank in wait.ranks:
            first.setdefault(rank, wait)
    ranks = dict[tuple[str, int | None, str], list[int]]()
    for rank, wait in sorted(first.items()):
        ranks.setdefault((wait.operation, wait.sequence, wait.group), []).append(rank)
    waits = [replace(first[these[0]], ranks=tuple(these)) for these in ranks.values()]
    if len({wait.group for wait in waits}) == 1:
        waits = [replace(wait, group="") for wait in waits]
    return tuple(sorted(waits, key=lambda wait: -len(wait.ranks)))


def _findings(found: Scan) -> Iterator[Finding]:
    """One finding per chain of exceptions that the training did not survive."""
    alive = [error for error in found.errors if found.steps - error.until < GAP]
    named = [Finding(error=error, message=find_message(error.text, error.around)) for error in alive]
    named.sort(key=lambda each: each.error.chain)
    chains = [_of_chain([*chain]) for _, chain in groupby(named, key=lambda each: each.error.chain)]
    last = {
        each.error.process: each.error.line for each in chains if each.error.is_exception and not each.error.ignored
    }
    for each in sorted(chains, key=lambda each: each.error.line):
        # A process ends with its last exception; without the launcher's words, processes are not told apart.
        handled = each.error.is_exception and found.ranks.get(each.error.process) is not None
        if not (handled and each.error.line < last.get(each.error.process, 0)):
            yield each


def _of_chain(chain: Sequence[Finding]) -> Finding:
    for role in ("cause", "late"):
        if known := next((each for each in chain if each.role == role), None):
            same = (each for each in chain if each.message == known.message)
            return next((each for each in same if each.named), known)
    return next((each for each in chain if each.role == "unknown"), chain[0])


def _choose(findings: Sequence[Finding]) -> Finding | None:
    first = {
        role: next((each for each in findings if each.role == role), None)
        for role in ("cause", "unknown", "late", "effect")
    }
    cause, unknown, late = _earliest(first["cause"], findings), first["unknown"], _earliest(first["late"], findings)
    if cause is not None:
        # An unknown exception of another process that came first is the cause, and this one its effect.
        is_later = unknown is not None and unknown.error.line < cause.error.line
        is_elsewhere = is_later and unknown is not None and unknown.error.process != cause.error.process
        return unknown if is_elsewhere else _with_frames(cause, findings)
    if late is not None and _is_timeout(late):
        # An exception of a rank that did not time out is what the others waited for, wherever its lines stand.
        waiting = {each.rank for each in findings if _is_timeout(each)}
        raised = (each for each in findings if each.role == "unknown" and each.rank not in {*waiting, None})
        unknown = next(raised, unknown)
        if unknown is not None and unknown.rank not in {*waiting, None}:
            return unknown
    if unknown is not None and late is not None:
        return min(unknown, late, key=attrgetter("error.line"))
    return unknown or late or first["effect"]


def _with_frames(cause: Finding, findings: Sequence[Finding]) -> Finding:
    """The cause with its traceback, in front of which a logger may have printed the message alone."""
    error = cause.error
    near = (each for each in findings if 0 <= each.error.line - error.line < _NEAR)
    same = (each for each in near if each.message == cause.message and each.error.process == error.process)
    return next((each for each in same if each.error.frames), cause)


def _earliest(first: Finding | None, findings: Sequence[Finding]) -> Finding | None:
    """Of the ranks that report the same, the one whose clock shows the earliest time; the first line without clocks."""
    same = [each for each in findings if first is not None and each.message == first.message]
    times = [found.groups() for each in same if (found := _CLOCK.search(each.error.head))]
    return first if not same or len(times) < len(same) else same[times.index(min(times))]


def _waiting(found: Scan) -> Finding | None:
    """The message of a process that waits after its last line."""
    for process, lines in found.last_lines.items():
        last = next((line for line in reversed(lines) if line.strip()), "")
        if message := waiting_message(last):
            error = LogError(
                line=found.lines, process=process, rank=found.ranks.get(process), steps=found.steps, head=last
            )
            return Finding(error=error, message=message)
    return None
