"""Memory of a plan: what each GPU, each node's host and its NVMe must hold.

    estimate_memory(model, workload, cluster, plan) -> MemoryEstimate

A training step passes through a few phases, and any of them may be the peak:

- initialize: stages 1 and 2 hold the trainable weights twice while they flatten them (on the host instead, when the
  GPU is short, and before DeepSpeed 0.19).
- first_layer_forward, last_layer_forward: ZeRO-3 has prefetched what follows, and still holds the buffers in which it
  came.
- forward_backward_top: all activations are saved, the loss and its copies are alive.
- head_backward, head_reduction: the output head's gradient is made, then reduced; all activations are still saved.
- layer_backward, gradient_reduction: the last layer runs backward, with recomputation when checkpointing; a full
  bucket is reduced. later_gradient_reduction: the second one, where ranks keep experts of their own.
- backward_end: the embedding's gradient is made, few activations are left.
- step: gradient norm, fp32 gradients, the optimizer's temporaries.

Each phase is a sum of terms, which one place each computes: `zero_states` (weights, masters, states),
`gathered_parameters`, `gradients`, `activations`. All arithmetic on sizes is exact in bytes of live tensors;
`device_overhead` adds what is only observed. Evidence: analytic, compared with dry runs of the real engine in
`benchmarks/`.

Quick enough for a search: what depends on the model and workload alone is computed once (`trainable.tensor_set`,
`trainable.shard_tensors`), and what lies outside the GPUs once for all micro batches.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..dataclass import replace
from ..estimate import MEMORY_SYMBOLS, Formula, MemoryEstimate, Phase, total_bytes
from ..hardware.cluster import Cluster
from ..models.model_shape import ModelShape
from ..models.rank_part import of_rank
from ..optimizers import Optimizer, optimizer
from ..plan import Plan
from ..tiles import loss_tiles
from ..workload import Workload
from .activations import activation_memory
from .activations.loss import output_terms, tile_of_logits
from .device_overhead import (
    allocator_overhead,
    fixed_segments_cache,
    fixed_segments_overhead,
    heap_overhead,
    library_workspace,
    outside_allocator,
)
from .gathered_parameters import GatheredParameters, gathered_parameters
from .gradients import GradientMemory, gradient_memory
from .host_memory import checkpoint_terms, host_terms, loading_bytes
from .nvme_memory import nvme_terms, swap_buffers
from .terms import Terms
from .torch_memory import estimate_torch_memory
from .trainable import ShardedTensors, shard_tensors, tensor_set
from .zero_states import masters_and_states, parameters, second_copy

INITIALIZE_SHARE = 0.85
"""Share of the GPU's memory up to which two copies of the weights are surely flattened on the GPU."""

_TWICE = Formula(
    "parameters", "2 w Pt + frozen", "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py __init__ (flatten_on_accelerator)"
)
_GATHERED = Formula(
    "gathered_parameters",
    "w gathered",
    "estimators/memory/gathered_parameters.py, deepspeed 0.19.8 runtime/zero/partitioned_param_coordinator.py",
    {**MEMORY_SYMBOLS, "gathered": "elements that are gathered from all ranks at this moment"},
)
_LOGITS = Formula(
    "logits_and_loss",
    "w c V",
    "gradient of the logits",
    {**MEMORY_SYMBOLS, "c": "tokens whose logits are alive at a time, B S unless the loss is tiled"},
)


