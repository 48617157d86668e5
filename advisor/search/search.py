"""The search: enumerate the stages of every strategy, sweep micro batches, predict, judge, choose per strategy and
overall.

`predict_all` sweeps everything, for an answer that shows the whole ladder. `fastest` finds the recommended plan alone,
with about a quarter of the work, for answers that ask dozens of questions: it visits the sweeps of a stage by falling
upper bound on their speed and skips those that cannot be chosen (branch and bound). `any_fits` predicts only the
smallest batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...estimators.plan import STRATEGIES, PlainPyTorch, Strategy
from ...probes.gc_pause import gc_paused
from ..question.question import Question
from .batch_sweep import BatchSweep
from .candidate import LEAST, Candidate, LadderStep
from .choice import (
    COMFORTABLE,
    LEAST_GAIN,
    SAME_SPEED,
    best_of_strategy,
    burdens,
    costly_features,
    fastest_that_fits,
    tolerance,
)
from .search_space import NO_SETTINGS, PlanFields, Stage, search_stages

_LEAST_OF_STAGES = 0.96
"""Least ratio of the bytes of one more sample between two stages. The stages differ only in the allocator's rounding,
by at most 3.6 % in dense, encoder-decoder, vision-language and expert models, whole or with adapters."""

_sample_bytes: dict[tuple[Any, ...], float] = {}
"""Device bytes of one more sample in a large micro batch, by the settings that determine them: the searches of an
answer and of `rent` differ in the machines, not in these."""

_MOST_KEPT = 1000


@gc_paused()
def predict_all(question: Question) -> tuple[tuple[LadderStep, ...], tuple[Candidate, ...]]:
    """Return the ladder (each strategy with its best candidate) and all candidates."""
    least = LEAST[question.risk]
    found, obstacles = dict[Strategy, list[Candidate]](), dict[Strategy, str]()
    for strategy in STRATEGIES:
        found[strategy], obstacles[strategy] = strategy_candidates(strategy, question)
    if all(each.fit.limit == "gpu" for own in found.values() for each in own):
        for strategy, own in found.items():  # the plans with the least GPU memory show the shortage
            own += search_stages(strategy, question)[-1].sweeps()[-1].rising_candidates()[:1] if own else []
    ladder = []
    for strategy, own in found.items():
        best = best_of_strategy(own, least)
        unable = LadderStep(strategy=strategy, candidate=None, taken=False, reason=obstacles[strategy])
        ladder.append(unable if best is None else LadderStep.from_candidate(strategy, best, least))
    return tuple(ladder), tuple(each for own in found.values() for each in own)


def strategy_candidates(
    strategy: Strategy | PlainPyTorch, question: Question, *, settings: PlanFields = NO_SETTINGS
) -> tuple[list[Candidate], str]:
    """Return (all candidates of a strategy or of plain PyTorch, ""), or ([], the obstacle to running it). settings:
    fields of `Plan` that replace the strategy's preset."""
    candidates: list[Candidate] = []
    for sweeps in _until_memory_suffices(search_stages(strategy, question, settings)):
        obstacle = None if candidates else sweeps[0].obstacle
        if obstacle is not None:
            return [], obstacle
        found = {sweep: sweep.rising_candidates() for sweep in sweeps}
        speeds = [each.tokens_per_s for sweep in sweeps for each in found[sweep] if sweep.acceptable(each.fit)]
        enough = max(speeds, default=0.0) * (1 - SAME_SPEED)
        for sweep in sweeps:
            candidates += sweep.refine(found[sweep], enough)
    return candidates, ""


def any_fits(question: Question, only: Strategy | PlainPyTorch | None = None) -> bool:
    """Whether some strategy has a plan that fits with the probability that the question's risk requires. If the loss is
    free, the one with the least memory is assumed. only: the strategy that is asked; its loss is not searched."""
    question = question if only else question.offered_loss_question or question
    least, strategies = LEAST[question.risk], (only,) if only else STRATEGIES[::-1]
    return any(
        fit.probability >= least
        for strategy in strategies  # the last strategies need the least GPU memory
        for sweeps in _runnable(strategy, question)
        for sweep in sweeps
        for fit in sweep.smallest_fits()
    )


