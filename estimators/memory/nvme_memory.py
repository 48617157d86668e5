"""NVMe swapping (stage 3): bytes on disk, and the pinned buffers that every rank keeps for it.

Disk, per rank: masters, states and gradients in fp32, (4 + o + 4) Pt''; weights, w Pt''. Only what reaches 1 MiB is
swapped: sub-groups of the optimizer, shards of weights and gradients.

Buffers, per rank, page-locked by posix_memalign and mlock, so not rounded to powers of two:
- optimizer: `buffer_count` buffers of 4 bytes for the largest sub-group. With the default sub_group_size of 1e9 that
  is 16 GB.
- parameters: `buffer_count` x `buffer_size` elements of w bytes; up to `max_in_cpu` elements of weights in host
  memory before any goes to the disk; and, once some do, one buffer for the whole, not sharded, tensors of the largest
  sub-group.

Source: deepspeed 0.19.8 runtime/swap_tensor/utils.py SwapBufferManager, partitioned_param_swapper.py
AsyncPartitionedParameterSwapper, optimizer_utils.py OptimizerSwapper, runtime/zero/stage3.py
`_create_param_groups_fp16_flat_cpu_memory`, `_create_fp16_partitions_with_defragmentation`.
Not covered: pipelined swapping (`pipeline_read`, `pipeline_write`), which holds one set of buffers more.
"""

from __future__ import annotations

from ..estimate import MemoryTerm
from ..optimizers import Optimizer
from ..plan import Plan
from .gradient_memory import SWAP_MIN_BYTES
from .host_memory import pinned_block, small_shards, swapped_groups
from .partition import align_up
from .terms import term
from .trainable import ShardedTensors, optimizer_group_numels, optimizer_groups, shards_below
from .zero_states import state_bytes

ALIGNED_BYTES = 8 * 1024
"""Alignment of a swapped tensor: AIO_ALIGNED_BYTES (1 KiB) x intra_op_parallelism, 8 in the emitted configuration."""

_SWAP = "deepspeed 0.19.8 runtime/swap_tensor/"


def states_per_master(optimizer: Optimizer) -> int:
    """fp32 tensors that the optimizer keeps per master weight, each of which needs a swap buffer."""
    return round((optimizer.cpu_state_bytes or 0) / 4)


def _whole_sub_group(sharded: ShardedTensors, plan: Plan) -> int:
    """Whole elements of the sub-group with the largest shard, when the host buffer does not take all sub-groups; else
    0."""
    if sharded.shard_total <= plan.param_max_in_cpu:
        return 0
    largest = max(
        optimizer_groups(sharded, plan.sub_group_size), key=lambda group: sum(sharded.shards[index] for index in group)
    )
    return sum(sharded.tensors.trainable[index] for index in largest)


def swap_buffers(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> tuple[MemoryTerm, ...]:
    """Pinned host buffers of the NVMe swappers, per node."""
    width = sharded.tensors.workload.weight_bytes
    terms: tuple[MemoryTerm, ...] = ()
    if plan.offload_optimizer == "nvme":
        largest = align_up(4 * max(optimizer_group_numels(sharded, plan.sub_group_size)), ALIGNED_BYTES)
        terms += term(
            "optimizer_swap_buffers",
            local_ranks * plan.optimizer_buffer_count * largest,
            "L buffer_count 4 G",
            _SWAP + "utils.py SwapBufferManager",
            L=local_ranks,
            buffer_count=plan.optimizer_buffer_count,
            G=largest // 4,
        )
    if plan.offload_param == "nvme":
        size = align_up(width * plan.param_buffer_size, ALIGNED_BYTES)
        flat = min(sharded.shard_total, plan.param_max_in_cpu)
        whole = width * _whole_sub_group(sharded, plan)
        terms += term(
            "parameter_swap_buffers",
            local_ranks * (plan.param_buffer_count * size + whole),
            "L (buffer_count buffer + w whole)",
            _SWAP + "partitioned_param_swapper.py",
            L=local_ranks,
            buffer_count=plan.param_buffer_count,
            buffer=size,
            w=width,
            whole=whole // width,
        )
        terms += term(
            "parameters",
            local_ranks * pinned_block(width * flat),
            "L p2(w min(shards, max_in_cpu))",
            "deepspeed 0.19.8 runtime/zero/stage3.py _create_param_groups_fp16_flat_cpu_memory",
            L=local_ranks,
            w=width,
            shards=sharded.shard_total,
            max_in_cpu=plan.param_max_in_cpu,
        )
        terms += small_shards(sharded, plan, local_ranks)
    return terms


def nvme_terms(sharded: ShardedTensors, plan: Plan, optimizer: Optimizer, local_ranks: int) -> tuple[MemoryTerm, ...]:
    """Bytes on a node's NVMe."""
    width = sharded.tensors.workload.weight_bytes
    terms: tuple[MemoryTerm, ...] = ()
    if plan.offload_optimizer == "nvme":
        numel = sum(swapped_groups(sharded, plan))
        states = state_bytes(optimizer, sharded.tensors, numel, stage=3, on_cpu=True)
        gradients = max(0, numel - shards_below(sharded, SWAP_MIN_BYTES // 4)[0])
        source = _SWAP + "optimizer_utils.py"
        terms += term("master_weights", local_ranks * 4 * numel, "L 4 swapped", source, L=local_ranks, swapped=numel)
        terms += term("optimizer_states", local_ranks * states, "L states", source, L=local_ranks, states=states)
        terms += term("gradients", local_ranks * 4 * gradients, "L 4 swapped", source, L=local_ranks, swapped=gradients)
    if plan.offload_param == "nvme":
        swapped = sharded.shard_total + sharded.frozen_shard_total - sum(shards_below(sharded, SWAP_MIN_BYTES // width))
        terms += term(
            "parameters",
            local_ranks * width * swapped,
            "L w swapped",
            _SWAP + "partitioned_param_swapper.py",
            L=local_ranks,
            w=width,
            swapped=swapped,
        )
    return terms
