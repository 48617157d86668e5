"""The time of one optimizer step, term by term.

    step = n micro batches of (forward, backward) + optimizer
    pass = max(GPU computes, host launches) + transfers that the pass does not hide

Micro batches differ: stages 0 and 1 reduce gradients only in the last one. Data loading is assumed to take no time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

from ..estimate import Estimate, Spread, TimeEstimate, TimeTerm
from ..hardware import HOST_CORE, Cluster, is_desktop, machine_assumptions, node_with_ram
from ..memory.activations.kernels import offered_attention
from ..memory.fit_probability import host_bytes_to_fit
from ..memory.plan_memory import estimate_memory
from ..models.model_shape import ModelShape
from ..models.rank_part import rank_share
from ..objectives import in_sequences, policy_passes, reference_passes
from ..optimizers import optimizer
from ..plan import Plan
from ..workload import Workload
from . import collective_time as collective
from . import offload_time as offload
from .assumed_rates import widened
from .compute_time import ProductTime, moved_bytes, product_times
from .memory_bound import (
    BF16_MASTERS_SAVE_BYTES,
    KEPT_BF16_STEP_BYTES,
    KEPT_STEP_BYTES,
    LOOP_PASSES_BYTES,
    OPTIMIZER_PASSES_BYTES,
    STEPPED_BYTES,
)
from .passes import Passes
from .rollout_time import rollout_terms
from .roofline import KERNEL_S
from .step import Step
from .transfers import (
    Transfers,
    exchanges,
    expert_gradient_reduction,
    gather_backward,
    gather_forward,
    gradient_reduction,
    gradients_to_host,
    last_reduction_share,
    layer_inputs,
    reduction_between_groups,
    split_layers,
)


def estimate_time(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> TimeEstimate:
    """Return the seconds of one optimizer step of `plan`, by component.

    Formulas and sources are in `compute_time`, `memory_bound`, `host_time`, `collective_time` and `offload_time`.
    Expensive parts are cached per (model, workload, GPU, micro batch); a call in a search takes tens of microseconds.

    Not covered: data loading, evaluation, checkpoints and logging; pipeline parallelism; GPUs that throttle or are
    shared.
    """
    step = _step(model, workload, cluster, plan)
    plan, workload, passes = step.plan, step.workload, Passes(step)
    links = _forward_links(step, passes)
    terms = [*passes.terms(), *_without_gradients(step, passes, links), *links, *_backward_links(step, passes)]
    terms += optimizer_terms(step, passes)
    return TimeEstimate(
        terms=tuple(term for term in terms if term.seconds or term.hidden_s),
        tokens_per_step=plan.micro_batch_size * plan.gradient_accumulation_steps * step.replicas * workload.seq_len,
        spread=widened(speed_spread(cluster, plan), terms, cluster),
    )


def estimate_forward_s(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> float:
    """Return the seconds of only the forward passes of one step, as in an evaluation."""
    step = _step(model, workload, cluster, plan)
    passes = Passes(step)
    return _forward_s(passes, _forward_links(step, passes))


def plan_products(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> tuple[ProductTime, ...]:
    """Return the matrix products of one micro batch on one GPU by size, without recomputed ones: times the micro
    batches they add up to the term `matrix products`."""
    return product_times(*Passes(_step(model, workload, cluster, plan)).compute_arguments)


def plan_moves(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> dict[str, float]:
    """Return the bytes that the elementwise operations of one micro batch move on one GPU, by operation: those of the
    term `elementwise operations`."""
    return moved_bytes(*Passes(_step(model, workload, cluster, plan)).compute_arguments)


def gain_of_bf16(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> float:
    """Return the speedup of bf16 over the workload's precision if the host checks that one's gradients for infinities;
    0 if it does not, or if the GPU has no bf16."""
    if workload.precision == "bf16" or not cluster.gpu.has_bf16:
        return 0.0
    if not offload.checks_overflow_on_host(workload, plan):
        return 0.0
    in_bf16 = replace(workload, precision="bf16")
    return estimate_time(model, workload, cluster, plan).step_s / estimate_time(model, in_bf16, cluster, plan).step_s


def _step(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Step:
    """Return the step of one rank's part of model and workload, on the host that is assumed for the plan's RAM."""
    if plan.offloads and is_desktop(cluster):
        need = estimate_memory(model, workload, cluster, plan).host_bytes_per_node
        cluster = node_with_ram(cluster, host_bytes_to_fit(need))
    plan = in_sequences(plan, workload)
    workload = offered_attention(model, workload.in_batch(plan.micro_batch_size))
    workload = workload.rank_share(plan.sequence_parallel_size)
    if plan.sharding == "zero":
        workload = workload.under_engine(plan.zero_stage)
    elif plan.sharding == "fsdp":
        workload = workload.under_fsdp()
    return Step(rank_share(model, plan), workload, cluster, plan)


def _forward_s(passes: Passes, links: Iterable[TimeTerm]) -> float:
    """Return the seconds of a step's forward passes. links: the terms of `_forward_links`."""
    return passes.forward_s + sum(term.seconds for term in links if term.name != _INPUTS_TO_HOST)


