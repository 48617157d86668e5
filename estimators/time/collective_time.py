"""Seconds of collectives over a cluster's links, and which of them each ZeRO stage runs.

A ring over N ranks moves, through every rank, V (N - 1) / N bytes for an all-gather or reduce-scatter of V bytes and
twice that for an all-reduce; the slowest link that the ring crosses sets the pace. Over several nodes the ring leaves
each node once, so all of the node's adapters together carry what one GPU's link carries inside.

Which collectives (deepspeed 0.19.8, e bytes per element, Pt trained and P all parameters):

    stage 0     all-reduce of e Pt after the last backward pass of a step, nothing beside it
                (runtime/engine.py `allreduce_gradients`, `buffered_allreduce_fallback`)
    stage 1     the same volume by buckets, in the last backward pass; then all-gather of e Pt after the step
    stage 2     the all-reduce in EVERY backward pass ("ZeRO stage >= 2 communicates during non gradient accumulation
                boundaries as well", engine.py); all-gather as stage 1. The buckets are all-reduced although each rank
                keeps a part only, because `use_multi_rank_bucket_allreduce` is on by default (stage_1_and_2.py
                `average_tensor`)
    stage 3     all-gather of the weights in every forward and again in every backward pass, less what stays gathered
                between the two (`gathered_parameters`); reduce-scatter of e Pt in every backward pass.
                With hpZ only what was trained since it was gathered last comes from all ranks (the first forward pass
                after a step), all else from the group (partition_parameters.py `all_gather_coalesced`); before 0.13
                what hooks of a recomputation launch came from all ranks, too.
                With qwZ a weight travels in 8 bits, the scales in a second collective; with qgZ on several nodes a
                gradient in 4 bits, tensor by tensor, in two all-to-alls with their scales: to the ranks of the node,
                which sum up, then to those of the same number in the other nodes (coalesced_collectives.py
                `all_to_all_quant_reduce`)
                Experts that ranks keep some of each (AutoEP) are gathered and reduced among those that keep the same
                ones, in buckets of their own; where one rank alone keeps them, neither (partition_parameters.py
                `all_gather_coalesced`, stage3.py `reduce_independent_p_g_buckets_and_remove_grads`)

Stages 1 and 2 overlap with the backward pass when `overlap_comm` is set, from the first full bucket on. The last bucket
is never hidden, nor is the embedding, whose gradient comes last, and with a bucket as large as the model nothing is
(stage_1_and_2.py `average_tensor`). Stage 3 reduces and gathers beside the pass too: kernels run on while a bucket is
reduced, and a gather runs beside the submodule before its own (partitioned_param_coordinator.py `fetch_sub_module`,
stage3.py `__reduce_and_partition_ipg_grads`). The embedding is gathered first, beside nothing. After the step each
tensor that stage 3 keeps whole is gathered by itself (stage3.py `_post_step`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from ..errors import ClusterError
from ..hardware.cluster import Cluster, Gpu
from ..memory.gathered_parameters import gathered_parameters
from ..memory.partition import SWAP_MIN_BYTES
from ..memory.trainable import TensorSet, larger_than, share_from
from ..models.model_shape import ModelShape
from ..plan import Plan
from ..workload import Workload
from .memory_bound import exchanged_bytes

LINK_SHARE = {"nvlink": 0.8, "infinity fabric": 0.6, "pcie": 0.35}
"""Bus bandwidth that NCCL reaches against the link's one-way figure.

