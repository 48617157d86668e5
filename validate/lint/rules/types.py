"""DS02x: values of the wrong type or out of range."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import DeepSpeedFacts
from ..linted_config import LintedConfig, is_converted_text, number_in, problem, shown
from ..rule import Edit, Hit, Replace, Rules, hit, unquoted
from .examples import ON, plain, zero

rules = Rules()

_LEAF = "zero_optimization.leaf_module"
"""The block that takes a name in the place of a list of names, and null for itself
(runtime/zero/leaf_module_config.py `_coerce_container_types`)."""


@rules.error(
    "DS020 a value that DeepSpeed does not take",
    why="its pydantic class cannot convert it, or it is out of range, and DeepSpeed stops",
    source="runtime/zero/config.py, runtime/precision_config.py and the other classes of DeepSpeedConfigModel",
    bad=plain(zero_optimization=zero(4)),
    good=plain(zero_optimization=zero(3)),
)
def wrong_value(config: LintedConfig) -> Iterator[Hit]:
    for block in config.facts.blocks:
        if not block.strict or not isinstance(config.get(block.path), dict) or _unread(config, block.path):
            continue
        for key, value in config.block(block.path).items():
            field = block.field(key)
            path = f"{block.path}.{key}"
            if (
                field is None
                or value == "auto"
                or (path == _LEAF and value is None)
                or (block.path == _LEAF and isinstance(value, str))
            ):
                continue
            wrong = problem(field, value)
            if wrong:
                number = number_in(value)
                mended = number is not None and not problem(field, number)
                yield hit(path, f"{key} {wrong}", fix=_fix(wrong), edits=unquoted(path, value) if mended else ())


@rules.error(
    "DS021 not an object where DeepSpeed expects one",
    why="DeepSpeed takes keys from it, and stops with a TypeError or an AttributeError that does not name the key",
    source="runtime/config.py, runtime/precision_config.py",
    bad=plain(bf16=True),
    good=plain(bf16=ON),
)
def no_object(config: LintedConfig) -> Iterator[Hit]:
    for path in _objects(config.facts):
        if not config.has(path) or isinstance(config.get(path), dict):
            continue
        value = config.get(path)
        if path == "zero_optimization" and isinstance(value, bool):
            continue
        if (value is None and path in ("bf16", "aio", "checkpoint.writer", "expert_parallel")) or _unread(config, path):
            continue
        switch = (
            f'write {{"enabled": {shown(value)}}}' if isinstance(value, bool) else "write an object, or remove the key"
        )
        yield hit(path, f"{path} is {shown(value)}", fix=switch)


@rules.warning(
    "DS022 a number or truth value written as text",
    why='DeepSpeed\'s class converts it, but the Trainer and accelerate compare the text with numbers: a stage "3" is '
    "not stage 3 to them",
    source="runtime/config_utils.py DeepSpeedConfigModel; accelerate/utils/deepspeed.py set_stage_and_offload",
    bad=plain(zero_optimization={"stage": "3"}),
    good=plain(zero_optimization=zero(3)),
)
def text(config: LintedConfig) -> Iterator[Hit]:
    for block in config.facts.blocks:
        for key, value in config.block(block.path).items() if block.strict else ():
            field = block.field(key)
            if field is None or value == "auto" or not is_converted_text(field, value):
                continue
            path = f"{block.path}.{key}"
            plain = _plain(field.type.name, value)
            yield hit(
                path,
                f"{key} is the text {shown(value)}",
                fix=f"write {shown(plain)}",
                edits=(Replace(tuple(path.split(".")), plain),),
            )


@rules.error(
    "DS023 text where DeepSpeed computes with a number",
    why="this key is not checked when the file is read: the training stops later with a TypeError",
    source="runtime/engine.py, runtime/config.py",
    bad=plain(gradient_clipping="1.0"),
    good=plain(gradient_clipping=1.0),
)
def unchecked(config: LintedConfig) -> Iterator[Hit]:
    for name in ("wall_clock_breakdown", "flops_profiler.enabled"):  # joined by | when the file is read
        value = config.get(name)
        if not isinstance(value, bool | int) and config.has(name):
            yield hit(name, f"{name} is {shown(value)}", fix="write true or false", edits=_truth(name, value))
    size = config.get("vocabulary_size")
    if size and not isinstance(size, int | float):  # its remainder by 8 is looked at
        edits = unquoted("vocabulary_size", size)
        yield hit("vocabulary_size", f"vocabulary_size is {shown(size)}", fix="write a whole number", edits=edits)
    for name in ("gradient_clipping", "gradient_predivide_factor"):
        value = config.get(name)
        if isinstance(value, str | list | dict) and not (value == "auto" and name == "gradient_clipping"):
            yield hit(name, f"{name} is {shown(value)}", fix="write a number", edits=unquoted(name, value))
        elif value is None and config.has(name):
            yield hit(name, f"{name} is null", fix="remove it, or write a value")


def _truth(path: str, value: object) -> tuple[Edit, ...]:
    """The edit that writes true or false in the place of its text."""
    truth = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None
    return () if truth is None else (Replace(tuple(path.split(".")), truth),)


def _unread(config: LintedConfig, path: str) -> bool:
    """A bfloat16 block beside bf16."""
    return path == "bfloat16" and config.get("bf16") is not None


def _objects(facts: DeepSpeedFacts) -> list[str]:
    """The blocks whose keys are looked up, whatever stands there; what holds a checked block is checked with its
    owner."""
    found = [
        block.path
        for block in facts.blocks
        if block.path
        and (
            "." not in block.path
            or block.path in ("timers.throughput", "checkpoint.writer", "checkpoint.parallel_write")
        )
    ]
    top = facts.block("")
    others = (
        "pipeline",
        "data_efficiency",
        "expert_parallel",
        "compression_training",
        "elasticity",
        "curriculum_learning",
        "nebula",
    )
    return found + [name for name in others if top is not None and name in top.keys]


def _fix(wrong: str) -> str:
    wanted = wrong.partition("which is not ")[2] or wrong.partition("but must be ")[2]
    return f"write {wanted}" if "which is not" in wrong else f"write a value that is {wanted}"


def _plain(kind: str, text: str) -> bool | int | float:
    if kind == "bool":
        return text.lower() in ("true", "yes", "on", "1", "t", "y")
    return float(text) if kind == "float" else int(float(text))