def _without_gradients(step: Step, passes: Passes, links: Iterable[TimeTerm]) -> list[TimeTerm]:
    """Return the terms of forward passes of reference and policy without gradients, and of generation. At stage 3 each
    pass gathers the weights again."""
    workload, forward_s = step.workload, 0.0
    if workload.rollouts is not None:
        return rollout_terms(step, _forward_s(passes, links))
    counts = {"reference model": reference_passes(workload), "passes without gradients": policy_passes(workload)}
    if any(counts.values()):
        forward_s = _forward_s(passes, links)
    return [
        step.term(name, "gpu compute", count * forward_s, "more forward", more=count, forward=forward_s)
        for name, count in counts.items()
        if count
    ]


_INPUTS_TO_HOST = "layer inputs to host"


def _forward_links(step: Step, passes: Passes) -> list[TimeTerm]:
    """Return the transfers during forward passes, and exchanges between layers in all passes."""
    transfers = Transfers()
    transfers.exposed += [*exchanges(step), *split_layers(step), *layer_inputs(step, _INPUTS_TO_HOST)]
    if step.plan.zero_stage == 3:
        gather_forward(step, transfers)
    return transfers.terms(passes.forward_s, hidden_share=step.hidden_share, idle_s=passes.forward_idle_s)


def _backward_links(step: Step, passes: Passes) -> list[TimeTerm]:
    stage, last = step.plan.zero_stage, last_reduction_share(step)
    transfers = Transfers(fill_share=0.0 if stage == 3 else 1 / step.reduce_calls.shared)
    transfers.exposed += layer_inputs(step, "layer inputs to GPU")
    if stage == 3:
        gather_backward(step, transfers)
    if step.ring.ranks > 1:
        transfers.add_overlappable([gradient_reduction(step)], last)
    if step.plan.hybrid_shard_size:
        transfers.add_overlappable([reduction_between_groups(step)], last)
    if step.expert_numel and step.expert_ring.ranks > 1:
        transfers.add_overlappable([expert_gradient_reduction(step)], last)
    if step.plan.offload_optimizer != "none":
        to_host = gradients_to_host(step)
        if step.zero3:  # stage 3 waits for each copy (`partition_grads`)
            transfers.exposed.append(to_host)
        else:
            transfers.add_overlappable([to_host], last)
    concurrent_s = passes.backward_s * step.reductions / step.micro_batches
    overlaps = stage or step.plan.sharding == "none"  # DDP overlaps, DeepSpeed's stage 0 does not
    return transfers.terms(concurrent_s, hidden_share=step.hidden_share if overlaps else 0.0)


LAUNCHES_MATTER = 0.05
"""Share of launches in a step above which the speed of the host's cores is reported as assumed."""


def assumptions(cluster: Cluster, time: TimeEstimate | None = None) -> tuple[str, ...]:
    """Return the assumptions behind the time, one phrase each."""
    core: tuple[str, ...] = ()
    if time is not None and cluster.host_score_s is None:
        launches = sum(term.seconds for term in time.terms if term.resource == "launch")
        core = (HOST_CORE,) if launches >= LAUNCHES_MATTER * time.step_s else ()
    return (*cluster.assumptions, *machine_assumptions(cluster), *core, "data loading does not slow down training")


STEP_REDUCTIONS = (0, 2, 2, 1)
"""All-reduces of one number in a step, by stage: overflow, and the gradient's norm; stage 3 has only one."""


def optimizer_terms(step: Step, passes: Passes) -> list[TimeTerm]:
    """Return the terms of the optimizer's step on the GPU, on the host and from NVMe, and of returning the weights."""
    if step.plan.offload_optimizer == "none":
        on_gpu = _gpu_update(step)
        launches = _launches(step, passes, on_gpu.seconds * (1 - _stepped_share(step)))
        return [on_gpu, launches, *_weights_moved(step), *_collectives(step)]
    stepped = [*_overflow_check(step), *_host_update(step), *_weights_to_gpu(step), *_kept_on_gpu(step)]
    return [*stepped, _launches(step, passes, 0.0), *_weights_moved(step), *_collectives(step)]


def _state_bytes(step: Step) -> float:
    return optimizer(step.workload.optimizer, bf16_states=step.plan.bf16_optimizer_states).state_bytes


def _passes_bytes(step: Step) -> float:
    """Return the bytes per trained parameter through GPU memory, without states."""
    passes = OPTIMIZER_PASSES_BYTES[step.plan.zero_stage] if step.engine else LOOP_PASSES_BYTES
    return passes - (BF16_MASTERS_SAVE_BYTES if step.plan.master_bytes == 2 else 0)


