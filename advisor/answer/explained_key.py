"""Explanation of one key of a ds_config: purpose, type, default, where it has an effect, and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ...ds_configs.config_keys import CONFIG_KEYS, meaning
from ...ds_configs.emit import ds_config
from ...estimators.errors import ConfigFileError, DsAdviseError
from ...estimators.json_form import SCHEMA_VERSION, from_attributes
from ...estimators.plan import Plan, key_stages
from ...estimators.time.step_time import estimate_plan
from ...estimators.unsupported import unsupported
from ...validate.lint import RULES, DeepSpeedFacts, load_facts
from ...validate.lint.key_effects import follows
from ...validate.lint.rules_types import CODE_TYPES
from ...validate.lint.values import describe_type, json_text, nearest
from .config_settings import ConfigSettings
from .recommendation import Recommendation

_MOST_PLACES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCost:
    """Predicted figures of the plan with one value of the key."""

    value: Any
    is_the_plans: bool
    """Whether the recommended plan has this value."""
    device_bytes_per_gpu: int
    peak: str
    """The moment of a step at which GPU memory peaks."""
    host_bytes_per_node: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyExplanation:
    """A key, or a block of keys."""

    schema_version: int
    path: str
    meaning: str
    """What the key decides."""
    description: str
    """DeepSpeed's own description; "" if it has none."""
    type: str
    default: str
    """DeepSpeed's default; "" if it is not a plain value."""
    deepspeed: str
    """DeepSpeed version."""
    stages: tuple[int, ...]
    """ZeRO stages that use it."""
    acts: tuple[str, ...]
    """Further conditions, and the source of the value for `auto`, one sentence each."""
    keys: Mapping[str, str]
    """Keys of a block with their meanings."""
    rules: tuple[str, ...]
    """Lint rules whose example of a mistake is corrected at this key: `DS314 two large reduce buckets`."""
    example: Mapping[str, Any]
    """A configuration with the key and a value other than the default; {} for a block and if no value is known."""
    plan: str
    """The plan for which the costs are predicted; "" without a question."""
    recommended: Mapping[str, Any]
    """The key as the recommended plan's ds_config.json has it; {} if it leaves the key out, or without a question."""
    costs: tuple[KeyCost, ...]
    no_cost: str
    """Why there are no costs; "" if there are some."""


def is_key(name: str) -> bool:
    """Whether the text is the name or path of a key, or close to one, or a path in a block, and not the name of a
    file."""
    if not name.replace("_", "").replace(".", "").isalnum() or Path(name).exists():
        return False
    facts = load_facts()
    is_in_block = any(name.startswith(f"{block.path}.") for block in facts.blocks if block.path)
    return is_in_block or bool(key_places(name, facts) or ("_" in name and _nearest(name, facts, cutoff=0.85)))


def key_places(name: str, facts: DeepSpeedFacts) -> tuple[str, ...]:
    """Return the path itself, or every path that ends with it."""
    found = []
    for block in facts.blocks:
        for key in (*block.keys, *(each for known in block.fields for each in known.names)):
            if f".{block.qualified_path(key)}".endswith(f".{name}"):
                field = block.field(key)
                found.append(block.qualified_path(field.usual_name if field is not None else key))
    found += [path for path in CONFIG_KEYS if f".{path}".endswith(f".{name}")]
    unique = tuple(dict.fromkeys(path for path in found if not path.startswith("bfloat16.")))
    return (name,) if name in unique else unique


def keys_that_begin(word: str) -> tuple[str, ...]:
    """Return up to three keys whose names begin with a word: blocks, else single keys."""
    facts = load_facts()
    blocks = [block.path.rpartition(".")[2] for block in facts.blocks]
    for names in (blocks, [name for block in facts.blocks for name in block.names()]):
        if found := dict.fromkeys(name for name in names if name.startswith(f"{word}_")):
            return tuple(found)[:3]
    return ()


def _nearest(name: str, facts: DeepSpeedFacts, cutoff: float = 0.6) -> str:
    return nearest(name.rpartition(".")[2], {key for block in facts.blocks for key in block.names()}, cutoff=cutoff)


