"""One rank of a probe: `python -m ...worker FOLDER RANK PARENT`. Its event log tells how far it came, and ends
with its report or its error.

FOLDER holds `job.json`; the rank appends to `rank<R>.jsonl`. PARENT is the number of the process that watches.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import traceback
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..rank_processes.event_log import EventLog
from ..this_machine import threads_of_a_rank
from . import memory
from .job import ProbeJob, of_rank, read_job
from .result import RankReport

_PR_SET_PDEATHSIG = 1


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    die_with_the_parent(int(sys.argv[3]))
    log = EventLog(folder / f"rank{rank}.jsonl")
    try:
        job = read_job(folder / "job.json")
        report, more = _run(job, rank, folder, log)
        log.note({"report": asdict(report), **more})
    except BaseException as error:
        log.note(
            {
                "error": {
                    "kind": "out_of_memory" if _is_out_of_memory(error) else "crash",
                    "phase": log.phase,
                    "message": one_line(error),
                    "details": traceback.format_exc()[-8000:],
                }
            }
        )
        os._exit(1)
    os._exit(0)  # the other ranks are done too; exit handlers of process groups only wait for each other


def die_with_the_parent(parent: int) -> None:
    """Ask Linux to end this process with the one that started it, even if that is killed; it may be gone already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _run(job: ProbeJob, rank: int, folder: Path, log: EventLog) -> tuple[RankReport, dict[str, Any]]:
    request = of_rank(job, rank)
    local = 0 if job.solo else rank
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local),
        WORLD_SIZE=str(request.world_size),
        LOCAL_WORLD_SIZE=str(request.gpus_per_node),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    if job.device == "cpu":
        os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS=str(threads_of_a_rank(len(job.ranks))))
    # DeepSpeed's shared-memory collectives for CPUs start when LOCAL_SIZE equals WORLD_SIZE, and wait for peers by
    # name.
    os.environ["LOCAL_SIZE"] = str(request.world_size + 1)
    log.enter("import")
    import torch
    import torch.distributed as dist

    from ..rank_processes import extension_lock
    from .clocks import Clock, CudaClock, HostClock
    from .communication import CollectiveTime

    extension_lock.install()

    on_cuda = job.device == "cuda"
    device = f"cuda:{local}" if on_cuda else "cpu"
    if on_cuda:
        torch.cuda.set_device(local)
    collectives = None if on_cuda or job.solo else CollectiveTime()
    if collectives:
        collectives.install()
    log.enter("join")
    if job.solo:
        from ..dry_run.simulated_gpu.collectives import join

        join(rank, request.world_size, request.gpus_per_node)
    else:
        # A file, not a port: nothing else can take it, and no other job can be met there.
        dist.init_process_group(
            "nccl" if on_cuda else "gloo",
            init_method=f"file://{folder / 'rendezvous'}",
            rank=rank,
            world_size=request.world_size,
        )
    import deepspeed

    deepspeed.init_distributed()
    if job.solo:
        from ..dry_run.simulated_gpu.collectives import silence_comparisons

        silence_comparisons()
    from . import training

    log.enter("load")
    prepared = training.prepare(job, request)
    baseline = memory.resident_bytes()
    if job.memory_limit_bytes is not None:
        limit = memory.data_bytes() + job.memory_limit_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if job.solo:
        torch.set_flush_denormal(True)  # junk is full of denormal numbers, with which a CPU is a hundred times slower
    clock: Clock = CudaClock() if on_cuda else HostClock()
    run = training.run(job, request, prepared, device, log, clock, collectives)
    log.enter("report")
    pinned = torch.cuda.host_memory_stats().get("allocated_bytes.peak") if on_cuda else None
    report = RankReport(
        rank=rank,
        allocated_bytes=torch.cuda.max_memory_allocated() if on_cuda else None,
        reserved_bytes=torch.cuda.max_memory_reserved() if on_cuda else None,
        device_bytes=memory.device_bytes(local) if on_cuda else None,
        host_baseline_bytes=baseline,
        host_loading_peak_bytes=run.loading_peak_bytes,
        host_peak_bytes=run.peak_bytes,
        host_pinned_bytes=int(pinned) if pinned is not None else None,
        nvme_bytes=memory.folder_bytes(job.nvme_folder),
        nvme_read_bytes=run.read_bytes,
        nvme_written_bytes=run.written_bytes,
        steps=tuple(run.steps),
        losses=tuple(run.losses),
    )
    if not job.solo:
        dist.barrier()  # nobody leaves while another still wants an answer from it
    return report, {
        "config": run.config,
        "tokens_per_step": (
            run.micro_batch_size * run.gradient_accumulation_steps * request.world_size * request.workload.seq_len
        ),
        "versions": {name: version(name) for name in ("torch", "deepspeed", "transformers")},
    }


def _is_out_of_memory(error: BaseException) -> bool:
    """CUDA's and Python's own errors have names; torch's allocator for the CPU raises a RuntimeError."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
        or "Cannot allocate memory" in str(error)
        or "out of memory" in str(error).lower()
    )


def one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (" ".join(lines) or type(error).__name__)[:500]


if __name__ == "__main__":
    main()
