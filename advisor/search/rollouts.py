"""The search for the generator of the completions (the training GPUs, or a server on some number of GPUs), for the
number of completions that are generated at once, and for a batch that fits.

A server's GPUs generate while the others wait, and wait while the others train. With R GPU-seconds of generation and T
of other work in a step, the best number k of N GPUs for generation minimizes R / k + T / (N - k): k / (N - k) = sqrt(R
/ T). The search begins there and moves to the neighbours while they are faster.

All completions of a step are generated at once, as in TRL, unless generation in parts fits a faster plan. If nothing
fits with the assumed batch, the batch is halved until something does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from operator import attrgetter

from ...estimators.rollouts import BATCH_SIZE
from ..question.question import Question
from ..question.rollouts import generation_choices, rollout_choices
from .candidate import Candidate
from .choice import SAME_SPEED, costly_features
from .search import any_fits, fastest


@dataclass(frozen=True, kw_only=True)
class RolloutOutcome:
    """The fastest plan for one choice of generator."""

    question: Question
    best: Candidate | None
    """None if nothing fits."""

    @property
    def tokens_per_s(self) -> float:
        return 0.0 if self.best is None else self.best.tokens_per_s


def choose_rollout(question: Question) -> tuple[Question, tuple[RolloutOutcome, ...]]:
    """Return (the question with the fastest rollout settings, the best of the other choices). If nothing fits, the
    question has the first settings, in the parts that need the least memory."""
    if question.workload.rollouts is None or not question.free_rollouts:
        return question, ()
    outcomes = _outcomes(rollout_choices(question))
    if all(outcome.best is None for outcome in outcomes) and question.is_batch_free:
        outcomes = _smaller_batch(question) or outcomes
    taken = max(outcomes, key=attrgetter("tokens_per_s"))
    return taken.question, tuple(outcome for outcome in outcomes if outcome is not taken)


def fastest_generation(question: Question, *, enough: float = 0.0) -> RolloutOutcome:
    """Return the fastest plan over the parts in which completions are generated, the fewest parts of plans that are
    equally fast. enough: as for `fastest`."""
    found: RolloutOutcome | None = None
    for choice in generation_choices(question):
        least = enough if found is None else found.tokens_per_s * (1 + SAME_SPEED)
        best = fastest(choice, enough=least)
        if found is None or found.best is None or (best is not None and best.tokens_per_s >= least):
            found = RolloutOutcome(question=choice, best=best)
        if found.best is not None and not costly_features(found.best.plan):
            break  # smaller parts would only save memory
    assert found is not None, "the first choice is the question itself"
    return found


def _outcomes(choices: Sequence[Question]) -> list[RolloutOutcome]:
    """Return the best of each kind of generator; of the servers, only the fastest split."""
    outcomes, servers = list[RolloutOutcome](), dict[int, Question]()
    for choice in choices:
        rollouts = choice.workload.rollouts
        if rollouts is not None and rollouts.server_gpus:
            servers[rollouts.server_gpus] = choice
        else:
            outcomes.append(fastest_generation(choice))
    if servers:
        outcomes.append(_best_split(servers, max(outcomes, key=attrgetter("tokens_per_s"), default=None)))
    return outcomes


def _smaller_batch(question: Question) -> list[RolloutOutcome]:
    """Return the outcomes with the largest assumed batch that fits; empty if none does."""
    completions = BATCH_SIZE
    if not any(any_fits(part) for choice in rollout_choices(question, 1) for part in generation_choices(choice)):
        return []
    while completions > 1:
        completions //= 2
        outcomes = _outcomes(rollout_choices(question, completions))
        if any(outcome.best is not None for outcome in outcomes):
            return outcomes
    return []


def _best_split(servers: dict[int, Question], other: RolloutOutcome | None) -> RolloutOutcome:
    """Return the fastest split between training and server. other: the best plan without a server."""
    sizes, found = sorted(servers), dict[int, RolloutOutcome]()
    gpus = sizes[0] + servers[sizes[0]].cluster.world_size
    ratio = 1 / 3  # a quarter of the GPUs generates
    if other is not None and other.best is not None:
        time = other.best.time
        ratio = sqrt(time.components["rollout"] / (time.step_s - time.components["rollout"]))
    position = min(range(len(sizes)), key=lambda index: abs(sizes[index] - gpus * ratio / (1 + ratio)))
    while True:
        near = range(max(0, position - 1), min(len(sizes), position + 2))
        for index in near:
            if index not in found:
                found[index] = fastest_generation(servers[sizes[index]])
        best = max(near, key=lambda index: found[index].tokens_per_s)
        if found[best].tokens_per_s <= found[position].tokens_per_s:
            return found[position]
        position = best
