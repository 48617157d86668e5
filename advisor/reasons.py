"""Why this plan: what the others lack, what bounds the batch, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..estimators.estimate import TimeEstimate
from .fit import MARGIN
from .question import Question
from .recommendation import Candidate, LadderStep
from .search import SAME_SPEED
from .units import gib, percent
from .words import component_title


def reasons(question: Question, ladder: Sequence[LadderStep], chosen: Candidate | None,
            candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Sentences, most decisive first; for a question without a fitting plan, what stands in the way."""
    if chosen is None:
        closest = min((step for step in ladder if step.candidate is not None),
                      key=lambda step: step.candidate.fit.shortfall if step.candidate else 0.0, default=None)
        return tuple(_shortages(closest, question)) if closest else ()
    sentences = [_next_best(ladder, chosen), _simpler_that_fails(ladder, chosen), _checkpointing(chosen, candidates),
                 _micro_batch(question, chosen, candidates)]
    return tuple(sentence for sentence in sentences if sentence)


def time_shares(time: TimeEstimate) -> tuple[tuple[str, float], ...]:
    """(term, share of the step), largest first."""
    shares = [(name, taken / time.step_s) for name, taken in time.components.items() if taken > 0]
    return tuple(sorted(shares, key=lambda pair: -pair[1]))


def _shortages(step: LadderStep, question: Question) -> Iterator[str]:
    """Everything that the closest plan lacks, not only what stopped it first."""
    assert step.candidate is not None
    yield _obstacle(step)
    need, have = step.candidate.estimate.memory.host_bytes_per_node, question.cluster.host_memory_bytes_per_node
    if step.candidate.fit.limit != "host" and have is not None and need > have:
        yield f"It would also need {gib(need)} GiB of host RAM per node; there are {gib(have)}."


def _next_best(ladder: Sequence[LadderStep], chosen: Candidate) -> str:
    others = [step.candidate for step in ladder if step.fits and step.candidate and step.candidate is not chosen]
    if not others:
        return "It is the only rung that fits."
    rival = max(others, key=lambda candidate: candidate.tokens_per_s)
    ratio = rival.tokens_per_s / chosen.tokens_per_s
    if ratio >= 1 - SAME_SPEED:
        return f"{rival.rung} is as fast within {percent(SAME_SPEED)}; {chosen.rung} has fewer moving parts."
    name, share = time_shares(rival.estimate.time)[0]
    return (f"The next best, {rival.rung}, runs at {percent(ratio)} of its speed: "
            f"{component_title(name)} takes {percent(share)} of that step.")


def _simpler_that_fails(ladder: Sequence[LadderStep], chosen: Candidate) -> str:
    """The rung just below the chosen one that does not fit, and its largest component."""
    below = ladder[:next(index for index, step in enumerate(ladder) if step.candidate is chosen)]
    failed = [step for step in below if not step.fits and step.candidate is not None]
    return _obstacle(failed[-1]) if failed else ""


def _obstacle(step: LadderStep) -> str:
    assert step.candidate is not None
    memory, limit = step.candidate.estimate.memory, step.candidate.fit.limit
    if limit == "gpu":
        name, size_bytes = max(memory.components.items(), key=lambda pair: pair[1])
        return (f"{step.rung} needs {gib(memory.device_bytes_per_gpu)} GiB per GPU at the least, "
                f"{gib(size_bytes)} of it {component_title(name)}.")
    if limit == "host":
        return f"{step.rung} needs {gib(memory.host_bytes_per_node)} GiB of host RAM per node."
    return f"{step.rung} needs {gib(memory.nvme_bytes_per_node)} GiB of NVMe per node."


def _checkpointing(chosen: Candidate, candidates: Sequence[Candidate]) -> str:
    plan = chosen.estimate.plan
    others = [candidate for candidate in candidates
              if candidate.rung == chosen.rung and candidate.estimate.plan.gradient_checkpointing
              != plan.gradient_checkpointing]
    if not others:
        return ""
    fitting = [candidate for candidate in others if candidate.fit.fits]
    if not fitting:
        least = min(others, key=lambda candidate: candidate.device_bytes)
        return (f"Without gradient checkpointing it needs {gib(least.device_bytes)} GiB at micro batch "
                f"{least.estimate.plan.micro_batch_size}.")
    rival = max(fitting, key=lambda candidate: candidate.tokens_per_s)
    switch = "Gradient checkpointing" if plan.gradient_checkpointing else "No gradient checkpointing"
    ratio = chosen.tokens_per_s / rival.tokens_per_s
    if ratio <= 1 + SAME_SPEED:
        return ""
    return (f"{switch} makes it {ratio:.2f} x as fast: "
            + (f"it makes room for micro batch {plan.micro_batch_size} instead of "
               f"{rival.estimate.plan.micro_batch_size}." if plan.gradient_checkpointing
               else "nothing is computed twice."))


def _micro_batch(question: Question, chosen: Candidate, candidates: Sequence[Candidate]) -> str:
    plan = chosen.estimate.plan
    if question.micro_batch_size is not None:
        return ""
    larger = [candidate for candidate in candidates if candidate.rung == chosen.rung
              and candidate.estimate.plan.gradient_checkpointing == plan.gradient_checkpointing
              and candidate.estimate.plan.micro_batch_size > plan.micro_batch_size]
    if not larger:
        return ""
    following = min(larger, key=lambda candidate: candidate.estimate.plan.micro_batch_size)
    size = following.estimate.plan.micro_batch_size
    if following.fit.limit == "gpu":
        bare = following.device_bytes <= question.cluster.gpu.memory_bytes
        margin = f", which leaves less than the margin of {percent(MARGIN['analytic'])} free" if bare else ""
        return f"Micro batch {size} would need {gib(following.device_bytes)} GiB per GPU{margin}."
    if following.fit.fits:
        return f"A larger micro batch gains less than {percent(SAME_SPEED)}."
    return ""
