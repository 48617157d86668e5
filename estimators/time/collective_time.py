"""Seconds of collectives over a cluster's links, and the collectives of each ZeRO stage.

A ring over N ranks moves V (N - 1) / N bytes through every rank for an all-gather or reduce-scatter of V bytes, and
twice that for an all-reduce. The slowest link determines the time. Over several nodes, all adapters of a node together
carry the traffic of one GPU's link within a node.

Collectives (deepspeed 0.19.8, e bytes per element, Pt trained and P all parameters):

    stage 0     all-reduce of e Pt after the last backward pass, not overlapped (runtime/engine.py
                `allreduce_gradients`, `buffered_allreduce_fallback`)
    stage 1     the same volume by buckets, in the last backward pass; all-gather of e Pt after the step
    stage 2     the all-reduce in every backward pass; all-gather as stage 1. Buckets are all-reduced although each rank
                keeps only a part: `use_multi_rank_bucket_allreduce` is on by default (stage_1_and_2.py
                `average_tensor`)
    stage 3     all-gather of the weights in every forward and again in every backward pass, except weights that stay
                gathered between them (`gathered_parameters`); reduce-scatter of e Pt in every backward pass
      hpZ       weights trained since their last gather come from all ranks (the first forward pass after a step), all
                others from the group (partition_parameters.py `all_gather_coalesced`)
      qwZ, qgZ  weights are sent in 8 bits, the scales in a second collective; gradients, on several nodes, in 4 bits,
                tensor by tensor, in two all-to-alls with their scales: among the ranks of a node, which sum up, then
                among the ranks of the same number in all nodes (coalesced_collectives.py `all_to_all_quant_reduce`)
      AutoEP    experts are gathered and reduced in separate buckets among the ranks that keep the same ones; not at all
                if one rank alone keeps them (stage3.py `reduce_independent_p_g_buckets_and_remove_grads`)

With `overlap_comm` stages 1 and 2 overlap with the backward pass from the first full bucket on. The last bucket and
the embedding, whose gradient comes last, are never hidden. Stage 3 overlaps reductions and gathers with the pass too
(partitioned_param_coordinator.py `fetch_sub_module`). The embedding is gathered first, without overlap. After the
step each tensor that stage 3 keeps whole is gathered separately (stage3.py `_post_step`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from ..hardware import Cluster, Gpu, network_bytes_per_s
from ..memory.gathered_parameters import gathered_parameters
from ..memory.partition import SWAP_MIN_BYTES
from ..memory.trainable import TensorSet, count_above, share_above
from ..models.model_shape import ModelShape
from ..plan import Plan
from ..workload import Workload
from .memory_bound import exchanged_bytes

LINK_SHARE = {"nvlink": 0.8, "infinity fabric": 0.6, "pcie": 0.35}
"""NCCL's bus bandwidth over the link's one-way rate. NVLink: NVIDIA/nccl-tests #212, 370 of 450 GB/s on H100 (NVLink
SHARP is not counted). PCIe: 0.66 to 0.80 between peers (five hosts, voipmonitor/rtx6kpro and others), 0.48 through host
memory from socket to socket, below a tenth on two hosts of L4; assumed in between. Infinity Fabric: assumed."""

HOST_MEMORY_SHARE = 0.21
"""`LINK_SHARE` of cards that send everything through host memory: the median of nine published hosts of two to eight
GeForce cards (0.07 to 0.56). There are two kinds of hosts, 0.43 to 0.56 (blog.chlc.cc/p/rtx4090-gpudirect-p2p-unlocked,
NVIDIA/nccl-tests #287, NVIDIA/nccl #1639) and 0.07 to 0.21 (NVIDIA/nccl-tests #307), so the figure is inaccurate for
both. `bench` measures it."""

NETWORK_SHARE = 0.85
"""Share of the adapters' rate: 84.8 of 100 GB/s on average over 24 A100 with four HDR adapters per node
(NVIDIA/nccl-tests #119)."""

CALL_S = 20e-6
"""Seconds to start a collective: the launch on the host and NCCL's kernel."""

LOCAL_HOP_S, NETWORK_HOP_S = 3.4e-6, 14e-6
"""Seconds of each of the N - 1 steps of a ring, over NVLink and between nodes (NCCL src/graph/tuning.cc `hwLat`: Ring,
Simple; small messages have faster protocols). With `CALL_S` an 8-byte all-gather over eight GPUs takes 44 us;
NVIDIA/nccl #1530: 42 us for an all-reduce over eight RTX 4090."""

POSTED_HOP_S = 4.5e-6
"""Seconds of a step within a node if the ring spans several nodes: three times the time of posting to the network, 1 us
on Intel's hosts and 2 us on AMD's (tuning.cc `getNetOverhead`); the mean of the two."""

CONTENTION = 0.3
"""Slowdown of kernels and a collective that run together: L seconds of collectives and G of kernels take max(G, L) +
CONTENTION min(G, L). Fitted. Published: kernels are slowed by 19 % on average and up to 40 % (arXiv:2507.03114, A100,
H100, MI250); a product during an all-gather falls from 80 to 47 % of an H100's peak (NVIDIA developer forum 337991)."""

PREFETCH_HIDDEN = 0.47
"""1 - CONTENTION for stage 3's all-gathers and reduce-scatters. Fitted."""


class Ring(NamedTuple):
    """The path that a collective takes over all ranks."""

    ranks: int
    bytes_per_s: float
    """Rate of the slowest link, after protocol losses."""
    all_reduce_bytes_per_s: float
    """Rate for an all-reduce. gloo's all-reduce is three times as fast as its other collectives."""
    call_s: float
    """Seconds to start a collective and to pass it on from rank to rank."""
    resource: str
    """Kind of the slowest link: "gpu links" or "network"."""

    def gather_s(self, size_bytes: float, calls: int) -> float:
        """Return the seconds of an all-gather or reduce-scatter of `size_bytes` in total, split into `calls`."""
        return self._ring_pass_s(size_bytes, calls, self.bytes_per_s)

    def all_reduce_s(self, size_bytes: float, calls: int) -> float:
        return 2 * self._ring_pass_s(size_bytes, calls, self.all_reduce_bytes_per_s)

    def _ring_pass_s(self, size_bytes: float, calls: int, bytes_per_s: float) -> float:
        if self.ranks == 1:
            return 0.0
        # Latencies are paid per call: a thousand small tensors cost more than one large bucket.
        return size_bytes * (self.ranks - 1) / self.ranks / bytes_per_s + calls * self.call_s


def link_share(gpu: Gpu) -> float:
    """Return the share of the rate of a GPU's link within its node that NCCL reaches."""
    return HOST_MEMORY_SHARE if gpu.sends_through_host else LINK_SHARE.get(gpu.peer_link, LINK_SHARE["pcie"])


def _joined(gpu: Gpu, ranks: int, apart: int = 1) -> Gpu:
    """Return the GPU with the link that joins `ranks` cards of a node, every `apart`-th one. More cards than bridges
    join also use PCIe; fewer use those links of a mesh that lead to one of them."""
    joins, rate = gpu.peer_joins, gpu.peer_bytes_per_s
    if joins is None or rate is None:
        return gpu
    if ranks * apart > joins:
        return replace(gpu, peer_link="pcie", peer_bytes_per_s=gpu.pcie_bytes_per_s, peer_joins=None)
    return replace(gpu, peer_bytes_per_s=rate * max(1, ranks - 1) / (joins - 1), peer_joins=None)


def _link_bytes_per_s(gpu: Gpu, ranks: int) -> float:
    """Return the rate at which a card of a node exchanges data with others, `ranks` in all."""
    gpu = _joined(gpu, ranks)
    return (gpu.peer_bytes_per_s or PCIE3_BYTES_PER_S) * link_share(gpu)


def ring(cluster: Cluster) -> Ring:
    gpu, local, nodes = cluster.gpu, cluster.gpus_per_node, cluster.nodes
    rates: dict[str, float] = {}
    if local > 1:
        rates["gpu links"] = _link_bytes_per_s(gpu, local)
    if nodes > 1:
        rates["network"] = network_bytes_per_s(cluster) * NETWORK_SHARE
    resource = min(rates, key=lambda name: rates[name], default="gpu links")
    hops = nodes * (local - 1) * (LOCAL_HOP_S if nodes == 1 else POSTED_HOP_S) + (nodes - 1) * NETWORK_HOP_S
    slowest = rates.get(resource, 1.0)
    # `bench` measures this machine alone, which says nothing about a network.
    all_reduce, measured_s = (cluster.all_reduce_bytes_per_s, cluster.collective_call_s) if nodes == 1 else (None, None)
    return Ring(
        ranks=cluster.world_size,
        bytes_per_s=slowest,
        all_reduce_bytes_per_s=all_reduce or slowest,
        resource=resource,
        call_s=CALL_S + hops if measured_s is None else measured_s,
    )


def neighbour_ring(cluster: Cluster, ranks: int) -> Ring:
    """Return the ring over consecutive ranks, within a node if they fit into one."""
    local = cluster.gpus_per_node
    return ring(replace(cluster, nodes=max(1, ranks // local), gpus_per_node=min(ranks, local)))


def replica_ring(cluster: Cluster, group: int) -> Ring:
    """Return the ring over one rank of each group of neighbours that split layers or keep experts. The rings of a
    node's ranks share its adapters."""
    if group == 1:
        return ring(cluster)
    local_group = min(group, cluster.gpus_per_node)
    local = cluster.gpus_per_node // local_group
    return ring(
        replace(
            cluster,
            gpu=_joined(cluster.gpu, local, apart=local_group),
            nodes=max(1, cluster.nodes * local_group // group),
            gpus_per_node=local,
            interconnect_bytes_per_s=network_bytes_per_s(cluster) / local_group,
        )
    )


SCALED_TOGETHER = 8000
"""Elements per 4-byte scale in 8 bits (partition_parameters.py `CUDAQuantizer.target_group_size`; the divisor of a
shard is within a factor of two of it)."""


def quantized_bytes(numel: float, bits: int) -> float:
    return numel * (bits / 8 + 4 / SCALED_TOGETHER)


class QuantizedReduction(NamedTuple):
    """qgZ's reduction: all-to-all in 4 bits among the L ranks of a node, each sums up 1 / L, then all-to-all of the
    sums among the M ranks of the same number in all nodes. V (L - 1) / L bytes go through a GPU's link, V (M - 1) /
    M through a node's adapters."""

    size_bytes: float
    """V, all gradients in 4 bits."""
    calls: int
    """Four for each matrix; vectors, which are reduced whole, are not counted."""
    link_bytes_per_s: float
    network_bytes_per_s: float
    call_s: float
    local: int
    nodes: int

    @property
    def seconds(self) -> float:
        within = self.size_bytes * (self.local - 1) / self.local / self.link_bytes_per_s
        between = self.size_bytes * (self.nodes - 1) / self.nodes / self.network_bytes_per_s
        return within + between + self.calls * self.call_s

    @classmethod
    def from_plan(cls, tensors: TensorSet, cluster: Cluster, plan: Plan) -> QuantizedReduction | None:
        """Return the reduction of a plan; None if gradients are not quantized, as on one node."""
        if not plan.zero_quantized_gradients or cluster.nodes == 1:
            return None
        matrices = len(tensors.trainable)  # adapters have no vectors
        if tensors.workload.method == "full":
            counts = tensors.model.tensor_counts
            matrices = sum(count for tensor, count in counts if len(tensor.shape) > 1 and not tensor.frozen)
        return cls(
            size_bytes=quantized_bytes(tensors.trainable_numel, 4),
            calls=4 * matrices,
            link_bytes_per_s=_link_bytes_per_s(cluster.gpu, cluster.gpus_per_node),
            network_bytes_per_s=network_bytes_per_s(cluster) * NETWORK_SHARE,
            # Two of the four collectives stay within the node, two cross the network.
            call_s=CALL_S + (LOCAL_HOP_S + NETWORK_HOP_S) / 2,
            local=cluster.gpus_per_node,
            nodes=cluster.nodes,
        )


class Exchange(NamedTuple):
    """The all-to-alls of one pass: of heads under Ulysses, or of tokens that are sent to experts.

    Each of P ranks sends V (P - 1) / P bytes. Groups consist of consecutive ranks, within a node if they fit into one.
    Over several nodes all ranks of a node share its adapters: `bytes_per_s` is a rank's share of their rate divided by
    the share of its bytes that leaves the node.
    """

    size_bytes: float
    """V, a rank's input of the all-to-alls of all layers in one pass of a micro batch."""
    calls: int
    """Ulysses: four all-to-alls and one all-gather of the positions in each layer. Experts, in each layer that has
    them: an all-to-all of the counts, for which the host waits as long again, and two of the tokens."""
    bytes_per_s: float
    call_s: float
    resource: str
    ranks: int

    @property
    def pass_s(self) -> float:
        return self.size_bytes * (self.ranks - 1) / self.ranks / self.bytes_per_s + self.calls * self.call_s

    @classmethod
    def from_plan(cls, model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Exchange | None:
        """Return the exchange of a plan; None without sequence parallelism and spread experts. `workload` is that of a
        rank. Routers are assumed to be balanced."""
        ranks, local = max(plan.sequence_parallel_size, plan.autoep_size), cluster.gpus_per_node
        if ranks == 1:
            return None
        tokens, calls = plan.micro_batch_size * workload.seq_len, 5 * model.num_layers
        size = tokens * sum(block.count * exchanged_bytes(block.attention, workload) for block in model.blocks)
        if plan.autoep_size > 1:
            mixtures = [(block.count, block.feed_forward) for block in model.blocks if block.feed_forward.experts]
            copies = sum(count * shape.experts_per_token for count, shape in mixtures)
            # Sent to the experts and back.
            size = 2 * tokens * copies * model.hidden_size * workload.weight_bytes
            calls = 4 * sum(count for count, _ in mixtures)
        rate, resource, hop_s = _link_bytes_per_s(cluster.gpu, min(ranks, local)), "gpu links", LOCAL_HOP_S
        if ranks > local:
            # Of a rank's P - 1 partners only those on other nodes are reached over the network.
            leaving = (ranks - local) / (ranks - 1)
            network = network_bytes_per_s(cluster) * NETWORK_SHARE / local / leaving
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
"""PCIe 3 x16, assumed if the data file has no link between GPUs."""


def gathered_bytes(tensors: TensorSet, workload: Workload, *, experts_rest: bool = False) -> float:
    """Return the bytes of all weights that stage 3 gathers. experts_rest: whether each expert is on one rank only, and
    not gathered."""
    numel = tensors.trainable_numel - (tensors.spread_numel if experts_rest else 0)
    return tensors.frozen_bytes + numel * workload.weight_bytes


def sent_bytes(tensors: TensorSet, workload: Workload, plan: Plan) -> float:
    """Return the bytes on the links when stage 3 gathers all weights."""
    if plan.zero_quantized_weights:
        return quantized_bytes(tensors.numel, 8)
    return gathered_bytes(tensors, workload)


def gathered_shares(tensors: TensorSet, plan: Plan, world_size: int) -> tuple[float, float, float]:
    """Return the shares of the weights that stage 3 gathers in a forward pass, in a backward pass, and twice in a
    backward pass (tensors released between recomputation and backward pass). Persistent parameters are never gathered.
    Weights that are whole at the loss are not gathered again (`gathered_parameters`), unless autograd alone keeps them.
    """
    gathered = gathered_parameters(tensors, plan, world_size)
    numel = tensors.numel - (tensors.spread_numel if plan.autoep_size == world_size else 0)
    forward = numel - gathered.persistent - tensors.unread
    backward = forward - (0 if plan.gradient_checkpointing else tensors.passive)
    if not (tensors.trains_embedding or plan.gradient_checkpointing or tensors.tied):
        backward -= tensors.embedding  # no gradient passes through it
    backward, repeated = max(0, backward - gathered.available), 0.0
    if plan.gradient_checkpointing and plan.sharding == "zero":
        # Embedding and head run once. A unit of FSDP stays gathered.
        layers = numel - tensors.unread - tensors.embedding - (0 if tensors.tied else tensors.head)
        repeated = _released_when_recomputed(tensors, plan) * min(backward, layers)
    return forward / numel, (backward + repeated) / numel, repeated / numel


def _released_when_recomputed(tensors: TensorSet, plan: Plan) -> float:
    """Return the share of a layer that is released between its recomputation and its backward pass.

    A tensor of t elements, followed by A elements of the layer, is needed again after 2 A elements. It stays if that is
    within `stage3_max_reuse_distance`. It also stays if the prefetch has already reached its use in the backward pass:
    t + A < `stage3_max_live_parameters` (partitioned_param_coordinator.py `__params_to_release`). Dry runs with the
    defaults agree: none of a layer of 0.86e9, a quarter of one of 1.02e9, two thirds of one of 1.81e9 is released.
    """
    reuse = plan.stage3_max_reuse_distance
    ahead = plan.stage3_max_live_parameters if plan.stage3_prefetch_bucket_size else 0
    released = after = 0
    for numel in reversed(tensors.layer_tensors):
        if numel > plan.stage3_param_persistence_threshold:
            # The recomputation ends where the backward pass begins, so what follows a tensor is passed twice.
            released += numel if 2 * after >= reuse and numel + after >= ahead else 0
            after += numel
    return released / after if after else 0.0


def weights_on_nvme(tensors: TensorSet, plan: Plan, world_size: int) -> float:
    """Return the share of the weights that is read from NVMe. Up to `param_max_in_cpu` trained elements of a rank, and
    all tensors with a small shard, stay in host memory (partitioned_param_swapper.py)."""
    in_memory = not tensors.frozen and plan.param_max_in_cpu * world_size >= tensors.trainable_numel
    if plan.offload_param != "nvme" or in_memory:
        return 0.0
    smallest = SWAP_MIN_BYTES // tensors.workload.weight_bytes * world_size
    return share_above(tensors, smallest)


class Calls(NamedTuple):
    """Numbers of collectives over all ranks, and over the ranks that keep the same experts."""

    shared: int
    experts: int = 0


def gather_calls(tensors: TensorSet, plan: Plan) -> Calls:
    """Return the collectives of one pass of gathering: one per bucket, at most one per tensor that is not kept; twice
    as many with scales."""
    threshold = plan.stage3_param_persistence_threshold
    with_scales = 2 if plan.zero_quantized_weights else 1
    experts, larger = sum(tensors.spread), count_above(tensors, threshold)
    size, bucket = tensors.numel, plan.stage3_prefetch_bucket_size
    shared = with_scales * _calls(size, bucket, larger - experts)
    return Calls(shared, _calls(size, bucket, experts) if experts else 0)


def reduce_calls(tensors: TensorSet, plan: Plan) -> Calls:
    """Return the buckets of one pass of reducing the gradients. At stage 3 spread experts have separate buckets, each
    reduced where the other kind begins; at stages 1 and 2 every bucket has both kinds."""
    numel, bucket, count = tensors.trainable_numel, plan.reduce_bucket_size, len(tensors.trainable)
    count += tensors.split_experts if tensors.workload.method == "full" else 0
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
    # A tensor is never cut, so there are no more buckets than tensors.
    return max(1, min(count, -(-numel // max(1, bucket))))
