"""Memory of a plan: what each GPU, each node's host and its NVMe must hold.

    estimate_memory(model, workload, cluster, plan) -> MemoryEstimate

A training step passes through a few phases, and any of them may be the peak:

- initialize: stages 1 and 2 hold the trainable weights twice while they flatten them (on the host instead, when the
  GPU is short).
- first_layer_forward, last_layer_forward: ZeRO-3 has prefetched what follows, and still holds the buffers in which it
came.
- forward_backward_top: all activations are saved, the loss and its copies are alive.
- head_backward, head_reduction: the output head's gradient is made, then reduced; all activations are still saved.
- layer_backward, gradient_reduction: the last layer runs backward, with recomputation when checkpointing; a full
  bucket is reduced.
- backward_end: the embedding's gradient is made, few activations are left.
- step: gradient norm, fp32 gradients, the optimizer's temporaries.

Each phase is a sum of terms from one file each: `zero_states` (weights, masters, states), `gathered_parameters`,
`gradient_memory`, `activations`. All arithmetic on sizes is exact in bytes of live tensors; `device_overhead` adds
what is only observed. Evidence: analytic, compared with dry runs of the real engine in `benchmarks/`.

Quick enough for a search: what depends on the model and workload alone is computed once (`trainable.tensor_set`,
`trainable.partitions`).
"""

from __future__ import annotations

from dataclasses import replace

from ..estimate import MemoryEstimate, MemoryTerm, Phase
from ..hardware.cluster import Cluster
from ..models.model_shape import ModelShape
from ..optimizers import Optimizer, optimizer
from ..plan import Plan
from ..workload import Workload
from .activations import activation_memory
from .device_overhead import allocator_overhead, heap_overhead, library_workspace, outside_allocator
from .gathered_parameters import GatheredParameters, gathered_parameters
from .gradient_memory import gradient_memory
from .host_memory import host_terms, loading_bytes
from .nvme_memory import nvme_terms, states_per_master, swap_buffers
from .terms import term
from .trainable import ShardedTensors, shard_tensors, tensor_set
from .zero_states import masters_and_states, parameters

INITIALIZE_SHARE = 0.85
"""Of the GPU's memory, up to which two copies of the weights are surely flattened on the GPU."""


