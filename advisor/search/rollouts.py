"""The search for the generator of the completions: the training GPUs, or a server on some number of GPUs.

A server's GPUs generate while the others wait, and wait while the others train. With R GPU-seconds of generation and T
of other work in a step, the best number k of N GPUs for generation minimizes R / k + T / (N - k): k / (N - k) = sqrt(R
/ T). The search begins there and moves to the neighbours while they are faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from operator import attrgetter

from ..question.question import Question
from ..question.rollouts import rollout_choices
from .candidate import Candidate
from .search import fastest


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
    question has the first settings."""
    choices = rollout_choices(question)
    if len(choices) == 1:
        return choices[0], ()
    outcomes, servers = list[RolloutOutcome](), dict[int, Question]()
    for choice in choices:
        rollouts = choice.workload.rollouts
        if rollouts is not None and rollouts.server_gpus:
            servers[rollouts.server_gpus] = choice
        else:
            outcomes.append(_outcome(choice))
    by_speed = attrgetter("tokens_per_s")
    if servers:
        outcomes.append(_best_split(servers, max(outcomes, key=by_speed, default=None)))
    taken = max(outcomes, key=by_speed)
    return taken.question, tuple(outcome for outcome in outcomes if outcome is not taken)


def _outcome(question: Question) -> RolloutOutcome:
    return RolloutOutcome(question=question, best=fastest(question))


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
                found[index] = _outcome(servers[sizes[index]])
        best = max(near, key=lambda index: found[index].tokens_per_s)
        if found[best].tokens_per_s <= found[position].tokens_per_s:
            return found[position]
        position = best
