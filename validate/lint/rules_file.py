"""The text of a file, and the types and ranges of its values (DS00x, DS02x)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...estimators.phrase import Phrase, phrase
from .config_file import Edit, Replace
from .document import NON_FINITE, Departure, DocumentNode
from .facts import ConfigField
from .linted_config import TRUTHS, LintedConfig, is_converted_text, number_in, problem, shown
from .rule import KeyPath, Rules, Violation, bad_value, unquoted, violation

FILE_RULES = Rules("The file")
_HF = "accelerate/utils/deepspeed.py HfDeepSpeedConfig"


@FILE_RULES.error(
    "DS001 more than JSON in a file that is read as JSON",
    why="DeepSpeed reads Hjson, but the Trainer and accelerate read the file with Python's json and stop",
    fix="write plain JSON, or pass the file to deepspeed.initialize",
    source=_HF,
)
def more_than_json(config: LintedConfig) -> Iterator[Violation]:
    departures = [found for found in config.document.departures if found.kind not in NON_FINITE]
    if config.framework == "hf" and departures:
        first = departures[0]
        kinds = ", ".join(dict.fromkeys(found.kind for found in departures))
        path = _path_at(config.document.root, first)
        yield Violation(path=path, what=phrase("the file has: {kinds}", kinds=kinds), span=(first.start, first.end))


@FILE_RULES.error(
    "DS003 a byte order mark in front of the file",
    why="DeepSpeed's reader skips it, but Python's json, with which the Trainer and accelerate read, stops at it",
    fix="save the file as UTF-8 without a byte order mark",
    source=_HF,
)
def byte_order_mark(config: LintedConfig) -> Iterator[Violation]:
    if config.document.byte_order_mark and config.framework == "hf":
        yield Violation(path=(), what="the file begins with a byte order mark")


@FILE_RULES.error(
    "DS004 a key twice in one object",
    why="DeepSpeed refuses the file; the Trainer and accelerate silently take the last one",
    fix="remove one of them",
    source="runtime/config_utils.py dict_raise_error_on_duplicate_keys",
)
def duplicate(config: LintedConfig) -> Iterator[Violation]:
    for path, member in config.document.duplicates():
        yield Violation(
            path=path,
            what=phrase("{name} is repeated here", name=f"{path[-1]!r}"),
            severity="warning" if config.framework == "hf" else None,
            span=(member.start, member.end),
        )


def _path_at(node: DocumentNode, found: Departure) -> KeyPath:
    """The key whose name or value contains this position, or the key before it."""
    before = [member for member in node.members if member.start <= found.start]
    if not before:
        return ()
    return (before[-1].key, *_path_at(before[-1].node, found))


TYPE_RULES = Rules("Types and ranges")
_LEAF = "zero_optimization.leaf_module"
"""The block that accepts a name instead of a list of names, and null for itself (runtime/zero/leaf_module_config.py
`_coerce_container_types`)."""
_NESTED = ("timers.throughput", "checkpoint.writer", "checkpoint.parallel_write")
_NOT_READ_HERE = (
    "pipeline",
    "data_efficiency",
    "expert_parallel",
    "compression_training",
    "elasticity",
    "curriculum_learning",
    "nebula",
)
"""Blocks whose keys are not among the facts."""
_MAY_BE_NULL = ("bf16", "aio", "checkpoint.writer", "expert_parallel")


@TYPE_RULES.error(
    "DS020 a value that DeepSpeed does not take",
    why="its pydantic class cannot convert it, or it is out of range, and DeepSpeed stops",
    source="runtime/zero/config.py, runtime/precision_config.py and the other classes of DeepSpeedConfigModel",
)
def wrong_value(config: LintedConfig) -> Iterator[Violation]:
    for path, field, value in _checked_values(config):
        owner, _, key = path.rpartition(".")
        if (owner == _LEAF and isinstance(value, str)) or (path == _LEAF and value is None):
            continue
        if wrong := problem(field, value):
            number = number_in(value)
            mended = number is not None and not problem(field, number)
            edits = unquoted(path, value) if mended else ()
            yield violation(path, "{key} {problem}", key=key, problem=wrong, fix=_fix(wrong), edits=edits)


@TYPE_RULES.error(
    "DS021 not an object where DeepSpeed expects one",
    why="DeepSpeed takes keys from it, and stops with a TypeError or an AttributeError that does not name the key",
    source="runtime/config.py, runtime/precision_config.py",
)
def no_object(config: LintedConfig) -> Iterator[Violation]:
    paths = [block.path for block in config.facts.blocks if block.path and "." not in block.path]
    for path in (*paths, *_NESTED, *filter(config.knows, _NOT_READ_HERE)):
        value = config.get(path)
        may_be = (path == "zero_optimization" and isinstance(value, bool)) or (value is None and path in _MAY_BE_NULL)
        if config.has(path) and not isinstance(value, dict) and not may_be and not _unread(config, path):
            fix = phrase("write an object, or remove the key")
            if isinstance(value, bool):
                fix = phrase('write {{"enabled": {value}}}', value=shown(value))
            yield violation(path, "{path} is {value}", path=path, value=shown(value), fix=fix)


@TYPE_RULES.warning(
    "DS022 a number or truth value written as text",
    why='DeepSpeed\'s class converts it, but the Trainer and accelerate compare the text with numbers: a stage "3" is '
    "not stage 3 to them",
    source="runtime/config_utils.py DeepSpeedConfigModel; accelerate/utils/deepspeed.py set_stage_and_offload",
)
def text(config: LintedConfig) -> Iterator[Violation]:
    for path, field, value in _checked_values(config):
        if is_converted_text(field, value):
            plain = _plain(field.type.name, value)
            yield violation(
                path,
                "{key} is the text {value}",
                key=path.rpartition(".")[2],
                value=shown(value),
                fix=phrase("write {value}", value=shown(plain)),
                edits=(Replace(tuple(path.split(".")), plain),),
            )


def _checked_values(config: LintedConfig) -> Iterator[tuple[str, ConfigField, Any]]:
    """(path, field, value) of each key of the validated blocks, without `auto`, which DeepSpeed drops before
    validation."""
    for block in config.facts.blocks:
        for key, value in config.block(block.path).items() if block.strict and not _unread(config, block.path) else ():
            field = block.field(key)
            if field is not None and value != "auto":
                yield f"{block.path}.{key}", field, value


@TYPE_RULES.error(
    "DS023 text where DeepSpeed computes with a number",
    why="this key is not checked when the file is read: the training stops later with a TypeError",
    source="runtime/engine.py, runtime/config.py",
)
def unchecked(config: LintedConfig) -> Iterator[Violation]:
    for name in ("wall_clock_breakdown", "flops_profiler.enabled"):  # DeepSpeed joins them by | when it reads the file
        value = config.get(name)
        if not isinstance(value, bool | int) and config.has(name):
            yield violation(
                name,
                "{name} is {value}",
                name=name,
                value=shown(value),
                fix="write true or false",
                edits=_truth(name, value),
            )
    size = config.get("vocabulary_size")
    if size and not isinstance(size, int | float):  # DeepSpeed computes its remainder by 8
        edits = unquoted("vocabulary_size", size)
        yield bad_value(config, "vocabulary_size", fix="write a whole number", edits=edits)
    for name in ("gradient_clipping", "gradient_predivide_factor"):
        value = config.get(name)
        if isinstance(value, str | list | dict) and not (value == "auto" and name == "gradient_clipping"):
            yield bad_value(config, name, fix="write a number", edits=unquoted(name, value))
        elif value is None and config.has(name):
            yield violation(name, "{name} is null", name=name, fix="remove it, or write a value")


def _truth(path: str, value: object) -> tuple[Edit, ...]:
    """The edit that writes true or false in place of its text."""
    truth = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None
    return () if truth is None else (Replace(tuple(path.split(".")), truth),)


def _unread(config: LintedConfig, path: str) -> bool:
    """Whether the block is bfloat16 and bf16 exists too, so that DeepSpeed ignores it."""
    return path == "bfloat16" and config.get("bf16") is not None


def _fix(wrong: Phrase) -> Phrase:
    if "wanted" in wrong.fields:
        return phrase("write {value}", value=wrong.fields["wanted"])
    return phrase("write a value that is {sign} {bound}", **wrong.fields)


def _plain(kind: str, text: str) -> bool | int | float:
    if kind == "bool":
        return TRUTHS[text.lower()]
    return float(text) if kind == "float" else int(float(text))
