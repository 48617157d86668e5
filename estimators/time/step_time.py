"""The time of one optimizer step, term by term.

    step = n micro batches of (forward, backward) + optimizer
    pass = max(GPU computes, host launches) + what the links carry and the pass does not hide

Micro batches differ: stages 0 and 1 reduce gradients only in the last one. Data loading is assumed to be free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..estimate import TimeEstimate, TimeTerm
from ..hardware.cluster import Cluster
from ..hardware.host_defaults import HOST_CORE, assumed_of_host
from ..memory.activations.layer_variants import with_offered_attention
from ..memory.trainable import groups_on_gpu, shard_tensors, tensor_set
from ..models.model_shape import ModelShape
from ..models.rank_part import of_rank
from ..optimizers import optimizer
from ..plan import Plan
from ..workload import Workload
from . import collective_time as collective
from . import offload_time as offload
from .collective_time import CONTENTION, PREFETCH_HIDDEN
from .compute_time import compute_time
from .host_costs import host_costs
from .host_time import FSDP_SERIAL, ZERO3_SERIAL, host_work
from .memory_bound import (
    BF16_MASTERS_SAVE_BYTES,
    COPIED_PASSES,
    DEQUANTIZED_BYTES,
    FSDP_COPIED_PASSES,
    GATHERED_PASSES,
    KEPT_BF16_STEP_BYTES,
    KEPT_STEP_BYTES,
    LOOP_PASSES_BYTES,
    OPTIMIZER_PASSES_BYTES,
    QUANTIZED_GRADIENT_BYTES,
    RECAST_BYTES,
    RECAST_FP32_BYTES,
    STEPPED_BYTES,
    SUMMED_PASSES,
    put_together,
    reduced_passes,
)
from .roofline import KERNEL_S, memory_rate, product_rate
from .speed_spread import speed_spread
from .terms import time_term


def estimate_time(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> TimeEstimate:
    """Seconds of one optimizer step of `plan`, by component.

    Formulas and sources stand in `compute_time`, `memory_bound`, `host_time`, `collective_time` and `offload_time`;
    this adds them up. Expensive parts are kept per (model, workload, GPU, micro batch), so a call in a search takes
    tens of microseconds.

    Not covered: data loading, evaluation, checkpoints and logging; pipeline parallelism; GPUs that throttle
    or are shared.
    """
    workload = with_offered_attention(model, workload).of_rank(plan.sequence_parallel_size)
    step = _Step(of_rank(model, plan), workload, cluster, plan)
    return TimeEstimate(
        terms=tuple(term for term in step.terms() if term.seconds or term.hidden_s),
        tokens_per_step=(plan.micro_batch_size * plan.gradient_accumulation_steps * step.replicas * workload.seq_len),
        spread=speed_spread(cluster, plan),
    )


def estimate_forward_s(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> float:
    """Seconds of the forward passes alone of one step's samples, as an evaluation has them: no gradients, no step."""
    workload = with_offered_attention(model, workload).of_rank(plan.sequence_parallel_size)
    return _Step(of_rank(model, plan), workload, cluster, plan).evaluation_s()


STEP_REDUCTIONS = (0, 2, 2, 1)
"""All-reduces of one number in a step, by stage: whether a rank overflowed, and the gradient's norm, which stage 3 puts
together otherwise."""

LAUNCHES_MATTER = 0.05
"""Part of a step that waits for the host, from which on the speed of its cores is told as assumed."""


def assumptions(cluster: Cluster, time: TimeEstimate | None = None) -> tuple[str, ...]:
    """What the time rests on besides what was asked, one phrase each; `time` is that of the answer, if there is one."""
    core: tuple[str, ...] = ()
    if time is not None and cluster.host_score_s is None:
        launches = sum(term.seconds for term in time.terms if term.resource == "launch")
        core = (HOST_CORE,) if launches >= LAUNCHES_MATTER * time.step_s else ()
    return (*cluster.assumptions, *assumed_of_host(cluster), *core, "data loading that keeps up")


def _together(gpu_s: float, host_s: float, serial: float, after_s: float = 0.0) -> float:
    """The host launches ahead of the GPU, so the slower one counts, and of the other the part that is `serial`. What
    the GPU does for `after_s` at the end comes after all that the host launched before."""
    return max(gpu_s, host_s + after_s) + serial * min(gpu_s - after_s, host_s)


