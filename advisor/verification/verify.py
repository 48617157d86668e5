"""`--verify`: dry-run the recommendation, and the next best where it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...estimators.plan import Plan
from ..answer.evidence import Verification
from ..answer.reasons import doubts, reasons
from ..answer.recommendation import Recommendation
from ..answer.what_if import changes
from ..question.run import run_of
from ..search.candidate import Candidate, LadderStep
from ..search.fit import LEAST, LIKELY
from .dry_run import prove_by_dry_run


def verify(
    answer: Recommendation, *, offline: bool = False, on_start: Callable[[Candidate], None] = lambda _candidate: None
) -> Recommendation:
    """The recommendation after dry runs: the fastest plan whose dry run fits too, with all runs that were made.

    on_start: called before each dry run, which takes from ten seconds to a minute.

    Raises DryRunError where a run could not be done, DsAdviseError where the model's config.json is not to be had.
    """
    question = answer.question
    made: list[Verification] = []
    recommended = try_first = None
    for candidate in in_order(answer):
        on_start(candidate)
        dry_run = prove_by_dry_run(run_of(question, candidate.plan, offline=offline))
        made.append(Verification(candidate=candidate, dry_run=dry_run))
        if dry_run.fit.probability >= LEAST[question.risk]:
            recommended = candidate.plan
            break
        if candidate is answer.try_first and dry_run.fit.probability >= LIKELY:
            try_first = candidate.plan
    return _verified(answer, made, recommended, try_first)


def _verified(
    answer: Recommendation, made: Sequence[Verification], recommended: Plan | None, try_first: Plan | None
) -> Recommendation:
    """The answer with the verdicts of the dry runs in the place of the closed form's."""
    least = LEAST[answer.question.risk]
    proven = {run.candidate.plan: replace(run.candidate, fit=run.dry_run.fit) for run in made}
    chosen = None if recommended is None else proven[recommended]

    def judged(step: LadderStep) -> LadderStep:
        """Of its own rung the chosen plan is the best, whatever its micro batch."""
        candidate = None if step.candidate is None else proven.get(step.candidate.plan)
        candidate = chosen if chosen is not None and chosen.rung == step.rung else candidate
        return step if candidate is None else LadderStep.of(step.rung, candidate, least)

    candidates = tuple(proven.get(candidate.plan, candidate) for candidate in answer.candidates)
    ladder, question = tuple(judged(step) for step in answer.ladder), answer.question
    return replace(
        answer,
        candidates=candidates,
        ladder=ladder,
        recommended=chosen,
        reasons=reasons(question, ladder, chosen, candidates),
        doubts=doubts(question.cluster, ladder, chosen),
        changes=changes(question, ladder, chosen),
        try_first=None if try_first is None else proven[try_first],
        verifications=tuple(replace(run, candidate=proven[run.candidate.plan]) for run in made),
    )


def in_order(answer: Recommendation) -> list[Candidate]:
    """The plan to try first, if there is one, and then those of `by_speed`."""
    return by_speed(answer) if answer.try_first is None else [answer.try_first, *by_speed(answer)]


def by_speed(answer: Recommendation) -> list[Candidate]:
    """The recommended plan, then the best of each other rung that fits, the fastest first."""
    fitting = [step.candidate for step in answer.ladder if step.taken and step.candidate is not None]
    rivals = [candidate for candidate in fitting if candidate is not answer.recommended]
    rivals.sort(key=lambda candidate: -candidate.tokens_per_s)
    return rivals if answer.recommended is None else [answer.recommended, *rivals]
