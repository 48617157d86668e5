"""Memory of training without DeepSpeed: torch's optimizer on the model's own weights, alone, replicated or under FSDP.

Published runs of this kind are the most exact there are, and they test the terms that every plan shares: activations,
logits and loss, adapters, quantized weights, allocator, context. What differs from DeepSpeed is written down here:

- Weights, gradients and optimizer states share one type: no fp32 masters. With t bytes per trainable element, the
  states of Adam take 2 t, and its "foreach" step t more (the roots of the second moments).
- FSDP shards layer by layer: parameters, gradients and states are 1/N; what is outside the layers is gathered from the
  first forward operation to the end of the backward pass; of the layers one is gathered, and the next while it is
  prefetched in the backward pass, which for frozen weights starts only after the first layer back-propagated.
- FSDP's hooks on frozen parameters hold the input of every layer that was back-propagated, and its gradient, to the end
  of the backward pass where checkpointing is reentrant. The largest phase is then the first layer's backward pass,
  with 2 L - 1 tensors of B S H instead of L.
- transformers before 4.48 slices the logits for the shift: another fp32 copy; until 4.45 the 16-bit logits go before
it.
- GPTBigCode's code of that time kept the key-value cache while it trained.
- autocast keeps 16-bit copies of fp32 weights from the forward to the backward pass.

Source: torch 2.4 optim/adam.py `_multi_tensor_adam`; torch 2.4 distributed/fsdp/_runtime_utils.py
`_register_post_backward_reshard_only_hook`; transformers 4.45, 4.46 and 4.48 modeling_mistral.py,
modeling_gpt_bigcode.py, loss/loss_utils.py;
torch aten/src/ATen/autocast_mode.cpp.
"""

from __future__ import annotations

from ds_advise.estimators.estimate import Formula, MemoryEstimate, MemoryTerm, Phase
from ds_advise.estimators.memory.activations import activation_memory
from ds_advise.estimators.memory.device_overhead import library_workspace, outside_allocator
from ds_advise.estimators.memory.trainable import TensorSet, tensor_set
from ds_advise.estimators.models.nf4 import nf4_bytes, quantized
from ds_advise.estimators.optimizers import optimizer

from . import allocator
from .logits import loss_terms
from .rows import Run

_SOURCE = "benchmarks/accuracy/torch_loop.py"


def estimate(run: Run) -> MemoryEstimate:
    """What one GPU holds; host memory is not estimated."""
    tensors, plan, workload = tensor_set(run.model, run.workload), run.plan, run.workload
    shards = run.cluster.world_size if run.loop == "fsdp" else 1
    width = workload.weight_bytes
    trained = 4 if workload.adapters_fp32 and workload.method != "full" else width
    if run.autocast and workload.method == "full":
        trained = 4
    numel = tensors.trainable_numel
    frozen = _frozen_bytes(run, tensors)

    def part(name: str, size: float, formula: str) -> tuple[MemoryTerm, ...]:
        return Formula(name, formula, _SOURCE).term(size, t=trained, w=width, Pt=numel, N=shards)

    states = _state_bytes(run, trained) * numel / shards
    workspace = library_workspace(run.cluster.gpu)
    offloaded = plan.offload_param != "none"
    resident = (
        workspace
        if offloaded
        else workspace + part("parameters", (trained * numel + frozen) / shards, "(t Pt + frozen) / N")
    )
    if plan.offload_optimizer == "none" and not offloaded:
        resident += part("optimizer_states", states, "o Pt / N")
    casts = (
        part("autocast_copies", 2 * numel, "2 Pt")
        if run.autocast and workload.method == "full" and run.loop == "torch"
        else ()
    )
    gradient = 0 if run.optimizer_step == "in-backward" else trained * numel / shards * (not offloaded)
    earlier = part("gradients", gradient, "t Pt / N") if plan.gradient_accumulation_steps > 1 else ()
    whole = part("gradients", gradient, "t Pt / N")

    outside = sum(tensor.numel for tensor in run.model.outside) * width * (shards > 1)
    layer = _layer_bytes(run, tensors) * (shards > 1)
    fetched = 2 if workload.method == "full" else 1
    root = part("gathered_parameters", outside, "w outside")
    in_layer = part("gathered_parameters", outside + fetched * layer, "w (outside + layers)")
    head = part("gradients", trained * tensors.head * tensors.trains_head, "t head")
    unsharded = (
        part(
            "gradients",
            trained * (sum(tensors.trainable_layer) + tensors.head) * tensors.trains_head,
            "t (layer + head)",
        )
        if shards > 1
        else ()
    )

    made = activation_memory(
        run.model,
        workload,
        plan.micro_batch_size,
        plan.gradient_checkpointing,
        compute_capability=run.cluster.gpu.compute_capability,
        zero_stage=3 if run.frozen_inputs_kept else 0,
    )
    saved = made.saved_terms + part("upcast_inputs", _upcast_bytes(run), "2 L B S H")
    cache = part("key_value_cache", _cache_bytes(run), "L B S (A + 2 K) D")
    phases = [
        Phase(name="loss", terms=resident + casts + earlier + root + saved + cache + _loss_terms(run, made.loss_terms)),
        Phase(name="layer_backward", terms=resident + casts + (earlier or head) + in_layer + saved + made.block_terms),
        Phase(
            name="first_layer_backward",
            terms=resident
            + casts
            + (whole if shards == 1 else earlier + unsharded)
            + in_layer
            + made.block_terms
            + part("retained_inputs", _retained_bytes(run), "(2 L - 1) B S H w"),
        ),
        Phase(
            name="step",
            terms=resident
            + whole
            + part("step_temporaries", _step_bytes(run, trained) * numel / shards, "s Pt / N") * (not offloaded),
        ),
    ]
    peak = max(phase.allocated_bytes for phase in phases)
    transient = peak - sum(entry.size_bytes for entry in resident)
    return MemoryEstimate(
        phases=tuple(phases),
        reserved_terms=allocator.overhead(transient),
        device_terms=outside_allocator(run.cluster),
        host_pinned_terms=(),
        host_pageable_terms=(),
        host_loading_bytes_per_node=0,
        nvme_terms=(),
    )


