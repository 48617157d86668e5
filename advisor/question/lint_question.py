"""From what a user says besides the file to what lint knows: GPUs, model and workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...estimators.optimizers import OPTIMIZERS
from ...estimators.workload import Framework
from .cluster_spec import parse_cluster
from .model_source import load_model
from .workload import WorkloadOptions


def lint_settings(
    config: Mapping[str, Any],
    *,
    framework: Framework | None,
    model: str | None,
    gpus: str | None,
    ram: str | None,
    seq_len: int | None,
    offline: bool,
) -> dict[str, Any]:
    """Keyword arguments of `lint`.

    The workload is None without a model, and for an optimizer whose states are not known: then memory and speed are not
    judged.

    Raises DsAdviseError for GPUs, a model or a length that cannot be.
    """
    cluster = parse_cluster(gpus, ram=ram) if gpus is not None else None
    shape = load_model(model, offline=offline) if model is not None else None
    workload = None
    if shape is not None:
        options = WorkloadOptions(seq_len=seq_len, framework=framework or "hf")
        workload = options.workload_of(config, shape, cluster.gpu if cluster is not None else None)
        if workload.optimizer not in OPTIMIZERS:
            workload = None
    return {"framework": framework, "cluster": cluster, "model": shape, "workload": workload}
