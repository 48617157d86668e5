"""From a configuration file, a model and options to a `Run`, real or as a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from ...ds_configs.record import without_record
from ...estimators.errors import ModelConfigError, check_kind
from ...estimators.hardware import Cluster
from ...estimators.plan import Plan
from ...probes.run import Run
from ...validate.lint.config_file import read_config_file
from .cluster import parse_cluster
from .model_source import is_user_module, load_config, model_shape, parse_inputs
from .options import QuestionOptions, fill_defaults
from .python_words import python_words
from .question import Question
from .workload import apply_model_options, configured_workload


def read_ds_config(path: Path) -> dict[str, Any]:
    """The configuration in a file, which may have comments, parsed like DeepSpeed does, without the record of its
    question. Raises ConfigFileError if it cannot be read or is not an object."""
    return without_record(read_config_file(path).document.value)


def read_run(
    config: Path | str | Mapping[str, Any],
    model: str,
    cluster: Cluster | str,
    *,
    accumulation: int | None = None,
    **options: Unpack[QuestionOptions],
) -> Run:
    """The run of a configuration, or of the file that holds it.

    model: as for `advise`, or "FILE.py:FACTORY", a function of the user that returns a module.
    cluster: the machines, or their description: "8xH100", "2x8xA100-80GB".
    accumulation: replaces an `auto` or absent gradient_accumulation_steps; by default 1, or what train_batch_size
        implies.
    options: replace what is `auto` or absent in the configuration: `micro_batch` (by default as `accumulation`),
        precision, optimizer; and the training that it does not describe, such as the method and the sequence length.
        Gradient checkpointing is on by default.

    Raises DsAdviseError for a configuration that cannot be read, and for a model or option that cannot be used.
    """
    check_kind(config, (Mapping, str, Path), "config", "pass a dictionary, or the path of a file")
    check_kind(model, (str, Path), "model", 'pass a name such as "Qwen2.5-14B", or a folder')
    check_kind(cluster, (Cluster, str), "cluster", 'pass a description such as "8xH100"')
    model = str(model)
    if isinstance(cluster, str):
        with python_words():
            cluster = parse_cluster(cluster)
    if not isinstance(config, Mapping):
        config = read_ds_config(Path(config))
    given, options = options, fill_defaults(options)
    description = model if is_user_module(model) else load_config(model, offline=options["offline"])
    shape = None
    if not isinstance(description, str):
        try:
            shape = apply_model_options(model_shape(description, name=model), options)
        except ModelConfigError:
            shape = None  # no closed forms; the model can run if transformers can build it
    checkpointing = options["gradient_checkpointing"]
    return Run(
        config=config,
        model=description,
        model_name=model,
        shape=shape,
        cluster=cluster,
        workload=configured_workload(config, given, shape, cluster.gpu),
        micro_batch_size=int(options["micro_batch"] or 0) or _default(config, "train_micro_batch_size_per_gpu"),
        gradient_accumulation_steps=accumulation or _default(config, "gradient_accumulation_steps"),
        gradient_checkpointing=checkpointing != "off",
        cpu_checkpointing=checkpointing == "offload",
        inputs=parse_inputs(options["input_shape"], options["input_dtype"]),
    )


def _default(config: Mapping[str, Any], key: str) -> int | None:
    """1, or None if the file has a number, or DeepSpeed derives the absent key from its train_batch_size."""
    # An `auto` is filled with 1, an absent key by DeepSpeed: only then does train_batch_size decide.
    derived = config.get(key) is None and isinstance(config.get("train_batch_size"), int)
    return None if derived or config.get(key, "auto") not in ("auto", None) else 1


def build_run(question: Question, plan: Plan, *, offline: bool = False) -> Run:
    """The run of a plan for a question. Raises DsAdviseError if the model's config.json cannot be read."""
    module = question.model.module
    if module is not None and not module.factory:
        raise ModelConfigError(
            f"{question.model.name} is an object of this process",
            why="a dry run and a probe build it in their own process",
            fix="write a function that returns it to a file, and pass it: train.py:build_model",
        )
    model = load_config(question.model.name, offline=offline) if module is None else module.factory
    run = Run.from_plan(plan, question.model, question.workload, question.cluster, description=model)
    return run if module is None else replace(run, inputs=module.inputs)
