"""The cause of a failed training, by its log: the first error of the process that failed first."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import BinaryIO

from .finding import Finding, Wait, timed_out
from .first_error import choose, has_first_clock, is_timeout, of_root
from .installed_code import OtherRelease, other_release
from .log_command import Ranks, seen_ranks
from .log_error import LogError
from .logged_steps import Place
from .messages import (
    WARNED_AT,
    ErrorKind,
    MemoryPhase,
    Message,
    course_message,
    find_message,
    loading_bar,
    loading_phase,
    memory_phase,
    under,
    waiting_message,
)
from .out_of_memory import MemoryFigures, memory_figures
from .scan import GAP, LogOfRank, scan
from .scanned import Scan, joined
from .signs import Sign, signs_in, signs_of

_OF_THE_HOST = ("host-memory", "killed", "kernel-oom-killer")
"""Messages about the host's memory of which the phase says more than they do."""

_REPEATS = "launcher-repeats"
"""The message that only says that some rank failed."""

_REQUESTED = re.compile(
    r"\b[45]\d\d (?:Client|Server) Error|\bHTTP(?:S?ConnectionPool|\S* \d{3}|\S*Error)|\b[Rr]etry|Max retries exceeded|"
    r"Couldn't (?:connect|reach)|couldn't connect"
)
"""In a line on a request over the network that failed, which programs try again or do without."""

_FETCHES = re.compile(
    r"huggingface_hub/|requests/|httpx/|urllib3/|transformers/utils/hub\.py|:(?:from_pretrained|load_dataset)\b"
)
"""A frame of what needs the answer to a request."""


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
    """Whether the Trainer or the launcher reported the end of the training."""
    survived: tuple[Finding, ...]
    """The errors after which the training went on: the first one of each message."""
    command: tuple[str, ...]
    """Words of the command that started the training; none if the log does not show it."""
    started: Ranks
    """The number of ranks, as far as the log shows it."""
    signs: frozenset[Sign]
    """What the log shows of the training, on which fixes depend."""
    is_first: bool
    """Whether torchrun, or the clocks of the ranks, tell that the rank of `first` failed first: lines of several ranks
    stand in any order."""
    devices: tuple[int, ...]
    """The other GPUs whose allocators report the same, where lines do not name the rank."""
    begin: int
    """Number of the first line of the training."""
    lines: int
    """Of the whole log."""
    steps: int
    """Training steps that the log shows."""
    course: Message | None
    """What is wrong with the loss of a training without an error; None if nothing is."""
    place: Place | None
    """The step at which the log ends; None if its last lines do not show it."""
    last_line: str
    """That is not empty."""
    earlier: tuple[Diagnosis, ...]
    """The trainings before it in the log."""

    @property
    def message(self) -> Message | None:
        """The known cause with what the log names; None for an unknown one, and for a log that shows only effects."""
        if self.first is None or self.first.role == "effect" or self.first.message is None:
            return None
        return under(self.first.message, self.signs).filled(self.first.named)

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
    def odd(self) -> tuple[int, ...]:
        """The ranks that waited elsewhere than most. If as many waited in one operation as in another, the ranks of
        both; if all waited in one, those that reported no timeout."""
        if len(self.waits) < 2:
            return self.silent
        most, *_, least = self.waits
        return least.ranks if len(least.ranks) < len(most.ranks) else tuple(sorted(most.ranks + least.ranks))

    @property
    def all_wait_alike(self) -> bool:
        """Whether each rank of the training waited in one and the same operation until it timed out."""
        return len(self.waits) == 1 and not self.silent and len(self.waits[0].ranks) == self.started.total > 1

    @property
    def ran_out_of_memory(self) -> bool:
        return self.kind in ("gpu_out_of_memory", "host_out_of_memory")

    @property
    def phase(self) -> MemoryPhase | None:
        """What the rank was doing when memory ran out."""
        if self.first is None or not self.ran_out_of_memory:
            return None
        error = self.first.error
        if self.kind == "host_out_of_memory" and not error.has_place and loading_bar(error.before):
            return under(loading_phase(), self.signs)
        # A warning has the line that warns in place of a traceback.
        frames = [*map(str, error.frames)] or ([error.head] if WARNED_AT.match(error.head) else [])
        found = memory_phase(frames)
        return found and under(found, self.signs)

    @property
    def explanation(self) -> Message | MemoryPhase | None:
        """What has the cause and the fix: the phase for memory that ran out in no special way, else the message."""
        message, phase = self.message, self.phase
        if message is None or phase is None:
            return message
        if message.kind == "host_out_of_memory":
            of_host = replace(phase, cause=phase.host_cause, fix=phase.host_fix)
            return of_host if phase.host_cause and message.id in _OF_THE_HOST else message
        return phase if message.id == "gpu-memory" else message

    @property
    def other_release(self) -> OtherRelease | None:
        """Of an error that is not known, the package that raised it, if the installed release does not have that
        code."""
        if self.first is None or self.first.role != "unknown":
            return None
        return other_release(self.first.error.frames, self.first.error.text)

    @property
    def is_certain(self) -> bool:
        """Whether the explanation is the only one: what filled the host's memory in a phase is not known."""
        message = self.message
        is_of_host = message is not None and message.kind == "host_out_of_memory" and self.explanation != message
        return message is not None and message.certain and not is_of_host

    @property
    def collective(self) -> Wait | None:
        """The collective operation in which the first rank waited; None if it did not wait in one."""
        return None if self.first is None else timed_out(self.first.error.text, self.first.rank)


