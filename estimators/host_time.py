"""What the host spends on launching work, which is the whole time of a small model.

Every operation of eager PyTorch costs the host about as much whatever its size, and the GPU waits when its kernels are
shorter than that.
"""

from __future__ import annotations

from .model_shape import Block, ModelShape
from .trainable import adapts, tensor_set
from .workload import Workload

HOST_S_PER_OPERATION = 15e-6
"""Host time of one operation: dispatch, autograd, launch.

Measured: transformers 5.23 Qwen2 layers too small to take time themselves (hidden 64, 4 tokens), torch 2.13 on one core
of an AMD EPYC 9004 at 2.6 GHz: 10.1 us per operation, 10.8 with checkpointing, 18 under autocast; launching on a CUDA
stream adds 3 to 5.
"""

BACKWARD_OPERATIONS = 2.2
"""Backward operations for one forward one: 66 for 30 in the same layers, counted by a dispatch mode."""

MICRO_STEP_HOST_S = 5e-3
"""Per micro batch outside the layers: data to the device, embedding, loss, the engine's and the Trainer's
bookkeeping."""

REDUCE_HOOK_S = 60e-6
"""ZeRO stage 1 and 2's Python hook for each reduced gradient.

Measured as above with deepspeed 0.19.8: stage 2 adds 0.5 ms to a layer of 12 parameters, without streams or NCCL.
"""

ZERO3_VISIT_S = 400e-6
"""Stage 3's hooks around one visit of a submodule (fetch, prefetch, release), forward or backward.

Measured as above: 190 us without streams or NCCL. Two published runs whose GPUs waited for the host give 600 to 800 us
on slower CPUs and older versions (gpt2-xl on one A40; Qwen2.5-0.5B with a micro batch of 1). This lies between.
"""


def block_operations(block: Block, workload: Workload) -> int:
    """Forward operations of one layer (30 for Qwen2: 7 linears, 2 norms of 6, rotary 6, attention 1, activation 2, sums
    2)."""
    linears = sum(1 for tensor in block.tensors if len(tensor.shape) >= 2)
    adapters = 6 * sum(1 for tensor in block.tensors if adapts(tensor, workload)) if workload.method != "full" else 0
    unpacking = linears if workload.method == "qlora" else 0
    norms = block.norm_count * (6 if block.norm == "rms" else 1)
    attention = (6 if block.attention.rotary else 0) + (6 if workload.attention == "eager" else 1) + 2
    if block.attention.qk_norm:
        attention += 2 * (6 if block.norm == "rms" else 1)
    feed_forward = 2 if block.feed_forward.gated else 1
    if block.feed_forward.experts:
        feed_forward += 30  # routing, sorting tokens by expert, and putting them back
    dropouts = 2 if block.hidden_dropout else 0
    return linears + adapters + unpacking + norms + attention + feed_forward + dropouts + 2


def submodules(block: Block) -> int:
    """Modules of one layer that ZeRO-3 hooks: those with parameters, and layer, attention, feed-forward and
    activation."""
    return len({tensor.name.rpartition(".")[0] for tensor in block.tensors}) + 4


def forward_host_s(model: ModelShape, workload: Workload, *, zero_stage: int) -> float:
    """Host time of the layers' forward pass, or of running them again under checkpointing."""
    per_visit = ZERO3_VISIT_S if zero_stage == 3 else 0.0
    return sum(block.count * (block_operations(block, workload) * HOST_S_PER_OPERATION + submodules(block) * per_visit)
               for block in model.blocks)


def backward_host_s(model: ModelShape, workload: Workload, *, zero_stage: int, reduces: bool) -> float:
    """Host time of the layers' backward pass; `reduces` when this micro batch's gradients are reduced by hooks."""
    operations = sum(block.count * block_operations(block, workload) for block in model.blocks)
    total = operations * BACKWARD_OPERATIONS * HOST_S_PER_OPERATION
    if zero_stage == 3:
        total += sum(block.count * submodules(block) for block in model.blocks) * ZERO3_VISIT_S
    if zero_stage >= 1 and reduces:
        total += len(tensor_set(model, workload).trainable) * REDUCE_HOOK_S
    return total
