"""One plan both ways: what the closed form says, what is asked of the dry run, and both brought to the same
components."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from ds_advise.advisor.question.model_source import model_shape
from ds_advise.ds_configs.presets import plan_for
from ds_advise.estimators.estimate import MemoryEstimate, MemoryTerm, Phase
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.memory.host_memory import PROCESS_BYTES
from ds_advise.estimators.memory.plan_memory import estimate_memory
from ds_advise.estimators.memory.trainable import gradients_before_first_reduction, shard_plan
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.objectives import OBJECTIVES, framework_loss, trained_model
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Software, Workload
from ds_advise.probes.dry_run.run import dry_run, rank_in_layers
from ds_advise.probes.recording.result import DryRunResult
from ds_advise.probes.run import Run

from .cases import FAMILIES, Case

ITERATIONS, ITERATIONS_ZERO3 = 2, 3
"""Adam's states appear in the first iteration, and ZeRO-3 prefetches from the third; those that follow are like
them."""

EQUAL = 0.05
"""Moments that differ by less of the peak may be the peak in turn."""

COMPONENTS = (
    "weights",
    "gathered weights",
    "gradients and buckets",
    "master weights",
    "optimizer states",
    "logits",
    "activations",
)

_OF_TERM = {
    "parameters": "weights",
    "gathered_parameters": "gathered weights",
    "persistent_parameters": "gathered weights",
    "second_copy_of_weights": "gathered weights",
    "master_weights": "master weights",
    "optimizer_states": "optimizer states",
    "gradients": "gradients and buckets",
    "reduce_buckets": "gradients and buckets",
    "offload_staging": "gradients and buckets",
    "step_temporaries": "gradients and buckets",
    "logits_and_loss": "logits",
    "logits": "logits",
    "logits of one chunk": "logits",
    "log-softmax": "logits",
    "gradient of log-softmax": "logits",
    "gradient of logits": "logits",
    "soft cap of logits": "logits",
    "model output": "logits",
    "probabilities of the last micro batch": "logits",
}
"""Term of the closed form -> component; every other one is activations."""

_OF_CATEGORY = {
    "parameters": "weights",
    "gathered parameters": "gathered weights",
    "gradients": "gradients and buckets",
    "buckets": "gradients and buckets",
    "master weights": "master weights",
    "optimizer states": "optimizer states",
    "logits": "logits",
}
"""Category of the dry run -> component; "activations" and "temporaries" are the last one together, in the optimizer's
step temporaries are of gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a comparison needs of a dry run's answer; bytes of one rank, in training.

    required_bytes: what the caching allocator must hold at least; reserved_bytes: what it holds with ample room;
    host_bytes: as the host gives them.
    """

    allocated_bytes: int
    required_bytes: int
    reserved_bytes: int
    host_bytes: int
    nvme_bytes: int
    by_category: dict[str, int]
    phase: str
    versions: dict[str, str]

    @classmethod
    def of(cls, result: DryRunResult) -> Measured:
        peak = result.peak
        return cls(
            allocated_bytes=peak.allocated_bytes_per_gpu,
            required_bytes=peak.required_bytes_per_gpu,
            reserved_bytes=peak.reserved_bytes_per_gpu,
            host_bytes=max(phase.host_held_peak_bytes for phase in result.phases if phase.iteration),
            nvme_bytes=result.nvme_bytes_per_rank,
            by_category=dict(peak.by_category),
            phase=peak.phase,
            versions=dict(result.versions),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Bytes of one case, both ways: closed form, dry run.

    allocated: live tensors of one GPU at the peak of training.
    reserved:  what the caching allocator must hold, without library workspaces; the dry run replays its allocations
               through a model of it, with expandable segments that keep only what live blocks touch.
    held:      what it holds while no request fails, the cache included.
    host:      a node's host memory without what every process takes anyway; (0, 0) where nothing is offloaded.
    nvme:      a node's files; (0, 0) where nothing is swapped.
    components: allocated bytes by component, at the peaks.
    moment, phase: where the peak is. Of the closed form's phases within `EQUAL` of its peak the one most like the dry
               run's; `allocated` is the highest all the same.
    """

    case: Case
    allocated: tuple[int, int]
    reserved: tuple[int, int]
    held: tuple[int, int]
    host: tuple[int, int]
    nvme: tuple[int, int]
    components: dict[str, tuple[int, int]]
    moment: str
    phase: str

    def component_error(self, name: str) -> float:
        """Share of the peak by which the closed form has more (or, negative, less) of a component."""
        analytic, dry_run = self.components[name]
        return (analytic - dry_run) / self.allocated[1]


