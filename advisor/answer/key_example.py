"""A value of a key that lint accepts, as an example, and why it refuses one in a plan's configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...ds_configs.config_keys import CONFIG_KEYS
from ...validate.lint import RULES, DeepSpeedFacts, LintFinding, lint, read_document, rules_types
from ...validate.lint.rules_types import MICRO, TOTAL
from ...validate.lint.values import FieldType, find_problem, json_text
from .config_settings import ConfigSettings, Setting
from .key_costs import KeyContext, with_value


def key_type(path: str, facts: DeepSpeedFacts) -> FieldType | None:
    """Return the type of the value that DeepSpeed's class or code needs, or else that of its default."""
    if (kind := rules_types.key_type(facts, path)) is not None:
        return kind
    name = type(facts.default(path)).__name__
    return FieldType(name=name) if name in ("bool", "int", "float", "str") else None


def example_of(path: str, facts: DeepSpeedFacts) -> dict[str, Any]:
    """Return the smallest configuration with a key and a value that has an effect, and of which lint does not warn: the
    key's own example, else one that lint's examples have, the other truth value or another choice, half or twice the
    default; {} for none.
    """
    good = [rule.example.good for rule in RULES if isinstance(rule.example.good, dict)]
    around = sorted(({}, *good), key=lambda config: len(json.dumps(config)))
    if switch := _switch(path, facts):
        around = [each for config in around for each in (config, with_value(config, switch.split("."), True))]
    for value in _values(path, good, facts):
        for config in around:
            whole = with_value(config, path.split("."), as_written(path, value, facts))
            if not _is_refused(whole, path, facts):
                return _smallest(whole, path, facts)
    return {}


def _values(path: str, good: Sequence[Mapping[str, Any]], facts: DeepSpeedFacts) -> Iterator[Any]:
    """Yield the values that an example can have: other ones than the default if there are any."""
    default, kind, known = facts.default(path), key_type(path, facts), CONFIG_KEYS.get(path)
    values = [value_at(path, config) for config in good]
    own = () if known is None or known.example is None else (known.example,)
    for value in own or (*values, *_other_values(default, kind)):
        if value not in (None, "auto", "none") and (kind is None or find_problem(kind, value) is None):
            yield value


def _switch(path: str, facts: DeepSpeedFacts) -> str:
    """Return the path of the key that enables the key's block; "" for none, and for that key itself."""
    owner = path.rpartition(".")[0]
    switch = f"{owner}.enabled"
    return switch if owner and path != switch and facts.find_field(switch) is not None else ""


def _is_refused(config: Mapping[str, Any], path: str, facts: DeepSpeedFacts) -> bool:
    """Return whether lint has an error or a warning, or the key has no effect: it is off, not used at the stage, or has
    its default."""
    known, batch = CONFIG_KEYS.get(path), {} if TOTAL in config else {MICRO: 1}
    settings, (block, _, _) = ConfigSettings(config, facts), path.rpartition(".")
    own = Setting(value=value_at(path, config), origin="file")
    if not (settings.acts(path) and settings.active(path)) or own.same_as(settings.default(path)):
        return True
    if known is not None and known.nvme_only and settings.get(f"{block}.device").value != "nvme":
        return True
    whole = {**batch, **config}
    found = _findings(whole, facts=facts, framework="deepspeed", ignored=_OF_THIS_MACHINE)
    return any(each.severity != "advice" for each in found)


_OF_THIS_MACHINE = ("DS858",)
"""Codes of the rules that look for packages."""


def _findings(config: Mapping[str, Any], **options: Any) -> Sequence[LintFinding]:
    return lint(read_document(json.dumps(config).encode(), name="", as_meant=True), **options).findings


def _smallest(config: dict[str, Any], path: str, facts: DeepSpeedFacts) -> dict[str, Any]:
    """Return the configuration without what the key does not need."""
    for other in [*_paths(config)]:
        if not (f"{path}.".startswith(f"{other}.") or other.startswith(f"{path}.")):
            less = _without(config, other.split("."))
            config = config if _is_refused(less, path, facts) else less
    return config


def _paths(config: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the paths of all keys, blocks first."""
    for name, value in config.items():
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{name}.")


def _without(config: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    name, *rest = path
    if rest and isinstance(config.get(name), Mapping):
        return {**config, name: _without(config[name], rest)}
    return {each: value for each, value in config.items() if each != name}


def _other_values(default: Any, kind: FieldType | None) -> tuple[Any, ...]:
    if isinstance(default, bool) or (kind is not None and kind.name == "bool"):
        return True, False
    if kind is not None and kind.choices:
        return kind.choices
    if not isinstance(default, int | float):
        return ()
    if isinstance(default, float) and default <= 1 and (kind is None or kind.name == "float"):
        return default / 2, 0.5
    return (1,) if default <= 0 else (2 * default,) if default < _MOST else (default // 2,)


_MOST = 2**31
"""Number from which a default stands for "no limit", and is not doubled."""


def as_written(path: str, value: Any, facts: DeepSpeedFacts) -> Any:
    """Return the value of a key, a whole number as such: `1e9` as 1000000000."""
    kind = key_type(path, facts)
    is_whole = isinstance(value, float) and value.is_integer() and kind is not None and kind.name == "int"
    return int(value) if is_whole else value


def value_at(path: str, config: Any) -> Any:
    """Return the value at a path; None without one."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return config


def refusal(path: str, example: Mapping[str, Any], context: KeyContext, facts: DeepSpeedFacts) -> str:
    """Return lint's error on the key in the plan's configuration, with the value that the plan or else the example has;
    "" for none."""
    value = value_at(path, context.config)
    value = value_at(path, example) if value is None else value
    if value in (None, "auto"):
        return ""
    errors = (each for each in _findings_at(path, value, context, facts) if each.severity == "error")
    return next((f"with {json_text(value)}, lint has {_error(each)}" for each in errors), "")


def remarks(path: str, value: Any, context: KeyContext, facts: DeepSpeedFacts) -> tuple[str, ...]:
    """Return lint's errors and warnings on the key in the plan's configuration with a value; "" is no key."""
    if value == "":
        return ()
    found = (each for each in _findings_at(path, value, context, facts) if each.severity != "advice")
    return tuple(f"{each.code} {each.severity}: {each.what}" for each in found)


def _findings_at(path: str, value: Any, context: KeyContext, facts: DeepSpeedFacts) -> Iterator[LintFinding]:
    config = context.config
    for name in ("bf16", "fp16"):  # some rules are about one precision, which the plan has in place of "auto"
        if value_at(f"{name}.enabled", config) == "auto":
            config = with_value(config, [name, "enabled"], name == context.workload.precision)
    config = with_value(config, path.split("."), value)
    framework = context.workload.framework
    reader = framework if framework == "deepspeed" or not context.file else None  # a file's is that of `lint_question`
    found = _findings(config, facts=facts, framework=reader, cluster=context.cluster)
    yield from (each for each in found if ".".join(each.path) == path)


def _error(finding: LintFinding) -> str:
    return f"the error {finding.code}: {finding.what}; {finding.why}"
