"""Trainable and frozen tensors of a model, and the bytes of the frozen ones.

Full fine-tuning trains every tensor. LoRA freezes all of them and adds two matrices of rank r to each adapted linear
layer, and a trainable copy of each module to save; QLoRA also stores the adapted model's linear weights in four bits.
An adapter has the dtype of the weights around it: peft creates it in fp32, and DeepSpeed's engine casts every parameter
to the model's dtype (deepspeed 0.19.8 runtime/engine.py `_cast_module_mixed_precision`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain, compress, repeat
from operator import not_
from typing import TypeVar

from ..hardware import Cluster
from ..models.families import module_experts
from ..models.lora import (
    Adapters,
    adapters,
    quantized,
    quantized_bytes,
    stored_numel,
    trained_copies,
    trains_embedding,
    trains_head,
)
from ..models.model_shape import ModelShape, Tensor
from ..models.rank_part import rank_share
from ..models.vision_parts import has_backward
from ..parameter_groups import has_decay_groups, without_decay
from ..plan import Plan
from ..workload import Workload
from .partition import BucketFills, FlatGroup, RankLoad, bucket_fills, flat_groups, rank_loads, shard_numel, sub_groups

T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True)
class TensorSet:
    """The tensors of a model under a workload, in `named_parameters()` order, as numbers of elements. Compared by
    identity, for caches."""

    model: ModelShape
    workload: Workload
    """The result of `Workload.weights_cache_key`."""
    trainable: tuple[int, ...]
    idle: int
    """Number of leading trainable tensors without a gradient: those of a tower that text samples do not use."""
    frozen: tuple[int, ...]
    """Stored elements, counted in the model's type (`stored_numel`)."""
    muon: int
    """Trainable elements that Muon orthogonalizes."""
    frozen_bytes: int
    """Bytes of the frozen tensors when each GPU holds them whole."""
    experts: tuple[bool, ...]
    """For each trainable tensor, whether it belongs to routed experts."""
    without_decay: tuple[bool, ...]
    """For each trainable tensor, whether the Trainer excludes it from weight decay; empty if it does so for none."""
    layer_tensors: tuple[int, ...]
    """Elements of each tensor of the largest layer, adapters included."""
    trainable_layer: tuple[int, ...]
    """Elements of each trainable tensor of the layer with the most."""
    viewed: int
    """Elements of tensors that the forward pass reads through a view, in all layers: autograd saves them whole."""
    viewed_layer: int
    """`viewed` in the largest layer."""
    passive: int
    """Elements of a frozen vision tower's layers, which no backward pass reads."""
    head: int
    """Elements of the output head (of the embedding when tied)."""
    embedding: int
    """Elements of the largest embedding."""
    embeddings: tuple[int, ...]
    """Elements of all embeddings, including those of positions and segments."""
    trains_head: bool
    """Whether the head, or a copy of it, gets a gradient."""
    trains_embedding: bool
    copied: int
    """Elements of modules that train as whole copies, in addition to adapters."""
    unread: int
    """Elements of originals that no computation reads. A tied one is read until both of its uses have a copy."""

    @cached_property
    def trainable_numel(self) -> int:
        """Pt, the trainable elements."""
        return sum(self.trainable)

    @cached_property
    def numel(self) -> int:
        """P, all elements, adapters included."""
        return self.trainable_numel + sum(self.frozen)

    @cached_property
    def largest_trainable(self) -> int:
        return max(self.trainable)

    @cached_property
    def layer_numel(self) -> int:
        return sum(self.layer_tensors)

    @property
    def spread(self) -> tuple[bool, ...]:
        """For each trainable tensor, whether it is an expert under AutoEP; empty without AutoEP."""
        return self.experts if self.model.autoep_size > 1 else ()

    @cached_property
    def spread_numel(self) -> int:
        """Trained elements of a rank's experts under AutoEP."""
        return sum(compress(self.trainable, self.spread))

    @cached_property
    def split_experts(self) -> int:
        """Additional tensors of all layers when experts are modules: three for each expert, instead of the fused
        tensors in the other fields."""
        experts = module_experts(self.model, self.workload.software)
        if not experts:
            return 0
        fused = [(block.count, sum(tensor.role == "expert" for tensor in block.tensors)) for block in self.model.blocks]
        return sum(count * (3 * experts - each) for count, each in fused if each)

    @property
    def tied(self) -> bool:
        """Whether one weight is embedding and head. A trained copy of either is a weight of its own."""
        return self.model.tied and not self.copied


