"""The text of a file, and the types and ranges of its values (DS00x, DS02x)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...estimators.phrase import Phrase, phrase
from .config_file import Edit, Replace
from .document import Departure, DocumentNode
from .facts import DeepSpeedFacts
from .linted_config import TRUTHS, LintedConfig, is_converted_text, number_in, problem, shown
from .rule import KeyPath, Rules, Violation, bad_value, unquoted, violation

FILE_RULES = Rules("The file")
_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")
_HF = "accelerate/utils/deepspeed.py HfDeepSpeedConfig"


@FILE_RULES.error(
    "DS001 more than JSON in a file that is read as JSON",
    why="DeepSpeed reads Hjson, but the Trainer and accelerate read the file with Python's json and stop",
    fix="write plain JSON, or pass the file to deepspeed.initialize",
    source=_HF,
)
def more_than_json(config: LintedConfig) -> Iterator[Violation]:
    departures = [found for found in config.document.departures if found.kind not in _NOT_NUMBERS]
    if config.framework == "hf" and departures:
        first = departures[0]
        kinds = ", ".join(dict.fromkeys(found.kind for found in departures))
        path = _path_at(config.document.root, first)
        yield Violation(path=path, what=phrase("the file has: {kinds}", kinds=kinds), span=(first.start, first.end))


@FILE_RULES.error(
    "DS002 a number too large for a float",
    why="DeepSpeed's reader fails on it with an OverflowError; Python's json makes it infinite",
    fix="write a number below 1.8e308",
    source="hjson decoder.py scantfnns",
)
def infinite_number(config: LintedConfig) -> Iterator[Violation]:
    literal = {found.start for found in config.document.departures}
    for path, node in _walk(config.document.root, ()):
        if isinstance(node.value, float) and math.isinf(node.value) and node.start not in literal:
            yield Violation(
                path=path,
                what=phrase("{text} is infinite", text=config.document.text[node.start : node.end][:20]),
                severity="warning" if config.framework == "hf" else None,
            )


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


@FILE_RULES.warning(
    "DS005 NaN or Infinity",
    why="JSON has no such value: DeepSpeed's reader takes the word, and the rest of the line, as text",
    fix="write a number",
    source="hjson decoder.py scantfnns",
)
def not_a_number(config: LintedConfig) -> Iterator[Violation]:
    for found in config.document.departures:
        if found.kind in _NOT_NUMBERS:
            path = _path_at(config.document.root, found)
            yield Violation(
                path=path, what=phrase("{kind} is not JSON", kind=found.kind), span=(found.start, found.end)
            )


def _walk(node: DocumentNode, path: KeyPath) -> Iterator[tuple[KeyPath, DocumentNode]]:
    yield path, node
    for member in node.members:
        yield from _walk(member.node, (*path, member.key))
    for index, item in enumerate(node.items):
        yield from _walk(item, (*path, str(index)))


def _path_at(node: DocumentNode, found: Departure) -> KeyPath:
    """The key with this place in its value or name, or the key before the place."""
    before = [member for member in node.members if member.start <= found.start]
    if not before:
        return ()
    return (before[-1].key, *_path_at(before[-1].node, found))


TYPE_RULES = Rules("Types and ranges")
_LEAF = "zero_optimization.leaf_module"
"""The block that takes a name in the place of a list of names, and null for itself
(runtime/zero/leaf_module_config.py `_coerce_container_types`)."""


@TYPE_RULES.error(
    "DS020 a value that DeepSpeed does not take",
    why="its pydantic class cannot convert it, or it is out of range, and DeepSpeed stops",
    source="runtime/zero/config.py, runtime/precision_config.py and the other classes of DeepSpeedConfigModel",
)
def wrong_value(config: LintedConfig) -> Iterator[Violation]:
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
                yield violation(
                    path,
                    "{key} {problem}",
                    key=key,
                    problem=wrong,
                    fix=_fix(wrong),
                    edits=unquoted(path, value) if mended else (),
                )


@TYPE_RULES.error(
    "DS021 not an object where DeepSpeed expects one",
    why="DeepSpeed takes keys from it, and stops with a TypeError or an AttributeError that does not name the key",
    source="runtime/config.py, runtime/precision_config.py",
)
def no_object(config: LintedConfig) -> Iterator[Violation]:
    for path in _objects(config.facts):
        if not config.has(path) or isinstance(config.get(path), dict):
            continue
        value = config.get(path)
        if path == "zero_optimization" and isinstance(value, bool):
            continue
        if (value is None and path in ("bf16", "aio", "checkpoint.writer", "expert_parallel")) or _unread(config, path):
            continue
        switch = (
            phrase('write {{"enabled": {value}}}', value=shown(value))
            if isinstance(value, bool)
            else "write an object, or remove the key"
        )
        yield violation(path, "{path} is {value}", path=path, value=shown(value), fix=switch)


@TYPE_RULES.warning(
    "DS022 a number or truth value written as text",
    why='DeepSpeed\'s class converts it, but the Trainer and accelerate compare the text with numbers: a stage "3" is '
    "not stage 3 to them",
    source="runtime/config_utils.py DeepSpeedConfigModel; accelerate/utils/deepspeed.py set_stage_and_offload",
)
def text(config: LintedConfig) -> Iterator[Violation]:
    for block in config.facts.blocks:
        for key, value in config.block(block.path).items() if block.strict else ():
            field = block.field(key)
            if field is None or value == "auto" or not is_converted_text(field, value):
                continue
            path = f"{block.path}.{key}"
            plain = _plain(field.type.name, value)
            yield violation(
                path,
                "{key} is the text {value}",
                key=key,
                value=shown(value),
                fix=phrase("write {value}", value=shown(plain)),
                edits=(Replace(tuple(path.split(".")), plain),),
            )


@TYPE_RULES.error(
    "DS023 text where DeepSpeed computes with a number",
    why="this key is not checked when the file is read: the training stops later with a TypeError",
    source="runtime/engine.py, runtime/config.py",
)
def unchecked(config: LintedConfig) -> Iterator[Violation]:
    for name in ("wall_clock_breakdown", "flops_profiler.enabled"):  # joined by | when the file is read
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
    if size and not isinstance(size, int | float):  # its remainder by 8 is looked at
        edits = unquoted("vocabulary_size", size)
        yield bad_value(config, "vocabulary_size", fix="write a whole number", edits=edits)
    for name in ("gradient_clipping", "gradient_predivide_factor"):
        value = config.get(name)
        if isinstance(value, str | list | dict) and not (value == "auto" and name == "gradient_clipping"):
            yield bad_value(config, name, fix="write a number", edits=unquoted(name, value))
        elif value is None and config.has(name):
            yield violation(name, "{name} is null", name=name, fix="remove it, or write a value")


def _truth(path: str, value: object) -> tuple[Edit, ...]:
    """The edit that writes true or false in the place of its text."""
    truth = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None
    return () if truth is None else (Replace(tuple(path.split(".")), truth),)


def _unread(config: LintedConfig, path: str) -> bool:
    """Whether the block is bfloat16 and bf16 exists too."""
    return path == "bfloat16" and config.get("bf16") is not None


def _objects(facts: DeepSpeedFacts) -> list[str]:
    """The blocks with keys that DeepSpeed looks up; a block within a checked block is checked with that."""
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


def _fix(wrong: Phrase) -> Phrase:
    if "wanted" in wrong.fields:
        return phrase("write {value}", value=wrong.fields["wanted"])
    return phrase("write a value that is {sign} {bound}", **wrong.fields)


def _plain(kind: str, text: str) -> bool | int | float:
    if kind == "bool":
        return TRUTHS[text.lower()]
    return float(text) if kind == "float" else int(float(text))
