"""A ds_config.json that a user names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ...estimators.errors import ModelConfigError, WorkloadError
from ...estimators.hardware.cluster import Cluster
from ...estimators.models.families import shape_from_config
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...probes.run import Run
from ...validate.lint.config_file import read_config_file
from .model_source import load_config
from .question import Question
from .workload import WorkloadOptions


def read_ds_config(path: Path) -> dict[str, Any]:
    """The configuration, which may have comments, as DeepSpeed reads it. Raises ConfigFileError where it cannot be read
    or holds no object."""
    value: dict[str, Any] = read_config_file(path).document.root.value
    return value


_MOST_DIGITS = 9
"""Digits of a dimension; Python refuses to read numbers of thousands of digits."""


def read_run(config_file: Path | str, model: str, cluster: Cluster, **settings: Any) -> Run:
    """Read the configuration and find the model; the rest as for `configured_run`, whose errors it raises too."""
    return configured_run(read_ds_config(Path(config_file)), model, cluster, **settings)


def configured_run(
    config: Mapping[str, Any],
    model: str,
    cluster: Cluster,
    *,
    micro_batch: int | None = None,
    accumulation: int | None = None,
    gradient_checkpointing: bool | Literal["offload"] = True,
    input_shape: str | None = None,
    offline: bool = False,
    **workload: Any,
) -> Run:
    """The run of a configuration.

    model: as for the advice, or "FILE.py:FACTORY", a function of the user's that returns a module.
    micro_batch, accumulation: fill `auto` or absent batch sizes; by default 1.
    workload: of `WorkloadOptions`: method, sequence length and what fills `auto`; the file's own precision and
        optimizer count more.
    input_shape: one sample of a FACTORY's module, such as "3,32,32".

    Raises DsAdviseError for what cannot be read or does not exist.
    """
    description: dict[str, Any] | str = model if ".py:" in model else load_config(model, offline=offline)
    shape = None if isinstance(description, str) else _shape_if_known(description, model)
    return Run(
        config=config,
        model=description,
        model_name=model,
        shape=shape,
        cluster=cluster,
        workload=WorkloadOptions(**workload).workload_of(config, shape, cluster.gpu),
        micro_batch_size=micro_batch or 1,
        gradient_accumulation_steps=accumulation or 1,
        gradient_checkpointing=bool(gradient_checkpointing),
        cpu_checkpointing=gradient_checkpointing == "offload",
        input_shape=sample_shape(input_shape),
    )


def run_of(question: Question, plan: Plan, *, offline: bool = False) -> Run:
    """The run of a plan that answers a question.

    Raises DsAdviseError where the model's config.json is not to be had.
    """
    description = load_config(question.model.name, offline=offline)
    return Run.of_plan(plan, question.model, question.workload, question.cluster, description=description)


def _shape_if_known(config: dict[str, Any], name: str) -> ModelShape | None:
    """None for a model that the closed forms do not know: it is run all the same, if transformers can build it."""
    try:
        return shape_from_config(config, name=name)
    except ModelConfigError:
        return None


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