def _runnable(strategy: Strategy | PlainPyTorch, question: Question) -> Iterator[list[BatchSweep]]:
    """Yield the sweeps of a strategy (`_until_memory_suffices`); nothing if it cannot run."""
    stages = _until_memory_suffices(search_stages(strategy, question))
    first = next(stages)
    if first[0].can_run:
        yield first
        yield from stages


def _until_memory_suffices(stages: Sequence[Stage]) -> Iterator[list[BatchSweep]]:
    """Yield the sweeps stage by stage, up to the first stage with a plan that surely fits the GPU. Memory rises with
    the batch, so the smallest batches decide. Only the first stage is yielded if not even the last sweep of the last
    stage may fit."""
    last: list[BatchSweep] = []
    for number, stage in enumerate(stages):
        # The look-ahead below has already built the last stage, with its predictions.
        sweeps = last if last and number == len(stages) - 1 else stage.sweeps()
        yield sweeps
        if any(fit.gpu_suffices for sweep in sweeps for fit in sweep.known_fits()):
            return
        if any(fit.gpu_suffices for sweep in sweeps for fit in sweep.smallest_fits()):
            return
        if number == 0 and len(stages) > 1:
            last = stages[-1].sweeps()
            if not any(fit.gpu_likely_suffices for fit in last[-1].smallest_fits()):
                return


@gc_paused()
def fastest(question: Question, *, enough: float = 0.0) -> Candidate | None:
    """Return the plan that `fastest_that_fits` takes from the ladder, or one of the same speed. enough: least useful
    speed in tokens per second; if no plan reaches it, the result is None or a slower plan."""
    return _BranchAndBound(question, enough).best()


def best_over_losses(question: Question, best: Candidate) -> tuple[Question, Candidate]:
    """Return the answer's plan if the loss is free, with the question about its loss, for a question whose `fastest` is
    `best`.

    The plan with the loss that one argument enables is returned if it gains `LEAST_GAIN`, or if it makes offloading
    or sample sharing needless and is not slower; else the one without.
    """
    offered = question.offered_loss_question
    if offered is not None:
        enough = best.tokens_per_s * (1.0 if burdens(best.plan) else 1 + LEAST_GAIN)
        other = fastest(offered, enough=enough)
        return (question, best) if other is None or not _is_worth_a_loss(other, best) else (offered, other)
    own = question.default_loss_question
    if own is question:
        return question, best
    enough = best.tokens_per_s / (1 + LEAST_GAIN)
    other = fastest(own, enough=enough)
    return (question, best) if other is None or _is_worth_a_loss(best, other) else (own, other)


def _is_worth_a_loss(offered: Candidate, own: Candidate) -> bool:
    """Whether the plan with the loss that one argument enables is taken in place of the one without."""
    is_simpler = burdens(offered.plan) < burdens(own.plan)
    return offered.tokens_per_s >= own.tokens_per_s * (1.0 if is_simpler else 1 + LEAST_GAIN)


