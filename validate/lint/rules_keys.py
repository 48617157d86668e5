"""The keys of a file: unknown, misplaced, removed, deprecated (DS01x)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...estimators.phrase import phrase
from .config_file import Edit, Remove, Rename, Replace
from .facts import ConfigBlock, ConfigField
from .linted_config import LintedConfig
from .rule import KeyPath, Rules, Violation, unknown_name, violation

KEY_RULES = Rules("Keys")
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
"""Blocks with unambiguous keys. In others names are common words ("mode", "group", "debug") or specific to one service
("api_key")."""
_LONGEST_NAME = 60


@KEY_RULES.error(
    "DS010 an unknown key in a block that DeepSpeed checks",
    why="the block is read by a pydantic class that forbids other keys, so DeepSpeed stops",
    source="runtime/config_utils.py DeepSpeedConfigModel (extra=forbid)",
)
def refused(config: LintedConfig) -> Iterator[Violation]:
    for path, block, place in _unknown(config):
        if block.strict and not place:
            dropped = config.get(".".join(path)) == "auto"  # DeepSpeedConfigModel.__init__ drops these first
            yield replace(_no_such_key(path, block, fix="remove it"), severity="warning" if dropped else None)


@KEY_RULES.warning(
    "DS011 an unknown key that DeepSpeed ignores",
    why="DeepSpeed never looks it up, so it has no effect, and there is no message",
    source="runtime/config.py (get_scalar_param)",
)
def ignored(config: LintedConfig) -> Iterator[Violation]:
    for path, block, place in _unknown(config):
        if not block.strict and not place:
            yield _no_such_key(path, block, fix="remove it, unless the training script reads it")


@KEY_RULES.warning(
    "DS012 a key in the wrong block",
    why="DeepSpeed looks it up elsewhere: here it is ignored, or refused where the block is checked",
    source="runtime/config.py, runtime/zero/config.py",
)
def misplaced(config: LintedConfig) -> Iterator[Violation]:
    for path, block, place in _unknown(config):
        if place:
            yield Violation(
                path=path,
                what=phrase("{name} belongs in {place}", name=path[-1], place=place),
                fix=phrase("move it into {place}", place=place),
                severity="error" if block.strict and config.get(".".join(path)) != "auto" else None,
            )


@KEY_RULES.error(
    "DS013 a feature that was removed from DeepSpeed",
    why="DeepSpeed stops at the key instead of ignoring it",
    source="runtime/config.py _reject_removed_config_keys",
    since="0.19.7",
)
def removed(config: LintedConfig) -> Iterator[Violation]:
    for path, words in config.facts.removed.items():
        if config.has(path):
            value = config.get(path)
            unused = not value or (isinstance(value, dict) and config.off(f"{path}.enabled"))
            fix = "remove the block" if unused else "remove the block, and configure what replaces it"
            yield violation(path, words.partition(" See http")[0].strip(), fix=fix)


@KEY_RULES.warning(
    "DS014 a deprecated key",
    why="DeepSpeed still reads it with a warning in its log, and will drop it",
    source="runtime/zero/config.py (json_schema_extra deprecated)",
)
def deprecated(config: LintedConfig) -> Iterator[Violation]:
    for path, block, field in _given_fields(config):
        if field.deprecated and not (field.moves and _successor_stands(config, block, field)):
            successor = _usual_name(block, field.successor)
            edits = _succession(config, tuple(path.split(".")), successor)
            says_nothing = any(isinstance(edit, Remove) for edit in edits)
            what = phrase("{name} is deprecated", name=field.name)
            if successor:
                what = phrase("{what}; its successor is {successor}", what=what, successor=successor)
            unseen = field.name == "cpu_offload" and config.framework == "hf" and config.flag(path) and config.stage
            unseen = unseen and not config.has("optimizer") and not config.off("zero_force_ds_cpu_optimizer")
            if unseen:
                what = phrase(
                    "{what}, and accelerate, which does not know it, passes torch's AdamW, which DeepSpeed refuses "
                    "here",
                    what=what,
                )
            yield violation(
                path,
                what,
                fix=phrase("write {successor} instead", successor=successor)
                if successor and not says_nothing
                else "remove it",
                severity="error" if unseen else None,
                edits=edits,
            )


@KEY_RULES.error(
    "DS015 a deprecated key together with its successor",
    why="DeepSpeed would have to overwrite one with the other, and stops",
    fix="remove the deprecated key, if both mean the same",
    source="runtime/config_utils.py _process_deprecated_field",
)
def both_names(config: LintedConfig) -> Iterator[Violation]:
    for path, block, field in _given_fields(config):
        moved = field.deprecated and field.moves and not config.is_auto(path)
        if moved and _successor_stands(config, block, field):
            successor = _usual_name(block, field.successor)
            same = config.get(path) is True and config.get(f"{block.path_of(successor)}.device") == "cpu"
            fix = "remove it" if same else ""
            yield violation(path, "{name} and {successor} are both set", name=field.name, successor=successor, fix=fix)


@KEY_RULES.warning(
    "DS016 the old name of the bf16 block",
    why="DeepSpeed reads bfloat16 only where bf16 is missing; the Trainer and accelerate never read it",
    fix="name the block bf16",
    source="runtime/precision_config.py get_bfloat16_config",
)
def old_bf16(config: LintedConfig) -> Iterator[Violation]:
    if config.has("bfloat16"):
        ignored = config.get("bf16") is not None
        yield violation(
            "bfloat16",
            "bfloat16 is ignored because bf16 exists" if ignored else "bfloat16 is bf16's old name",
            edits=(Remove(("bfloat16",)),) if ignored else (Rename(("bfloat16",), "bf16"),),
        )


@KEY_RULES.error(
    "DS017 one setting under two names",
    why="the class knows the key by both names, takes one and refuses the other as unknown",
    fix="remove one of them",
    source="runtime/zero/config.py (alias, populate_by_name)",
)
def two_names(config: LintedConfig) -> Iterator[Violation]:
    for path, block, field in _given_fields(config):
        paths = [block.path_of(name) for name in field.names]
        if field.alias and all(config.has(path) and not config.is_auto(path) for path in paths):
            yield violation(path, "{name} and {alias} are the same setting", name=field.name, alias=field.alias)


def _given_fields(config: LintedConfig) -> Iterator[tuple[str, ConfigBlock, ConfigField]]:
    """(path, block, field) of every field of a validated block that the file has under the field's own name."""
    for block in config.facts.blocks:
        for field in block.fields:
            path = block.path_of(field.name)
            if config.has(path):
                yield path, block, field