@lru_cache(maxsize=64)
def tensor_set(model: ModelShape, workload: Workload) -> TensorSet:
    """Return a model's tensors, sorted into trainable and frozen ones. Raises WorkloadError for LoRA targets that match
    no module."""
    return _tensor_set(model, workload.weights_cache_key())


@lru_cache(maxsize=64)
def _tensor_set(model: ModelShape, workload: Workload) -> TensorSet:
    # The order is that of `named_parameters()`: towers and embeddings before the layers, norm and head after them.
    towers = [tensor for tensor in model.outside if tensor.role == "tower"]
    first = [tensor for tensor in model.outside if tensor.role in ("embedding", "position")]
    last = [tensor for tensor in model.outside if tensor.role not in ("tower", "embedding", "position")]

    def in_order(outside: Sequence[T], layers: Iterable[Sequence[T]]) -> list[T]:
        """Return the values of every tensor, in order; layers of a kind share theirs."""
        repeated = (list(values) * block.count for values, block in zip(layers, model.blocks, strict=True))
        before = len(towers) + len(first)
        return [*outside[:before], *chain.from_iterable(repeated), *outside[before:]]

    def each(value: Callable[[Tensor], T]) -> list[T]:
        outside = [value(tensor) for tensor in (*towers, *first, *last)]
        return in_order(outside, ([value(tensor) for tensor in block.tensors] for block in model.blocks))

    numels = each(lambda tensor: stored_numel(tensor, workload))
    lora, copies = adapters(model, workload), trained_copies(model, workload)
    # The largest layer is chosen with its adapters, which may not be in every kind of layer.
    stored = [[stored_numel(tensor, workload) for tensor in block.tensors] for block in model.blocks]
    added = [[matrix.numel for tensor in block.tensors for matrix in lora.matrices(tensor)] for block in model.blocks]
    layers = list(zip(stored, added, strict=True))
    layer, trainable_layer = max(layers, key=lambda pair: sum(map(sum, pair)), default=([], []))
    experts: tuple[bool, ...] = ()
    undecayed: tuple[bool, ...] = ()
    idle = 0
    if workload.method == "full":
        trains = each(lambda tensor: not tensor.frozen)
        trainable, frozen = tuple(compress(numels, trains)), tuple(compress(numels, map(not_, trains)))
        # Their hooks never fire, so these gradients enter no bucket although ZeRO counts the parameters.
        idle = sum(not tensor.frozen for tensor in towers)
        experts = tuple(compress(each(lambda tensor: tensor.role == "expert"), trains))
        norm = model.blocks[-1].norm if model.blocks else "rms"
        in_blocks = (without_decay(block.tensors, block.norm) for block in model.blocks)
        undecayed = tuple(compress(in_order(without_decay((*towers, *first, *last), norm), in_blocks), trains))
        frozen_bytes = sum(frozen) * workload.weight_bytes
        muon = sum(tensor.numel * count for tensor, count in model.tensor_counts if _is_hidden_matrix(tensor))
        trainable_layers = ([tensor.numel for tensor in block.tensors if not tensor.frozen] for block in model.blocks)
        trainable_layer = max(trainable_layers, key=sum, default=[])
    else:
        # Ordered by adapter instead of by layer: no size depends on the order.
        counts = ((matrix.numel, count) for tensor, count in model.tensor_counts for matrix in lora.matrices(tensor))
        in_adapters = [numel for numel, count in counts for _ in range(count)]
        before_layers, after_layers = ([tensor.numel for tensor in each] for each in (copies.embeddings, copies.heads))
        trainable, muon = (*before_layers, *in_adapters, *after_layers), sum(in_adapters)
        frozen = tuple(numels)
        frozen_bytes = sum(_frozen_bytes(tensor, workload) * count for tensor, count in model.tensor_counts)
        layer = layer + trainable_layer
    embeddings = tuple([tensor.numel for tensor in first])
    embedding = max(embeddings, default=0)
    copied = sum(tensor.numel for tensor in copies.tensors)
    viewed = [
        sum(
            numel
            for numel, tensor in zip(numels, block.tensors, strict=True)
            if quantized(tensor, workload) or _is_viewed(tensor, lora)
        )
        for numels, block in zip(stored, model.blocks, strict=True)
    ]
    passive = (block for block in model.blocks if not has_backward(model, block, workload, checkpointing=False))
    return TensorSet(
        model=model,
        workload=workload,
        trainable=trainable,
        idle=idle,
        frozen=frozen,
        muon=muon,
        frozen_bytes=frozen_bytes,
        experts=experts,
        without_decay=undecayed,
        layer_tensors=tuple(layer),
        trainable_layer=tuple(trainable_layer),
        viewed=sum(numel * block.count for numel, block in zip(viewed, model.blocks, strict=True)),
        viewed_layer=max(viewed, default=0),
        passive=sum(block.parameters for block in passive),
        # A tied head may have tensors in addition to the embedding (a masked model's transform, bias).
        head=max([tensor.numel for tensor in last if tensor.role == "head"] + [embedding if model.tied else 0]),
        embedding=embedding,
        embeddings=embeddings,
        trains_head=trains_head(model, workload),
        trains_embedding=trains_embedding(model, workload),
        copied=copied,
        unread=copied if not model.tied else embedding if copies.embeddings and copies.heads else 0,
    )


