"""The plans of a rung that differ in the micro batch only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from ....ds_configs.presets import plan_for
from ....estimators.estimate import Estimate, MemoryEstimate, TimeEstimate
from ....estimators.memory.plan_memory import estimate_memory, resident_terms
from ....estimators.memory.terms import total_bytes
from ....estimators.plan import PlainPyTorch, Plan, Rung
from ....estimators.time.step_time import estimate_time
from ....estimators.unsupported import unsupported
from ...question.question import CheckpointingChoice, Question
from ..candidate import Candidate
from ..fit import LEAST, LIKELY, Fit, fit_of


class Judged(NamedTuple):
    """A plan and whether it fits, before its time is known."""

    plan: Plan
    memory: MemoryEstimate
    fit: Fit


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """The plans of a rung that differ in the micro batch only; what was found out about one is kept."""

    rung: Rung | PlainPyTorch
    settings: Mapping[str, Any]
    question: Question
    sequence_parallel_size: int
    checkpointing: CheckpointingChoice
    zero_hpz_partition_size: int
    autotp_size: int
    _memory: dict[tuple[int, int], tuple[Plan, MemoryEstimate]] = field(default_factory=dict, init=False)
    _judged: dict[tuple[int, int], Judged] = field(default_factory=dict, init=False)

    def obstacle(self) -> str | None:
        """Why none of them can run."""
        question = self.question
        return unsupported(question.model, question.workload, self.first_plan, question.cluster)

    def candidates(self) -> list[Candidate]:
        """By rising micro batch, with which memory rises, up to the first that is not likely to fit (kept: it shows by
        how much). Where sizes double, those between the last two are halved, since the search may take any."""
        found: list[Candidate] = []
        largest = 0
        for micro, accumulation in self.shapes:
            judged = self.judged(micro, accumulation)
            stops = judged.fit.limit == "gpu" and judged.fit.probability < LIKELY
            if stops and self.question.is_batch_free:
                found += [self.timed(one) for one in self.between(largest, micro)]
            found.append(self.timed(judged))
            if stops:
                break
            largest = micro
        return found

    @cached_property
    def is_hopeless(self) -> bool:
        """Whether it is known without an estimate that none of them fits: all need NVMe that nobody named, or more than
        the GPU for what stays there."""
        cluster, plan = self.question.cluster, self.first_plan
        if "nvme" in (plan.offload_optimizer, plan.offload_param) and not cluster.nvme_bytes_per_node:
            return True
        return self.resident_bytes > cluster.gpu.memory_bytes

    @cached_property
    def resident_bytes(self) -> int:
        """What is on each GPU all the time, whatever the batch."""
        question = self.question
        return total_bytes(resident_terms(question.model, question.workload, question.cluster, self.first_plan))

    def may_fit(self) -> bool:
        """Whether its smallest batch is likely to fit on the GPU."""
        if self.is_hopeless:
            return False
        fit = self.judged(*self.shapes[0]).fit
        return fit.limit != "gpu" or fit.probability >= LIKELY

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return self.question.batch_shapes(self.sequence_parallel_size * self.autotp_size)

    def between(self, fits: int, fails: int) -> list[Judged]:
        """Micro batches between one that fits and one that does not, by two halvings: the largest that surely fits is
        then at most a quarter short."""
        found: list[Judged] = []
        for _ in range(2):
            micro = (fits + fails) // 2
            if micro == fits:
                break
            judged = self.judged(micro, 1)
            fit = judged.fit
            if fit.limit != "gpu" or fit.probability >= LIKELY:
                found.append(judged)
            sure = fit.limit != "gpu" or fit.probability >= LEAST[self.question.risk]
            fits, fails = (micro, fails) if sure else (fits, micro)
        return sorted(found, key=lambda judged: judged.plan.micro_batch_size)

    def memory(self, micro_batch_size: int, gradient_accumulation_steps: int) -> tuple[Plan, MemoryEstimate]:
        shape, question = (micro_batch_size, gradient_accumulation_steps), self.question
        if shape not in self._memory:
            plan = self._plan(*shape)
            self._memory[shape] = plan, estimate_memory(question.model, question.workload, question.cluster, plan)
        return self._memory[shape]

    def judged(self, micro_batch_size: int, gradient_accumulation_steps: int) -> Judged:
        shape, question = (micro_batch_size, gradient_accumulation_steps), self.question
        if shape not in self._judged:
            plan, memory = self.memory(*shape)
            self._judged[shape] = Judged(plan, memory, fit_of(memory, question.cluster, question.workload))
        return self._judged[shape]

    def time(self, micro_batch_size: int, gradient_accumulation_steps: int) -> TimeEstimate:
        question, plan = self.question, self._plan(micro_batch_size, gradient_accumulation_steps)
        return estimate_time(question.model, question.workload, question.cluster, plan)

    def timed(self, judged: Judged, time: TimeEstimate | None = None) -> Candidate:
        question, (plan, memory, fit) = self.question, judged
        time = time or estimate_time(question.model, question.workload, question.cluster, plan)
        return Candidate(estimate=Estimate(plan=plan, memory=memory, time=time), fit=fit)

    def _plan(self, micro_batch_size: int, gradient_accumulation_steps: int) -> Plan:
        first = self.first_plan
        if (
            micro_batch_size == first.micro_batch_size
            and gradient_accumulation_steps == first.gradient_accumulation_steps
        ):
            return first
        return replace(
            first, micro_batch_size=micro_batch_size, gradient_accumulation_steps=gradient_accumulation_steps
        )

    @cached_property
    def first_plan(self) -> Plan:
        """That of the smallest batch."""
        question, (micro_batch_size, gradient_accumulation_steps) = self.question, self.shapes[0]
        preset = plan_for(
            self.rung,
            question.model,
            question.workload,
            question.cluster,
            micro_batch_size=micro_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            gradient_checkpointing=self.checkpointing != "off",
        )
        if self.checkpointing == "offload":
            preset = replace(preset, cpu_checkpointing=True)
        if self.sequence_parallel_size > 1:
            preset = replace(preset, sequence_parallel_size=self.sequence_parallel_size)
        if self.autotp_size > 1:
            preset = replace(preset, autotp_size=self.autotp_size)
        if self.zero_hpz_partition_size > 1:
            preset = replace(preset, zero_hpz_partition_size=self.zero_hpz_partition_size)
        if question.states == "bf16":
            preset = replace(preset, bf16_master_weights_and_grads=True, bf16_optimizer_states=True)
        return replace(preset, **self.settings) if self.settings else preset
