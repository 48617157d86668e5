"""Figures of a plan by value of a key of its configuration, or why they do not depend on the key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

from ...ds_configs.config_keys import CONFIG_KEYS
from ...ds_configs.emit import ds_config
from ...ds_configs.read import unmodeled_features
from ...estimators.errors import DsAdviseError
from ...estimators.hardware import Cluster
from ...estimators.json_form import from_attributes
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.plan import PLAN_FIELDS, ConfigKey, Plan
from ...estimators.unsupported import unsupported
from ...estimators.workload import Workload
from ...validate.lint import DeepSpeedFacts, load_facts
from ...validate.lint.key_effects import follows, is_unfollowed, not_predicted, without_effect
from ..question.options import OPTIONS
from ..question.question import Question
from ..search.candidate import predict
from ..text.units import alternatives
from .comparison import Side
from .config_settings import ConfigSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCost:
    """Predicted figures of the plan with one value of the key."""

    value: Any
    """The key's value; of a key that follows an option the option's value."""
    is_the_plans: bool
    """Whether the plan has this value."""
    device_bytes_per_gpu: int
    peak: str
    """The moment of a step at which GPU memory peaks."""
    host_bytes_per_node: int
    tokens_per_second: float
    samples_per_step: int
    """The global batch, which a key of the batch changes."""
    left_out: tuple[str, ...]
    """Keys of the plan that do not exist with this value: those of another ZeRO stage."""
    reason: str
    """Whether it fits, as a short phrase: `needs 1.4 x VRAM`, `fits`."""
    fits: bool
    lint: tuple[str, ...] = ()
    """Errors and warnings that lint has at the key with this value: `DS356 warning: gradients in bf16 are ...`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyContext:
    """The plan for which a key is explained, with its training and machines."""

    model: ModelShape
    workload: Workload
    cluster: Cluster
    plan: Plan
    config: Mapping[str, Any]
    """The plan's configuration; {} if it cannot be written."""
    file: str = ""
    """The file that has the configuration; "" for another plan."""
    is_recommended: bool = False
    """Whether it is the plan that is recommended."""

    @classmethod
    def of_plan(cls, plan: Plan, question: Question, *, is_recommended: bool) -> KeyContext:
        """Return a plan that answers a question."""
        model, workload, cluster = question.model, question.workload, question.cluster
        try:
            config = ds_config(plan, model, workload, cluster, flavor=workload.framework)
        except DsAdviseError:  # a swap folder that nobody named
            config = {}
        return cls(
            model=model,
            workload=workload,
            cluster=cluster,
            plan=plan,
            config=config,
            is_recommended=is_recommended,
        )

    @classmethod
    def of_file(cls, side: Side, model: ModelShape) -> KeyContext:
        """Return the plan of a file whose model and machines are known."""
        settings = side.settings
        assert side.candidate is not None and settings.workload is not None and settings.cluster is not None
        return cls(
            model=model,
            workload=settings.workload,
            cluster=settings.cluster,
            plan=side.candidate.plan,
            config=settings.config,
            file=side.name,
        )

    @property
    def title(self) -> str:
        return f"{self.model.name}, {self.plan.strategy}, micro batch {self.plan.micro_batch_size}"


def key_costs(path: str, context: KeyContext) -> tuple[tuple[KeyCost, ...], str]:
    """Return (figures by value, ""), or ((), why there are none)."""
    if reason := _why_no_costs(path, context.plan):
        return (), reason
    costs, model, cluster = list[KeyCost](), context.model, context.cluster
    own = context.workload, context.plan
    for value, workload, plan in _variants(CONFIG_KEYS[path], context):
        if (workload, plan) == own or not unsupported(model, workload, plan, cluster):
            found = predict(model, workload, cluster, plan)
            is_own, peak = (workload, plan) == own, found.memory.peak.name
            costs.append(
                from_attributes(
                    KeyCost,
                    found.memory,
                    found.fit,
                    value=value,
                    is_the_plans=is_own,
                    peak=peak,
                    tokens_per_second=found.time.tokens_per_s,
                    samples_per_step=plan.samples_per_step(cluster.world_size),
                    left_out=tuple(_left_out(context.plan, plan)),
                )
            )
    return (tuple(costs), "") if len(costs) > 1 else ((), "no other value can be predicted with this plan")


def follows_option(path: str) -> str:
    """Return the option of a question that a key outside the plan follows; "" for other keys."""
    known = CONFIG_KEYS.get(path)
    return "" if known is None else known.option


def may_cost(path: str) -> bool:
    """Return whether there are figures by value for some plan."""
    known = CONFIG_KEYS.get(path)
    return known is not None and bool(known.stages and (known.field or known.option))


def without_costs(paths: Iterable[str], plan: Plan) -> Iterator[str]:
    """Yield a line for each key on which the figures of a plan do not depend, or that an option sets."""
    for path in paths:
        option = follows_option(path)
        if reason := f"it follows {_flag(option)}, which sets it" if option else _why_no_costs(path, plan):
            yield f"{path}: {reason}"


