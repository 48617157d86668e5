"""Memory of a ZeRO plan without activations: the part that does not depend on the micro batch."""

from __future__ import annotations

from functools import cached_property

from ..estimate import MEMORY_SYMBOLS, NODE_SYMBOLS, Formula, Phase, Terms, total_bytes
from ..hardware import Cluster
from ..objectives import has_reference_model, reference_passes, reference_plan
from ..optimizers import OptimizerSpec
from ..plan import Plan
from .activations.passes import WeightsInPass
from .device_overhead import library_workspace
from .gathered_parameters import gathered_parameters
from .gradient_memory import Stage0
from .gradients import Stage3, Stage12
from .gradients_in_fp32 import Stage2InFp32
from .host_memory import process_terms
from .offload_memory import NodeMemory, offloaded
from .partition import shard_numel
from .trainable import ShardedTensors
from .zero_states import masters_and_states, parameters, reference_model, second_copy

INITIALIZE_SHARE = 0.85
"""Share of the GPU's memory up to which DeepSpeed is certain to flatten two copies of the weights on the GPU."""

_SYMBOLS = {
    **MEMORY_SYMBOLS,
    "whole": "elements of the largest weight, in 16 bits until it is quantized or cast, or of the adapters",
    "shard": "elements of one rank's shard of the largest weight",
    "gathered": "elements that are gathered from all ranks at this moment",
}
_TWICE = Formula(
    "parameters", "2 w Pt + frozen", "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py __init__ (flatten_on_accelerator)"
)
_LOADED = Formula(
    "parameters",
    "frozen + w whole",
    "transformers 5.23 modeling_utils.py get_init_context (no zero.Init), integrations/bitsandbytes.py",
    _SYMBOLS,
)
_UNSHARDED = Formula(
    "parameters",
    "w Pt + frozen + w shard",
    "deepspeed 0.19.8 runtime/engine.py _configure_distributed_model (no zero.Init), partition_parameters.py Init",
    _SYMBOLS,
)
UNCAST_WEIGHTS = Formula(
    "parameters",
    "4 Pt + frozen + w whole",
    "LLaMA-Factory ff6d4d1 model/adapter.py; deepspeed 0.19.8 runtime/engine.py _cast_module_mixed_precision",
    _SYMBOLS,
)
_GATHERED = Formula(
    "gathered_parameters",
    "w gathered",
    "estimators/memory/gathered_parameters.py, deepspeed 0.19.8 runtime/zero/partitioned_param_coordinator.py",
    _SYMBOLS,
)
_FLATTENED = Formula(
    "flattened_weights",
    "L 2 w group",
    "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py __init__ (flatten_on_accelerator)",
    {**NODE_SYMBOLS, "group": "elements of the largest parameter group"},
)


