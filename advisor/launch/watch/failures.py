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

from ...terminal.units import gib
from ..request import Failure, FailureKind
from .records import RankRecord, Records

_PATTERNS: tuple[tuple[FailureKind, str], ...] = (
    ("gpu_out_of_memory", r"(CUDA|HIP|XPU) (error: )?out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"),
    # torch.save's archive does not say why it could not be written; see `_from_error`.
    (
        "disk_full",
        r"No space left on device|Disk quota exceeded|File too large|PytorchStreamWriter failed|"
        r"unexpected pos \d+ vs",
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

_TAIL = 20_000


def failure_of(records: Records, folder: Path, exit_code: int, oom_kills: Mapping[str, int]) -> Failure:
    """The failure of a training whose launcher ended with `exit_code`.

    A rank that was killed says nothing, and the others then fail for want of it; a rank that raised an error says so,
    and the launcher then ends the others, which say nothing. So: the earliest error that is not the loss of another
    rank; else the rank that said nothing; else the earliest error.

    oom_kills: by how much each counter of the kernel's OOM killer rose while the training ran.
    """
    ranks = records.ranks
    told = sorted((rank for rank in ranks if rank.error is not None), key=lambda rank: rank.error_at)
    own = [rank for rank in told if not _PEER_LOST.search(_words(rank))]
    silent = [rank for rank in ranks if rank.error is None and rank.end is None]
    launcher = _tail(folder / "launcher.log")
    killed_by = _signal(launcher, exit_code)
    # SIGTERM is the launcher's own, with which it ends the ranks that are left.
    died = [rank for rank in silent if killed_by not in (None, signal.SIGTERM)]
    if own:
        return _from_error(own[0], records.step)
    if died:
        return _from_signal(died, killed_by, folder, records.step, oom_kills)
    if told:
        return _from_error(told[0], records.step)
    ended = next((rank for rank in ranks if rank.end), None)
    if ended is not None:
        return _named(
            _tail(folder / f"rank{ended.number}.log"),
            rank=ended.number,
            step=records.step,
            message=_last_line(folder / f"rank{ended.number}.log") or f"the script ended with exit code {ended.end}",
            evidence=(f"exit code {ended.end} of rank {ended.number}",),
        )
    number = silent[0].number if silent else None
    log = folder / ("launcher.log" if number is None else f"rank{number}.log")
    return _named(
        _tail(log),
        rank=number,
        step=records.step,
        evidence=(f"exit code {exit_code} of the launcher",),
        message=_last_line(log) or f"the launcher ended with exit code {exit_code}",
    )


def _from_error(rank: RankRecord, step: int) -> Failure:
    error: dict[str, Any] = rank.error or {}
    message = f"{error['type']}: {error['message']}"
    evidence = [f"{error['type']} on rank {rank.number}"]
    kind: FailureKind | None = None
    if error["errno"] in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        kind = "disk_full"
        evidence.append(f"errno {error['errno']} ({errno.errorcode[error['errno']]})")
    elif error["type"] == "MemoryError" or error["errno"] == errno.ENOMEM:
        kind = "host_out_of_memory"
    failure = _named(
        message + error["details"], rank=rank.number, step=step, message=message[:500], evidence=(), kind=kind
    )
    if failure.kind == "disk_full" and rank.trainer is not None:
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(rank.trainer["output_dir"]).free
            evidence.append(f"{gib(free)} GiB free in {rank.trainer['output_dir']}")
    if failure.kind in ("host_out_of_memory", "disk_full"):
        evidence += [
            f"{name} of the rank was {gib(limit)} GiB"
            for name, limit in error["limits"].items()
            if (name == "RLIMIT_FSIZE") == (failure.kind == "disk_full")
        ]
    return Failure(kind=failure.kind, rank=rank.number, step=step, message=failure.message, evidence=tuple(evidence))


def _from_signal(
    died: list[RankRecord], killed_by: int | None, folder: Path, step: int, oom_kills: Mapping[str, int]
) -> Failure:
    assert killed_by is not None, "a rank died of a signal"
    name = signal.Signals(killed_by).name
    # The first that was gone: the launcher ends the others after it.
    rank = min(died, key=lambda rank: math.inf if rank.gone_at is None else rank.gone_at)
    alone = [other for other in died if other.gone_at == rank.gone_at] == [rank]
    number = rank.number if alone else None
    who = f"rank {number}" if alone else "a rank"
    rose = [f"{file}: oom_kill rose by {count}" for file, count in oom_kills.items() if count]
    if killed_by == signal.SIGKILL:
        if rose:
            return Failure(
                kind="host_out_of_memory",
                rank=number,
                step=step,
                evidence=(f"exit signal 9 of {who}", *rose),
                message=f"{who} was killed by the kernel, because the host's memory ran out",
            )
        return Failure(
            kind="lost_rank",
            rank=number,
            step=step,
            message=f"{who} was killed by SIGKILL",
            evidence=(f"exit signal 9 of {who}", "the kernel's OOM counters did not rise: somebody else killed it"),
        )
    log = folder / f"rank{rank.number}.log"
    return _named(
        _tail(log),
        rank=number,
        step=step,
        message=_last_line(log) or f"{who} died of {name}",
        evidence=(f"exit signal {killed_by} ({name}) of {who}",),
        otherwise="lost_rank",
    )


def _named(
    text: str,
    *,
    rank: int | None,
    step: int,
    message: str,
    evidence: tuple[str, ...],
    kind: FailureKind | None = None,
    otherwise: FailureKind = "crash",
) -> Failure:
    """The kind by the words of `text`, unless it is known."""
    by_words = next((name for name, pattern in _PATTERNS if re.search(pattern, text)), otherwise)
    return Failure(kind=kind or by_words, rank=rank, step=step, message=message, evidence=evidence)


def _signal(launcher: str, exit_code: int) -> int | None:
    """The signal that ended a rank; the launcher tells the first failure first."""
    found = _DIED.search(launcher)
    if found:
        return abs(int(next(group for group in found.groups() if group)))
    return exit_code - 128 if 128 < exit_code <= 128 + 64 else None


def _words(rank: RankRecord) -> str:
    assert rank.error is not None
    return f"{rank.error['type']}: {rank.error['message']}"


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
