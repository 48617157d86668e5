"""Transfers over the links during a pass (gradients, gathered weights, activations), and the share that the pass
hides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..estimate import TimeTerm
from . import collective_time as collective
from . import offload_time as offload
from .memory_bound import (
    COPIED_PASSES,
    FSDP_COPIED_PASSES,
    QUANTIZED_GRADIENT_BYTES,
    RECAST_FP32_BYTES,
    SUMMED_PASSES,
    reduced_passes,
)
from .step import Step


@dataclass(slots=True)
class Transfers:
    """Transfers during one kind of pass, all micro batches together."""

    exposed: list[TimeTerm] = field(default_factory=list)
    """Transfers that nothing hides."""
    overlappable: list[TimeTerm] = field(default_factory=list)
    """Transfers that the pass may hide, each in the same proportion."""
    unoverlapped_s: float = 0.0
    """The part of `overlappable` that no pass overlaps: the last reduction, the first gather."""
    fill_share: float = 0.0
    """Share of the pass before the first reduction, in which its bucket fills."""

    def add_overlappable(self, terms: Iterable[TimeTerm], unoverlapped: float) -> None:
        """Add transfers that the pass may hide, without the share `unoverlapped`."""
        terms = tuple(terms)
        self.overlappable += terms
        self.unoverlapped_s += unoverlapped * sum(term.seconds for term in terms)

    def terms(self, pass_s: float, *, hidden_share: float, idle_s: float = 0.0) -> list[TimeTerm]:
        """Return the terms of transfers that the pass does not hide. hidden_share: share of the concurrent transfers
        that it hides. idle_s: seconds of the pass in which the GPU waits for the host."""
        total = sum(term.seconds for term in self.overlappable)
        if not total or not hidden_share:
            return self.exposed + self.overlappable
        # While the GPU waits for the host, even transfers that nothing overlaps are hidden.
        hidden = hidden_share * min(total - self.unoverlapped_s, pass_s * (1 - self.fill_share)) + min(
            self.unoverlapped_s, idle_s
        )
        hidden /= total
        return self.exposed + [
            term._replace(seconds=term.seconds * (1 - hidden), hidden_s=term.seconds * hidden)
            for term in self.overlappable
        ]


def gradient_copies(step: Step) -> float:
    """Return the reads and writes of a gradient on its way to the reduction and back."""
    if step.replicas == 1:
        return 0
    if step.quantized is not None:
        return (QUANTIZED_GRADIENT_BYTES + step.recast_bytes) / step.element_bytes
    passes: float = COPIED_PASSES if step.engine else FSDP_COPIED_PASSES
    if step.zero3:
        passes = reduced_passes(step.tensors, step.plan.reduce_bucket_size, step.replicas)
    if _reduced_element(step) > step.element_bytes:
        passes += RECAST_FP32_BYTES / step.element_bytes
    return passes


def gradient_copies_s(step: Step, copied: float) -> float:
    """Return the seconds of gradient copies, with the sums over micro batches. From stage 2 on, a rank sums up only its
    own part."""
    summed = step.trained_per_rank if step.plan.zero_stage >= 2 else step.trained
    width, n = step.element_bytes, step.micro_batches
    held = step.plan.accumulated_bytes(width)
    moved = width * copied * step.reductions * step.trained + held * SUMMED_PASSES * (n - 1) * summed
    if held > width:
        # Each micro batch's part is cast, and stage 2 adds the first one too.
        moved += ((width + held) * n + held * SUMMED_PASSES * (step.plan.zero_stage == 2)) * summed
    return moved / step.values["W"]


def _reduced_element(step: Step) -> int:
    """Return the bytes of an element during its reduction. ZeRO 1 and 2 cast it under sequence parallelism (deepspeed
    0.19.8 stage_1_and_2.py `allreduce_bucket`)."""
    return step.plan.reduced_bytes(step.workload.precision) or step.element_bytes


def last_reduction_share(step: Step) -> float:
    """Return the share of the gradients reduced after the backward pass: the last bucket, with the embedding."""
    embedding = step.tensors.embedding if step.tensors.trains_embedding else 0
    return max(1 / step.reduce_calls.shared, embedding / max(1, step.trained))


def gradient_reduction(step: Step) -> TimeTerm:
    times, calls = step.reductions, step.reduce_calls.shared
    if step.quantized is not None:
        return _quantized_reduction(step, step.quantized)
    shared = step.trained - step.expert_numel
    element = _reduced_element(step)
    size = shared * element
    if step.plan.zero_stage == 3:
        return step.ring_term("gradient reduction", times, size, calls, "n w Pt", n=times, Pt=shared)
    return step.ring_term(
        "gradient reduction", times, size, calls, "reductions w Pt", all_reduces=True, w=element, Pt=shared
    )


def reduction_between_groups(step: Step) -> TimeTerm:
    """Return the term of reducing a rank's part of the gradients over FSDP's groups (torch 2.13
    fsdp/_runtime_utils.py `_reduce_grad`, fsdp/_fully_shard/_fsdp_collectives.py `foreach_reduce`)."""
    ring, times = collective.replica_ring(step.cluster, step.shards), step.reductions
    size, calls = step.trained_per_rank * step.element_bytes, step.reduce_calls.shared
    name = "gradient reduction between groups"
    return step.ring_term(name, times, size, calls, "reductions w Pr", all_reduces=True, among=ring)


def _quantized_reduction(step: Step, quantized: collective.QuantizedReduction) -> TimeTerm:
    times = step.reductions
    return step.term(
        "gradient reduction",
        "network",
        times * quantized.seconds,
        "reductions sent ((G - 1) / G / intra_node_link + (M - 1) / M / link) + calls t",
        sent=quantized.size_bytes,
        G=quantized.local,
        intra_node_link=quantized.link_bytes_per_s,
        link=quantized.network_bytes_per_s,
        calls=times * quantized.calls,
        t=quantized.call_s,
    )


def expert_gradient_reduction(step: Step) -> TimeTerm:
    """Return the term of reducing experts' gradients over the ranks that keep the same experts."""
    ring, times, calls = step.expert_ring, step.reductions, step.reduce_calls.experts
    size = step.expert_numel * step.element_bytes
    name = "gradient reduction of experts"
    if step.zero3:
        formula = "n w experts"
        return step.ring_term(name, times, size, calls, formula, among=ring, n=times, experts=step.expert_numel)
    formula = "reductions w experts"
    return step.ring_term(name, times, size, calls, formula, all_reduces=True, among=ring, experts=step.expert_numel)


