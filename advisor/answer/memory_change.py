"""The changes of a configuration that end a lack of memory, by the closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from ...ds_configs.emit import ds_config
from ...estimators.errors import DsAdviseError
from ...estimators.hardware import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.objectives import offered_loss
from ...estimators.plan import Plan
from ...estimators.unsupported import unsupported
from ...estimators.workload import Workload
from ...probes.failures.messages import Phase
from ..question.cluster import advise_command
from ..question.file_question import FileQuestion
from ..question.workload import configured_workload
from ..search.candidate import LEAST, Candidate, judge_fit, predict
from .comparison import ComparisonContext, build_side

_STAGES: tuple[Literal[1, 2, 3], ...] = (1, 2, 3)

MARGIN = 0.95
"""Most of the failed plan's predicted need that a change may need: the plan was predicted, and still ran out. A
chosen figure, a little more than the closed form's mean error."""

_LEAST_LOSS = 0.01
"""Least share of the speed that a change is taken to cost: predicted speeds that are closer are not told apart."""

_BACKWARD = ("layer_backward", "later_layer_backward", "layer_recomputation", "weight_gradient", "head_backward")
_REDUCTION = ("gradient_reduction", "later_gradient_reduction", "head_reduction", "backward_end")
_MOMENTS: dict[Phase, tuple[str, ...]] = {
    "load": ("load", "initialize"),
    "zero_init": ("load", "initialize"),
    "first_step": ("initialize", "step"),
    "forward": ("layer_forward", "last_layer_forward"),
    "loss": ("loss_peak",),
    "backward": ("loss_peak", *_BACKWARD, *_REDUCTION),
    "reduction": _REDUCTION,
    "optimizer_step": ("step",),
    "evaluation": ("evaluation",),
    "evaluation_logits": ("evaluation",),
    "generation": ("rollout_prefill", "rollout"),
}
"""The predicted moments of each phase of a failure. The backward pass begins with the gradient of the logits."""

_KEPT_FOR: dict[Phase, tuple[str, ...]] = {"forward": _BACKWARD[:3]}
"""Later moments that need what a phase keeps: a change that ends the failure there must end it here too."""

MOST_CHANGES = 3
"""Changes that are listed."""


@dataclass(frozen=True, kw_only=True)
class MemoryChange:
    """One change of a configuration under which it is predicted to fit."""

    what: str
    file: dict[str, Any]
    """Keys of the DeepSpeed configuration to replace, each with its whole value: what the file sets beside stays."""
    removed: tuple[str, ...]
    """Keys of the configuration to remove."""
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
    assumed: str
    """What fills an `auto` of the file, and what else of the training the prediction assumes, because neither the file
    nor the question has it; "" if nothing."""
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
    peak_allocated_bytes_per_gpu: int
    """Tensors at the peak."""
    phase_allocated_bytes_per_gpu: int | None
    """Tensors at most in the phase that the log names; null if it names none, if the closed form does not have it, or
    if RAM ran out."""
    step_bytes_per_gpu: int
    """What the optimizer's step takes, whatever the samples are."""
    fits: bool
    """Whether the plan was predicted to fit GPU and RAM."""
    is_below_log: bool
    """Whether the GPU's memory ran out at more than the prediction with its error: the training differs from the
    question."""
    fits_gpu: bool
    fits_ram: bool | None
    """Null if the RAM is not known."""
    changes: tuple[MemoryChange, ...]
    """At most three. First the one that saves the most memory where it ran out for the speed that it costs; one that
    contains another one comes behind it."""
    insufficient: dict[str, int]
    """Changes that need clearly less of the memory that ran out, but do not fit safely, each with its bytes per
    GPU, or per node if RAM ran out. At most three, the least need first."""
    advise: str
    """The command that finds a plan for the model and the GPUs."""