def _gpu_update(step: Step) -> TimeTerm:
    states, passes = _state_bytes(step), _passes_bytes(step)
    kernels = step.host.step_kernels(step.plan, step.replicas) if step.engine and not step.cluster.gpu.is_cpu else 0
    # States are read and written; a kernel has a minimum time even if its tensors are small.
    seconds = (passes + 2 * states) * step.trained_per_rank / step.values["W"] + kernels * KERNEL_S
    values = {"moved": passes, "states": states, "kernels": kernels, "k": KERNEL_S}
    return step.term("optimizer", "gpu memory", seconds, "(moved + 2 states) Pr / W + kernels k", **values)


def _stepped_share(step: Step) -> float:
    """Return the share of the step's bytes after the gradient's norm. By then the host has launched nearly everything,
    and waits. Stage 0 waits earlier."""
    states = 2 * _state_bytes(step)
    return (STEPPED_BYTES + states) / (_passes_bytes(step) + states) if step.plan.zero_stage else 0.0


_LAUNCHES = "host time of launching the optimizer step's operations that the GPU's work does not hide"


def _launches(step: Step, passes: Passes, on_gpu_s: float) -> TimeTerm:
    """Return the seconds that the GPU waits for the host. on_gpu_s: seconds of concurrent GPU work. A CPU computes what
    it launches, and an optimizer on the host waits for its own thread, so neither hides anything. Stage 0 waits for
    every check, the other stages for the norm."""
    host_s = checks_s = 0.0
    if step.engine:
        # Stage 0's host starts the step's bookkeeping while the GPU still computes the backward pass.
        ahead_s = min(step.costs.engine_step_s, passes.host_ahead_s)
        host_s = step.host.step_s(step.costs, step.plan, step.replicas) - ahead_s
        checks_s = step.host.checks_s(step.costs, step.plan.zero_stage)
    hidden = 0.0 if step.cluster.gpu.is_cpu else min(host_s - checks_s, on_gpu_s)
    term = step.term("launches of the step", "launch", host_s - hidden, _LAUNCHES)
    return term._replace(hidden_s=hidden)


def _overflow_check(step: Step) -> list[TimeTerm]:
    """Return the term of the check of the gradients on the host."""
    if not offload.checks_overflow_on_host(step.workload, step.plan):
        return []
    seconds = step.trained_per_rank * offload.overflow_check_s(step.cluster)
    inputs = {"check": offload.OVERFLOW_CHECK_S, "new": offload.new_memory_bytes_per_s(step.cluster)}
    formula = f"Pr (check + {offload.OVERFLOW_CHECK_BYTES} / new)"
    return [step.term("overflow check on the host", "cpu", seconds, formula, **inputs)]


def _host_update(step: Step) -> list[TimeTerm]:
    """Return the terms of the step on the host, including reads and writes of states on NVMe."""
    cluster, node = step.cluster, step.trained_per_node
    if not step.host_share:
        return []
    states = optimizer(step.workload.optimizer, bf16_states=step.plan.bf16_optimizer_states).cpu_state_bytes or 0.0
    rate = offload.cpu_step_bytes_per_s(cluster)
    casts = offload.way_of_weights(step.workload, step.plan) != "uncast"
    moved = offload.cpu_step_bytes(states, step.plan.master_bytes, casts=casts)
    seconds = moved * node * step.host_share / rate
    text = "(6 m + 2 + 2 states)" if casts else "(5 m + 2 states)"
    formula = f"{'hosted ' if step.gpu_stepped else ''}{text} Pn / host"
    inputs = {"states": states, "host": rate, "hosted": step.host_share}
    terms = [step.term("optimizer on the host", "cpu", seconds, formula, **inputs)]
    if step.plan.offload_optimizer == "nvme":
        # fp32 masters and fp32 gradients take 8 bytes, whatever the type of the weights is.
        each_way = node * (8 + states)
        seconds = each_way / step.values["read"] + each_way / step.values["write"]
        formula = "(8 + states) Pn (1 / read + 1 / write)"
        terms.append(step.term("states from and to NVMe", "nvme", seconds, formula, states=states))
    return terms


def _weights_to_gpu(step: Step) -> list[TimeTerm]:
    if step.plan.offload_param != "none":
        return []
    name, way = "updated weights to GPU", offload.way_of_weights(step.workload, step.plan)
    hosted = "hosted " if step.gpu_stepped else ""
    if way == "new memory" and step.element_bytes != step.plan.master_bytes:
        seconds, inputs = step.new_memory_copy(step.element_bytes)
        return [step.term(name, "pcie", seconds, f"w {hosted}Pr (1 / pageable + 1 / new)", **inputs)]
    symbol, width = ("m", step.plan.master_bytes) if way == "uncast" else ("w", step.element_bytes)
    size = width * step.trained_per_rank * step.host_share
    return [step.host_link_term(name, size, f"{symbol} {hosted}Pr / PCIe", hosted=step.host_share)]