class _BranchAndBound:
    """The state of `fastest`: the candidates found so far that may be taken."""

    def __init__(self, question: Question, enough: float) -> None:
        self.least = LEAST[question.risk]
        self.memory_bytes = question.cluster.gpu.memory_bytes
        self.enough = enough
        # `fastest_that_fits` may take a plan that is slower than the fastest by both tolerances.
        self.least_speed = enough * (1 - max(LEAST_GAIN, SAME_SPEED)) * (1 - SAME_SPEED)
        self.pending = {strategy: _runnable(strategy, question) for strategy in STRATEGIES}
        self.found: dict[Strategy, list[Candidate]] = {strategy: [] for strategy in STRATEGIES}

    def best(self) -> Candidate | None:
        while self.pending:
            stages = {strategy: sweeps for strategy, own in self.pending.items() if (sweeps := next(own, None))}
            self.pending = {strategy: self.pending[strategy] for strategy in stages}
            if not any(self._may_be_useful(sweep) for sweeps in stages.values() for sweep in sweeps):
                break  # later stages save only memory, no time
            bounded = [
                (*self._bound(sweep), strategy, sweep)
                for strategy, sweeps in stages.items()
                for sweep in sweeps
                if not sweep.is_hopeless
            ]
            for bound, near, strategy, sweep in sorted(bounded, key=lambda one: -one[0]):
                floor = self._floor()
                if bound < floor:
                    break
                if not self._is_needless(strategy, sweep, bound):
                    found = sweep.refine(sweep.largest(near) if sweep.doubles else sweep.rising_candidates(), floor)
                    self.found[strategy] += [each for each in found if each.fit.probability >= self.least]
        return fastest_that_fits(self._ladder())

    def _may_be_useful(self, sweep: BatchSweep) -> bool:
        """Whether a plan of the sweep would be fast enough if memory were unlimited."""
        return not self.enough or sweep.time(sweep.shapes[-1]).tokens_per_s >= self.enough

    def _bound(self, sweep: BatchSweep) -> tuple[float, float]:
        """Return (upper bound on tokens per second of the sweep's plans, micro batch above which none fits).

        A batch needs the resident bytes of the GPU and, per sample, the bytes of one more sample in a large batch. The
        bound is the speed of the smallest batch too large for that.
        """
        shapes, near = sweep.shapes, float(sweep.shapes[-1][0])
        if not sweep.doubles:
            return sweep.time(shapes[-1]).tokens_per_s, near
        plan, question = sweep.smallest_plan, sweep.question
        checkpointing = plan.gradient_checkpointing, plan.cpu_checkpointing
        groups = plan.sequence_parallel_size, plan.autotp_size, plan.autoep_size
        capability = question.cluster.gpu.compute_capability
        key = (checkpointing, groups, question.model, question.workload, capability)
        if key not in _sample_bytes:
            if len(_sample_bytes) >= _MOST_KEPT:
                _sample_bytes.clear()
            low, high = (sweep.candidate(shape).memory.device_bytes_per_gpu for shape in shapes[-2:])
            _sample_bytes[key] = max(1.0, _LEAST_OF_STAGES * (high - low) / (shapes[-1][0] - shapes[-2][0]))
        near = (self.memory_bytes - sweep.resident_bytes) / _sample_bytes[key]
        if near < 1:
            sweep.is_hopeless = True
            return -1.0, near
        return sweep.time((min(shapes[-1][0], int(near) + 1), 1)).tokens_per_s, near

    def _floor(self) -> float:
        """Return the tokens per second below which a plan can neither be taken nor keep another from being taken. A
        plan must be within `SAME_SPEED` of the best of its strategy, which must be within `SAME_SPEED` of the fastest,
        or within `LEAST_GAIN` if the fastest has costly features."""
        found = [candidate for own in self.found.values() for candidate in own]
        if not found:
            return self.least_speed
        best = max(found, key=lambda candidate: candidate.tokens_per_s)
        gain = LEAST_GAIN if costly_features(best.plan) else SAME_SPEED
        return max(self.least_speed, best.tokens_per_s * (1 - gain) * (1 - SAME_SPEED))

    def _is_needless(self, strategy: Strategy, sweep: BatchSweep, bound: float) -> bool:
        """Whether no plan of a sweep can displace the plan taken so far: it is lower on the ladder, fits comfortably,
        and is as fast as the sweep can be, or has more costly features and gains enough for them."""
        taken = fastest_that_fits(self._ladder())
        if (
            taken is None
            or taken.fit.utilization > COMFORTABLE
            or STRATEGIES.index(strategy) <= STRATEGIES.index(taken.strategy)
        ):
            return False
        plan = sweep.smallest_plan
        if costly_features(taken.plan) > costly_features(plan):
            return taken.tokens_per_s * (1 - LEAST_GAIN) > bound
        return taken.tokens_per_s >= bound * (1 - tolerance(plan, taken.plan))

    def _ladder(self) -> Iterator[LadderStep]:
        for strategy, own in self.found.items():
            best = best_of_strategy(own, self.least)
            if best is not None:
                yield LadderStep.from_candidate(strategy, best, self.least)
