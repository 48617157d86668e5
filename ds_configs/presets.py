"""Presets of the strategies: each value of a plan is chosen for the model and the GPU, not a fixed default."""

from __future__ import annotations

from typing import Literal

from ..estimators.hardware import Cluster
from ..estimators.memory.plan_memory import has_room_for_pinned
from ..estimators.memory.trainable import tensor_set
from ..estimators.models.model_shape import ModelShape
from ..estimators.plan import Offload, PlainPyTorch, Plan, Sharding, Strategy
from ..estimators.workload import Workload

_PLACES: dict[Strategy, tuple[Literal[0, 1, 2, 3], Offload, Offload]] = {
    "ddp": (0, "none", "none"),
    "zero1": (1, "none", "none"),
    "zero2": (2, "none", "none"),
    "zero2-offload": (2, "cpu", "none"),
    "zero3": (3, "none", "none"),
    "zero3-offload-param": (3, "none", "cpu"),
    "zero3-offload": (3, "cpu", "cpu"),
    "zero3-nvme": (3, "nvme", "nvme"),
}
"""Strategy -> ZeRO stage, place of the optimizer states, place of the parameters."""

BUCKET = 50_000_000
"""Elements of a communication bucket: 100 MB in bf16, enough for a collective within a node to reach the full rate."""

BUCKET_PER_RANK = 1_000_000
"""Elements of a bucket per rank. A reduce-scatter over N ranks sends messages of this size; below about 2 MB the
latency of its N - 1 hops dominates."""

BUCKET_SHARE = 100
"""A bucket takes at most 1/100 of the GPU's memory (in bf16: 80 M elements of 16 GB, 400 M of 80 GB)."""

LIVE_SHARE = 20
"""The parameters that ZeRO-3 keeps gathered take at most 1/20 of the GPU's memory."""

SUB_GROUP = 100_000_000
"""Elements that ZeRO-3's optimizer updates at a time. DeepSpeed flattens a sub-group's gradients and casts them to
fp32, an additional 6 B per element: 0.6 GB here, 6 GB with DeepSpeed's default of 1e9."""

NVME_SUB_GROUP = 20_000_000
"""`SUB_GROUP` for an optimizer on NVMe. Each swap buffer holds one fp32 sub-group in pinned RAM. Its files of 80 MB are
still read at the drive's full rate, as a request is 1 MiB."""

NVME_RAM_SHARE = 8
"""Parameters offloaded to NVMe use at most 1/8 of the host's RAM."""

# DeepSpeed's default for stage3_max_live_parameters, stage3_max_reuse_distance and max_in_cpu.
_MAX_LIVE = 1_000_000_000


