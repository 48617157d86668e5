"""What probes make of an answer.

A plan that ran has its measured speed; one that ran out of memory does not fit, nor what needs more of the same kind.
All others are predicted anew: their times are corrected by the probe of the plan that is most like them, as in a climb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...probes.real_run import ProbeResult
from ..recommend.fit import FAILED, NEEDS_MORE, RAN_OUT, Fit
from ..recommend.reasons import reasons
from ..recommend.recommendation import Candidate, LadderStep, Recommendation
from ..recommend.search import SAME_SPEED, best_of_rung, fastest_that_fits
from .calibration import as_measured
from .past_probes import KeptProbes
from .probe_order import Climb
from .probe_series import Climbed, Trial, outcome, runnable

_JUST_TOO_LARGE = 1.01
"""Need over offer of a plan that was predicted to fit and did not."""


def settled(answer: Recommendation, climbed: Climbed) -> Recommendation:
    """The answer after a climb: the fastest plan that ran, at its measured speed.

    None where the climb is settled and nothing ran; where it ended before anything ran, what is now predicted to be
    fastest.
    """
    places = {id(candidate): place for place, candidate in enumerate(answer.candidates)}
    candidates = _corrected(answer, {places[id(trial.candidate)]: trial.result for trial in climbed.trials})
    best = climbed.best
    if best is not None:
        chosen: Candidate | None = candidates[places[id(best.candidate)]]
    else:
        chosen = None if climbed.ended == "settled" else fastest_that_fits(_ladder(candidates, answer.ladder))
    return _answer(answer, candidates, chosen, climbed=climbed)


def with_earlier_probes(answer: Recommendation) -> Recommendation:
    """The answer as the probes in the store change it; itself where none answers for any of its plans, or where the
    store cannot be used, which one line on stderr says.

    A plan that ran is preferred to one that only might be as fast.
    """
    question, can_run = answer.question, {id(candidate) for candidate in runnable(answer)}
    kept = KeptProbes(question.model, question.workload, question.cluster)
    found = {
        place: probe
        for place, candidate in enumerate(answer.candidates)
        if id(candidate) in can_run and (probe := kept.of(candidate.estimate.plan)) is not None
    }
    if not found:
        return answer
    candidates = _corrected(answer, {place: probe.result for place, probe in found.items()})
    fastest = fastest_that_fits(_ladder(candidates, answer.ladder))
    ran = max(
        (candidate for candidate in candidates if candidate.estimate.evidence == "probe"),
        key=lambda candidate: candidate.tokens_per_s,
        default=None,
    )
    if ran is not None and (fastest is None or fastest.tokens_per_s <= ran.tokens_per_s * (1 + SAME_SPEED)):
        fastest = ran
    trials = tuple(
        Trial(candidate=candidates[place], reason="probed before", result=probe.result, age_s=probe.age_s)
        for place, probe in found.items()
    )
    return _answer(answer, candidates, fastest, earlier=trials)


def _corrected(answer: Recommendation, results: Mapping[int, ProbeResult]) -> list[Candidate]:
    """The candidates after probes of some of them, by their place."""
    candidates = answer.candidates
    state = Climb(candidates, answer.question.cluster.gpu.memory_bytes)
    for place, result in results.items():
        state.learn(candidates[place], outcome(candidates[place], result, answer))
    return [
        _judged(candidate, results[place], state.outcomes[place].need_bytes)
        if place in results
        else _predicted(candidate, state)
        for place, candidate in enumerate(candidates)
    ]


def _judged(candidate: Candidate, result: ProbeResult, need_bytes: int | None) -> Candidate:
    if result.failure is not None:
        return _refused(candidate, RAN_OUT if result.failure.kind == "out_of_memory" else FAILED)
    return Candidate(
        estimate=as_measured(candidate.estimate, result),
        measured_bytes=need_bytes,
        fit=replace(candidate.fit, fits=True, reason="ran", limit=""),
    )


def _predicted(candidate: Candidate, state: Climb) -> Candidate:
    if candidate.fit.fits and state.too_large(candidate):
        return _refused(candidate, NEEDS_MORE)
    return replace(candidate, estimate=replace(candidate.estimate, time=state.expected_time(candidate)))


def _refused(candidate: Candidate, reason: str) -> Candidate:
    return replace(
        candidate,
        fit=Fit(fits=False, reason=reason, limit="gpu", shortfall=max(candidate.fit.shortfall, _JUST_TOO_LARGE)),
    )


def _ladder(
    candidates: Sequence[Candidate], before: Sequence[LadderStep], chosen: Candidate | None = None
) -> tuple[LadderStep, ...]:
    """Every rung's best plan; of its own rung the chosen one."""
    ladder = []
    for step in before:
        of_rung = [candidate for candidate in candidates if candidate.rung == step.rung]
        best = chosen if chosen is not None and chosen.rung == step.rung else best_of_rung(of_rung)
        ladder.append(
            step
            if best is None
            else LadderStep(rung=step.rung, candidate=best, fits=best.fit.fits, reason=best.fit.reason)
        )
    return tuple(ladder)


def _answer(
    answer: Recommendation,
    candidates: Sequence[Candidate],
    chosen: Candidate | None,
    *,
    earlier: tuple[Trial, ...] | None = None,
    climbed: Climbed | None = None,
) -> Recommendation:
    ladder = _ladder(candidates, answer.ladder, chosen)
    return replace(
        answer,
        candidates=tuple(candidates),
        ladder=ladder,
        recommended=chosen,
        climbed=climbed,
        earlier=answer.earlier if earlier is None else earlier,
        reasons=reasons(answer.question, ladder, chosen, candidates),
    )