def memory_forecast(
    file: FileQuestion,
    context: ComparisonContext,
    lacks: Literal["gpu", "host"] = "gpu",
    phase: Phase | None = None,
    needed_bytes: int | None = None,
) -> MemoryForecast:
    """The forecast of a file's configuration. lacks: the memory that ran out. phase: of the failure, if it is known.
    needed_bytes: what the log shows that the process needed on the GPU; None if it does not. Raises the errors of
    `build_side`."""
    question = context.question
    model, cluster = question.model, question.cluster
    side = build_side(file, context)
    candidate = side.candidate
    assert candidate is not None, "the context is known"
    options = dict(file.options if file.recorded is not None else context.options)
    options.pop("accumulation", None)
    workload = configured_workload(file.config, options, model, cluster.gpu)
    need = partial(_bytes_there, lacks=lacks, phase=phase)
    helping = [*_helping(candidate, model, workload, cluster, need)]
    found = [*_fitting(helping, candidate, model, workload, cluster, need, file.config)]
    insufficient = sorted((tried for tried in helping if not tried.fits), key=attrgetter("bytes_there"))
    have, ram_to_fit = cluster.host_memory_bytes_per_node, candidate.ram_to_fit
    return MemoryForecast(
        file=file.name,
        plan=candidate.strategy,
        assumed=side.all_assumed,
        device_bytes_per_gpu=candidate.device_bytes,
        gpu_memory_bytes=cluster.gpu.memory_bytes,
        host_bytes_per_node=candidate.memory.host_bytes_per_node,
        lacks=lacks,
        ram_bytes_per_node=have,
        ram_to_fit_bytes=ram_to_fit,
        whole_load_bytes_per_node=_whole_load(candidate, model, workload, cluster),
        peak=candidate.memory.peak.name,
        peak_allocated_bytes_per_gpu=candidate.memory.peak.allocated_bytes,
        phase_allocated_bytes_per_gpu=(
            _allocated_at(candidate, _MOMENTS.get(phase, ())) if lacks == "gpu" and phase is not None else None
        ),
        step_bytes_per_gpu=max(each.allocated_bytes for each in candidate.memory.phases if each.name == "step"),
        fits=candidate.fit.fits,
        is_below_log=lacks == "gpu" and _is_enough(needed_bytes or cluster.gpu.memory_bytes, candidate, cluster),
        fits_gpu=candidate.fit.gpu_suffices,
        fits_ram=None if have is None else ram_to_fit <= have,
        changes=_best_first(found)[:MOST_CHANGES],
        insufficient={
            tried.what: tried.candidate.device_bytes if lacks == "gpu" else tried.candidate.memory.host_bytes_per_node
            for tried in insufficient[:MOST_CHANGES]
        },
        advise=advise_command(file.model or model.name, cluster),
    )


def _is_enough(memory_bytes: int, candidate: Candidate, cluster: Cluster) -> bool:
    """Whether a plan is predicted to fit a GPU with this memory."""
    gpu = replace(cluster.gpu, memory_bytes=memory_bytes)
    return judge_fit(candidate.memory, replace(cluster, gpu=gpu)).gpu_suffices


def _whole_load(candidate: Candidate, model: ModelShape, workload: Workload, cluster: Cluster) -> int | None:
    """The RAM per node without `zero.Init`; None for a plan that does not use it."""
    if candidate.plan.zero_stage < 3 or not workload.software.zero_init:
        return None
    whole = replace(workload, software=replace(workload.software, zero_init=False))
    return predict(model, whole, cluster, candidate.plan).memory.host_bytes_per_node


def _bytes_there(candidate: Candidate, *, lacks: Literal["gpu", "host"], phase: Phase | None) -> int:
    """The predicted need of the memory that ran out, in the phase in which it did."""
    if lacks == "host":
        return candidate.memory.host_bytes_per_node
    moments = () if phase is None else (*_MOMENTS.get(phase, ()), *_KEPT_FOR.get(phase, ()))
    there = _allocated_at(candidate, moments)
    return candidate.device_bytes if there is None else there


def _allocated_at(candidate: Candidate, moments: tuple[str, ...]) -> int | None:
    """The most predicted bytes of tensors at some moments; None if the plan has none of them."""
    return max((each.allocated_bytes for each in candidate.memory.phases if each.name in moments), default=None)