def gradients_to_host(step: Step) -> TimeTerm:
    plan, n, w, master = step.plan, step.micro_batches, step.element_bytes, step.plan.master_bytes
    if plan.zero_stage == 3:
        return _gradient_shards_to_host(step)
    per_parameter, formula = master, "m Pt min(1, Pr / bucket) / PCIe"
    if plan.zero_stage == 2 and n > 1 and plan.accumulated_bytes(w) == w:
        per_parameter, formula = master + w * (2 * n - 1), "(m + w (2 n - 1)) Pt min(1, Pr / bucket) / PCIe"
    bucket = min(plan.reduce_bucket_size, step.trained)
    alone = min(1.0, step.trained_per_rank / bucket)
    in_turn = per_parameter * step.trained * alone
    seconds = offload.host_link_s(step.cluster, in_turn, pinned=plan.pin_memory, alone=alone)
    term = step.term("gradients to host", "pcie", seconds, formula, PCIe=in_turn / seconds, bucket=bucket)
    # The host handles one gradient while the previous one is copied.
    handled_s = step.host.touched(step.replicas) * step.costs.offloaded_s
    if handled_s <= seconds:
        return term
    return step.term(term.name, "launch", handled_s, "what the GPU waits for")


def _gradient_shards_to_host(step: Step) -> TimeTerm:
    """Return the term of stage 3, whose ranks copy their shards at the same time."""
    plan, n, w, master = step.plan, step.micro_batches, step.element_bytes, step.plan.master_bytes
    w = plan.accumulated_bytes(w)
    name, accumulated = "gradients to host", 2 * w * n * step.trained_per_rank
    hosted = " hosted" if step.gpu_stepped else ""
    if not offload.casts_gradients_on_host(step.workload, plan) or w == master:
        size = accumulated + master * step.host_share * step.trained_per_rank
        return step.host_link_term(name, size, f"(m{hosted} + 2 w n) Pr / PCIe", w=w, hosted=step.host_share)
    copied_s, inputs = step.new_memory_copy(w)
    rate = offload.cpu_step_bytes_per_s(step.cluster)
    cast_s = (w + master) * step.host_share * step.trained_per_node / rate
    formula = f"2 w n Pr / PCIe + w{hosted} Pr (1 / pageable + 1 / new) + (w + m){hosted} Pn / host"
    term = step.host_link_term(name, accumulated, formula, host=rate, **inputs)
    return term._replace(seconds=term.seconds + copied_s + cast_s)


