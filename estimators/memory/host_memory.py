"""Host memory of a node: pinned and pageable while training, and the peak while the model loads.

What L local ranks keep on the host, bytes per element of one rank's partition (Pt'/N, or Pt'' at stage 3):

| offload                  | pinned                                                     | pageable              |
|--------------------------|------------------------------------------------------------|-----------------------|
| optimizer, stages 1, 2   | 4 masters + 4 gradients + w weights, + w largest tensor,   | o states              |
|                          | + w whole tensors when micro batches accumulate            |                       |
| optimizer, stage 3       | 4 gradients + w gradients; of the fp32 gradients, masters  | 4 masters + o states  |
|                          | and states only those of the sub-groups that are offloaded |                       |
| parameters (cpu), stage 3| w weights, and their first home, tensor by tensor, which   |                       |
|                          | the pinned allocator keeps after it is freed and gives     |                       |
|                          | only to later blocks of the same power of two              |                       |

Where masters are in bf16 (`bf16_master_weights_and_grads`) it is m = 2 in the place of 4, and o is half as large with
`bf16_optimizer_states`.

With `pin_memory` off, all of it is pageable. torch rounds every pinned block up to a power of two and returns none to
the system, which is why what is pinned can be almost twice what is used (DS_PIN_MEMORY_BACKEND=native avoids it).

Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py `__init__`, `initialize_optimizer_states`,
`async_accumulate_grad_in_cpu_via_gpu`; runtime/zero/stage3.py `_create_fp32_partitions`, `initialize_optimizer_states`,
`_setup_for_real_optimizer`, `_create_param_groups_fp16_flat_cpu_memory`; runtime/zero/partition_parameters.py
`_partition_param`; torch 2.13 ATen/core/CachingHostAllocator.h. Not covered: data loader workers, the page cache.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

from ..estimate import ON_A_NODE, Formula, MemoryEstimate, Terms, total_bytes
from ..hardware import Cluster
from ..models.model_shape import ModelShape
from ..objectives import has_reference_model
from ..optimizers import OptimizerSpec
from ..plan import Plan
from ..workload import Workload
from .partition import SWAP_MIN_BYTES, shard_numel
from .trainable import ShardedTensors, TensorSet, groups_on_gpu, optimizer_group_numels
from .zero_states import state_bytes

PROCESS_BYTES = 2 << 30
"""Python, torch, CUDA libraries and tokenized data of one rank; two small runs reported 1.2 and 2.8 GB of host memory
in all."""

CPU_RANK_BYTES, CPU_LAUNCHER_BYTES = 250 << 20, 155 << 20
"""A rank on the CPU, without what `device_terms` counts of its process, and the launcher of a node: memory that is not
mapped from files, in a training of 140 thousand parameters by the Trainer on two ranks and one."""

_STAGE_1_2 = "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"
_STAGE_3 = "deepspeed 0.19.8 runtime/zero/stage3.py"
_FIRST_HOME = "deepspeed 0.19.8 runtime/zero/partition_parameters.py _partition_param"
_UNSWAPPED = "deepspeed 0.19.8 runtime/swap_tensor/optimizer_utils.py is_swappable_tensor"
_BLOCKS = {"blocks": "bytes of pinned blocks, each tensor's rounded up to a power of two, that one rank holds"}


def on_a_node(
    name: str, text: str, source: str, symbols: dict[str, str] | None = None, leaves_out: str = ""
) -> Formula:
    """The formula of a component of all local ranks."""
    return Formula(name, text, source, {**ON_A_NODE, **(symbols or {})}, leaves_out)


_PROCESSES = on_a_node(
    "processes",
    "L process",
    "observed, to be calibrated",
    {"process": "bytes of Python, torch and CUDA's libraries in one process"},
    "data loader workers, tokenized data beyond it, the page cache",
)
_LAUNCHER = on_a_node("launcher", "launcher", "observed")
_ON_CPU = on_a_node(
    "rank_memory", "L device", "the ranks' own memory is the host's", {"device": "bytes of one rank on the CPU"}
)
_SHARDED_GRADIENTS = on_a_node("gradients", "L p2(w shards)", f"{_STAGE_3} _setup_for_real_optimizer")
_FLAT_1_2 = on_a_node("gradients", "L p2(m part)", f"{_STAGE_1_2} __init__, initialize_optimizer_states")
_FLAT_STAGING = _FLAT_1_2._replace(name="offload_staging", text="L (p2(w part) + p2(w largest))")
_ACCUMULATED = on_a_node(
    "accumulated_gradients",
    "L kept",
    f"{_STAGE_1_2} async_accumulate_grad_in_cpu_via_gpu",
    {"kept": "bytes of whole gradients that one rank keeps until the step"},
)
_GRADIENTS_3 = on_a_node(
    "gradients", "L (p2(w shards) + sum p2(m G))", f"{_STAGE_3} initialize_optimizer_states, _setup_for_real_optimizer"
)
_MASTERS_3 = on_a_node("master_weights", "L m shards", f"{_STAGE_3} _create_fp32_partitions")
_SMALL_GRADIENTS = on_a_node("gradients", "L sum p2(4 G < 1 MiB)", _UNSWAPPED)
_SMALL_MASTERS = on_a_node("master_weights", "L sum 4 G < 1 MiB", _UNSWAPPED)
_FLAT_PARAMETERS = on_a_node("parameters", "L p2(w shards)", f"{_STAGE_3} _create_param_groups_fp16_flat_cpu_memory")
_FROZEN = on_a_node("frozen_parameters", "L blocks", _FIRST_HOME, _BLOCKS)
_REFERENCE = _FROZEN._replace(name="reference_model", source="trl 1.16 models/utils.py prepare_deepspeed")
_CACHED = on_a_node("pinned_cache", "L blocks", _FIRST_HOME, _BLOCKS)

_SECOND_COPY = on_a_node(
    "second_copy_of_weights",
    "L blocks",
    "deepspeed 0.19.8 runtime/zero/partition_parameters.py _partition_param_sec",
    _BLOCKS,
)

_CHECKPOINTS = on_a_node(
    "layer_inputs",
    "L layers p2(B S H w)",
    "transformers 5.23 modeling_utils.py activation_checkpointing_enable (offload), torch 2.13 autograd/graph.py "
    "save_on_cpu",
    {"layers": "checkpointed layers"},
)
_LOGITS = on_a_node(
    "evaluated_logits",
    "L k E S V",
    "transformers 5.23 trainer_pt_utils.py EvalLoopContainer, nested_numpify",
    {"E": "samples of all ranks that are evaluated", "k": "bytes per logit while they are joined"},
)


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
    """Pinned blocks, by size, of one rank's shards; persistent tensors stay on the GPU."""
    numels = sharded.tensors.trainable if trainable else sharded.tensors.frozen
    shards = (width * shard_numel(numel, sharded.world_size) for numel in numels if numel > threshold)
    return Counter(pinned_block(shard) for shard in shards if below_bytes is None or shard < below_bytes)