@dataclass(slots=True)
class _Transfers:
    """What the links carry beside one kind of pass, all micro batches together."""

    shown: list[TimeTerm] = field(default_factory=list)
    """What nothing hides."""
    carried: list[TimeTerm] = field(default_factory=list)
    """What the pass may hide, all of it in `seconds`; each in the same proportion."""
    alone_s: float = 0.0
    """Of what is carried, what has no pass beside it: the last reduction, and the first gather."""
    before: float = 0.0
    """The share of the pass that is over when the first reduction begins: its bucket fills."""

    def carry(self, terms: Iterable[TimeTerm], alone: float) -> None:
        """Adds what the pass may hide but for the share `alone`."""
        terms = tuple(terms)
        self.carried += terms
        self.alone_s += alone * sum(term.seconds for term in terms)

    def terms(self, pass_s: float, *, hidden_share: float, idle_s: float = 0.0) -> list[TimeTerm]:
        """Terms of what the pass leaves, which hides `hidden_share` of what runs beside it.

        idle_s: of the pass, what the GPU waits for the host: as much later it may begin.
        """
        total = sum(term.seconds for term in self.carried)
        if not total or not hidden_share:
            return self.shown + self.carried
        hidden = hidden_share * min(total - self.alone_s, pass_s * (1 - self.before)) + min(self.alone_s, idle_s)
        hidden /= total
        return self.shown + [
            term._replace(seconds=term.seconds * (1 - hidden), hidden_s=term.seconds * hidden) for term in self.carried
        ]


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
}
"""The module with the formula of a term, by the term's name or else by what it keeps busy."""


