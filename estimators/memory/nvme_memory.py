"""What an offload to NVMe holds on a node: its swap buffers in pinned host memory, and the drive's contents."""

from __future__ import annotations

from ..estimate import Terms
from ..optimizers import OptimizerSpec
from ..plan import Plan
from .host_memory import on_a_node, pinned_block, small_shards, swapped_groups
from .partition import SWAP_MIN_BYTES, align_up
from .trainable import ShardedTensors, optimizer_group_numels, optimizer_groups, shards_below
from .zero_states import state_bytes

ALIGNED_BYTES = 8 * 1024
"""Alignment of a swapped tensor: AIO_ALIGNED_BYTES (1 KiB) x intra_op_parallelism, 8 in the emitted configuration."""

_OPTIMIZER_SWAPPER = "deepspeed 0.19.8 runtime/swap_tensor/optimizer_utils.py"
_PARAMETER_SWAPPER = "deepspeed 0.19.8 runtime/swap_tensor/partitioned_param_swapper.py"
_SYMBOLS = {
    "buffer_count": "buffers that the swapper has (buffer_count)",
    "max_in_cpu": "parameters that stay in host memory (max_in_cpu)",
    "buffer": "bytes of one buffer",
    "whole": "elements of the sub-group that is updated, whole",
    "swapped": "elements of one rank that are swapped (1 MiB and more at a time)",
}
_OPTIMIZER_BUFFERS = on_a_node(
    "optimizer_swap_buffers",
    "L buffer_count 4 G",
    "deepspeed 0.19.8 runtime/swap_tensor/utils.py SwapBufferManager",
    _SYMBOLS,
)
_PARAMETER_BUFFERS = on_a_node(
    "parameter_swap_buffers", "L (buffer_count buffer + w whole)", _PARAMETER_SWAPPER, _SYMBOLS
)
_IN_CPU = on_a_node(
    "parameters",
    "L p2(w min(shards, max_in_cpu))",
    "deepspeed 0.19.8 runtime/zero/stage3.py _create_param_groups_fp16_flat_cpu_memory",
    _SYMBOLS,
)
_MASTERS = on_a_node("master_weights", "L 4 swapped", _OPTIMIZER_SWAPPER, _SYMBOLS)
_STATES = on_a_node("optimizer_states", "L states", _OPTIMIZER_SWAPPER)
_GRADIENTS = on_a_node("gradients", "L 4 swapped", _OPTIMIZER_SWAPPER, _SYMBOLS)
_PARAMETERS = on_a_node("parameters", "L w swapped", _PARAMETER_SWAPPER, _SYMBOLS)


def states_per_master(optimizer: OptimizerSpec) -> int:
    """fp32 tensors per master weight; each needs a swap buffer."""
    return round((optimizer.cpu_state_bytes or 0) / 4)


def _whole_sub_group(sharded: ShardedTensors, plan: Plan) -> int:
    """Whole elements of the sub-group with the largest shard, if the host buffer does not take all sub-groups; else
    0."""
    if sharded.shard_total <= plan.param_max_in_cpu:
        return 0
    groups = optimizer_groups(sharded, plan.sub_group_size)
    largest = max(groups, key=lambda group: sum(sharded.shards[index] for index in group))
    return sum(sharded.tensors.trainable[index] for index in largest)


def swap_buffers(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> Terms:
    """Pinned host buffers of the NVMe swappers, per node."""
    terms: Terms = ()
    if plan.offload_optimizer == "nvme":
        count, group = plan.optimizer_buffer_count, max(optimizer_group_numels(sharded, plan.sub_group_size))
        largest = align_up(4 * group, ALIGNED_BYTES)
        terms = _OPTIMIZER_BUFFERS.on_node(local_ranks, count * largest, buffer_count=count, G=largest // 4)
    if plan.offload_param == "nvme":
        width, shards, count = sharded.tensors.workload.weight_bytes, sharded.shard_total, plan.param_buffer_count
        size, whole = align_up(width * plan.param_buffer_size, ALIGNED_BYTES), _whole_sub_group(sharded, plan)
        terms += _PARAMETER_BUFFERS.on_node(
            local_ranks, count * size + width * whole, buffer_count=count, buffer=size, w=width, whole=whole
        )
        terms += _IN_CPU.on_node(
            local_ranks,
            pinned_block(width * min(shards, plan.param_max_in_cpu)),
            w=width,
            shards=shards,
            max_in_cpu=plan.param_max_in_cpu,
        )
        terms += small_shards(sharded, plan, local_ranks)
    return terms


def nvme_terms(sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, local_ranks: int) -> Terms:
    """Bytes on a node's NVMe."""
    terms: Terms = ()
    if plan.offload_optimizer == "nvme":
        numel = sum(swapped_groups(sharded, plan))
        states = state_bytes(optimizer, sharded.tensors, numel, stage=3, on_cpu=True)
        gradients = max(0, numel - shards_below(sharded, SWAP_MIN_BYTES // 4)[0])
        terms += _MASTERS.on_node(local_ranks, 4 * numel, swapped=numel)
        terms += _STATES.on_node(local_ranks, states, states=states)
        terms += _GRADIENTS.on_node(local_ranks, 4 * gradients, swapped=gradients)
    if plan.offload_param == "nvme":
        width = sharded.tensors.workload.weight_bytes
        small = sum(shards_below(sharded, SWAP_MIN_BYTES // width))
        swapped = sharded.shard_total + sharded.frozen_shard_total - small
        terms += _PARAMETERS.on_node(local_ranks, width * swapped, w=width, swapped=swapped)
    return terms
