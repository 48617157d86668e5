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
    answer: Recommendation, *, offline: bool = False, on_start: Callable[[Candidate], None] = lambda _candidate: None
) -> Recommendation:
    """The recommendation after dry runs: the fastest fitting plan whose dry run fits too, with all runs that were made.

    on_start: called before each dry run, which takes from ten seconds to a minute.

    Raises DryRunError where a run could not be done, DsAdviseError where the model's config.json is not to be had.
    """
    if answer.recommended is None:
        return answer
    question = answer.question
    verifications: list[Verification] = []
    for candidate in by_speed(answer):
        on_start(candidate)
        dry_run = prove_by_dry_run(run_of(question, candidate.plan, offline=offline))
        verifications.append(Verification(candidate=candidate, dry_run=dry_run))
        if dry_run.fits:
            return replace(answer, recommended=candidate, verifications=tuple(verifications))
    return replace(answer, recommended=None, verifications=tuple(verifications))


def by_speed(answer: Recommendation) -> list[Candidate]:
    """The recommended plan, then the best of each other rung that fits, the fastest first."""
    fitting = [step.candidate for step in answer.ladder if step.fits and step.candidate is not None]
    rivals = [candidate for candidate in fitting if candidate is not answer.recommended]
    rivals.sort(key=lambda candidate: -candidate.tokens_per_s)
    return rivals if answer.recommended is None else [answer.recommended, *rivals]
