"""The time of one optimizer step, term by term.

    step = n micro batches of (forward, backward) + optimizer
    pass = max(GPU computes, host launches) + what the links carry and the pass does not hide

Micro batches differ: stages 0 and 1 reduce gradients only in the last one. Data loading is assumed to be free.
"""

from __future__ import annotations

from ..estimate import TimeEstimate, TimeTerm
from ..hardware.cluster import Cluster
from ..hardware.host_defaults import HOST_CORE, assumed_of_host
from ..memory.activations.layer_variants import with_offered_attention
from ..models.model_shape import ModelShape
from ..models.rank_part import of_rank
from ..plan import Plan
from ..workload import Workload
from . import activations, gradients, weights
from .passes import Passes
from .speed_spread import speed_spread
from .step import Step
from .transfers import Transfers
from .update import update


def estimate_time(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> TimeEstimate:
    """Seconds of one optimizer step of `plan`, by component.

    Formulas and sources stand in `compute_time`, `memory_bound`, `host_time`, `collective_time` and `offload_time`;
    `step/` puts them together. Expensive parts are kept per (model, workload, GPU, micro batch), so a call in a search
    takes tens of microseconds.

    Not covered: data loading, evaluation, checkpoints and logging; pipeline parallelism; GPUs that throttle
    or are shared.
    """
    workload = with_offered_attention(model, workload).of_rank(plan.sequence_parallel_size)
    step = Step(of_rank(model, plan), workload, cluster, plan)
    passes = Passes(step)
    terms = [*passes.terms(), *_forward_links(step, passes), *_backward_links(step, passes), *update(step, passes)]
    return TimeEstimate(
        terms=tuple(term for term in terms if term.seconds or term.hidden_s),
        tokens_per_step=plan.micro_batch_size * plan.gradient_accumulation_steps * step.replicas * workload.seq_len,
        spread=speed_spread(cluster, plan),
    )


def estimate_forward_s(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> float:
    """Seconds of the forward passes alone of one step's samples, as an evaluation has them: no gradients, no step, and
    layers' inputs stay where they are."""
    workload = with_offered_attention(model, workload).of_rank(plan.sequence_parallel_size)
    step = Step(of_rank(model, plan), workload, cluster, plan)
    passes = Passes(step)
    links = (term.seconds for term in _forward_links(step, passes) if term.name != _INPUTS_TO_HOST)
    return passes.forward_s + sum(links)


_INPUTS_TO_HOST = "layer inputs to host"


def _forward_links(step: Step, passes: Passes) -> list[TimeTerm]:
    """What is carried beside forward passes, and all that is exchanged between layers."""
    transfers = Transfers()
    transfers.shown += [
        *activations.exchanges(step),
        *activations.split_layers(step),
        *activations.layer_inputs(step, _INPUTS_TO_HOST),
    ]
    if step.plan.zero_stage == 3:
        weights.gather_forward(step, transfers)
    return transfers.terms(passes.forward_s, hidden_share=step.hidden_share, idle_s=passes.forward_idle_s)


def _backward_links(step: Step, passes: Passes) -> list[TimeTerm]:
    stage, last = step.plan.zero_stage, gradients.reduced_last(step)
    transfers = Transfers(before=0.0 if stage == 3 else 1 / step.reduce_calls.shared)
    transfers.shown += activations.layer_inputs(step, "layer inputs to GPU")
    if stage == 3:
        weights.gather_backward(step, transfers)
    if step.ring.ranks > 1:
        transfers.carry([gradients.reduction(step)], last)
    if step.spread and step.expert_ring.ranks > 1:
        transfers.carry([gradients.reduction_of_experts(step)], last)
    if step.plan.offload_optimizer != "none":
        to_host = gradients.to_host(step)
        if step.zero3:  # it waits for each copy (`partition_grads`)
            transfers.shown.append(to_host)
        else:
            transfers.carry([to_host], last)
    beside_s = passes.backward_s * step.reductions / step.micro_batches
    return transfers.terms(beside_s, hidden_share=step.hidden_share if stage else 0.0)


LAUNCHES_MATTER = 0.05
"""Part of a step that waits for the host, from which on the speed of its cores is told as assumed."""


def assumptions(cluster: Cluster, time: TimeEstimate | None = None) -> tuple[str, ...]:
    """What the time rests on besides what was asked, one phrase each; `time` is that of the answer, if there is one."""
    core: tuple[str, ...] = ()
    if time is not None and cluster.host_score_s is None:
        launches = sum(term.seconds for term in time.terms if term.resource == "launch")
        core = (HOST_CORE,) if launches >= LAUNCHES_MATTER * time.step_s else ()
    return (*cluster.assumptions, *assumed_of_host(cluster), *core, "data loading that keeps up")
