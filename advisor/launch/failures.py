"""Failure of a training: the error of the rank that failed first, its kind, and the evidence."""

from __future__ import annotations

import contextlib
import errno
import resource
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...probes.failures.diagnosis import diagnose_text
from ...probes.failures.finding import timed_out
from ...probes.failures.messages import MemoryPhase, Message
from ...probes.real_run.error_kinds import is_compilers, kind_of_error, known_error, phase_of_error
from ...probes.real_run.output import last_line, tail
from ...probes.real_run.ranks import Rank, first_failed
from ..text.units import gib
from .records import Records
from .request import FailureKind, TrainingFailure

_HELPED_BY_A_PLAN = ("forward", "backward", "reduction", "first_step", "optimizer_step", "loss", "zero_init", "load")
"""Phases in which another plan needs less memory; the next launch proposes it."""


MOVED = "was moved or removed while the ranks wrote into it"

_MOVED_BACK = "move it back to this name, and resume"


def classify_failure(records: Records, folder: Path, exit_code: int, oom_kills: Mapping[str, int]) -> TrainingFailure:
    """The failure of a training, by `_first_failure`. For a collective that timed out, the position of the ranks is
    added."""
    failure = _first_failure(records, folder, exit_code, oom_kills)
    if failure.kind != "communication_timeout":
        return failure
    steps = {rank.number: rank.step for rank in records.ranks}
    where = [f"rank {number} had completed step {step}" for number, step in steps.items()]
    evidence = [*failure.evidence, *(where if len(set(steps.values())) > 1 else ())]
    logs = (tail(folder / f"rank{rank.number}.log") for rank in records.ranks)
    if found := next(filter(None, map(timed_out, (failure.message, *logs))), None):
        evidence.append(f"{found.operation} had waited for {found.minutes:g} minutes")
    return replace(failure, evidence=tuple(evidence))


def _first_failure(records: Records, folder: Path, exit_code: int, oom_kills: Mapping[str, int]) -> TrainingFailure:
    """The failure of the rank that failed first (`first_failed`), of a training whose launcher ended with `exit_code`.
    A launcher that does not say how its ranks ended may end as a shell does, with 128 + the signal of one of them.

    oom_kills: the increase of each counter of the kernel's OOM killer during the training.
    """
    if not folder.exists():
        message = f"{folder} {MOVED}"
        return TrainingFailure(kind="crash", rank=None, step=records.step, message=message, fix=_MOVED_BACK)
    silent = [rank for rank in records.ranks if rank.error is None and not {"end", "exit"} & rank.latest.keys()]
    by_shell = exit_code - 128 if 128 < exit_code <= 128 + 64 else 0
    first, step = first_failed(records.ranks, silent if by_shell else ()), records.step
    if exit_code < 0 and (first is None or first.lost_another):
        return _from_signal(None, -exit_code, folder, step, oom_kills, who="the launcher")
    if first is not None and first.error is not None:
        return _from_error(first, step)
    if first is not None and (first in silent or (first.exit_code or 0) < 0):
        who = f"rank {first.number}" if first not in silent or len(silent) == 1 else "a rank"
        return _from_signal(first, abs(first.exit_code or by_shell), folder, step, oom_kills, who=who)
    if first is not None and first.exit_code == 0:
        return _ended_early(first, records)
    code, who = (exit_code, "the launcher") if first is None else (first.exit_code, f"rank {first.number}")
    first = first or next(iter(silent), None)
    log = folder / ("launcher.log" if first is None else f"rank{first.number}.log")
    shown, last = diagnose_text(tail(log)), last_line(log)
    # Python ends with 1 or 2 behind the line that says why; `os._exit` ends with any other, whatever stands there.
    says_why = bool(last) and (code in (1, 2) or shown.message is not None or who == "the launcher")
    return TrainingFailure(
        kind=shown.kind,
        rank=None if first is None else first.number,
        step=step,
        message=last if says_why else f"{who} ended with exit code {code}",
        evidence=(f"exit code {code} of {who}",) if says_why else _last(who, last),
        **known_cause(shown.message)._asdict(),
        fix=_fix(shown.message, shown.phase),
    )


def _ended_early(rank: Rank, records: Records) -> TrainingFailure:
    """The failure of ranks whose training lost the first one that ended, by its own script and without an error."""
    others = [each.number for each in records.ranks if each is not rank]
    when = f"after step {rank.step}" if rank.step else "before its first step"
    went_on = f"rank {others[0]}" if len(others) == 1 else "the other ranks"
    return TrainingFailure(
        kind="ended_early",
        rank=rank.number,
        step=records.step,
        message=f"rank {rank.number} ended early, without an error, {when}, while {went_on} went on",
        fix="Let all ranks make the same number of steps: each waits for the others in every step",
    )