class BatchIndependentMemory:
    def __init__(self, sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, cluster: Cluster) -> None:
        self.sharded = sharded
        self.plan = plan
        self.optimizer = optimizer
        self.cluster = cluster
        self.gathered = gathered_parameters(sharded.tensors, plan, sharded.world_size)
        weights = parameters(sharded, plan, self.gathered) + reference_model(sharded, plan, self.gathered)
        self.resident = weights + masters_and_states(sharded, plan, optimizer) + library_workspace(cluster.gpu)

    @cached_property
    def gradients(self) -> Stage0 | Stage12 | Stage3:
        width = self.sharded.tensors.workload.weight_bytes
        sums_in_fp32 = self.plan.accumulated_bytes(width) > width
        kind = (Stage0, Stage12, Stage2InFp32 if sums_in_fp32 else Stage12, Stage3)[self.plan.zero_stage]
        return kind(self.sharded, self.plan, self.optimizer, self.cluster.gpus_per_node)

    @cached_property
    def node(self) -> NodeMemory:
        node = offloaded(self.sharded, self.plan, self.optimizer, self.cluster.gpus_per_node)
        return node._replace(pageable=process_terms(self.cluster) + node.pageable)

    @cached_property
    def load(self) -> tuple[Phase, ...]:
        """The whole model on the GPU before the engine casts or shards it, where that needs more than training may."""
        tensors, stage = self.sharded.tensors, self.plan.zero_stage
        software, width = tensors.workload.software, tensors.workload.weight_bytes
        trained, rest = tensors.trainable_numel, tensors.frozen_bytes
        inputs = {"frozen": rest, "w": width}
        if stage == 3 and tensors.workload.method == "qlora":
            whole = max(tensors.trainable_numel, *(tensor.numel for tensor, _ in tensors.model.tensor_counts))
            return (Phase(name="load", terms=_LOADED.term(rest + width * whole, **inputs, whole=whole)),)
        found: Terms = ()
        if stage == 3 and not software.zero_init:
            shard = shard_numel(max(tensors.trainable + tensors.frozen), self.sharded.world_size)
            found = _UNSHARDED.term(width * (trained + shard) + rest, **inputs, Pt=trained, shard=shard)
        if software.loading == "gpu-fp32" and width == 2 and not (stage == 3 and software.zero_init):
            whole = max(tensors.trainable)
            in_fp32 = UNCAST_WEIGHTS.term(4 * trained + rest + width * whole, **inputs, Pt=trained, whole=whole)
            found = max(found, in_fp32, key=total_bytes)
        if found and software.loading.startswith("gpu"):
            found += reference_model(self.sharded, self.plan.replace_fields(zero_stage=0), self.gathered)
        return (Phase(name="load", terms=found),) if found else ()

    @cached_property
    def initialize(self) -> tuple[Phase, ...]:
        tensors, plan = self.sharded.tensors, self.plan
        if plan.zero_stage not in (1, 2) or tensors.workload.software.deepspeed < (0, 19):
            return ()
        width, trainable, frozen = tensors.workload.weight_bytes, tensors.trainable_numel, tensors.frozen_bytes
        formula = _TWICE if self._flattens_on_gpu else _TWICE._replace(text="w Pt + frozen")
        size = (2 if self._flattens_on_gpu else 1) * width * trainable + frozen
        workspace = library_workspace(self.cluster.gpu) + reference_model(self.sharded, plan, self.gathered)
        return (Phase(name="initialize", terms=workspace + formula.term(size, w=width, Pt=trainable, frozen=frozen)),)

    @property
    def _flattens_on_gpu(self) -> bool:
        """Whether stages 1 and 2 surely have room for the second copy on the GPU. Near the limit it may be on GPU or
        host: DeepSpeed asks the GPU for its free memory before each group, which depends on what else has been
        allocated."""
        tensors = self.sharded.tensors
        size = 2 * tensors.workload.weight_bytes * tensors.trainable_numel + tensors.frozen_bytes
        is_new = tensors.workload.software.deepspeed >= (0, 19)
        return is_new and size < INITIALIZE_SHARE * self.cluster.gpu.memory_bytes

    @property
    def flattening_terms(self) -> Terms:
        """A node's RAM while stages 1 and 2 flatten the largest group of weights on the host: the weights and their
        flat copy on every rank."""
        if self.plan.zero_stage not in (1, 2) or self._flattens_on_gpu or self.cluster.gpu.is_cpu:
            return ()
        largest, width = max(group.numel for group in self.sharded.groups), self.sharded.tensors.workload.weight_bytes
        return _FLATTENED.node_term(self.cluster.gpus_per_node, 2 * width * largest, w=width, group=largest)

    @cached_property
    def phases(self) -> dict[str, Terms]:
        """Gradients and gathered weights by phase of a step."""
        gathered, gradients, tensors = self.gathered, self.gradients, self.sharded.tensors
        forward = gradients.forward_terms()
        # Parameters that stay gathered from the forward to the backward pass have not been released yet.
        unreleased = gathered.loss
        in_reduction = min(unreleased, gathered.reduction)
        unreleased_at_end = max(0, unreleased + tensors.embedding - tensors.numel)
        at_loss, in_layer = gathered.arriving_at_loss, gathered.arriving_in_layer
        in_backward = self._gathered(gathered.layer, min(unreleased, gathered.layer), in_layer)
        phases = {
            "loss_peak": forward + self._gathered(gathered.loss, unreleased, at_loss),
            "layer_backward": gradients.layer_terms(gradients.oversized) + in_backward,
            "gradient_reduction": gradients.reduction_terms()
            + self._gathered(gathered.reduction, in_reduction, in_layer),
            "backward_end": gradients.end_terms() + self._gathered(gathered.end, unreleased_at_end),
            "step": gradients.step_terms() + self._gathered(0, 0),
        }
        if not tensors.model.module:
            numel = gathered.product
            in_product = self._gathered(numel, min(unreleased, numel), in_layer)
            phases["weight_gradient"] = gradients.layer_terms(gradients.oversized_pair) + in_product
        if gathered.unreleased:
            phases["first_layer_backward"] = gradients.layer_terms(0) + self._gathered(gathered.unreleased, 0, in_layer)
        if gathered.recomputed > gathered.layer:
            recomputing = self._gathered(gathered.recomputed, min(unreleased, gathered.recomputed), in_layer)
            phases["layer_recomputation"] = gradients.layer_terms(0) + recomputing
        # A head larger than the bucket is reduced first, so that the buffer of owned gradients exists from then on.
        if isinstance(gradients, Stage12) and not gradients.oversized_head and gradients.fills.flushed:
            if not tensors.model.module:
                phases["later_layer_backward"] = gradients.later_layer_terms() + in_backward
            if gradients.fills.second:
                later = gradients.later_reduction_terms()
                phases["later_gradient_reduction"] = later + self._gathered(gathered.reduction, in_reduction)
        if gathered.last_layer > gathered.kept:
            last, arriving = gathered.last_layer, gathered.arriving_at_last_layer
            phases["last_layer_forward"] = forward + self._gathered(last, last, arriving)
        if gathered.first_layer > gathered.last_layer:
            arriving = gathered.arriving_at_first_layer
            phases["layer_forward"] = forward + self._gathered(gathered.first_layer, tensors.trainable_numel, arriving)
        if reference_passes(tensors.workload) and not tensors.workload.rollouts:
            phases["reference_forward"] = forward + self._gathered(
                gathered.kept + self._reference_gathered, unreleased, at_loss
            )
        if tensors.head and (tensors.trains_head or gathered.head > gathered.loss):
            phases["head_backward"] = gradients.head_terms() + self._gathered(gathered.head, unreleased, at_loss)
        if tensors.head and tensors.trains_head:
            reduced = gradients.head_reduction_terms()
            phases["head_reduction"] = reduced + self._gathered(gathered.head_reduction, unreleased, at_loss)
        return phases

    @cached_property
    def in_evaluation(self) -> tuple[Terms, Terms]:
        """Gradients and gathered weights during the forward passes of an evaluation, and after them. ZeRO-3 fetches by
        the trace of a training step, so at most the elements that are whole in its forward pass; those that its
        backward pass would need stay."""
        gathered, idle = self.gathered, self.gradients.idle_terms()
        after_forward = self._gathered(gathered.loss, gathered.loss, gathered.arriving_at_loss)
        passes = [
            after_forward,
            self._gathered(gathered.first_layer, gathered.first_layer, gathered.arriving_at_first_layer),
            self._gathered(gathered.last_layer, gathered.last_layer, gathered.arriving_at_last_layer),
        ]
        if reference_passes(self.sharded.tensors.workload):
            passes.append(self._gathered(gathered.kept + self._reference_gathered, gathered.loss))
        return idle + max(passes, key=total_bytes), idle + after_forward

    @property
    def _reference_gathered(self) -> int:
        """Maximum elements that the reference's own engine, or the policy without adapters, gathers in its forward
        pass, without those that are kept."""
        if not has_reference_model(self.sharded.tensors.workload):
            return max(0, self.gathered.reference - self.gathered.kept)
        by_reference = gathered_parameters(self.sharded.tensors, reference_plan(self.plan), self.sharded.world_size)
        return max(by_reference.first_layer, by_reference.last_layer)

    @cached_property
    def gathered_in_scoring(self) -> Terms:
        """Weights that the policy or the reference model gathers in a forward pass before the training."""
        by_reference, policy = self._reference_gathered, self.gathered
        passed = max(policy.first_layer, policy.last_layer, policy.layer if policy.loss else 0)
        return self._gathered(max(by_reference, passed), 0)

    @cached_property
    def weights_in_pass(self) -> WeightsInPass:
        """Gradients made and weights released during a module's backward pass."""
        plan, tensors, width = self.plan, self.sharded.tensors, self.sharded.tensors.workload.weight_bytes
        bucket = plan.reduce_bucket_size if plan.zero_stage else tensors.numel + 1
        gradients = WeightsInPass(width=width, bucket=bucket)
        if plan.zero_stage == 0:
            return gradients._replace(keeps_gradients=plan.gradient_accumulation_steps == 1)
        if plan.zero_stage < 3 or not self.gathered.layer:
            return gradients
        threshold = plan.stage3_param_persistence_threshold
        gathered = sum(numel for numel in tensors.trainable + tensors.frozen if numel > threshold)
        slack = gathered - self.gathered.layer
        return gradients._replace(released=width, threshold=threshold, slack=slack)

    @cached_property
    def least_bytes(self) -> int:
        """Bytes of the largest phase except the loss's, which depends on the tiles."""
        others = (total_bytes(terms) for name, terms in self.phases.items() if name != "loss_peak")
        loaded = (phase.allocated_bytes for phase in self.load)
        return max(total_bytes(self.resident) + max(others), *loaded, 0)

    def tiled_loss(self, tiles: int) -> Terms:
        """Return gradients and gathered weights in the phase of a loss computed in tiles."""
        gathered = self.gathered
        at_loss = self._gathered(gathered.loss, gathered.loss, gathered.arriving_at_loss)
        return self.gradients.tiled_loss_terms(tiles) + at_loss

    def _gathered(self, numel: int, unreleased: int, arriving: int = 0) -> Terms:
        """Return `numel` gathered elements, `arriving` of them in 8 bits, and hpZ's copy of released ones."""
        width, in_8_bits = self.sharded.tensors.workload.weight_bytes, min(arriving, numel)
        size = width * (numel - in_8_bits) + in_8_bits
        return _GATHERED.term(size, w=width, gathered=size / width) + second_copy(self.sharded, self.plan, unreleased)
