"""Memory of ZeRO's offload outside the GPUs: pinned and pageable host memory of a node, and bytes on its NVMe.

Host memory of L local ranks, in bytes per element of one rank's partition (Pt'/N, or Pt'' at stage 3). Each parameter
group has blocks of its own.

| offload                  | pinned                                                     | pageable              |
|--------------------------|------------------------------------------------------------|-----------------------|
| optimizer, stages 1, 2   | 4 masters + 4 gradients + w weights, + w largest tensor,   | o states              |
|                          | + w whole tensors when micro batches accumulate            |                       |
| optimizer, stage 3       | 4 gradients + a gradients; of the fp32 gradients, masters  | 4 masters + o states  |
|                          | and states only those of the sub-groups that are offloaded |                       |
| parameters (cpu), stage 3| w weights, and the first block of each tensor, which the   |                       |
|                          | pinned allocator keeps after it is freed and reuses only   |                       |
|                          | for later blocks of the same power of two                  |                       |

a is 4 with `grad_accum_dtype` fp32, else w: stage 2 then accumulates on the GPU, not in host memory.
With bf16 masters (`bf16_master_weights_and_grads`), m = 2 replaces 4; `bf16_optimizer_states` then halves o. NVMe holds
masters, states and fp32 gradients, and the shards of parameters; tensors smaller than 1 MiB stay on the host.

With `pin_memory` off, all of this except the swap buffers is pageable. torch rounds every pinned block up to a power of
two and returns none to the system, so pinned memory can be almost twice the used memory (DS_PIN_MEMORY_BACKEND=native
avoids it).

Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py `__init__`, `initialize_optimizer_states`,
`async_accumulate_grad_in_cpu_via_gpu`; runtime/zero/stage3.py `_create_fp32_partitions`, `initialize_optimizer_states`,
`_setup_for_real_optimizer`, `_create_param_groups_fp16_flat_cpu_memory`; runtime/zero/partition_parameters.py
`_partition_param`; runtime/swap_tensor/; torch 2.13 ATen/core/CachingHostAllocator.h.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from ..estimate import NODE_SYMBOLS, Formula, Terms
from ..objectives import has_reference_model
from ..optimizers import OptimizerSpec
from ..plan import Plan
from .partition import SWAP_MIN_BYTES, align_up, shard_numel
from .trainable import ShardedTensors, TensorSet, groups_on_gpu, optimizer_group_numels, optimizer_groups, shards_below
from .zero_states import state_bytes

ALIGNED_BYTES = 8 * 1024
"""Alignment of a swapped tensor: AIO_ALIGNED_BYTES (1 KiB) x intra_op_parallelism, 8 in the emitted configuration."""

_STAGE_1_2 = "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"
_STAGE_3 = "deepspeed 0.19.8 runtime/zero/stage3.py"
_PARTITION_PARAM = "deepspeed 0.19.8 runtime/zero/partition_parameters.py _partition_param"
_UNSWAPPED = "deepspeed 0.19.8 runtime/swap_tensor/optimizer_utils.py is_swappable_tensor"
_OPTIMIZER_SWAPPER = "deepspeed 0.19.8 runtime/swap_tensor/optimizer_utils.py"
_PARAMETER_SWAPPER = "deepspeed 0.19.8 runtime/swap_tensor/partitioned_param_swapper.py"
_SYMBOLS = {
    **NODE_SYMBOLS,
    "a": "bytes of an accumulated gradient",
    "grouped": "bytes of the sub-groups' gradients in the type of the masters, each a block of its own",
    "kept": "bytes of whole gradients that one rank keeps until the step",
    "blocks": "bytes of pinned blocks, each tensor's rounded up to a power of two, that one rank holds",
    "buffer_count": "buffers that the swapper has (buffer_count)",
    "max_in_cpu": "parameters that stay in host memory (max_in_cpu)",
    "buffer": "bytes of one buffer",
    "whole": "elements of the sub-group that is updated, whole",
    "swapped": "elements of one rank that are swapped (1 MiB and more at a time)",
}


def _formula(name: str, text: str, source: str) -> Formula:
    return Formula(name, text, source, _SYMBOLS)


_FLAT_1_2 = _formula("gradients", "L p2(m part)", f"{_STAGE_1_2} __init__, initialize_optimizer_states")
_MASTERS_1_2 = _FLAT_1_2._replace(name="master_weights")
_STAGING_1_2 = _FLAT_1_2._replace(name="offload_staging", text="L (p2(w part) + p2(w largest))")
_ACCUMULATED = _formula("accumulated_gradients", "L kept", f"{_STAGE_1_2} async_accumulate_grad_in_cpu_via_gpu")
_GRADIENTS_3 = _formula(
    "gradients", "L (p2(a shards) + grouped)", f"{_STAGE_3} initialize_optimizer_states, _setup_for_real_optimizer"
)
_MASTERS_3 = _formula("master_weights", "L m shards", f"{_STAGE_3} _create_fp32_partitions")
_SHARDED_GRADIENTS = _formula("gradients", "L p2(a shards)", f"{_STAGE_3} _setup_for_real_optimizer")
_SMALL_GRADIENTS = _formula("gradients", "L sum p2(4 G < 1 MiB)", _UNSWAPPED)
_SMALL_MASTERS = _formula("master_weights", "L sum 4 G < 1 MiB", _UNSWAPPED)
_PARAMETERS_3 = _formula("parameters", "L p2(w shards)", f"{_STAGE_3} _create_param_groups_fp16_flat_cpu_memory")
_IN_CPU = _PARAMETERS_3._replace(text="L p2(w min(shards, max_in_cpu))")
_FROZEN = _formula("frozen_parameters", "L blocks", _PARTITION_PARAM)
_REFERENCE = _FROZEN._replace(name="reference_model", source="trl 1.16 models/utils.py prepare_deepspeed")
_CACHED = _FROZEN._replace(name="pinned_cache")
_SECOND_COPY = _formula("second_copy_of_weights", "L blocks", f"{_PARTITION_PARAM}_sec")
_OPTIMIZER_BUFFERS = _formula(
    "optimizer_swap_buffers", "L buffer_count 4 G", "deepspeed 0.19.8 runtime/swap_tensor/utils.py SwapBufferManager"
)
_PARAMETER_BUFFERS = _formula("parameter_swap_buffers", "L (buffer_count buffer + w whole)", _PARAMETER_SWAPPER)
_SWAPPED_MASTERS = _formula("master_weights", "L 4 swapped", _OPTIMIZER_SWAPPER)
_SWAPPED_STATES = _formula("optimizer_states", "L states", _OPTIMIZER_SWAPPER)
_SWAPPED_GRADIENTS = _SWAPPED_MASTERS._replace(name="gradients")
_SWAPPED_PARAMETERS = _formula("parameters", "L w swapped", _PARAMETER_SWAPPER)


def pinned_block(size_bytes: int) -> int:
    """Return the bytes of the block behind a pinned tensor: the next power of two.

    Source: torch 2.13 ATen/core/CachingHostAllocator.h `allocate` (PowerOf2Ceil below pinned_max_round_threshold, which
    has no limit by default).
    """
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


def _pinned(sizes: Iterable[int]) -> int:
    return sum(map(pinned_block, sizes))


@lru_cache(maxsize=256)
def _shard_blocks(
    sharded: ShardedTensors, width: int, *, trainable: bool, threshold: int, below_bytes: int | None = None
) -> Counter[int]:
    """Return the number of pinned blocks of one rank's shards, by size in bytes. Persistent tensors stay on the GPU."""
    numels = sharded.tensors.trainable if trainable else sharded.tensors.frozen
    shards = (width * shard_numel(numel, sharded.world_size) for numel in numels if numel > threshold)
    return Counter(pinned_block(shard) for shard in shards if below_bytes is None or shard < below_bytes)