def _why_no_costs(path: str, plan: Plan) -> str:
    """Return why there are no figures by value; "" if there are some."""
    known = CONFIG_KEYS.get(path)
    facts = load_facts()
    if (block := facts.block(path)) is not None:
        reasons = {name: _why_no_costs(block.qualified_path(name), plan) for name in block.names()}
        have_some, others = [name for name, reason in reasons.items() if not reason], {*reasons.values()}
        if have_some or len(others) != 1:
            return f"name one of its keys for its cost{': ' * bool(have_some)}{', '.join(have_some)}"
        return f"for each of its keys, {others.pop()}"
    if now := successor_path(path, facts):
        return f"DeepSpeed reads it as {now}; name that for its cost"
    if known is not None and plan.zero_stage not in known.stages:
        if not known.stages:
            return "it has no effect at any stage"
        if is_unfollowed(path, plan):
            return not_predicted(path)
        verb = "DeepSpeed refuses it" if known.refused_elsewhere else "it has no effect"
        stages = [f"--strategy zero{stage}" for stage in known.stages if stage]
        return f"{verb} at stage {plan.zero_stage}; {alternatives(stages)} has a plan that uses it"
    if known is not None and known.nvme_only and not plan.swaps:
        return "this plan uses no NVMe"
    if known is not None and (known.field or known.option):
        return ""
    switched_on = {"zero_optimization": {"stage": plan.zero_stage}} | with_value({}, path.split("."), True)
    if path.startswith("zero_optimization."):
        switched_on["zero_optimization"] |= {"stage": plan.zero_stage}
    for feature in unmodeled_features(switched_on):
        return feature.predicted
    if path in without_effect():
        return (
            "memory and operations are the same in dry runs of the engine; time that it adds by waits or output is "
            "not predicted"
        )
    if follows(path, plan):
        return "its effect on memory and time is within the error of the predictions"
    return not_predicted(path)


def successor_path(path: str, facts: DeepSpeedFacts) -> str:
    """Return the path of the key that has the effect of a deprecated one, under its usual name; "" for any other."""
    field, block = facts.find_field(path), facts.block(path.rpartition(".")[0])
    if field is None or block is None or not (field.deprecated and field.moves):
        return ""
    return block.qualified_path(block.successor_name(field))


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _variants(known: ConfigKey, context: KeyContext) -> Iterator[tuple[Any, Workload, Plan]]:
    """Yield the values of a key, or of its option, with the workload and the plan that have it."""
    workload, plan = context.workload, context.plan
    if known.option == "global_batch":
        # At the plan's micro batch.
        for steps in _numbers(plan.gradient_accumulation_steps, 1):
            other = plan.replace_fields(gradient_accumulation_steps=steps)
            yield other.samples_per_step(context.cluster.world_size), workload, other
    elif known.option in ("precision", "optimizer"):
        for value in dict.fromkeys((getattr(workload, known.option), *_choices(known.option))):
            yield value, replace(workload, **{known.option: value}), plan
    elif known.field:
        ranks = (context.cluster.gpus_per_node,) if known.field in _GROUPS else ()
        zero = {"zero_optimization": {"stage": plan.zero_stage}}
        default = ConfigSettings(zero, load_facts()).default(known.path).value
        for value in _values(known.field, getattr(plan, known.field), known.lowest, default, *ranks):
            other = plan.replace_fields(**{known.field: value})
            if known.field == "micro_batch_size":
                other = _at_own_batch(other, plan)
            yield value, workload, _at_own_stage(other) if known.field == "zero_stage" else other


def _at_own_batch(other: Plan, plan: Plan) -> Plan:
    """Return a plan of another micro batch with the global batch of the plan, or the nearest above, by accumulation: a
    larger global batch is faster by itself."""
    samples = plan.micro_batch_size * plan.gradient_accumulation_steps
    return other.replace_fields(gradient_accumulation_steps=-(-samples // other.micro_batch_size))


def _at_own_stage(plan: Plan) -> Plan:
    """Return the plan without the keys that its ZeRO stage does not have."""
    absent = {name: key.default for name, key in PLAN_FIELDS.items() if plan.zero_stage not in key.stages}
    if plan.zero_stage and plan.zero_stage < 3 and plan.offload_optimizer == "nvme":
        absent["offload_optimizer"] = "cpu"  # stages 1 and 2 treat any device as the host's RAM
    return plan.replace_fields(**absent)


def _left_out(plan: Plan, other: Plan) -> Iterator[str]:
    """Yield the names of the offloads of a plan that another does not have."""
    for name in ("offload_optimizer", "offload_param"):
        if getattr(plan, name) != "none" == getattr(other, name) and plan.zero_stage != other.zero_stage:
            yield name


def _choices(option: str) -> list[str]:
    """Return the values of an option that a configuration can have."""
    if option == "optimizer":
        return [name for name, spec in OPTIMIZERS.items() if spec.block_type]
    return [choice for choice in OPTIONS[option].choices if choice != "auto"]


_GROUPS = ("sequence_parallel_size", "autotp_size", "autoep_size", "zero_hpz_partition_size")
"""Fields of a plan that count the ranks of a group, which are usually those of a node: its links are faster."""


def _values(field: str, value: Any, lowest: int, *usual: Any) -> list[Any]:
    """Return the value and alternatives: all values of a choice; half, twice and four times a number, and its usual
    values, such as DeepSpeed's default."""
    kind = get_type_hints(Plan)[field]
    if kind is bool:
        return [False, True]
    if get_args(kind):
        return list(get_args(kind))
    return [value] if kind is str else _numbers(value, lowest, *usual)


def _numbers(value: float, lowest: int, *usual: Any) -> list[Any]:
    kind = type(value)
    numbers = {value, kind(value / 2), value * 2, value * 4} if kind is int else {value, value / 2, 1.0}
    numbers |= {kind(each) for each in usual if isinstance(each, int | float) and not isinstance(each, bool)}
    return sorted(number for number in numbers if number >= max(lowest, 1 if kind is int else 0))


def with_value(config: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a configuration in which a key has a value."""
    name, *rest = path
    below = config.get(name)
    inner = with_value(below if isinstance(below, Mapping) else {}, rest, value) if rest else value
    return {**config, name: inner}
