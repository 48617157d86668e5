"""Failure of a training: the error of the rank that failed first, its kind, and the evidence."""

from __future__ import annotations

import contextlib
import errno
import math
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..text.units import gib
from .records import RankRecord, Records
from .request import FailureKind, TrainingFailure

Moment = Literal["while a checkpoint was saved", "in an evaluation"]

_PATTERNS: tuple[tuple[FailureKind, str], ...] = (
    ("gpu_out_of_memory", r"(CUDA|HIP|XPU) (error: )?out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"),
    # torch.save's archive gives no reason for a failed write; see `_from_error`.
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
"""Error messages of torch, NCCL, gloo, the C library and Linux. The first pattern that matches gives the kind."""

_KINDS_BY_ERRNO: dict[int | None, FailureKind] = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.ENOMEM: "host_out_of_memory",
}

_PEER_LOST = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Broken pipe|remote process (has )?(exited|terminated)|"
    r"NCCL error: (remote|unhandled system)|Application timeout caused pair closure|recvValue failed|"
    r"failed to recv|Connection was likely closed|socketStartConnect|ncclRemoteError"
)
"""Errors of the other ranks after one rank is lost."""

_DIED = re.compile(r"exitcode\s*:\s*(-\d+)|return code = (-\d+)|Signal (\d+) \(SIG|local_rank: \d+\).*exitcode: (-\d+)")
"""Reports of torchrun and of the deepspeed launcher about a rank that was ended by a signal."""

_MOMENTS: Mapping[Moment, re.Pattern[str]] = {
    "while a checkpoint was saved": re.compile(
        r", in (_save_checkpoint|save_model|save_checkpoint|save_pretrained|_zero3_consolidated_16bit_state_dict)\n"
    ),
    "in an evaluation": re.compile(r", in (evaluation_loop|prediction_step|evaluate)\n"),
}
"""Frames of transformers' Trainer and of DeepSpeed's engine in a traceback."""

_FIXES: Mapping[tuple[FailureKind, Moment], str] = {
    ("gpu_out_of_memory", "in an evaluation"): "lower per_device_eval_batch_size (8 where nothing sets it); with "
    "compute_metrics reduce the logits in preprocess_logits_for_metrics, or set eval_accumulation_steps=1",
    ("host_out_of_memory", "in an evaluation"): "reduce the logits in preprocess_logits_for_metrics: every rank keeps "
    "those of all samples in RAM for compute_metrics",
    **dict.fromkeys(
        (
            ("gpu_out_of_memory", "while a checkpoint was saved"),
            ("host_out_of_memory", "while a checkpoint was saved"),
        ),
        "set stage3_gather_16bit_weights_on_model_save to false; it gathers all weights in the RAM of rank 0; "
        "ds-advise checkpoint --to-hf writes the model afterwards",
    ),
}

_TIMEOUT_FIX = (
    "look for a rank in another state: evaluating or saving alone, out of data, or in other experts; if all ranks work "
    "and one is slow, raise the timeout: ddp_timeout=7200 (seconds, Trainer), DEEPSPEED_TIMEOUT=120 (minutes, "
    "deepspeed.initialize)"
)

_COLLECTIVE = re.compile(r"OpType=(\w+).*?Timeout\(ms\)=(\d+)")
"""The collective that timed out, as the watchdog reports it (torch 2.13 ProcessGroupNCCL.cpp)."""


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
    if found := next(filter(None, map(_COLLECTIVE.search, (failure.message, *logs))), None):
        evidence.append(f"{found[1]} had waited for {int(found[2]) / 60_000:g} minutes")
    return replace(failure, evidence=tuple(evidence), fix=_TIMEOUT_FIX)


def _first_failure(records: Records, folder: Path, exit_code: int, oom_kills: Mapping[str, int]) -> TrainingFailure:
    """The failure of a training whose launcher ended with `exit_code`.

    A killed rank reports nothing, and the others then fail because it is lost. A rank that raises an error reports it,
    and the launcher then ends the others, which report nothing. The first failure is therefore the earliest error that
    is not the loss of another rank; else the rank that reported nothing; else the earliest error.

    oom_kills: the increase of each counter of the kernel's OOM killer during the training.
    """
    step = records.step
    raised = sorted((rank for rank in records.ranks if rank.error is not None), key=lambda rank: rank.error_at)
    own = [rank for rank in raised if not _PEER_LOST.search(_message(rank))]
    silent = [rank for rank in records.ranks if rank.error is None and "end" not in rank.latest]
    # A killed rank leaves no record; only its launcher knows the signal.
    killed_by = _signal(tail(folder / "launcher.log"), exit_code)
    # The launcher ends the remaining ranks with SIGTERM.
    if not own and silent and killed_by is not None and killed_by != signal.SIGTERM:
        return _from_signal(silent, killed_by, folder, step, oom_kills)
    if raised:
        return _from_error((own or raised)[0], step)
    ended = next((rank for rank in records.ranks if rank.latest.get("end")), None)
    first = ended or (silent[0] if silent else None)
    log = folder / ("launcher.log" if first is None else f"rank{first.number}.log")
    code, who = (exit_code, "the launcher") if ended is None else (ended.latest["end"], f"rank {ended.number}")
    return TrainingFailure(
        kind=_kind_by_message(tail(log)),
        rank=None if first is None else first.number,
        step=step,
        message=_last_line(log) or f"{who} ended with exit code {code}",
        evidence=(f"exit code {code} of {who}",),
    )


