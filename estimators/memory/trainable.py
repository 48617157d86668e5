"""Which tensors train, which stay frozen, and how many bytes the frozen ones take.

Full fine-tuning trains every tensor. LoRA freezes them all and adds two matrices of rank r to each adapted linear
layer, and to modules that are to be saved a copy that trains; QLoRA also stores the adapted model's linear weights in
four bits. An adapter is as wide as the weights around
it: peft creates it in fp32, and DeepSpeed's engine casts every parameter to the model's dtype (deepspeed 0.19.8
runtime/engine.py `_cast_module_mixed_precision`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain, compress, repeat

from ..models.families import LayerVariant, layer_variant
from ..models.lora import Adapters, adapters, quantized, quantized_bytes, trained_copies
from ..models.model_shape import ModelShape, Tensor
from ..plan import Plan
from ..workload import Workload
from .partition import BucketFills, FlatGroup, RankLoad, bucket_fills, flat_groups, rank_loads, shard_numel, sub_groups


@dataclass(frozen=True, eq=False, kw_only=True)
class TensorSet:
    """All tensors of a model under a workload, in `named_parameters()` order.

    Compared by identity, so that it keys caches fast. Tensors are given by their number of elements.
    """

    model: ModelShape
    workload: Workload
    """As `Workload.of_weights` has it."""
    trainable: tuple[int, ...]
    idle: int
    """How many of the trainable ones, the first, get no gradient: a tower's that samples of text do not use."""
    frozen: tuple[int, ...]
    muon: int
    """Trainable elements that Muon would orthogonalize (matrices besides embeddings and head)."""
    frozen_bytes: int
    """Bytes of the frozen tensors when each GPU holds them whole."""
    experts: tuple[bool, ...]
    """Which of the trainable tensors belong to routed experts."""
    layer_tensors: tuple[int, ...]
    """The tensors of the largest layer, adapters included."""
    trainable_layer: tuple[int, ...]
    """The trainable tensors of that layer."""
    viewed: int
    """Elements of the fused experts that the forward pass reads through a transposed view, in all layers: autograd
    saves the view, and with it the whole tensor."""
    viewed_layer: int
    """Such elements in the largest layer."""
    head: int
    """The output head (the embedding when tied)."""
    embedding: int
    """The largest embedding."""
    embeddings: tuple[int, ...]
    """Every embedding, those of positions and segments too."""
    trains_head: bool
    """The head, or a copy of it, gets a gradient."""
    trains_embedding: bool
    copied: int
    """Elements of whole modules that train as copies beside adapters."""
    unread: int
    """Elements of their originals that nothing computes with; a tied one is read until both uses have a copy."""

    @cached_property
    def trainable_numel(self) -> int:
        """Pt."""
        return sum(self.trainable)

    @cached_property
    def numel(self) -> int:
        """P, adapters included."""
        return self.trainable_numel + sum(self.frozen)

    @cached_property
    def largest_trainable(self) -> int:
        return max(self.trainable)

    @cached_property
    def layer_numel(self) -> int:
        """Elements of the largest layer; the time of ZeRO-3's gathers depends on it too."""
        return sum(self.layer_tensors)

    @property
    def spread(self) -> tuple[bool, ...]:
        """Which of the trainable tensors are experts that a rank keeps; empty where none are spread over ranks."""
        return self.experts if self.model.autoep_size > 1 else ()

    @cached_property
    def spread_numel(self) -> int:
        """Trained elements of the experts that a rank keeps, 0 where none are spread over ranks."""
        return sum(compress(self.trainable, self.spread))

    @property
    def tied(self) -> bool:
        """One weight looks tokens up and makes logits; a copy of either is a weight of its own."""
        return self.model.tied and not self.copied


@lru_cache(maxsize=64)
def tensor_set(model: ModelShape, workload: Workload) -> TensorSet:
    """Sort a model's tensors into trainable and frozen ones.

    Raises WorkloadError for LoRA targets that name nothing.
    """
    return _tensor_set(model, workload.of_weights())


