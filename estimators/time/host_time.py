"""What the host spends on launching work, which is the whole time of a small model.

Every operation of eager PyTorch costs the host about as much whatever its size, and the GPU waits when its kernels are
shorter than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..memory.trainable import tensor_set
from ..models.lora import Adapters, adapters
from ..models.model_shape import Block, ModelShape
from ..models.nf4 import quantized
from ..software import DEFAULT, Software
from ..workload import Workload

HOST_S_PER_OPERATION = 21.5e-6
"""Host time of one operation: dispatch, autograd, launch. Fitted, on the few published runs where nothing else takes
time.

A core of an AMD EPYC 9004 at 2.6 GHz needs less: transformers 5.23 Qwen2 layers too small to take time themselves
(hidden 64, 4 tokens) under torch 2.13 took 10.1 us per operation, 10.8 with checkpointing, 18 under autocast; launching
on a CUDA stream adds 3 to 5. Two published runs of Qwen2.5-0.5B give 21 us (RTX 4090, Windows) and 33 us (RTX 3080, a
shared Xeon).
"""

CPU_S_PER_OPERATION, CPU_ZERO3_VISIT_S = 10.5e-6, 400e-6
"""The same, and stage 3's hooks around a visit (below), where the CPU is the device. Operations as measured there, on a
core of an EPYC 9004; an older one takes longer, which a probe shows. Visits fitted: what they add to DDP's passes in
the eight ZeRO-3 plans of two models, at the median, rounded (benchmarks/probes/transfer.py; 190 us are the hooks alone,
measured as below)."""

BACKWARD_OPERATIONS = 2.2
"""Backward operations for one forward one: 66 for 30 in the same layers, counted by a dispatch mode."""

FOLD_HOST_S = 600e-6
"""A forward pass's W + B A of a router or fused experts: peft gives the module a class of its own, and takes it back.

Measured as above on Qwen3-MoE: 210 us for the router, 320 and 370 us for the experts' two tensors; doubled, as 10 us
per operation are 20 in published runs.
"""

MICRO_STEP_HOST_S = 5e-3
"""Per micro batch outside the layers: data to the device, embedding, loss, the engine's and the Trainer's
bookkeeping."""

REDUCE_HOOK_S = 60e-6
"""ZeRO stage 1 and 2's Python hook for each reduced gradient.

Measured as above with deepspeed 0.19.8: stage 2 adds 0.5 ms to a layer of 12 parameters, without streams or NCCL.
"""

ZERO3_VISIT_S = 740e-6
"""Stage 3's hooks around one visit of a submodule (fetch, prefetch, release), forward or backward. Fitted.

The same hooks without streams, events and NCCL take 190 us, measured as above.
"""

FSDP_VISIT_S = 720e-6
"""The same for a unit of FSDP. Fitted; no plan of the project uses it."""

ZERO3_SERIAL = 0.5
"""Part of the shorter of host and GPU time that stage 3 adds to the longer. Assumed.

The host runs at most two fetches ahead of the GPU (deepspeed 0.19.8 partitioned_param_coordinator.py
`__max_ongoing_fetch_events`), so a slow module of one does not hide behind a slow module of the other.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """What the host does in one forward pass of all layers."""

    operations: int
    """Kernels that it launches."""
    folds: int
    """Weights W + B A that LoRA computes."""
    visits: int
    """Calls of submodules that ZeRO-3 hooks, each taking `visit_s`."""
    parameters: int
    """Trained tensors."""
    visit_s: float
    operation_s: float

    def forward_s(self, zero_stage: int) -> float:
        """A forward pass of the layers, or running them again under checkpointing."""
        seconds = self.operations * self.operation_s + self.folds * FOLD_HOST_S
        return seconds + (self.visits * self.visit_s if zero_stage == 3 else 0.0)

    def backward_s(self, zero_stage: int, *, reduces: bool) -> float:
        """A backward pass of the layers; `reduces` when hooks of stages 1 to 3 hand its gradients to a reduction."""
        seconds = self.operations * BACKWARD_OPERATIONS * self.operation_s
        if zero_stage == 3:
            seconds += self.visits * self.visit_s
        return seconds + (self.parameters * REDUCE_HOOK_S if zero_stage and reduces else 0.0)


@lru_cache(maxsize=64)
def host_work(model: ModelShape, workload: Workload, software: Software = DEFAULT, *, on_cpu: bool = False) -> HostWork:
    """on_cpu: the CPU is the device as well."""
    visit_s = CPU_ZERO3_VISIT_S if on_cpu else ZERO3_VISIT_S if software.sharding == "zero" else FSDP_VISIT_S
    chosen = adapters(model, workload)
    return HostWork(
        operations=sum(
            block.count * block_operations(block, workload, chosen, fused=software.fused_kernels)
            for block in model.blocks
        ),
        folds=sum(block.count * _folded(block, chosen) for block in model.blocks),
        visits=sum(block.count * _visits(block, chosen, software) for block in model.blocks),
        parameters=len(tensor_set(model, workload).trainable),
        visit_s=visit_s,
        operation_s=CPU_S_PER_OPERATION if on_cpu else HOST_S_PER_OPERATION,
    )


def block_operations(block: Block, workload: Workload, chosen: Adapters, *, fused: bool = False) -> int:
    """Forward operations of one layer.

    30 for Qwen2: 7 linears, 2 norms of 6, rotary 6, attention and the copy after it, activation 2, residual sums 2.
    """
    norm = 6 if block.norm == "rms" and not fused else 1
    attention, feed_forward = block.attention, block.feed_forward
    count = sum(1 for tensor in block.tensors if len(tensor.shape) >= 2) + block.norm_count * norm + 2
    count += ((2 if fused else 6) if attention.rotary else 0) + (7 if workload.attention == "eager" else 1)
    count += 2 * norm if attention.qk_norm else 0
    count += 2 if feed_forward.gated and not fused else 1
    count += 30 if feed_forward.experts else 0  # routing, sorting tokens by expert, putting them back
    count += 2 if block.hidden_dropout else 0
    count += 6 * _adapted(block, chosen)
    return count + sum(1 for tensor in block.tensors if quantized(tensor, workload))


def _visits(block: Block, chosen: Adapters, software: Software) -> int:
    """Units that stage 3 gathers: of FSDP a layer, and each adapter (peft's `fsdp_auto_wrap_policy`)."""
    if software.sharding == "fsdp":
        return 1 + _adapted(block, chosen)
    return _submodules(block, chosen)


def _submodules(block: Block, chosen: Adapters) -> int:
    """Modules of one layer that ZeRO-3 hooks: those with parameters, and layer, attention, feed-forward and activation.

    peft puts four more around an adapted one: base layer, dropout, lora_A and lora_B. Around a tensor that it folds it
    puts one, which gathers A and B one by one.
    """
    own = len({tensor.name.rpartition(".")[0] for tensor in block.tensors}) + 4
    return own + 4 * _adapted(block, chosen) + 3 * _folded(block, chosen)


def _adapted(block: Block, chosen: Adapters) -> int:
    """Linear layers that have an adapter beside them."""
    return sum(1 for tensor in block.tensors if tensor.linear and chosen.rank_of(tensor))


def _folded(block: Block, chosen: Adapters) -> int:
    return sum(1 for tensor in block.tensors if chosen.folds(tensor))