def explain_key(name: str, *, facts: DeepSpeedFacts, answer: Recommendation | None = None) -> KeyExplanation:
    """Explain a key, given by its path or its last name. answer: the question; costs are predicted for its recommended
    plan, or the closest one if none fits. Raises ConfigFileError for an unknown name and for a name that several blocks
    have."""
    places = key_places(name, facts)
    if not places:
        near = _nearest(name, facts)
        fix = f"did you mean {near}?" if near else "name a key of the configuration, such as overlap_comm"
        raise ConfigFileError(f"DeepSpeed {facts.version} has no key {name[:60]!r}", fix=fix)
    if len(places) > 1:
        paths = ", ".join(places[:_MOST_PLACES]) + (", ..." if len(places) > _MOST_PLACES else "")
        raise ConfigFileError(f"{len(places)} blocks have a key {name!r}", fix=f"pass its path: {paths}")
    (path,) = places
    known, field, block = CONFIG_KEYS.get(path), facts.find_field(path), facts.block(path)
    kind = field.type if field is not None else CODE_TYPES[path][0] if path in CODE_TYPES else None
    if field is not None and field.moves and field.successor:
        acts: list[str] = [f"It is deprecated: write {field.successor} instead."]
    else:
        acts = list(_acts(path, answer))
    plan, costs, no_cost = _costs(path, answer)

    def described(path: str) -> str:
        known = facts.find_field(path)
        return meaning(path) or (known.description if known is not None else "")

    return KeyExplanation(
        schema_version=SCHEMA_VERSION,
        path=path,
        meaning=described(path),
        description=field.description if field is not None and meaning(path) else "",
        type="a block" if block is not None else "" if kind is None else describe_type(kind),
        default="" if block is not None else _default(path, facts),
        deepspeed=facts.version,
        stages=known.stages if known is not None else key_stages(path),
        acts=tuple(acts),
        keys={} if block is None else {key: described(f"{path}.{key}") for key in block.names()},
        rules=tuple(_rules(path)),
        example={} if block is not None or (field is not None and field.deprecated) else _example(path, facts),
        plan=plan,
        recommended={} if answer is None else _recommended(path, answer),
        costs=costs,
        no_cost=no_cost,
    )


def _rules(path: str) -> Iterator[str]:
    for rule in (each for each in RULES if not each.code.startswith("DS0")):  # those are about any key
        bad, good, _ = rule.example
        mistake, mended = _value_at(path, bad), _value_at(path, good)
        if mistake != mended and (mistake is not None or len(_leaves(good) - _leaves(bad)) <= _FEW):
            yield f"{rule.code} {rule.title}"


_FEW = 2
"""Keys that the correction of a mistake adds, if the mistake is that they are missing."""


def _leaves(config: Any) -> set[str]:
    """Return every value with its path."""
    if not isinstance(config, dict):
        return {f"={config!r}"}
    return {f"{key}.{leaf}" for key, value in config.items() for leaf in _leaves(value)}


def _example(path: str, facts: DeepSpeedFacts) -> dict[str, Any]:
    """Return a value that lint's examples have, else the other truth value or another choice, else the default."""
    default = ConfigSettings({}, facts).default(path).value
    field = facts.find_field(path)
    choices: tuple[Any, ...] = (True, False) if isinstance(default, bool) else ()
    if field is not None:
        choices = (True, False) if field.type.name == "bool" else field.type.choices
    written = [_value_at(path, rule.example.good) for rule in RULES if isinstance(rule.example.good, dict)]
    values = [value for value in (*written, *choices, default) if value not in (None, "auto", "none")]
    value = next((value for value in values if value != default), default)
    is_whole = isinstance(value, float) and value.is_integer() and field is not None and field.type.name == "int"
    return _nested(path, int(value) if is_whole else value)


def _recommended(path: str, answer: Recommendation) -> dict[str, Any]:
    question, chosen = answer.question, answer.shown
    if chosen is None:
        return {}
    workload, cluster = question.workload, question.cluster
    try:
        config = ds_config(chosen.plan, question.model, workload, cluster, flavor=workload.framework)
    except DsAdviseError:  # a swap folder that nobody named
        return {}
    return _nested(path, _value_at(path, config))