def exchanges(step: Step) -> list[TimeTerm]:
    exchange = collective.Exchange.from_plan(step.model, step.workload, step.cluster, step.plan)
    if exchange is None:
        return []
    # Ulysses and AutoEP exchange again in the recomputation.
    passes = 3 if step.plan.gradient_checkpointing else 2
    what = "tokens" if step.expert_numel else "heads"
    return [
        step.term(
            f"all-to-all of {what}",
            exchange.resource,
            passes * step.micro_batches * exchange.pass_s,
            f"{passes} n ({what} (P - 1) / P / link + calls t)",
            **{what: exchange.size_bytes},
            P=exchange.ranks,
            link=exchange.bytes_per_s,
            calls=exchange.calls,
            t=exchange.call_s,
        )
    ]


def split_layers(step: Step) -> list[TimeTerm]:
    """Return the terms of all-reduces of the activations of split layers (AutoTP), in all passes.

    Forward: the results of attention and feed-forward. Recomputation: the result of attention.
    Backward: the input's gradient of each layer split by columns (queries, keys, values, gate, up). An untied head
    gathers its logits, and its input's gradient is reduced. Source: deepspeed 0.19.8 module_inject/layers.py
    RowParallel, ColumnParallel, GatherFromTensorParallelRegion.
    """
    plan, model, n = step.plan, step.model, step.micro_batches
    if plan.autotp_size == 1:
        return []
    ring = collective.neighbour_ring(step.cluster, plan.autotp_size)
    # Non-reentrant recomputation stops before the feed-forward's all-reduce, whose result no derivative reads.
    recomputed = (2 if step.workload.software.reentrant else 1) if plan.gradient_checkpointing else 0
    backward = sum(block.count * (4 + block.feed_forward.gated) for block in model.blocks)
    reduced = (2 + recomputed) * model.num_layers + backward + (not model.tied)
    size = step.element_bytes * plan.micro_batch_size * step.workload.seq_len * model.hidden_size
    terms = [
        step.term(
            "all-reduces of split layers",
            ring.resource,
            n * reduced * ring.all_reduce_s(size, 1),
            "2 calls (hidden (T - 1) / T / link + t)",
            hidden=size,
            T=plan.autotp_size,
            link=ring.all_reduce_bytes_per_s,
            calls=n * reduced,
            t=ring.call_s,
        )
    ]
    if not model.tied:
        logits = step.element_bytes * plan.micro_batch_size * step.workload.seq_len * model.vocab_size
        terms.append(
            step.term(
                "logits gathered",
                ring.resource,
                n * ring.gather_s(logits, 1),
                "n (logits (T - 1) / T / link + t)",
                logits=logits,
                T=plan.autotp_size,
                link=ring.bytes_per_s,
                t=ring.call_s,
            )
        )
    return terms


def layer_inputs(step: Step, name: str) -> list[TimeTerm]:
    """Return the terms of copying checkpointed layer inputs, in the stream that computes (transformers, `offload`)."""
    if not step.plan.cpu_checkpointing:
        return []
    n, model = step.micro_batches, step.model
    elements = sum(
        block.count * model.stream_len(block, step.workload.seq_len) * model.activation_width(block)
        for block in model.blocks
    )
    kept = step.element_bytes * step.plan.micro_batch_size * elements
    seconds = offload.host_link_s(step.cluster, n * kept, pinned=step.workload.software.pinned_inputs)
    return [step.term(name, "pcie", seconds, "n inputs / PCIe", inputs=kept, PCIe=n * kept / seconds)]


def gather_forward(step: Step, transfers: Transfers) -> None:
    """Add the gathers of forward passes. The embedding is gathered first, without overlap."""
    n, tensors = step.micro_batches, step.tensors
    # Only weights that the step has changed must come from all ranks, in the first of n micro batches.
    trained = step.trained * step.element_bytes / collective.gathered_bytes(tensors, step.workload)
    first = tensors.embedding / tensors.numel
    # A tied embedding is read again for the head.
    for_head = first if tensors.tied else 0.0
    _gather(
        step,
        transfers,
        step.gathers[0],
        second_copy_share=1 - trained / n,
        reads=step.gathers[0] + n * for_head,
        first=first,
        of="forward passes",
    )