def _is_viewed(tensor: Tensor, lora: Adapters) -> bool:
    """Return whether fused experts, stored as (expert, out, in), are read through a transpose by the grouped product
    (transformers 5.23 integrations/moe.py). gpt-oss stores them transposed; an adapter's sum replaces the tensor. The
    caller adds bitsandbytes' weights (0.50 autograd/_functions.py `MatMul4Bit`), which are viewed too."""
    return tensor.role == "expert" and len(tensor.shape) == 3 and not tensor.transposed and not lora.folds(tensor)


def _is_hidden_matrix(tensor: Tensor) -> bool:
    """Return whether Muon handles a tensor under DeepSpeed: two or more dimensions, no embedding, no head."""
    return len(tensor.shape) >= 2 and not tensor.frozen and tensor.role not in ("embedding", "position", "head")


def _frozen_bytes(tensor: Tensor, workload: Workload) -> int:
    if quantized(tensor, workload):
        return quantized_bytes(tensor, workload)
    is_outside = tensor.role in ("embedding", "position", "head") and workload.method == "qlora"
    return tensor.numel * (4 if is_outside and workload.software.fp32_embeddings else workload.weight_bytes)


@lru_cache(maxsize=256)
def count_above(tensors: TensorSet, numel: int) -> int:
    """Return the number of tensors with more than `numel` elements; tensors of unfused experts always count."""
    return sum(1 for each in chain(tensors.trainable, tensors.frozen) if each > numel) + tensors.split_experts


@lru_cache(maxsize=256)
def share_above(tensors: TensorSet, numel: int) -> float:
    """Return the share of the elements in tensors with at least `numel` elements."""
    return sum(each for each in chain(tensors.trainable, tensors.frozen) if each >= numel) / tensors.numel


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardedTensors:
    """A tensor set partitioned for N ranks. Compared by identity."""

    tensors: TensorSet
    world_size: int
    groups: tuple[FlatGroup, ...]
    """Parameter groups, each flattened and cut (stages 1 and 2) or stepped (stage 3) separately."""
    partition: int
    """Elements of one rank's flat partitions (stages 1 and 2), with padding."""
    shards: tuple[int, ...]
    """Elements of one rank's shard of every trainable tensor (stage 3)."""
    shard_total: int
    frozen_shard_total: int

    @cached_property
    def flat_numel(self) -> int:
        """Pt', with the padding of the groups (stages 1 and 2)."""
        return sum(group.numel for group in self.groups)

    @cached_property
    def loads(self) -> tuple[RankLoad, ...]:
        """Each rank's load under stages 1 and 2."""
        return _rank_loads(self.tensors.trainable, self.groups)

    @cached_property
    def last_load(self) -> RankLoad:
        """The load of the last rank with parameters. It owns the head, whose gradient is the first."""
        return max(reversed(self.loads), key=lambda load: max(load.tensors, default=-1))

    @cached_property
    def touched(self) -> int:
        return max(load.touched for load in self.loads)

    @cached_property
    def slice(self) -> int:
        return max(load.slice for load in self.loads)


_rank_loads = lru_cache(maxsize=64)(rank_loads)