def estimate_memory(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> MemoryEstimate:
    """Memory of one plan on one cluster; meaningful for plans that `unsupported` does not reject.

    Raises WorkloadError for an optimizer that is not in `optimizers.OPTIMIZERS`.
    """
    runs = optimizer(workload.optimizer)
    tensors = tensor_set(model, workload)
    sharded = shard_tensors(tensors, cluster.world_size)
    gathered = gathered_parameters(tensors, plan, cluster.world_size)
    workspace = library_workspace(cluster.gpu)
    resident = parameters(sharded, plan, gathered) + masters_and_states(sharded, plan, runs) + workspace
    phases = _initialize(sharded, plan, cluster, workspace) + _step(sharded, plan, cluster, runs, gathered, resident)

    peak, kept = max(phase.allocated_bytes for phase in phases), sum(part.size_bytes for part in resident)
    if cluster.gpu.is_cpu:
        passes = max(phase.allocated_bytes for phase in phases if phase.name != "step")
        overhead = heap_overhead(peak, passes, max(0, passes - kept))
    else:
        overhead = allocator_overhead(plan, max(0, peak - kept))
    local_ranks = cluster.gpus_per_node
    pinned, pageable = host_terms(sharded, plan, runs, local_ranks)
    return MemoryEstimate(
        phases=phases,
        reserved_terms=overhead,
        device_terms=outside_allocator(cluster, plan),
        host_pinned_terms=pinned + swap_buffers(sharded, plan, local_ranks),
        host_pageable_terms=pageable,
        host_loading_bytes_per_node=loading_bytes(sharded, plan, local_ranks),
        nvme_terms=nvme_terms(sharded, plan, runs, local_ranks),
    )


def _initialize(
    sharded: ShardedTensors, plan: Plan, cluster: Cluster, workspace: tuple[MemoryTerm, ...]
) -> tuple[Phase, ...]:
    if plan.zero_stage not in (1, 2):
        return ()
    tensors, width = sharded.tensors, sharded.tensors.workload.weight_bytes
    weights = width * tensors.trainable_numel + tensors.frozen_bytes
    # Near the GPU's limit DeepSpeed may flatten on either side; it fits both ways, so the peak is not counted there.
    fits = weights + width * tensors.trainable_numel < INITIALIZE_SHARE * cluster.gpu.memory_bytes
    copy = width * tensors.trainable_numel * fits
    return (
        Phase(
            name="initialize",
            terms=workspace
            + term(
                "parameters",
                weights + copy,
                "2 w Pt + frozen" if fits else "w Pt + frozen",
                "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py __init__ (flatten_on_accelerator)",
                w=width,
                Pt=tensors.trainable_numel,
                frozen=tensors.frozen_bytes,
            ),
        ),
    )


def _step(
    sharded: ShardedTensors,
    plan: Plan,
    cluster: Cluster,
    runs: Optimizer,
    gathered: GatheredParameters,
    resident: tuple[MemoryTerm, ...],
) -> tuple[Phase, ...]:
    tensors = sharded.tensors
    model, workload = tensors.model, tensors.workload
    gradients = gradient_memory(sharded, plan, runs)
    activations = activation_memory(
        model,
        workload,
        plan.micro_batch_size,
        plan.gradient_checkpointing,
        compute_capability=cluster.gpu.compute_capability,
        zero_stage=plan.zero_stage,
    )
    saved = activations.saved_terms
    width = workload.weight_bytes

    def whole(numel: int) -> tuple[MemoryTerm, ...]:
        return term(
            "gathered_parameters",
            width * numel,
            "w gathered",
            "estimators/memory/gathered_parameters.py, deepspeed 0.19.8 runtime/zero/partitioned_param_coordinator.py",
            w=width,
            gathered=numel,
        )

    phases = [
        Phase(
            name="forward_backward_top",
            terms=resident + gradients.forward + whole(gathered.loss) + saved + activations.loss_terms,
        ),
        Phase(
            name="layer_backward",
            terms=resident + gradients.layer + whole(gathered.layer) + saved + activations.block_terms,
        ),
        Phase(
            name="gradient_reduction",
            terms=resident
            + gradients.reduction
            + whole(gathered.reduction)
            + _without(
                saved, gradients.reduced // max(1, sum(tensors.trainable_layer)) * activations.saved_per_layer_bytes
            )
            + activations.block_terms,
        ),
        Phase(name="backward_end", terms=resident + gradients.end + whole(gathered.end) + _encoder(model, saved)),
        Phase(name="step", terms=resident + gradients.step),
    ]
    if gathered.last_layer > gathered.loss:
        phases.append(
            Phase(
                name="last_layer_forward",
                terms=resident + gradients.forward + whole(gathered.last_layer) + saved + activations.forward_terms,
            )
        )
    if gathered.first_layer > gathered.last_layer:
        phases.append(
            Phase(name="first_layer_forward", terms=resident + gradients.forward + whole(gathered.first_layer))
        )
    if tensors.head and (tensors.trains_head or gathered.head > gathered.loss):
        logits = 0 if workload.loss == "fused" else width * plan.micro_batch_size * workload.seq_len * model.vocab_size
        gradient = term(
            "logits_and_loss",
            logits,
            "w B S V",
            "gradient of the logits",
            w=width,
            B=plan.micro_batch_size,
            S=workload.seq_len,
            V=model.vocab_size,
        )
        phases.append(
            Phase(
                name="head_backward",
                terms=resident + gradients.head + whole(gathered.head) + saved + activations.head_terms + gradient,
            )
        )
    if tensors.head and tensors.trains_head:
        phases.append(
            Phase(
                name="head_reduction",
                terms=resident + gradients.head_reduction + whole(gathered.head_reduction) + saved,
            )
        )
    return tuple(phases)


def _encoder(model: ModelShape, saved: tuple[MemoryTerm, ...]) -> tuple[MemoryTerm, ...]:
    """Of an encoder-decoder model with one embedding: what the encoder keeps, whose backward pass follows the
    decoder's, in the end of which the gradients of the embedding meet."""
    if not model.tied or {block.stack for block in model.blocks} != {"encoder", "decoder"}:
        return ()
    return tuple(part for part in saved if part.name.startswith(("encoder", "cross-attention")))


def _without(terms: tuple[MemoryTerm, ...], size_bytes: int) -> tuple[MemoryTerm, ...]:
    """The terms less so many bytes in all, each in proportion."""
    total = sum(part.size_bytes for part in terms)
    left = max(0, total - size_bytes)
    return tuple(replace(part, size_bytes=part.size_bytes * left // total) for part in terms)


def unsupported(model: ModelShape, workload: Workload, plan: Plan, cluster: Cluster | None = None) -> str | None:
    """Why a plan cannot run at all, whatever the memory; None when nothing is known against it."""
    runs = optimizer(workload.optimizer)
    if cluster is not None and workload.precision == "bf16" and not cluster.gpu.has_bf16:
        return f"{cluster.gpu.name} has no bf16 units; use fp16"
    if cluster is not None and cluster.gpu.is_cpu and "cpu" in (plan.offload_optimizer, plan.offload_param):
        return "the ranks' memory is the host's, so there is nowhere to offload to"
    if plan.zero_stage == 0 and plan.offload_optimizer != "none":
        return "the optimizer is offloaded from ZeRO stage 1 on"
    if plan.zero_stage < 3 and plan.offload_param != "none":
        return "parameters are offloaded at ZeRO stage 3 only"
    if plan.zero_stage < 3 and plan.offload_optimizer == "nvme":
        return "the optimizer goes to NVMe at ZeRO stage 3 only"
    if plan.zero_stage and not runs.partitions:
        return f"{workload.optimizer} needs whole layers, ZeRO gives it flat partitions"
    if plan.offload_optimizer != "none" and runs.cpu_state_bytes is None:
        return f"{workload.optimizer} does not run on the host"
    if workload.method == "qlora" and plan.zero_stage == 3:
        return "4-bit weights are not built under zero.Init, so ZeRO-3 cannot shard them as they load"
    if cluster is not None and "nvme" in (plan.offload_optimizer, plan.offload_param):
        return _unswappable(shard_tensors(tensor_set(model, workload), cluster.world_size), plan, runs)
    return None


def _unswappable(sharded: ShardedTensors, plan: Plan, runs: Optimizer) -> str | None:
    """What DeepSpeed's NVMe swappers would assert on."""
    if plan.offload_optimizer == "nvme":
        needed = 2 + states_per_master(runs)
        if plan.optimizer_buffer_count < needed:
            return f"offload_optimizer.buffer_count must be at least {needed} (master, states, gradient)"
    if plan.offload_param == "nvme":
        shard = -(-max(*sharded.tensors.trainable, *sharded.tensors.frozen, 0) // sharded.world_size)
        if shard > plan.param_buffer_size:
            return f"offload_param.buffer_size must be at least {shard}, the shard of the largest tensor"
    return None
