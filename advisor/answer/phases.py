"""Phases of a reinforcement learning step (rollout, scoring and training), with time and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ...estimators.rollouts import Rollouts
from ...estimators.time.rollout_time import ROLLOUT_TERMS, SCORING_TERMS, Engine, vllm_engine
from ..document.blocks import Fact
from ..question.question import Question
from ..search.candidate import Candidate
from ..search.rollouts import RolloutOutcome
from ..text.labels import device_label
from ..text.units import counted_noun, gib, percent, rate, seconds

StepPhase = Literal["rollout", "scoring", "training"]

_PHASES: tuple[StepPhase, ...] = ("rollout", "scoring", "training")

_MEMORY_PHASES: Mapping[str, StepPhase] = {
    **dict.fromkeys(("rollout_prefill", "rollout", "weight_synchronization"), "rollout"),
    **dict.fromkeys(("scoring", "rewards"), "scoring"),
}
"""Phase of a step by name in `MemoryEstimate.phases`; all other names belong to training."""

_TIME_PHASES: Mapping[str, StepPhase] = {
    **dict.fromkeys(ROLLOUT_TERMS, "rollout"),
    **dict.fromkeys(SCORING_TERMS, "scoring"),
}
"""Phase of a step by the name of a time term; all other terms belong to training."""


@dataclass(frozen=True, kw_only=True)
class PhaseFigures:
    """A phase of a step that generates completions, scores them and trains on them."""

    name: StepPhase
    seconds: float
    """Seconds per optimizer step; the phases add up to step_seconds."""
    allocated_bytes_per_gpu: int
    """Peak of live tensors in the phase, including the memory of a colocated vLLM."""
    device_bytes_per_gpu: int
    """Device memory with allocator and library overhead; compared with the GPU's memory."""


def phase_figures(candidate: Candidate) -> tuple[PhaseFigures, ...]:
    """Return the phases of a plan's step; empty for an objective without completions. The memory of a rollout server's
    own GPUs is not counted."""
    memory, time = candidate.memory, candidate.time
    if "rollout" not in time.components:
        return ()
    beyond = memory.device_bytes_per_gpu - memory.allocated_bytes_per_gpu
    taken_s, peaks = dict.fromkeys(_PHASES, 0.0), dict.fromkeys(_PHASES, 0)
    for term, part_s in time.components.items():
        taken_s[_TIME_PHASES.get(term, "training")] += part_s
    for phase in memory.phases:
        name = _MEMORY_PHASES.get(phase.name, "training")
        peaks[name] = max(peaks[name], phase.allocated_bytes)
    return tuple(
        PhaseFigures(
            name=name,
            seconds=taken_s[name],
            allocated_bytes_per_gpu=peaks[name],
            device_bytes_per_gpu=peaks[name] + beyond,
        )
        for name in _PHASES
        if taken_s[name]
    )


def phase_facts(question: Question, candidate: Candidate) -> Iterator[Fact]:
    """Yield the time and memory of each phase, and what it does."""
    workload, plan = question.workload, candidate.plan
    rollouts = workload.rollouts
    if rollouts is None:
        return
    per_gpu = plan.micro_batch_size * rollouts.micro_batches(plan.gradient_accumulation_steps)
    engine = vllm_engine(question.model, workload, question.cluster, per_gpu)
    scored = ["the policy's log-probabilities"] * rollouts.policy_passes(plan.gradient_accumulation_steps)
    if rollouts.beta > 0:
        full = workload.method == "full"
        scored.append("the reference model's log-probabilities" if full else "log-probabilities without adapters")
    if rollouts.reward_model is not None:
        scored.append(f"rewards by {rollouts.reward_model.name}")
    what = {
        "rollout": _generating(question, rollouts, engine, per_gpu),
        "scoring": ", ".join(scored) if scored else "",
        "training": f"{plan.gradient_accumulation_steps} micro batches of {plan.micro_batch_size} completions",
    }
    for phase in phase_figures(candidate):
        words = (
            f"({percent(phase.seconds / candidate.time.step_s)}), {gib(phase.device_bytes_per_gpu)} GiB "
            f"per {device_label(question.cluster)}; {what[phase.name]}"
        )
        yield Fact(phase.name, seconds(phase.seconds), words)


def _generating(question: Question, rollouts: Rollouts, engine: Engine, per_gpu: int) -> str:
    speed = rate(
        engine.engines
        * engine.sequences
        * rollouts.max_completion_length
        / engine.rollout_s(round(engine.engines * engine.sequences), rollouts.max_completion_length)
    )
    at_once = round(engine.sequences)
    total = per_gpu * question.cluster.world_size
    if rollouts.rollout == "generate":
        return f"generate, {at_once} completions per GPU at once, {speed} tokens/s in total"
    return (
        f"{counted_noun(engine.engines, 'vLLM engine')}, {min(at_once * engine.engines, total)} of {total} completions "
        f"at a time, {speed} tokens/s in total"
    )


def rollout_title(question: Question) -> str:
    """Return the generator, such as `a vLLM server on 2 of 8 GPUs`."""
    rollouts, training = question.workload.rollouts, question.cluster.world_size
    assert rollouts is not None
    if rollouts.rollout == "generate":
        return "transformers' generate"
    if rollouts.rollout == "vllm-server":
        gpus = rollouts.server_gpus
        return f"a vLLM server on {gpus} of {training + gpus} GPUs"
    if rollouts.vllm_enable_sleep_mode:
        return "colocated vLLM, asleep during training"
    return "colocated vLLM without sleep"


def generators(question: Question, others: tuple[RolloutOutcome, ...]) -> str:
    """Return the generator, and the speed of the alternatives; "" without rollouts."""
    if question.workload.rollouts is None:
        return ""
    text = rollout_title(question)
    slower = [
        f"{rollout_title(other.question)} {rate(other.tokens_per_s)}"
        for other in sorted(others, key=lambda other: -other.tokens_per_s)
        if other.best is not None
    ]
    return f"{text}; alternatives: {', '.join(slower)} tokens/s" if slower else text