def _total(blocks: Counter[int]) -> int:
    return sum(size * count for size, count in blocks.items())


@lru_cache(maxsize=64)
def _tensor_blocks(tensors: TensorSet, width: int) -> int:
    """Pinned blocks of all trainable tensors, whole."""
    return sum(pinned_block(width * numel) for numel in tensors.trainable)


def checkpoint_terms(model: ModelShape, workload: Workload, plan: Plan, local_ranks: int) -> Terms:
    """Inputs of checkpointed layers in host memory; `workload` is that of a rank."""
    if not plan.cpu_checkpointing:
        return ()
    pins = workload.software.pinned_inputs
    formula = _CHECKPOINTS if pins else _CHECKPOINTS._replace(text="L layers B S H w")
    terms: Terms = ()
    for block in model.blocks:
        rows = model.stream_len(block, workload.seq_len)
        batch, hidden, width = plan.micro_batch_size, model.stream_width(block), workload.weight_bytes
        size = batch * rows * hidden * width
        size = block.count * (pinned_block(size) if pins else size)
        terms += formula.on_node(local_ranks, size, layers=block.count, B=batch, S=rows, H=hidden, w=width)
    return terms


def process_terms(cluster: Cluster) -> Terms:
    """A node's processes without the tensors."""
    ranks, of_a_rank = cluster.gpus_per_node, CPU_RANK_BYTES if cluster.gpu.is_cpu else PROCESS_BYTES
    launcher = _LAUNCHER.on_node(1, CPU_LAUNCHER_BYTES) if cluster.gpu.is_cpu else ()
    return launcher + _PROCESSES.on_node(ranks, of_a_rank, process=of_a_rank)


