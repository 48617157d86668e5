"""Why a training ended: the true error of the rank that failed first, named as what it is, with the evidence."""

from __future__ import annotations

import contextlib
import errno
import math
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..text.units import gib
from .records import RankRecord, Records
from .request import FailureKind, TrainingFailure

_PATTERNS: tuple[tuple[FailureKind, str], ...] = (
    ("gpu_out_of_memory", r"(CUDA|HIP|XPU) (error: )?out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"),
    # torch.save's archive does not say why it could not be written; see `_from_error`.
    (
        "disk_full",
        r"No space left on device|Disk quota exceeded|File too large|PytorchStreamWriter failed|"
        r"unexpected pos \d+ vs|basic_ios::clear: iostream error",
    ),
    (
        "host_out_of_memory",
        r"can't allocate memory|[Cc]annot allocate memory|MemoryError|std::bad_alloc|"
        r"unable to (mmap|allocate shared memory)|CUDA error: (host )?memory allocation",
    ),
    (
        "communication_timeout",
        r"Watchdog caught collective operation timeout|[Tt]imed out (waiting|after)|"
        r"wait timeout|collective operation timeout|Socket Timeout|TIMEOUT",
    ),
)
"""In the words of torch, NCCL, gloo, the C library and Linux; the first that matches."""

_PEER_LOST = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Broken pipe|remote process (has )?(exited|terminated)|"
    r"NCCL error: (remote|unhandled system)|Application timeout caused pair closure|recvValue failed|"
    r"failed to recv|Connection was likely closed|socketStartConnect|ncclRemoteError"
)
"""What the others say when a rank is gone."""

_DIED = re.compile(r"exitcode\s*:\s*(-\d+)|return code = (-\d+)|Signal (\d+) \(SIG|local_rank: \d+\).*exitcode: (-\d+)")
"""How torchrun and the deepspeed launcher say that a signal ended a rank."""

_DIED_OF = r"exitcode\s*:\s*-{} \(pid: (\d+)\)"
"""How torchrun says which process a signal ended."""

_TAIL = 20_000


def failure_of(records: Records, folder: Path, exit_code: int, oom_kills: Mapping[str, int]) -> TrainingFailure:
    """The failure of a training whose launcher ended with `exit_code`.

    A rank that was killed reports nothing, and the others then fail because it is gone; a rank that raised an error
    reports it, and the launcher then ends the others, which report nothing. So: the earliest error that is not the loss
    of another rank; else the rank that reported nothing; else the earliest error.

    oom_kills: by how much each counter of the kernel's OOM killer rose while the training ran.
    """
    step = records.step
    raised = sorted((rank for rank in records.ranks if rank.error is not None), key=lambda rank: rank.error_at)
    own = [rank for rank in raised if not _PEER_LOST.search(_message(rank))]
    silent = [rank for rank in records.ranks if rank.error is None and rank.end is None]
    killed_by = _signal(_tail(folder / "launcher.log"), exit_code)
    # SIGTERM is the launcher's own, with which it ends the ranks that are left.
    if not own and silent and killed_by is not None and killed_by != signal.SIGTERM:
        return _from_signal(silent, killed_by, folder, step, oom_kills)
    if raised:
        return _from_error((own or raised)[0], step)
    ended = next((rank for rank in records.ranks if rank.end), None)
    if ended is not None:
        number: int | None = ended.number
        how = ("the script", ended.end, f"rank {ended.number}")
    else:
        number = silent[0].number if silent else None
        how = ("the launcher", exit_code, "the launcher")
    log = folder / ("launcher.log" if number is None else f"rank{number}.log")
    return TrainingFailure(
        kind=_kind_by_words(_tail(log)),
        rank=number,
        step=step,
        message=_last_line(log) or f"{how[0]} ended with exit code {how[1]}",
        evidence=(f"exit code {how[1]} of {how[2]}",),
    )


def _from_error(rank: RankRecord, step: int) -> TrainingFailure:
    error: dict[str, Any] = rank.error or {}
    message, number = _message(rank), error["errno"]
    evidence = [f"{error['type']} on rank {rank.number}"]
    kind = _kind_by_words(message + error["details"])
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        kind = "disk_full"
        evidence.append(f"errno {number} ({errno.errorcode[number]})")
    elif error["type"] == "MemoryError" or number == errno.ENOMEM:
        kind = "host_out_of_memory"
    if kind == "disk_full" and rank.trainer is not None:
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(rank.trainer["output_dir"]).free
            evidence.append(f"{gib(free)} GiB free in {rank.trainer['output_dir']}")
    if kind in ("host_out_of_memory", "disk_full"):
        evidence += [
            f"{name} of the rank was {gib(limit)} GiB"
            for name, limit in error["limits"].items()
            if (name == "RLIMIT_FSIZE") == (kind == "disk_full")
        ]
    return TrainingFailure(kind=kind, rank=rank.number, step=step, message=message[:500], evidence=tuple(evidence))


def _from_signal(
    died: list[RankRecord], killed_by: int, folder: Path, step: int, oom_kills: Mapping[str, int]
) -> TrainingFailure:
    # The one that the launcher names, or the first that was gone: the launcher ends the others after it.
    by_pid = re.search(_DIED_OF.format(killed_by), _tail(folder / "launcher.log"))
    named = next((rank for rank in died if by_pid and rank.pid == int(by_pid[1])), None)
    first = named or min(died, key=lambda rank: math.inf if rank.gone_at is None else rank.gone_at)
    is_alone = named is not None or all(rank is first or rank.gone_at != first.gone_at for rank in died)
    who = f"rank {first.number}" if is_alone else "a rank"
    evidence: tuple[str, ...] = (f"exit signal {killed_by} of {who}",)
    kind: FailureKind = "lost_rank"
    if killed_by == signal.SIGKILL:
        rose = [f"{file}: oom_kill rose by {count}" for file, count in oom_kills.items() if count]
        if rose:
            kind, message = "host_out_of_memory", f"{who} was killed by the kernel, because the host's memory ran out"
        else:
            message = f"{who} was killed by SIGKILL"
        evidence += tuple(rose) or ("the kernel's OOM counters did not rise: somebody else killed it",)
    else:
        name, log = signal.Signals(killed_by).name, folder / f"rank{first.number}.log"
        kind, message = _kind_by_words(_tail(log), otherwise=kind), _last_line(log) or f"{who} died of {name}"
        evidence = (f"exit signal {killed_by} ({name}) of {who}",)
    rank = first.number if is_alone else None
    return TrainingFailure(kind=kind, rank=rank, step=step, message=message, evidence=evidence)


def _kind_by_words(text: str, otherwise: FailureKind = "crash") -> FailureKind:
    return next((kind for kind, pattern in _PATTERNS if re.search(pattern, text)), otherwise)


def _signal(launcher: str, exit_code: int) -> int | None:
    """The signal that ended a rank; the launcher reports the first failure first."""
    died = _DIED.search(launcher)
    if died:
        return abs(int(next(filter(None, died.groups()))))
    return exit_code - 128 if 128 < exit_code <= 128 + 64 else None


def _message(rank: RankRecord) -> str:
    assert rank.error is not None
    return f"{rank.error['type']}: {rank.error['message']}"


def last_lines(records: Records, folder: Path) -> tuple[str, ...]:
    """What each rank printed last, as far as it printed anything."""
    lines = {rank.number: _last_line(folder / f"rank{rank.number}.log") for rank in records.ranks}
    return tuple(f"rank {number} said last: {line}" for number, line in lines.items() if line)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _TAIL))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in _tail(path).splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