def _unknown(config: LintedConfig) -> Iterator[tuple[KeyPath, ConfigBlock, str]]:
    """(path, its block, the block where it belongs or "") of every key that its block does not have."""
    for block in config.facts.blocks:
        if block.path == "bfloat16" and config.get("bf16") is not None:
            continue  # DeepSpeed does not read bfloat16 then
        found = config.block(block.path) if block.path else config.values
        for key in found:
            path = block.path_of(key)
            known = block.path in config.facts.owners(key) or path in config.facts.removed
            if not (known or path == "wandb.api_key" or _is_comment(key, block)):
                yield (*(block.path.split(".") if block.path else ()), key), block, _place(config, block, key)


def _no_such_key(path: KeyPath, block: ConfigBlock, *, fix: str) -> Violation:
    key = repr(path[-1][:_LONGEST_NAME])
    what = phrase("{block} has no key {key}", block=block.path or "DeepSpeed", key=key)
    return unknown_name(path, what, block.names(), cutoff=0.75, fix=fix)


def _is_comment(key: str, block: ConfigBlock) -> bool:
    """Whether a key is a remark that DeepSpeed ignores."""
    return not block.strict and key.startswith(("_", "//", "#", "comment"))


def _place(config: LintedConfig, block: ConfigBlock, key: str) -> str:
    """The only other block that has this key; "" if there are none or several. At the top level zero_optimization takes
    precedence.

    Only blocks that contain this one or lie in it count, and blocks in `_TELLING`: in others a key of the same name has
    another meaning.
    """
    if block.path in ("bf16", "bfloat16"):
        return ""  # it lacks only keys of fp16's loss scaling, which bf16 does not need
    places = [path for path in config.facts.owners(key) if path != block.path and path in _TELLING]
    if "zero_optimization" in places and not block.path:
        return "zero_optimization"
    if len(places) != 1 or len(config.facts.owners(key)) != 1:
        return ""
    return (places[0] or phrase("the top level")) if _around(places[0], block.path) or "_" in key else ""


def _around(one: str, other: str) -> bool:
    """Whether one block contains the other."""
    return all(a == b for a, b in zip(one.split("."), other.split("."), strict=False)) if one and other else True


def _usual_name(block: ConfigBlock, name: str) -> str:
    """The usual name of a key in files."""
    field = block.field(name)
    return field.usual_name if field is not None else name


def _successor_stands(config: LintedConfig, block: ConfigBlock, field: ConfigField) -> bool:
    successor = block.field(field.successor)
    paths = [block.path_of(name) for name in successor.names] if successor is not None else []
    return any(config.has(path) and not config.is_auto(path) for path in paths)


def _succession(config: LintedConfig, path: KeyPath, successor: str) -> tuple[Edit, ...]:
    """Edits that express the same setting under its new name."""
    name, value = path[-1], config.get(".".join(path))
    if name in ("cpu_offload", "cpu_offload_param"):
        renamed = (*path[:-1], successor)
        return (Rename(path, successor), Replace(renamed, {"device": "cpu"})) if value is True else (Remove(path),)
    if name == "stage3_gather_fp16_weights_on_model_save":
        return (Rename(path, successor),)
    return ()
