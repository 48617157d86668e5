"""From what a user says of a configuration that is to be run, dry or for real, to typed values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...estimators.errors import ModelConfigError, WorkloadError
from ...estimators.hardware.cluster import Cluster
from ...estimators.models.families import shape_from_config
from ...estimators.models.model_shape import ModelShape
from ...estimators.workload import Workload
from ..advise import dropout_probability, resolve_precision, sequence_length
from .ds_config_file import read_ds_config
from .model_source import load_config

_MOST_DIGITS = 9
"""Of a dimension; Python refuses to read numbers of thousands of digits."""


@dataclass(frozen=True, kw_only=True)
class RunQuestion:
    """A configuration, a model and a cluster.

    description: a transformers configuration, or "FILE.py:FACTORY". shape: None for a module of the user's own.
    """

    config: dict[str, Any]
    description: dict[str, Any] | str
    shape: ModelShape | None
    cluster: Cluster
    workload: Workload
    micro_batch_size: int
    gradient_accumulation_steps: int
    gradient_checkpointing: bool
    input_shape: tuple[int, ...] | None


def run_question(
    config_file: Path,
    model: str,
    cluster: Cluster,
    *,
    seq_len: int | None,
    micro_batch: int | None,
    accumulation: int | None,
    method: str,
    lora_rank: int,
    lora_dropout: float,
    lora_targets: str | None,
    precision: str,
    gradient_checkpointing: bool,
    attention: str,
    framework: str,
    input_shape: str | None,
    offline: bool,
) -> RunQuestion:
    """Read the configuration and find the model. Raises DsAdviseError for what cannot be read or does not exist."""
    config = read_ds_config(config_file)
    own_module = ".py:" in model
    description: dict[str, Any] | str = model if own_module else load_config(model, offline=offline)
    shape = None if isinstance(description, str) else _shape_if_known(description, model)
    length = seq_len or (2048 if shape is None else sequence_length(shape, None))
    workload = Workload(
        method=method,
        lora_rank=lora_rank,
        seq_len=length,  # type: ignore[arg-type]  # the command line's choices
        lora_dropout=dropout_probability(lora_dropout, method),
        lora_targets=tuple(name.strip() for name in lora_targets.split(",")) if lora_targets else None,
        precision=precision_of(config, precision, cluster),
        attention=attention,  # type: ignore[arg-type]
        framework=framework,
        optimizer=optimizer_of(config),
    )  # type: ignore[arg-type]
    return RunQuestion(
        config=config,
        description=description,
        shape=shape,
        cluster=cluster,
        workload=workload,
        micro_batch_size=micro_batch or 1,
        gradient_accumulation_steps=accumulation or 1,
        gradient_checkpointing=gradient_checkpointing,
        input_shape=sample_shape(input_shape),
    )


def _shape_if_known(config: dict[str, Any], name: str) -> ModelShape | None:
    """None for a model that the closed forms do not know: it is run all the same, if transformers can build it."""
    try:
        return shape_from_config(config, name=name)
    except ModelConfigError:
        return None


def precision_of(config: dict[str, Any], wanted: str, cluster: Cluster) -> Any:
    """What the configuration says, where it says it; else what fills its `auto`."""
    for name in ("bf16", "fp16"):
        block = config.get(name)
        if isinstance(block, dict) and block.get("enabled") is True:
            return name
    if not any(isinstance(config.get(name), dict) for name in ("bf16", "fp16")):
        return "fp32"
    return resolve_precision(wanted, cluster.gpu)


def optimizer_of(config: dict[str, Any]) -> str:
    """The optimizer's name in lower case; `adamw` for a configuration that leaves it to the training script."""
    block = config.get("optimizer")
    name = block.get("type") if isinstance(block, dict) else None
    return str(name).lower() if name else "adamw"


def sample_shape(text: str | None) -> tuple[int, ...] | None:
    """`3,32,32` as numbers. Raises WorkloadError for anything else."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS and int(part) > 0 for part in parts):
        raise WorkloadError(
            f"--input-shape {text[:40]!r} is no shape",
            why="it is the size of one sample, by dimension",
            fix="write it as 3,32,32",
        )
    return tuple(int(part) for part in parts)
