"""The text of a file, its keys and the types of their values (DS0xx)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from . import rule_conditions as when
from .config_file import Edit, Remove, Rename, Replace
from .document import Departure, DocumentNode
from .facts import ConfigBlock, ConfigField, DeepSpeedFacts
from .linted_config import LintedConfig, did_you_mean, is_converted_text, number_in, problem, shown
from .rule import Path, Rules, Violation, unquoted, violation
from .rule_conditions import at
from .rule_examples import CPU, ON, plain, zero

FILE_RULES = Rules("The file")
_CONFIG = "runtime/config.py DeepSpeedConfig"
_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")
_HF = "accelerate/utils/deepspeed.py HfDeepSpeedConfig"


@FILE_RULES.error(
    "DS001 more than JSON in a file that is read as JSON",
    why="DeepSpeed reads Hjson, but the Trainer and accelerate read the file with Python's json and stop",
    fix="write plain JSON, or pass the file to deepspeed.initialize",
    source=_HF,
    bad='{"train_micro_batch_size_per_gpu": "auto", # per GPU\n "zero_optimization": {"stage": 2}}',
    good='{"train_micro_batch_size_per_gpu": "auto",\n "zero_optimization": {"stage": 2}}',
)
def more_than_json(config: LintedConfig) -> Iterator[Violation]:
    departures = [found for found in config.document.departures if found.kind not in _NOT_NUMBERS]
    if config.framework == "hf" and departures:
        first = departures[0]
        line, column = config.document.place(first.start)
        kinds = ", ".join(dict.fromkeys(found.kind for found in departures))
        yield Violation(
            path=_path_at(config.document.root, first), what=f"{kinds} (first at line {line}, column {column})"
        )


@FILE_RULES.error(
    "DS002 a number too large for a float",
    why="DeepSpeed's reader fails on it with an OverflowError; Python's json makes it infinite",
    fix="write a number below 1.8e308",
    source="hjson decoder.py scantfnns",
    bad='{"train_batch_size": 8, "gradient_clipping": 1e400}',
    good='{"train_batch_size": 8, "gradient_clipping": 1e30}',
)
def infinite_number(config: LintedConfig) -> Iterator[Violation]:
    literal = {found.start for found in config.document.departures}
    for path, node in _walk(config.document.root, ()):
        if isinstance(node.value, float) and math.isinf(node.value) and node.start not in literal:
            yield Violation(
                path=path,
                what=f"{config.document.text[node.start : node.end][:20]} is infinite",
                severity="warning" if config.framework == "hf" else None,
            )


@FILE_RULES.error(
    "DS003 a byte order mark in front of the file",
    why="DeepSpeed's reader skips it, but Python's json, with which the Trainer and accelerate read, stops at it",
    fix="save the file as UTF-8 without a byte order mark",
    source=_HF,
    bad='\ufeff{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}',
    good='{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}',
)
def byte_order_mark(config: LintedConfig) -> Iterator[Violation]:
    if config.document.byte_order_mark and config.framework == "hf":
        yield Violation(path=(), what="the file begins with a byte order mark")


@FILE_RULES.error(
    "DS004 a key twice in one object",
    why="DeepSpeed refuses the file; the Trainer and accelerate silently take the last one",
    fix="remove one of them",
    source="runtime/config_utils.py dict_raise_error_on_duplicate_keys",
    bad='{"train_batch_size": 8, "train_batch_size": 16}',
    good='{"train_batch_size": 16}',
)
def duplicate(config: LintedConfig) -> Iterator[Violation]:
    for path, member in config.document.duplicates():
        line, _ = config.document.place(member.start)
        yield Violation(
            path=path,
            what=f"{path[-1]!r} is repeated here (line {line})",
            severity="warning" if config.framework == "hf" else None,
        )


@FILE_RULES.warning(
    "DS005 NaN or Infinity",
    why="JSON has no such value: DeepSpeed's reader takes the word, and the rest of the line, as text",
    fix="write a number",
    source="hjson decoder.py scantfnns",
    bad='{"train_batch_size": 8, "gradient_clipping": NaN\n}',
    good='{"train_batch_size": 8, "gradient_clipping": 1.0}',
)
def not_a_number(config: LintedConfig) -> Iterator[Violation]:
    for found in config.document.departures:
        if found.kind in _NOT_NUMBERS:
            yield Violation(path=_path_at(config.document.root, found), what=f"{found.kind} is not JSON")


def _walk(node: DocumentNode, path: Path) -> Iterator[tuple[Path, DocumentNode]]:
    yield path, node
    for member in node.members:
        yield from _walk(member.node, (*path, member.key))
    for index, item in enumerate(node.items):
        yield from _walk(item, (*path, str(index)))


def _path_at(node: DocumentNode, found: Departure) -> Path:
    """The key with this place in its value or name, or the key before the place."""
    before = [member for member in node.members if member.start <= found.start]
    if not before:
        return ()
    return (before[-1].key, *_path_at(before[-1].node, found))


KEY_RULES = Rules("Keys")
_OWN_RULES = {
    "aio.thread_count",
    "wandb.api_key",
    *(
        f"{block}.{key}"
        for block in ("bf16", "bfloat16")
        for key in (
            "loss_scale",
            "initial_scale_power",
            "loss_scale_window",
            "hysteresis",
            "min_loss_scale",
            "auto_cast",
        )
    ),
}
"""Unknown keys with a more specific rule."""
_TELLING = (
    "",
    "zero_optimization",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
    "fp16",
    "activation_checkpointing",
    "aio",
    "checkpoint",
    "data_types",
)
"""Blocks with unambiguous keys. Elsewhere names are common words ("mode", "group", "debug") or belong to one service
("api_key")."""
_LONGEST_NAME = 60


@KEY_RULES.error(
    "DS010 an unknown key in a block that DeepSpeed checks",
    why="the block is read by a pydantic class that forbids other keys, so DeepSpeed stops",
    fix="remove it, or correct its name",
    source="runtime/config_utils.py DeepSpeedConfigModel (extra=forbid)",
    bad=plain(zero_optimization=zero(2, overlap_com=True)),
    good=plain(zero_optimization=zero(2, overlap_comm=True)),
)
def refused(config: LintedConfig) -> Iterator[Violation]:
    for path, block, place in _unknown(config):
        if block.strict and not place:
            dropped = config.get(".".join(path)) == "auto"  # DeepSpeedConfigModel.__init__ drops these before it looks
            yield Violation(path=path, what=_no_such_key(path[-1], block), severity="warning" if dropped else None)


@KEY_RULES.warning(
    "DS011 an unknown key that DeepSpeed ignores",
    why="DeepSpeed never looks it up, so it has no effect, and there is no message",
    fix="remove it, or correct its name",
    source="runtime/config.py (get_scalar_param)",
    bad=plain(gradient_cliping=1.0),
    good=plain(gradient_clipping=1.0),
)
def ignored(config: LintedConfig) -> Iterator[Violation]:
    for path, block, place in _unknown(config):
        if not block.strict and not place:
            yield Violation(path=path, what=_no_such_key(path[-1], block))


@KEY_RULES.warning(
    "DS012 a key in the wrong block",
    why="DeepSpeed looks it up elsewhere: here it is ignored, or refused where the block is checked",
    source="runtime/config.py, runtime/zero/config.py",
    bad=plain(overlap_comm=True, zero_optimization=zero(2)),
    good=plain(zero_optimization=zero(2, overlap_comm=True)),
)
def misplaced(config: LintedConfig) -> Iterator[Violation]:
    for path, block, place in _unknown(config):
        if place:
            yield Violation(
                path=path,
                what=f"{path[-1]} belongs in {place}",
                fix=f"move it into {place}",
                severity="error" if block.strict and config.get(".".join(path)) != "auto" else None,
            )


@KEY_RULES.error(
    "DS013 a feature that was removed from DeepSpeed",
    why="DeepSpeed stops at the key instead of ignoring it",
    fix="remove the block",
    source="runtime/config.py _reject_removed_config_keys",
    since="0.19.7",
    bad=plain(amp=ON),
    good=plain(bf16=ON),
)
def removed(config: LintedConfig) -> Iterator[Violation]:
    for path, words in config.facts.removed.items():
        if config.has(path):
            value = config.get(path)
            unused = not value or (isinstance(value, dict) and config.off(f"{path}.enabled"))
            edits: tuple[Edit, ...] = (Remove(tuple(path.split("."))),) if unused else ()
            yield violation(path, words.partition(" See http")[0].strip(), edits=edits)


@KEY_RULES.warning(
    "DS014 a deprecated key",
    why="DeepSpeed still reads it with a warning in its log, and will drop it",
    source="runtime/zero/config.py (json_schema_extra deprecated)",
    bad=plain(zero_optimization=zero(2, cpu_offload=True)),
    good=plain(zero_optimization=zero(2, offload_optimizer=CPU)),
)
def deprecated(config: LintedConfig) -> Iterator[Violation]:
    for path, block, field in _given_fields(config):
        if field.deprecated and not (field.moves and _successor_stands(config, block, field)):
            successor = _usual_name(block, field.successor)
            edits = _succession(config, tuple(path.split(".")), successor)
            says_nothing = any(isinstance(edit, Remove) for edit in edits)
            yield violation(
                path,
                f"{field.name} is deprecated" + (f"; its successor is {successor}" if successor else ""),
                fix=f"write {successor} instead" if successor and not says_nothing else "remove it",
                edits=edits,
            )


@KEY_RULES.error(
    "DS015 a deprecated key together with its successor",
    why="DeepSpeed would have to overwrite one with the other, and stops",
    fix="remove the deprecated key",
    source="runtime/config_utils.py _process_deprecated_field",
    bad=plain(zero_optimization=zero(2, cpu_offload=True, offload_optimizer=CPU)),
    good=plain(zero_optimization=zero(2, offload_optimizer=CPU)),
)
def both_names(config: LintedConfig) -> Iterator[Violation]:
    for path, block, field in _given_fields(config):
        moved = field.deprecated and field.moves and not config.is_auto(path)
        if moved and _successor_stands(config, block, field):
            yield violation(path, f"{field.name} and {_usual_name(block, field.successor)} are both set")


@KEY_RULES.warning(
    "DS016 the old name of the bf16 block",
    why="DeepSpeed reads bfloat16 only where bf16 is missing; the Trainer and accelerate never read it",
    fix="name the block bf16",
    source="runtime/precision_config.py get_bfloat16_config",
    bad=plain(bfloat16=ON),
    good=plain(bf16=ON),
)
def old_bf16(config: LintedConfig) -> Iterator[Violation]:
    if config.has("bfloat16"):
        ignored = config.get("bf16") is not None
        yield violation(
            "bfloat16",
            "bfloat16 is ignored because bf16 exists" if ignored else "bfloat16 is bf16's old name",
            edits=(Remove(("bfloat16",)),) if ignored else (Rename(("bfloat16",), "bf16"),),
        )


KEY_RULES.error(
    "DS018 progressive_layer_drop without enabled",
    at("progressive_layer_drop.enabled", ~when.given & when.is_block("progressive_layer_drop"), "the key is missing"),
    why="DeepSpeed takes the key out of the block, and raises a KeyError where it is missing",
    fix="write enabled, or remove the block",
    source="runtime/config.py get_pld_params",
    until="0.19.7",
    bad=plain(progressive_layer_drop={}),
    good=plain(),
)


@KEY_RULES.error(
    "DS017 one setting under two names",
    why="the class knows the key by both names, takes one and refuses the other as unknown",
    fix="remove one of them",
    source="runtime/zero/config.py (alias, populate_by_name)",
    bad=plain(zero_optimization=zero(3, prefetch_bucket_size=1000, stage3_prefetch_bucket_size=1000)),
    good=plain(zero_optimization=zero(3, stage3_prefetch_bucket_size=1000)),
)
def two_names(config: LintedConfig) -> Iterator[Violation]:
    for path, block, field in _given_fields(config):
        paths = [block.path_of(name) for name in field.names]
        if field.alias and all(config.has(path) and not config.is_auto(path) for path in paths):
            yield violation(path, f"{field.name} and {field.alias} are the same setting")


def _given_fields(config: LintedConfig) -> Iterator[tuple[str, ConfigBlock, ConfigField]]:
    """(path, block, field) of every field of a checked block that the file has under its own name."""
    for block in config.facts.blocks:
        for field in block.fields:
            path = block.path_of(field.name)
            if config.has(path):
                yield path, block, field


def _unknown(config: LintedConfig) -> Iterator[tuple[Path, ConfigBlock, str]]:
    """(path, its block, the block that it belongs in or "") of every key that its block does not know."""
    for block in config.facts.blocks:
        if block.path == "bfloat16" and config.get("bf16") is not None:
            continue  # it is not read
        found = config.block(block.path) if block.path else config.values
        for key in found:
            path = block.path_of(key)
            known = block.path in config.facts.owners(key) or path in config.facts.removed
            if not (known or path in _OWN_RULES or _is_comment(key, block)):
                yield (*(block.path.split(".") if block.path else ()), key), block, _place(config, block, key)


def _no_such_key(key: str, block: ConfigBlock) -> str:
    near = did_you_mean(key, block.names(), cutoff=0.75)
    return f"{block.path or 'DeepSpeed'} has no key {key[:_LONGEST_NAME]!r}{near}"


def _is_comment(key: str, block: ConfigBlock) -> bool:
    """A key that somebody wrote as a remark, where DeepSpeed ignores it."""
    return not block.strict and key.startswith(("_", "//", "#", "comment"))


def _place(config: LintedConfig, block: ConfigBlock, key: str) -> str:
    """The only other block that has this key, "" if none or several do; at the top level, ZeRO's before others.

    Only blocks around this one or within it count, and blocks of `_TELLING` keys: in others a key of the same name is
    another thing.
    """
    places = [path for path in config.facts.owners(key) if path != block.path and path in _TELLING]
    if "zero_optimization" in places and not block.path:
        return "zero_optimization"
    if len(places) != 1 or len(config.facts.owners(key)) != 1:
        return ""
    return (places[0] or "the top level") if _around(places[0], block.path) or "_" in key else ""


def _around(one: str, other: str) -> bool:
    """Whether one block contains the other."""
    return all(a == b for a, b in zip(one.split("."), other.split("."), strict=False)) if one and other else True


def _usual_name(block: ConfigBlock, name: str) -> str:
    """A key under the name that files use."""
    field = block.field(name)
    return field.usual_name if field is not None else name


def _successor_stands(config: LintedConfig, block: ConfigBlock, field: ConfigField) -> bool:
    successor = block.field(field.successor)
    paths = [block.path_of(name) for name in successor.names] if successor is not None else []
    return any(config.has(path) and not config.is_auto(path) for path in paths)


def _succession(config: LintedConfig, path: Path, successor: str) -> tuple[Edit, ...]:
    """The same setting under its new name."""
    name, value = path[-1], config.get(".".join(path))
    if name in ("cpu_offload", "cpu_offload_param"):
        renamed = (*path[:-1], successor)
        return (Rename(path, successor), Replace(renamed, {"device": "cpu"})) if value is True else (Remove(path),)
    if name == "stage3_gather_fp16_weights_on_model_save":
        return (Rename(path, successor),)
    return ()


TYPE_RULES = Rules("Types and ranges")
_LEAF = "zero_optimization.leaf_module"
"""The block that takes a name in the place of a list of names, and null for itself
(runtime/zero/leaf_module_config.py `_coerce_container_types`)."""


@TYPE_RULES.error(
    "DS020 a value that DeepSpeed does not take",
    why="its pydantic class cannot convert it, or it is out of range, and DeepSpeed stops",
    source="runtime/zero/config.py, runtime/precision_config.py and the other classes of DeepSpeedConfigModel",
    bad=plain(zero_optimization=zero(4)),
    good=plain(zero_optimization=zero(3)),
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
                yield violation(path, f"{key} {wrong}", fix=_fix(wrong), edits=unquoted(path, value) if mended else ())


@TYPE_RULES.error(
    "DS021 not an object where DeepSpeed expects one",
    why="DeepSpeed takes keys from it, and stops with a TypeError or an AttributeError that does not name the key",
    source="runtime/config.py, runtime/precision_config.py",
    bad=plain(bf16=True),
    good=plain(bf16=ON),
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
            f'write {{"enabled": {shown(value)}}}' if isinstance(value, bool) else "write an object, or remove the key"
        )
        yield violation(path, f"{path} is {shown(value)}", fix=switch)


@TYPE_RULES.warning(
    "DS022 a number or truth value written as text",
    why='DeepSpeed\'s class converts it, but the Trainer and accelerate compare the text with numbers: a stage "3" is '
    "not stage 3 to them",
    source="runtime/config_utils.py DeepSpeedConfigModel; accelerate/utils/deepspeed.py set_stage_and_offload",
    bad=plain(zero_optimization={"stage": "3"}),
    good=plain(zero_optimization=zero(3)),
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
                f"{key} is the text {shown(value)}",
                fix=f"write {shown(plain)}",
                edits=(Replace(tuple(path.split(".")), plain),),
            )


@TYPE_RULES.error(
    "DS023 text where DeepSpeed computes with a number",
    why="this key is not checked when the file is read: the training stops later with a TypeError",
    source="runtime/engine.py, runtime/config.py",
    bad=plain(gradient_clipping="1.0"),
    good=plain(gradient_clipping=1.0),
)
def unchecked(config: LintedConfig) -> Iterator[Violation]:
    for name in ("wall_clock_breakdown", "flops_profiler.enabled"):  # joined by | when the file is read
        value = config.get(name)
        if not isinstance(value, bool | int) and config.has(name):
            yield violation(name, f"{name} is {shown(value)}", fix="write true or false", edits=_truth(name, value))
    size = config.get("vocabulary_size")
    if size and not isinstance(size, int | float):  # its remainder by 8 is looked at
        edits = unquoted("vocabulary_size", size)
        yield violation("vocabulary_size", f"vocabulary_size is {shown(size)}", fix="write a whole number", edits=edits)
    for name in ("gradient_clipping", "gradient_predivide_factor"):
        value = config.get(name)
        if isinstance(value, str | list | dict) and not (value == "auto" and name == "gradient_clipping"):
            yield violation(name, f"{name} is {shown(value)}", fix="write a number", edits=unquoted(name, value))
        elif value is None and config.has(name):
            yield violation(name, f"{name} is null", fix="remove it, or write a value")


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


def _fix(wrong: str) -> str:
    wanted = wrong.partition("which is not ")[2] or wrong.partition("but must be ")[2]
    return f"write {wanted}" if "which is not" in wrong else f"write a value that is {wanted}"


def _plain(kind: str, text: str) -> bool | int | float:
    if kind == "bool":
        return text.lower() in ("true", "yes", "on", "1", "t", "y")
    return float(text) if kind == "float" else int(float(text))