class _Step:
    """One optimizer step, put together once."""

    def __init__(self, model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> None:
        stage, n = plan.zero_stage, plan.gradient_accumulation_steps
        self.model, self.workload, self.cluster, self.plan = model, workload, cluster, plan
        self.micro_batches, self.element = n, workload.weight_bytes
        self.replicas = cluster.world_size // plan.autotp_size
        self.tensors, self.ring = tensor_set(model, workload), collective.ring_of_replicas(cluster, plan.autotp_size)
        engine = plan.sharding == "zero"
        self.zero3 = stage == 3 and engine
        # On a CPU the process that computes also moves what the ranks exchange.
        self.hidden_share = 0.0
        if plan.overlap_comm and not cluster.gpu.is_cpu:
            self.hidden_share = PREFETCH_HIDDEN if self.zero3 else 1 - CONTENTION
        self.exchange = collective.Exchange.of(model, workload, cluster, plan)
        self.compute = compute_time(model, workload, cluster.gpu, plan.micro_batch_size, plan.gradient_checkpointing)
        self.trained = self.tensors.trainable_numel
        # Of experts that are spread over ranks: trained parameters, and the ring over ranks that keep the same ones.
        self.spread, self.expert_ring = 0, self.ring
        if plan.autoep_size > 1:
            self.spread = self.tensors.spread_numel
            self.expert_ring = collective.ring_of_replicas(cluster, plan.autoep_size)
        experts_rest = self.spread > 0 and self.expert_ring.ranks == 1
        self.gathered_bytes = collective.gathered_bytes(self.tensors, workload, experts_rest=experts_rest)
        self.trained_per_rank = self.trained / (self.replicas if stage else 1)
        if stage and self.spread:
            self.trained_per_rank += self.spread * (plan.autoep_size - 1) / self.replicas
        self.trained_per_node = self.trained_per_rank * cluster.gpus_per_node if stage else self.trained

        # Of an offloaded optimizer, the parameters per rank that are stepped on the GPU, and the share of the others.
        self.kept, self.hosted = 0, 1.0
        if plan.offload_optimizer_ratio < 1:
            sharded = shard_tensors(self.tensors, self.replicas)
            self.kept = sum(groups_on_gpu(sharded, plan))
            self.hosted -= self.kept / sharded.shard_total

        # Below stage 2 only the last micro batch hands its gradients to a reduction; the others sum them up.
        self.reductions = n if stage >= 2 else 1
        self.quantized = collective.QuantizedReduction.of(self.tensors, cluster, plan)
        self.recast = RECAST_BYTES if workload.precision == "bf16" else 0
        copied: float = COPIED_PASSES if engine else FSDP_COPIED_PASSES
        if self.zero3:
            copied = reduced_passes(self.tensors, plan, self.replicas)
        if self.quantized is not None:
            copied = (QUANTIZED_GRADIENT_BYTES + self.recast) / self.element
        self.reduced_element = self.element
        if plan.sequence_parallel_size > 1 and stage in (1, 2):
            self.reduced_element = 4  # deepspeed 0.19.8 stage_1_and_2.py `allreduce_bucket`
            copied += RECAST_FP32_BYTES / self.element if self.element < 4 else 0
        self.copied = copied if self.replicas > 1 else 0
        self.reduce_calls = collective.reduce_calls(self.tensors, plan)
        # From stage 2 on a rank sums up its own part alone.
        self.summed = self.trained_per_rank if stage >= 2 else self.trained
        moved = self.element * (self.copied * self.reductions * self.trained + SUMMED_PASSES * (n - 1) * self.summed)
        self.gradient_s = moved / memory_rate(cluster.gpu)

        host, costs = (
            host_work(model, workload, plan.stage3_param_persistence_threshold, fsdp=plan.sharding == "fsdp"),
            host_costs(cluster),
        )
        forward_host = costs.micro_batch_s + host.forward_s(costs, stage)
        buckets = sum(self.reduce_calls) if self.zero3 else self.reduce_calls.shared
        self.gathers, self.gathered_twice = self._gathers()
        # Times that all weights are put together from the ranks' parts, forward and backward.
        self.together = (0.0, 0.0)
        if self.zero3 and self.ring.ranks > 1:
            parts = put_together(self.tensors, plan)
            self.together = self.gathers[0] * parts[0], self.gathers[1] * parts[1]
        forward_copies_s, backward_copies_s = map(self._gathered_copies_s, self.together, self.gathers)
        self.gathered_copies_s = forward_copies_s, backward_copies_s
        again = self.gathers[1] / self.gathers[0] if self.gathers[0] else 1.0
        backward_host = (
            self.reductions * host.backward_s(costs, stage, buckets, again)
            + (n - self.reductions) * host.backward_s(costs, stage, 0, again)
        ) / n
        if plan.gradient_checkpointing:
            backward_host += host.recompute_s(costs, stage)
        self.host_s = n * (forward_host + backward_host)
        serial = self._serial()
        copied_s = self.gathered_copies_s
        # The GPU has nothing to do until the host is through with the first micro batch's bookkeeping. While it
        # computes head and loss, the host is ahead with the backward pass.
        begins_s, after_s = (0.0, 0.0) if cluster.gpu.is_cpu else (costs.micro_batch_s, n * self.compute.after_layers_s)
        forward_s = n * self.compute.forward_s + copied_s[0]
        self.forward_s = _together(forward_s + begins_s, n * forward_host, serial, after_s)
        self.forward_idle_s = max(0.0, n * forward_host + after_s - forward_s - begins_s)
        if plan.zero_hpz_partition_size > 1 and workload.method == "full":
            # The host waits for each tensor's second copy, which the first forward pass after a step makes.
            self.forward_s += (1 - serial) * min(self.compute.forward_s, forward_host)
        backward_s = n * self.compute.backward_s + self.gradient_s + copied_s[1]
        left_host_s = max(0.0, n * backward_host - after_s)
        self.backward_s = _together(backward_s, left_host_s, serial)
        self.step_host_s, self.checks_s, self.step_kernels = 0.0, 0.0, 0
        if engine:
            # Stage 0's host is ahead with the step's bookkeeping while the GPU still computes the backward pass; at the
            # end of a pass the others wait for the last reduction.
            ahead_s = 0.0 if stage else max(0.0, backward_s - left_host_s)
            self.step_host_s = host.step_s(costs, plan, self.replicas) - min(costs.engine_step_s, ahead_s)
            self.checks_s, self.step_kernels = host.checks_s(costs, stage), host.step_kernels(plan, self.replicas)
        self.kept_whole = host.kept
        self.runs = optimizer(workload.optimizer, bf16_states=plan.bf16_optimizer_states)
        self.passes_bytes = OPTIMIZER_PASSES_BYTES[stage] if engine else LOOP_PASSES_BYTES
        if plan.bf16_master_weights_and_grads:
            self.passes_bytes -= BF16_MASTERS_SAVE_BYTES
        self.values = self._symbols()

    def _serial(self) -> float:
        """The part of the shorter of host and GPU time that does not hide behind the longer."""
        if self.cluster.gpu.is_cpu:  # it computes what it launches itself
            return 1.0
        if not self.zero3:
            return FSDP_SERIAL if self.plan.zero_stage == 3 else 0.0
        # Until 0.6 the host waited at every fetch (stage3.py `fetch_sub_module`).
        return 1.0 if self.workload.software.deepspeed < (0, 6) else ZERO3_SERIAL

    def _gathers(self) -> tuple[tuple[float, float], float]:
        """Times that stage 3 gathers all weights, in the forward passes of a step and in its backward passes; of the
        latter, those of what it has gathered for the same layer's recomputation."""
        if self.plan.zero_stage < 3:
            return (0.0, 0.0), 0.0
        forward, backward, twice = collective.gathered_shares(self.tensors, self.plan, self.replicas)
        n = self.micro_batches
        return (n * forward, n * backward), n * twice

    def _gathered_copies_s(self, together: float, gathers: float) -> float:
        """Seconds of putting together what was gathered, and of making it 16 bits again."""
        moved = GATHERED_PASSES * together * self.gathered_bytes
        if self.plan.zero_quantized_weights:
            moved += gathers * (DEQUANTIZED_BYTES + self.recast) * self.tensors.numel
        return moved / memory_rate(self.cluster.gpu)

    def _symbols(self) -> dict[str, float]:
        """The values of the symbols that several formulas share."""
        plan, cluster = self.plan, self.cluster
        return {
            "n": self.micro_batches,
            "B": plan.micro_batch_size,
            "S": self.workload.seq_len,
            "N": self.replicas,
            "M": cluster.nodes,
            "w": self.element,
            "m": plan.master_bytes,
            "Pt": self.trained,
            "Pr": self.trained_per_rank,
            "Pn": self.trained_per_node,
            "reductions": self.reductions,
            "R": product_rate(cluster.gpu, self.workload.precision),
            "W": memory_rate(cluster.gpu),
            "PCIe": 1 / offload.host_link_s(cluster, 1, pinned=plan.pin_memory),
            "read": 1 / offload.nvme_read_s(cluster, 1),
            "write": 1 / offload.nvme_write_s(cluster, 1),
            "t": self.ring.call_s,
        }

    def terms(self) -> list[TimeTerm]:
        return [*self._computing(), *self._forward_links(), *self._backward_links(), *self._optimizer()]

    def evaluation_s(self) -> float:
        """The forward passes, and what the links carry beside them. Layers' inputs stay where they are."""
        links = (term.seconds for term in self._forward_links() if term.name != "layer inputs to host")
        return self.forward_s + sum(links)

    def _term(self, name: str, resource: str, seconds: float, formula: str, symbols: str, **values: float) -> TimeTerm:
        """One term; `values` are those of its symbols that are its own."""
        shared = self.values
        return time_term(
            name=name,
            seconds=seconds,
            resource=resource,
            formula=formula,
            inputs=tuple(
                [(symbol, values[symbol] if symbol in values else shared[symbol]) for symbol in symbols.split()]
            ),
            source=_SOURCES.get(name) or _SOURCES[resource],
        )

    def _computing(self) -> list[TimeTerm]:
        n, forward, backward = self.micro_batches, self.compute.forward, self.compute.backward
        copied_s = sum(self.gathered_copies_s)
        on_gpu = n * (self.compute.forward_s + self.compute.backward_s) + self.gradient_s + copied_s
        launched = max(0.0, self.forward_s + self.backward_s - on_gpu)
        products = n * (forward.products_s + backward.products_s)
        attention = n * (forward.attention_s + backward.attention_s)
        recomputed = n * self.compute.recompute.total_s
        elementwise, loss = forward.elementwise_s + backward.elementwise_s, forward.loss_s + backward.loss_s
        moved, loss_moved = elementwise * self.values["W"], loss * self.values["W"]
        products_formula = "n sum(max(2 rows (inner + tile start) columns / R, bytes / W) + ramp)"
        attention_formula = "n L 2 B A (d + dv) pairs (1 + backward) / rate(S)"
        recompute_formula = "n (forward of every layer, up to its last product)"
        summed = "Pr" if self.plan.zero_stage >= 2 else "Pt"
        copies_formula = f"(copies reductions Pt + {SUMMED_PASSES} (n - 1) {summed}) w / W"
        launch = self._term(
            "launch overhead", "launch", launched, "host time that the GPU waits for, forward and backward apart", ""
        )
        return [
            self._term("matrix products", "gpu compute", products, products_formula, "n B S R W"),
            self._term("attention", "gpu compute", attention, attention_formula, "n B S"),
            self._term(
                "elementwise operations", "gpu memory", n * elementwise, "n bytes / W", "n bytes W", bytes=moved
            ),
            self._term(
                "loss over the vocabulary", "gpu memory", n * loss, "n bytes / W", "n bytes W", bytes=loss_moved
            ),
            self._term("recomputation", "gpu compute", recomputed, recompute_formula, "n"),
            self._term(
                "gradient copies",
                "gpu memory",
                self.gradient_s,
                copies_formula,
                "copies reductions n w Pt Pr W",
                copies=self.copied,
            ),
            self._gathered_copies(copied_s),
            launch._replace(hidden_s=max(0.0, self.host_s - launched)),
        ]

    def _gathered_copies(self, seconds: float) -> TimeTerm:
        own = {"together": sum(self.together), "weights": self.gathered_bytes}
        formula, symbols = f"{GATHERED_PASSES} together weights / W", "together weights W"
        if self.plan.zero_quantized_weights:
            dequantized = DEQUANTIZED_BYTES + self.recast
            formula = f"({GATHERED_PASSES} together weights + {dequantized} passes all) / W"
            symbols, own = f"{symbols} passes all", own | {"passes": sum(self.gathers), "all": self.tensors.numel}
        return self._term("gathered weights copied", "gpu memory", seconds, formula, symbols, **own)

    def _forward_links(self) -> list[TimeTerm]:
        transfers = _Transfers()
        if self.exchange is not None:
            transfers.shown.append(self._exchanged(self.exchange))
        if self.plan.autotp_size > 1:
            transfers.shown += self._split_layers()
        if self.plan.cpu_checkpointing:
            transfers.shown.append(self._layer_inputs("layer inputs to host"))
        if self.plan.zero_stage == 3:
            n, size = self.micro_batches, collective.gathered_bytes(self.tensors, self.workload)
            trained = self.trained * self.element / size
            # What is the head too is read once more for it.
            again = self.tensors.embedding / self.tensors.numel if self.tensors.tied else 0.0
            reads = self.gathers[0] + n * again
            first = self.tensors.embedding / self.tensors.numel
            self._gather(transfers, self.gathers[0], near=1 - trained / n, reads=reads, first=first)
        return transfers.terms(self.forward_s, hidden_share=self.hidden_share, idle_s=self.forward_idle_s)

    def _backward_links(self) -> list[TimeTerm]:
        plan, n = self.plan, self.micro_batches
        buckets = self.reduce_calls.shared
        transfers, last = _Transfers(before=0.0 if plan.zero_stage == 3 else 1 / buckets), self._reduced_last()
        if plan.cpu_checkpointing:
            transfers.shown.append(self._layer_inputs("layer inputs to GPU"))
        if plan.zero_stage == 3:
            # What a layer runs again with is in host memory when its backward pass comes.
            self._gather(transfers, self.gathers[1], near=self._near_backward(), reads=min(n, self.gathers[1]))
        if self.ring.ranks > 1:
            transfers.carry([self._reduction()], last)
        if self.spread and self.expert_ring.ranks > 1:
            transfers.carry([self._reduction_of_experts()], last)
        if plan.offload_optimizer != "none":
            # Stage 3 waits for each copy (`partition_grads`).
            to_host = self._gradients_to_host()
            if self.zero3:
                transfers.shown.append(to_host)
            else:
                transfers.carry([to_host], last)
        hidden_share = self.hidden_share if plan.zero_stage else 0.0
        return transfers.terms(self.backward_s * self.reductions / n, hidden_share=hidden_share)

    def _near_backward(self) -> float:
        """The share of what backward passes gather that hpZ's second copy serves. Before 0.13 it served hooks of the
        backward pass alone; what those of a recomputation launch is as much as is gathered twice (deepspeed 0.10
        partition_parameters.py `all_gather_coalesced`, `forward`)."""
        if self.workload.software.deepspeed >= (0, 13) or not self.gathers[1]:
            return 1.0
        return 1 - self.gathered_twice / self.gathers[1]

    def _reduced_last(self) -> float:
        """The share of the gradients that is reduced when the backward pass is over: the last bucket, in which the
        embedding is, whose gradient comes last."""
        tensors = self.tensors
        embedding = tensors.embedding if tensors.trains_embedding else 0
        return max(1 / self.reduce_calls.shared, embedding / max(1, self.trained))

    def _collective(
        self,
        name: str,
        times: float,
        size_bytes: float,
        calls: int,
        formula: str,
        symbols: str,
        *,
        among: collective.Ring | None = None,
        **values: float,
    ) -> TimeTerm:
        """`times` all-gathers or reduce-scatters of a size; `formula` is that of the bytes that go around.

        among: the ring of fewer than all ranks.
        """
        ring, formula = among or self.ring, f"{formula} (N - 1) / N / link + calls t"
        of_ring = {"link": ring.bytes_per_s, "calls": times * calls}
        if among is not None:
            of_ring |= {"N": ring.ranks, "t": ring.call_s}
        seconds, values = times * ring.gather_s(size_bytes, calls), of_ring | values
        return self._term(name, ring.resource, seconds, formula, f"{symbols} N link calls t", **values)

    def _gather(self, transfers: _Transfers, passes: float, *, near: float, reads: float, first: float = 0.0) -> None:
        """Stage 3 gathers weights from the ranks' shards, which may lie in host memory or on NVMe, `reads` times all of
        them; with hpZ a share `near` of them from the second copy of the group. At least the share `first` comes before
        there is anything to compute."""
        plan, cluster, tensors = self.plan, self.cluster, self.tensors
        size, (calls, of_experts) = self.gathered_bytes, collective.gather_calls(tensors, plan)
        sent, apart = collective.travelling_bytes(tensors, self.workload, plan), self.spread * self.element
        if not passes:
            return
        carried, own = list[TimeTerm](), {"passes": passes, "weights": size}
        if self.spread and self.expert_ring.ranks > 1:
            carried.append(self._gathered_experts(passes, apart, of_experts))
        if self.ring.ranks > 1:
            sent -= apart
            far = passes if plan.zero_hpz_partition_size == 1 else passes * (1 - near)
            if far:
                formula = "passes weights"
                carried.append(
                    self._collective("weight gathering", far, sent, calls, formula, formula, passes=far, weights=sent)
                )
            if passes - far:
                carried.append(self._gathered_nearby(passes - far, sent, calls))
        if plan.offload_param != "none":
            ranks = self.replicas if plan.zero_hpz_partition_size == 1 else plan.zero_hpz_partition_size
            per_rank, formula, own = passes * size / ranks, "passes weights / N / PCIe", own | {"N": ranks}
            # DeepSpeed's host waits for each copy before it launches what runs beside it (`_all_gather_dtype`); FSDP's
            # goes on (torch 2.13 fsdp/_flat_param.py `pre_unshard`).
            from_host = self._pcie("weights from host", per_rank, formula, "passes weights N", **own)
            (transfers.shown if self.zero3 else carried).append(from_host)
        transfers.carry(carried, max(first, 1 / calls))
        on_nvme = collective.weights_on_nvme(tensors, plan, self.replicas)
        if on_nvme:
            reads *= on_nvme
            passes, own = reads, {"passes": reads, "weights": size}
            seconds, formula = passes * offload.nvme_read_s(cluster, size / cluster.nodes), "passes weights / M / read"
            transfers.shown.append(
                self._term("weights from NVMe", "nvme", seconds, formula, "passes weights M read", **own)
            )

    def _gathered_experts(self, passes: float, size: float, calls: int) -> TimeTerm:
        """What ranks that keep the same experts gather of them."""
        return self._collective(
            "experts gathered",
            passes,
            size,
            calls,
            "passes w experts",
            "passes w experts",
            among=self.expert_ring,
            passes=passes,
            experts=self.spread,
        )

    def _gathered_nearby(self, passes: float, size: float, calls: int) -> TimeTerm:
        """What comes from the second copy that neighbours keep."""
        group = self.plan.zero_hpz_partition_size
        ring = collective.ring_of_neighbours(self.cluster, group)
        return self._term(
            "weight gathering nearby",
            ring.resource,
            passes * ring.gather_s(size, calls),
            "passes weights (h - 1) / h / link + calls t",
            "passes weights h link calls t",
            passes=passes,
            weights=size,
            h=group,
            link=ring.bytes_per_s,
            calls=passes * calls,
            t=ring.call_s,
        )

    def _exchanged(self, exchange: collective.Exchange) -> TimeTerm:
        """All-to-alls of every layer, in all passes. Attention or experts wait for them, so nothing hides them."""
        passes = 3 if self.plan.gradient_checkpointing else 2
        what = "tokens" if self.spread else "heads"
        return self._term(
            f"all-to-all of {what}",
            exchange.resource,
            passes * self.micro_batches * exchange.pass_s,
            f"{passes} n ({what} (P - 1) / P / link + calls t)",
            f"n {what} P link calls t",
            **{what: exchange.size_bytes},
            P=exchange.ranks,
            link=exchange.bytes_per_s,
            calls=exchange.calls,
            t=exchange.call_s,
        )

    def _split_layers(self) -> list[TimeTerm]:
        """All-reduces of the activations of split layers, in all passes; each is waited for, so nothing hides them.

        Forward, and again where a layer runs again, the results of attention and feed-forward (the latter's result not
        again: recomputation ends before it); backward the input's gradient of each layer that is split by columns:
        queries, keys, values, gate, up. An untied head gathers its logits, and its input's gradient is reduced.
        Source: deepspeed 0.19.8 module_inject/layers.py RowParallel, ColumnParallel, GatherFromTensorParallelRegion.
        """
        plan, model, n = self.plan, self.model, self.micro_batches
        ring = collective.ring_of_neighbours(self.cluster, plan.autotp_size)
        again = (2 if self.workload.software.reentrant else 1) if plan.gradient_checkpointing else 0
        backward = sum(block.count * (4 + block.feed_forward.gated) for block in model.blocks)
        reduced = (2 + again) * model.num_layers + backward + (not model.tied)
        size = self.element * plan.micro_batch_size * self.workload.seq_len * model.hidden_size
        terms = [
            self._term(
                "all-reduces of split layers",
                ring.resource,
                n * reduced * ring.all_reduce_s(size, 1),
                "2 calls (hidden (T - 1) / T / link + t)",
                "hidden T link calls t",
                hidden=size,
                T=plan.autotp_size,
                link=ring.all_reduce_bytes_per_s,
                calls=n * reduced,
                t=ring.call_s,
            )
        ]
        if not model.tied:
            logits = self.element * plan.micro_batch_size * self.workload.seq_len * model.vocab_size
            terms.append(
                self._term(
                    "logits gathered",
                    ring.resource,
                    n * ring.gather_s(logits, 1),
                    "n (logits (T - 1) / T / link + t)",
                    "n logits T link t",
                    logits=logits,
                    T=plan.autotp_size,
                    link=ring.bytes_per_s,
                    t=ring.call_s,
                )
            )
        return terms

    def _layer_inputs(self, name: str) -> TimeTerm:
        """What checkpointing keeps, copied by the stream that computes (transformers, `offload`): nothing hides it."""
        n, width, model = self.micro_batches, self.element, self.model
        elements = sum(
            block.count * model.stream_len(block, self.workload.seq_len) * model.stream_width(block)
            for block in model.blocks
        )
        kept = width * self.plan.micro_batch_size * elements
        seconds = offload.host_link_s(self.cluster, n * kept, pinned=self.workload.software.pinned_inputs)
        own = {"inputs": kept, "PCIe": n * kept / seconds}
        return self._term(name, "pcie", seconds, "n inputs / PCIe", "n inputs PCIe", **own)

    def _pcie(self, name: str, size_bytes: float, formula: str, symbols: str, **values: float) -> TimeTerm:
        seconds = offload.host_link_s(self.cluster, size_bytes, pinned=self.plan.pin_memory)
        return self._term(name, "pcie", seconds, formula, f"{symbols} PCIe", **values)

    def _reduction(self) -> TimeTerm:
        ring, times, element = self.ring, self.reductions, self.reduced_element
        shared = self.trained - self.spread
        size, calls = shared * element, self.reduce_calls.shared
        if self.quantized is not None:
            return self._quantized_reduction(self.quantized)
        if self.plan.zero_stage == 3:
            return self._collective("gradient reduction", times, size, calls, "n w Pt", "n w Pt", n=times, Pt=shared)
        return self._term(
            "gradient reduction",
            ring.resource,
            times * ring.all_reduce_s(size, calls),
            "2 reductions w Pt (N - 1) / N / link + calls t",
            "reductions w Pt N link calls t",
            w=element,
            Pt=shared,
            link=ring.all_reduce_bytes_per_s,
            calls=2 * times * calls,
        )

    def _quantized_reduction(self, reduction: collective.QuantizedReduction) -> TimeTerm:
        times = self.reductions
        return self._term(
            "gradient reduction",
            "network",
            times * reduction.seconds,
            "reductions sent ((G - 1) / G / near + (M - 1) / M / link) + calls t",
            "reductions sent G M near link calls t",
            sent=reduction.size_bytes,
            G=reduction.local,
            near=reduction.link_bytes_per_s,
            link=reduction.network_bytes_per_s,
            calls=times * reduction.calls,
            t=reduction.call_s,
        )

    def _reduction_of_experts(self) -> TimeTerm:
        """Over the ranks that keep the same experts."""
        ring, times, size = self.expert_ring, self.reductions, self.spread * self.element
        name, calls, own = "gradient reduction of experts", self.reduce_calls.spread, {"experts": self.spread}
        if self.zero3:
            return self._collective(name, times, size, calls, "n w experts", "n w experts", among=ring, n=times, **own)
        return self._term(
            name,
            ring.resource,
            times * ring.all_reduce_s(size, calls),
            "2 reductions w experts (N - 1) / N / link + calls t",
            "reductions w experts N link calls t",
            N=ring.ranks,
            link=ring.all_reduce_bytes_per_s,
            calls=2 * times * calls,
            t=ring.call_s,
            **own,
        )

    def _gradients_to_host(self) -> TimeTerm:
        stage, n, w, master = self.plan.zero_stage, self.micro_batches, self.element, self.plan.master_bytes
        if stage == 3:
            per_rank = (master * self.hosted + 2 * w * n) * self.trained_per_rank
            formula, symbols = ("(m hosted + 2 w n)", "m w n Pr hosted") if self.kept else ("(m + 2 w n)", "m w n Pr")
            own = {"hosted": self.hosted} if self.kept else {}
            return self._pcie("gradients to host", per_rank, f"{formula} Pr / PCIe", symbols, **own)
        per_parameter, formula = master, "m Pt min(1, Pr / bucket) / PCIe"
        if stage == 2 and n > 1:
            per_parameter, formula = master + w * (2 * n - 1), "(m + w (2 n - 1)) Pt min(1, Pr / bucket) / PCIe"
        bucket = min(self.plan.reduce_bucket_size, self.trained)
        alone = min(1.0, self.trained_per_rank / bucket)
        in_turn = per_parameter * self.trained * alone
        seconds = offload.host_link_s(self.cluster, in_turn, pinned=self.plan.pin_memory, alone=alone)
        own = {"PCIe": in_turn / seconds, "bucket": bucket}
        return self._term("gradients to host", "pcie", seconds, formula, "m w n Pt Pr bucket PCIe", **own)

    def _optimizer(self) -> list[TimeTerm]:
        plan, cluster, ring = self.plan, self.cluster, self.ring
        kind, node = self.runs, self.trained_per_node
        weights = self.element * self.trained_per_rank
        terms: list[TimeTerm] = []
        on_gpu_s = 0.0
        if plan.offload_optimizer == "none":
            kernels = 0 if cluster.gpu.is_cpu else self.step_kernels
            seconds = (self.passes_bytes + 2 * kind.state_bytes) * self.trained_per_rank / self.values["W"]
            formula = f"({self.passes_bytes:g} + 2 states) Pr / W + kernels k"
            seconds, own = seconds + kernels * KERNEL_S, {"states": kind.state_bytes, "kernels": kernels, "k": KERNEL_S}
            on_gpu_s = seconds * (1 - self._stepped_share())
            terms.append(self._term("optimizer", "gpu memory", seconds, formula, "states Pr W kernels k", **own))
        else:
            terms += self._optimizer_on_host()
            if plan.offload_param == "none":
                formula, symbols = ("w hosted Pr / PCIe", "w hosted Pr") if self.kept else ("w Pr / PCIe", "w Pr")
                own = {"hosted": self.hosted} if self.kept else {}
                terms.append(self._pcie("updated weights to GPU", weights * self.hosted, formula, symbols, **own))
            terms += self._kept_on_gpu()
        # A CPU computes what it launches itself, and the optimizer on the host waits for its own thread.
        # Stage 0 waits for every check, the others for the norm: what follows has no launches beside it.
        hidden = 0.0 if cluster.gpu.is_cpu else min(self.step_host_s - self.checks_s, on_gpu_s)
        launches = self._term("launches of the step", "launch", self.step_host_s - hidden, "what the GPU waits for", "")
        terms.append(launches._replace(hidden_s=hidden))
        if plan.offload_param != "none" and plan.offload_optimizer == "none":
            terms.append(self._pcie("updated weights to host", weights, "w Pr / PCIe", "w Pr"))
        if collective.weights_on_nvme(self.tensors, plan, self.replicas) and self.workload.method == "full":
            seconds = offload.nvme_write_s(cluster, self.element * node)
            terms.append(self._term("updated weights to NVMe", "nvme", seconds, "w Pn / write", "w Pn write"))
        if plan.zero_stage and ring.ranks > 1 and plan.sharding == "zero":
            calls = STEP_REDUCTIONS[plan.zero_stage]
            seconds, formula, own = 2 * calls * ring.call_s, "2 calls t", {"calls": calls}
            terms.append(self._term("all-reduces of a number", ring.resource, seconds, formula, "calls t", **own))
        if plan.zero_stage in (1, 2) and ring.ranks > 1:
            shared = self.trained - self.spread
            size = self.element * shared
            terms.append(self._collective("updated weights gathered", 1, size, 1, "w Pt", "w Pt", Pt=shared))
        if plan.zero_stage in (1, 2) and self.spread and self.expert_ring.ranks > 1:
            ring, size = self.expert_ring, self.element * self.spread
            own = {"experts": self.spread, "N": ring.ranks, "link": ring.bytes_per_s, "t": ring.call_s, "calls": 1}
            formula = "w experts (N - 1) / N / link + calls t"
            terms.append(
                self._term(
                    "updated experts gathered",
                    ring.resource,
                    ring.gather_s(size, 1),
                    formula,
                    "w experts N link calls t",
                    **own,
                )
            )
        if self.zero3 and ring.ranks > 1 and self.kept_whole:
            kept = self.tensors.numel * (1 - self.gathers[0] / self.micro_batches) - self.tensors.unread
            kept *= self.element
            terms.append(
                self._collective("updated weights gathered", 1, kept, self.kept_whole, "whole", "whole", whole=kept)
            )
        return terms

    def _stepped_share(self) -> float:
        """Of the bytes of a step, those of the optimizer and what follows: until the norm is known, the host has
        launched nearly all, and waits. Stage 0 waits earlier."""
        states = 2 * self.runs.state_bytes
        return (STEPPED_BYTES + states) / (self.passes_bytes + states) if self.plan.zero_stage else 0.0

    def _kept_on_gpu(self) -> list[TimeTerm]:
        """The sub-groups of an offloaded optimizer that are stepped on the GPU, one after the other and before those on
        the host; where their weights are on the host, each waits for its copy."""
        kept = self.kept
        if not kept:
            return []
        moved = KEPT_BF16_STEP_BYTES if self.plan.bf16_master_weights_and_grads else KEPT_STEP_BYTES
        seconds, formula = moved * kept / self.values["W"], f"{moved} kept / W"
        terms = [self._term("optimizer", "gpu memory", seconds, formula, "kept W", kept=kept)]
        if self.plan.offload_param != "none":
            size = self.element * kept
            terms.append(self._pcie("updated weights to host", size, "w kept / PCIe", "w kept", kept=kept))
        return terms

    def _optimizer_on_host(self) -> list[TimeTerm]:
        """The step on the host, with the optimizer's states read from and written to NVMe where they are there."""
        cluster, node, states = self.cluster, self.trained_per_node, self.runs.cpu_state_bytes or 0.0
        if not self.hosted:
            return []
        rate = offload.cpu_step_bytes_per_s(cluster)
        seconds = offload.cpu_step_bytes(states, self.plan.master_bytes) * node * self.hosted / rate
        own, symbols, formula = {"states": states, "host": rate}, "m states Pn host", "(6 m + 2 + 2 states) Pn / host"
        if self.kept:
            formula, symbols, own = f"hosted {formula}", f"{symbols} hosted", own | {"hosted": self.hosted}
        terms = [self._term("optimizer on the host", "cpu", seconds, formula, symbols, **own)]
        if self.plan.offload_optimizer == "nvme":
            seconds, formula = (
                offload.nvme_step_s(cluster, self.workload, node),
                "(8 + states) Pn (1 / read + 1 / write)",
            )
            terms.append(
                self._term("states from and to NVMe", "nvme", seconds, formula, "states Pn read write", states=states)
            )
        return terms