def _from_error(rank: RankRecord, step: int) -> TrainingFailure:
    error: dict[str, Any] = rank.error or {}
    message, number = _message(rank), error["errno"]
    evidence = [f"{error['type']} on rank {rank.number}"]
    by_type: FailureKind | None = "host_out_of_memory" if error["type"] == "MemoryError" else None
    # Includes a compiler that a memory limit ended (torch 2.13 `utils/cpp_extension.py`): all plans compile the same.
    if "Error building extension" in message:
        by_type = "crash"
        evidence.append("the compiler of a DeepSpeed extension failed, before the training")
    kind = _KINDS_BY_ERRNO.get(number) or by_type or _kind_by_message(message + error["details"])
    if kind == "disk_full":
        if number in _KINDS_BY_ERRNO:
            evidence.append(f"errno {number} ({errno.errorcode[number]})")
        if output_dir := rank.latest.get("trainer", {}).get("output_dir"):
            with contextlib.suppress(OSError):
                evidence.append(f"{gib(shutil.disk_usage(output_dir).free)} GiB free in {output_dir}")
    moment = next((name for name, frame in _MOMENTS.items() if frame.search(error["details"])), None)
    if moment is not None:
        evidence.append(f"it was raised {moment}")
    return TrainingFailure(
        kind=kind,
        rank=rank.number,
        step=step,
        message=message[:500],
        evidence=tuple(evidence),
        fix="" if moment is None else _FIXES.get((kind, moment), ""),
    )


def _from_signal(
    died: list[RankRecord], killed_by: int, folder: Path, step: int, oom_kills: Mapping[str, int]
) -> TrainingFailure:
    # The rank that torchrun names, or the first rank that ended: the launcher ends the others after it.
    by_pid = re.search(rf"exitcode\s*:\s*-{killed_by} \(pid: (\d+)\)", tail(folder / "launcher.log"))
    named = next((rank for rank in died if by_pid and rank.pid == int(by_pid[1])), None)
    first = named or min(died, key=lambda rank: math.inf if rank.gone_at is None else rank.gone_at)
    is_alone = named is not None or all(rank is first or rank.gone_at != first.gone_at for rank in died)
    who = f"rank {first.number}" if is_alone else "a rank"
    kind: FailureKind = "lost_rank"
    if killed_by == signal.SIGKILL:
        message = f"{who} was killed by SIGKILL"
        counters = [f"{file}: oom_kill rose by {count}" for file, count in oom_kills.items() if count]
        if counters:
            kind = "host_out_of_memory"
            message = f"{who} was killed by the kernel, because the host's memory ran out"
        cause = counters or ["the kernel's OOM counters did not rise: another process killed it"]
        evidence = [f"exit signal {killed_by} of {who}", *cause]
    else:
        name, log = signal.Signals(killed_by).name, folder / f"rank{first.number}.log"
        kind = _kind_by_message(tail(log), otherwise=kind)
        message = _last_line(log) or f"{who} died of {name}"
        evidence = [f"exit signal {killed_by} ({name}) of {who}"]
    rank = first.number if is_alone else None
    return TrainingFailure(kind=kind, rank=rank, step=step, message=message, evidence=tuple(evidence))


def _kind_by_message(text: str, otherwise: FailureKind = "crash") -> FailureKind:
    return next((kind for kind, pattern in _PATTERNS if re.search(pattern, text)), otherwise)


def _signal(launcher: str, exit_code: int) -> int | None:
    """The signal that ended a rank. The launcher reports the first failure first."""
    died = _DIED.search(launcher)
    if died:
        return abs(int(next(filter(None, died.groups()))))
    return exit_code - 128 if 128 < exit_code <= 128 + 64 else None


def _message(rank: RankRecord) -> str:
    assert rank.error is not None
    return f"{rank.error['type']}: {rank.error['message']}"


def last_lines(records: Records, folder: Path) -> tuple[str, ...]:
    """The last line of output of each rank that printed anything."""
    lines = {rank.number: _last_line(folder / f"rank{rank.number}.log") for rank in records.ranks}
    return tuple(f"last line of rank {number}: {line}" for number, line in lines.items() if line)


def tail(path: Path) -> str:
    """The end of a log, "" if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - 20_000))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in tail(path).splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