def plan_for(
    strategy: Strategy | PlainPyTorch,
    model: ModelShape,
    workload: Workload,
    cluster: Cluster,
    *,
    micro_batch_size: int,
    gradient_accumulation_steps: int,
    gradient_checkpointing: bool,
) -> Plan:
    """The plan of a strategy for this model on these GPUs.

    Sizes count elements. A setting without effect on the strategy keeps its default. FSDP gathers and reduces layer by
    layer and keeps nothing; plain PyTorch without it has no settings.

    overlap_comm: on. Communication overlaps computation, at the cost of a second bucket (stages 1 and 2). Off on one
        GPU without offload: there is nothing to overlap.
    reduce_bucket_size: max(`BUCKET`, `BUCKET_PER_RANK` x N), at most 1/`BUCKET_SHARE` of the GPU and at most all
        trainable parameters, because DeepSpeed always allocates the whole bucket.
    stage3_prefetch_bucket_size: one layer, so that its gather hides behind the layer before it; at least `BUCKET`, at
        most 1/`BUCKET_SHARE` of the GPU (held twice while DeepSpeed concatenates the shards).
    stage3_param_persistence_threshold: 10 H, like the Trainer's `auto`. Norms and biases stay gathered, because they
        are small and their gathers are latency-bound. Matrices do not.
    stage3_max_live_parameters, stage3_max_reuse_distance: 1/`LIVE_SHARE` of the GPU, at most DeepSpeed's 1e9, with
        which a model below 1e9 parameters is not sharded at all.
    sub_group_size: `SUB_GROUP`, or `NVME_SUB_GROUP` with the optimizer on NVMe.
    pin_memory: on. Page-locked memory copies at PCIe's full rate and asynchronously. Off if the host's RAM is too small
        for it: torch rounds every pinned block up to a power of two.

    With parameters on NVMe:
    param_buffer_size: the largest parameter's shard; DeepSpeed requires that of every buffer.
    param_max_in_cpu: DeepSpeed's 1e9 per rank, at most 1/`NVME_RAM_SHARE` of the host's RAM.
    stage3_max_reuse_distance: 0. A gathered parameter that is kept for reuse occupies one of the few swap buffers, and
        DeepSpeed fails when none is free.
    stage3_prefetch_bucket_size: 0 with adapters. Frozen parameters are always read from NVMe, the prefetch occupies
        every swap buffer, and with checkpointing the next parameter finds none ("Not enough buffers 0 for swapping 1"
        in dry runs of Llama).

    Source: DeepSpeed 0.19.8 runtime/zero/{stage_1_and_2,stage3,partitioned_param_coordinator}.py, runtime/swap_tensor/.
    """
    if strategy == "fsdp" or strategy == "fsdp2" or strategy == "torch":  # the type checker narrows by it
        alone = Plan(
            zero_stage=0,
            sharding="none",
            micro_batch_size=micro_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            gradient_checkpointing=gradient_checkpointing,
        )
        return alone if strategy == "torch" else layer_units_plan(alone, model, strategy)
    stage, offload_optimizer, offload_param = _PLACES[strategy]
    ranks = cluster.world_size
    plan = Plan(
        zero_stage=stage,
        offload_optimizer=offload_optimizer,
        offload_param=offload_param,
        micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        gradient_checkpointing=gradient_checkpointing,
        overlap_comm=stage == 3 or (stage > 0 and (ranks > 1 or offload_optimizer != "none")),
    )
    if stage == 0:
        return plan

    trainable = model.parameters if workload.method == "full" else tensor_set(model, workload).trainable_numel
    largest_bucket = cluster.gpu.memory_bytes // BUCKET_SHARE // workload.weight_bytes
    plan = plan.replace_fields(reduce_bucket_size=min(max(BUCKET, BUCKET_PER_RANK * ranks), largest_bucket, trainable))
    if stage < 3:
        return _pinned_if_it_fits(plan, model, workload, cluster)

    layer = max((block.parameters_per_layer for block in model.blocks if not model.module), default=0)
    live = min(_MAX_LIVE, cluster.gpu.memory_bytes // LIVE_SHARE // workload.weight_bytes)
    plan = plan.replace_fields(
        sub_group_size=SUB_GROUP,
        stage3_prefetch_bucket_size=min(max(BUCKET, layer), largest_bucket),
        stage3_param_persistence_threshold=10 * model.hidden_size or plan.stage3_param_persistence_threshold,
        stage3_max_live_parameters=live,
        stage3_max_reuse_distance=live,
    )
    if strategy != "zero3-nvme":
        return _pinned_if_it_fits(plan, model, workload, cluster)
    ram = cluster.host_memory_bytes_per_node
    in_ram = _MAX_LIVE if ram is None else ram // cluster.gpus_per_node // NVME_RAM_SHARE // workload.weight_bytes
    return plan.replace_fields(
        sub_group_size=NVME_SUB_GROUP,
        stage3_max_reuse_distance=0,
        stage3_prefetch_bucket_size=plan.stage3_prefetch_bucket_size if workload.method == "full" else 0,
        param_buffer_size=-(-max(tensor.numel for tensor, _ in model.tensor_counts) // ranks),
        param_max_in_cpu=min(_MAX_LIVE, in_ram),
    )


def layer_units_plan(alone: Plan, model: ModelShape, sharding: Sharding = "fsdp") -> Plan:
    """Plain PyTorch's plan under FSDP: one unit per layer, fully sharded."""
    layer = max((block.parameters_per_layer for block in model.blocks), default=0)
    return alone.replace_fields(
        zero_stage=3,
        sharding=sharding,
        reduce_bucket_size=layer,
        stage3_prefetch_bucket_size=layer,
        stage3_param_persistence_threshold=0,
        stage3_max_live_parameters=0,
    )


def _pinned_if_it_fits(plan: Plan, model: ModelShape, workload: Workload, cluster: Cluster) -> Plan:
    offloads = "cpu" in (plan.offload_optimizer, plan.offload_param)
    fits = not offloads or has_room_for_pinned(model, workload, cluster, plan)
    return plan if fits else plan.replace_fields(pin_memory=False)
