"""The plans of a rung that differ in the micro batch only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from ...estimators.estimate import Estimate, MemoryEstimate, TimeEstimate, total_bytes
from ...estimators.estimate_plan import estimate_plan
from ...estimators.memory.plan_memory import estimate_memory, least_bytes, resident_terms
from ...estimators.memory.trainable import optimizer_group_numels, shard_tensors, tensor_set
from ...estimators.models.rank_part import of_rank
from ...estimators.plan import Plan
from ...estimators.time.step_time import estimate_time
from ...estimators.unsupported import unsupported
from ..question.question import CheckpointingChoice, Question
from .candidate import LEAST, LIKELY, Candidate, Fit, fit_of
from .choice import SAME_SPEED

RESOLVED = 0.01
"""The search for the largest micro batch ends where no other is faster by more than this share."""


class Judged(NamedTuple):
    """A plan and whether it fits, before its time is known."""

    plan: Plan
    memory: MemoryEstimate
    fit: Fit


@dataclass(kw_only=True, eq=False)
class Series:
    """The plans of a rung that differ in the micro batch only; what was found out about one is kept."""

    preset: Plan
    """The rung's, of which the batch and the fields below are still to be set."""
    settings: Mapping[str, Any]
    question: Question
    sequence_parallel_size: int
    checkpointing: CheckpointingChoice
    zero_hpz_partition_size: int
    autotp_size: int
    autoep_size: int
    _plans: dict[tuple[int, int], Plan] = field(default_factory=dict, init=False)
    _memory: dict[tuple[int, int], tuple[Plan, MemoryEstimate]] = field(default_factory=dict, init=False)
    _judged: dict[tuple[int, int], Judged] = field(default_factory=dict, init=False)
    _time: dict[tuple[int, int], TimeEstimate] = field(default_factory=dict, init=False)

    def obstacle(self) -> str | None:
        """Why none of them can run."""
        question = self.question
        return unsupported(question.model, question.workload, self.first_plan, question.cluster)

    def rising(self) -> Iterator[Judged]:
        """By rising micro batch, with which memory rises, up to the first that is not likely to fit; then the one
        without accumulation, which saves the gradients that are kept between micro batches, if that makes it likely."""
        for shape in self.shapes:
            judged = self.judged(*shape)
            yield judged
            if not judged.fit.gpu_likely_suffices:
                break
        whole = self.shapes[-1]
        if shape[1] > whole[1] == 1 and self.judged(*whole).fit.probability >= LIKELY:
            yield self.judged(*whole)

    @property
    def lacks_nvme(self) -> bool:
        """Whether all of them need NVMe that nobody named."""
        cluster, plan = self.question.cluster, self.first_plan
        return "nvme" in (plan.offload_optimizer, plan.offload_param) and not cluster.nvme_bytes_per_node

    @cached_property
    def is_hopeless(self) -> bool:
        """Whether none of them fits on the GPU because too much is there beside activations."""
        question, most = self.question, self.question.cluster.gpu.memory_bytes
        if self.resident_bytes > most:  # quicker to know
            return True
        plans = (self._plan(*shape) for shape in dict.fromkeys((self.shapes[0], self.shapes[-1])))
        return all(least_bytes(question.model, question.workload, question.cluster, plan) > most for plan in plans)

    @cached_property
    def resident_bytes(self) -> int:
        """What is on each GPU all the time, whatever the batch."""
        question = self.question
        return total_bytes(resident_terms(question.model, question.workload, question.cluster, self.first_plan))

    def may_fit(self) -> bool:
        """Whether one of them is likely to fit on the GPU."""
        if self.is_hopeless:
            return False
        return any(fit.gpu_likely_suffices for fit in self.smallest())

    def smallest(self) -> Iterator[Fit]:
        """Of the plans of which one needs least of the GPU: one sample at a time, or no accumulation."""
        first, last = self.shapes[0], self.shapes[-1]
        yield self.judged(*first).fit
        if first[1] > last[1] == 1:
            yield self.judged(*last).fit

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return self.question.batch_shapes(self.sequence_parallel_size * self.autotp_size)

    @property
    def least(self) -> float:
        """The least probability of fitting with which a plan may be taken."""
        return LEAST[self.question.risk]

    def holds(self, fit: Fit) -> bool:
        """Whether a plan may be taken, or would be but for RAM or NVMe that even the smallest batch lacks."""
        if fit.limit in ("host", "nvme"):
            return fit.limit == self.judged(*self.shapes[0]).fit.limit
        return fit.probability >= self.least

    def between(self, fits: Candidate, fails: Candidate, least_speed: float) -> Iterator[Judged]:
        """Plans with micro batches between that of a plan which `holds` and that of one which does not.

        They are halved until none that holds is faster by more than `RESOLVED`, or as fast as `least_speed`: no
        batch is faster than the one that is too large, nor by more than it has more samples.
        """
        speed, enough, too_many = fits.tokens_per_s, fits.plan.micro_batch_size, fails.plan.micro_batch_size
        speed_of_too_many = self.time(too_many, fails.plan.gradient_accumulation_steps).tokens_per_s
        while True:
            bound = min(speed_of_too_many, speed * (too_many - 1) / enough)
            if bound < max(least_speed, speed * (1 + RESOLVED)):
                return
            micro = (enough + too_many) // 2
            judged = self.judged(micro, 1)
            yield judged
            if self.holds(judged.fit):
                speed, enough = self.time(micro, 1).tokens_per_s, micro
            else:
                too_many = micro

    def taking_back(self, fastest: Candidate) -> Iterator[Candidate]:
        """The plan with as many sub-groups of its offloaded optimizer on the GPU as that still holds, where it is
        faster by more than `SAME_SPEED` for it (`offload_optimizer.ratio`)."""
        question, plan = self.question, fastest.plan
        cluster, share = question.cluster, self.hosted_share(fastest.time)
        if share <= SAME_SPEED or cluster.gpu.is_cpu:
            return
        tensors = tensor_set(of_rank(question.model, plan), question.workload)
        sharded = shard_tensors(tensors, cluster.world_size // plan.autotp_size)
        groups = len(optimizer_group_numels(sharded, plan.sub_group_size))

        def keeping(number: int) -> Plan:
            # In the middle, so that DeepSpeed's int((1 - ratio) groups) is this number whatever the rounding.
            return replace(plan, offload_optimizer_ratio=round(1 - (number + 0.5) / groups, 4))

        if groups == 1 or unsupported(question.model, question.workload, keeping(1), cluster) is not None:
            return
        one, none = (
            total_bytes(resident_terms(question.model, question.workload, cluster, each)) for each in (keeping(1), plan)
        )
        most = min(groups - 1, (cluster.gpu.memory_bytes - fastest.device_bytes) // (one - none))
        # What surely fits leaves less free than what just fits, by a group or two.
        for number in range(most, max(0, most - 3), -1):
            if share * number / groups <= SAME_SPEED:
                return
            estimate = estimate_plan(question.model, question.workload, cluster, keeping(number))
            fit = fit_of(estimate.memory, cluster, question.workload)
            if self.holds(fit):
                if estimate.time.tokens_per_s > fastest.tokens_per_s * (1 + SAME_SPEED):
                    yield Candidate.of(estimate, fit)
                return

    def hosted_share(self, time: TimeEstimate) -> float:
        """The share of a step that the host's optimizer takes, which is what `taking_back` can win; 0 where it cannot
        run."""
        plan = self.first_plan
        if plan.zero_stage < 3 or plan.offload_optimizer != "cpu" or self.settings:
            return 0.0
        return sum(term.seconds for term in time.terms if term.resource in ("cpu", "pcie")) / time.step_s

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
        shape, question = (micro_batch_size, gradient_accumulation_steps), self.question
        if shape not in self._time:
            plan = self._plan(*shape)
            self._time[shape] = estimate_time(question.model, question.workload, question.cluster, plan)
        return self._time[shape]

    def timed(self, judged: Judged) -> Candidate:
        plan, memory, fit = judged
        shape = plan.micro_batch_size, plan.gradient_accumulation_steps
        if not fit.gpu_likely_suffices and shape not in self._time:
            later = partial(_estimate, self.question, plan, memory)  # of the question alone: a series holds much
            return Candidate(plan=plan, memory=memory, fit=fit, estimated=later)
        time = self.time(*shape)
        return Candidate.of(Estimate(plan=plan, memory=memory, time=time), fit)

    def _plan(self, micro_batch_size: int, gradient_accumulation_steps: int) -> Plan:
        shape = micro_batch_size, gradient_accumulation_steps
        if shape == self.shapes[0]:
            return self.first_plan
        if shape not in self._plans:
            self._plans[shape] = replace(
                self.first_plan,
                micro_batch_size=micro_batch_size,
                gradient_accumulation_steps=gradient_accumulation_steps,
            )
        return self._plans[shape]

    @cached_property
    def first_plan(self) -> Plan:
        """That of the smallest batch."""
        micro_batch_size, gradient_accumulation_steps = self.shapes[0]
        in_bf16 = self.question.states == "bf16"
        own = {
            "micro_batch_size": micro_batch_size,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "gradient_checkpointing": self.checkpointing != "off",
            "cpu_checkpointing": self.checkpointing == "offload",
            "sequence_parallel_size": self.sequence_parallel_size,
            "autotp_size": self.autotp_size,
            "autoep_size": self.autoep_size,
            "zero_hpz_partition_size": self.zero_hpz_partition_size,
            "bf16_master_weights_and_grads": in_bf16,
            "bf16_optimizer_states": in_bf16,
        }
        return replace(self.preset, **{**own, **self.settings})


def _estimate(question: Question, plan: Plan, memory: MemoryEstimate) -> Estimate:
    """The estimate of a plan whose memory is known."""
    time = estimate_time(question.model, question.workload, question.cluster, plan)
    return Estimate(plan=plan, memory=memory, time=time)