@lru_cache(maxsize=64)
def _tensor_set(model: ModelShape, workload: Workload) -> TensorSet:
    embeddings = [tensor.numel for tensor in model.outside if tensor.role in ("embedding", "position")]
    first = [tensor for tensor in model.outside if tensor.role in ("tower", "embedding", "position")]
    last = [tensor for tensor in model.outside if tensor.role not in ("tower", "embedding", "position")]
    blocks = [([tensor.numel for tensor in block.tensors], block) for block in model.blocks]
    base = (
        *(tensor.numel for tensor in first),
        *(numel for numels, block in blocks for numel in numels * block.count),
        *(tensor.numel for tensor in last),
    )
    chosen, copies = adapters(model, workload), trained_copies(model, workload)
    # Counted with its adapters, which may not reach every kind of layer.
    added = [[matrix.numel for tensor in block.tensors for matrix in chosen.matrices(tensor)] for block in model.blocks]
    layers = [(numels, matrices) for (numels, _), matrices in zip(blocks, added, strict=True)]
    layer, trainable_layer = max(layers, key=lambda pair: sum(map(sum, pair)), default=([], []))
    trainable, frozen, frozen_bytes = base, tuple[int, ...](), 0
    if workload.method == "full":
        muon = sum(tensor.numel * count for tensor, count in model.tensor_counts if _is_hidden_matrix(tensor))
        trainable_layer = layer
    else:
        # In one run per adapter instead of layer by layer: no size depends on their order.
        counts = ((matrix.numel, count) for tensor, count in model.tensor_counts for matrix in chosen.matrices(tensor))
        trainable = tuple(numel for numel, count in counts for _ in range(count))
        frozen, muon = base, sum(trainable)
        trainable = (
            *(tensor.numel for tensor in copies.embeddings),
            *trainable,
            *(tensor.numel for tensor in copies.heads),
        )
        frozen_bytes = sum(_frozen_bytes(tensor, workload) * count for tensor, count in model.tensor_counts)
        layer = layer + trainable_layer
    embedding = max(embeddings, default=0)
    copied = sum(tensor.numel for tensor in copies.tensors)
    viewed = [
        sum(tensor.numel for tensor in block.tensors if _is_viewed(tensor, layer_variant(model, block), chosen))
        for _, block in blocks
    ]
    return TensorSet(
        model=model,
        workload=workload,
        trainable=trainable,
        idle=sum(tensor.role == "tower" for tensor in first) if workload.method == "full" else 0,
        frozen=frozen,
        muon=muon,
        frozen_bytes=frozen_bytes,
        experts=_experts(model, len(first), len(last)) if workload.method == "full" else (),
        layer_tensors=tuple(layer),
        trainable_layer=tuple(trainable_layer),
        viewed=sum(numel * block.count for numel, (_, block) in zip(viewed, blocks, strict=True)),
        viewed_layer=max(viewed, default=0),
        # A tied head may have tensors of its own beside the embedding (a masked language model's transform and bias).
        head=max([tensor.numel for tensor in last if tensor.role == "head"] + [embedding if model.tied else 0]),
        embedding=embedding,
        embeddings=tuple(embeddings),
        trains_head=workload.method == "full" or bool(copies.heads),
        trains_embedding=workload.method == "full" or bool(copies.embeddings),
        copied=copied,
        unread=copied if not model.tied else embedding if copies.embeddings and copies.heads else 0,
    )


def _experts(model: ModelShape, before: int, after: int) -> tuple[bool, ...]:
    """Which tensors belong to routed experts, of so many before, all in and so many behind the layers."""
    layers = ([tensor.role == "expert" for tensor in block.tensors] * block.count for block in model.blocks)
    return (*repeat(False, before), *chain.from_iterable(layers), *repeat(False, after))


def _is_viewed(tensor: Tensor, variant: LayerVariant, chosen: Adapters) -> bool:
    """Fused experts stored as (expert, out, in): the grouped product reads their transpose (transformers 5.23
    integrations/moe.py). gpt-oss stores them the other way round; an adapter's sum takes the tensor's place."""
    return (
        tensor.role == "expert" and len(tensor.shape) == 3 and not variant.gpt_oss_experts and not chosen.folds(tensor)
    )


def _is_hidden_matrix(tensor: Tensor) -> bool:
    """What DeepSpeed gives to Muon: tensors of two dimensions and more besides embeddings and head."""
    return len(tensor.shape) >= 2 and tensor.role not in ("embedding", "position", "head")


def _frozen_bytes(tensor: Tensor, workload: Workload) -> int:
    if quantized(tensor, workload):
        return quantized_bytes(tensor, workload)
    return tensor.numel * workload.weight_bytes


@lru_cache(maxsize=256)
def larger_than(tensors: TensorSet, numel: int) -> int:
    """How many tensors have more elements."""
    return sum(1 for each in chain(tensors.trainable, tensors.frozen) if each > numel)


@lru_cache(maxsize=256)
def share_from(tensors: TensorSet, numel: int) -> float:
    """Of all elements, those of tensors that have at least so many."""
    return sum(each for each in chain(tensors.trainable, tensors.frozen) if each >= numel) / tensors.numel


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardedTensors:
    """A tensor set as N ranks share it. Compared by identity."""

    tensors: TensorSet
    world_size: int
    groups: tuple[FlatGroup, ...]
    """The parameter groups, each of which stages 1 and 2 flatten and cut by itself, and stage 3 steps by itself."""
    partition: int
    """Elements of one rank's flat partitions (stages 1 and 2), padding included."""
    shards: tuple[int, ...]
    """Elements of one rank's shard of every trainable tensor (stage 3)."""
    shard_total: int
    frozen_shard_total: int

    @cached_property
    def flat_numel(self) -> int:
        """Pt', the trainable tensors with the padding of their groups (stages 1 and 2)."""
        return sum(group.numel for group in self.groups)

    @cached_property
    def loads(self) -> tuple[RankLoad, ...]:
        """The load of each rank under stages 1 and 2."""
        return _rank_loads(self.tensors.trainable, self.groups)

    @cached_property
    def last_load(self) -> RankLoad:
        """The load of the last rank that holds parameters: it owns the head, whose gradient comes first."""
        return max(reversed(self.loads), key=lambda load: max(load.tensors, default=-1))

    @cached_property
    def distinct_loads(self) -> tuple[RankLoad, ...]:
        """A load for each pair of sizes that there is."""
        return tuple({(load.touched, load.slice): load for load in self.loads}.values())

    @cached_property
    def touched(self) -> int:
        """Largest sum of whole tensors that one rank's partition touches."""
        return max(load.touched for load in self.loads)

    @cached_property
    def slice(self) -> int:
        """Largest piece of one tensor inside a partition."""
        return max(load.slice for load in self.loads)

    @cached_property
    def largest_shard(self) -> int:
        return max(self.shards)


