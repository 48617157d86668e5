"""What gradients cost on their way out of the backward pass: copies in GPU memory, reductions, copies to the host."""

from __future__ import annotations

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


def copies(step: Step) -> float:
    """Times that a gradient is read or written on its way to the reduction and back."""
    if step.replicas == 1:
        return 0
    if step.quantized is not None:
        return (QUANTIZED_GRADIENT_BYTES + step.recast) / step.element
    passes: float = COPIED_PASSES if step.engine else FSDP_COPIED_PASSES
    if step.zero3:
        passes = reduced_passes(step.tensors, step.plan, step.replicas)
    if _reduced_element(step) > step.element:
        passes += RECAST_FP32_BYTES / step.element
    return passes


def copies_s(step: Step, copied: float) -> float:
    """Those, and summing up over micro batches, where from stage 2 on a rank sums up its own part alone."""
    summed = step.trained_per_rank if step.plan.zero_stage >= 2 else step.trained
    moved = copied * step.reductions * step.trained + SUMMED_PASSES * (step.micro_batches - 1) * summed
    return step.element * moved / step.values["W"]


def _reduced_element(step: Step) -> int:
    """Bytes of an element while it is reduced: ZeRO 1 and 2 cast it under sequence parallelism (deepspeed 0.19.8
    stage_1_and_2.py `allreduce_bucket`)."""
    return 4 if step.plan.sequence_parallel_size > 1 and step.plan.zero_stage in (1, 2) else step.element


def reduced_last(step: Step) -> float:
    """The share of the gradients that is reduced when the backward pass is over: the last bucket, in which the
    embedding is, whose gradient comes last."""
    embedding = step.tensors.embedding if step.tensors.trains_embedding else 0
    return max(1 / step.reduce_calls.shared, embedding / max(1, step.trained))


def reduction(step: Step) -> TimeTerm:
    """Of what all ranks keep or share."""
    ring, times, calls = step.ring, step.reductions, step.reduce_calls.shared
    if step.quantized is not None:
        return _quantized_reduction(step, step.quantized)
    shared, element = step.trained - step.spread, _reduced_element(step)
    size = shared * element
    if step.plan.zero_stage == 3:
        return step.gather_term("gradient reduction", times, size, calls, "n w Pt", "n w Pt", n=times, Pt=shared)
    return step.term(
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


def _quantized_reduction(step: Step, quantized: collective.QuantizedReduction) -> TimeTerm:
    times = step.reductions
    return step.term(
        "gradient reduction",
        "network",
        times * quantized.seconds,
        "reductions sent ((G - 1) / G / near + (M - 1) / M / link) + calls t",
        "reductions sent G M near link calls t",
        sent=quantized.size_bytes,
        G=quantized.local,
        near=quantized.link_bytes_per_s,
        link=quantized.network_bytes_per_s,
        calls=times * quantized.calls,
        t=quantized.call_s,
    )


def reduction_of_experts(step: Step) -> TimeTerm:
    """Over the ranks that keep the same experts."""
    ring, times, size = step.expert_ring, step.reductions, step.spread * step.element
    name, calls, own = "gradient reduction of experts", step.reduce_calls.spread, {"experts": step.spread}
    if step.zero3:
        return step.gather_term(name, times, size, calls, "n w experts", "n w experts", among=ring, n=times, **own)
    return step.term(
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


def to_host(step: Step) -> TimeTerm:
    """Gradients of an offloaded optimizer."""
    plan, n, w, master = step.plan, step.micro_batches, step.element, step.plan.master_bytes
    if plan.zero_stage == 3:
        per_rank = (master * step.hosted + 2 * w * n) * step.trained_per_rank
        formula, symbols = ("(m hosted + 2 w n)", "m w n Pr hosted") if step.kept else ("(m + 2 w n)", "m w n Pr")
        own = {"hosted": step.hosted} if step.kept else {}
        return step.host_link_term("gradients to host", per_rank, f"{formula} Pr / PCIe", symbols, **own)
    per_parameter, formula = master, "m Pt min(1, Pr / bucket) / PCIe"
    if plan.zero_stage == 2 and n > 1:
        per_parameter, formula = master + w * (2 * n - 1), "(m + w (2 n - 1)) Pt min(1, Pr / bucket) / PCIe"
    bucket = min(plan.reduce_bucket_size, step.trained)
    alone = min(1.0, step.trained_per_rank / bucket)
    in_turn = per_parameter * step.trained * alone
    seconds = offload.host_link_s(step.cluster, in_turn, pinned=plan.pin_memory, alone=alone)
    own = {"PCIe": in_turn / seconds, "bucket": bucket}
    return step.term("gradients to host", "pcie", seconds, formula, "m w n Pt Pr bucket PCIe", **own)
