"""From what a user says on the command line to a dry run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..estimators.cluster import Cluster
from ..estimators.errors import WorkloadError
from ..estimators.families import shape_from_config
from ..estimators.workload import Workload
from ..probes.dry_run import dry_run
from .advise import resolve_precision, sequence_length
from .cluster_spec import parse_cluster
from .dry_run_answer import DryRunAnswer, dry_run_answer, read_ds_config
from .model_source import load_config


def ask_dry_run(config_file: Path, model: str, *, gpus: str, ram: str | None, seq_len: int | None,
                micro_batch: int | None, accumulation: int | None, method: str, lora_rank: int,
                lora_targets: str | None, precision: str, gradient_checkpointing: bool, attention: str, framework: str,
                input_shape: str | None, rank: int, iterations: int, expandable_segments: bool,
                offline: bool) -> DryRunAnswer:
    """Run it and put the closed form beside it. Raises DsAdviseError for what cannot be run."""
    config = read_ds_config(config_file)
    cluster = parse_cluster(gpus, ram=ram)
    if rank >= cluster.world_size:
        raise WorkloadError(f"there is no rank {rank} among {cluster.world_size} GPUs", why="ranks count from 0",
                            fix=f"pass --rank {cluster.world_size - 1} or less")
    own_module = ".py:" in model
    description: dict[str, Any] | str = model if own_module else load_config(model, offline=offline)
    shape = None if isinstance(description, str) else shape_from_config(description, name=model)
    length = seq_len or (2048 if shape is None else sequence_length(shape, None))
    workload = Workload(
        method=method, lora_rank=lora_rank, seq_len=length,  # type: ignore[arg-type]  # the command line's choices
        lora_targets=tuple(name.strip() for name in lora_targets.split(",")) if lora_targets else None,
        precision=_precision(config, precision, cluster), attention=attention,  # type: ignore[arg-type]
        framework=framework, optimizer=_optimizer(config))  # type: ignore[arg-type]
    result = dry_run(
        config, description, cluster=cluster, rank=rank, workload=workload, micro_batch_size=micro_batch or 1,
        gradient_accumulation_steps=accumulation or 1,
        gradient_checkpointing=gradient_checkpointing, iterations=iterations, expandable_segments=expandable_segments,
        input_shape=_shape(input_shape))
    return dry_run_answer(result, cluster, shape, workload, gradient_checkpointing=gradient_checkpointing)


def _precision(config: dict[str, Any], wanted: str, cluster: Cluster) -> Any:
    """What the configuration says, where it says it; else what fills its `auto`."""
    for name in ("bf16", "fp16"):
        block = config.get(name)
        if isinstance(block, dict) and block.get("enabled") is True:
            return name
    if not any(isinstance(config.get(name), dict) for name in ("bf16", "fp16")):
        return "fp32"
    return resolve_precision(wanted, cluster.gpu)


def _optimizer(config: dict[str, Any]) -> str:
    block = config.get("optimizer")
    name = block.get("type") if isinstance(block, dict) else None
    return str(name).lower() if name else "adamw"


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and int(part) > 0 for part in parts):
        raise WorkloadError(f"--input-shape {text[:40]!r} is no shape", why="it is the size of one sample, by dimension",
                            fix="write it as 3,32,32")
    return tuple(int(part) for part in parts)
