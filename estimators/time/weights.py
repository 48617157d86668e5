"""Stage 3's gathers of weights from the ranks' shards, which may lie in host memory or on NVMe."""

from __future__ import annotations

from ..estimate import TimeTerm
from . import collective_time as collective
from . import offload_time as offload
from .step import Step
from .transfers import Transfers


def gather_forward(step: Step, transfers: Transfers) -> None:
    """What forward passes gather: the embedding first, beside nothing."""
    n, tensors = step.micro_batches, step.tensors
    trained = step.trained * step.element / collective.gathered_bytes(tensors, step.workload)
    first = tensors.embedding / tensors.numel
    # What is the head too is read once more for it.
    again = first if tensors.tied else 0.0
    _gather(step, transfers, step.gathers[0], near=1 - trained / n, reads=step.gathers[0] + n * again, first=first)


def gather_backward(step: Step, transfers: Transfers) -> None:
    """What backward passes gather. What a layer runs again with is in host memory when its backward pass comes."""
    passes = step.gathers[1]
    _gather(step, transfers, passes, near=_near_backward(step), reads=min(step.micro_batches, passes))


def _near_backward(step: Step) -> float:
    """The share of what backward passes gather that hpZ's second copy serves. Before 0.13 it served hooks of the
    backward pass alone; what those of a recomputation launch is as much as is gathered twice (deepspeed 0.10
    partition_parameters.py `all_gather_coalesced`, `forward`)."""
    if step.workload.software.deepspeed >= (0, 13) or not step.gathers[1]:
        return 1.0
    return 1 - step.gathered_twice / step.gathers[1]


def _gather(step: Step, transfers: Transfers, passes: float, *, near: float, reads: float, first: float = 0.0) -> None:
    """All weights `passes` times, of which those on NVMe are read `reads` times; with hpZ a share `near` comes from the
    second copy of the group. At least the share `first` comes before there is anything to compute."""
    plan, cluster, tensors = step.plan, step.cluster, step.tensors
    size, (calls, of_experts) = step.gathered_bytes, collective.gather_calls(tensors, plan)
    sent, apart = collective.travelling_bytes(tensors, step.workload, plan), step.spread * step.element
    if not passes:
        return
    carried, own = list[TimeTerm](), {"passes": passes, "weights": size}
    if step.spread and step.expert_ring.ranks > 1:
        carried.append(_experts(step, passes, apart, of_experts))
    if step.ring.ranks > 1:
        sent -= apart
        far = passes if plan.zero_hpz_partition_size == 1 else passes * (1 - near)
        if far:
            formula = "passes weights"
            carried.append(
                step.gather_term("weight gathering", far, sent, calls, formula, formula, passes=far, weights=sent)
            )
        if passes - far:
            carried.append(_nearby(step, passes - far, sent, calls))
    if plan.offload_param != "none":
        ranks = step.replicas if plan.zero_hpz_partition_size == 1 else plan.zero_hpz_partition_size
        per_rank, formula, own = passes * size / ranks, "passes weights / N / PCIe", own | {"N": ranks}
        # DeepSpeed's host waits for each copy before it launches what runs beside it (`_all_gather_dtype`); FSDP's goes
        # on (torch 2.13 fsdp/_flat_param.py `pre_unshard`).
        from_host = step.host_link_term("weights from host", per_rank, formula, "passes weights N", **own)
        (transfers.shown if step.zero3 else carried).append(from_host)
    transfers.carry(carried, max(first, 1 / calls))
    on_nvme = collective.weights_on_nvme(tensors, plan, step.replicas)
    if on_nvme:
        reads *= on_nvme
        seconds, formula = reads * offload.nvme_read_s(cluster, size / cluster.nodes), "passes weights / M / read"
        own = {"passes": reads, "weights": size}
        transfers.shown.append(step.term("weights from NVMe", "nvme", seconds, formula, "passes weights M read", **own))


def _experts(step: Step, passes: float, size: float, calls: int) -> TimeTerm:
    """What ranks that keep the same experts gather of them."""
    return step.gather_term(
        "experts gathered",
        passes,
        size,
        calls,
        "passes w experts",
        "passes w experts",
        among=step.expert_ring,
        passes=passes,
        experts=step.spread,
    )


def _nearby(step: Step, passes: float, size: float, calls: int) -> TimeTerm:
    """What comes from the second copy that neighbours keep."""
    group = step.plan.zero_hpz_partition_size
    ring = collective.ring_of_neighbours(step.cluster, group)
    return step.term(
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
