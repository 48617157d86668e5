"""What is meant by a name that DeepSpeed does not know: an older name of a key, one of TrainingArguments, a shortened
or a misspelled one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import NamedTuple

from ...ds_configs.config_keys import CONFIG_KEYS
from .config_file import Edit, Remove, Rename
from .document import KeyPath
from .facts import ConfigBlock, ConfigField, DeepSpeedFacts
from .linted_config import LintedConfig
from .rule import Violation
from .rules_types import as_object, key_type, successors_value
from .values import find_problem, json_text, parsed_text

OLD_NAMES = {"aio.thread_count": "intra_op_parallelism"}
"""Path of a key that DeepSpeed renamed, and no longer reads, -> its new name (pull request 7056, DeepSpeed 0.16.4)."""

_MEANT_NAMES = {"optimizer.name": "type", "scheduler.name": "type"}
"""Path of a word that stands for a key -> the key: the name of an optimizer's class is its type."""

_OF_OTHERS = {
    "mixed_precision": 'write it as "bf16": {"enabled": true} or "fp16": {"enabled": true}; mixed_precision is a '
    "setting of accelerate's own file",
    "gradient_checkpointing": "remove it, and pass gradient_checkpointing=True to TrainingArguments, or call the "
    "model's gradient_checkpointing_enable()",
}
"""Settings of accelerate and transformers without a key -> the fix where they are in a ds_config (accelerate 1.15
utils/launch.py, commands/config; transformers 5.24 training_args.py, modeling_utils.py)."""

_SUCCESSORS = {"bfloat16": "bf16"}
"""Old name of a block that DeepSpeed still reads -> its name (runtime/precision_config.py get_bfloat16_config)."""

_SIMILAR, _SIMILAR_WORD, _SAME = 0.75, 0.6, 0.9
"""Least similarity of a misspelled name, of each of its words (`tensor_parallel_size` is not `sequence_parallel_size`),
and of a name whose words are divided otherwise (`overlapcomm`)."""

_LEAST_BEGINNING = 3
"""Least letters of the beginning of a word that stands for the word: `grad`, `comm`, `eps`."""


class Meant(NamedTuple):
    """The known names that an unknown one can stand for. block: the path of their block; is_sure: False if names only
    have words in common; old: the deprecated name that it is like, if a single name is its successor."""

    names: tuple[str, ...]
    block: str
    is_sure: bool = True
    old: str = ""


def meant_by(path: KeyPath, known: Iterable[str]) -> Meant:
    """What is meant by an unknown key. known: the names of its block, or those of `names_of`."""
    block, name, successors = ".".join(path[:-1]), path[-1], known if isinstance(known, Mapping) else {}
    known = [*known]
    if old := (OLD_NAMES | _MEANT_NAMES).get(".".join(path)):
        return Meant((old,), block)
    for each in CONFIG_KEYS.values():
        owner, _, key = each.path.rpartition(".")
        if each.argument == name and (key in known if owner == block else is_inside(owner, block)):
            return Meant((key,), owner)
    if (short := _without_words_of(block, name)) in known:
        return Meant((short,), block)
    with_words = _with_its_words(name, known)
    like = with_words or _misspelled(name, known)
    found = dict.fromkeys(successors.get(each, each) for each in like)
    old = like[0] if len(like) == 1 and like[0] not in found else ""
    return Meant((*found,), block, not with_words, old)


def unknown_name(
    config: LintedConfig, path: KeyPath, what: str, known: Iterable[str], *, fix: str, is_safe: bool = False
) -> Violation:
    """A violation for an unknown key. known: the names of its block; fix: the fix if none of them is meant, as by a key
    that a script may read (unless `is_safe`) if it has some of their words and another type.

    Its fix is to rename the key, unless the right name is there already. `--fix` makes it if `is_safe`, a single name
    is meant and the value suits it.
    """
    if len(path) == 1:
        fix = _OF_OTHERS.get(path[0], fix)
    names, block, is_sure, old = meant_by(path, known)
    if not (is_safe or is_sure or any(not _problem(config, path, f"{block}.{each}".lstrip(".")) for each in names)):
        names = ()
    qualified = {name: f"{block}.{name}".lstrip(".") for name in names}
    there = [name for name in names if config.has(qualified[name])]
    same = [name for name in there if config.get(qualified[name]) == config.get(".".join(path))]
    edits: tuple[Edit, ...] = ()
    if there and not same:  # it cannot be a second name of a setting that has another value
        names = tuple(name for name in names if name not in there)
    if same or (there and not names):
        name = (same or there)[0]
        names, fix = (), f"remove it: {name if block == '.'.join(path[:-1]) else qualified[name]} is set"
        if is_safe and same:
            edits = (Remove(path),)
    elif names and block != ".".join(path[:-1]):
        fix = f"write it as {names[0]} in {block}{or_in_script(config, block)}"
    elif old and _means_none(config, path, old, names[0]):
        names, fix, edits = (), "remove it", (Remove(path),)
    elif names:
        wrong = _problem(config, path, qualified[names[0]], old) if len(names) == 1 else ""
        fix = f"rename it to {' or '.join(names)}{wrong}"
        if is_safe and len(names) == 1 and not wrong:
            edits = (Rename(path, names[0]),)
    meant = tuple(qualified[names[0]].split(".")) if len(names) == 1 else ()
    return Violation(path=path, what=what, fix=fix, edits=edits, meant=meant)


