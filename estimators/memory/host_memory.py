"""Host memory of a node: pinned and pageable while training, and the peak while the model loads.

What L local ranks keep on the host, bytes per element of one rank's partition (Pt'/N, or Pt'' at stage 3):

| offload                  | pinned                                                     | pageable              |
|--------------------------|------------------------------------------------------------|-----------------------|
| optimizer, stages 1, 2   | 4 masters + 4 gradients + w weights, + w largest tensor,   | o states              |
|                          | + w whole tensors when micro batches accumulate            |                       |
| optimizer, stage 3       | 4 gradients + w gradients                                  | 4 masters + o states  |
| parameters (cpu), stage 3| w weights, and their first home, tensor by tensor, which   |                       |
|                          | the pinned allocator keeps after it is freed and gives     |                       |
|                          | only to later blocks of the same power of two              |                       |

With `pin_memory` off, all of it is pageable. torch rounds every pinned block up to a power of two and returns none to
the system, which is why what is pinned can be almost twice what is used (DS_PIN_MEMORY_BACKEND=native avoids it).

Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py `__init__`, `initialize_optimizer_states`,
`async_accumulate_grad_in_cpu_via_gpu`; runtime/zero/stage3.py `_create_fp32_partitions`, `initialize_optimizer_states`,
`_setup_for_real_optimizer`, `_create_param_groups_fp16_flat_cpu_memory`; runtime/zero/partition_parameters.py
`_partition_param`; torch 2.13 ATen/core/CachingHostAllocator.h. Not covered: data loader workers, the page cache.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from ..estimate import MemoryTerm
from ..optimizers import Optimizer
from ..plan import Plan
from .gradient_memory import SWAP_MIN_BYTES
from .terms import term
from .trainable import ShardedTensors, TensorSet, optimizer_group_numels
from .zero_states import state_bytes

PROCESS_BYTES = 2 << 30
"""Python, torch, CUDA libraries and tokenized data of one rank; two small runs reported 1.2 and 2.8 GB of host memory
in all."""

_STAGE_1_2 = "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"
_STAGE_3 = "deepspeed 0.19.8 runtime/zero/stage3.py"


def pinned_block(size_bytes: int) -> int:
    """Bytes of the block behind a pinned tensor: the next power of two.

    Source: torch 2.13 ATen/core/CachingHostAllocator.h `allocate` (PowerOf2Ceil below pinned_max_round_threshold,
    which has no limit by default).
    """
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


@lru_cache(maxsize=256)
def _shard_blocks(
    sharded: ShardedTensors, width: int, *, trainable: bool, threshold: int, below_bytes: int | None = None
) -> Counter[int]:
    """Pinned blocks of all shards of one rank, by size, each tensor in its own; persistent tensors stay on the GPU."""
    numels = sharded.tensors.trainable if trainable else sharded.tensors.frozen
    shards = (width * -(-numel // sharded.world_size) for numel in numels if numel > threshold)
    return Counter(pinned_block(shard) for shard in shards if below_bytes is None or shard < below_bytes)


def _total(blocks: Counter[int]) -> int:
    return sum(size * count for size, count in blocks.items())


@lru_cache(maxsize=64)
def _tensor_blocks(tensors: TensorSet, width: int) -> int:
    """Pinned blocks of all trainable tensors, each whole in its own block."""
    return sum(pinned_block(width * numel) for numel in tensors.trainable)


def host_terms(
    sharded: ShardedTensors,
    plan: Plan,
    optimizer: Optimizer,
    local_ranks: int,
) -> tuple[tuple[MemoryTerm, ...], tuple[MemoryTerm, ...]]:
    """(pinned, pageable) terms of a node while training."""
    pageable = term(
        "processes",
        local_ranks * PROCESS_BYTES,
        "L process",
        "observed, to be calibrated",
        L=local_ranks,
        process=PROCESS_BYTES,
    )
    pinned: tuple[MemoryTerm, ...] = ()
    if plan.offload_optimizer == "cpu":
        move = _optimizer_1_2 if plan.zero_stage < 3 else _optimizer_3
        more_pinned, more_pageable = move(sharded, plan, optimizer, local_ranks)
        pinned, pageable = pinned + more_pinned, pageable + more_pageable
    elif plan.offload_optimizer == "nvme":
        # The gradients' flat buffer stays in memory; masters, states and fp32 gradients go to the disk.
        pinned += _blocks(
            "gradients",
            (sharded.tensors.workload.weight_bytes * sharded.shard_total,),
            local_ranks,
            "L p2(w shards)",
            _STAGE_3 + " _setup_for_real_optimizer",
            pin=plan.pin_memory,
            w=sharded.tensors.workload.weight_bytes,
            shards=sharded.shard_total,
        )
        # The first step creates a sub-group's states in ordinary memory before they are written.
        states = state_bytes(
            optimizer, sharded.tensors, max(swapped_groups(sharded, plan), default=0), stage=3, on_cpu=True
        )
        pageable += term(
            "first_states", local_ranks * states, "L states", optimizer.source, L=local_ranks, states=states
        )
        more_pinned, more_pageable = _unswapped_groups(sharded, plan, optimizer, local_ranks)
        pinned, pageable = pinned + more_pinned, pageable + more_pageable
    if plan.offload_param == "cpu":
        pinned += _parameters(sharded, plan, local_ranks)
    if not plan.pin_memory:
        pageable, pinned = pageable + pinned, ()
    return pinned, pageable


def _blocks(
    name: str, sizes: tuple[int, ...], local_ranks: int, formula: str, source: str, *, pin: bool, **inputs: float
) -> tuple[MemoryTerm, ...]:
    """A block of each size on every rank; `formula` is the one of pinned blocks, p2(...)."""
    total = sum(pinned_block(size) for size in sizes) if pin else sum(sizes)
    return term(
        name, local_ranks * total, formula if pin else formula.replace("p2", ""), source, L=local_ranks, **inputs
    )


def _optimizer_1_2(
    sharded: ShardedTensors,
    plan: Plan,
    optimizer: Optimizer,
    local_ranks: int,
) -> tuple[tuple[MemoryTerm, ...], tuple[MemoryTerm, ...]]:
    tensors, part = sharded.tensors, sharded.partition
    width = tensors.workload.weight_bytes
    source = _STAGE_1_2 + " __init__, initialize_optimizer_states"
    pinned = (
        _blocks("master_weights", (4 * part,), local_ranks, "L p2(4 part)", source, pin=plan.pin_memory, part=part)
        + _blocks("gradients", (4 * part,), local_ranks, "L p2(4 part)", source, pin=plan.pin_memory, part=part)
        + _blocks(
            "offload_staging",
            (width * part, width * tensors.largest_trainable),
            local_ranks,
            "L (p2(w part) + p2(w largest))",
            source,
            pin=plan.pin_memory,
            w=width,
            part=part,
            largest=tensors.largest_trainable,
        )
    )
    if plan.gradient_accumulation_steps > 1:
        # One buffer per tensor that the partition touches, as large as the whole tensor.
        kept = width * sharded.touched
        if plan.pin_memory:
            kept = kept * _tensor_blocks(tensors, width) // (width * tensors.trainable_numel)
        pinned += term(
            "accumulated_gradients",
            local_ranks * kept,
            "L kept",
            _STAGE_1_2 + " async_accumulate_grad_in_cpu_via_gpu",
            L=local_ranks,
            kept=kept,
        )
    states = state_bytes(optimizer, tensors, part, stage=plan.zero_stage, on_cpu=True)
    return pinned, term(
        "optimizer_states",
        local_ranks * states,
        "L o part",
        optimizer.source,
        L=local_ranks,
        o=states / part,
        part=part,
    )


def _optimizer_3(
    sharded: ShardedTensors,
    plan: Plan,
    optimizer: Optimizer,
    local_ranks: int,
) -> tuple[tuple[MemoryTerm, ...], tuple[MemoryTerm, ...]]:
    tensors = sharded.tensors
    pinned = _blocks(
        "gradients",
        _gradient_sizes(sharded, plan),
        local_ranks,
        "L (p2(w shards) + sum p2(4 G))",
        _STAGE_3 + " initialize_optimizer_states, _setup_for_real_optimizer",
        pin=plan.pin_memory,
    )
    states = state_bytes(optimizer, tensors, sharded.shard_total, stage=3, on_cpu=True)
    pageable = term(
        "master_weights",
        local_ranks * 4 * sharded.shard_total,
        "L 4 shards",
        _STAGE_3 + " _create_fp32_partitions",
        L=local_ranks,
        shards=sharded.shard_total,
    )
    return pinned, pageable + term(
        "optimizer_states",
        local_ranks * states,
        "L o shards",
        optimizer.source,
        L=local_ranks,
        o=states / sharded.shard_total,
        shards=sharded.shard_total,
    )


def _gradient_sizes(sharded: ShardedTensors, plan: Plan) -> tuple[int, ...]:
    """Stage 3's gradients on the host: one buffer in the model's type, one in fp32 for each sub-group."""
    groups = optimizer_group_numels(sharded, plan.sub_group_size)
    return (sharded.tensors.workload.weight_bytes * sharded.shard_total, *(4 * group for group in groups))


def swapped_groups(sharded: ShardedTensors, plan: Plan) -> list[int]:
    """Elements of each sub-group that an optimizer on NVMe swaps; smaller ones stay in memory."""
    return [group for group in optimizer_group_numels(sharded, plan.sub_group_size) if 4 * group >= SWAP_MIN_BYTES]


def _unswapped_groups(
    sharded: ShardedTensors,
    plan: Plan,
    optimizer: Optimizer,
    local_ranks: int,
) -> tuple[tuple[MemoryTerm, ...], tuple[MemoryTerm, ...]]:
    """Masters, states and gradients of sub-groups that are too small for the disk."""
    groups = [group for group in optimizer_group_numels(sharded, plan.sub_group_size) if 4 * group < SWAP_MIN_BYTES]
    numel, source = sum(groups), "deepspeed 0.19.8 runtime/swap_tensor/optimizer_utils.py is_swappable_tensor"
    states = state_bytes(optimizer, sharded.tensors, numel, stage=3, on_cpu=True)
    pinned = _blocks(
        "gradients",
        tuple(4 * group for group in groups),
        local_ranks,
        "L sum p2(4 G < 1 MiB)",
        source,
        pin=plan.pin_memory,
    )
    return pinned, term("master_weights", local_ranks * 4 * numel, "L sum 4 G < 1 MiB", source, L=local_ranks) + term(
        "optimizer_states", local_ranks * states, "L o sum G < 1 MiB", optimizer.source, L=local_ranks
    )


def small_shards(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> tuple[MemoryTerm, ...]:
    """Parameters offloaded to NVMe whose shard is too small for the disk: on the host, each in a block of its own.

    A trainable one moves on to the flat buffer, and the block stays in the pinned allocator's cache.
    """
    width, threshold = sharded.tensors.workload.weight_bytes, plan.stage3_param_persistence_threshold
    source = "deepspeed 0.19.8 runtime/zero/partition_parameters.py _partition_param"
    terms: tuple[MemoryTerm, ...] = ()
    for name, trainable in (("frozen_parameters", False), ("pinned_cache", True)):
        blocks = _shard_blocks(sharded, width, trainable=trainable, threshold=threshold, below_bytes=SWAP_MIN_BYTES)
        terms += term(name, local_ranks * _total(blocks), "L blocks", source, L=local_ranks, blocks=_total(blocks))
    return terms


def _parameters(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> tuple[MemoryTerm, ...]:
    width, threshold = sharded.tensors.workload.weight_bytes, plan.stage3_param_persistence_threshold
    source = "deepspeed 0.19.8 runtime/zero/partition_parameters.py _partition_param"
    terms = _blocks(
        "parameters",
        (width * sharded.shard_total,),
        local_ranks,
        "L p2(w shards)",
        _STAGE_3 + " _create_param_groups_fp16_flat_cpu_memory",
        pin=plan.pin_memory,
        w=width,
        shards=sharded.shard_total,
    )
    if plan.pin_memory:
        frozen = _total(_shard_blocks(sharded, width, trainable=False, threshold=threshold))
        homes = _shard_blocks(sharded, width, trainable=True, threshold=threshold)
        later = _gradient_sizes(sharded, plan) if plan.offload_optimizer == "cpu" else ()
        cached = _total(homes - Counter(map(pinned_block, later)))
    else:
        frozen, cached = width * sharded.frozen_shard_total, 0
    return (
        terms
        + term("frozen_parameters", local_ranks * frozen, "L blocks", source, L=local_ranks, blocks=frozen)
        + term("pinned_cache", local_ranks * cached, "L blocks", source, L=local_ranks, blocks=cached)
    )


def loading_bytes(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> int:
    """Peak of a node's host memory while the model is loaded and partitioned.

    Stages 0 to 2: every local rank builds the whole model on the host before it moves to its GPU: L w P. Stage 3 is
    built under `zero.Init` (by the Trainer, whose TrainingArguments come before the model, and by the emitted plain
    script): only rank 0 reads the checkpoint, w P, and the shards go where they will stay. A quantized model goes to
    the GPU tensor by tensor.

    Source: transformers 5.23 modeling_utils.py `_load_pretrained_model`; deepspeed 0.19.8 runtime/engine.py
    `_configure_distributed_model`. Not covered: a checkpoint in another dtype than the workload's, .bin files without
    mmap.
    """
    tensors = sharded.tensors
    width = tensors.workload.weight_bytes
    processes = local_ranks * PROCESS_BYTES
    if tensors.workload.method == "qlora":
        return processes + local_ranks * width * max(*tensors.frozen, *tensors.trainable)
    if plan.zero_stage < 3:
        return processes + local_ranks * width * tensors.numel
    shards = 0 if plan.offload_param != "cpu" else sum(t.size_bytes for t in _parameters(sharded, plan, local_ranks))
    return processes + width * tensors.numel + shards
