"""Memory of a plan on each GPU, on each node's host and on its NVMe.

    estimate_memory(model, workload, cluster, plan) -> MemoryEstimate

A training step has several phases, and any of them may be the peak:

- load: the whole model on every GPU before ZeRO-3 shards it (quantized, or without zero.Init), or in fp32 there before
  the engine casts it.
- initialize: stages 1 and 2 hold the trainable weights twice while they flatten them (on the host if the GPU is short
  of memory, and before DeepSpeed 0.19).
- layer_forward, last_layer_forward: ZeRO-3 has prefetched the next modules and still holds the buffers in which
  they arrived.
- loss_peak: all activations are saved; the loss and its copies are alive.
- head_backward, head_reduction: the output head's gradient is made, then reduced; all activations are still saved.
- layer_recomputation: the last layer runs forward again, with the buffer in which ZeRO-3's weights arrived.
- layer_backward, weight_gradient, gradient_reduction: the last layer runs backward, with recomputation under
  checkpointing; the gradient of one of its matrices is made; a gradient that does not fit into the bucket triggers its
  reduction. later_layer_backward, later_gradient_reduction: the same with the buffer of owned gradients, which the
  first reduction allocates; the second full bucket.
- first_layer_backward: as layer_backward, in the first layer, if no gathered parameters of other layers have been
  released.
- backward_end: the embedding's gradient is made; few activations are left.
- reference_forward: the reference model computes a preference's micro batch; the policy's activations are all saved.
- rollout, scoring, rewards: generation and scoring of completions (`rollout_memory`).
- step: gradient norm, fp32 gradients, the optimizer's temporaries.
- evaluation: between two steps, if the workload has one (`evaluation`).

Each phase is a sum of terms of `zero_states` (weights, masters, states), `gathered_parameters`, `gradients` and
`activations`, exact in bytes of live tensors. `device_overhead` adds observed memory. Compared with dry runs of the
real engine in `benchmarks/`.

For a search, everything that depends on model and workload alone is computed once (`trainable`), and everything
independent of the micro batch once for all of them (`BatchIndependentMemory`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from ..estimate import MEMORY_SYMBOLS, Formula, MemoryEstimate, Phase, Terms, total_bytes
from ..hardware import Cluster
from ..models.model_shape import ModelShape
from ..models.rank_part import rank_share
from ..objectives import has_reference_model, in_sequences
from ..optimizers import optimizer
from ..plan import Plan
from ..workload import Workload
from .activations.activation_memory import activation_memory, module_moments
from .activations.loss import (
    hidden_gradient,
    layer_outputs,
    logits_gap_bytes,
    loss_tiles,
    output_terms,
    reference_logits_terms,
    tile_of_logits,
)
from .activations.recording import LayerRecorder
from .batch_independent import BatchIndependentMemory
from .device_overhead import allocator_overhead, cache, heap_overhead, outside_allocator
from .evaluation import evaluation_terms
from .fit_probability import host_bytes_to_fit
from .host_memory import checkpoint_terms, cpu_ranks_memory, kept_logits, loading_terms, process_terms, spread_experts
from .rollout_memory import constant_rollout_memory, rollout_phases
from .torch_memory import TorchStep, estimate_torch_memory
from .trainable import shard_plan, shard_tensors, tensor_set

_SYMBOLS = {
    **MEMORY_SYMBOLS,
    "c": "tokens whose logits are alive at a time, B S unless the loss is tiled",
    "x": "peak of the passes without the saved tensors",
}
_LOGITS = Formula("logits_and_loss", "w c V", "gradient of the logits", _SYMBOLS)
_MOMENT = Formula("gradients of activations", "x", "torch 2.13 derivatives of the recorded operations", _SYMBOLS)


def estimate_memory(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> MemoryEstimate:
    """Return the memory of one plan on one cluster. `unsupported` must not reject the plan. Raises WorkloadError for an
    unknown optimizer."""
    plan = in_sequences(plan, workload)
    workload = workload.in_batch(plan.micro_batch_size)
    logits = kept_logits(model, workload, cluster)
    if plan.sharding != "zero":
        plain = estimate_torch_memory(model, workload, cluster, plan)
        if workload.rollouts is not None:
            sharded = shard_tensors(tensor_set(model, workload), cluster.world_size)
            resident = resident_terms(model, workload, cluster, plan)
            phases = plain.phases + rollout_phases(sharded, cluster, workload, plan, resident)
            plain = replace(plain, phases=_add_terms(phases, constant_rollout_memory(model, workload, cluster, plan)))
        return cpu_ranks_memory(plain, cluster, logits)
    workload = workload.under_engine(plan.zero_stage).rank_share(plan.sequence_parallel_size)
    memory = _batch_independent(model, workload, cluster, plan)
    sharded = memory.sharded
    phases = memory.initialize + _step(memory, workload, plan)
    if workload.rollouts is not None:
        phases += rollout_phases(
            sharded,
            cluster,
            workload,
            plan,
            memory.resident + memory.gradients.idle_terms(),
            persistent=memory.gathered.persistent,
            in_scoring=memory.gathered_in_scoring,
        )
    constant = constant_rollout_memory(model, workload, cluster, plan)
    phases = _add_terms(phases, constant)
    peak = max(phase.allocated_bytes for phase in phases)
    phases = memory.load + phases
    persistent_bytes = total_bytes(memory.resident + constant)
    transient, expandable = max(0, peak - persistent_bytes), workload.software.expandable_segments
    if cluster.gpu.is_cpu:
        # On a CPU glibc returns large blocks at once, and the optimizer works in what the passes left.
        passes = max(phase.allocated_bytes for phase in phases if phase.name != "step")
        overhead = heap_overhead(peak, passes, max(0, passes - persistent_bytes))
    else:
        overhead = allocator_overhead(plan, transient, expandable=expandable)
    gap = logits_gap_bytes(model, workload, plan.micro_batch_size)
    node = memory.node
    part = rank_share(model, plan)
    inputs = checkpoint_terms(part, workload, plan, cluster.gpus_per_node)
    pins = workload.software.pinned_inputs
    # Each rank loads the whole model before it splits the layers or drops experts.
    loaded = sharded if part is model else shard_tensors(tensor_set(model, workload), sharded.world_size)
    estimate = MemoryEstimate(
        phases=phases,
        reserved_terms=overhead,
        cache=partial(cache, plan=plan, cluster=cluster, gap_bytes=gap, sharded=sharded, software=workload.software),
        device_terms=outside_allocator(cluster, plan.zero_stage),
        host_pinned_terms=node.pinned + (inputs if pins else ()),
        host_pageable_terms=node.pageable + (() if pins else inputs),
        host_loading_terms=process_terms(cluster)
        + max(
            loading_terms(loaded, memory.plan, cluster.gpus_per_node),
            memory.flattening_terms,
            key=total_bytes,
        )
        + spread_experts(sharded, cluster.gpus_per_node),
        nvme_terms=node.nvme,
    )
    return cpu_ranks_memory(estimate, cluster, logits)


def _add_terms(phases: tuple[Phase, ...], terms: Terms) -> tuple[Phase, ...]:
    return tuple(Phase(name=phase.name, terms=phase.terms + terms) for phase in phases) if terms else phases


def least_bytes(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> int:
    """Return a lower bound in bytes for all micro batches: the largest phase of a step without activations. Raises as
    `estimate_memory`."""
    if plan.sharding != "zero":
        return total_bytes(resident_terms(model, workload, cluster, plan))
    return _batch_independent(model, workload, cluster, plan).least_bytes


def node_bytes(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> int:
    """Return the RAM of a node in bytes while a ZeRO plan trains, without the inputs of checkpointed layers. Raises as
    `estimate_memory`."""
    node = _batch_independent(model, workload, cluster, plan).node
    return total_bytes(node.pinned + node.pageable)


def has_room_for_pinned(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> bool:
    """Return whether a plan's offload fits a node's RAM if it is page-locked. Raises as `estimate_memory`."""
    need = node_bytes(model, workload, cluster, plan.replace_fields(pin_memory=True))
    known = cluster.ram_limit_bytes is not None and not cluster.gpu.is_cpu
    return (host_bytes_to_fit(need) if known else need) <= cluster.most_host_bytes_per_node


def resident_terms(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Terms:
    """Return the terms on each GPU at every moment of training: weights, master weights, optimizer states and
    workspaces. Raises as `estimate_memory`."""
    if plan.sharding != "zero":
        return TorchStep(model, workload, cluster, plan).resident
    return _batch_independent(model, workload, cluster, plan).resident


def _batch_independent(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> BatchIndependentMemory:
    """Return the part of the memory that plans share if they differ in activations alone."""
    workload = workload.under_engine(plan.zero_stage)
    tensors, rollouts, most = tensor_set(rank_share(model, plan), workload), workload.rollouts, 2
    if rollouts is not None:  # the values that `Rollouts.breaks_traces` distinguishes
        divided = rollouts.steps_per_generation or rollouts.generations_per_step > 1
        most = plan.gradient_accumulation_steps if divided else 3
    # On a CPU, a page of a buffer takes memory only after it is written.
    bucket = min(plan.reduce_bucket_size, tensors.trainable_numel) if cluster.gpu.is_cpu else plan.reduce_bucket_size
    batchless = plan.replace_fields(
        micro_batch_size=1,
        # Two micro batches accumulate like any larger number, so a search computes them once.
        gradient_accumulation_steps=min(most, plan.gradient_accumulation_steps),
        # Only whether a sequence is split matters: gradients are then reduced in fp32.
        sequence_parallel_size=min(2, plan.sequence_parallel_size),
        cpu_checkpointing=False,
        reduce_bucket_size=bucket,
        # On one node DeepSpeed does not quantize gradients.
        zero_quantized_gradients=plan.zero_quantized_gradients and cluster.nodes > 1,
    )
    spec = optimizer(workload.optimizer, bf16_states=plan.bf16_optimizer_states, step=workload.software.optimizer_step)
    return _cached_memory(shard_plan(model, workload, cluster, plan), batchless, spec, cluster)


_cached_memory = lru_cache(maxsize=256)(BatchIndependentMemory)


def _step(memory: BatchIndependentMemory, workload: Workload, plan: Plan) -> tuple[Phase, ...]:
    tensors, model, gradients = memory.sharded.tensors, memory.sharded.tensors.model, memory.gradients
    micro_batch_size, width = plan.micro_batch_size, workload.weight_bytes
    activations = activation_memory(
        model,
        workload.passes_cache_key(),
        micro_batch_size=micro_batch_size,
        gradient_checkpointing=plan.gradient_checkpointing,
        compute_capability=memory.cluster.gpu.compute_capability,
        zero_stage=plan.zero_stage,
        cpu_checkpointing=plan.cpu_checkpointing,
    )
    # The policy without adapters has its peak at the start: its first pass prefetches.
    unsaved = activations.unsaved_terms if has_reference_model(workload) else ()
    both = reference_logits_terms(model, workload, micro_batch_size)
    saved, head = activations.saved_terms, activations.head_terms

    def saved_after(reduced: int, layer: Terms = activations.product_made_terms) -> Terms:
        """Return the saved terms without those of layers with `reduced` elements of gradients, plus `layer`."""
        layers_reduced = reduced // max(1, sum(tensors.trainable_layer))
        return _without(saved, layers_reduced * activations.saved_per_layer_bytes) + layer

    tokens, logits = tile_of_logits(model, workload, micro_batch_size), model.vocab_size
    head += _LOGITS.term(width * tokens * logits, w=width, c=tokens, V=logits)
    head += hidden_gradient(model, workload, micro_batch_size)
    phases = memory.phases
    if workload.loss == "tiled":
        tiles = loss_tiles(model, workload, micro_batch_size)
        phases = {**phases, "loss_peak": memory.tiled_loss(tiles)}
    returns = workload.loss == "value-head" and not plan.gradient_checkpointing
    returned = layer_outputs(model, workload, micro_batch_size) if returns else ()
    others = (model.num_layers - 1) * activations.saved_per_layer_bytes
    alive: dict[str, Terms] = {
        "loss_peak": saved + activations.loss_terms + returned,
        "layer_backward": saved + activations.block_terms,
        "layer_recomputation": saved + activations.recomputation_terms,
        "weight_gradient": saved + activations.product_terms,
        "later_layer_backward": saved_after(gradients.first_reduced, activations.block_terms),
        "gradient_reduction": saved_after(gradients.first_reduced),
        "first_layer_backward": _without(saved, others) + activations.block_terms,
        "backward_end": _encoder_terms(model, saved),
        "last_layer_forward": saved + activations.forward_terms,
        "layer_forward": _without(saved, memory.gathered.layers_after_first * activations.saved_per_layer_bytes)
        + activations.forward_terms,
        "reference_forward": saved + activations.head_terms + max(unsaved, both, key=total_bytes),
        "head_backward": saved + head,
        "head_reduction": saved,
    }
    if model.module:
        alive |= _module_phases(memory, workload, plan, saved)
    if "later_gradient_reduction" in phases:
        alive["later_gradient_reduction"] = saved_after(
            max(0, gradients.fills.second - (not tensors.tied) * tensors.head)
        )
    checkpoints, accumulates = plan.gradient_checkpointing, plan.gradient_accumulation_steps > 1
    outputs = output_terms(model, workload, micro_batch_size, checkpoints=checkpoints, accumulates=accumulates)
    before = memory.resident + outputs
    found = tuple(Phase(name=name, terms=before + terms + alive.get(name, ())) for name, terms in phases.items())
    if workload.eval_batch is not None:
        evaluation = evaluation_terms(model, workload, memory.cluster, *memory.in_evaluation)
        found += (Phase(name="evaluation", terms=memory.resident + evaluation),)
    return found


def _module_phases(memory: BatchIndependentMemory, workload: Workload, plan: Plan, saved: Terms) -> dict[str, Terms]:
    """Return the activations of a module by phase. Its program is the whole pass."""
    model, capability = memory.sharded.tensors.model, memory.cluster.gpu.compute_capability
    recorder = LayerRecorder(model, workload, plan.gradient_checkpointing, capability, zero3=plan.zero_stage >= 3)
    moments = module_moments(recorder, plan.micro_batch_size, memory.weights_in_pass)

    def alive(moment: int | None) -> Terms:
        if moment is None:
            return ()
        return _without(saved, -moment) if moment < 0 else saved + _MOMENT.term(moment, x=moment)

    forward, loss_peak, backward, reduction = map(alive, moments)
    return {
        "loss_peak": loss_peak,
        "last_layer_forward": forward,
        "layer_backward": backward,
        "gradient_reduction": reduction,
    }


def _encoder_terms(model: ModelShape, saved: Terms) -> Terms:
    """Return the terms that the encoder of an encoder-decoder with one embedding keeps at the end: its backward pass
    follows the decoder's, and the embedding's gradients are summed at its end."""
    if not model.tied or {block.stack for block in model.blocks} != {"encoder", "decoder"}:
        return ()
    return tuple(part for part in saved if part.name.startswith("encoder"))


def _without(terms: Terms, size_bytes: int) -> Terms:
    """Return the terms less `size_bytes` in total, in proportion to their sizes."""
    if not size_bytes:
        return terms
    total = total_bytes(terms)
    left = max(0, total - size_bytes)
    return tuple([part._replace(size_bytes=part.size_bytes * left // total) for part in terms])
