"""The single changes of a configuration that end a lack of memory, by the closed form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...ds_configs.emit import ds_config
from ...estimators.errors import DsAdviseError
from ...estimators.hardware import Cluster
from ...estimators.memory.fit_probability import host_bytes_to_fit
from ...estimators.models.model_shape import ModelShape
from ...estimators.objectives import offered_loss
from ...estimators.plan import Plan
from ...estimators.unsupported import unsupported
from ...estimators.workload import Workload
from ..question.cluster import advise_command
from ..question.file_question import FileQuestion
from ..question.workload import configured_workload
from ..search.candidate import LEAST, Candidate, predict
from .comparison import ComparisonContext, build_side

_STAGES: tuple[Literal[1, 2, 3], ...] = (1, 2, 3)

MARGIN = 0.95
"""Most of the failed plan's predicted need that a change may need: the plan was predicted, and still ran out. A
chosen figure, a little more than the closed form's mean error."""

MOST_CHANGES = 3
"""Changes that are listed."""


@dataclass(frozen=True, kw_only=True)
class MemoryChange:
    """One change of a configuration under which it is predicted to fit."""

    what: str
    file: dict[str, Any]
    """Keys of the DeepSpeed configuration to set, nested."""
    arguments: dict[str, Any]
    """Arguments of the script to set."""
    device_bytes_per_gpu: int
    host_bytes_per_node: int
    tokens_per_second: float
    speed: float
    """Predicted speed over that of the failed plan."""


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """What is predicted for the configuration that failed, and what would end the failure."""

    file: str
    plan: str
    device_bytes_per_gpu: int
    gpu_memory_bytes: int
    host_bytes_per_node: int
    lacks: Literal["gpu", "host"]
    """The memory that ran out."""
    ram_bytes_per_node: int | None
    """Null if it is not known."""
    ram_to_fit_bytes: int
    """RAM per node with which the predicted need fits, with its error."""
    whole_load_bytes_per_node: int | None
    """RAM if every rank loads the whole model although zero.Init would shard it; null if the plan does not shard it."""
    peak: str
    """The phase of a step with the highest predicted memory."""
    fits: bool
    """Whether the plan was predicted to fit: then the training differs from the question."""
    changes: tuple[MemoryChange, ...]
    """At most three, the fastest first."""
    advise: str
    """The command that finds a plan for the model and the GPUs."""


def memory_forecast(
    file: FileQuestion, context: ComparisonContext, lacks: Literal["gpu", "host"] = "gpu"
) -> MemoryForecast:
    """The forecast of a file's configuration. lacks: the memory that ran out. Raises the errors of `build_side`."""
    question = context.question
    model, cluster = question.model, question.cluster
    candidate = build_side(file, context).candidate
    assert candidate is not None, "the context is known"
    options = dict(file.options if file.recorded is not None else context.options)
    options.pop("accumulation", None)
    workload = configured_workload(file.config, options, model, cluster.gpu)
    found = [*_fitting(candidate, model, workload, cluster, lacks)]
    return MemoryForecast(
        file=file.name,
        plan=candidate.strategy,
        device_bytes_per_gpu=candidate.device_bytes,
        gpu_memory_bytes=cluster.gpu.memory_bytes,
        host_bytes_per_node=candidate.memory.host_bytes_per_node,
        lacks=lacks,
        ram_bytes_per_node=cluster.host_memory_bytes_per_node,
        ram_to_fit_bytes=host_bytes_to_fit(candidate.memory.host_bytes_per_node),
        whole_load_bytes_per_node=_whole_load(candidate, model, workload, cluster),
        peak=candidate.memory.peak.name,
        fits=candidate.fit.fits,
        changes=tuple(sorted(found, key=lambda each: -each.tokens_per_second)[:MOST_CHANGES]),
        advise=advise_command(file.model or model.name, cluster),
    )


def _whole_load(candidate: Candidate, model: ModelShape, workload: Workload, cluster: Cluster) -> int | None:
    """The RAM per node without `zero.Init`; None for a plan that does not use it."""
    if candidate.plan.zero_stage < 3 or not workload.software.zero_init:
        return None
    whole = replace(workload, software=replace(workload.software, zero_init=False))
    return predict(model, whole, cluster, candidate.plan).memory.host_bytes_per_node


