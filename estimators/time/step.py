"""Sizes, rings and symbols of one plan, from which the terms of a step are computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from ..estimate import COMMON_SYMBOLS, TimeTerm
from ..hardware import Cluster, nvme_read_bytes_per_s, nvme_write_bytes_per_s
from ..memory.trainable import groups_on_gpu, shard_tensors, tensor_set
from ..models.model_shape import ModelShape
from ..parameter_groups import has_decay_groups
from ..plan import Plan
from ..workload import Workload
from . import collective_time as collective
from . import offload_time as offload
from .host_costs import host_costs
from .host_time import host_work
from .memory_bound import RECAST_BYTES
from .roofline import memory_rate, product_rate

SYMBOLS: Mapping[str, str] = {
    **COMMON_SYMBOLS,
    "n": "micro batches of a step",
    "states": "bytes of optimizer states per master weight",
    "moved": "bytes of a step per updated parameter without the states: the optimizer's kernel reads and writes master "
    "and gradient, the gradient is cast, scaled, clipped and checked, the weight written",
    "Pr": "trainable parameters that one rank updates",
    "Pn": "trainable parameters that one node's ranks update",
    "weights": "bytes of all weights as stage 3 gathers them",
    "bytes": "bytes moved by the operations of a micro batch, forward and backward",
    "passes": "times that all weights are gathered in the forward or the backward passes of a step; weights that are "
    "still on the GPU are not gathered again",
    "copies": "times that a gradient is read or written for its reduction, on average: 2 for its division by the "
    "ranks, 2 for its copy into the bucket if it fits, 2 if the bucket joins it to others or pads it",
    "reductions": "micro batches whose gradients are reduced",
    "d": "head size of queries and keys",
    "dv": "head size of values",
    "R": "operations per second of a matrix product of this size",
    "rows": "rows of the left matrix: tokens of a micro batch",
    "inner": "dimension that a matrix product sums over",
    "columns": "columns of the right matrix",
    "launched": "products that are launched as one",
    "tile": "additions that cost as much as the start of a tile",
    "pairs": "pairs of a query and a key that a head computes",
    "again": "operations of the backward pass per operation of the forward pass",
    "rate": "operations per second of the attention kernel's forward pass",
    "backward": "operations per second of the attention kernel's backward pass",
    "products": "seconds of a micro batch's repeated matrix products",
    "scores": "seconds of a micro batch's repeated attention",
    "moves": "seconds of a micro batch's repeated elementwise operations",
    "together": "times that all weights are copied once they are gathered: only weights that one call gathers with "
    "others are",
    "m": "bytes per master weight, and per gradient as the optimizer takes it",
    "hidden": "bytes of a micro batch's hidden states",
    "logits": "bytes of a micro batch's logits",
    "T": "ranks that split each layer",
    "h": "ranks that share a second copy of the weights",
    "called": "seconds in which the host launches a micro batch's forward pass",
    "called_back": "seconds in which the host launches a micro batch's backward pass, with repeated forward passes",
    "waited": "seconds that the GPU waits for the host in the passes of a step",
    "ramp": "seconds until a kernel reaches full speed",
    "W": "bytes per second of the GPU's memory",
    "link": "bytes per second of the slowest link between the ranks",
    "whole": "bytes of the weights that stage 3 keeps whole",
    "kernels": "kernels of the step that the host launches without waiting",
    "k": "seconds that a kernel occupies the GPU at least",
    "calls": "collectives of a step, for heads and tokens of a pass",
    "inputs": "bytes of all layers' inputs in a micro batch",
    "heads": "bytes of queries, keys, values and results that a rank hands to all-to-alls in a pass",
    "tokens": "bytes of tokens' copies that a rank hands to all-to-alls in a pass, to their experts and back",
    "experts": "trained parameters of the experts that a rank keeps",
    "t": "seconds to start a collective and to pass it on from rank to rank",
    "more": "forward passes of a micro batch without gradients",
    "forward": "seconds of a step's forward passes, with their communication",
    "PCIe": "bytes per second between a GPU and the host",
    "pageable": "bytes per second of a copy from or to pageable memory of the host",
    "new": "bytes per second that the host's kernel maps as new memory for a rank",
    "check": "seconds to check a gradient on the host for infinities, in memory that is mapped",
    "host": "bytes per second that the optimizer's step on the host moves, with the threads that each rank has",
    "hosted": "share of an offloaded optimizer that is stepped on the host",
    "kept": "parameters of one rank that an offloaded optimizer steps on the GPU",
    "rollouts": "generations of completions in a step",
    "prefill": "seconds to process the prompts of b completions",
    "C": "tokens of a completion",
    "token": "seconds to generate one token of b completions",
    "completions": "completions of a generation",
    "engines": "engines that generate",
    "b": "completions that an engine generates at a time",
    "gathers": "times that all weights are gathered for a generation",
    "handed": "seconds to transfer the weights to an engine",
    "scored": "seconds in which a reward model computes all completions of a generation",
    "bucket": "gradients that are reduced at a time",
    "G": "ranks of a node",
    "all": "elements of all weights",
    "sent": "bytes of all gradients in 4 bits, with their scales",
    "intra_node_link": "bytes per second of a GPU's link to the others of its node",
    "DRAM": "bytes per second of a node's memory",
    "read": "bytes per second from NVMe",
    "write": "bytes per second to NVMe",
}
_NOT_COVERED = {
    "matrix products": "GPUs that throttle or are shared",
    "elementwise operations": "fused kernels (Liger, torch.compile)",
    "weight gathering": "links shared with other jobs",
    "all-to-all of tokens": "unbalanced routers: the rank with the most tokens determines the time",
    "gradient reduction": "links shared with other jobs",
    "optimizer on the host": "cores taken by data loading",
    "rollout": "completions that end early, prefixes shared by prompts, rewards by a function",
}

_SOURCES = {
    "gpu memory": "estimators/time/memory_bound.py",
    "launch": "estimators/time/host_time.py",
    "gpu links": "estimators/time/collective_time.py",
    "network": "estimators/time/collective_time.py",
    "pcie": "estimators/time/offload_time.py",
    "cpu": "estimators/time/offload_time.py",
    "nvme": "estimators/time/offload_time.py",
    "matrix products": "estimators/time/roofline.py product_s",
    "attention": "estimators/time/roofline.py attention_rate",
    "recomputation": "estimators/time/compute_time.py",
    "reference model": "estimators/objectives.py",
    "passes without gradients": "estimators/objectives.py",
    "rollout": "estimators/time/rollout_time.py",
    "weight synchronization": "estimators/time/rollout_time.py",
    "reward model": "estimators/time/rollout_time.py",
}
"""Module of a term's formula, by the term's name, or otherwise by its resource."""


class Step:
    """One optimizer step. `model` and `workload` are those of a rank."""

    def __init__(self, model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> None:
        stage, n = plan.zero_stage, plan.gradient_accumulation_steps
        self.model = model
        self.workload = workload
        self.cluster = cluster
        self.plan = plan
        self.micro_batches = n
        self.element_bytes = workload.activation_itemsize
        """Bytes of a weight and of a gradient. Under autocast those of plain PyTorch are fp32."""
        self.replicas = cluster.world_size // plan.autotp_size
        self.shards = plan.hybrid_shard_size or self.replicas
        """Ranks that share weights, gradients and states from the stage on that shards them."""
        self.tensors = tensor_set(model, workload)
        self.ring = collective.replica_ring(cluster, plan.autotp_size)
        if plan.hybrid_shard_size:
            self.ring = collective.neighbour_ring(cluster, self.shards)
        self.engine = plan.sharding == "zero"
        self.zero3 = stage == 3 and self.engine
        # On a CPU the computing process also moves the data that ranks exchange, so nothing is hidden.
        self.hidden_share = 0.0
        if plan.overlap_comm and not cluster.gpu.is_cpu:
            self.hidden_share = collective.PREFETCH_HIDDEN if self.zero3 else 1 - collective.CONTENTION
        self.recast_bytes = RECAST_BYTES if workload.precision == "bf16" else 0
        self.host = host_work(model, workload, plan.stage3_param_persistence_threshold, fsdp=plan.is_fsdp)
        self.costs = host_costs(cluster)

        self.trained = self.tensors.trainable_numel
        self.expert_numel = 0
        """Trained parameters of a rank's experts under AutoEP."""
        self.expert_ring = self.ring
        """The ring over the ranks that keep the same experts."""
        if plan.autoep_size > 1:
            self.expert_numel = self.tensors.spread_numel
            self.expert_ring = collective.replica_ring(cluster, plan.autoep_size)
        self.trained_per_rank = self.trained / (self.shards if stage else 1)
        if stage and self.expert_numel:
            # Experts are sharded over fewer ranks, so a rank updates a larger part of them.
            self.trained_per_rank += self.expert_numel * (plan.autoep_size - 1) / self.replicas
        self.trained_per_node = self.trained_per_rank * cluster.gpus_per_node if stage else self.trained
        self.gpu_stepped = 0
        """Parameters per rank that an offloaded optimizer steps on the GPU."""
        self.host_share = 1.0
        """Share of the parameters that an offloaded optimizer steps on the host."""
        if plan.offload_optimizer_ratio < 1:
            sharded = shard_tensors(self.tensors, self.replicas, decay_groups=has_decay_groups(workload, plan))
            self.gpu_stepped = sum(groups_on_gpu(sharded, plan))
            self.host_share -= self.gpu_stepped / sharded.shard_total

        # Below stage 2 only the last micro batch reduces its gradients; the others sum them up.
        self.reductions = n if stage >= 2 else 1
        self.reduce_calls = collective.reduce_calls(self.tensors, plan)
        self.quantized = collective.QuantizedReduction.from_plan(self.tensors, cluster, plan)
        self.gathers = (0.0, 0.0)
        """Number of times that stage 3 gathers all weights in the forward and in the backward passes of a step."""
        self.repeated_gathers = 0.0
        """The part of the backward gathers that repeats a gather of the same layer's recomputation."""
        if stage == 3:
            forward, backward, repeated = collective.gathered_shares(self.tensors, plan, self.shards)
            self.gathers = n * forward, n * backward
            self.repeated_gathers = n * repeated
        experts_rest = self.expert_numel > 0 and self.expert_ring.ranks == 1
        self.gathered_bytes = collective.gathered_bytes(self.tensors, workload, experts_rest=experts_rest)
        self.values = self._symbols()

    def _symbols(self) -> dict[str, float]:
        plan, cluster = self.plan, self.cluster
        return {
            "n": self.micro_batches,
            "B": plan.micro_batch_size,
            "S": self.workload.seq_len,
            "N": self.replicas,
            "M": cluster.nodes,
            "w": self.element_bytes,
            "m": plan.master_bytes,
            "Pt": self.trained,
            "Pr": self.trained_per_rank,
            "Pn": self.trained_per_node,
            "reductions": self.reductions,
            "R": product_rate(cluster.gpu, self.workload.matmul_precision),
            "W": memory_rate(cluster.gpu),
            "PCIe": 1 / offload.host_link_s(cluster, 1, pinned=plan.pin_memory),
            "read": nvme_read_bytes_per_s(cluster),
            "write": nvme_write_bytes_per_s(cluster),
            "t": self.ring.call_s,
        }

    def term(self, name: str, resource: str, seconds: float, formula: str, **values: float) -> TimeTerm:
        """Return a term of the step. values: values of symbols that only this term has."""
        known = self.values | values
        return TimeTerm(
            name=name,
            seconds=seconds,
            resource=resource,
            formula=formula,
            # Only the symbols that the formula names are stored: they are printed with it.
            inputs=tuple([(word, known[word]) for word in _symbol_names(formula) if word in known]),
            source=_SOURCES.get(name) or _SOURCES[resource],
            symbols={} if resource == "launch" and not values else SYMBOLS,  # in words
            not_covered=_NOT_COVERED.get(name, ""),
        )

    def ring_term(
        self,
        name: str,
        times: float,
        size_bytes: float,
        calls: int,
        formula: str,
        *,
        all_reduces: bool = False,
        among: collective.Ring | None = None,
        **values: float,
    ) -> TimeTerm:
        """Return the term of `times` all-gathers or reduce-scatters of a size, or all-reduces. formula: formula of the
        bytes. among: a ring of fewer ranks; None for the ring over all."""
        ring, text = among or self.ring, f"{formula} (N - 1) / N / link + calls t"
        seconds, link = times * ring.gather_s(size_bytes, calls), ring.bytes_per_s
        if all_reduces:
            seconds, link = times * ring.all_reduce_s(size_bytes, calls), ring.all_reduce_bytes_per_s
            text, calls = f"2 {text}", 2 * calls
        values = {"N": ring.ranks, "link": link, "calls": times * calls, "t": ring.call_s, **values}
        return self.term(name, ring.resource, seconds, text, **values)

    def host_link_term(self, name: str, size_bytes: float, formula: str, **values: float) -> TimeTerm:
        seconds = offload.host_link_s(self.cluster, size_bytes, pinned=self.plan.pin_memory)
        return self.term(name, "pcie", seconds, formula, **values)

    def new_memory_copy(self, width: int) -> tuple[float, dict[str, float]]:
        """Return the seconds of a copy between the GPU and new pageable memory of `width` bytes for each parameter that
        a rank steps on the host, and the values of its formula's symbols."""
        size, new = width * self.trained_per_rank * self.host_share, offload.new_memory_bytes_per_s(self.cluster)
        one_s = offload.host_link_s(self.cluster, 1, pinned=False)
        return size * (one_s + 1 / new), {"pageable": 1 / one_s, "new": new, "hosted": self.host_share}


@lru_cache(maxsize=256)
def _symbol_names(formula: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(re.findall(r"\w+", formula)))
