"""From what a user says on the command line to a probe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...estimators.errors import WorkloadError
from ...probes.dry_run import DryRunResult, dry_run
from ...probes.real_run import probe
from ..question.cluster_spec import parse_cluster
from ..question.cpu_question import cpu_question
from ..question.run import RunQuestion, run_question
from .past_probes import keep_probe
from .probe_answer import ProbeAnswer, probe_answer


def ask_probe(
    config_file: Path,
    model: str,
    *,
    gpus: str,
    device: str,
    ranks: int | None,
    solo: bool,
    rank: int,
    steps: int,
    memory: str | None,
    timeout_s: int,
    stall_s: int,
    dry: bool,
    on_progress: Callable[[str], None],
    **settings: Any,
) -> ProbeAnswer:
    """Run it, after a dry run of the same; `settings` are those of `run_question`.

    Raises DsAdviseError for what cannot be run at all; a job that fails is an answer.
    """
    limit = None
    if device == "cpu" or ranks is not None or memory is not None:
        cluster, limit = cpu_question(gpus, device=device, ranks=ranks, memory=memory)
    else:
        cluster = parse_cluster(gpus)
    if rank >= cluster.world_size:
        raise WorkloadError(
            f"there is no rank {rank} among {cluster.world_size}",
            why="ranks count from 0",
            fix=f"pass --rank {cluster.world_size - 1} or less",
        )
    asked = run_question(config_file, model, cluster, **settings)
    seen = _dry_run(asked, rank, steps, on_progress) if dry else None
    result = probe(
        asked.config,
        asked.description,
        cluster=cluster,
        workload=asked.workload,
        device=device,  # type: ignore[arg-type]
        solo=solo,
        rank=rank,
        checkpoint=_checkpoint(model),
        micro_batch_size=asked.micro_batch_size,
        gradient_accumulation_steps=asked.gradient_accumulation_steps,
        gradient_checkpointing=asked.gradient_checkpointing,
        steps=steps,
        input_shape=asked.input_shape,
        memory_limit_bytes=limit,
        stall_s=stall_s,
        timeout_s=timeout_s,
        on_progress=lambda phase: on_progress(f"probe: {phase} ..."),
    )
    keep_probe(
        result,
        model=asked.shape,
        name=model,
        config=asked.config,
        workload=asked.workload,
        micro_batch_size=asked.micro_batch_size,
        gradient_accumulation_steps=asked.gradient_accumulation_steps,
        gradient_checkpointing=asked.gradient_checkpointing,
        memory_limit_bytes=limit,
    )
    return probe_answer(result, asked, seen)


def _dry_run(asked: RunQuestion, rank: int, steps: int, on_progress: Callable[[str], None]) -> DryRunResult:
    on_progress("dry run ...")
    return dry_run(
        asked.config,
        asked.description,
        cluster=asked.cluster,
        rank=rank,
        workload=asked.workload,
        micro_batch_size=asked.micro_batch_size,
        gradient_accumulation_steps=asked.gradient_accumulation_steps,
        gradient_checkpointing=asked.gradient_checkpointing,
        iterations=steps,
        input_shape=asked.input_shape,
    )


def _checkpoint(model: str) -> str | None:
    """The folder, where the model was named by one that holds safetensors."""
    folder = Path(model)
    return str(folder.resolve()) if folder.is_dir() and any(folder.glob("*.safetensors")) else None
