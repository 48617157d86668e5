"""`--verify`: dry-run the recommendation, and the next best where it fails."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...estimators.errors import ClusterError, WorkloadError
from ...estimators.phrase import phrase
from ...estimators.plan import Plan
from ...probes.real_run.result import ProbeResult
from ...probes.run import Device
from ..answer.reasons import doubts, reasons
from ..answer.recommendation import ProbedPlan, ProbeSeries, Recommendation, SeriesEnd, Verification
from ..answer.what_if import changes
from ..question.run import run_of
from ..search.candidate import FAILED, LEAST, LIKELY, NEEDS_MORE, RAN_OUT, Candidate, Fit, LadderStep
from ..search.choice import SAME_SPEED, best_of_rung, fastest_that_fits, worth_trying_first
from ..text.labels import checkpointing_title, plan_title
from ..text.units import rate, seconds
from .dry_run import prove_by_dry_run
from .past_results import PastProbes, probe_and_keep
from .probe import cpu_rank_bytes
from .probe_order import ProbeOrder, ProbeVerdict, as_measured, calibration


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


_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}

ProbeCandidate = Callable[[Candidate, float], ProbeResult]
"""Probes a candidate within so many seconds."""

OnProbe = Callable[[Candidate, str, int], None]
"""Called before each probe with the candidate, the reason, and how many others could still win."""


def budget_seconds(text: str) -> int:
    """Seconds of `90s`, `5m` or `1h`. Raises WorkloadError for anything else."""
    match = re.fullmatch(r"(\d{1,6})\s*([smh])", text.strip(), flags=re.IGNORECASE | re.ASCII)
    if match is None or not int(match[1]):
        raise WorkloadError(
            f"--budget {text[:40]!r} is no time", why="a number and a unit are needed", fix="write it as 90s, 5m or 1h"
        )
    return int(match[1]) * _UNIT_SECONDS[match[2].lower()]


def settle(
    answer: Recommendation,
    *,
    device: Device,
    memory_limit_bytes: int | None,
    budget: str,
    offline: bool,
    say: Callable[[str], None],
) -> Recommendation:
    """The answer after probes on this machine, within the budget.

    Raises ClusterError where the question is about another machine than this.
    """
    budget_s = budget_seconds(budget)
    question = answer.question
    if not question.cluster.is_this_machine:
        raise ClusterError(
            "--probe runs on this machine", why="the question names other GPUs", fix="pass --gpus auto, or --device cpu"
        )

    def probe_candidate(candidate: Candidate, timeout_s: float) -> ProbeResult:
        return probe_and_keep(
            run_of(question, candidate.plan, offline=offline),
            device=device,
            memory_limit_bytes=memory_limit_bytes,
            timeout_s=timeout_s,
            on_progress=lambda phase: say(f"  {phase}"),
        )

    def on_probe(candidate: Candidate, reason: str, left: int) -> None:
        plan = candidate.plan
        say(
            f"probe of {plan_title(plan)}, micro batch {plan.micro_batch_size}, {checkpointing_title(plan)}: {reason}; "
            f"{left} plan{'s' * (left != 1)} could still win"
        )

    if answer.past_probes:
        count = len(answer.past_probes)
        say(f"{count} of the plans ran before on this machine and are not run again (ds-advise history)")
    series, order = run_series(answer, probe_candidate, budget_s=budget_s, on_probe=on_probe)
    say(f"{series.ended}: {_came_of_it(series, order)}")
    return after_series(answer, series, order)


def _came_of_it(series: ProbeSeries, order: ProbeOrder) -> str:
    if series.best is not None:
        return f"{series.best.candidate.rung} at {rate(series.best.result.tokens_per_s)} tokens/s"
    quickest_s = order.quickest_s()
    if series.ended != "budget" or quickest_s is None:
        return "no plan ran"
    return f"no plan ran; the quickest may take {seconds(quickest_s)}, so pass a longer --budget"


def run_series(
    answer: Recommendation, probe_candidate: ProbeCandidate, *, budget_s: float, on_probe: OnProbe = lambda *_: None
) -> tuple[ProbeSeries, ProbeOrder]:
    """Probe until the answer is settled, the budget is spent, or the user interrupts; also what was learned.

    Nothing that was learned is lost, and what earlier probes say (`answer.past_probes`) is not run again.
    """
    order = ProbeOrder(runnable(answer), answer.question.cluster.gpu.memory_bytes)
    probes = list(answer.past_probes)
    for probe in probes:
        order.learn(probe.candidate, verdict_on(probe.candidate, probe.result, answer), from_before=True)
    ended = _run_until_settled(answer, order, probes, probe_candidate, time.monotonic() + budget_s, on_probe)
    series = ProbeSeries(probes=tuple(probes), ended=ended, bound=order.bound, candidates=len(order.candidates))
    return series, order


def _run_until_settled(
    answer: Recommendation,
    order: ProbeOrder,
    probes: list[ProbedPlan],
    probe_candidate: ProbeCandidate,
    deadline: float,
    on_probe: OnProbe,
) -> SeriesEnd:
    """Adds to `probes` and `order`; why it ended.

    No probe is started that may not end in time. Until one has run, so much time is kept as the quickest takes: a plan
    that is slower than its interval says is ended then, and the quickest still runs.
    """
    try:
        while order.choose() is not None:
            left_s, quickest_s = deadline - time.monotonic(), order.quickest_s() or 0.0
            kept_s = 0.0 if order.anything_ran else quickest_s
            chosen = order.choose(left_s - kept_s)
            if chosen is None and kept_s:
                kept_s, chosen = 0.0, order.choose(min(left_s, quickest_s))
            if chosen is None:
                return "budget"
            on_probe(chosen.candidate, chosen.reason, order.left())
            result = probe_candidate(chosen.candidate, left_s - kept_s)
            if result.failure is not None and result.failure.kind == "timeout":
                order.cut_off(chosen.candidate)
                continue
            probes.append(ProbedPlan(candidate=chosen.candidate, reason=chosen.reason, result=result))
            order.learn(chosen.candidate, verdict_on(chosen.candidate, result, answer))
        return "budget" if order.was_cut_off else "settled"
    except KeyboardInterrupt:
        return "interrupted"