@lru_cache(maxsize=256)
def shard_tensors(tensors: TensorSet, world_size: int, *, decay_groups: bool = False) -> ShardedTensors:
    """Return a tensor set partitioned for N ranks. decay_groups: `parameter_groups.has_decay_groups`."""
    undecayed = tensors.without_decay if decay_groups else ()
    groups = flat_groups(tensors.trainable, tensors.experts, world_size, tensors.model.autoep_size, undecayed)
    ranks = [world_size // tensors.model.autoep_size if is_expert else world_size for is_expert in tensors.spread]
    shards = tuple(map(shard_numel, tensors.trainable, ranks or repeat(world_size)))
    return ShardedTensors(
        tensors=tensors,
        world_size=world_size,
        groups=groups,
        partition=sum(group.partition for group in groups),
        shards=shards,
        shard_total=sum(shards),
        frozen_shard_total=sum(shard_numel(numel, world_size) for numel in tensors.frozen),
    )


def shard_plan(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> ShardedTensors:
    """Return a plan's tensors, in the parameter groups of its optimizer. Raises as `tensor_set`."""
    tensors, ranks = tensor_set(rank_share(model, plan), workload), cluster.world_size // plan.autotp_size
    return shard_tensors(tensors, ranks, decay_groups=has_decay_groups(workload, plan))


def generator_tensors(sharded: ShardedTensors) -> ShardedTensors:
    """Return the tensors of the policy alone, without a value model that trains with it."""
    policy = sharded.tensors.model.policy
    return shard_tensors(tensor_set(policy, sharded.tensors.workload), sharded.world_size) if policy else sharded


@lru_cache(maxsize=256)
def gradient_buckets(tensors: TensorSet, bucket_size: int, *, stage: int = 0) -> BucketFills:
    """Return `partition.bucket_fills` of the trainable tensors."""
    is_expert = tensors.spread[tensors.idle :] if stage == 3 else ()
    return bucket_fills(tensors.trainable[tensors.idle :], bucket_size, is_expert)


@lru_cache(maxsize=256)
def gradients_before_first_reduction(
    sharded: ShardedTensors, bucket_size: int, *, frees: bool, flushed: bool = False
) -> tuple[int, ...]:
    """Return the elements of gradients that each rank holds when the first tensor's gradient is made or, if `flushed`,
    reduced: all tensors that its partition touches, in one buffer allocated with the first reduction (gradients between
    it and the first tensor's wait in the bucket). Unless the engine `frees` them (stage 2), gradients of other ranks
    that are larger than the bucket are included."""
    numels, idle = sharded.tensors.trainable, sharded.tensors.idle
    ends = tuple(accumulate(numels))
    reduced_from = ends[idle] + (0 if flushed else gradient_buckets(sharded.tensors, bucket_size).pending)
    large = (
        {} if frees else {index: numel for index, numel in enumerate(numels) if index > idle and numel > bucket_size}
    )
    numels_by_rank = []
    for load in sharded.loads:
        reached = ends[max(load.tensors)] if load.tensors else 0
        elsewhere = sum(large.values()) - sum(large[index] for index in load.tensors if index in large) if large else 0
        numels_by_rank.append(load.touched * (reached > reduced_from) + elsewhere)
    return tuple(numels_by_rank)


@lru_cache(maxsize=256)
def shards_below(sharded: ShardedTensors, numel: int) -> tuple[int, int]:
    """Return the elements of trainable and of frozen shards with fewer than `numel` elements."""
    frozen = (shard_numel(size, sharded.world_size) for size in sharded.tensors.frozen)
    return sum(shard for shard in sharded.shards if shard < numel), sum(shard for shard in frozen if shard < numel)


@lru_cache(maxsize=256)
def optimizer_groups(sharded: ShardedTensors, sub_group_size: int) -> tuple[Sequence[int], ...]:
    """Return the sub-groups of each parameter group, as indices of trainable tensors."""
    if len(sharded.groups) == 1:
        return sub_groups(sharded.shards, sub_group_size)
    return tuple(
        [group.tensors[place] for place in places]
        for group in sharded.groups
        for places in sub_groups(tuple(sharded.shards[index] for index in group.tensors), sub_group_size)
    )


@lru_cache(maxsize=256)
def optimizer_group_numels(sharded: ShardedTensors, sub_group_size: int) -> tuple[int, ...]:
    return tuple(sum([sharded.shards[index] for index in group]) for group in optimizer_groups(sharded, sub_group_size))


def groups_on_gpu(sharded: ShardedTensors, plan: Plan) -> tuple[int, ...]:
    """Return the elements of the sub-groups that stage 3 steps on the GPU although the optimizer is offloaded: the
    first int((1 - ratio) groups). Source: deepspeed 0.19.8 runtime/zero/stage3.py `_create_fp32_partitions`
    (subgroup_to_device)."""
    if plan.offload_optimizer != "cpu" or plan.offload_optimizer_ratio == 1:
        return ()
    groups = optimizer_group_numels(sharded, plan.sub_group_size)
    return groups[: int((1 - plan.offload_optimizer_ratio) * len(groups))]
