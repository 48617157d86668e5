"""`probe`: run a plan for a few steps on this machine, in separate processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...estimators.errors import ConfigFileError
from ...estimators.json_form import from_json
from ..dry_run.run import request_for
from ..machine import rank_threads
from ..run import Device, Request, Run, check_device, isolated_config
from ..scratch import scratch
from .result import ProbeResult, RankFailure, RankReport
from .watch import OnProgress, watch

STEPS = 4
"""Number of optimizer steps: the first creates the states; ZeRO-3 prefetches from the third."""

_SMALLEST_SWAPPED_BYTES = 2**20
"""Minimum size of a swapped tensor: DeepSpeed keeps smaller ones in RAM."""

JOB_FILE = "job.pickle"
"""File with the `ProbeJob` for the ranks."""

STALL_S = 300.0
"""Time limit of a phase, after which it counts as a hang: compiling DeepSpeed's extensions may take some minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJob:
    """One probe; equal for all ranks."""

    request: Request
    """The run; `request.rank` is the rank that runs alone when `solo`."""
    device: Device
    """ "cuda", or DeepSpeed's CPU accelerator over gloo."""
    solo: bool
    """Whether a single process acts as one rank of `request.world_size`. The others do not exist, and their messages
    are undefined."""
    checkpoint: str | None
    """Folder of a local safetensors checkpoint; None for random weights."""
    memory_limit_bytes: int | None
    """Memory of each rank in addition to its libraries, on the CPU; None for no limit."""
    nvme_folder: str
    """Swap folder; "" without offload to NVMe."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that run as processes."""
        return (self.request.rank,) if self.solo else tuple(range(self.request.run.cluster.world_size))


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
    """Run a real DeepSpeed job of `run.cluster.world_size` ranks on this machine. A failure is also a result.

    The batch has `run.workload.seq_len` tokens per sample and no padding.

    device: "cuda", or "cpu" for DeepSpeed's CPU accelerator over gloo.
    solo: run only `rank` of the cluster's ranks, on one device: its memory is real, its times lack communication, and
            its results are undefined.
    checkpoint: a folder with safetensors; None trains random weights.
    memory_limit_bytes: on the CPU, the memory of each rank, in place of a GPU's memory.
    stall_s, timeout_s: time limit of a phase of a rank, and of the whole.

    No process, file or NVMe swap space remains. Raises WorkloadError for what the device cannot run.
    """
    check_device(run, device)
    started = time.monotonic()
    load = os.getloadavg()[0]
    request = request_for(run, rank=rank, iterations=steps)
    with scratch("probe") as folder, _swap_folder(run.config) as nvme_folder:
        isolated = replace(request.run, config=isolated_config(run.config, nvme_folder))
        job = ProbeJob(
            request=replace(request, run=isolated),
            device=device,
            solo=solo,
            checkpoint=checkpoint,
            memory_limit_bytes=memory_limit_bytes,
            nvme_folder=nvme_folder,
        )
        (folder / JOB_FILE).write_bytes(pickle.dumps(job))
        on_cpu = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(rank_threads(len(job.ranks)))}
        reports, failure = watch(
            job.ranks,
            folder,
            worker=f"{__package__}.training",
            stall_s=stall_s,
            timeout_s=timeout_s,
            on_progress=on_progress,
            environment=on_cpu if device == "cpu" else {},
        )
        if failure is not None and nvme_folder:
            failure = _disk_full_failure(failure, nvme_folder)
    first: dict[str, Any] = dict(reports[0]) if reports else {}
    return ProbeResult(
        world_size=run.cluster.world_size,
        device=device,
        solo=solo,
        tokens_per_step=first.get("tokens_per_step", 0),
        ranks=tuple(from_json(RankReport, report["report"]) for report in reports),
        failure=failure,
        versions=first.get("versions", {}),
        config=first.get("config", {}),
        seconds=time.monotonic() - started,
        load=load,
    )


def _disk_full_failure(failure: RankFailure, folder: str) -> RankFailure:
    """The failure, or "disk_full" if the swap files filled their drive: DeepSpeed ignores a failed write and later
    aborts (SIGABRT) because a file is too short."""
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
    """A temporary folder below the configuration's `nvme_path`; "" if it has none."""
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
                    fix="name an existing folder on an NVMe drive in the configuration",
                ) from None
        yield folder