def _from_error(rank: Rank, step: int) -> TrainingFailure:
    error: dict[str, Any] = rank.error or {}
    message, number = rank.error_text, error["errno"]
    evidence, kind = [f"{error['type']} on rank {rank.number}"], kind_of_error(error)
    if is_compilers(error):
        evidence.append("the compiler of a DeepSpeed extension failed, before the training")
    if kind == "disk_full":
        if number in errno.errorcode:
            evidence.append(f"errno {number} ({errno.errorcode[number]})")
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY:
            evidence.append(f"every file is limited to {limit / 2**20:,.1f} MiB (ulimit -f)")
        if output_dir := rank.latest.get("trainer", {}).get("output_dir"):
            with contextlib.suppress(OSError):
                evidence.append(f"{gib(shutil.disk_usage(output_dir).free)} GiB free in {output_dir}")
    known, phase = known_error(error), phase_of_error(error) if kind.endswith("out_of_memory") else None
    if phase is not None:
        evidence.append(f"it was raised {phase.title}")
    return TrainingFailure(
        kind=kind,
        rank=rank.number,
        step=step,
        message=message[:500],
        evidence=tuple(evidence),
        **known_cause(known)._asdict(),
        fix=_fix(known, phase),
    )


class KnownCause(NamedTuple):
    cause: str
    is_cause_certain: bool


_PLAIN = ("gpu-memory", "host-memory", "killed", "disk-full")
"""Messages that say no more than their kind."""


def known_cause(message: Message | None) -> KnownCause:
    """The known cause of a failure; none if it says no more than the kind."""
    if message is None or message.id in _PLAIN:
        return KnownCause("", False)
    return KnownCause(message.cause, message.certain)


def _fix(message: Message | None, phase: MemoryPhase | None) -> str:
    """The known fix; "" if memory ran out and another plan, which is proposed, is the fix."""
    if message is None or message.id == "disk-full":
        return ""
    if message.id not in _PLAIN:
        return message.fix
    if phase is None or phase.name in _HELPED_BY_A_PLAN:
        return ""
    return phase.fix if message.kind == "gpu_out_of_memory" else phase.host_fix


def _from_signal(
    first: Rank | None, killed_by: int, folder: Path, step: int, oom_kills: Mapping[str, int], *, who: str
) -> TrainingFailure:
    """The failure of what a signal ended: the rank `first`, one of several ("a rank"), or the launcher (None)."""
    kind: FailureKind = "lost_rank"
    fix = ""
    name = signal.Signals(killed_by).name
    if killed_by == signal.SIGKILL:
        message = f"{who} was killed by SIGKILL"
        evidence = [f"{file}: oom_kill rose by {count}" for file, count in oom_kills.items() if count]
        if evidence:
            kind = "host_out_of_memory"
            message = f"{who} was killed by the kernel, because the host's memory ran out"
        else:
            evidence = ["the kernel's OOM counters did not rise; which process sent the signal is not known"]
    else:
        log = folder / ("launcher.log" if first is None else f"rank{first.number}.log")
        shown, last = diagnose_text(tail(log)), last_line(log)
        kind, fix = (shown.kind, _fix(shown.message, shown.phase)) if shown.message else (kind, "")
        # What aborts says why; for any other signal, the last line has nothing to do with it.
        says_why = bool(last) and (shown.message is not None or killed_by == signal.SIGABRT)
        message = last if says_why else f"{who} died of {name}"
        evidence = [f"exit signal {killed_by} ({name}) of {who}"] if says_why else [*_last(who, last)]
    rank = first.number if first is not None and who != "a rank" else None
    return TrainingFailure(kind=kind, rank=rank, step=step, message=message, evidence=tuple(evidence), fix=fix)


def last_lines(records: Records, folder: Path) -> tuple[str, ...]:
    """The last line of output of each rank that printed anything."""
    ranks = ((f"rank {rank.number}", folder / f"rank{rank.number}.log") for rank in records.ranks)
    return tuple(line for who, log in ranks for line in _last(who, last_line(log)))


def _last(who: str, line: str) -> tuple[str, ...]:
    return (f"last line of {who}: {line}",) if line else ()