_rank_loads = lru_cache(maxsize=64)(rank_loads)


@lru_cache(maxsize=256)
def shard_tensors(tensors: TensorSet, world_size: int) -> ShardedTensors:
    """Cut a tensor set for `world_size` ranks."""
    groups = flat_groups(tensors.trainable, tensors.experts, world_size, tensors.model.autoep_size)
    ranks = [world_size // tensors.model.autoep_size if apart else world_size for apart in tensors.spread]
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


@lru_cache(maxsize=256)
def gradient_buckets(tensors: TensorSet, bucket_size: int, *, stage: int = 0) -> BucketFills:
    """`partition.bucket_fills` of the trainable tensors."""
    apart = tensors.spread[tensors.idle :] if stage == 3 else ()
    return bucket_fills(tensors.trainable[tensors.idle :], bucket_size, apart)


@lru_cache(maxsize=256)
def gradients_before_first_reduction(
    sharded: ShardedTensors, bucket_size: int, *, frees: bool, flushed: bool = False
) -> tuple[int, ...]:
    """Elements of gradients that each rank holds when the first tensor's gradient comes, or when that one is reduced.

    Those of all tensors that its partition touches, in one buffer that is made for the first of them that is reduced:
    what follows the first tensor with a gradient waits in the bucket until it is `flushed`. Unless the engine `frees`
    them (stage 2), also the gradients elsewhere that are larger than the bucket.
    """
    numels, idle = sharded.tensors.trainable, sharded.tensors.idle
    ends = tuple(accumulate(numels))
    reduced_from = ends[idle] + (0 if flushed else gradient_buckets(sharded.tensors, bucket_size).pending)
    large = (
        {} if frees else {index: numel for index, numel in enumerate(numels) if index > idle and numel > bucket_size}
    )
    held = []
    for load in sharded.loads:
        reached = ends[max(load.tensors)] if load.tensors else 0
        elsewhere = sum(large.values()) - sum(large[index] for index in load.tensors if index in large) if large else 0
        held.append(load.touched * (reached > reduced_from) + elsewhere)
    return tuple(held)


@lru_cache(maxsize=256)
def shards_below(sharded: ShardedTensors, numel: int) -> tuple[int, int]:
    """Elements of the trainable and of the frozen shards that have fewer than `numel` elements."""
    frozen = (shard_numel(size, sharded.world_size) for size in sharded.tensors.frozen)
    return sum(shard for shard in sharded.shards if shard < numel), sum(shard for shard in frozen if shard < numel)


@lru_cache(maxsize=256)
def optimizer_groups(sharded: ShardedTensors, sub_group_size: int) -> tuple[Sequence[int], ...]:
    """`partition.sub_groups` of the shards of each parameter group, as places among the trainable tensors."""
    if len(sharded.groups) == 1:
        return sub_groups(sharded.shards, sub_group_size)
    return tuple(
        [group.tensors[place] for place in places]
        for group in sharded.groups
        for places in sub_groups(tuple(sharded.shards[index] for index in group.tensors), sub_group_size)
    )


@lru_cache(maxsize=256)
def optimizer_group_numels(sharded: ShardedTensors, sub_group_size: int) -> tuple[int, ...]:
    """Elements of each of them on one rank."""
    return tuple(sum([sharded.shards[index] for index in group]) for group in optimizer_groups(sharded, sub_group_size))


def groups_on_gpu(sharded: ShardedTensors, plan: Plan) -> tuple[int, ...]:
    """Elements of the sub-groups that stage 3 keeps and steps on the GPU although it offloads the optimizer: the first
    int((1 - ratio) groups).

    Source: deepspeed 0.19.8 runtime/zero/stage3.py `_create_fp32_partitions` (subgroup_to_device).
    """
    if plan.offload_optimizer != "cpu" or plan.offload_optimizer_ratio == 1:
        return ()
    groups = optimizer_group_numels(sharded, plan.sub_group_size)
    return groups[: int((1 - plan.offload_optimizer_ratio) * len(groups))]