NVLink: a fifth goes to the protocol (NVIDIA/nccl-tests #212: 370 of 450 GB/s on H100; NVLink SHARP, which does better
in all-reduce, is not counted). PCIe: 0.66 to 0.80 between peers (five hosts of four to eight cards,
voipmonitor/rtx6kpro and others), 0.48 where NCCL goes through host memory from socket to socket, as it does by default,
and below a tenth on two hosts of L4 that go that way; assumed in between. Infinity Fabric: assumed.
"""

HOST_MEMORY_SHARE = 0.21
"""The same for cards that send everything through host memory: the median of nine published hosts of two to eight
GeForce cards, whose large all-reduces reach 0.07 to 0.56. There are two kinds of them: 0.43 to 0.56 (eight RTX 4090,
blog.chlc.cc/p/rtx4090-gpudirect-p2p-unlocked; RTX 5090 on three hosts, NVIDIA/nccl-tests #287 and NVIDIA/nccl #1639
among them) and 0.07 to 0.21, which is 2 to 6.5 GB/s (RTX 4090 on four hosts, NVIDIA/nccl-tests #307 at second hand;
RTX 2080 Ti on one). No host lies between them, so the figure is far off for either kind. `bench` measures it."""

NETWORK_SHARE = 0.85
"""The share of the adapters' rate: 84.8 of 100 GB/s on average over 24 A100 with four HDR adapters per node
(NVIDIA/nccl-tests #119)."""

CALL_S = 20e-6
"""Starting a collective: the launch on the host and NCCL's kernel."""

LOCAL_HOP_S, NETWORK_HOP_S = 3e-6, 10e-6
"""Each of the N - 1 steps of a ring, within a node and between nodes.

With `CALL_S` an 8-byte all-gather over eight GPUs takes 41 us; NVIDIA/nccl #1530 shows 42 us for an all-reduce over
eight RTX 4090. The step between nodes is assumed.
"""

CONTENTION = 0.3
"""The part by which kernels and a collective take longer while they run together: NCCL's kernels take multiprocessors
and memory bandwidth and wait for them, copies through the host take the latter. Of L seconds of collectives and G of
kernels alone, both then take max(G, L) + CONTENTION min(G, L). Fitted.

Published: kernels are slowed by 19 % on average and up to 40 % (arXiv:2507.03114, A100, H100 and MI250); a product
beside an all-gather falls from 80 to 47 % of an H100's peak, for it no longer fits into one wave of multiprocessors
(NVIDIA developer forum 337991).
"""


PREFETCH_HIDDEN = 0.48
"""One less the same for all-gathers and reduce-scatters, which stage 3 runs: what of a gather is gained by its running
beside a pass that takes as long. Fitted."""


class Ring(NamedTuple):
    """The path that a collective takes over all ranks."""

    ranks: int
    bytes_per_s: float
    """The rate of the slowest link, after protocol losses."""
    all_reduce_bytes_per_s: float
    """The same for an all-reduce, where it was measured apart: gloo's is three times as fast as its other
    collectives."""
    call_s: float
    """Seconds of starting a collective and passing it on from rank to rank."""
    resource: str
    """Which the slowest link is: "gpu links" or "network"."""

    def gather_s(self, size_bytes: float, calls: int) -> float:
        """All-gather (or reduce-scatter) of `size_bytes` in all, split into `calls`."""
        return self._once_around_s(size_bytes, calls, self.bytes_per_s)

    def all_reduce_s(self, size_bytes: float, calls: int) -> float:
        """All-reduce of `size_bytes`, which goes around twice."""
        return 2 * self._once_around_s(size_bytes, calls, self.all_reduce_bytes_per_s)

    def _once_around_s(self, size_bytes: float, calls: int, bytes_per_s: float) -> float:
        if self.ranks == 1:
            return 0.0
        return size_bytes * (self.ranks - 1) / self.ranks / bytes_per_s + calls * self.call_s


def link_share(gpu: Gpu) -> float:
    """The part of a GPU's link to the others of its node that NCCL reaches."""
    return HOST_MEMORY_SHARE if gpu.sends_through_host else LINK_SHARE.get(gpu.peer_link, LINK_SHARE["pcie"])


def _link_bytes_per_s(gpu: Gpu) -> float:
    """What that link carries, after protocol losses."""
    return (gpu.peer_bytes_per_s or PCIE3_BYTES_PER_S) * link_share(gpu)


def ring(cluster: Cluster) -> Ring:
    """The ring over all ranks of the cluster. Raises ClusterError for several nodes without an interconnect."""
    gpu, local, nodes = cluster.gpu, cluster.gpus_per_node, cluster.nodes
    rates: dict[str, float] = {}
    if local > 1:
        rates["gpu links"] = _link_bytes_per_s(gpu)
    if nodes > 1:
        if cluster.interconnect_bytes_per_s is None:
            raise ClusterError(
                f"nothing is known of the network between {nodes} nodes",
                why="every collective crosses it",
                fix="give the cluster interconnect_bytes_per_s",
            )
        rates["network"] = cluster.interconnect_bytes_per_s * NETWORK_SHARE
    resource = min(rates, key=lambda name: rates[name], default="gpu links")
    hops = nodes * (local - 1) * LOCAL_HOP_S + (nodes - 1) * NETWORK_HOP_S
    slowest = rates.get(resource, 1.0)
    all_reduce, measured_s = (cluster.all_reduce_bytes_per_s, cluster.collective_call_s) if nodes == 1 else (None, None)
    return Ring(
        ranks=cluster.world_size,
        bytes_per_s=slowest,
        all_reduce_bytes_per_s=all_reduce or slowest,
        resource=resource,
        call_s=CALL_S + hops if measured_s is None else measured_s,
    )


def ring_of_neighbours(cluster: Cluster, ranks: int) -> Ring:
    """The ring over so many consecutive ranks, which lie within a node where they fit into one."""
    local = cluster.gpus_per_node
    return ring(replace(cluster, nodes=max(1, ranks // local), gpus_per_node=min(ranks, local)))


def ring_of_replicas(cluster: Cluster, group: int) -> Ring:
    """The ring over one rank of each group of neighbours, which split layers or keep experts; as many rings as a group
    has ranks in a node leave it together, through the same adapters."""
    if group == 1:
        return ring(cluster)
    network, together = cluster.interconnect_bytes_per_s, min(group, cluster.gpus_per_node)
    return ring(
        replace(
            cluster,
            nodes=max(1, cluster.nodes * together // group),
            gpus_per_node=cluster.gpus_per_node // together,
            interconnect_bytes_per_s=None if network is None else network / together,
        )
    )


SCALED_TOGETHER = 8000
"""Elements that share a scale of 4 bytes in 8 bits (partition_parameters.py `CUDAQuantizer.target_group_size`; what
divides a shard is within a factor of two of it)."""


def quantized_bytes(numel: float, bits: int) -> float:
    """Bytes of so many elements in so many bits, with their scales."""
    return numel * (bits / 8 + 4 / SCALED_TOGETHER)


class QuantizedReduction(NamedTuple):
    """qgZ's way of a gradient to its owner: all-to-all in 4 bits among the L ranks of a node, of which each then sums
    up 1 / L of them, and all-to-all of that among the M ranks of the same number in all nodes.

    Through a GPU's link go V (L - 1) / L bytes, through a node's adapters V (M - 1) / M; V is all of it in 4 bits.
    """

    size_bytes: float
    """V."""
    calls: int
    """Collectives: four for each matrix. Vectors, which are reduced whole, are not counted."""
    link_bytes_per_s: float
    network_bytes_per_s: float
    call_s: float
    local: int
    nodes: int

    @property
    def seconds(self) -> float:
        """Of one reduction of all gradients."""
        within = self.size_bytes * (self.local - 1) / self.local / self.link_bytes_per_s
        between = self.size_bytes * (self.nodes - 1) / self.nodes / self.network_bytes_per_s
        return within + between + self.calls * self.call_s

    @classmethod
    def of(cls, tensors: TensorSet, cluster: Cluster, plan: Plan) -> QuantizedReduction | None:
        """That of a plan; None where gradients are reduced as they are, as DeepSpeed does on one node."""
        if not plan.zero_quantized_gradients or cluster.nodes == 1 or cluster.interconnect_bytes_per_s is None:
            return None
        matrices = len(tensors.trainable)  # adapters have no vectors
        if tensors.workload.method == "full":
            matrices = sum(count for tensor, count in tensors.model.tensor_counts if len(tensor.shape) > 1)
        return cls(
            size_bytes=quantized_bytes(tensors.trainable_numel, 4),
            calls=4 * matrices,
            link_bytes_per_s=_link_bytes_per_s(cluster.gpu),
            network_bytes_per_s=cluster.interconnect_bytes_per_s * NETWORK_SHARE,
            call_s=CALL_S + (LOCAL_HOP_S + NETWORK_HOP_S) / 2,
            local=cluster.gpus_per_node,
            nodes=cluster.nodes,
        )


class Exchange(NamedTuple):
    """The all-to-alls of one pass: of heads under Ulysses sequence parallelism, of tokens that travel to experts.

    Each of P ranks keeps 1/P of what it hands over and sends the rest: V (P - 1) / P bytes. Groups are of consecutive
    ranks, so they lie within a node where they fit into one. A group over several nodes sends what leaves a node
    through its adapters, which all its ranks share: `bytes_per_s` is then a rank's own part of them, less what stays
    within the node.
    """

    size_bytes: float
    """V, what a rank hands to the all-to-alls of all layers in one pass of a micro batch."""
    calls: int
    """Collectives. Ulysses: four all-to-alls and one all-gather of the positions in each layer. Experts: one of the
    counts, for which the host waits as long again, and two of the tokens in each layer that has experts."""
    bytes_per_s: float
    call_s: float
    resource: str
    ranks: int

    @property
    def pass_s(self) -> float:
        return self.size_bytes * (self.ranks - 1) / self.ranks / self.bytes_per_s + self.calls * self.call_s

    @classmethod
    def of(cls, model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Exchange | None:
        """Those of a plan; None without sequence parallelism and spread experts. `workload` is that of a rank.

        A router is taken to be balanced: each of EP ranks sends each of the others as many of its tokens' copies.
        """
        ranks, local = max(plan.sequence_parallel_size, plan.autoep_size), cluster.gpus_per_node
        if ranks == 1:
            return None
        tokens, calls = plan.micro_batch_size * workload.seq_len, 5 * model.num_layers
        size = tokens * sum(block.count * exchanged_bytes(block.attention, workload) for block in model.blocks)
        if plan.autoep_size > 1:
            mixtures = [(block.count, block.feed_forward) for block in model.blocks if block.feed_forward.experts]
            copies = sum(count * shape.experts_per_token for count, shape in mixtures)
            size = 2 * tokens * copies * model.hidden_size * workload.weight_bytes
            calls = 4 * sum(count for count, _ in mixtures)
        rate, resource, hop_s = _link_bytes_per_s(cluster.gpu), "gpu links", LOCAL_HOP_S
        if ranks > local and cluster.interconnect_bytes_per_s is not None:
            leaving = (ranks - local) / (ranks - 1)
            network = cluster.interconnect_bytes_per_s * NETWORK_SHARE / local / leaving
            if network < rate:
                rate, resource, hop_s = network, "network", NETWORK_HOP_S
        measured_s = cluster.collective_call_s if cluster.nodes == 1 else None
        return cls(
            size_bytes=size,
            calls=calls,
            bytes_per_s=rate,
            call_s=CALL_S + hop_s if measured_s is None else measured_s,
            resource=resource,
            ranks=ranks,
        )


PCIE3_BYTES_PER_S = 15.75e9
"""Link between GPUs where the data file knows none: PCIe 3 x16, the slowest that is still sold."""


def gathered_bytes(tensors: TensorSet, workload: Workload, *, experts_rest: bool = False) -> float:
    """Bytes of all weights as stage 3 gathers them. experts_rest: each expert is on one rank alone (AutoEP over all
    ranks), where nothing gathers it."""
    numel = tensors.trainable_numel - (tensors.spread_numel if experts_rest else 0)
    return tensors.frozen_bytes + numel * workload.weight_bytes


def travelling_bytes(tensors: TensorSet, workload: Workload, plan: Plan) -> float:
    """Bytes of all weights as they travel when stage 3 gathers them."""
    if plan.zero_quantized_weights:
        return quantized_bytes(tensors.numel, 8)
    return gathered_bytes(tensors, workload)


def gathered_shares(tensors: TensorSet, plan: Plan, world_size: int) -> tuple[float, float, float]:
    """Parts of the weights that stage 3 gathers in a forward and again in a backward pass; of the latter, the part that
    it gathers twice, because the layer's tensors were released between their recomputation and their backward pass.

    Persistent parameters are gathered in neither, and what is still whole when the loss is computed is there already
    when the backward pass comes (`gathered_parameters`).
    """
    kept = gathered_parameters(tensors, plan, world_size)
    numel = tensors.numel - (tensors.spread_numel if plan.autoep_size == world_size else 0)
    forward = backward = numel - kept.persistent - tensors.unread
    if not (tensors.trains_embedding or plan.gradient_checkpointing or tensors.tied):
        backward -= tensors.embedding  # no gradient passes through it
    backward, again = max(0, backward - kept.loss), 0.0
    if plan.gradient_checkpointing and plan.sharding == "zero":
        # Embedding and head run once. A unit of FSDP stays.
        layers = numel - tensors.unread - tensors.embedding - (0 if tensors.tied else tensors.head)
        again = _released_when_recomputed(tensors, plan) * min(backward, layers)
    return forward / numel, (backward + again) / numel, again / numel


def _released_when_recomputed(tensors: TensorSet, plan: Plan) -> float:
    """The part of a layer that is released between its recomputation and its backward pass, and gathered again.

    Let A be the elements of the layer after a tensor of t. It is needed again after 2 A elements, so it stays where
    that is within `stage3_max_reuse_distance`. It also stays where the prefetch, which runs ahead until
    `stage3_max_live_parameters` are alive, has already come to its use in the backward pass, so from t + A below that
    on (partitioned_param_coordinator.py `__params_to_release`). Gathers of dry runs agree: none of a layer of 0.86e9
    with the defaults, a quarter of one of 1.02e9, two thirds of one of 1.81e9.
    """
    reuse = plan.stage3_max_reuse_distance
    ahead = plan.stage3_max_live_parameters if plan.stage3_prefetch_bucket_size else 0
    released = after = 0
    for numel in reversed(tensors.layer_tensors):
        if numel > plan.stage3_param_persistence_threshold:
            released += numel if 2 * after >= reuse and numel + after >= ahead else 0
            after += numel
    return released / after if after else 0.0


def weights_on_nvme(tensors: TensorSet, plan: Plan, world_size: int) -> float:
    """The part of the weights that is read from NVMe: what was trained stays in host memory up to `param_max_in_cpu`
    elements of a rank, and so does a tensor whose shard is small (partitioned_param_swapper.py)."""
    in_memory = not tensors.frozen and plan.param_max_in_cpu * world_size >= tensors.trainable_numel
    if plan.offload_param != "nvme" or in_memory:
        return 0.0
    smallest = SWAP_MIN_BYTES // tensors.workload.weight_bytes * world_size
    return share_from(tensors, smallest)


class Calls(NamedTuple):
    """Collectives over all ranks, and over those that keep the same experts."""

    shared: int
    spread: int = 0


def gather_calls(tensors: TensorSet, plan: Plan) -> Calls:
    """Collectives of one pass of gathering: bucket by bucket, but at most one for every tensor that is not kept; two
    each where scales follow. A bucket is gathered in two where other ranks share its experts."""
    threshold = plan.stage3_param_persistence_threshold
    with_scales = 2 if plan.zero_quantized_weights else 1
    experts, larger = sum(tensors.spread), larger_than(tensors, threshold)
    size, bucket = tensors.numel, plan.stage3_prefetch_bucket_size
    shared = with_scales * _calls(size, bucket, larger - experts)
    return Calls(shared, _calls(size, bucket, experts) if experts else 0)


def reduce_calls(tensors: TensorSet, plan: Plan) -> Calls:
    """Buckets that one pass of reducing the gradients takes. At stage 3 those of experts that ranks keep are others
    than the rest's, and each is reduced where the other kind begins; at stages 1 and 2 every bucket has both."""
    numel, bucket, count = tensors.trainable_numel, plan.reduce_bucket_size, len(tensors.trainable)
    if not tensors.spread:
        return Calls(_calls(numel, bucket, count))
    if plan.zero_stage < 3:
        calls = _calls(numel, bucket, count)
        return Calls(calls, calls)
    runs, experts = sum(1 for kind, _ in groupby(tensors.spread) if kind), sum(tensors.spread)
    spread = tensors.spread_numel
    shared = max(runs + 1, _calls(numel - spread, bucket, count - experts))
    return Calls(shared, max(runs, _calls(spread, bucket, experts)))


def _calls(numel: int, bucket: int, count: int) -> int:
    return max(1, min(count, -(-numel // max(1, bucket))))
