"""`estimate()`: memory and time of one plan, named by its rung and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

from ..ds_configs.presets import plan_for
from ..estimators.errors import WorkloadError
from ..estimators.estimate import Estimate
from ..estimators.memory.plan_memory import unsupported
from ..estimators.models.model_shape import ModelShape
from ..estimators.plan import RUNGS, PlainPyTorch, Plan, Rung
from .ask import ask
from .question.question import Question
from .recommend.candidate import Candidate
from .recommend.search import best_of_rung, predict

PLANS: tuple[str, ...] = (*RUNGS, *get_args(PlainPyTorch))
"""What `rung` names: the eight rungs, and plain PyTorch beside them."""

_FIXED = ("zero_stage", "sharding", "micro_batch_size", "gradient_accumulation_steps", "gradient_checkpointing")
"""Fields of a plan that the rung and the question decide."""

_WORDS = {"yes": True, "true": True, "no": False, "false": False}


def estimate(
    model: str | ModelShape, *, rung: str, settings: str | Mapping[str, Any] | None = None, **question: Any
) -> Estimate:
    """Memory and time of one plan, whether it fits or not.

    rung:     one of the eight rungs; "fsdp" or "torch" for plain PyTorch with FSDP, or without.
    settings: fields of `Plan` to set apart from the rung's presets: {"reduce_bucket_size": 200_000_000}, or the same as
        text, "reduce_bucket_size=2e8,overlap_comm=no".
    question: the other arguments of `advise`. With `micro_batch`, `global_batch` and `gradient_checkpointing` there is
        one shape; else the best shape of the rung is taken, as in the table of the advice.

    Raises `DsAdviseError` for a question that cannot be answered, and for a plan that cannot run at all.
    """
    return plan_of(ask(model, **question), rung, settings).estimate


def plan_of(question: Question, rung: str, settings: str | Mapping[str, Any] | None = None) -> Candidate:
    """The best shape of a rung, or of plain PyTorch, with these settings; the same errors as `estimate`."""
    model, workload, cluster = question.model, question.workload, question.cluster
    best = best_of_rung([predict(model, workload, cluster, plan) for plan in plans_of(question, rung, settings)])
    assert best is not None, "a question has at least one shape"
    return best


def plans_of(question: Question, rung: str, settings: str | Mapping[str, Any] | None = None) -> list[Plan]:
    """The plan in every shape that the question leaves open; the same errors as `estimate`."""
    if rung not in PLANS:
        raise WorkloadError(f"unknown rung {rung[:40]!r}", fix=f"pass one of {', '.join(PLANS)}")
    changed = _settings(settings)
    plans = [replace(plan, **changed) for plan in _shapes(question, rung)]  # type: ignore[arg-type]  # checked above
    for plan in plans:
        obstacle = unsupported(question.model, question.workload, plan, question.cluster)
        if obstacle is not None:
            raise WorkloadError(f"{rung} cannot run here", why=obstacle, fix="pass another --rung")
    return plans


def plain_pytorch(question: Question) -> Candidate:
    """The best shape of plain PyTorch: FSDP on several GPUs, torch's optimizer alone on one."""
    return plan_of(question, "fsdp" if question.cluster.world_size > 1 else "torch")


def _shapes(question: Question, rung: Rung | PlainPyTorch) -> list[Plan]:
    """The plan in every shape that the question leaves open."""
    choices = {"auto": (False, True), "on": (True,), "off": (False,)}[question.gradient_checkpointing]
    return [
        plan_for(
            rung,
            question.model,
            question.workload,
            question.cluster,
            micro_batch_size=micro,
            gradient_accumulation_steps=accumulation,
            gradient_checkpointing=checkpointing,
        )
        for checkpointing in choices
        for micro, accumulation in question.batch_shapes()
    ]


def _settings(said: str | Mapping[str, Any] | None) -> dict[str, Any]:
    if said is None:
        return {}
    pairs = said if isinstance(said, Mapping) else _pairs(said)
    types, known = get_type_hints(Plan), [field.name for field in fields(Plan) if field.name not in _FIXED]
    for name in pairs:
        if name not in known:
            raise WorkloadError(f"a plan has no setting {name[:40]!r}", fix=f"set one of {', '.join(known)}")
    return {name: _value(name, value, types[name]) for name, value in pairs.items()}


def _pairs(text: str) -> dict[str, str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    return {name.strip(): value.strip() for name, _, value in (word.partition("=") for word in words)}


def _value(name: str, value: Any, kind: Any) -> Any:
    """The value of a setting in its type: a count (`200000000`, `2e8`), yes or no, or one of the words it knows."""
    if kind is bool:
        found = value if isinstance(value, bool) else _WORDS.get(str(value).lower())
        if found is None:
            raise WorkloadError(f"{name} is {str(value)[:40]!r}", fix="say yes or no")
        return found
    if kind is int:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = -1.0
        if not (0 <= number < 2**63 and number.is_integer()):
            raise WorkloadError(f"{name} is {str(value)[:40]!r}", fix="pass a whole number such as 200000000 or 2e8")
        return int(number)
    if value not in get_args(kind):
        raise WorkloadError(f"{name} is {str(value)[:40]!r}", fix=f"pass one of {', '.join(get_args(kind))}")
    return value