def gather_backward(step: Step, transfers: Transfers) -> None:
    """Add the gathers of backward passes. Weights read for a layer's recomputation are then still in host memory."""
    passes = step.gathers[1]
    reads = min(step.micro_batches, passes)
    _gather(step, transfers, passes, second_copy_share=_second_copy_share(step), reads=reads, of="backward passes")


def _second_copy_share(step: Step) -> float:
    """Return the share of a backward pass's gathers that read hpZ's second copy. Before 0.13 only hooks of the backward
    pass read it, not those of a recomputation (deepspeed 0.10 partition_parameters.py `all_gather_coalesced`,
    `forward`)."""
    if step.workload.software.deepspeed >= (0, 13) or not step.gathers[1]:
        return 1.0
    return 1 - step.repeated_gathers / step.gathers[1]


def _gather(
    step: Step,
    transfers: Transfers,
    passes: float,
    *,
    second_copy_share: float,
    reads: float,
    first: float = 0.0,
    of: str,
) -> None:
    """Add `passes` gathers of all weights and `reads` reads from NVMe. second_copy_share: share that reads hpZ's second
    copy. first: share that is gathered before any computation. of: the passes."""
    plan, tensors = step.plan, step.tensors
    size = step.gathered_bytes
    calls, expert_calls = collective.gather_calls(tensors, plan)
    sent_bytes = collective.sent_bytes(tensors, step.workload, plan)
    expert_bytes = step.expert_numel * step.element_bytes
    if not passes:
        return
    overlappable, inputs = list[TimeTerm](), {"passes": passes, "weights": size}
    if step.expert_numel and step.expert_ring.ranks > 1:
        overlappable.append(
            step.ring_term(
                "experts gathered",
                passes,
                expert_bytes,
                expert_calls,
                "passes w experts",
                among=step.expert_ring,
                passes=passes,
                experts=step.expert_numel,
            )
        )
    if step.ring.ranks > 1:
        sent_bytes -= expert_bytes
        from_all = passes if plan.zero_hpz_partition_size == 1 else passes * (1 - second_copy_share)
        if from_all:
            name, formula = "weight gathering", "passes weights"
            overlappable.append(
                step.ring_term(name, from_all, sent_bytes, calls, formula, passes=from_all, weights=sent_bytes)
            )
        if passes - from_all:
            overlappable.append(_group_gathering(step, passes - from_all, sent_bytes, calls))
    if plan.offload_param != "none":
        ranks = step.replicas if plan.zero_hpz_partition_size == 1 else plan.zero_hpz_partition_size
        # Every rank copies its own shard to the GPU and gathers the rest from the others.
        per_rank, formula = passes * size / ranks, "passes weights / N / PCIe"
        inputs = {"passes": passes, "weights": size, "N": ranks}
        # DeepSpeed's host waits for each copy before it launches concurrent work (`_all_gather_dtype`); FSDP's does
        # not (torch 2.13 fsdp/_flat_param.py `pre_unshard`).
        from_host = step.host_link_term("weights from host", per_rank, formula, **inputs)
        (transfers.exposed if step.zero3 else overlappable).append(from_host._replace(passes=of))
    # Nothing computes while the first bucket is gathered.
    transfers.add_overlappable([each._replace(passes=of) for each in overlappable], max(first, 1 / calls))
    on_nvme = collective.weights_on_nvme(tensors, plan, step.replicas)
    if on_nvme:
        reads *= on_nvme
        seconds, formula = reads * (size / step.cluster.nodes / step.values["read"]), "passes weights / M / read"
        inputs = {"passes": reads, "weights": size}
        from_nvme = step.term("weights from NVMe", "nvme", seconds, formula, **inputs)
        transfers.exposed.append(from_nvme._replace(passes=of))


def _group_gathering(step: Step, passes: float, size: float, calls: int) -> TimeTerm:
    group = step.plan.zero_hpz_partition_size
    ring = collective.neighbour_ring(step.cluster, group)
    return step.term(
        "weight gathering nearby",
        ring.resource,
        passes * ring.gather_s(size, calls),
        "passes weights (h - 1) / h / link + calls t",
        passes=passes,
        weights=size,
        h=group,
        link=ring.bytes_per_s,
        calls=passes * calls,
        t=ring.call_s,
    )
