"""The choice among candidates: the best of each strategy; over all strategies the fastest, or a simpler one of equal
speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from ...estimators.plan import STRATEGIES, Plan
from ..question.options import Risk
from .candidate import LEAST, LIKELY, Candidate, LadderStep

SAME_SPEED = 0.03
"""Relative difference below which two predicted speeds count as equal: the resolution of the time model."""

LEAST_GAIN = 0.10
"""Least relative gain of a plan that offloads, shares samples or gathers weights over one that does not.

The time of such a plan depends on more assumed figures (PCIe shared by the GPUs, host memory bandwidth, cores, links),
with an error of about this size (docs/how-true.md, step times of DeepSpeed on several GPUs).
"""

COMFORTABLE = 0.9
"""Highest utilization at which a plan is preferred for its simplicity alone."""

WORTH_A_RISK = 1.2
"""Least speed-up of a plan that only likely fits over the recommended plan, to be tried first: a failed start costs
some minutes."""

SAME_PROBABILITY = 0.05
"""Difference below which two probabilities of fitting count as equal."""


class Timed(Protocol):
    """A plan with its speed."""

    @property
    def plan(self) -> Plan: ...

    @property
    def tokens_per_s(self) -> float: ...


PlanWithSpeed = TypeVar("PlanWithSpeed", bound=Timed)


def best_of_strategy(candidates: Sequence[Candidate], least: float) -> Candidate | None:
    """Return the simplest of the fastest candidates that fit with the probability `least`.

    If there are none, candidates that likely fit are considered, then those limited by host or NVMe, first those that
    more of it would make fit as surely. If the GPU limits all, the result is the one closest to fitting, with
    checkpointing on a tie.
    """
    if not candidates:
        return None
    possible = (
        [candidate for candidate in candidates if candidate.fit.probability >= least]
        or [candidate for candidate in candidates if candidate.fit.probability >= LIKELY]
        or [each for each in candidates if each.fit.limit != "gpu" and each.fit.gpu_probability >= least]
        or [candidate for candidate in candidates if candidate.fit.limit != "gpu"]
    )
    if not possible:
        return min(candidates, key=lambda each: (each.fit.utilization, not each.plan.gradient_checkpointing))
    enough = max(candidate.tokens_per_s for candidate in possible) * (1 - SAME_SPEED)
    return min((each for each in possible if each.tokens_per_s >= enough), key=_complexity)


def _complexity(candidate: Candidate) -> tuple[int, int, bool, int, int]:
    plan = candidate.plan
    # Tuples compare from the left: shared samples are the most complex, memory breaks ties.
    groups = plan.ranks_per_sample, plan.zero_hpz_partition_size
    return *groups, plan.quantizes_collectives, plan.micro_batch_size, candidate.device_bytes


def fastest_that_fits(ladder: Iterable[LadderStep]) -> Candidate | None:
    """Return the fastest candidate that may be taken and is not dominated (`drop_dominated`), or a simpler one within
    `SAME_SPEED`: the lowest strategy that fits comfortably without more costly features than the lowest of all, or else
    the lowest. One that fits only if the host has enough RAM must be faster by `SAME_SPEED` than every other that
    offloads no more."""
    taken = [step.candidate for step in ladder if step.taken and step.candidate is not None]
    chosen = _fastest(taken)
    if chosen is None or not chosen.fit.assumed_host_bytes:
        return chosen
    certain = _fastest(
        [each for each in taken if not each.fit.assumed_host_bytes and offloads(each.plan) <= offloads(chosen.plan)]
    )
    enough = chosen.tokens_per_s * (1 - SAME_SPEED)
    return chosen if certain is None or certain.tokens_per_s < enough else certain


def _fastest(taken: Sequence[Candidate]) -> Candidate | None:
    candidates = drop_dominated(taken)
    if not candidates:
        return None
    enough = max(candidate.tokens_per_s for candidate in candidates) * (1 - SAME_SPEED)
    equals = [candidate for candidate in candidates if candidate.tokens_per_s >= enough]
    # `equals` has the order of the ladder, whose first strategy is the simplest.
    lowest = costly_features(equals[0].plan)
    simple = (candidate for candidate in equals if costly_features(candidate.plan) <= lowest)
    return next((candidate for candidate in simple if candidate.fit.utilization <= COMFORTABLE), equals[0])


def closest(ladder: Iterable[LadderStep]) -> Candidate | None:
    """Return the best plan of a strategy that has the smallest shortage; None if no strategy has a plan."""
    plans = (step.candidate for step in ladder if step.candidate is not None)
    return min(plans, key=lambda candidate: candidate.fit.utilization, default=None)


def other_taken_plans(ladder: Iterable[LadderStep], chosen: Candidate | None) -> list[Candidate]:
    """Return the best plans of the other strategies that may be recommended."""
    return [step.candidate for step in ladder if step.taken and step.candidate and step.candidate is not chosen]


def drop_dominated(plans: Iterable[PlanWithSpeed]) -> list[PlanWithSpeed]:
    """Return, in order, the plans that gain at least `LEAST_GAIN` over every kept plan with fewer costly features.

    The fastest kept plan is slower than the fastest of all by less than `LEAST_GAIN`.
    """
    choices = list(plans)
    features = [costly_features(plan.plan) for plan in choices]
    kept: list[int] = []
    # A plan is dominated only by plans with fewer features, so those are decided first.
    for index in sorted(range(len(choices)), key=lambda index: len(features[index])):
        enough = choices[index].tokens_per_s * (1 - LEAST_GAIN)
        if not any(choices[rival].tokens_per_s >= enough and features[rival] < features[index] for rival in kept):
            kept.append(index)
    return [choices[index] for index in sorted(kept)]


def is_passed_for_room(rival: Candidate, chosen: Candidate) -> bool:
    """Whether a plan of equal speed on a lower strategy is passed over because it does not fit comfortably."""
    is_lower = STRATEGIES.index(rival.strategy) < STRATEGIES.index(chosen.strategy)
    is_as_simple = costly_features(rival.plan) <= costly_features(chosen.plan)
    return is_lower and is_as_simple and rival.fit.utilization > max(COMFORTABLE, chosen.fit.utilization)


def costly_features(plan: Plan) -> frozenset[str]:
    """Return the costly features of a plan: sample sharing, weight gathering (stage 3), and offloading of states or of
    layer inputs. A plan that offloads transfers more, over a slower link, than one that only gathers, so it has all
    features of the latter. A plan that shares samples needs changes to the training script, so it has all features of
    every plan that does not."""
    gathers, shares = plan.zero_stage == 3, plan.ranks_per_sample > 1
    used = {
        "transfer": gathers or offloads(plan),
        "offload": offloads(plan),
        "offload states": plan.offloads,
        "offload inputs": plan.cpu_checkpointing,
        "gather and offload": gathers and offloads(plan),
    }
    own = {feature for feature, is_used in used.items() if is_used}
    return frozenset({*used, *(f"{feature} of shared samples" for feature in ("share", *own))} if shares else own)


def offloads(plan: Plan) -> bool:
    """Whether a plan keeps states, weights or layer inputs outside the GPU."""
    return plan.offloads or plan.cpu_checkpointing


def burdens(plan: Plan) -> frozenset[str]:
    """Return what a plan demands of the host or of the training script: offloading, sample sharing."""
    used = {"offload": offloads(plan), "share": plan.ranks_per_sample > 1}
    return frozenset(burden for burden, is_used in used.items() if is_used)


def worth_trying_first(
    candidates: Iterable[Candidate], recommended: Candidate | None, risk: Risk = "safe"
) -> Candidate | None:
    """Return the candidate with the highest expected speed among those that only likely fit, if it is `WORTH_A_RISK`
    times as fast as the recommended one.

    Expected speed: the candidate's speed with its probability of fitting, the recommended plan's speed otherwise. On a
    tie of speed and probability, the first on the ladder is returned.
    """
    safe = 0.0 if recommended is None else recommended.tokens_per_s
    likely = [
        candidate
        for candidate in candidates
        if LIKELY <= candidate.fit.probability < LEAST[risk] and candidate.tokens_per_s >= WORTH_A_RISK * safe
    ]
    best = max(likely, key=lambda each: each.fit.probability * (each.tokens_per_s - safe), default=None)
    if best is None:
        return None
    sure = best.fit.probability - SAME_PROBABILITY
    return next(each for each in likely if is_as_fast(each, best) and each.fit.probability >= sure)


def is_as_fast(candidate: Candidate, fastest: Candidate) -> bool:
    """Whether a candidate is as fast as the fastest within `SAME_SPEED`, or within `LEAST_GAIN` if the fastest has more
    costly features."""
    return candidate.tokens_per_s >= fastest.tokens_per_s * (1 - tolerance(fastest.plan, candidate.plan))


def tolerance(plan: Plan, other: Plan) -> float:
    """Return the relative gain below which `plan` is not preferred to `other`."""
    return LEAST_GAIN if costly_features(plan) > costly_features(other) else SAME_SPEED
