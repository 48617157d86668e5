"""`--probe`: settle the recommendation by real runs on this machine, as few as will do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...ds_configs.emit import ds_config
from ...probes.real_run import ProbeResult, probe
from ...probes.real_run.job import Device
from ..recommend.recommendation import Candidate, Recommendation
from .calibration import calibration
from .past_probes import keep_probe
from .probe_answer import cpu_rank_bytes
from .probe_order import Climb, Outcome

Ended = Literal["settled", "budget", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A candidate that was run: why it was chosen, and what happened.

    age_s: how long ago it ran where it was not run for this answer, None where it was.
    """

    candidate: Candidate
    reason: str
    result: ProbeResult
    age_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Climbed:
    """All runs of a climb, in order; what was known before it comes first.

    ended: "settled": nothing that is left could be faster by more than the search resolves; "budget": the time was
           over; "interrupted": Ctrl-C. bound: no climb over these candidates takes more runs of its own.
    """

    trials: tuple[Trial, ...]
    ended: Ended
    bound: int
    candidates: int

    @property
    def runs(self) -> int:
        """How many were run for this climb."""
        return sum(trial.age_s is None for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """The fastest that ran."""
        return max(
            (trial for trial in self.trials if trial.result.failure is None),
            key=lambda trial: trial.result.tokens_per_s,
            default=None,
        )


Run = Callable[[Candidate, float], ProbeResult]
"""Runs a candidate within so many seconds."""

OnTrial = Callable[[Candidate, str, int], None]
"""Called before each run with the candidate, the reason, and how many others could still win."""


def climb(answer: Recommendation, run: Run, *, budget_s: float, on_trial: OnTrial = lambda *_: None) -> Climbed:
    """Probe until the answer is settled, `budget_s` is over, or the user interrupts; what was learned is never lost,
    and what earlier probes say (`answer.earlier`) is not run again."""
    candidates = runnable(answer)
    state = Climb(candidates, answer.question.cluster.gpu.memory_bytes)
    trials = list(answer.earlier)
    for trial in trials:
        state.learn(trial.candidate, outcome(trial.candidate, trial.result, answer), from_before=True)
    deadline = time.monotonic() + budget_s

    def so_far(ended: Ended) -> Climbed:
        return Climbed(trials=tuple(trials), ended=ended, bound=state.bound, candidates=len(candidates))

    try:
        while (choice := state.choose()) is not None:
            left_s = deadline - time.monotonic()
            if left_s < max((trial.result.seconds for trial in trials), default=0.0):
                return so_far("budget")  # a run would be cut off before it says anything
            on_trial(choice.candidate, choice.reason, state.left())
            result = run(choice.candidate, left_s)
            if result.failure is not None and result.failure.kind == "timeout" and time.monotonic() >= deadline:
                return so_far("budget")
            trials.append(Trial(candidate=choice.candidate, reason=choice.reason, result=result))
            state.learn(choice.candidate, outcome(choice.candidate, result, answer))
        return so_far("settled")
    except KeyboardInterrupt:
        return so_far("interrupted")


def runnable(answer: Recommendation) -> list[Candidate]:
    """The candidates that a run can judge: all but those that want RAM or NVMe that is not there."""
    has_nvme = bool(answer.question.cluster.nvme_path)
    return [
        candidate
        for candidate in answer.candidates
        if candidate.fit.limit in ("", "gpu") and (has_nvme or not candidate.estimate.memory.nvme_bytes_per_node)
    ]


def outcome(candidate: Candidate, result: ProbeResult, answer: Recommendation) -> Outcome:
    """What a probe of a candidate teaches a climb."""
    if result.failure is not None:
        return Outcome(tokens_per_s=None, out_of_memory=result.failure.kind == "out_of_memory")
    memory = candidate.estimate.memory
    if result.device == "cpu":
        # The prediction's scale: what the closed form says of a rank, corrected by what it took.
        measured, predicted = (
            result.highest("host_tensor_bytes"),
            cpu_rank_bytes(memory, answer.question.cluster.gpus_per_node),
        )
    else:
        measured, predicted = result.highest("allocated_bytes"), memory.allocated_bytes_per_gpu
    need = None if measured is None else round(memory.device_bytes_per_gpu * measured / predicted)
    return Outcome(
        tokens_per_s=result.tokens_per_s, need_bytes=need, calibration=calibration(result, candidate.estimate.time)
    )


def runner(
    answer: Recommendation,
    description: Mapping[str, Any],
    *,
    device: Device,
    memory_limit_bytes: int | None,
    on_progress: Callable[[str], None],
) -> Run:
    """Runs a candidate of the answer as a probe on this machine, and keeps what came of it."""
    question = answer.question

    def run(candidate: Candidate, timeout_s: float) -> ProbeResult:
        plan = candidate.estimate.plan
        config = ds_config(
            plan, question.model, question.workload, question.cluster, flavor=question.workload.framework
        )
        result = probe(
            config,
            description,
            cluster=question.cluster,
            workload=question.workload,
            device=device,
            micro_batch_size=plan.micro_batch_size,
            gradient_accumulation_steps=plan.gradient_accumulation_steps,
            gradient_checkpointing=plan.gradient_checkpointing,
            memory_limit_bytes=memory_limit_bytes,
            timeout_s=timeout_s,
            on_progress=on_progress,
        )
        keep_probe(
            result,
            model=question.model,
            name=question.model.name,
            config=config,
            workload=question.workload,
            micro_batch_size=plan.micro_batch_size,
            gradient_accumulation_steps=plan.gradient_accumulation_steps,
            gradient_checkpointing=plan.gradient_checkpointing,
            memory_limit_bytes=memory_limit_bytes,
        )
        return result

    return run
