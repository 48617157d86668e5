"""`--probe`: settle the recommendation by real runs on this machine, as few as will do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from ...estimators.errors import ClusterError, WorkloadError
from ...probes.real_run import ProbeResult
from ...probes.real_run.job import Device
from ..answer.evidence import ProbedPlan, ProbeSeries, SeriesEnd
from ..answer.recommendation import Recommendation
from ..question.run import run_of
from ..search.candidate import Candidate
from ..text.labels import checkpointing_words, plan_title
from ..text.units import rate, seconds
from .after_probes import after_series, runnable, verdict_on
from .past_probes import probe_and_keep
from .probe_order import ProbeOrder

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
            f"probe of {plan_title(plan)}, micro batch {plan.micro_batch_size}, {checkpointing_words(plan)}: {reason}; "
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
