"""`probe`: run a plan for a few steps on this machine, by its default script."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...estimators.errors import ConfigFileError
from ..default_script.folder import write_folder
from ..default_script.words import command_words
from ..run import Device, Run, absolute_factory, check_device
from ..scratch import scratch
from .command import STALL_S, STEPS, CommandProbe, probe_command
from .environment import Solo
from .result import ProbeResult, RankFailure
from .watch import OnProgress

_SMALLEST_SWAPPED_BYTES = 2**20
"""Minimum size of a swapped tensor: DeepSpeed keeps smaller ones in RAM."""


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
    on_progress: OnProgress = lambda _ranks, _memory: None,
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
    cluster = run.cluster
    if isinstance(run.model, str):
        run = replace(run, model=absolute_factory(run.model))
    with scratch("probe-run") as folder, _swap_folder(run.config) as nvme_folder:
        write_folder(run, folder, nvme_folder=nvme_folder)
        command = CommandProbe(
            words=command_words(run, model=checkpoint or str(folder), steps=steps),
            folder=folder,
            ranks=cluster.world_size,
            device=device,
            steps=steps,
            memory_limit_bytes=memory_limit_bytes,
            solo=Solo(rank=rank, world_size=cluster.world_size, ranks_per_node=cluster.gpus_per_node) if solo else None,
        )
        result = probe_command(command, stall_s=stall_s, timeout_s=timeout_s, on_progress=on_progress)
        if result.failure is not None and nvme_folder:
            result = replace(result, failure=_disk_full_failure(result.failure, nvme_folder))
    return result


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
