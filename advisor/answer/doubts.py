"""Doubts about the choice of a plan: costs in accuracy, and plans that are close."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

from ...estimators.phrase import Phrase, phrase
from ...estimators.time.step_time import ratio_spread
from ..question.question import Question
from ..search.candidate import Candidate, LadderStep
from ..search.choice import taken_others
from ..text.units import percent, rate

ROUNDED = phrase(
    "Master weights in bf16 have 8 significant bits, so an update below 1/512 of a weight is rounded away: compare the "
    "loss with that of --optimizer-dtype fp32 before a long training."
)
SENT_IN_FEWER_BITS = phrase(
    "Communicating weights in 8 bits and gradients in 4 changes the loss: compare it with a run without --zeropp "
    "before a long training. DeepSpeed's quantization kernels run on NVIDIA GPUs only; their memory and traffic are "
    "derived from its source code."
)
NEEDS_TRANSFORMERS = phrase(
    "AutoEP needs transformers 5.0 to 5.22: DeepSpeed 0.19.8 cannot initialize it with later versions. transformers "
    "saves only the experts of rank 0: keep DeepSpeed's own checkpoints (engine.save_checkpoint). The step time "
    "assumes a balanced router and has not been compared with published runs."
)


def doubts(question: Question, ladder: Sequence[LadderStep], chosen: Candidate | None) -> tuple[str, ...]:
    """Return cautions and doubts: the accuracy cost of bf16 states and quantized collectives, the requirements of
    AutoEP, and plans that are close.

    Two plans are close if the predicted gap is less than the median error of a predicted speed ratio (half of its
    interval, in logarithms), so their order is open. On one GPU, a ZeRO stage without offload partitions nothing and
    can only be slower.
    """
    if chosen is None:
        return ()
    cluster, plan, others = question.cluster, chosen.plan, taken_others(ladder, chosen)
    cautions = (
        (plan.bf16_optimizer_states, ROUNDED),
        (plan.quantizes_collectives, SENT_IN_FEWER_BITS),
        (plan.autoep_size > 1, NEEDS_TRANSFORMERS),
    )
    close = [
        other
        for other in others
        if (cluster.world_size > 1 or other.plan.offloads)
        and not chosen.estimate.evidence == other.estimate.evidence == "probe"
        and other.tokens_per_s >= chosen.tokens_per_s * sqrt(ratio_spread(plan, other.plan).low)
    ]
    return (
        *(caution for applies, caution in cautions if applies),
        *_close(close, chosen, question.model.unit),
    )


def _close(plans: Sequence[Candidate], chosen: Candidate, unit: str) -> Iterator[Phrase]:
    """Yield `zero3: 2 % faster on paper, within the error; the simpler is taken.`, and `zero2 and ddp are close:
    25,600 to 30,400 tokens/s.`"""
    gains = {plan.rung: plan.tokens_per_s / chosen.tokens_per_s - 1 for plan in plans}
    ahead = [rung for rung, gain in gains.items() if gain >= 0.005]
    behind = [plan for plan in plans if plan.rung not in ahead]
    if ahead:
        gain = percent(max(gains.values()))
        if len(ahead) > 1:
            gain = phrase("up to {gain}", gain=gain)
        names = _joined(ahead)
        yield phrase(
            "{rungs}: predicted {gain} faster, within the error; the simpler plan is used.", rungs=names, gain=gain
        )
    if behind:
        speeds = sorted(plan.tokens_per_s for plan in behind)
        low, high = rate(speeds[0]), rate(speeds[-1])
        speed = low if low == high else phrase("{low} to {high}", low=low, high=high)
        names = _joined([plan.rung for plan in behind])
        yield (
            phrase("{rung} is close: {speed} {unit}/s.", rung=names, speed=speed, unit=unit)
            if len(behind) == 1
            else phrase("{rungs} are close: {speed} {unit}/s.", rungs=names, speed=speed, unit=unit)
        )


def _joined(names: Sequence[str]) -> str:
    """Return `zero2`, `zero2 and zero3`, or `ddp, zero2 and zero3`."""
    *first, last = names
    return phrase("{first} and {last}", first=", ".join(first), last=last) if first else last
