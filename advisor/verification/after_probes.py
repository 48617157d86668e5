"""What probes make of an answer.

A plan that ran has its measured speed; one that ran out of memory does not fit, nor what needs more of the same kind.
All others are predicted anew: their times are corrected by the probe of the plan that is most like them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...estimators.phrase import phrase
from ...estimators.plan import Plan
from ...probes.real_run import ProbeResult
from ..answer.evidence import ProbedPlan, ProbeSeries
from ..answer.reasons import doubts, reasons
from ..answer.recommendation import Recommendation
from ..search.candidate import Candidate, LadderStep
from ..search.choice import SAME_SPEED, best_of_rung, fastest_that_fits, worth_trying_first
from ..search.fit import FAILED, LEAST, LIKELY, NEEDS_MORE, RAN_OUT, Fit
from .calibration import as_measured, calibration
from .past_probes import PastProbes
from .probe import cpu_rank_bytes
from .probe_order import ProbeOrder, ProbeVerdict

_JUST_TOO_LARGE = 1.01
"""Utilization that is noted for a plan that was predicted to fit and did not."""


def after_series(answer: Recommendation, series: ProbeSeries, order: ProbeOrder) -> Recommendation:
    """The answer after a series of probes: the fastest plan that ran, at its measured speed.

    None where the series is settled and nothing ran; where it ended before anything ran, what is now predicted to be
    fastest.
    """
    candidates = _corrected(answer, order, {probe.candidate.plan: probe.result for probe in series.probes})
    ladder, best = _ladder(candidates, answer), series.best
    if best is not None:
        chosen = next((candidate for candidate in candidates if candidate.plan == best.candidate.plan), None)
    else:
        chosen = None if series.ended == "settled" else fastest_that_fits(ladder)
    return replace(_answer(answer, candidates, chosen), probe_series=series)


def with_past_probes(answer: Recommendation) -> Recommendation:
    """The answer as the probes in the store change it, with a plan that ran preferred to one that might be as fast.

    It is the answer itself where no probe is of any of its plans, or where the store cannot be used, which one line on
    stderr says.
    """
    question = answer.question
    past = PastProbes(question.model, question.workload, question.cluster)
    known = {
        candidate.plan: probe for candidate in runnable(answer) if (probe := past.of_plan(candidate.plan)) is not None
    }
    if not known:
        return answer
    order = ProbeOrder(answer.candidates, question.cluster.gpu.memory_bytes)
    for candidate in answer.candidates:
        if candidate.plan in known:
            order.learn(candidate, verdict_on(candidate, known[candidate.plan].result, answer))
    candidates = _corrected(answer, order, {plan: probe.result for plan, probe in known.items()})
    fastest = fastest_that_fits(_ladder(candidates, answer))
    ran = max(
        (candidate for candidate in candidates if candidate.estimate.evidence == "probe"),
        key=lambda candidate: candidate.tokens_per_s,
        default=None,
    )
    if ran is not None and (fastest is None or fastest.tokens_per_s <= ran.tokens_per_s * (1 + SAME_SPEED)):
        fastest = ran
    past_probes = tuple(
        ProbedPlan(candidate=candidate, reason="probed before", result=probe.result, age_s=probe.age_s)
        for candidate in candidates
        if (probe := known.get(candidate.plan)) is not None
    )
    return replace(_answer(answer, candidates, fastest), past_probes=past_probes)


def runnable(answer: Recommendation) -> list[Candidate]:
    """The candidates that a run can judge: all but those that want RAM or NVMe that is not there."""
    has_nvme = bool(answer.question.cluster.nvme_path)
    return [
        candidate
        for candidate in answer.candidates
        if candidate.fit.limit in ("", "gpu") and (has_nvme or not candidate.memory.nvme_bytes_per_node)
    ]


def verdict_on(candidate: Candidate, result: ProbeResult, answer: Recommendation) -> ProbeVerdict:
    """What a probe of a candidate teaches."""
    if result.failure is not None:
        return ProbeVerdict(tokens_per_s=None, out_of_memory=result.failure.kind == "out_of_memory")
    memory = candidate.memory
    if result.device == "cpu":
        # The prediction's scale: what the closed form says of a rank, corrected by what it took.
        measured = result.highest("host_tensor_bytes")
        predicted = cpu_rank_bytes(memory, answer.question.cluster.gpus_per_node)
    else:
        measured, predicted = result.highest("allocated_bytes"), memory.allocated_bytes_per_gpu
    return ProbeVerdict(
        tokens_per_s=result.tokens_per_s,
        need_bytes=None if measured is None else round(memory.device_bytes_per_gpu * measured / predicted),
        calibration=calibration(result, candidate.time),
        start_s=max(0.0, result.seconds - len(result.ranks[0].losses) * result.step_s),
    )


def _corrected(answer: Recommendation, order: ProbeOrder, results: Mapping[Plan, ProbeResult]) -> list[Candidate]:
    """The candidates after probes of some of them."""
    return [
        _measured(candidate, results[candidate.plan], order.verdicts[candidate.plan].need_bytes)
        if candidate.plan in results
        else _predicted(candidate, order)
        for candidate in answer.candidates
    ]


def _measured(candidate: Candidate, result: ProbeResult, need_bytes: int | None) -> Candidate:
    if result.failure is not None:
        return _refused(candidate, RAN_OUT if result.failure.kind == "out_of_memory" else FAILED)
    ran = candidate.fit._replace(probability=1.0, reason=phrase("ran"), limit="")
    return Candidate.of(as_measured(candidate.estimate, result), ran, measured_bytes=need_bytes)


def _predicted(candidate: Candidate, order: ProbeOrder) -> Candidate:
    if candidate.fit.probability >= LIKELY and order.too_large(candidate):
        return _refused(candidate, NEEDS_MORE)
    return candidate.with_estimate(replace(candidate.estimate, time=order.expected_time(candidate)))


def _refused(candidate: Candidate, reason: str) -> Candidate:
    utilization = max(candidate.fit.utilization, _JUST_TOO_LARGE)
    return replace(candidate, fit=Fit(probability=0.0, reason=reason, limit="gpu", utilization=utilization))


def _ladder(
    candidates: Sequence[Candidate], answer: Recommendation, chosen: Candidate | None = None
) -> tuple[LadderStep, ...]:
    """Every rung's best plan; of its own rung the chosen one."""
    ladder, least = [], LEAST[answer.question.risk]
    for step in answer.ladder:
        of_rung = [candidate for candidate in candidates if candidate.rung == step.rung]
        best = chosen if chosen is not None and chosen.rung == step.rung else best_of_rung(of_rung, least)
        ladder.append(step if best is None else LadderStep.of(step.rung, best, least))
    return tuple(ladder)


def _answer(answer: Recommendation, candidates: Sequence[Candidate], chosen: Candidate | None) -> Recommendation:
    ladder = _ladder(candidates, answer, chosen)
    return replace(
        answer,
        candidates=tuple(candidates),
        ladder=ladder,
        recommended=chosen,
        try_first=worth_trying_first(candidates, chosen, answer.question.risk),
        reasons=reasons(answer.question, ladder, chosen, candidates),
        doubts=doubts(answer.question.cluster, ladder, chosen),
    )