def _value_at(path: str, config: Any) -> Any:
    """Return the value at a path; None without one."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _nested(path: str, value: Any) -> dict[str, Any]:
    """Return the configuration that has only this key; {} without a value."""
    for key in reversed(path.split(".")):
        value = None if value is None else {key: value}
    return value or {}


def _default(path: str, facts: DeepSpeedFacts) -> str:
    by_stage = {
        stage: ConfigSettings({"zero_optimization": {"stage": stage}}, facts).default(path).value for stage in range(4)
    }
    usual = by_stage[1]
    others = [f"{json_text(value)} at stage {stage}" for stage, value in by_stage.items() if stage and value != usual]
    return ", ".join([json_text(usual), *others]) if usual is not None or others else ""


def _acts(path: str, answer: Recommendation | None) -> Iterator[str]:
    known = CONFIG_KEYS.get(path)
    if path.startswith("aio.") or (known is not None and known.nvme_only):
        yield "It takes effect only with offload to NVMe."
    if known is None or not known.filled:
        return
    if known.argument:
        yield (
            f'"auto": the Trainer fills in {known.argument} of TrainingArguments; another value must be equal to it.'
        )
    elif known.filled_from_hidden_size is not None and answer is not None:
        value = known.filled_from_hidden_size(answer.question.model.hidden_size)
        yield f'"auto": the Trainer fills in {value:,}, computed from the hidden size.'
    elif known.filled_from_hidden_size is not None:
        yield '"auto": the Trainer computes it from the hidden size.'
    else:
        yield '"auto": the Trainer fills it in from TrainingArguments.'


def _costs(path: str, answer: Recommendation | None) -> tuple[str, tuple[KeyCost, ...], str]:
    """Return (the plan in words, figures by value, why there are none)."""
    if answer is None:
        return "", (), ""
    known, question = CONFIG_KEYS.get(path), answer.question
    chosen = answer.shown
    if chosen is None:
        return "", (), "no plan can be predicted for this question"
    plan = chosen.plan
    size = plan.micro_batch_size
    title = f"{question.model.name}, {plan.strategy}, micro batch {size}"
    if (reason := _no_effect(path, plan)) or known is None:
        return title, (), reason
    costs, own = [], getattr(plan, known.field)
    model, workload, cluster = question.model, question.workload, question.cluster
    default = ConfigSettings({"zero_optimization": {"stage": plan.zero_stage}}, load_facts()).default(path).value
    for value in _alternatives(known.field, own, known.lowest, default):
        other = plan.replace_fields(**{known.field: value})
        if value == own or not unsupported(model, workload, other, cluster):
            found = estimate_plan(model, workload, cluster, other)
            is_own, peak = other == plan, found.memory.peak.name
            costs.append(
                from_attributes(KeyCost, found.memory, found.time, value=value, is_the_plans=is_own, peak=peak)
            )
    return title, tuple(costs), "" if len(costs) > 1 else "no other value can be predicted with this plan"


def _no_effect(path: str, plan: Plan) -> str:
    """Return why the figures of a plan do not depend on a key; "" if they do."""
    known = CONFIG_KEYS.get(path)
    if known is None or not known.field:
        no_effect = "it changes neither memory nor time, as dry runs of the engine show"
        return no_effect if follows(path, plan) else "its effect is not predicted; a dry run shows it"
    if plan.zero_stage not in known.stages:
        return f"it has no effect at stage {plan.zero_stage}"
    is_unused = known.nvme_only and "nvme" not in (plan.offload_optimizer, plan.offload_param)
    return "this plan uses no NVMe" if is_unused else ""


def split_settings(settings: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return (the settings without those of keys that a plan does not have, the paths of all keys among them)."""
    facts = load_facts()
    places = {name: key_places(name.replace("-", "_"), facts) for name in settings}
    outside = {name for name, paths in places.items() if len(paths) == 1 and not _is_plans(paths[0])}
    kept = {name: value for name, value in settings.items() if name not in outside}
    return kept, tuple(paths[0] for paths in places.values() if len(paths) == 1)


def _is_plans(path: str) -> bool:
    known = CONFIG_KEYS.get(path)
    return known is not None and bool(known.field)


def without_effect(paths: Iterable[str], plan: Plan) -> Iterator[str]:
    """Yield a line for each key on which the figures of a plan do not depend."""
    for path in paths:
        if reason := _no_effect(path, plan):
            yield f"{path}: {reason}"


def _alternatives(field: str, value: Any, lowest: int, default: Any) -> list[Any]:
    """Return the value and alternatives: all values of a choice; half, twice and four times a number, and DeepSpeed's
    default."""
    kind = get_type_hints(Plan)[field]
    if kind is bool:
        return [False, True]
    if get_args(kind):
        return list(get_args(kind))
    if kind is str:
        return [value]
    numbers = {value, kind(value / 2), value * 2, value * 4} if kind is int else {value, value / 2, 1.0}
    if isinstance(default, int | float) and not isinstance(default, bool):
        numbers.add(kind(default))
    return sorted(number for number in numbers if number >= max(lowest, 1 if kind is int else 0))