def kept_logits(model: ModelShape, workload: Workload, cluster: Cluster) -> Terms:
    """Logits of an evaluation that every rank gathers from all and keeps for metrics: E samples in fp32 (numpy has no
    bf16), and what the last k batches of each rank are joined to; at least those k batches, as they are copied."""
    if not workload.eval_logits:
        return ()
    width = 2 if workload.precision == "fp16" else 4
    once = workload.eval_logits * (workload.eval_batch or 0) * cluster.world_size
    samples = workload.eval_samples or once
    copies = 2 * width if samples > once else width + (workload.weight_bytes if workload.precision == "bf16" else 0)
    inputs = {"E": samples, "k": copies, "S": workload.seq_len, "V": model.vocab_size}
    size = copies * samples * workload.seq_len * model.vocab_size
    return _LOGITS.on_node(cluster.gpus_per_node, size, **inputs)


def with_ranks_on_cpu(memory: MemoryEstimate, cluster: Cluster, kept: Terms) -> MemoryEstimate:
    """The estimate with what an evaluation keeps; on a CPU the ranks' own memory is memory of the host, too."""
    memory = replace(memory, host_pageable_terms=memory.host_pageable_terms + kept) if kept else memory
    if not cluster.gpu.is_cpu:
        return memory
    size = memory.device_bytes_per_gpu
    own = _ON_CPU.on_node(cluster.gpus_per_node, size, device=size)
    return replace(memory, host_pageable_terms=memory.host_pageable_terms + own)


def host_terms(sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, cluster: Cluster) -> tuple[Terms, Terms]:
    """(pinned, pageable) terms of a node while training."""
    pinned: Terms = ()
    pageable, local_ranks = process_terms(cluster), cluster.gpus_per_node
    if plan.offload_optimizer != "none":
        offload = _optimizer_on_nvme
        if plan.offload_optimizer == "cpu":
            offload = _optimizer_1_2 if plan.zero_stage < 3 else _optimizer_3
        pinned, further = offload(sharded, plan, optimizer, local_ranks)
        pageable += further
    if plan.offload_param == "cpu":
        pinned += _parameters(sharded, plan, local_ranks)
    return (pinned, pageable) if plan.pin_memory else ((), pageable + pinned)


def _blocks(formula: Formula, sizes: tuple[int, ...], local_ranks: int, *, pin: bool, **inputs: float) -> Terms:
    """A block of each size on every rank; `formula` is that of pinned blocks, p2(...)."""
    if not pin:
        formula = formula._replace(text=formula.text.replace("p2", ""))
    total = sum(pinned_block(size) for size in sizes) if pin else sum(sizes)
    return formula.on_node(local_ranks, total, **inputs)


def _states(optimizer: OptimizerSpec, text: str, states: int, local_ranks: int, **inputs: float) -> Terms:
    formula = on_a_node("optimizer_states", text, optimizer.source)
    return formula.on_node(local_ranks, states, **inputs)


