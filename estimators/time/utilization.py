"""The share of a GPU's peak that the model's own arithmetic has (MFU)."""

from __future__ import annotations

from dataclasses import replace

from ..estimate import TimeEstimate
from ..hardware.cluster import Cluster, Gpu
from ..models.model_shape import ModelShape
from ..models.rank_part import of_rank
from ..plan import Plan
from ..workload import Precision, Workload
from .flops import attention_backward, block_attention, micro_batch_flops

_BACKWARD_ATTENTION = 2
"""Products that attention's backward pass needs for one of the forward pass; what a flash kernel repeats is not the
model's."""


def model_flops_utilization(
    model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan, time: TimeEstimate
) -> float | None:
    """Model FLOPs of a step over what the GPU's peak would do in that time; None for a GPU without a published peak.

        MFU = n (forward + backward FLOPs of a micro batch on one GPU) / (step_s x peak)

    The peak is the dense one at the training's precision. What is computed a second time (checkpointing, tiles, a flash
    kernel's scores) does not count (PaLM, arXiv:2204.02311 appendix B), nor do gradients of frozen weights, which LoRA
    does not compute.
    """
    peak = peak_flops_per_s(cluster.gpu, workload.precision)
    if not peak:
        return None
    rank, part = of_rank(model, plan), workload.of_rank(plan.sequence_parallel_size)
    part = replace(part, mlp="whole", loss="standard" if part.loss == "tiled" else part.loss)
    flops, micro = micro_batch_flops(rank, part, plan), plan.micro_batch_size
    attention = sum(
        block.count * pairs for block in rank.blocks for _, pairs in block_attention(rank, block, part, micro)
    )
    repeated = (attention_backward(part.attention) - _BACKWARD_ATTENTION) * attention
    needed = plan.gradient_accumulation_steps * (flops.forward + flops.backward - repeated)
    return needed / (time.step_s * peak)


def peak_flops_per_s(gpu: Gpu, precision: Precision) -> float | None:
    """The card's dense peak at a precision; torch computes fp32 without TF32 unless told otherwise."""
    return {"bf16": gpu.bf16_flops_per_s, "fp16": gpu.fp16_flops_per_s, "fp32": gpu.fp32_flops_per_s}[precision]
