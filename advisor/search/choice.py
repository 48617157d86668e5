"""Which plan is taken: the best of a rung, and of all rungs the fastest that fits or a simpler one that is as fast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from ...estimators.plan import Plan
from ..question.question import Risk
from .candidate import LEAST, LIKELY, Candidate, LadderStep

SAME_SPEED = 0.03
"""Two predictions closer than this are called equal, and the simpler plan is taken: the time model does not resolve
less."""

LEAST_GAIN = 0.10
"""What a plan that offloads, shares samples or gathers its weights must gain over one that does not: it takes host
memory or the links, and its time rests on more assumed figures (PCIe shared by the GPUs, host memory bandwidth, cores,
links) whose error is about this large. Of 19 published pairs that differ in stage 3 alone it took 12 % longer, against
the other's time, than predicted on average, and more than half as long again in three
(`benchmarks/accuracy/stage_three.py`)."""

COMFORTABLE = 0.9
"""Share of what a plan's tightest resource offers up to which a plan is taken for its simplicity alone. Beyond, a plan
of the same speed that leaves more room is the better advice."""


class Timed(Protocol):
    """A plan with its speed."""

    @property
    def plan(self) -> Plan: ...

    @property
    def tokens_per_s(self) -> float: ...


PlanWithSpeed = TypeVar("PlanWithSpeed", bound=Timed)


def fastest_that_fits(ladder: Iterable[LadderStep]) -> Candidate | None:
    """The fastest rung that may be taken and pays for what it wants (`paying`), or a simpler one that is as fast within
    `SAME_SPEED`.

    Of equals the lowest on the ladder, which has the fewest parts, that fits comfortably; else the lowest. For room
    alone nothing is wanted that the lowest does without: it fits, too.
    """
    candidates = paying(step.candidate for step in ladder if step.taken and step.candidate is not None)
    if not candidates:
        return None
    enough = max(candidate.tokens_per_s for candidate in candidates) * (1 - SAME_SPEED)
    equals = [candidate for candidate in candidates if candidate.tokens_per_s >= enough]
    lowest = equals[0]
    alike = (candidate for candidate in equals if _wants(candidate.plan) <= _wants(lowest.plan))
    return next((candidate for candidate in alike if candidate.fit.utilization <= COMFORTABLE), lowest)


def paying(plans: Iterable[PlanWithSpeed]) -> list[PlanWithSpeed]:
    """Those that gain at least `LEAST_GAIN` over each other that pays and wants less; in their order.

    One of them is the fastest of all, or slower than that by less than `LEAST_GAIN`.
    """
    given = list(plans)
    found: list[int] = []
    for index in sorted(range(len(given)), key=lambda index: len(_wants(given[index].plan))):
        one = given[index]
        enough = one.tokens_per_s * (1 - LEAST_GAIN)
        rivals = (given[other] for other in found if given[other].tokens_per_s >= enough)
        if not any(wants_more_than(one.plan, rival.plan) for rival in rivals):
            found.append(index)
    return [given[index] for index in sorted(found)]


WORTH_A_RISK = 1.2
"""How many times as fast as the recommended plan one that is only likely to fit must be to be tried first: a start that
runs out of memory costs some minutes and a look."""

SAME_PROBABILITY = 0.05
"""Probabilities of fitting closer than this are called equal."""


def worth_trying_first(
    candidates: Iterable[Candidate], recommended: Candidate | None, risk: Risk = "safe"
) -> Candidate | None:
    """The likely plan that promises most, if it is `WORTH_A_RISK` times as fast as the recommended one; None if not.

    What a plan promises is its speed times the probability that it fits, and the recommended plan's speed where it does
    not; of plans that are as fast and as sure the first on the ladder is taken.
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
    return next(each for each in likely if as_fast(each, best) and each.fit.probability >= sure)


def as_fast(candidate: Candidate, fastest: Candidate) -> bool:
    """Whether two plans are equally fast to the time model, or so nearly that the simpler one is the better advice."""
    gained = wants_more_than(fastest.plan, candidate.plan)
    return candidate.tokens_per_s >= fastest.tokens_per_s * (1 - (LEAST_GAIN if gained else SAME_SPEED))


def wants_more(plan: Plan) -> bool:
    """Whether a plan offloads, shares samples or gathers its weights, which is to gain something."""
    return bool(_wants(plan))


def wants_more_than(plan: Plan, other: Plan) -> bool:
    """Whether a plan does all of offloading, sharing samples and gathering weights that the other does, and more."""
    return _wants(plan) > _wants(other)


def _wants(plan: Plan) -> frozenset[str]:
    """What a plan does to gain something."""
    wants = {"offload": plan.offloads, "share": plan.ranks_per_sample > 1, "gather": plan.zero_stage == 3}
    return frozenset(want for want, does in wants.items() if does)


def best_of_rung(candidates: list[Candidate], least: float) -> Candidate | None:
    """The fastest that fits with at least that probability, with the smallest micro batch that is as fast.

    Where none does: the same among those that are likely to, then among those that only the host or NVMe stops, and
    where the GPU stops all, the one that misses by least (of equals the one with checkpointing, as the recipe has it).
    """
    if not candidates:
        return None
    possible = (
        [candidate for candidate in candidates if candidate.fit.probability >= least]
        or [candidate for candidate in candidates if candidate.fit.probability >= LIKELY]
        or [candidate for candidate in candidates if candidate.fit.limit != "gpu"]
    )
    if not possible:
        return min(
            candidates, key=lambda candidate: (candidate.fit.utilization, not candidate.plan.gradient_checkpointing)
        )
    enough = max(candidate.tokens_per_s for candidate in possible) * (1 - SAME_SPEED)
    fast = [candidate for candidate in possible if candidate.tokens_per_s >= enough]
    return min(fast, key=_simplicity)


def _simplicity(candidate: Candidate) -> tuple[int, int, bool, int, int]:
    plan = candidate.plan
    shared, copied = plan.ranks_per_sample, plan.zero_hpz_partition_size
    return shared, copied, plan.quantizes_collectives, plan.micro_batch_size, candidate.device_bytes