def _kept_on_gpu(step: Step) -> list[TimeTerm]:
    """Return the terms of an offloaded optimizer's sub-groups that are stepped on the GPU, before those on the host.
    Weights on the host are copied one sub-group at a time."""
    kept = step.gpu_stepped
    if not kept:
        return []
    moved = KEPT_BF16_STEP_BYTES if step.plan.master_bytes == 2 else KEPT_STEP_BYTES
    seconds, formula = moved * kept / step.values["W"], f"{moved} kept / W"
    terms = [step.term("optimizer", "gpu memory", seconds, formula, kept=kept)]
    if step.plan.offload_param != "none":
        terms.append(
            step.host_link_term("updated weights to host", step.element_bytes * kept, "w kept / PCIe", kept=kept)
        )
    return terms


def _weights_moved(step: Step) -> list[TimeTerm]:
    plan, terms = step.plan, list[TimeTerm]()
    if plan.offload_param != "none" and plan.offload_optimizer == "none":
        size = step.element_bytes * step.trained_per_rank
        terms.append(step.host_link_term("updated weights to host", size, "w Pr / PCIe"))
    if collective.weights_on_nvme(step.tensors, plan, step.replicas) and step.workload.method == "full":
        seconds = step.element_bytes * step.trained_per_node / step.values["write"]
        terms.append(step.term("updated weights to NVMe", "nvme", seconds, "w Pn / write"))
    return terms


def _collectives(step: Step) -> list[TimeTerm]:
    """Return the terms of checking all ranks' gradients, and of gathering updated weights that all ranks keep whole."""
    stage, ring, terms = step.plan.zero_stage, step.ring, list[TimeTerm]()
    if not stage:
        return []
    alone = ring.ranks == 1
    if step.engine and not alone:
        calls = STEP_REDUCTIONS[stage]
        terms.append(
            step.term("all-reduces of a number", ring.resource, 2 * calls * ring.call_s, "2 calls t", calls=calls)
        )
    if stage < 3 and not alone:
        shared = step.trained - step.expert_numel
        size = step.element_bytes * shared
        terms.append(step.ring_term("updated weights gathered", 1, size, 1, "w Pt", Pt=shared))
    if stage < 3 and step.expert_numel and step.expert_ring.ranks > 1:
        size, among = step.element_bytes * step.expert_numel, step.expert_ring
        terms.append(
            step.ring_term("updated experts gathered", 1, size, 1, "w experts", among=among, experts=step.expert_numel)
        )
    if step.zero3 and not alone and step.host.persistent:
        # What no forward pass gathers is what every rank keeps.
        whole = step.tensors.numel * (1 - step.gathers[0] / step.micro_batches) - step.tensors.unread
        whole *= step.element_bytes
        calls = step.host.persistent
        terms.append(step.ring_term("updated weights gathered", 1, whole, calls, "whole", whole=whole))
    return terms


DATA = Path(__file__).parents[1] / "data" / "speed_spread.csv"

Kind = Literal["one GPU", "several GPUs", "offload", "ratio", "ratio with offload"]


def speed_kind(world_size: int, plan: Plan) -> Kind:
    if plan.offloads:
        return "offload"
    return "several GPUs" if world_size > 1 else "one GPU"


def speed_spread(cluster: Cluster, plan: Plan) -> Spread:
    """Return the 80 % interval of a predicted speed. `data/speed_spread.csv` holds it as measured over predicted speed
    of runs of an unseen origin, with equal weight for each origin of the published runs (`python -m benchmarks.accuracy
    --write`, docs/accuracy.md). Machines with measured speeds get the same interval."""
    return _spreads()[speed_kind(cluster.world_size, plan)]


def ratio_spread(one: Plan, other: Plan) -> Spread:
    """Return the interval of the ratio of two plans' speeds on one machine, from pairs of published runs that differ in
    their strategy."""
    return _spreads()["ratio with offload" if one.offloads or other.offloads else "ratio"]


@cache
def _spreads() -> dict[str, Spread]:
    with DATA.open(newline="", encoding="utf-8") as file:
        return {row["kind"]: Spread(float(row["low"]), float(row["high"])) for row in csv.DictReader(file)}


def estimate_plan(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Estimate:
    """Return memory and time of one plan. Raises the errors of `estimate_memory` and `estimate_time`."""
    return Estimate(
        plan=plan,
        memory=estimate_memory(model, workload, cluster, plan),
        time=estimate_time(model, workload, cluster, plan),
    )