def names_of(block: ConfigBlock) -> dict[str, str]:
    """Key of a block that can be meant -> the key to write: the successor of a deprecated one, which cannot be meant
    without one."""
    names = {key: _SUCCESSORS.get(key, key) for key in block.keys}
    for known in block.fields:
        successor = block.field(known.successor) if known.deprecated else known
        names |= {known.usual_name: successor.usual_name} if successor is not None else {}
    return names


def place_in_arguments(facts: DeepSpeedFacts, block: str, name: str) -> str:
    """The block of arguments, such as optimizer.params, in which a key of a block around it belongs; "" if none."""
    owners = [each.path.rpartition(".")[0] for each in CONFIG_KEYS.values() if each.path.rpartition(".")[2] == name]
    inside = [owner for owner in owners if owner and facts.block(owner) is None and is_inside(owner, block)]
    return inside[0] if len(inside) == 1 == len(owners) else ""


def is_inside(inner: str, outer: str) -> bool:
    """Whether a block is inside another one ("" for the whole)."""
    return inner != outer and (not outer or inner.startswith(f"{outer}."))


def or_in_script(config: LintedConfig, block: str) -> str:
    """For the block of an optimizer or a scheduler that the file does not have: where else it is set."""
    root = block.partition(".")[0]
    is_made_by_script = root in ("optimizer", "scheduler") and not config.has(root)
    return f", or set it where the script makes the {root}" if is_made_by_script else ""


def _problem(config: LintedConfig, path: KeyPath, meant: str, old: str = "") -> str:
    """What else must be written if a key's value does not suit the right name; "" if it does or is unknown. old: the
    deprecated name whose values the key has."""
    kind, value = key_type(config.facts, meant), config.get(".".join(path))
    problem = None if kind is None or value == "auto" else find_problem(kind, value)
    if problem is None or kind is None:
        return ""
    plain = as_object(config, meant, value) if kind.name == "dict" else parsed_text(kind, value)
    field, new = _of_old_name(config, path, old, meant.rpartition(".")[2])
    if field is not None and new is not None and find_problem(field.type, value) is None:
        plain = successors_value(field, new, value)
    return f", and write {problem.wanted if plain is None else json_text(plain)}"


def _of_old_name(
    config: LintedConfig, path: KeyPath, old: str, new: str
) -> tuple[ConfigField | None, ConfigField | None]:
    """The fields of a deprecated name and of its successor in the block of a key."""
    old_field, new_field = (config.facts.find_field(".".join((*path[:-1], name))) for name in (old, new))
    return old_field, new_field


def _means_none(config: LintedConfig, path: KeyPath, old: str, new: str) -> bool:
    """Whether the value, as one of a deprecated name, is the same as no key."""
    field, successor = _of_old_name(config, path, old, new)
    value = config.get(".".join(path))
    if field is None or successor is None or value == "auto" or find_problem(field.type, value) is not None:
        return False
    return successors_value(field, successor, value) is None


def _without_words_of(block: str, name: str) -> str:
    """A name without the words that the name of its block has: `stage` for `zero_stage` in zero_optimization."""
    owner = _words(block.rpartition(".")[2])
    return "_".join(word for word in _words(name) if word not in owner)


def _with_its_words(name: str, known: Sequence[str]) -> tuple[str, ...]:
    """The known names that have all words of a name, or words that begin like them: those with its letters
    (`train_batchsize`), else those with no other words, else those that begin with the name, else those that contain
    it, else all."""
    words = _words(name)
    found = [each for each in known if _has_words(_words(each), words)]
    letters = [each for each in found if "".join(_words(each)) == "".join(words)]
    same = letters or [each for each in found if len(_words(each)) == len(words)]
    if same or len(words) < 2:  # a word is part of too many names
        return (*same,)
    begin, contain = [each for each in found if each.startswith(name)], [each for each in found if name in each]
    return (*(begin or contain or found),)


def _has_words(known: Sequence[str], words: Sequence[str]) -> bool:
    left = [*known]
    for word in words:
        equal = [each for each in left if each == word]
        similar = [each for each in left if _begins(each, word) or _begins(word, each)]
        if not (equal or similar):
            return False
        left.remove((equal or similar)[0])
    return True


def _begins(word: str, beginning: str) -> bool:
    return len(beginning) >= _LEAST_BEGINNING and word.startswith(beginning)


def _misspelled(name: str, known: Sequence[str]) -> tuple[str, ...]:
    """The known name that is most like a name; empty if none is."""
    close = get_close_matches(name[:60], known, n=5, cutoff=_SIMILAR)
    return (*[each for each in close if _is_alike(_words(name), _words(each))][:1],)


def _is_alike(one: Sequence[str], other: Sequence[str]) -> bool:
    if len(one) != len(other):
        return _similarity("".join(one), "".join(other)) >= _SAME
    return all(_similarity(*pair) >= _SIMILAR_WORD for pair in zip(one, other, strict=True))


def _similarity(one: str, other: str) -> float:
    return SequenceMatcher(None, one[:60], other).ratio()


def _words(name: str) -> list[str]:
    return [word for word in re.split("[_-]", name[:60].lower()) if word]
