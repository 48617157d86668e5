"""From what a user says besides the file to what lint knows: GPUs, model and workload."""

from __future__ import annotations

from typing import Any

from ...estimators.hardware.cluster import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.workload import Framework, Precision, Workload
from ..advise import resolve_precision, sequence_length
from .cluster_spec import parse_cluster
from .model_source import load_model


def lint_settings(
    config: dict[str, Any],
    *,
    framework: Framework | None,
    model: str | None,
    gpus: str | None,
    ram: str | None,
    seq_len: int | None,
    offline: bool,
) -> dict[str, Any]:
    """Keyword arguments of `lint`. Raises DsAdviseError for GPUs, a model or a length that cannot be."""
    cluster = parse_cluster(gpus, ram=ram) if gpus is not None else None
    shape = load_model(model, offline=offline) if model is not None else None
    workload = _workload(config, framework or "hf", shape, cluster, seq_len) if shape is not None else None
    return {"framework": framework, "cluster": cluster, "model": shape, "workload": workload}


def _workload(
    config: dict[str, Any], framework: Framework, model: ModelShape, cluster: Cluster | None, seq_len: int | None
) -> Workload:
    """Full training as the file has it; DeepSpeed's names of optimizers are the estimators' too, as far as they know
    them."""
    block = config.get("optimizer")
    name = str(block.get("type", "")).lower() if isinstance(block, dict) else ""
    return Workload(
        seq_len=sequence_length(model, seq_len),
        precision=_precision(config, cluster),
        framework=framework,
        optimizer=name if name in OPTIMIZERS else "adamw",
    )


def _precision(config: dict[str, Any], cluster: Cluster | None) -> Precision:
    blocks = {name: config.get(name) for name in ("bf16", "fp16")}
    for name, block in blocks.items():
        if isinstance(block, dict) and block.get("enabled") is True:
            return "bf16" if name == "bf16" else "fp16"
    filled = any(isinstance(block, dict) and block.get("enabled") == "auto" for block in blocks.values())
    if not filled:
        return "fp32"
    return resolve_precision("auto", cluster.gpu) if cluster is not None else "bf16"