@lru_cache(maxsize=64)
def _tensor_blocks(tensors: TensorSet, width: int) -> int:
    return _pinned(width * numel for numel in tensors.trainable)


class NodeMemory(NamedTuple):
    """A node's memory outside its GPUs."""

    pinned: Terms
    pageable: Terms
    nvme: Terms


def offloaded(sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, local_ranks: int) -> NodeMemory:
    """Return the memory that a plan's offload takes outside a node's GPUs during training."""
    parts = _Offload(sharded, plan, local_ranks)
    pinned: Terms = ()
    pageable: Terms = ()
    if plan.offload_optimizer == "nvme":
        pinned, pageable = parts.optimizer_on_nvme(optimizer)
    elif plan.offload_optimizer == "cpu":
        optimizer_memory = parts.optimizer_1_2 if plan.zero_stage < 3 else parts.optimizer_3
        pinned, pageable = optimizer_memory(optimizer)
    if plan.offload_param == "cpu":
        pinned += parts.parameters()
    if not plan.pin_memory:
        pinned, pageable = (), pageable + pinned
    return NodeMemory(pinned + parts.swap_buffers(), pageable, parts.on_nvme(optimizer))


def offloaded_parameters(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> Terms:
    return _Offload(sharded, plan, local_ranks).parameters() if plan.offload_param == "cpu" else ()


class _Offload:
    """The parts of a plan's offload. Its methods return terms of a node."""

    def __init__(self, sharded: ShardedTensors, plan: Plan, local_ranks: int) -> None:
        self.sharded = sharded
        self.tensors = sharded.tensors
        self.plan = plan
        self.pin = plan.pin_memory
        self.local_ranks = local_ranks
        self.width = sharded.tensors.workload.weight_bytes
        self.accumulated_width = plan.accumulated_bytes(self.width)
        self.master = plan.master_bytes
        self.shards = sharded.shard_total

    def _term(self, formula: Formula, size: float, **inputs: float) -> Terms:
        return formula.node_term(self.local_ranks, size, **inputs)

    def _blocks(self, formula: Formula, *sizes: int, **inputs: float) -> Terms:
        """Return a block of each size on every rank. `formula` is that of pinned blocks, p2(...)."""
        if self.pin:
            return self._term(formula, _pinned(sizes), **inputs)
        return self._term(formula._replace(text=formula.text.replace("p2", "")), sum(sizes), **inputs)

    def _states(self, optimizer: OptimizerSpec, text: str, states: int, **inputs: float) -> Terms:
        return self._term(_formula("optimizer_states", text, optimizer.source), states, **inputs)

    def _state_bytes(self, optimizer: OptimizerSpec, numel: int) -> int:
        return state_bytes(optimizer, self.tensors, numel, stage=self.plan.zero_stage, on_cpu=True)

    def optimizer_1_2(self, optimizer: OptimizerSpec) -> tuple[Terms, Terms]:
        part, width, master = self.sharded.partition, self.width, self.master
        largest = self.tensors.largest_trainable
        parts = [group.partition for group in self.sharded.groups]
        flat = [master * each for each in parts]
        pinned = self._blocks(_MASTERS_1_2, *flat, m=master, part=part)
        # Under offload the masters keep a `.grad` of their size for the whole training.
        pinned += self._blocks(_FLAT_1_2, *flat, m=master, part=part)
        staging = (*(width * each for each in parts), width * largest)
        pinned += self._blocks(_STAGING_1_2, *staging, w=width, part=part, largest=largest)
        on_gpu = self.accumulated_width > width  # `copy_grads_in_partition` keeps the fp32 sums there
        if self.plan.gradient_accumulation_steps > 1 and self.master == 4 and not on_gpu:
            # One buffer per tensor that the partition touches, of the whole tensor's size. bf16 masters accumulate in
            # their own gradients.
            kept = width * self.sharded.touched
            if self.pin:
                # Each of these buffers is pinned by itself; the mean rounding of all tensors stands for this rank's.
                kept = kept * _tensor_blocks(self.tensors, width) // (width * self.tensors.trainable_numel)
            pinned += self._term(_ACCUMULATED, kept, kept=kept)
        states = self._state_bytes(optimizer, part)
        return pinned, self._states(optimizer, "L o part", states, o=states / part, part=part)

    def optimizer_3(self, optimizer: OptimizerSpec) -> tuple[Terms, Terms]:
        shards = self.shards - sum(groups_on_gpu(self.sharded, self.plan))
        sizes = self._gradient_sizes()
        grouped = _pinned(sizes[1:]) if self.pin else sum(sizes[1:])
        pinned = self._blocks(_GRADIENTS_3, *sizes, a=self.accumulated_width, shards=self.shards, grouped=grouped)
        if not shards:
            return pinned, ()
        states = self._state_bytes(optimizer, shards)
        masters = self._term(_MASTERS_3, self.master * shards, m=self.master, shards=shards)
        return pinned, masters + self._states(optimizer, "L o shards", states, o=states / shards, shards=shards)

    def optimizer_on_nvme(self, optimizer: OptimizerSpec) -> tuple[Terms, Terms]:
        """Return the host memory, pinned and pageable, of an optimizer on NVMe: the gradients' flat buffer, and
        masters, states and fp32 gradients of small sub-groups."""
        small = [group for group in self._groups() if 4 * group < SWAP_MIN_BYTES]
        # The first step creates a sub-group's states in ordinary memory before they are written.
        first = self._state_bytes(optimizer, max(self._swapped_groups(), default=0))
        states = self._state_bytes(optimizer, sum(small))
        held = self.accumulated_width
        pinned = self._blocks(_SHARDED_GRADIENTS, held * self.shards, a=held, shards=self.shards)
        pinned += self._blocks(_SMALL_GRADIENTS, *(4 * group for group in small))
        pageable = self._term(_formula("first_states", "L states", optimizer.source), first, states=first)
        pageable += self._term(_SMALL_MASTERS, 4 * sum(small))
        return pinned, pageable + self._states(optimizer, "L o sum G < 1 MiB", states)

    def _groups(self) -> tuple[int, ...]:
        return optimizer_group_numels(self.sharded, self.plan.sub_group_size)

    def _swapped_groups(self) -> list[int]:
        return [group for group in self._groups() if 4 * group >= SWAP_MIN_BYTES]

    def _gradient_sizes(self) -> list[int]:
        """Return the sizes in bytes of stage 3's gradient buffers: one in the accumulated type, one per sub-group in
        the masters' type. For a sub-group that stays on the GPU the buffer is pinned first; a later one of its size
        reuses the block."""
        kept = groups_on_gpu(self.sharded, self.plan)
        sizes = [self.accumulated_width * self.shards, *(self.master * group for group in self._groups()[len(kept) :])]
        if self.pin:
            sizes += sorted({pinned_block(self.master * group) for group in kept} - set(map(pinned_block, sizes)))
        return sizes

    def _first_blocks(self, *, trainable: bool, below_bytes: int | None = None) -> Counter[int]:
        threshold = self.plan.stage3_param_persistence_threshold
        return _shard_blocks(
            self.sharded, self.width, trainable=trainable, threshold=threshold, below_bytes=below_bytes
        )

    def parameters(self) -> Terms:
        width, shards = self.width, self.shards
        frozen, cached = width * self.sharded.frozen_shard_total, 0
        # An engine without optimizer leaves every shard in its first block.
        reference = width * shards if has_reference_model(self.tensors.workload) else 0
        if self.pin:
            first_blocks = self._first_blocks(trainable=True)
            frozen = _total(self._first_blocks(trainable=False))
            reference = _total(first_blocks) if reference else 0
            later = self._gradient_sizes() if self.plan.offload_optimizer == "cpu" else ()
            cached = _total(first_blocks - Counter(map(pinned_block, later)))
        return (
            self._second_copy()
            + self._term(_REFERENCE, reference, blocks=reference)
            + self._blocks(_PARAMETERS_3, width * shards, w=width, shards=shards)
            + self._term(_FROZEN, frozen, blocks=frozen)
            + self._term(_CACHED, cached, blocks=cached)
        )

    def _second_copy(self) -> Terms:
        """Return hpZ's second copy of the weights, tensor by tensor, if the first copy is on the host."""
        ranks, group = self.sharded.world_size, self.plan.zero_hpz_partition_size
        if group == 1:
            return ()
        trained, frozen = (
            [self.width * ranks * shard_numel(numel, ranks) // group for numel in numels]
            for numels in (self.tensors.trainable, self.tensors.frozen)
        )
        blocks = sum(trained) + sum(frozen)
        if self.pin:
            # A piece is allocated pageable first: the largest piece is alive with all pinned ones.
            blocks = _pinned(trained + frozen) + max(trained)
        return self._term(_SECOND_COPY, blocks, blocks=blocks)

    def swap_buffers(self) -> Terms:
        """Return the buffers of the NVMe swappers, and the parameters that stay off NVMe."""
        terms: Terms = ()
        plan, width = self.plan, self.width
        if plan.offload_optimizer == "nvme":
            count, largest = plan.optimizer_buffer_count, align_up(4 * max(self._groups()), ALIGNED_BYTES)
            terms = self._term(_OPTIMIZER_BUFFERS, count * largest, buffer_count=count, G=largest // 4)
        if plan.offload_param == "nvme":
            count, size = plan.param_buffer_count, align_up(width * plan.param_buffer_size, ALIGNED_BYTES)
            whole, limit = self._whole_sub_group(), plan.param_max_in_cpu
            terms += self._term(
                _PARAMETER_BUFFERS, count * size + width * whole, buffer_count=count, buffer=size, w=width, whole=whole
            )
            first = pinned_block(width * min(self.shards, limit))
            terms += self._term(_IN_CPU, first, w=width, shards=self.shards, max_in_cpu=limit)
            # A shard too small for NVMe has its own block. A trainable one moves on to the flat buffer; the block stays
            # in the pinned allocator's cache.
            for formula, trainable in ((_FROZEN, False), (_CACHED, True)):
                blocks = _total(self._first_blocks(trainable=trainable, below_bytes=SWAP_MIN_BYTES))
                terms += self._term(formula, blocks, blocks=blocks)
        return terms

    def _whole_sub_group(self) -> int:
        """Return the whole elements of the sub-group with the largest shard, or 0 if the host buffer holds all
        sub-groups."""
        if self.shards <= self.plan.param_max_in_cpu:
            return 0
        groups = optimizer_groups(self.sharded, self.plan.sub_group_size)
        largest = max(groups, key=lambda group: sum(self.sharded.shards[index] for index in group))
        return sum(self.tensors.trainable[index] for index in largest)

    def on_nvme(self, optimizer: OptimizerSpec) -> Terms:
        terms: Terms = ()
        if self.plan.offload_optimizer == "nvme":
            numel = sum(self._swapped_groups())
            states = self._state_bytes(optimizer, numel)
            gradients = max(0, numel - shards_below(self.sharded, SWAP_MIN_BYTES // 4)[0])
            terms += self._term(_SWAPPED_MASTERS, 4 * numel, swapped=numel)
            terms += self._term(_SWAPPED_STATES, states, states=states)
            terms += self._term(_SWAPPED_GRADIENTS, 4 * gradients, swapped=gradients)
        if self.plan.offload_param == "nvme":
            small = sum(shards_below(self.sharded, SWAP_MIN_BYTES // self.width))
            swapped = self.shards + self.sharded.frozen_shard_total - small
            terms += self._term(_SWAPPED_PARAMETERS, self.width * swapped, w=self.width, swapped=swapped)
        return terms


def _total(blocks: Counter[int]) -> int:
    return sum(size * count for size, count in blocks.items())