def _optimizer_1_2(
    sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, local_ranks: int
) -> tuple[Terms, Terms]:
    tensors, part, pin = sharded.tensors, sharded.partition, plan.pin_memory
    width, largest, master = tensors.workload.weight_bytes, tensors.largest_trainable, plan.master_bytes
    flat = (master * part,)
    masters = _blocks(_FLAT_1_2._replace(name="master_weights"), flat, local_ranks, pin=pin, m=master, part=part)
    gradients = _blocks(_FLAT_1_2, flat, local_ranks, pin=pin, m=master, part=part)
    staging = (width * part, width * largest)
    pinned = masters + gradients
    pinned += _blocks(_FLAT_STAGING, staging, local_ranks, pin=pin, w=width, part=part, largest=largest)
    if plan.gradient_accumulation_steps > 1 and not plan.bf16_master_weights_and_grads:
        # One buffer per tensor that the partition touches, as large as the whole tensor; masters in bf16 accumulate in
        # their own gradients.
        kept = width * sharded.touched
        if pin:
            kept = kept * _tensor_blocks(tensors, width) // (width * tensors.trainable_numel)
        pinned += _ACCUMULATED.on_node(local_ranks, kept, kept=kept)
    states = state_bytes(optimizer, tensors, part, stage=plan.zero_stage, on_cpu=True)
    return pinned, _states(optimizer, "L o part", states, local_ranks, o=states / part, part=part)


def _optimizer_3(
    sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, local_ranks: int
) -> tuple[Terms, Terms]:
    shards = sharded.shard_total - sum(groups_on_gpu(sharded, plan))
    pinned = _blocks(
        _GRADIENTS_3, _gradient_sizes(sharded, plan), local_ranks, pin=plan.pin_memory, m=plan.master_bytes
    )
    if not shards:
        return pinned, ()
    states = state_bytes(optimizer, sharded.tensors, shards, stage=3, on_cpu=True)
    masters = _MASTERS_3.on_node(local_ranks, plan.master_bytes * shards, m=plan.master_bytes, shards=shards)
    return pinned, masters + _states(optimizer, "L o shards", states, local_ranks, o=states / shards, shards=shards)


def _optimizer_on_nvme(
    sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, local_ranks: int
) -> tuple[Terms, Terms]:
    """The gradients' flat buffer stays in memory; masters, states and fp32 gradients go to the disk, except small
    sub-groups'."""
    tensors, pin = sharded.tensors, plan.pin_memory
    width, shards = tensors.workload.weight_bytes, sharded.shard_total
    groups = optimizer_group_numels(sharded, plan.sub_group_size)
    small = [group for group in groups if 4 * group < SWAP_MIN_BYTES]
    # The first step creates a sub-group's states in ordinary memory before they are written.
    first = state_bytes(optimizer, tensors, max(swapped_groups(sharded, plan), default=0), stage=3, on_cpu=True)
    states = state_bytes(optimizer, tensors, sum(small), stage=3, on_cpu=True)
    pinned = _blocks(_SHARDED_GRADIENTS, (width * shards,), local_ranks, pin=pin, w=width, shards=shards)
    pinned += _blocks(_SMALL_GRADIENTS, tuple(4 * group for group in small), local_ranks, pin=pin)
    pageable = on_a_node("first_states", "L states", optimizer.source).on_node(local_ranks, first, states=first)
    pageable += _SMALL_MASTERS.on_node(local_ranks, 4 * sum(small))
    return pinned, pageable + _states(optimizer, "L o sum G < 1 MiB", states, local_ranks)


def _gradient_sizes(sharded: ShardedTensors, plan: Plan) -> tuple[int, ...]:
    """Stage 3's gradient buffers on the host: one in the model's type, one in the masters' type per sub-group. That of
    a sub-group that stays on the GPU is pinned before it goes there; a later one of its size reuses the block."""
    groups, kept = optimizer_group_numels(sharded, plan.sub_group_size), groups_on_gpu(sharded, plan)
    width, master = sharded.tensors.workload.weight_bytes, plan.master_bytes
    sizes = [width * sharded.shard_total, *(master * group for group in groups[len(kept) :])]
    if plan.pin_memory:
        sizes += sorted({pinned_block(master * group) for group in kept} - set(map(pinned_block, sizes)))
    return tuple(sizes)


def swapped_groups(sharded: ShardedTensors, plan: Plan) -> list[int]:
    """Elements of each sub-group on NVMe; smaller ones stay in memory."""
    return [group for group in optimizer_group_numels(sharded, plan.sub_group_size) if 4 * group >= SWAP_MIN_BYTES]