def _fitting(
    failed: Candidate, model: ModelShape, workload: Workload, cluster: Cluster, lacks: Literal["gpu", "host"]
) -> Iterator[MemoryChange]:
    """Yield the changes that need less of the memory that ran out, and fit."""
    for what, plan, changed in _changes(failed.plan, model, workload):
        if unsupported(model, changed, plan, cluster) is not None:
            continue
        found = predict(model, changed, cluster, plan)
        before, now = (
            (failed.device_bytes, found.device_bytes)
            if lacks == "gpu"
            else (failed.memory.host_bytes_per_node, found.memory.host_bytes_per_node)
        )
        if found.fit.probability < LEAST["safe"] or now > MARGIN * before:
            continue
        try:
            configs = [
                ds_config(each, model, given, cluster, flavor=given.framework)
                for each, given in ((failed.plan, workload), (plan, changed))
            ]
        except DsAdviseError:  # a swap folder that nobody named
            continue
        yield MemoryChange(
            what=what,
            file=_different(*configs),
            arguments=_arguments(failed.plan, plan, workload, changed),
            device_bytes_per_gpu=found.device_bytes,
            host_bytes_per_node=found.memory.host_bytes_per_node,
            tokens_per_second=found.tokens_per_s,
            speed=found.tokens_per_s / failed.tokens_per_s,
        )


def _changes(plan: Plan, model: ModelShape, workload: Workload) -> Iterator[tuple[str, Plan, Workload]]:
    """Yield single changes, each with its words. The global batch stays."""
    if (loss := offered_loss(model, workload)) is not None:
        yield "a loss that does not store the logits", plan, replace(workload, loss=loss)
    if not plan.gradient_checkpointing:
        yield "gradient checkpointing", replace(plan, gradient_checkpointing=True), workload
    micro, steps = plan.micro_batch_size, plan.gradient_accumulation_steps
    while micro % 2 == 0:
        micro, steps = micro // 2, steps * 2
        smaller = replace(plan, micro_batch_size=micro, gradient_accumulation_steps=steps)
        yield f"micro batch {micro} x accumulation {steps}", smaller, workload
    for stage in _STAGES[plan.zero_stage :]:
        yield f"ZeRO stage {stage}", replace(plan, zero_stage=stage), workload
    if plan.zero_stage and plan.offload_optimizer == "none":
        yield "the optimizer in host RAM", replace(plan, offload_optimizer="cpu"), workload
    if plan.zero_stage == 3 and plan.offload_param == "none":
        yield "the weights in host RAM", replace(plan, offload_param="cpu"), workload
    if plan.offload_optimizer == "cpu":
        yield "the optimizer on the GPUs", replace(plan, offload_optimizer="none"), workload
    if plan.offload_param == "cpu":
        yield "the weights on the GPUs", replace(plan, offload_param="none"), workload
    if plan.zero_stage in (1, 2) and plan.offload_optimizer == "none":
        both = replace(plan, zero_stage=3, offload_optimizer="cpu")
        yield "ZeRO stage 3 with the optimizer in host RAM", both, workload
    if plan.zero_stage == 3 and (plan.offload_optimizer, plan.offload_param) == ("none", "none"):
        both = replace(plan, offload_optimizer="cpu", offload_param="cpu")
        yield "optimizer and weights in host RAM", both, workload


def _arguments(plan: Plan, new: Plan, workload: Workload, changed: Workload) -> dict[str, Any]:
    """The arguments of the script that change."""
    found: dict[str, Any] = {}
    if plan.micro_batch_size != new.micro_batch_size:
        found["per_device_train_batch_size"] = new.micro_batch_size
        found["gradient_accumulation_steps"] = new.gradient_accumulation_steps
    if plan.gradient_checkpointing != new.gradient_checkpointing:
        found["gradient_checkpointing"] = True
    if workload.loss != changed.loss and changed.loss == "fused":
        found["use_liger_kernel"] = True
    return found


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `after` with other values than in `before`; null for one that is to be removed."""
    found: dict[str, Any] = {}
    for name in [*after, *(each for each in before if each not in after)]:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        is_block = isinstance(old, Mapping) and isinstance(new, Mapping)
        found[name] = _different(old, new) if is_block else new  # type: ignore[arg-type]  # both are mappings
    return found
