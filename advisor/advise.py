"""`advise()`: from the options of a question to the recommendation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Unpack

from ..estimators.models.model_shape import ModelShape
from ..estimators.time.step_time import assumptions
from ..probes.store_path import anything_kept
from .answer.reasons import doubts, reasons
from .answer.recommendation import Recommendation, closest
from .answer.what_if import changes
from .ask import ask
from .estimate import plain_pytorch
from .gc_pause import gc_paused
from .question.cluster import cluster_here, memory_limit_bytes
from .question.options import QuestionOptions, documented
from .question.question import Question
from .search.choice import fastest_that_fits, worth_trying_first
from .search.search import predict_all


@documented
def advise(
    model: str | ModelShape,
    *,
    sharding: Literal["zero", "fsdp"] = "zero",
    deepspeed_estimate: bool = True,
    say: Callable[[str], None] = lambda _: None,
    **options: Unpack[QuestionOptions],
) -> Recommendation:
    """The fastest DeepSpeed configuration that fits, with memory and time of every rung.

    model: a catalogue name in any spelling, a folder or `config.json`, a hub id, or a `ModelShape`.
    sharding: "fsdp" also predicts plain PyTorch, for comparison (`Recommendation.pytorch_baseline`).
    deepspeed_estimate: also call DeepSpeed's own estimator (imports torch and deepspeed, which takes seconds).
    say: receives progress of counting a large file of `data`.

    Raises `DsAdviseError` for a question that cannot be answered. If no plan fits, `recommended` is None.
    """
    question = ask(model, say=say, **options)
    recommendation = answer(question)
    if sharding == "fsdp":
        recommendation = replace(recommendation, pytorch_baseline=plain_pytorch(question))
    return with_deepspeed_estimate(recommendation) if deepspeed_estimate else recommendation


@gc_paused()
def answer(question: Question) -> Recommendation:
    """The recommendation for a question, after past probes if it is about this machine."""
    recommendation = predicted(question)
    recommendation = replace(
        recommendation, changes=changes(question, recommendation.ladder, recommendation.recommended)
    )
    if question.cluster.is_this_machine and anything_kept():
        # Imported here: few questions are about this machine.
        from .verification.verify import with_past_probes

        recommendation = with_past_probes(recommendation)
    return recommendation


def predicted(question: Question) -> Recommendation:
    """The recommendation by prediction alone, without the changes, which take most of an answer's time."""
    ladder, candidates = predict_all(question)
    recommended = fastest_that_fits(ladder)
    return Recommendation(
        question=question,
        candidates=candidates,
        ladder=ladder,
        recommended=recommended,
        try_first=worth_trying_first(candidates, recommended, question.risk),
        reasons=reasons(question, ladder, recommended, candidates),
        doubts=doubts(question.cluster, ladder, recommended),
        assumptions=question.model.assumptions
        + assumptions(question.cluster, recommended.estimate.time if recommended else None),
    )


def answer_with_proofs(
    model: str,
    *,
    sharding: Literal["zero", "fsdp"],
    deepspeed_estimate: bool,
    verify: bool,
    probe: bool,
    budget: str,
    say: Callable[[str], None],
    **options: Unpack[QuestionOptions],
) -> Recommendation:
    """The recommendation after the dry runs (`verify`) and probes that the command line asks for."""
    if probe:
        cluster_here(options)  # raises ClusterError before anything is predicted
    recommendation = advise(model, sharding=sharding, deepspeed_estimate=False, say=say, **options)
    # Imported where needed: an answer without proofs must not wait for these.
    if verify:
        from .verification.verify import verify as verified

        recommendation = verified(
            recommendation,
            offline=options["offline"],
            on_start=lambda candidate: say(f"dry run of {candidate.rung} ..."),
        )
    if probe:
        from .verification.verify import settle

        recommendation = settle(
            recommendation,
            device=options["device"],
            memory_limit_bytes=memory_limit_bytes(options),
            budget=budget,
            offline=options["offline"],
            say=say,
        )
    return with_deepspeed_estimate(recommendation) if deepspeed_estimate else recommendation


def with_deepspeed_estimate(recommendation: Recommendation) -> Recommendation:
    """The answer with DeepSpeed's own estimate for the recommended plan, or for the one closest to fitting."""
    # Imported here: it loads torch and deepspeed.
    from ..validate.deepspeed_estimate import deepspeed_estimate

    question, shown = recommendation.question, recommendation.recommended or closest(recommendation.ladder)
    if shown is None:
        return recommendation
    return replace(recommendation, deepspeed_estimate=deepspeed_estimate(question.model, question.cluster, shown.plan))