def small_shards(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> Terms:
    """Parameters offloaded to NVMe with a shard too small for the disk: on the host, each in a block of its own. A
    trainable one moves on to the flat buffer; the block stays in the pinned allocator's cache."""
    width, threshold = sharded.tensors.workload.weight_bytes, plan.stage3_param_persistence_threshold
    terms: Terms = ()
    for formula, trainable in ((_FROZEN, False), (_CACHED, True)):
        blocks = _total(
            _shard_blocks(sharded, width, trainable=trainable, threshold=threshold, below_bytes=SWAP_MIN_BYTES)
        )
        terms += formula.on_node(local_ranks, blocks, blocks=blocks)
    return terms


def _parameters(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> Terms:
    width, threshold, shards = (
        sharded.tensors.workload.weight_bytes,
        plan.stage3_param_persistence_threshold,
        sharded.shard_total,
    )
    frozen, cached = width * sharded.frozen_shard_total, 0
    if plan.pin_memory:
        frozen = _total(_shard_blocks(sharded, width, trainable=False, threshold=threshold))
        homes = _shard_blocks(sharded, width, trainable=True, threshold=threshold)
        later = _gradient_sizes(sharded, plan) if plan.offload_optimizer == "cpu" else ()
        cached = _total(homes - Counter(map(pinned_block, later)))
    second: Terms = ()
    if plan.zero_hpz_partition_size > 1:
        second = _second_copy(sharded, plan, local_ranks)
    reference = width * shards if has_reference_model(sharded.tensors.workload) else 0
    if reference and plan.pin_memory:  # an engine without optimizer leaves every shard in its first home
        reference = _total(_shard_blocks(sharded, width, trainable=True, threshold=threshold))
    second += _REFERENCE.on_node(local_ranks, reference, blocks=reference)
    return second + (
        _blocks(_FLAT_PARAMETERS, (width * shards,), local_ranks, pin=plan.pin_memory, w=width, shards=shards)
        + _FROZEN.on_node(local_ranks, frozen, blocks=frozen)
        + _CACHED.on_node(local_ranks, cached, blocks=cached)
    )


def _second_copy(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> Terms:
    """hpZ's second copy of the weights, tensor by tensor, where the first is on the host."""
    width, ranks, group = sharded.tensors.workload.weight_bytes, sharded.world_size, plan.zero_hpz_partition_size
    trained, frozen = (
        [width * ranks * shard_numel(numel, ranks) // group for numel in numels]
        for numels in (sharded.tensors.trainable, sharded.tensors.frozen)
    )
    blocks = sum(trained) + sum(frozen)
    if plan.pin_memory:
        # A piece is allocated pageable first; in training the largest adds to all pinned ones.
        blocks = sum(map(pinned_block, trained + frozen)) + max(trained)
    return _SECOND_COPY.on_node(local_ranks, blocks, blocks=blocks)


def loading_bytes(sharded: ShardedTensors, plan: Plan, local_ranks: int) -> int:
    """Peak of a node's host memory while the model is loaded and partitioned, without its processes.

    Stages 0 to 2: every local rank builds the whole model on the host: L w P. Stage 3 is built under `zero.Init`: only
    rank 0 reads the checkpoint, w P, and the shards go to their final place; a model that is built from scratch is
    sharded tensor by tensor, as it is made. A quantized model goes to the GPU tensor by tensor. A reference model is
    loaded while the policy is still on the host.

    Source: transformers 5.23 modeling_utils.py `_load_pretrained_model`; deepspeed 0.19.8 runtime/engine.py
    `_configure_distributed_model`. Not covered: a checkpoint in another dtype, .bin files without mmap.
    """
    tensors = sharded.tensors
    width = tensors.workload.weight_bytes
    if tensors.workload.method == "qlora":
        return local_ranks * width * max(tensor.numel for tensor, _ in tensors.model.tensor_counts)
    models = 2 if has_reference_model(tensors.workload) else 1
    if plan.zero_stage < 3:
        return models * local_ranks * width * tensors.numel
    shards = total_bytes(_parameters(sharded, plan, local_ranks)) if plan.offload_param == "cpu" else 0
    return shards + (0 if tensors.workload.software.from_scratch else width * tensors.numel)
