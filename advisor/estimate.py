"""`estimate()`: memory and time of one plan, named by its rung and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack, cast, get_args

from ..estimators.errors import WorkloadError
from ..estimators.estimate import Estimate
from ..estimators.models.model_shape import ModelShape
from ..estimators.plan import RUNGS, PlainPyTorch, Plan, Rung
from .ask import ask
from .question.options import QuestionOptions, documented
from .question.question import Question
from .question.workload import settings_of
from .search.candidate import LEAST, Candidate
from .search.choice import best_of_rung
from .search.search import candidates_of

PLANS: tuple[str, ...] = (*RUNGS, *get_args(PlainPyTorch))
"""Values of `rung`: the eight rungs, and plain PyTorch."""

_FIXED = ("zero_stage", "sharding", "micro_batch_size", "gradient_accumulation_steps", "gradient_checkpointing")
"""Fields of a plan that follow from the rung and the question."""


@documented
def estimate(
    model: str | ModelShape,
    *,
    rung: str,
    settings: str | Mapping[str, Any] | None = None,
    **options: Unpack[QuestionOptions],
) -> Estimate:
    """Memory and time of one plan, whether it fits or not.

    With `micro_batch` and `gradient_checkpointing` the plan has no sequence parallelism and no hpZ, unless
    `sequence_parallel_size` or the settings ask for them. Otherwise it is the best plan of the rung, as in the advice.

    model: as for `advise`.
    rung: one of the eight rungs, or "fsdp" or "torch" for plain PyTorch with or without FSDP.
    settings: fields of `Plan` that replace the rung's presets: {"reduce_bucket_size": 200_000_000}, or the same as
        text, "reduce_bucket_size=2e8,overlap_comm=no".

    Raises `DsAdviseError` for a question that cannot be answered, and for a plan that cannot run.
    """
    return plan_of(ask(model, **options), rung, settings).estimate


def plan_of(question: Question, rung: str, settings: str | Mapping[str, Any] | None = None) -> Candidate:
    """The best shape of a rung, or of plain PyTorch, with these settings; the same errors as `estimate`."""
    if rung not in PLANS:
        raise WorkloadError(f"unknown rung {rung[:40]!r}", fix=f"pass one of {', '.join(PLANS)}")
    named = cast("Rung | PlainPyTorch", rung)
    chosen = settings_of(Plan, settings or {}, option="--set", without=_FIXED)
    if question.micro_batch_size is not None and question.gradient_checkpointing != "auto":
        question = replace(question, sequence_parallel_size=question.sequence_parallel_size or 1)
        chosen = {"zero_hpz_partition_size": 1} | chosen
    candidates, obstacle = candidates_of(named, question, settings=chosen)
    best = best_of_rung(candidates, LEAST[question.risk])
    if best is None:
        raise WorkloadError(f"{rung} cannot run here", why=obstacle, fix="pass another --rung")
    return best


def plain_pytorch(question: Question) -> Candidate:
    """The best shape of plain PyTorch: FSDP on several GPUs, torch's optimizer alone on one."""
    return plan_of(question, "fsdp" if question.cluster.world_size > 1 else "torch")