def relative_error(pair: tuple[int, int]) -> float:
    """Of the closed form against the dry run."""
    return pair[0] / pair[1] - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A case with everything that both sides need."""

    case: Case
    model: ModelShape
    workload: Workload
    cluster: Cluster
    plan: Plan

    @classmethod
    def of(cls, case: Case) -> Setting:
        """The preset of the case's strategy on H100 nodes of at most eight GPUs."""
        model = trained_model(model_shape(FAMILIES[case.model], name=case.model), case.objective)
        rollouts = OBJECTIVES[case.objective].rollouts
        is_preference = bool(OBJECTIVES[case.objective].trainer)
        workload = Workload(
            method=case.method,
            modules_to_save=case.modules_to_save,
            dora=case.dora,
            seq_len=case.seq_len,
            precision=case.precision,
            mlp=case.mlp,
            loss=framework_loss(case.objective, "trl", Software()) if is_preference else case.loss,
            objective=case.objective,
            precompute_ref_log_probs=case.precomputed,
            rollouts=rollouts and replace(rollouts, beta=case.beta, max_completion_length=case.seq_len // 2),
            framework="trl" if is_preference or case.loss == "chunked-head" else "deepspeed",
        )
        nodes = max(1, case.world_size // 8)
        # The dry run puts its swap folders elsewhere, and writes nothing.
        cluster = Cluster(
            nodes=nodes, gpus_per_node=case.world_size // nodes, gpu=find_gpu("H100-80GB"), nvme_path="/nvme"
        )
        plan = plan_for(
            case.strategy,
            model,
            workload,
            cluster,
            micro_batch_size=case.micro_batch_size,
            gradient_accumulation_steps=case.gradient_accumulation_steps,
            gradient_checkpointing=case.checkpointing,
        )
        plan = replace(plan, **cast("dict[str, Any]", dict(case.changes)))
        return cls(case=case, model=model, workload=workload, cluster=cluster, plan=plan)

    def dry_run(self) -> DryRunResult:
        """The dry run of the configuration that is emitted for the plan, on the rank that the closed form takes for the
        fullest."""
        return dry_run(
            self.run,
            rank=self.fullest_rank(),
            iterations=ITERATIONS_ZERO3 if self.plan.zero_stage == 3 else ITERATIONS,
            expandable_segments=True,
        )

    @property
    def run(self) -> Run:
        description = FAMILIES[self.case.model]
        return Run.from_plan(self.plan, self.model, self.workload, self.cluster, description=description)

    def fullest_rank(self) -> int:
        if self.plan.zero_stage not in (1, 2):
            return 0
        if (in_layers := rank_in_layers(self.run)) is not None:
            return in_layers
        sharded = shard_plan(self.model, self.workload, self.cluster, self.plan)
        held = gradients_before_first_reduction(
            sharded, self.plan.reduce_bucket_size, frees=self.plan.zero_stage == 2, flushed=True
        )
        # Offloaded gradients do not stay; the largest piece on its way to the host decides.
        offloads = self.plan.offload_optimizer != "none"
        return self.plan.autotp_size * max(
            range(len(held)),
            key=lambda rank: (
                sharded.loads[rank].slice if offloads else held[rank] if self.plan.zero_stage == 1 else 0,
                sharded.loads[rank].touched,
                sharded.loads[rank].slice,
            ),
        )

    def estimate(self) -> MemoryEstimate:
        return estimate_memory(self.model, self.workload, self.cluster, self.plan)

    def compare(self, measured: Measured) -> Comparison:
        """The closed form compared with what `dry_run` measured."""
        estimate, ranks = self.estimate(), self.cluster.gpus_per_node
        # Loading is another matter: the dry run builds the model on the GPU. And its kernels have no workspaces.
        phases = [_without_generation(phase) for phase in estimate.phases if phase.name not in _NOT_RUN]
        allocated = max(map(tensor_bytes, phases))
        both = {
            phase.name: _components(_tensors(phase), measured)
            for phase in phases
            if tensor_bytes(phase) >= (1 - EQUAL) * allocated
        }
        moment = min(both, key=lambda name: sum(abs(analytic - dry_run) for analytic, dry_run in both[name].values()))
        offloads = self.plan.offload_optimizer != "none" or self.plan.offload_param != "none"
        needed = sum(term.size_bytes for term in estimate.reserved_terms)
        host = (estimate.host_training_bytes_per_node - ranks * PROCESS_BYTES, ranks * measured.host_bytes)
        return Comparison(
            case=self.case,
            allocated=(allocated, measured.allocated_bytes),
            reserved=(allocated + needed, measured.required_bytes),
            held=(estimate.reserved_bytes_per_gpu + estimate.cached_bytes_per_gpu, measured.reserved_bytes),
            host=host if offloads else (0, 0),
            nvme=(estimate.nvme_bytes_per_node, ranks * measured.nvme_bytes),
            components=both[moment],
            moment=moment,
            phase=measured.phase,
        )


_NOT_RUN = ("initialize", "rollout_prefill")


def _without_generation(phase: Phase) -> Phase:
    """A dry run gathers the weights for `generate`, and generates nothing."""
    if phase.name != "rollout":
        return phase
    generated: tuple[str, ...] = ("keys and values", "keys and values of a layer", "logits of the next token")
    return replace(phase, terms=tuple(term for term in phase.terms if term.name not in generated))


def _tensors(phase: Phase) -> Iterable[MemoryTerm]:
    return (term for term in phase.terms if term.name != "library_workspace")


def tensor_bytes(phase: Phase) -> int:
    return sum(term.size_bytes for term in _tensors(phase))


def _components(terms: Iterable[MemoryTerm], measured: Measured) -> dict[str, tuple[int, int]]:
    analytic, dry_run = Counter[str](), Counter[str]()
    for term in terms:
        analytic[_OF_TERM.get(term.name, COMPONENTS[-1])] += term.size_bytes
    other = "gradients and buckets" if measured.phase == "step" else COMPONENTS[-1]
    for category, size_bytes in measured.by_category.items():
        dry_run[_OF_CATEGORY.get(category, other)] += size_bytes
    return {name: (analytic[name], dry_run[name]) for name in COMPONENTS}
