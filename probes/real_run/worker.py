"""One rank of a probe, in a process of its own (`rank_processes.rank`); FOLDER holds `job.json`."""

from __future__ import annotations

import os
import resource
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..rank_processes.event_log import EventLog
from ..rank_processes.rank import run_rank
from ..this_machine import threads_of_a_rank
from . import memory
from .job import ProbeJob, of_rank, read_job
from .result import RankReport

if TYPE_CHECKING:
    from .communication import CollectiveTime
    from .training import TrainingMeasurements


def _work(folder: Path, rank: int, log: EventLog) -> dict[str, Any]:
    job = read_job(folder / "job.json")
    request = of_rank(job, rank)
    gpu = (0 if job.solo else rank) if job.device == "cuda" else None
    _set_environment(job, rank)
    log.enter("import")
    collectives = _prepare_torch(job, gpu)
    log.enter("join")
    _join(job, rank, folder)
    import torch

    from . import training
    from .clocks import Clock

    log.enter("load")
    prepared = training.prepare(job, request)
    baseline_bytes = memory.resident_bytes()
    _limit_memory(job)
    run = training.run(
        job, request, prepared, "cpu" if gpu is None else f"cuda:{gpu}", log, Clock(cuda=gpu is not None), collectives
    )
    log.enter("report")
    report = _report(job, rank, gpu, baseline_bytes, run)
    if not job.solo:
        torch.distributed.barrier()  # nobody leaves while another still wants an answer from it
    return {
        "report": asdict(report),
        "config": run.config,
        "tokens_per_step": (
            run.micro_batch_size
            * run.gradient_accumulation_steps
            * request.world_size
            * request.workload.seq_len
            // request.ranks_per_sample
        ),
        "versions": {name: version(name) for name in ("torch", "deepspeed", "transformers")},
    }


def _set_environment(job: ProbeJob, rank: int) -> None:
    """What torch and DeepSpeed read of the job; before they are imported."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(0 if job.solo else rank),
        WORLD_SIZE=str(job.request.world_size),
        LOCAL_WORLD_SIZE=str(job.request.gpus_per_node),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
        # DeepSpeed's shared-memory collectives for CPUs start when LOCAL_SIZE equals WORLD_SIZE, and wait for peers by
        # name.
        LOCAL_SIZE=str(job.request.world_size + 1),
    )
    if job.device == "cpu":
        os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS=str(threads_of_a_rank(len(job.ranks))))


def _prepare_torch(job: ProbeJob, gpu: int | None) -> CollectiveTime | None:
    """Change what DeepSpeed will bind when it is imported; answers the timer of collectives, where there is one."""
    import torch

    from ..rank_processes import extension_lock
    from .communication import CollectiveTime

    extension_lock.install()
    if gpu is not None:
        torch.cuda.set_device(gpu)
    if gpu is not None or job.solo:
        return None
    collectives = CollectiveTime()
    collectives.install()
    return collectives


def _join(job: ProbeJob, rank: int, folder: Path) -> None:
    """Meet the other ranks; alone, the fake process group stands for them."""
    import torch.distributed as dist

    from ..simulated_gpu import collectives as fake_group

    if job.solo:
        fake_group.join(rank, job.request.world_size, job.request.gpus_per_node)
    else:
        # A file, not a port: nothing else can take it, and no other job can be met there.
        dist.init_process_group(
            "nccl" if job.device == "cuda" else "gloo",
            init_method=f"file://{folder / 'rendezvous'}",
            rank=rank,
            world_size=job.request.world_size,
        )
    import deepspeed

    deepspeed.init_distributed()
    if job.solo:
        fake_group.silence_comparisons()


def _limit_memory(job: ProbeJob) -> None:
    import torch

    if job.memory_limit_bytes is not None:
        limit = memory.data_bytes() + job.memory_limit_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if job.solo:
        torch.set_flush_denormal(True)  # junk is full of denormal numbers, with which a CPU is a hundred times slower


def _report(job: ProbeJob, rank: int, gpu: int | None, baseline_bytes: int, run: TrainingMeasurements) -> RankReport:
    import torch

    pinned = torch.cuda.host_memory_stats().get("allocated_bytes.peak") if gpu is not None else None
    return RankReport(
        rank=rank,
        allocated_bytes=torch.cuda.max_memory_allocated() if gpu is not None else None,
        reserved_bytes=torch.cuda.max_memory_reserved() if gpu is not None else None,
        device_bytes=memory.device_bytes(gpu) if gpu is not None else None,
        host_baseline_bytes=baseline_bytes,
        host_loading_peak_bytes=run.loading_peak_bytes,
        host_peak_bytes=run.peak_bytes,
        host_pinned_bytes=int(pinned) if pinned is not None else None,
        nvme_bytes=memory.folder_bytes(job.nvme_folder),
        nvme_read_bytes=run.read_bytes,
        nvme_written_bytes=run.written_bytes,
        steps=tuple(run.steps),
        losses=tuple(run.losses),
    )


if __name__ == "__main__":
    run_rank(_work)
