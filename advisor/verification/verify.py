"""Runs that support an answer: `--verify` dry-runs the recommendation, `--probe` runs plans on this machine, and
earlier probes are taken from the store.

After probes, a plan that ran has its measured speed. A plan that ran out of memory does not fit, nor does a plan of the
same kind that needs more. All others are predicted anew: their times are corrected by the probe of the plan most like
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...estimators.errors import ClusterError
from ...estimators.plan import Plan
from ...probes.real_run.command import STEPS
from ...probes.real_run.result import ProbeResult
from ...probes.run import Device
from ..answer.dry_run_answer import DryRunAnswer
from ..answer.recommendation import ProbedPlan, ProbeSeries, Recommendation, SeriesEnd
from ..answer.what_if import changes
from ..question.job import parse_duration
from ..question.run import build_run
from ..search.candidate import FAILED, LEAST, LIKELY, NEEDS_MORE, RAN_OUT, Candidate, LadderStep
from ..search.choice import SAME_SPEED, best_of_strategy, fastest_that_fits, other_taken_plans, worth_trying_first
from ..text.labels import checkpointing_title, plan_title
from ..text.output import Output
from ..text.units import rate, seconds
from .dry_run import compared_dry_run
from .past_results import PastProbes, probe_and_keep
from .prediction import by_estimate
from .probe import cpu_rank_bytes
from .probe_order import ProbeOrder, ProbeVerdict, calibration, measured_estimate
from .run_view import shown_probe

ProbeCandidate = Callable[[Candidate, float], ProbeResult]
"""Function that probes a candidate within a number of seconds."""

OnProbe = Callable[[Candidate, str, int], None]
"""Function called before each probe with the candidate, the reason, and the number of rivals."""


def verify(answer: Recommendation, *, offline: bool = False, output: Output) -> Recommendation:
    """Return the answer after dry runs, with all of them: the fastest plan whose dry run also fits.

    Each takes from ten seconds to a minute. Raises DryRunError if a run fails, DsAdviseError if the model's config.json
    is not available.
    """
    question, least = answer.question, LEAST[answer.question.risk]
    judged: dict[Plan, Candidate] = {}
    dry_runs = list[DryRunAnswer]()
    chosen = try_first = None
    for candidate in (*([answer.try_first] if answer.try_first else []), *by_speed(answer)):
        with output.progress(f"dry run of {candidate.strategy}") as on_progress:
            run = build_run(question, candidate.plan, offline=offline)
            dry_runs.append(compared_dry_run(run, on_progress=on_progress))
        checked = judged[candidate.plan] = replace(candidate, fit=dry_runs[-1].fit)
        if checked.fit.probability >= least:
            chosen = checked
            break
        if candidate is answer.try_first and checked.fit.probability >= LIKELY:
            try_first = checked
    return judged_answer(answer, judged, chosen, try_first=try_first, dry_runs=tuple(dry_runs))


def judged_answer(
    answer: Recommendation,
    judged: Mapping[Plan, Candidate],
    chosen: Candidate | None,
    *,
    try_first: Candidate | None = None,
    dry_runs: tuple[DryRunAnswer, ...],
) -> Recommendation:
    """Return the answer with the verdicts of its dry runs. judged: the candidates that were run, by plan."""
    least, ladder = LEAST[answer.question.risk], []
    for step in answer.ladder:  # the chosen plan becomes the best of its strategy
        best = chosen if chosen is not None and chosen.strategy == step.strategy else step.candidate
        best = best and judged.get(best.plan)
        ladder.append(LadderStep.from_candidate(step.strategy, best, least) if best else step)
    return replace(
        answer,
        candidates=tuple(judged.get(each.plan, each) for each in answer.candidates),
        ladder=tuple(ladder),
        recommended=chosen,
        changes=changes(answer.question, ladder, chosen),
        try_first=try_first,
        verifications=dry_runs,
    )


def by_speed(answer: Recommendation) -> list[Candidate]:
    """Return the recommended plan, then the best of each other strategy that fits, the fastest first."""
    rivals = sorted(other_taken_plans(answer.ladder, answer.recommended), key=lambda candidate: -candidate.tokens_per_s)
    return rivals if answer.recommended is None else [answer.recommended, *rivals]


def probe_candidates(
    answer: Recommendation,
    *,
    device: Device,
    memory_limit_bytes: int | None,
    budget: str,
    offline: bool,
    output: Output,
) -> Recommendation:
    """Return the answer after probes on this machine within the budget. Raises ClusterError if the question is about
    another machine."""
    budget_s = parse_duration("--budget", budget)
    question = answer.question
    if not question.cluster.is_this_machine:
        raise ClusterError(
            "--probe runs on this machine", why="--gpus describes other GPUs", fix="pass --gpus auto, or --device cpu"
        )

    def probe_candidate(candidate: Candidate, timeout_s: float) -> ProbeResult:
        predicted = by_estimate(candidate.estimate, question.cluster)
        with shown_probe(output, question.cluster, predicted, STEPS) as on_progress:
            return probe_and_keep(
                build_run(question, candidate.plan, offline=offline),
                device=device,
                memory_limit_bytes=memory_limit_bytes,
                predicted=predicted,
                timeout_s=timeout_s,
                on_progress=on_progress,
            )

    def on_probe(candidate: Candidate, reason: str, left: int) -> None:
        plan = candidate.plan
        output.say(
            f"probe of {plan_title(plan)}, micro batch {plan.micro_batch_size}, {checkpointing_title(plan)}: "
            f"{reason}; plans that may still be faster: {left}"
        )

    if answer.past_probes:
        output.say(
            f"{len(answer.past_probes)} plans ran before on this machine and are not run again (ds-advise history)"
        )
    series, order = run_series(answer, probe_candidate, budget_s=budget_s, on_probe=on_probe)
    outcome, quickest_s = "no plan ran", order.quickest_s()
    if series.best is not None:
        outcome = f"{series.best.candidate.strategy} at {rate(series.best.result.tokens_per_s)} tokens/s"
    elif series.ended == "budget" and quickest_s is not None:
        outcome += f"; the quickest may take {seconds(quickest_s)}, so pass a longer --budget"
    output.say(f"{series.ended}: {outcome}")
    return after_series(answer, series, order)


def run_series(
    answer: Recommendation, probe_candidate: ProbeCandidate, *, budget_s: float, on_probe: OnProbe = lambda *_: None
) -> tuple[ProbeSeries, ProbeOrder]:
    """Probe until the answer is settled, the budget is spent, or the user interrupts. Return the series and the order
    with the learned corrections.

    Plans with an earlier probe (`answer.past_probes`) are not run again. A probe that may exceed the deadline is not
    started. Until one has run, the time of the quickest is kept in reserve: a slower probe is stopped before the
    reserve, and the quickest still runs.
    """
    order = ProbeOrder(runnable(answer), answer.question.cluster.gpu.memory_bytes)
    probes = list(answer.past_probes)
    for probe in probes:
        order.learn(probe.candidate, verdict_on(probe.candidate, probe.result, answer), from_before=True)
    deadline = time.monotonic() + budget_s
    ended: SeriesEnd = "settled"
    try:
        while order.choose() is not None:
            left_s, quickest_s = deadline - time.monotonic(), order.quickest_s() or 0.0
            reserve_s = 0.0 if order.best_speed else quickest_s
            chosen = order.choose(left_s - reserve_s)
            if chosen is None and reserve_s:
                reserve_s = 0.0
                chosen = order.choose(min(left_s, quickest_s))
            if chosen is None:
                ended = "budget"
                break
            on_probe(*chosen, len(order.rivals()))
            result = probe_candidate(chosen.candidate, left_s - reserve_s)
            if result.failure is not None and result.failure.kind == "timeout":
                ended = "budget"
                order.cut_off(chosen.candidate)
            else:
                probes.append(ProbedPlan(candidate=chosen.candidate, reason=chosen.reason, result=result))
                order.learn(chosen.candidate, verdict_on(chosen.candidate, result, answer))
    except KeyboardInterrupt:
        ended = "interrupted"
    series = ProbeSeries(probes=tuple(probes), ended=ended, bound=order.bound, candidates=len(order.candidates))
    return series, order


def after_series(answer: Recommendation, series: ProbeSeries, order: ProbeOrder) -> Recommendation:
    """Return the answer after a series of probes, with the fastest plan that ran, at its measured speed.

    No plan is recommended if the series is settled and nothing ran. If the series ended early and nothing ran, the plan
    that is now predicted to be fastest is recommended.
    """
    candidates = _corrected_candidates(answer, order, {probe.candidate.plan: probe.result for probe in series.probes})
    chosen = _fastest_that_ran(candidates)
    if chosen is None and series.ended != "settled":
        chosen = fastest_that_fits(_ladder(candidates, answer))
    return _after_probes(answer, candidates, chosen, probe_series=series)


def apply_past_probes(answer: Recommendation) -> Recommendation:
    """Return the answer with the earlier probes in the store; a plan that ran is preferred to one of the same speed.

    The answer is unchanged if its plans have no probes, or if the store cannot be used (a line on stderr).
    """
    question = answer.question
    past = PastProbes(question.model, question.workload, question.cluster)
    known = {
        candidate.plan: probe for candidate in runnable(answer) if (probe := past.find_plan(candidate.plan)) is not None
    }
    if not known:
        return answer
    order = ProbeOrder(answer.candidates, question.cluster.gpu.memory_bytes)
    for candidate in answer.candidates:
        if candidate.plan in known:
            order.learn(candidate, verdict_on(candidate, known[candidate.plan].result, answer))
    candidates = _corrected_candidates(answer, order, {plan: probe.result for plan, probe in known.items()})
    chosen, ran = fastest_that_fits(_ladder(candidates, answer)), _fastest_that_ran(candidates)
    if ran is not None and (chosen is None or chosen.tokens_per_s <= ran.tokens_per_s * (1 + SAME_SPEED)):
        chosen = ran
    past_probes = tuple(
        ProbedPlan(candidate=candidate, reason="probed before", result=probe.result, age_s=probe.age_s)
        for candidate in candidates
        if (probe := known.get(candidate.plan)) is not None
    )
    return _after_probes(answer, candidates, chosen, past_probes=past_probes)


def runnable(answer: Recommendation) -> list[Candidate]:
    """Return the candidates that a run can judge: those that have enough RAM and NVMe."""
    has_nvme = bool(answer.question.cluster.nvme_path)
    return [
        candidate
        for candidate in answer.candidates
        if candidate.fit.limit in ("", "gpu") and (has_nvme or not candidate.memory.nvme_bytes_per_node)
    ]


def verdict_on(candidate: Candidate, result: ProbeResult, answer: Recommendation) -> ProbeVerdict:
    if result.failure is not None:
        return ProbeVerdict(tokens_per_s=None, out_of_memory=result.failure.kind == "out_of_memory")
    memory = candidate.memory
    if result.device == "cpu":
        measured = result.highest("host_tensor_bytes")
        predicted = cpu_rank_bytes(memory, answer.question.cluster.gpus_per_node)
    else:
        measured, predicted = result.highest("allocated_bytes"), memory.allocated_bytes_per_gpu
    return ProbeVerdict(
        tokens_per_s=result.tokens_per_s,
        # A probe measures tensors or allocated bytes; the verdicts compare device memory.
        need_bytes=None if measured is None else round(memory.device_bytes_per_gpu * measured / predicted),
        calibration=calibration(result, candidate.time),
        # What is not steps is the start: processes, libraries, engine.
        start_s=max(0.0, result.seconds - len(result.ranks[0].losses) * result.step_s),
    )


def _corrected_candidates(
    answer: Recommendation, order: ProbeOrder, results: Mapping[Plan, ProbeResult]
) -> list[Candidate]:
    def corrected(candidate: Candidate) -> Candidate:
        result = results.get(candidate.plan)
        if result is None:
            if candidate.fit.probability >= LIKELY and order.too_large(candidate):
                return candidate.refused(NEEDS_MORE)
            return candidate.replace_estimate(replace(candidate.estimate, time=order.expected_time(candidate)))
        if result.failure is not None:
            return candidate.refused(RAN_OUT if result.failure.kind == "out_of_memory" else FAILED)
        ran = candidate.fit._replace(probability=1.0, reason="ran", limit="")
        need_bytes = order.verdicts[candidate.plan].need_bytes
        return Candidate.from_estimate(measured_estimate(candidate.estimate, result), ran, measured_bytes=need_bytes)

    return [corrected(candidate) for candidate in answer.candidates]


def _fastest_that_ran(candidates: Sequence[Candidate]) -> Candidate | None:
    ran = [candidate for candidate in candidates if candidate.estimate.evidence == "probe"]
    return max(ran, key=lambda candidate: candidate.tokens_per_s, default=None)


def _ladder(
    candidates: Sequence[Candidate], answer: Recommendation, chosen: Candidate | None = None
) -> tuple[LadderStep, ...]:
    ladder, least = [], LEAST[answer.question.risk]
    for step in answer.ladder:
        of_strategy = [candidate for candidate in candidates if candidate.strategy == step.strategy]
        best = (
            chosen if chosen is not None and chosen.strategy == step.strategy else best_of_strategy(of_strategy, least)
        )
        ladder.append(step if best is None else LadderStep.from_candidate(step.strategy, best, least))
    return tuple(ladder)


def _after_probes(
    answer: Recommendation, candidates: Sequence[Candidate], chosen: Candidate | None, **others: Any
) -> Recommendation:
    return replace(
        answer,
        candidates=tuple(candidates),
        ladder=_ladder(candidates, answer, chosen),
        recommended=chosen,
        try_first=worth_trying_first(candidates, chosen, answer.question.risk),
        **others,
    )