def diagnose_text(text: str) -> Diagnosis:
    """The cause in a piece of a log."""
    return diagnose(io.BytesIO(text.encode(errors="replace")))


def diagnose(stream: BinaryIO) -> Diagnosis:
    """The cause of the failure that a log shows, as `diagnose_logs` finds it."""
    return diagnose_logs([LogOfRank(stream)])


def diagnose_logs(logs: Iterable[LogOfRank]) -> Diagnosis:
    """The cause of the failure of one training that several logs show, such as one per rank. They are read in order.

    - Of a chain of exceptions, each raised while the one before was handled, the first known one counts.
    - An exception in a process that then trains on, ends normally, or raises another one, has been handled.
    - A warning is no error, except of a launcher on a signal.
    - A message in the words of a line, such as a sample of the data, is no error if its process later raises one: it is
      quoted, or steps follow it.
    - A request over the network that failed is no error if the same rank later raises one that is not of a request.
    - Python ignores exceptions of destructors; launchers and the other ranks repeat that something failed.
    - Among what remains, the first cause counts. A lost process counts if no exception came before it; a timeout if no
      other rank raised an exception.
    - Of several trainings, one appended to the other in a log, the last one counts.
    - Which of two logs was written first is not known.
    """
    scans = list[Scan]()
    for log in logs:
        scans.append(scan(log, before=sum(each.lines for each in scans)))
    return _diagnosis(scans)


def _diagnosis(scans: Sequence[Scan]) -> Diagnosis:
    found = joined(scans)
    sorted_out = [_survivors(each) for each in scans]
    survived, failed = ([each for part in parts for each in part] for parts in zip(*sorted_out, strict=True))
    errors = [*_findings(found, failed)]
    findings = [each for each in errors if not _is_mentioned(each, errors)]
    chosen = choose(findings) or next(filter(None, map(_waiting, scans)), None)
    timeouts = [*filter(is_timeout, findings)]
    waits = _waits(timeouts)
    if len(waits) > 1 and chosen in timeouts:  # the rank that waits elsewhere is shown
        chosen = next(each for each in timeouts if each.rank == waits[-1].ranks[0])
    if chosen is not None and len(found.roots) == 1:
        chosen = of_root(chosen, next(iter(found.roots)), findings, found.failure_times)
    ranks = {each.rank for each in findings if chosen is not None and each.role != "effect"}
    seen = [rank for rank in {*found.ranks.values(), *(each.rank for each in findings)} if rank is not None]
    waiting = {rank for wait in waits for rank in wait.ranks}
    started = found.started if found.started.nodes else found.started.joined(seen_ranks(seen))
    there = {rank for rank in found.ranks.values() if rank is not None} - waiting if waits else set[int]()
    absent = {*range(max(started.total, max(waiting, default=-1) + 1))} - waiting
    # As many as those that wait are on a node whose output is not in the log.
    silent = there | absent if len(absent) < len(waiting) else there
    named = [each for each in findings if each is not chosen and (each.message or each.error.is_exception)]
    told, signs = chosen.message if chosen else None, _signs(found, scans)
    # Effects are noise beside a cause, and all that there is without one.
    is_told = chosen and chosen.role != "effect"
    telling = [each for each in named if not (chosen and is_told and _is_effect(each, chosen))]
    others = [e for e in telling if e.message is None or (e.message.id != _REPEATS and e.message != told)]
    return Diagnosis(
        first=chosen,
        effects=tuple({each.message or each.headline: each.headline for each in reversed(others)}.values())[::-1],
        followers=tuple(sorted(rank for rank in ranks if rank is not None and chosen and rank != chosen.rank)),
        waits=waits,
        silent=tuple(sorted(silent)),
        ended=bool(found.ended),
        survived=_first_of_each(each for each in survived if each.role != "effect"),
        command=found.command,
        started=started,
        signs=signs,
        is_first=chosen is not None and ({chosen.rank} == found.roots or has_first_clock(chosen, findings)),
        devices=_other_devices(chosen, findings),
        begin=found.begin,
        lines=found.lines,
        steps=found.steps,
        course=under(course_message(found.course), signs) if chosen is None and found.course is not None else None,
        place=found.place,
        last_line=found.last_line,
        earlier=tuple(_diagnosis([each]) for each in found.earlier),
    )


def _signs(found: Scan, scans: Sequence[Scan]) -> frozenset[Sign]:
    """What the command, the frames and the lines of one training show."""
    frames = (str(frame) for each in scans for error in each.errors for frame in error.frames)
    return found.signs | signs_in(" ".join(found.command)) | signs_of(frames)