def _frozen_bytes(run: Run, tensors: TensorSet) -> int:
    """Before transformers 5 every expert was a module of linear layers, which bitsandbytes quantized."""
    if not run.experts_apart or run.workload.method != "qlora":
        return tensors.frozen_bytes
    return sum(
        (
            nf4_bytes(tensor.numel)
            if tensor.role == "expert" or quantized(tensor, run.workload)
            else tensor.numel * run.workload.weight_bytes
        )
        * count
        for tensor, count in run.model.tensor_counts
    )


def _layer_bytes(run: Run, tensors: TensorSet) -> int:
    """The largest layer as it is gathered: quantized weights travel quantized."""
    if run.workload.method != "qlora":
        return tensors.layer_numel * run.workload.weight_bytes
    return max(
        sum(
            nf4_bytes(tensor.numel)
            if quantized(tensor, run.workload) or (run.experts_apart and tensor.role == "expert")
            else tensor.numel * run.workload.weight_bytes
            for tensor in block.tensors
        )
        for block in run.model.blocks
    )


def _state_bytes(run: Run, trained: int) -> float:
    """torch keeps states in the parameters' type, bitsandbytes in eight bits."""
    states = optimizer(run.workload.optimizer).state_bytes
    return states if run.workload.optimizer == "adamw_8bit" else states / 4 * trained


def _step_bytes(run: Run, trained: int) -> float:
    if run.workload.optimizer == "adamw_8bit" or run.optimizer_step != "foreach":
        return 0
    return {"adamw": 1.0, "adam": 1.0}.get(run.workload.optimizer, 0) * trained


def _tokens(run: Run) -> int:
    return run.plan.micro_batch_size * run.workload.seq_len


def _upcast_bytes(run: Run) -> int:
    """What passes from layer to layer is fp32 where the norms give fp32: after peft's prepare_model_for_kbit_training,
    and with LayerNorm under autocast."""
    return 2 * run.model.num_layers * _tokens(run) * run.model.hidden_size if run.upcast_inputs else 0


def _cache_bytes(run: Run) -> int:
    """Keys and values are views of the fused projection of queries, keys and values, so that the cache keeps all of
    it."""
    if not run.kv_cache_kept:
        return 0
    width = 4 if run.upcast_inputs else run.workload.weight_bytes
    return (
        sum(
            block.count
            * _tokens(run)
            * (block.attention.heads + 2 * block.attention.kv_heads)
            * block.attention.head_dim
            for block in run.model.blocks
        )
        * width
    )


def _retained_bytes(run: Run) -> int:
    frozen = run.workload.method != "full" and run.loop == "fsdp" and run.cluster.world_size > 1
    if not (frozen and run.plan.gradient_checkpointing):
        return 0
    return (2 * run.model.num_layers - 1) * _tokens(run) * run.model.hidden_size * run.workload.weight_bytes


def _loss_terms(run: Run, standard: tuple[MemoryTerm, ...]) -> tuple[MemoryTerm, ...]:
    """The final norm's tensors, then the logits with their copies as the run's framework makes them."""
    if run.logits in ("standard", "fused", "none"):
        return standard
    return (standard[0], *loss_terms(run))
