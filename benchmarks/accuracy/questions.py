"""The question that a user asks to get the prediction of a published run, and the answer through the public call.

    ds-advise explain MODEL --gpus SPEC --strategy STRATEGY ... --json
    ds_advise.estimate(MODEL, gpus=SPEC, strategy=STRATEGY, ...)

Every row is first read as what the estimators take. `question_of` says it in public options, and `is_public` asks them
back: where the model, the workload, the machines and the plan come out as they went in, so do all figures. A row for
which they do not is in no statistic.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ds_advise.advisor.advise import build_question, strategy_candidate
from ds_advise.advisor.question.cluster import machine_arguments
from ds_advise.advisor.question.model_source import load_model
from ds_advise.advisor.question.rollouts import rollout_choices
from ds_advise.ds_configs.presets import plan_for
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.objectives import OBJECTIVES, framework_loss
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.rollouts import Rollouts
from ds_advise.estimators.workload import Software, Workload

DATA = Path(__file__).parents[1] / "data"
MODELS = DATA / "models"
"""Configurations of models that the catalogue lacks."""

FILE = DATA / "questions.csv"
"""What `python -m benchmarks.accuracy --write` wrote: every row's question and prediction."""


class Asked(NamedTuple):
    """What the estimators take, with the words that the machines are called by."""

    model_name: str
    gpus: str
    model: ModelShape
    workload: Workload
    cluster: Cluster
    plan: Plan


class Row(Protocol):
    """A published run of either half."""

    @property
    def asked(self) -> Asked: ...


def model_source(name: str) -> str:
    """What the model is read from: its file in `MODELS`, or the catalogue under that name."""
    file = MODELS / f"{name.rpartition('/')[2].translate({32: '-', 40: None, 41: None})}.json"
    return str(file) if file.exists() else name


def model_argument(name: str) -> str:
    """What `--help` calls MODEL, from the root of the repository."""
    source = model_source(name)
    return name if source == name else f"benchmarks/data/models/{Path(source).name}"


@cache
def model_of(name: str) -> ModelShape:
    """The model that the argument means, under the name that the source gives it."""
    source = model_source(name)
    model = load_model(source, offline=True)
    return model if source == name else replace(model, name=name)


def question_of(asked: Asked) -> dict[str, Any]:
    """The keyword arguments of `ds_advise.estimate`, but the model."""
    workload, plan, cluster = asked.workload, asked.plan, asked.cluster
    micro, steps = plan.micro_batch_size, plan.gradient_accumulation_steps
    question: dict[str, Any] = {"gpus": asked.gpus, "strategy": plan.strategy}
    question |= {name: text for name, text in machine_arguments(cluster).items() if name != "gpus"}
    if cluster.threads_per_rank is not None:
        question["threads"] = cluster.threads_per_rank
    question |= {"micro_batch": micro}
    if steps > 1:
        question["global_batch"] = micro * steps * cluster.world_size
    elif workload.rollouts is None:
        question["global_batch"] = "no-accumulation"  # one micro batch per GPU
    question["gradient_checkpointing"] = "on" if plan.gradient_checkpointing else "off"
    defaults = Workload()
    for name in (
        "method",
        "quantization",
        "lora_rank",
        "lora_dropout",
        "seq_len",
        "precision",
        "optimizer",
        "attention",
    ):
        value = getattr(workload, name)
        if value != getattr(defaults, name) or name in ("seq_len", "precision"):
            question[name] = value
    for name in ("objective", "mlp", "kernels", "document_len", "framework"):
        if getattr(workload, name) != getattr(defaults, name):
            question[name] = getattr(workload, name)
    if workload.precompute_ref_log_probs:
        question["precompute_ref_log_probs"] = True
    question |= _rollout_options(workload)
    if workload.loss != framework_loss(workload.objective, workload.framework, workload.software):
        question["loss"] = workload.loss
    if workload.lora_targets is not None:
        question["lora_targets"] = ",".join(workload.lora_targets)
    if workload.modules_to_save:
        question["modules_to_save"] = ",".join(workload.modules_to_save)
    software = _differences(workload.software, Software())
    if software:
        question["software"] = ",".join(software).replace("_", "-")
    settings = _differences(plan, _preset(asked))
    if settings:
        question["settings"] = ",".join(settings)
    return question


def _rollout_options(workload: Workload) -> dict[str, Any]:
    """What differs from the objective's defaults, and what would be left to the search."""
    rollouts, usual = workload.rollouts, OBJECTIVES[workload.objective].rollouts
    if rollouts is None or usual is None:
        return {}
    found: dict[str, Any] = {"rollout": rollouts.rollout}
    if rollouts.rollout != "generate":
        found["vllm_tensor_parallel_size"] = rollouts.vllm_tensor_parallel_size
    if rollouts.rollout == "vllm-colocate":
        found["vllm_enable_sleep_mode"] = "on" if rollouts.vllm_enable_sleep_mode else "off"
    names = (field.name for field in fields(Rollouts) if field.name not in (*found, "server_has_node"))
    differing = {name: getattr(rollouts, name) for name in names if getattr(rollouts, name) != getattr(usual, name)}
    return found | {name: value for name, value in differing.items() if name != "scores_policy"}


def _preset(asked: Asked) -> Plan:
    plan = asked.plan
    return plan_for(
        plan.strategy,
        asked.model,
        asked.workload,
        asked.cluster,
        micro_batch_size=plan.micro_batch_size,
        gradient_accumulation_steps=plan.gradient_accumulation_steps,
        gradient_checkpointing=plan.gradient_checkpointing,
    )


def _differences(one: Plan | Software, other: Plan | Software) -> list[str]:
    """`name=value` for every field that differs."""
    names = (field.name for field in fields(one))
    found = ((name, getattr(one, name)) for name in names if getattr(one, name) != getattr(other, name))
    return [f"{name}={_word(value)}" for name, value in found]


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)


def command_of(asked: Asked) -> str:
    """The same as a command line, from the root of the repository."""
    words = ["ds-advise", "explain", model_argument(asked.model_name)]
    for name, value in question_of(asked).items():
        flag = f"--{'set' if name == 'settings' else name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return shlex.join([*words, "--offline", "--json"])


def is_public(asked: Asked) -> bool:
    """Whether the public options mean exactly what the row was read as."""
    question = question_of(asked)
    strategy, settings = question.pop("strategy"), question.pop("settings", None)
    heard = rollout_choices(build_question(asked.model, **question))[0]
    if (heard.workload, heard.cluster) != (_as_asked(asked), asked.cluster):
        return False
    return strategy_candidate(heard, strategy, settings).plan == asked.plan


def _as_asked(asked: Asked) -> Workload:
    """The workload with the global batch, which the command says in place of accumulation steps."""
    plan = asked.plan
    steps, samples = plan.gradient_accumulation_steps, plan.micro_batch_size * plan.gradient_accumulation_steps
    return replace(asked.workload, global_batch_size=samples * asked.cluster.world_size if steps > 1 else None)


def csv_text(rows: Iterable[Mapping[str, str]]) -> str:
    """The text of `FILE`, made again."""
    text = io.StringIO()
    names = ("half", "source", "row", "quantity", "measured", "predicted", "question")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