class _Tried(NamedTuple):
    """A change that needs clearly less of the memory that ran out."""

    what: str
    plan: Plan
    workload: Workload
    candidate: Candidate
    bytes_there: int

    @property
    def fits(self) -> bool:
        return self.candidate.fit.probability >= LEAST["safe"]


class _Fitting(NamedTuple):
    """A change that fits."""

    change: MemoryChange
    parts: frozenset[tuple[str, str]]
    """What it sets, each with its value."""
    worth: float
    """The bytes that it saves over the share of the speed that it costs."""


def _helping(
    failed: Candidate, model: ModelShape, workload: Workload, cluster: Cluster, need: Callable[[Candidate], int]
) -> Iterator[_Tried]:
    """Yield the changes that need clearly less of the memory that ran out, whether or not they fit."""
    before = need(failed)
    for what, plan, changed in _changes(failed.plan, model, workload, cluster):
        if unsupported(model, changed, plan, cluster) is None:
            found = predict(model, changed, cluster, plan)
            if (now := need(found)) <= MARGIN * before:
                yield _Tried(what, plan, changed, found, now)


def _fitting(
    helping: Sequence[_Tried],
    failed: Candidate,
    model: ModelShape,
    workload: Workload,
    cluster: Cluster,
    need: Callable[[Candidate], int],
    file: Mapping[str, Any],
) -> Iterator[_Fitting]:
    """Yield the changes that fit. file: the configuration that they change."""
    before = need(failed)
    for what, plan, changed, found, now in (tried for tried in helping if tried.fits):
        try:
            configs = [
                ds_config(each, model, given, cluster, flavor=given.framework)
                for each, given in ((failed.plan, workload), (plan, changed))
            ]
        except DsAdviseError:  # a swap folder that nobody named
            continue
        patch = _different(*configs)
        speed = found.tokens_per_s / failed.tokens_per_s
        change = MemoryChange(
            what=what,
            file={
                name: value
                for name, part in patch.items()
                if part is not None and (value := _patched(file.get(name), part)) != file.get(name)
            },
            removed=tuple(name for name, part in patch.items() if part is None and name in file),
            arguments=_arguments(failed.plan, plan, workload, changed),
            device_bytes_per_gpu=found.device_bytes,
            host_bytes_per_node=found.memory.host_bytes_per_node,
            tokens_per_second=found.tokens_per_s,
            speed=speed,
        )
        parts = _parts(plan, changed) - _parts(failed.plan, workload)
        yield _Fitting(change, parts, (before - now) / max(1 - speed, _LEAST_LOSS))


def _parts(plan: Plan, workload: Workload) -> frozenset[tuple[str, str]]:
    """What a change may set, each with its value."""
    return frozenset((name, str(value)) for name, value in (*asdict(plan).items(), ("loss", workload.loss)))


def _best_first(found: Sequence[_Fitting]) -> tuple[MemoryChange, ...]:
    """The changes, the one of the most worth first. One that contains another one comes behind it, which suffices: it
    is worth no more, whatever memory the rest saves."""

    def order(each: _Fitting) -> tuple[float, int]:
        return -min(other.worth for other in found if other.parts <= each.parts), len(each.parts)

    return tuple(each.change for each in sorted(found, key=order))


def _changes(
    plan: Plan, model: ModelShape, workload: Workload, cluster: Cluster
) -> Iterator[tuple[str, Plan, Workload]]:
    """Yield single changes, each with its words. The global batch stays."""
    if (loss := offered_loss(model, workload, cluster.gpu)) is not None:
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
    """The keys of `after` with other values than in `before`; None for one that is to be removed."""
    found: dict[str, Any] = {}
    for name in [*after, *(each for each in before if each not in after)]:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        is_block = isinstance(old, Mapping) and isinstance(new, Mapping)
        found[name] = _different(old, new) if is_block else new  # type: ignore[arg-type]  # both are mappings
    return found


def _patched(old: Any, change: Any) -> Any:
    """A value with the changes of `_different`."""
    if not isinstance(change, Mapping):
        return change
    kept = old if isinstance(old, Mapping) else {}
    new = {name: _patched(kept.get(name), part) for name, part in change.items() if part is not None}
    return {name: value for name, value in kept.items() if name not in change} | new
