"""What earlier probes of the same model on this machine make of an answer.

A plan that ran has its measured speed; one that ran out of memory does not fit, nor what needs more of the same kind. All
others are predicted anew: their times are corrected by the probe of the plan that is most like them, as in a climb.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .climb import Climb
from .fit import NEEDS_MORE, RAN_OUT, Fit
from .kept_probes import KeptProbe, KeptProbes
from .probing import Trial, as_measured, outcome, runnable
from .reasons import reasons
from .recommendation import Candidate, LadderStep, Recommendation
from .search import SAME_SPEED, best_of_rung, fastest_that_fits

_JUST_TOO_LARGE = 1.01
"""Need over offer of a plan that was predicted to fit and did not."""


def with_earlier_probes(answer: Recommendation) -> Recommendation:
    """The answer as the probes in the store change it; itself where none answers for any of its plans, or where the store
    cannot be used, which one line on stderr says."""
    kept, candidates = KeptProbes(answer.question), answer.candidates
    found = {id(candidate): probe for candidate in runnable(answer)
             if (probe := kept.of(candidate.estimate.plan)) is not None}
    if not found:
        return answer
    state = Climb(candidates, answer.question.cluster.gpu.memory_bytes)
    for candidate in candidates:
        if id(candidate) in found:
            state.learn(candidate, outcome(candidate, found[id(candidate)].result, answer), from_before=True)
    corrected = [_corrected(candidate, found.get(id(candidate)), state) for candidate in candidates]
    trials = tuple(
        Trial(candidate=now, reason="probed before", result=found[id(before)].result, age_s=found[id(before)].age_s)
        for before, now in zip(candidates, corrected, strict=True) if id(before) in found)
    recommended, ladder = _chosen(corrected, answer.ladder)
    return replace(answer, candidates=tuple(corrected), ladder=ladder, recommended=recommended, earlier=trials,
                   reasons=reasons(answer.question, ladder, recommended, corrected))


def _corrected(candidate: Candidate, found: KeptProbe | None, state: Climb) -> Candidate:
    if found is not None:
        if found.result.failure is None:
            return as_measured(candidate, found.result)
        return _refused(candidate, RAN_OUT)
    if not state.could_fit(candidate) and candidate.fit.fits:
        return _refused(candidate, NEEDS_MORE)
    return replace(candidate, estimate=replace(candidate.estimate, time=state.expected_time(candidate)))


def _refused(candidate: Candidate, reason: str) -> Candidate:
    return replace(candidate, fit=Fit(fits=False, reason=reason, limit="gpu",
                                      shortfall=max(candidate.fit.shortfall, _JUST_TOO_LARGE)))


def _chosen(candidates: Sequence[Candidate], before: Sequence[LadderStep]) -> tuple[Candidate | None, tuple[LadderStep, ...]]:
    """(the recommendation, every rung's best). A plan that ran is preferred to one that only might be as fast."""
    ladder = []
    for step in before:
        best = best_of_rung([candidate for candidate in candidates if candidate.rung == step.rung])
        ladder.append(step if best is None else _step(best))
    fastest = fastest_that_fits(ladder)
    ran = max((candidate for candidate in candidates if candidate.estimate.evidence == "probe"),
              key=lambda candidate: candidate.tokens_per_s, default=None)
    if ran is None or (fastest is not None and fastest.tokens_per_s > ran.tokens_per_s * (1 + SAME_SPEED)):
        return fastest, tuple(ladder)
    return ran, tuple(_step(ran) if step.rung == ran.rung else step for step in ladder)


def _step(best: Candidate) -> LadderStep:
    return LadderStep(rung=best.rung, candidate=best, fits=best.fit.fits, reason=best.fit.reason)
