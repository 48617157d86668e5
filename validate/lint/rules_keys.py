"""Keys of a file: unknown, misplaced, removed, deprecated (DS01x)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from ...ds_configs.config_keys import CONFIG_KEYS
from .config_file import Edit, Remove, Rename, Replace
from .document import KeyPath
from .facts import ConfigBlock, ConfigField
from .linted_config import LintedConfig, Misspelled
from .rule import LONGEST_NAME, Violation, advice_rule, error_rule, section, violation, warning_rule
from .rules_types import MICRO, TOTAL, key_type, successors_value
from .unknown_names import OLD_NAMES, meant_by, names_of, or_in_script, place_in_arguments, unknown_name
from .values import MOST_TO_WRITE, find_problem, json_text

TOP_LEVEL = "the top level"


def with_right_names(config: LintedConfig) -> LintedConfig:
    """The configuration in which misspelled and misplaced keys have their right paths, so that the other rules judge
    what is meant. An unknown block around all keys is removed too.

    They are keys of blocks that DeepSpeed validates, for which it rejects the file, and whole blocks, which it ignores.
    A single key that it ignores stays ignored: without it the file may lack a value that it needs.
    """
    found = _without_wrapper(config)
    while wrong := next(_misspelled(found), None):
        values, (path, right, _) = deepcopy(found.values), wrong
        _block_at(values, right[:-1])[right[-1]] = _block_at(values, path[:-1]).pop(path[-1])
        document = found.document.moved(path, right)
        found = replace(found, values=values, document=document, misspelled=(*found.misspelled, wrong), written=config)
    return found


def _without_wrapper(config: LintedConfig) -> LintedConfig:
    """The configuration with the keys of an unknown block, most of them keys of the top level, in its place, if the top
    level itself has none."""
    for path, block, _ in _unknown(config):
        inner = config.block(path[0])
        rest = {name: value for name, value in config.values.items() if name != path[0]}
        if _is_wrapper(config, path, block) and not rest.keys() & {*block.names()}:
            member = config.document.member(path)
            assert member is not None, "the file has the key"
            wrong = Misspelled(path, (), (member.start, member.end))
            document = config.document.moved(path, ())
            return replace(config, values=rest | inner, document=document, misspelled=(wrong,), written=config)
    return config


def _is_wrapper(config: LintedConfig, path: KeyPath, block: ConfigBlock) -> bool:
    """Whether an unknown key is a block around a configuration: most of its keys are keys of the top level, which has
    none itself, or lacks the batch size that the block has."""
    inner, known = config.block(path[0]) if len(path) == 1 and not block.path else {}, {*block.names()}
    sizes = {MICRO, TOTAL}
    is_needed = inner.keys() & sizes and not config.values.keys() & sizes
    return 2 * len(inner.keys() & known) > len(inner) and bool(is_needed or not config.values.keys() & known)


def _block_at(values: Any, path: KeyPath) -> Any:
    for name in path:
        values = values[name]
    return values


def _misspelled(config: LintedConfig) -> Iterator[Misspelled]:
    for path, block, place in _unknown(config):
        value, right = config.get(".".join(path)), (*_names(place), path[-1])
        if not place:
            names, owner, *_ = meant_by(path, names_of(block))
            if len(names) != 1 or owner != block.path:
                continue
            right = (*path[:-1], names[0])
        field, there = config.facts.find_field(".".join(right)), right[:-1]
        others = field.names if field is not None else right[-1:]
        if any(config.has(".".join((*there, name))) for name in others):
            continue
        if block.strict:
            kind = key_type(config.facts, ".".join(right))
            fits = value != "auto" and kind is not None and find_problem(kind, value) is None
        else:
            fits = isinstance(value, dict) and config.facts.block(".".join(right)) is not None
        if fits and (not there or config.block(".".join(there))):
            member = config.document.member(path)
            assert member is not None, "the file has the key"
            yield Misspelled(path, right, (member.start, member.end))


def _names(place: str) -> KeyPath:
    return () if place == TOP_LEVEL else tuple(place.split("."))


def _rejected(config: LintedConfig) -> Iterator[Violation]:
    for path, block, place in _unknown(config):
        if block.strict and not place:
            dropped = config.get(".".join(path)) == "auto"  # DeepSpeedConfigModel.__init__ drops these first
            # No training has a file that is rejected, so a correction cannot change one. bf16 needs no key of fp16's
            # loss scaling; any other name may stand for a key that is needed.
            is_needless = block.path in ("bf16", "bfloat16") and "fp16" in config.facts.owners(path[-1])
            fix = "remove it" if dropped or is_needless else "remove it, or write what is meant"
            found = unknown_name(config, path, _no_such_key(path, block), names_of(block), fix=fix, is_safe=not dropped)
            yield replace(found, severity="warning") if dropped else found
    for wrong in config.misspelled:
        path, right, span = wrong
        parent = config.facts.block(".".join(path[:-1]))
        if parent is not None and parent.strict and not wrong.is_misplaced:
            what, edit = _no_such_key(path, parent), Rename(path, right[-1])
            yield Violation(path=path, what=what, fix=f"rename it to {right[-1]}", edits=(edit,), span=span)


def _ignored(config: LintedConfig) -> Iterator[Violation]:
    for path, block, place in _unknown(config):
        if not block.strict and not place:
            what, fix = _no_such_key(path, block), "remove it, unless the training script reads it"
            fix = _MOVE_KEYS if _is_wrapper(config, path, block) else fix
            if new := OLD_NAMES.get(".".join(path)):
                what += f", which is now {new}"
            yield unknown_name(config, path, what, names_of(block), fix=fix)
    for wrong in config.misspelled:
        path, right, span = wrong
        parent = config.facts.block(".".join(path[:-1]))
        if parent is None or parent.strict or wrong.is_misplaced:
            continue
        if not right:
            yield _wrapper(wrong, _no_such_key(path, parent))
            continue
        effect, is_serious = _without_block(config, ".".join(right))
        is_refused = right == ("zero_optimization",) and config.framework == "hf"
        refused = "accelerate rejects a configuration without zero_optimization"
        yield Violation(
            path=path,
            what=f"{_no_such_key(path, parent)}: the whole block is ignored{effect}",
            why=refused if is_refused else "DeepSpeed never reads it, and there is no message",
            fix=f"rename it to {right[-1]}",
            judged="the renamed block",
            severity="error" if is_refused or is_serious else None,
            span=span,
        )


_MOVE_KEYS = "move its keys to the top level, unless the training script passes this block to DeepSpeed"


def _wrapper(wrong: Misspelled, what: str) -> Violation:
    return Violation(
        path=wrong.path,
        what=f"{what}: the whole block is ignored, so DeepSpeed finds no batch size, and raises an error",
        why="DeepSpeed reads all its keys from the top level, and has no message for another one",
        fix=_MOVE_KEYS,
        judged="the moved keys",
        severity="error",
        span=wrong.span,
    )


def _without_block(config: LintedConfig, path: str) -> tuple[str, bool]:
    """(words, whether it is serious) of what a training lacks without a block: ZeRO, the precision, or an optimizer."""
    values, (*owners, name) = deepcopy(config.values), path.split(".")
    block: Any = values
    for owner in owners:
        block = block[owner]
    del block[name]
    without = replace(config, values=values)
    if without.stage != config.stage:
        zero = "ZeRO" if without.stage else "ZeRO is off: it"
        return f", so {zero} has stage {without.stage} instead of {config.stage}", True
    if without.model_type != config.model_type:
        return f", so the training is in {without.model_type} instead of {config.model_type}", True
    return f", so DeepSpeed makes no {path}" if path in ("optimizer", "scheduler") else "", False


def _misplaced(config: LintedConfig) -> Iterator[Violation]:
    for path, block, place in _unknown(config):
        if place:
            is_rejected = block.strict and config.get(".".join(path)) != "auto"
            right = ".".join((*_names(place), path[-1]))
            fix = f"{_move(place)}{or_in_script(config, place)}"
            yield replace(
                _wrong_block(path, place, is_rejected=is_rejected),
                fix=f"remove it: {right} is set" if config.has(right) else fix,
            )
    for wrong in config.misspelled:
        parent, right = config.facts.block(".".join(wrong.path[:-1])), ".".join(wrong.right)
        if parent is not None and wrong.is_misplaced:
            place = ".".join(wrong.right[:-1]) or TOP_LEVEL
            found = _wrong_block(wrong.path, place, is_rejected=parent.strict)
            effect, is_serious = ("", False) if parent.strict else _without_block(config, right)
            yield replace(
                found,
                what=found.what + effect,
                fix=_move(place),
                judged="the moved block" if isinstance(config.get(right), dict) else "",
                severity="error" if is_serious else found.severity,
                span=wrong.span,
            )


def _wrong_block(path: KeyPath, place: str, *, is_rejected: bool) -> Violation:
    return Violation(
        path=path,
        what=f"{path[-1]} belongs {'at' if place == TOP_LEVEL else 'in'} {place}",
        why=f"DeepSpeed reads it from there: here it is {'rejected' if is_rejected else 'ignored'}",
        severity="error" if is_rejected else None,
    )


def _move(place: str) -> str:
    return f"move it {'to' if place == TOP_LEVEL else 'into'} {place}"


def _removed(config: LintedConfig) -> Iterator[Violation]:
    for path, words in config.facts.removed.items():
        if config.has(path):
            value = config.get(path)
            unused = not value or (isinstance(value, dict) and config.off(f"{path}.enabled"))
            place = "the block" if isinstance(value, dict) else "the key"
            what, *advice = re.split(r" (?=(?:Use|Set) )", words.partition(" See http")[0].strip().rstrip("."))
            instead = f"{advice[0][0].lower()}{advice[0][1:]}" if advice else "train without the feature"
            fix = f"remove {place}" if unused else f"remove {place}, and {instead}"
            yield violation(path, what.rstrip("."), fix=fix)


def _deprecated(config: LintedConfig) -> Iterator[Violation]:
    for path, block, field in _present_fields(config):
        if not field.deprecated or (field.moves and _other_name(config, block, field)):
            continue
        yield _deprecated_key(config, path, block, field)
    old_form = config.get("zero_optimization")
    if isinstance(old_form, bool):
        new_form = {"stage": int(old_form)}
        goes = old_form and config.has(_OLD_SIZE)
        if goes:
            new_form["allgather_bucket_size"] = config.get(_OLD_SIZE)
        is_refused = config.framework == "hf"
        yield violation(
            "zero_optimization",
            f"zero_optimization is {json_text(old_form)}, the old form of stage {int(old_form)}",
            why="accelerate takes the value for an object, and raises an error" if is_refused else "",
            fix=f"write {json_text(new_form, longest=MOST_TO_WRITE)}{f', and remove {_OLD_SIZE}' * goes}",
            severity="error" if is_refused else None,
            edits=(Replace(("zero_optimization",), new_form), *[Remove((_OLD_SIZE,))] * goes),
        )
    if config.has("bfloat16"):
        if config.get("bf16") is not None:
            yield violation("bfloat16", "bfloat16 is ignored because bf16 exists", fix="remove it")
        else:
            edit = Rename(("bfloat16",), "bf16")
            yield violation(
                "bfloat16",
                "bfloat16 is the old name of bf16; the Trainer and accelerate never read it",
                fix="name the block bf16",
                edits=(edit,),
            )


def _deprecated_key(config: LintedConfig, path: str, block: ConfigBlock, field: ConfigField) -> Violation:
    known, key = CONFIG_KEYS.get(path), tuple(path.split("."))
    if known is not None and not known.stages:
        meaning = known.meaning.removeprefix("no effect: ")
        fix, unread = f"remove it; {meaning}", "no code of DeepSpeed reads it, and it will be removed"
        return violation(path, f"{field.name} has no effect", why=unread, fix=fix, edits=(Remove(key),))
    successor, name = block.field(field.successor), block.successor_name(field)
    what = f"{field.name} is deprecated" + f"; its successor is {name}" * bool(name)
    unseen = field.name == "cpu_offload" and config.framework == "hf" and config.flag(path) and config.stage
    unseen = unseen and not config.has("optimizer") and not config.off("zero_force_ds_cpu_optimizer")
    if unseen:
        what += ", and accelerate, which ignores it, passes torch's AdamW, which DeepSpeed rejects under offload"
    fix, edits, value = f"write {name} instead" if name else "remove it", tuple[Edit, ...](), config.get(path)
    if successor is not None and field.moves and (value == "auto" or find_problem(field.type, value) is None):
        new = None if value == "auto" else successors_value(field, successor, value)
        fix = "remove it" if new is None else f'write "{name}": {json_text(new, longest=MOST_TO_WRITE)} instead'
        converted = () if new is value else (Replace((*key[:-1], name), new),)
        edits = (Remove(key),) if new is None else (Rename(key, name), *converted)
    return violation(path, what, fix=fix, severity="error" if unseen else None, edits=edits)


def _two_names(config: LintedConfig) -> Iterator[Violation]:
    for path, block, field in _present_fields(config):
        other = _other_name(config, block, field)
        if other and not config.is_auto(path):
            same = config.flag(path) and config.get(f"{block.qualified_path(other)}.device") == "cpu"
            fix = "remove it" if same else ""
            relation = "is the successor of" if field.deprecated and other != field.alias else "is an alias of"
            why = f"{other} {relation} {field.name}; DeepSpeed accepts one of them"
            yield violation(path, f"{field.name} and {other} are the same setting", why=why, fix=fix)


def _unread(config: LintedConfig) -> Iterator[Violation]:
    for known in CONFIG_KEYS.values():
        field = config.facts.find_field(known.path)
        is_read = bool(known.stages) or (field is not None and field.deprecated) or config.is_auto(known.path)
        # ZenFlow's optimizer takes it (0.19.8 runtime/zenflow/zenflow_stage_1_and_2.py)
        is_read |= known.path == _GATHER_BUCKET and config.has_zenflow
        is_read |= known.path == _LEGACY and bool(config.flag(_LEGACY)) and config.stage > 0  # that is refused
        if not is_read and config.has(known.path):
            why = _ONLY_CHECKED if known.path == _GATHER_BUCKET else ""
            yield violation(known.path, f"{known.path.rpartition('.')[2]} has no effect", why=why)
    if config.has(_OLD_SIZE) and not isinstance(config.get("zero_optimization"), bool):
        yield violation(_OLD_SIZE, f"{_OLD_SIZE} has no effect", why='only "zero_optimization": true reads it')


_GATHER_BUCKET = "zero_optimization.allgather_bucket_size"
_ONLY_CHECKED = "current torch gathers whole buffers; stages 1 and 2 only assert that it is even"
"""What is done with that key (runtime/zero/stage_1_and_2.py __init__)."""

_LEGACY = "zero_optimization.legacy_stage1"

_OLD_SIZE = "allgather_size"
"""Key beside the old form of zero_optimization."""

IGNORED_KEYS = ("DS011", "DS012")
"""Codes of the rules on keys that DeepSpeed does not read, without an error or a message."""

DEPRECATED = "DS014"
"""Code of the rule on keys that have a successor."""

KEY_RULES = section(
    "Keys",
    error_rule(
        "DS010 an unknown key in a block that DeepSpeed validates",
        _rejected,
        why="the block is read by a pydantic class that forbids other keys, so DeepSpeed raises an error",
        source="runtime/config_utils.py DeepSpeedConfigModel (extra=forbid)",
    ),
    warning_rule(
        "DS011 an unknown key that DeepSpeed ignores",
        _ignored,
        why="DeepSpeed never reads it, so it has no effect, and there is no message",
        source="runtime/config.py (get_scalar_param)",
    ),
    warning_rule(
        "DS012 a key in the wrong block",
        _misplaced,
        why="DeepSpeed reads it from another block: here it is ignored, or rejected if the block is validated",
        source="runtime/config.py, runtime/zero/config.py",
    ),
    error_rule(
        "DS013 a feature that was removed from DeepSpeed",
        _removed,
        why="DeepSpeed raises an error for the key instead of ignoring it",
        source="runtime/config.py _reject_removed_config_keys",
        since="0.19.7",
    ),
    warning_rule(
        "DS014 a deprecated key",
        _deprecated,
        why="DeepSpeed still reads it, with a warning in its log, and will remove it",
        source="runtime/zero/config.py (json_schema_extra deprecated), runtime/precision_config.py get_bfloat16_config",
    ),
    error_rule(
        "DS015 one setting under two names",
        _two_names,
        why="a key has an alias, or a deprecated key and its successor are both set; DeepSpeed accepts one of them",
        fix="remove one of them",
        source="runtime/config_utils.py _process_deprecated_field; runtime/zero/config.py (alias, populate_by_name)",
    ),
    advice_rule(
        "DS019 a key that nothing reads",
        _unread,
        why="DeepSpeed accepts it, and no code uses its value at any ZeRO stage, beyond an assertion that "
        "allgather_bucket_size is even",
        fix="remove it",
        source="runtime/utils.py all_gather_dp_groups; runtime/engine.py zero_allgather_partitions; runtime/config.py "
        "get_disable_allgather; runtime/zero/config.py read_zero_config_deprecated",
    ),
)


def _present_fields(config: LintedConfig) -> Iterator[tuple[str, ConfigBlock, ConfigField]]:
    """(path, block, field) of every field of a validated block that the file has under the field's own name."""
    for block in config.facts.blocks:
        for field in block.fields:
            path = block.qualified_path(field.name)
            if config.has(path):
                yield path, block, field


