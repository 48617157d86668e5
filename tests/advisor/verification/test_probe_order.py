"""A series of probes: few runs, and the plan that running everything would have found."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from ds_advise import advise
from ds_advise.advisor.answer.recommendation import ProbeSeries, Recommendation
from ds_advise.advisor.search.candidate import NEEDS_MORE, Candidate
from ds_advise.advisor.text.output import Output
from ds_advise.advisor.verification.probe_order import ProbeOrder, ProbeVerdict, calibration
from ds_advise.advisor.verification.verify import after_series, probe_candidates, run_series
from ds_advise.estimators.errors import ClusterError
from ds_advise.estimators.estimate import TimeEstimate
from ds_advise.probes.real_run.result import ProbeResult, RankFailure, StepTime

from tests.helpers import failed_probe, printed, ran

MEMORY = 79 * 2**30


@pytest.fixture(scope="module")
def answer() -> Recommendation:
    """A question with plans on both sides of what fits."""
    return advise(
        "Qwen2.5-7B",
        gpus="4xA100-80GB",
        ram="1TB",
        global_batch="no-accumulation",
        deepspeed_estimate=False,
        offline=True,
    )


class Machine:
    """A made-up machine: every strategy and series is faster or slower than predicted, and needs more or less
    memory."""

    def __init__(
        self, answer: Recommendation, seed: int, *, speed: float = 0.1, memory: float = 0.04, whole: float | None = None
    ) -> None:
        dice = random.Random(seed)
        whole = math.exp(dice.gauss(0, 0.3)) if whole is None else whole
        self.candidates = [candidate for candidate in answer.candidates if candidate.fit.limit in ("", "gpu")]
        factors: dict[object, float] = {}

        def factor(key: object, spread: float) -> float:
            return factors.setdefault(key, math.exp(dice.gauss(0, spread)))

        self.speeds, self.needs = [], []
        for candidate in self.candidates:
            series = (candidate.strategy, candidate.estimate.plan.gradient_checkpointing)
            self.speeds.append(
                candidate.tokens_per_s * whole * factor(candidate.strategy, speed) * factor(series, speed / 2)
            )
            self.needs.append(candidate.device_bytes * factor(("memory", candidate.strategy), memory))

    def outcome(self, candidate: Candidate) -> ProbeVerdict:
        index = self.candidates.index(candidate)
        fits = self.needs[index] <= MEMORY
        return ProbeVerdict(
            tokens_per_s=self.speeds[index] if fits else None,
            out_of_memory=not fits,
            need_bytes=round(self.needs[index]) if fits else None,
        )

    @property
    def fastest(self) -> float:
        return max(speed for speed, need in zip(self.speeds, self.needs, strict=True) if need <= MEMORY)


def run_to_the_end(machine: Machine) -> ProbeOrder:
    state = ProbeOrder(machine.candidates, MEMORY)
    while (choice := state.choose()) is not None:
        assert choice.reason
        state.learn(choice.candidate, machine.outcome(choice.candidate))
    return state


def test_a_climb_finds_the_best_plan_in_a_fraction_of_the_runs(answer: Recommendation) -> None:
    machines, regrets, runs = 20, [], []
    for seed in range(machines):
        machine = Machine(answer, seed)
        state = run_to_the_end(machine)
        assert len(state.verdicts) <= state.bound
        regrets.append(1 - max(verdict.tokens_per_s or 0 for verdict in state.verdicts.values()) / machine.fastest)
        runs.append(len(state.verdicts))
    assert sorted(regrets)[machines * 19 // 20] <= 0.04
    assert max(runs) <= len(Machine(answer, 0).candidates) / 3


def result_of(machine: Machine, candidate: Candidate) -> ProbeResult:
    """The outcome as a probe would have reported it."""
    outcome, plan = machine.outcome(candidate), candidate.estimate.plan
    tokens = plan.micro_batch_size * plan.gradient_accumulation_steps * 4 * 2048
    if outcome.tokens_per_s is None:
        return failed_probe("out_of_memory", world_size=4, device="cuda")
    step_s = tokens / outcome.tokens_per_s
    memory = candidate.estimate.memory
    allocated = round(memory.allocated_bytes_per_gpu * (outcome.need_bytes or 0) / candidate.device_bytes)
    result = ran(step_s, world_size=4, device="cuda", tokens_per_step=tokens, allocated_bytes=allocated)
    return replace(result, seconds=0.01)


def test_the_settled_answer_recommends_the_fastest_that_ran(answer: Recommendation) -> None:
    machine = Machine(answer, 3, whole=0.3)
    series, order = run_series(answer, lambda candidate, _left_s: result_of(machine, candidate), budget_s=1e6)
    final = after_series(answer, series, order)
    assert series.ended == "settled" and series.best is not None and final.recommended is not None
    assert final.recommended.tokens_per_s == pytest.approx(series.best.result.tokens_per_s)
    assert final.recommended.estimate.evidence == "probe" and final.recommended.fit.fits
    need = machine.outcome(series.best.candidate).need_bytes
    assert need is not None and final.recommended.device_bytes == pytest.approx(need, rel=1e-6)
    assert final.recommended.estimate.plan == series.best.candidate.estimate.plan
    assert [step.candidate for step in final.ladder].count(final.recommended) == 1
    probed = {probe.candidate.plan for probe in series.probes}
    others = [
        (before, after)
        for before, after in zip(answer.candidates, final.candidates, strict=True)
        if before.plan not in probed and before.fit.limit in ("", "gpu") and after.fit.reason != NEEDS_MORE
    ]
    assert others and all(after.estimate.evidence == "analytic" for _, after in others)
    for before, after in others:
        assert after.tokens_per_s / before.tokens_per_s == pytest.approx(0.3, rel=0.3), "corrected as what is like it"


def test_nothing_that_ran_means_no_recommendation(answer: Recommendation) -> None:
    broken = failed_probe("crash", "no such library", world_size=4, device="cuda")
    series, order = run_series(answer, lambda *_: broken, budget_s=1e6)
    assert series.best is None and after_series(answer, series, order).recommended is None
    seen = {(trial.candidate.strategy, trial.candidate.estimate.plan.gradient_checkpointing) for trial in series.probes}
    assert len(seen) == len(series.probes), "a crash is not repeated with another batch"
    shown = printed(after_series(answer, series, order))
    assert "No plan ran.\n The first failure: no such library" in shown
    failed = [
        candidate for candidate in after_series(answer, series, order).candidates if candidate.fit.reason == "failed"
    ]
    assert len(failed) == len(series.probes) and not any(candidate.fit.fits for candidate in failed)


def test_a_climb_stopped_before_any_run_leaves_the_prediction(answer: Recommendation) -> None:

    def interrupt(*_: object) -> ProbeResult:
        raise KeyboardInterrupt

    final = after_series(answer, *run_series(answer, interrupt, budget_s=1e6))
    assert final.recommended is not None and answer.recommended is not None
    assert final.recommended.estimate == answer.recommended.estimate
    assert "no probe finished" in " ".join(printed(final).split())


def test_an_interrupt_and_the_budget_leave_the_best_so_far(answer: Recommendation) -> None:
    machine = Machine(answer, 5)
    runs = 0

    def twice(candidate: Candidate, _left_s: float) -> ProbeResult:
        nonlocal runs
        runs += 1
        if runs == 3:
            raise KeyboardInterrupt
        return result_of(machine, candidate)

    interrupted, _ = run_series(answer, twice, budget_s=1e6)
    assert interrupted.ended == "interrupted" and len(interrupted.probes) == 2 and interrupted.best is not None

    slow, _ = run_series(
        answer, lambda candidate, _left: replace(result_of(machine, candidate), seconds=60.0), budget_s=50
    )
    assert slow.ended == "budget" and len(slow.probes) == 1 and slow.best is not None


@pytest.mark.parametrize("budget_s", [20, 45, 60, 90, 200, 1800])
@pytest.mark.parametrize("whole", [1.3, 0.8, 0.3], ids=["faster", "slower", "far slower"])
def test_no_probe_is_started_that_may_outlast_the_budget(
    answer: Recommendation, monkeypatch: pytest.MonkeyPatch, budget_s: float, whole: float
) -> None:
    machine, now, begun = Machine(answer, 5, whole=whole), [0.0], []
    monkeypatch.setattr("ds_advise.advisor.verification.verify.time.monotonic", lambda: now[0])

    def take_its_time(candidate: Candidate, limit_s: float) -> ProbeResult:
        begun.append(candidate)
        result = result_of(machine, candidate)
        takes_s = 20.0 + (4 * result.step_s if result.failure is None else 0)
        now[0] += min(takes_s, limit_s)
        late = RankFailure(kind="timeout", rank=0, phase="step 2", message="not done in time")
        return replace(result, seconds=takes_s, failure=late if takes_s > limit_s else result.failure)

    quickest_s = ProbeOrder(machine.candidates, MEMORY).quickest_s()
    series, _ = run_series(answer, take_its_time, budget_s=budget_s)
    assert now[0] <= budget_s
    assert quickest_s is not None
    assert bool(begun) == (quickest_s <= budget_s)
    assert (series.best is not None) == bool(begun)


def test_the_shortest_probe_of_equally_fast_plans_comes_first(answer: Recommendation) -> None:
    chosen = ProbeOrder(answer.candidates, MEMORY).choose()
    assert chosen is not None
    fitting = [candidate for candidate in answer.candidates if candidate.fit.fits]
    fastest = max(candidate.tokens_per_s for candidate in fitting)
    as_fast = [candidate.time.step_s for candidate in fitting if candidate.tokens_per_s >= 0.97 * fastest]
    assert len(as_fast) > 1
    assert chosen.candidate.time.step_s == min(as_fast)


def test_another_machine_is_not_probed(answer: Recommendation) -> None:
    with pytest.raises(ClusterError, match="this machine"):
        probe_candidates(
            answer, device="cuda", memory_limit_bytes=None, budget="5m", offline=True, output=Output("quiet")
        )
    assert ProbeSeries(probes=(), ended="settled", bound=1, candidates=1).best is None


OPTIMIZER = ("optimizer", "optimizer on the host")


def plan(answer: Recommendation, strategy: str) -> Candidate:
    return next(step.candidate for step in answer.ladder if step.strategy == strategy and step.candidate is not None)


def parts(time: TimeEstimate) -> tuple[float, float, float]:
    """(device, optimizer, links) seconds."""
    optimizer = sum(term.seconds for term in time.terms if term.name in OPTIMIZER)
    links = sum(term.seconds for term in time.terms if term.resource in ("gpu links", "network"))
    return time.step_s - optimizer - links, optimizer, links


def probed(time: TimeEstimate, device: float, optimizer: float, links: float, *, waits: bool = True) -> ProbeResult:
    """A probe of a machine with a factor on each of the three kinds of work."""
    on_device, in_optimizer, waiting = (
        part * factor for part, factor in zip(parts(time), (device, optimizer, links), strict=True)
    )
    step = StepTime(
        total_s=on_device + in_optimizer + waiting,
        forward_s=on_device / 3,
        backward_s=on_device * 2 / 3 + waiting * 0.7,
        optimizer_s=in_optimizer + waiting * 0.3,
        waiting_s=waiting if waits else None,
        optimizer_waiting_s=waiting * 0.3 if waits else None,
    )
    return ran(step, world_size=4, device="cuda", tokens_per_step=time.tokens_per_step, allocated_bytes=1)


def test_one_probe_predicts_the_other_strategies_of_an_unlike_machine(answer: Recommendation) -> None:
    factors = {"device": 1.7, "optimizer": 3.0, "links": 0.4}
    known = plan(answer, "zero2").estimate.time
    found = calibration(probed(known, **factors), known)
    assert (found.device, found.optimizer, found.links) == pytest.approx((1.7, 3.0, 0.4))
    other = plan(answer, "zero3").estimate.time
    truth = sum(part * factor for part, factor in zip(parts(other), factors.values(), strict=True))
    assert found.apply(other).step_s == pytest.approx(truth)
    assert found.apply(other).step_s != pytest.approx(other.step_s, rel=0.1)
    found = calibration(probed(known, 2.0, 2.0, 2.0, waits=False), known)  # on CUDA the step as a whole is known
    assert found.device == found.optimizer == found.links == pytest.approx(2.0)
