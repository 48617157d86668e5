"""`probe`: run a plan for a few steps on this machine, in processes of its own, and report what happened."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...estimators.errors import ConfigFileError
from ..dry_run.run import request_for
from ..harmless import harmless
from ..rank_processes.failure import RankFailure
from ..rank_processes.watch import OnProgress, watch
from ..run import Run
from ..scratch import scratch
from .job import Device, ProbeJob
from .kernels import check_kernels
from .result import ProbeResult, rank_report

STEPS = 4
"""Optimizer steps: the first creates the states, ZeRO-3 prefetches from the third."""

_SMALLEST_SWAPPED_BYTES = 2**20
"""DeepSpeed leaves smaller tensors in RAM."""

STALL_S = 300.0
"""A phase that takes longer is called a hang: compiling DeepSpeed's extensions may take some minutes."""


def probe(
    run: Run,
    *,
    device: Device = "cuda",
    solo: bool = False,
    rank: int = 0,
    checkpoint: str | None = None,
    steps: int = STEPS,
    memory_limit_bytes: int | None = None,
    stall_s: float = STALL_S,
    timeout_s: float = 1800.0,
    on_progress: OnProgress = lambda _phase: None,
) -> ProbeResult:
    """A real DeepSpeed job of `run.cluster.world_size` ranks on this machine; a failure is a result too.

    The batch has `run.workload.seq_len` tokens a sample, none of them padding.

    device: "cuda", or "cpu" for DeepSpeed's CPU accelerator over gloo.
    solo:   run only `rank` of the cluster's ranks, on one device: its memory is true, its times lack communication, and
            what it computes is junk.
    checkpoint: a folder with safetensors; None trains random weights.
    memory_limit_bytes: on the CPU, what each rank may allocate, in place of a GPU's memory.
    stall_s, timeout_s: when a phase of a rank, and the whole, is given up.

    Nothing is left behind: no process, no file, no swap space on NVMe. Raises WorkloadError for kernels that the device
    does not have.
    """
    check_kernels(run.config, device)
    started, load = time.monotonic(), os.getloadavg()[0]
    request = request_for(run, rank=rank, iterations=steps)
    with scratch("probe") as folder, _swap_folder(request.config) as nvme_folder:
        job = ProbeJob(
            request=replace(request, config=harmless(request.config, nvme_folder)),
            device=device,
            solo=solo,
            checkpoint=checkpoint,
            memory_limit_bytes=memory_limit_bytes,
            nvme_folder=nvme_folder,
        )
        job.write(folder / "job.json")
        reports, failure = watch(
            job.ranks,
            folder,
            worker=f"{__package__}.worker",
            stall_s=stall_s,
            timeout_s=timeout_s,
            on_progress=on_progress,
        )
        if failure is not None and nvme_folder:
            failure = _or_full(failure, nvme_folder)
    first: dict[str, Any] = dict(reports[0]) if reports else {}
    return ProbeResult(
        world_size=request.world_size,
        device=device,
        solo=solo,
        tokens_per_step=first.get("tokens_per_step", 0),
        ranks=tuple(rank_report(report["report"]) for report in reports),
        failure=failure,
        versions=first.get("versions", {}),
        config=first.get("config", {}),
        seconds=time.monotonic() - started,
        load=load,
    )


def _or_full(failure: RankFailure, folder: str) -> RankFailure:
    """The failure, named as what it is where the swap files have filled their drive: DeepSpeed does not notice that it
    could not write, and later ends itself (SIGABRT) over a file that is too short."""
    free = shutil.disk_usage(folder).free
    if free >= _SMALLEST_SWAPPED_BYTES or failure.kind not in ("crash", "killed"):
        return failure
    return replace(
        failure,
        kind="disk_full",
        details=f"{failure.message}\n{failure.details}",
        message=f"the drive of nvme_path is full: {free:,} bytes were free when rank {failure.rank} failed",
    )


@contextlib.contextmanager
def _swap_folder(config: Mapping[str, Any]) -> Iterator[str]:
    """A folder of the probe's own below the `nvme_path` that the configuration names, removed at the end; "" without
    one."""
    zero = config.get("zero_optimization")
    blocks = [zero.get(name) for name in ("offload_optimizer", "offload_param")] if isinstance(zero, Mapping) else []
    paths = [block["nvme_path"] for block in blocks if isinstance(block, Mapping) and block.get("nvme_path")]
    with contextlib.ExitStack() as stack:
        folder = ""
        if paths:
            try:
                folder = str(stack.enter_context(scratch("probe", paths[0])))
            except OSError as error:
                raise ConfigFileError(
                    f"nvme_path {paths[0]} cannot be written to",
                    why=error.strerror or str(error),
                    fix="name a folder on an NVMe drive that exists in the configuration",
                ) from None
        yield folder