def _other_name(config: LintedConfig, block: ConfigBlock, field: ConfigField) -> str:
    """Another name of the same setting that the file has too: the alias, or the successor of a deprecated key."""
    successor = block.field(field.successor) if field.deprecated and field.moves else None
    names = (field.alias, *(successor.names if successor is not None else ()))
    paths = {name: block.qualified_path(name) for name in names if name}
    return next((name for name, path in paths.items() if config.has(path) and not config.is_auto(path)), "")


def _unknown(config: LintedConfig) -> Iterator[tuple[KeyPath, ConfigBlock, str]]:
    """(path, its block, the block where it belongs or "") of every key that its block does not have."""
    for block in config.facts.blocks:
        if block.path == "bfloat16" and config.get("bf16") is not None:
            continue  # DeepSpeed does not read bfloat16 then
        for key in config.block(block.path):
            path = block.qualified_path(key)
            remark = not block.strict and key.startswith(("_", "//", "#", "comment"))
            known = block.path in config.facts.owners(key) or path in config.facts.removed
            if not known and not remark and path != "wandb.api_key":  # DS855 reports it
                yield (*(block.path.split(".") if block.path else ()), key), block, _place(config, block, key)


def _no_such_key(path: KeyPath, block: ConfigBlock) -> str:
    return f"{block.path or 'DeepSpeed'} has no key {path[-1][:LONGEST_NAME]!r}"


def _place(config: LintedConfig, block: ConfigBlock, key: str) -> str:
    """The only block that has this key; "" if there are none or several. At the top level zero_optimization takes
    precedence. A name without an underscore is a common word ("mode", "group"), which has another meaning elsewhere."""
    owners = config.facts.owners(key)
    if arguments := place_in_arguments(config.facts, block.path, key):
        return arguments
    if "zero_optimization" in owners and not block.path:
        return "zero_optimization"
    # bf16 lacks only keys of fp16's loss scaling, which it does not need; comet's api_key is no key of wandb
    is_common_word = bool(owners and owners[0]) and "_" not in key
    if len(owners) != 1 or is_common_word or block.path in ("bf16", "bfloat16", "wandb"):
        return ""
    return owners[0] or TOP_LEVEL
