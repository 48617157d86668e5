"""`--verify`: dry-run the recommendation, and the next best where it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..question.run import run_of
from ..recommend.candidate import Candidate
from ..recommend.evidence import Verification
from ..recommend.recommendation import Recommendation
from .dry_run import prove_by_dry_run


def verify(
    answer: Recommendation,
    *,
    offline: bool = False,
    on_start: Callable[[Candidate], None] = lambda _candidate: None,
) -> Recommendation:
    """The recommendation after dry runs: the fastest fitting plan whose dry run fits too, with all runs that were made.

    on_start: called before each dry run, which takes from ten seconds to a minute.

    Raises DryRunError where a run could not be done, DsAdviseError where the model's config.json is not to be had.
    """
    if answer.recommended is None:
        return answer
    question = answer.question
    rivals = sorted(
        (
            step.candidate
            for step in answer.ladder
            if step.fits and step.candidate is not None and step.candidate is not answer.recommended
        ),
        key=lambda candidate: -candidate.tokens_per_s,
    )
    verifications: list[Verification] = []
    for candidate in (answer.recommended, *rivals):
        on_start(candidate)
        dry_run = prove_by_dry_run(run_of(question, candidate.plan, offline=offline))
        verifications.append(Verification(candidate=candidate, dry_run=dry_run))
        if dry_run.fits:
            return replace(answer, recommended=candidate, verifications=tuple(verifications))
    return replace(answer, recommended=None, verifications=tuple(verifications))