def estimate_memory(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> MemoryEstimate:
    """Memory of one plan on one cluster; meaningful for plans that `unsupported` does not reject.

    Raises WorkloadError for an optimizer that is not in `optimizers.OPTIMIZERS`.
    """
    if plan.sharding != "zero":
        return estimate_torch_memory(model, workload, cluster, plan)
    if workload.software.fp32_adapters or workload.software.autocast:
        # The engine casts every parameter once, adapters too (deepspeed 0.19.8 engine.py _cast_module_mixed_precision).
        workload = replace(workload, software=replace(workload.software, fp32_adapters=False, autocast=False))
    whole, model, replicas = model, of_rank(model, plan), cluster.world_size // plan.autotp_size
    workload = workload.of_rank(plan.sequence_parallel_size)
    runs = optimizer(workload.optimizer, bf16_states=plan.bf16_optimizer_states)
    sharded = shard_tensors(tensor_set(model, workload), replicas)
    gathered = gathered_parameters(sharded.tensors, plan, replicas)
    if cluster.nodes == 1 and plan.zero_quantized_gradients:
        plan = replace(plan, zero_quantized_gradients=False)  # DeepSpeed reduces them as they are
    resident = resident_terms(whole, workload, cluster, plan)
    phases = _initialize(sharded, plan, cluster, library_workspace(cluster.gpu)) + _step(
        sharded,
        workload,
        plan,
        cluster,
        gradient_memory(sharded, plan, runs, cluster.gpus_per_node),
        gathered,
        resident,
    )

    peak, kept = max(phase.allocated_bytes for phase in phases), total_bytes(resident)
    transient = max(0, peak - kept)
    cache: Terms = ()
    if cluster.gpu.is_cpu:
        passes = max(phase.allocated_bytes for phase in phases if phase.name != "step")
        overhead = heap_overhead(peak, passes, max(0, passes - kept))
    elif not workload.software.expandable_segments:
        overhead, cache = fixed_segments_overhead(transient), fixed_segments_cache(transient)
    else:
        overhead = allocator_overhead(plan, transient)
    rest = _at_rest(plan)
    node = _on_node(sharded, rest, runs, cluster.gpus_per_node)
    # A rank's own experts are copies beside the whole model, which the list of parameters for the optimizer holds.
    spread_bytes = workload.weight_bytes * sharded.tensors.spread_numel * cluster.gpus_per_node
    inputs, pins = checkpoint_terms(model, workload, plan, cluster.gpus_per_node), workload.software.pinned_inputs
    # Each rank loads the whole model before it splits the layers or drops experts.
    loaded = sharded if model is whole else shard_tensors(tensor_set(whole, workload), replicas)
    return MemoryEstimate(
        phases=phases,
        reserved_terms=overhead,
        cache_terms=cache,
        device_terms=outside_allocator(cluster, plan, workload.software),
        host_pinned_terms=node.pinned + (inputs if pins else ()),
        host_pageable_terms=node.pageable + (() if pins else inputs),
        host_loading_bytes_per_node=_loading_bytes(loaded, rest, cluster.gpus_per_node) + spread_bytes,
        nvme_terms=node.nvme,
    )


def _at_rest(plan: Plan) -> Plan:
    """The plan as far as it decides what lies outside the GPUs: the micro batch and checkpointing do not, and of
    accumulation only that there is any."""
    steps = min(2, plan.gradient_accumulation_steps)
    return replace(
        plan,
        micro_batch_size=1,
        gradient_accumulation_steps=steps,
        gradient_checkpointing=False,
        cpu_checkpointing=False,
    )


class _OnNode(NamedTuple):
    """What a node holds outside its GPUs."""

    pinned: Terms
    pageable: Terms
    nvme: Terms


@lru_cache(maxsize=256)
def _on_node(sharded: ShardedTensors, plan: Plan, runs: Optimizer, local_ranks: int) -> _OnNode:
    pinned, pageable = host_terms(sharded, plan, runs, local_ranks)
    return _OnNode(
        pinned=pinned + swap_buffers(sharded, plan, local_ranks),
        pageable=pageable,
        nvme=nvme_terms(sharded, plan, runs, local_ranks),
    )


_loading_bytes = lru_cache(maxsize=256)(loading_bytes)


def resident_terms(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Terms:
    """What is on each GPU at every moment of training: weights, master weights, optimizer states and workspaces.

    No plan needs less, whatever its micro batch, and it is quick to know. Raises as `estimate_memory` does.
    """
    runs = optimizer(workload.optimizer, bf16_states=plan.bf16_optimizer_states)
    tensors, replicas = tensor_set(of_rank(model, plan), workload), cluster.world_size // plan.autotp_size
    sharded, gathered = shard_tensors(tensors, replicas), gathered_parameters(tensors, plan, replicas)
    rest = masters_and_states(sharded, plan, runs) + library_workspace(cluster.gpu)
    return parameters(sharded, plan, gathered) + rest


def _initialize(sharded: ShardedTensors, plan: Plan, cluster: Cluster, workspace: Terms) -> tuple[Phase, ...]:
    if plan.zero_stage not in (1, 2) or sharded.tensors.workload.software.deepspeed < (0, 19):
        return ()
    width, trainable, frozen = (
        sharded.tensors.workload.weight_bytes,
        sharded.tensors.trainable_numel,
        sharded.tensors.frozen_bytes,
    )
    # Near the GPU's limit DeepSpeed may flatten on either side; it fits both ways, so the peak is not counted there.
    fits = 2 * width * trainable + frozen < INITIALIZE_SHARE * cluster.gpu.memory_bytes
    formula = _TWICE if fits else _TWICE._replace(text="w Pt + frozen")
    size = (2 if fits else 1) * width * trainable + frozen
    return (Phase(name="initialize", terms=workspace + formula.term(size, w=width, Pt=trainable, frozen=frozen)),)


def _step(
    sharded: ShardedTensors,
    workload: Workload,
    plan: Plan,
    cluster: Cluster,
    gradients: GradientMemory,
    gathered: GatheredParameters,
    resident: Terms,
) -> tuple[Phase, ...]:
    tensors, model = sharded.tensors, sharded.tensors.model
    activations = activation_memory(
        model,
        workload,
        plan.micro_batch_size,
        plan.gradient_checkpointing,
        compute_capability=cluster.gpu.compute_capability,
        zero_stage=plan.zero_stage,
        cpu_checkpointing=plan.cpu_checkpointing,
    )
    saved, width = activations.saved_terms, workload.weight_bytes
    output = output_terms(model, workload, plan.micro_batch_size)

    # What stays gathered from the forward to the backward pass has not been released yet.
    kept = gathered.loss
    unreleased = {
        "first_layer_forward": tensors.trainable_numel,
        "last_layer_forward": gathered.last_layer,
        "forward_backward_top": kept,
        "head_backward": kept,
        "head_reduction": kept,
        "layer_backward": min(kept, gathered.layer),
        "gradient_reduction": min(kept, gathered.reduction),
        "later_gradient_reduction": min(kept, gathered.reduction),
        "backward_end": max(0, kept + tensors.embedding - tensors.numel),
        "step": 0,
    }

    arriving = {
        "first_layer_forward": gathered.arriving_at_first_layer,
        "last_layer_forward": gathered.arriving_at_last_layer,
        "forward_backward_top": gathered.arriving_at_loss,
        "head_backward": gathered.arriving_at_loss,
        "head_reduction": gathered.arriving_at_loss,
        "layer_backward": gathered.arriving_in_layer,
        "gradient_reduction": gathered.arriving_in_layer,
    }

    def phase(name: str, gradient_terms: Terms, gathered_numel: int = 0, further: Terms = ()) -> Phase:
        in_8_bits = min(arriving.get(name, 0), gathered_numel)
        size = width * (gathered_numel - in_8_bits) + in_8_bits
        whole = _GATHERED.term(size, w=width, gathered=size / width)
        whole += second_copy(sharded, plan, unreleased[name])
        return Phase(name=name, terms=resident + output + gradient_terms + whole + further)

    def left(reduced: int) -> Terms:
        """What layers keep, and one of them needs, when so many elements of layers' gradients have been reduced."""
        layers_reduced = reduced // max(1, sum(tensors.trainable_layer))
        return _without(saved, layers_reduced * activations.saved_per_layer_bytes) + activations.block_terms

    forward = gradients.forward_terms()
    top = forward
    if workload.loss == "tiled":
        top = gradients.tiled_loss_terms(loss_tiles(model, workload, plan.micro_batch_size))
    phases = [
        phase("forward_backward_top", top, gathered.loss, saved + activations.loss_terms),
        phase("layer_backward", gradients.layer_terms(), gathered.layer, saved + activations.block_terms),
        phase("gradient_reduction", gradients.reduction_terms(), gathered.reduction, left(gradients.reduced)),
        phase("backward_end", gradients.end_terms(), gathered.end, _encoder(model, saved)),
        phase("step", gradients.step_terms()),
    ]
    later = gradients.later_reduction_terms()
    if later is not None:
        phases.append(
            phase(
                "later_gradient_reduction",
                later,
                gathered.reduction,
                left(max(0, gradients.fills.second - tensors.head)),
            )
        )
    if gathered.last_layer > gathered.loss:
        phases.append(phase("last_layer_forward", forward, gathered.last_layer, saved + activations.forward_terms))
    if gathered.first_layer > gathered.last_layer:
        phases.append(phase("first_layer_forward", forward, gathered.first_layer))
    if tensors.head and (tensors.trains_head or gathered.head > gathered.loss):
        tokens, logits = tile_of_logits(model, workload, plan.micro_batch_size), model.vocab_size
        further = activations.head_terms + _LOGITS.term(width * tokens * logits, w=width, c=tokens, V=logits)
        if workload.loss == "tiled":
            further += tuple(term for term in activations.loss_terms if term.name.startswith("gradient of"))
        phases.append(phase("head_backward", gradients.head_terms(), gathered.head, saved + further))
    if tensors.head and tensors.trains_head:
        phases.append(phase("head_reduction", gradients.head_reduction_terms(), gathered.head_reduction, saved))
    return tuple(phases)


def _encoder(model: ModelShape, saved: Terms) -> Terms:
    """What the encoder of an encoder-decoder model with one embedding keeps at the end of the backward pass.

    Its backward pass follows the decoder's, and the gradients of the embedding meet at its end.
    """
    if not model.tied or {block.stack for block in model.blocks} != {"encoder", "decoder"}:
        return ()
    return tuple(part for part in saved if part.name.startswith(("encoder", "cross-attention")))


def _without(terms: Terms, size_bytes: int) -> Terms:
    """The terms less so many bytes in all, each in proportion."""
    total = total_bytes(terms)
    left = max(0, total - size_bytes)
    return tuple(part._replace(size_bytes=part.size_bytes * left // total) for part in terms)