def _is_mentioned(finding: Finding, findings: Sequence[Finding]) -> bool:
    """Whether a line only has the words of a message, such as a sample of the data: it belongs to no traceback, its
    process later raised another error, and the words are quoted, or a step was logged in between. Or it tells of a
    request that the program did without."""
    error = finding.error
    if error.is_exception or error.frames or finding.role != "cause":
        return False
    raised = (
        each.error
        for each in findings
        if each.error.is_exception and each.error.has_place and each.role in ("cause", "unknown")
    )
    later = [each for each in raised if each.log == error.log and each.line > error.line]
    own = [each for each in later if each.process == error.process]
    if own and (finding.is_quoted or own[0].steps > error.until):
        return True
    # torch writes the rank in front of the lines of a traceback alone: a line without one is of any rank.
    after = [each for each in later if error.rank in (None, each.rank)]
    return bool(after) and _did_without(error, after)


def _did_without(error: LogError, after: Sequence[LogError]) -> bool:
    """Whether an error is of a request over the network, and no later one is: the program went on without an answer."""
    return bool(_REQUESTED.search(error.head)) and not any(
        _FETCHES.search(str(frame)) for each in after for frame in each.frames
    )


def _is_effect(finding: Finding, chosen: Finding) -> bool:
    """Whether an error only follows from the chosen one: also a late message that comes after a known cause."""
    is_later = finding.error.log == chosen.error.log and finding.error.order > chosen.error.order
    return finding.role == "effect" or (finding.role == "late" and chosen.role == "cause" and is_later)


def _other_devices(chosen: Finding | None, findings: Sequence[Finding]) -> tuple[int, ...]:
    if chosen is None or chosen.rank is not None:
        return ()
    same = (each for each in findings if each.message is not None and each.message == chosen.message)
    figures = [memory_figures(each.error.text) for each in (chosen, *same) if each.rank is None]
    own, *others = [None if each is None else each.device for each in figures]
    return tuple(sorted({each for each in others if each is not None} - {own}))


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


def _known(errors: Sequence[LogError]) -> list[Finding]:
    """The exceptions, and the known messages. A line with a message's pattern may lack what must be around it."""
    all_ = (Finding(error=error, message=find_message(error.text, error.around)) for error in errors)
    return [each for each in all_ if each.error.is_exception or (each.message and not each.only_warns)]


def _survivors(found: Scan) -> tuple[list[Finding], list[Finding]]:
    """The errors of a log that the training survived, and the others."""
    known = _known(found.errors)
    parts: tuple[list[Finding], list[Finding]] = ([], [])
    for each in known:
        parts[not _is_survived(each, found, known)].append(each)
    return parts


def _is_survived(finding: Finding, found: Scan, known: Sequence[Finding]) -> bool:
    """Whether the training went on after an error: with further steps, or to its normal end. It did not end normally if
    all that follows the end is that a launcher reports a failure."""
    error = finding.error
    after = {each.role for each in known if each.error.line > found.ended}
    is_over = not finding.is_step or found.steps > error.until  # a loss that is not a number stays so
    goes_on = error.line < found.ended and is_over and after != {"effect"}
    return goes_on or found.steps - error.until >= GAP


def _first_of_each(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    first = dict[str, Finding]()
    for each in findings:
        first.setdefault(each.headline, each)
    return tuple(first.values())


def _findings(found: Scan, failed: Sequence[Finding]) -> Iterator[Finding]:
    """One finding per chain of exceptions that the training did not survive."""
    by_chain = attrgetter("error.log", "error.chain")
    chains = [_of_chain([*chain]) for _, chain in groupby(sorted(failed, key=by_chain), key=by_chain)]
    last = {each.error.process: each.error.order for each in chains if _ends_a_rank(each.error)}
    for each in sorted(chains, key=lambda each: each.error.order):
        # A process ends with its last exception; without the launcher's words, processes are not told apart.
        handled = each.error.is_exception and found.ranks.get(each.error.process) is not None
        if not (handled and each.error.order < last.get(each.error.process, 0)):
            yield each


def _ends_a_rank(error: LogError) -> bool:
    """Whether an error is an exception that may end its process, and none of a launcher, whose lines may have the name
    of the rank that it started, such as those of a task of `srun --label`."""
    return error.is_exception and not error.ignored and not any(frame.is_launcher for frame in error.frames)


def _of_chain(chain: Sequence[Finding]) -> Finding:
    for role in ("cause", "late"):
        if known := next((each for each in chain if each.role == role), None):
            same = (each for each in chain if each.message == known.message)
            return next((each for each in same if each.named), known)
    return next((each for each in chain if each.role == "unknown"), chain[0])


def _waiting(found: Scan) -> Finding | None:
    """The message of a process that waits after its last line."""
    for process, lines in found.last_lines.items():
        last = next((line for line in reversed(lines) if line.strip()), "")
        if message := waiting_message(last):
            error = LogError(
                log=found.log,
                line=found.lines,
                order=found.lines,
                process=process,
                rank=found.ranks.get(process),
                steps=found.steps,
                head=last,
            )
            return Finding(error=error, message=message)
    return None
