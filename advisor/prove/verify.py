"""`--verify`: dry-run the recommendation, and the next best where it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...ds_configs.emit import ds_config
from ...probes.dry_run import dry_run
from ..question.model_source import load_config
from ..recommend.recommendation import Candidate, Recommendation
from .dry_run_answer import DryRunAnswer, dry_run_answer


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A candidate and what the dry run of its configuration says."""

    candidate: Candidate
    dry_run: DryRunAnswer


def verify(
    answer: Recommendation, *, offline: bool = False, on_start: Callable[[Candidate], None] = lambda _candidate: None
) -> Recommendation:
    """The recommendation after dry runs: the fastest fitting plan whose dry run fits too, with all runs that were made.

    on_start: called before each dry run, which takes from ten seconds to a minute.

    Raises DryRunError where a run could not be done, DsAdviseError where the model's config.json is not to be had.
    """
    if answer.recommended is None:
        return answer
    question = answer.question
    description = load_config(question.model.name, offline=offline)
    rivals = sorted(
        (
            step.candidate
            for step in answer.ladder
            if step.fits and step.candidate is not None and step.candidate is not answer.recommended
        ),
        key=lambda candidate: -candidate.tokens_per_s,
    )
    runs: list[Verification] = []
    for candidate in (answer.recommended, *rivals):
        on_start(candidate)
        plan = candidate.estimate.plan
        result = dry_run(
            ds_config(plan, question.model, question.workload, question.cluster, flavor=question.workload.framework),
            description,
            cluster=question.cluster,
            workload=question.workload,
            micro_batch_size=plan.micro_batch_size,
            gradient_accumulation_steps=plan.gradient_accumulation_steps,
            gradient_checkpointing=plan.gradient_checkpointing,
            expandable_segments=question.cluster.gpu.vendor == "NVIDIA",
        )
        seen = dry_run_answer(
            result,
            question.cluster,
            question.model,
            question.workload,
            gradient_checkpointing=plan.gradient_checkpointing,
        )
        runs.append(Verification(candidate=candidate, dry_run=seen))
        if seen.fits:
            return replace(answer, recommended=candidate, verifications=tuple(runs))
    return replace(answer, recommended=None, verifications=tuple(runs))
