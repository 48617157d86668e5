"""The search: every rung, with and without checkpointing, at every batch shape; and the fastest that fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ...ds_configs.presets import plan_for
from ...estimators.estimate import Estimate, MemoryEstimate
from ...estimators.estimate_plan import estimate_plan
from ...estimators.hardware.cluster import Cluster
from ...estimators.memory.plan_memory import estimate_memory, resident_terms
from ...estimators.memory.terms import total_bytes
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import RUNGS, PlainPyTorch, Plan, Rung
from ...estimators.time.collective_time import ring
from ...estimators.time.step_time import estimate_time
from ...estimators.unsupported import unsupported
from ...estimators.workload import Workload
from ..question.question import CheckpointingChoice, Question, Risk
from .candidate import Candidate, LadderStep
from .fit import LEAST, LIKELY, Fit, fit_of

SAME_SPEED = 0.03
"""Two predictions closer than this are called equal, and the simpler plan is taken: the time model does not resolve
less."""

OFFLOAD_GAIN = 0.10
"""What an offload must gain over a plan without one: it costs host memory, and its time rests on more assumed figures
(PCIe shared by the GPUs, host memory bandwidth, cores) whose error is about this large."""

COMFORTABLE = 0.9
"""Share of what a plan's tightest resource offers up to which a plan is taken for its simplicity alone. Beyond, a plan
of the same speed that leaves more room is the better advice."""


def predict_all(
    question: Question, *, only_fitting: bool = False
) -> tuple[tuple[LadderStep, ...], tuple[Candidate, ...]]:
    """Predict every candidate; return the ladder (each rung's best) and all candidates.

    only_fitting: leave out those that may not be taken, whose time then need not be known.
    """
    least = LEAST[question.risk]
    ladder, everything = [], []
    for rung in RUNGS:
        candidates, obstacle = candidates_of(rung, question, only_fitting=only_fitting)
        everything += candidates
        best = best_of_rung(candidates, least)
        if best is None:
            ladder.append(LadderStep(rung=rung, candidate=None, taken=False, reason=obstacle))
        else:
            ladder.append(LadderStep.of(rung, best, least))
    return tuple(ladder), tuple(everything)


def fastest_that_fits(ladder: Iterable[LadderStep]) -> Candidate | None:
    """The fastest rung that may be taken, or a simpler one that is as fast.

    As fast: within `SAME_SPEED`, or within `OFFLOAD_GAIN` when the fastest offloads or shares samples and the other
    does not. Of those the lowest on the ladder, which has the fewest parts, that fits comfortably; else the lowest.
    """
    fitting = [step.candidate for step in ladder if step.taken and step.candidate is not None]
    if not fitting:
        return None
    fastest = max(fitting, key=lambda candidate: candidate.tokens_per_s)
    equals = [candidate for candidate in fitting if as_fast(candidate, fastest)]
    return next((candidate for candidate in equals if candidate.fit.utilization <= COMFORTABLE), equals[0])


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
    gained = _wants_more(fastest.plan, candidate.plan)
    return candidate.tokens_per_s >= fastest.tokens_per_s * (1 - (OFFLOAD_GAIN if gained else SAME_SPEED))


def _wants_more(plan: Plan, other: Plan) -> bool:
    """Whether a plan offloads or shares samples and the other does not."""
    shares = plan.ranks_per_sample > 1 and other.ranks_per_sample == 1
    return shares or (plan.offloads and not other.offloads)


def candidates_of(
    rung: Rung | PlainPyTorch,
    question: Question,
    *,
    settings: Mapping[str, Any] = MappingProxyType({}),
    only_fitting: bool = False,
) -> tuple[list[Candidate], str]:
    """All candidates of a rung, or of plain PyTorch, or the reason why it has none.

    settings: fields of `Plan` that differ from the rung's preset.
    """
    candidates: list[Candidate] = []
    ways = [
        [
            _Series(
                rung=rung,
                settings=settings,
                question=question,
                sequence_parallel_size=sharing,
                checkpointing=checkpointing,
                zero_hpz_partition_size=copied,
                autotp_size=split_by,
                only_fitting=only_fitting,
            )
            for checkpointing in choices
            for sharing, split_by in _together(rung, question, size, settings)
            for copied in _second_copies(rung, question, settings)
        ]
        for choices, size in _ways(question, settings)
    ][: None if rung in RUNGS else 1]  # plain PyTorch does neither
    obstacle = ways[0][0].obstacle()
    if obstacle is not None:
        return [], obstacle
    for number, way in enumerate(ways):
        for series in way:
            candidates += series.candidates()
        if not _lack_gpu_memory(candidates):
            break
        if number == 0 and (ways[-1] is way or not ways[-1][-1].may_fit()):
            break
    return candidates, ""


def _ways(question: Question, settings: Mapping[str, Any]) -> Iterator[tuple[tuple[CheckpointingChoice, ...], int]]:
    """Checkpointing, and how many GPUs share a sample, in the order in which they are tried until something fits; each
    needs less of the GPU than those before it.

    Shared samples want a script that knows of them, layers' inputs in host RAM cost time; both win nothing but memory.
    """
    asked, sizes = question.gradient_checkpointing, question.sequence_parallel_sizes()
    if "sequence_parallel_size" in settings or settings.get("autotp_size", 1) > 1:
        sizes = (settings.get("sequence_parallel_size", 1),)
    for size in sizes:
        yield ("off", "on") if asked == "auto" else (asked,), size
    if asked == "auto" and "cpu_checkpointing" not in settings and not question.cluster.gpu.is_cpu:
        for size in sizes:
            yield ("offload",), size


def _together(
    rung: Rung | PlainPyTorch, question: Question, sharing: int, settings: Mapping[str, Any]
) -> list[tuple[int, int]]:
    """(sequence_parallel_size, autotp_size) to try where so many GPUs have to share a sample: Ulysses, and layers split
    instead (AutoTP) where the batch has fewer samples than there are GPUs, the only place where it may be faster."""
    wanted, ranks, cluster = question.workload.global_batch_size, settings.get("autotp_size", 1), question.cluster
    if ranks > 1:
        return [(1, ranks)]
    small = wanted is not None and wanted < cluster.world_size and question.sequence_parallel_size is None
    if sharing == 1 or not small or settings or rung not in RUNGS:
        return [(sharing, 1)]
    split = Plan(zero_stage=1, micro_batch_size=1, autotp_size=sharing)
    possible = unsupported(question.model, question.workload, split, cluster) is None
    return [(sharing, 1), *[(1, sharing)] * possible]


def _second_copies(rung: Rung | PlainPyTorch, question: Question, settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Sizes of hpZ's groups to try: none, and a node, where ZeRO-3 would gather over a network that is slower than the
    links of a node."""
    cluster = question.cluster
    worth = (
        rung == "zero3" and "zero_hpz_partition_size" not in settings and min(cluster.nodes, cluster.gpus_per_node) > 1
    )
    return (1, cluster.gpus_per_node) if worth and ring(cluster).resource == "network" else (1,)


def _lack_gpu_memory(candidates: Sequence[Candidate]) -> bool:
    """Whether none of them surely fits on the GPU."""
    return all(candidate.fit.limit == "gpu" and not candidate.fit.fits for candidate in candidates)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """The plans of a rung that differ in the micro batch only."""

    rung: Rung | PlainPyTorch
    settings: Mapping[str, Any]
    question: Question
    sequence_parallel_size: int
    checkpointing: CheckpointingChoice
    zero_hpz_partition_size: int
    autotp_size: int
    only_fitting: bool

    def obstacle(self) -> str | None:
        """Why none of them can run."""
        question, plan = self.question, self._plan(*self._shapes()[0])
        return unsupported(question.model, question.workload, plan, question.cluster)

    def candidates(self) -> list[Candidate]:
        """By rising micro batch, with which memory rises, up to the first that is not likely to fit (kept: it shows by
        how much). Where sizes double, those between the last two are halved, since the search may take any."""
        question = self.question
        found: list[Candidate] = []
        largest = 0
        for micro, accumulation in self._shapes():
            plan = self._plan(micro, accumulation)
            if self.only_fitting and _is_hopeless(question, plan):
                return []
            memory, fit = self._judged(plan)
            stops = fit.limit == "gpu" and (self.only_fitting or fit.probability < LIKELY)
            if stops and question.is_batch_free:
                found += self._between(largest, micro)
            self._add(found, plan, memory, fit)
            if stops:
                break
            largest = micro
        return found

    def may_fit(self) -> bool:
        """Whether its smallest batch is likely to fit on the GPU."""
        plan = self._plan(*self._shapes()[0])
        if _is_hopeless(self.question, plan):
            return False
        fit = self._judged(plan)[1]
        return fit.limit != "gpu" or fit.probability >= LIKELY

    def _shapes(self) -> tuple[tuple[int, int], ...]:
        return self.question.batch_shapes(self.sequence_parallel_size * self.autotp_size)

    def _between(self, fits: int, fails: int) -> list[Candidate]:
        """Candidates of micro batches between one that fits and one that does not, by two halvings: the largest that
        surely fits is then at most a quarter short."""
        question, found = self.question, list[Candidate]()
        for _ in range(2):
            micro = (fits + fails) // 2
            if micro == fits:
                break
            plan = self._plan(micro, 1)
            memory, fit = self._judged(plan)
            if fit.limit != "gpu" or fit.probability >= LIKELY:
                self._add(found, plan, memory, fit)
            sure = fit.limit != "gpu" or fit.probability >= LEAST[question.risk]
            fits, fails = (micro, fails) if sure else (fits, micro)
        return sorted(found, key=lambda candidate: candidate.plan.micro_batch_size)

    def _plan(self, micro_batch_size: int, gradient_accumulation_steps: int) -> Plan:
        question = self.question
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

    def _judged(self, plan: Plan) -> tuple[MemoryEstimate, Fit]:
        question = self.question
        memory = estimate_memory(question.model, question.workload, question.cluster, plan)
        return memory, fit_of(memory, question.cluster, question.workload)

    def _add(self, found: list[Candidate], plan: Plan, memory: MemoryEstimate, fit: Fit) -> None:
        """Where only those count that may be taken, the others' time need not be known."""
        question = self.question
        if fit.probability >= LEAST[question.risk] or not self.only_fitting:
            time = estimate_time(question.model, question.workload, question.cluster, plan)
            found.append(Candidate(estimate=Estimate(plan=plan, memory=memory, time=time), fit=fit))


def _is_hopeless(question: Question, plan: Plan) -> bool:
    """Whether it is known without an estimate that no plan of this one's rung fits: all need NVMe that nobody named, or
    more than the GPU for what stays there."""
    cluster = question.cluster
    if "nvme" in (plan.offload_optimizer, plan.offload_param) and not cluster.nvme_bytes_per_node:
        return True
    resident = resident_terms(question.model, question.workload, cluster, plan)
    return total_bytes(resident) > cluster.gpu.memory_bytes


def predict(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Candidate:
    """A plan with what it needs and takes, judged."""
    estimate = estimate_plan(model, workload, cluster, plan)
    return Candidate(estimate=estimate, fit=fit_of(estimate.memory, cluster, workload))


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


def _simplicity(candidate: Candidate) -> tuple[int, int, int, int]:
    plan = candidate.plan
    shared, copied = plan.ranks_per_sample, plan.zero_hpz_partition_size
    return shared, copied, plan.micro_batch_size, candidate.device_bytes
