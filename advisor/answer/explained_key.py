"""Explanation of one key of a ds_config: purpose, type, default, where it has an effect, and its cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...ds_configs.config_keys import CONFIG_KEYS, meaning, stages_of
from ...estimators.errors import ConfigFileError
from ...estimators.json_form import SCHEMA_VERSION
from ...estimators.plan import PLAN_FIELDS
from ...validate.lint import RULES, DeepSpeedFacts, Rule, load_facts
from ...validate.lint.rules_combinations import REFUSED
from ...validate.lint.rules_keys import DEPRECATED
from ...validate.lint.rules_types import NOT_READ_HERE, TOTAL
from ...validate.lint.unknown_names import OLD_NAMES, meant_by, names_of
from ...validate.lint.values import FieldType, describe_type, json_text, nearest
from ..question.file_question import FILLED
from ..question.options import OPTIONS
from ..question.workload import meant_option
from ..text.units import alternatives
from .comparison import Side
from .config_settings import ConfigSettings
from .key_costs import KeyContext, KeyCost, follows_option, key_costs, successor_path, with_value
from .key_example import as_written, example_of, key_type, refusal, remarks, value_at

_MOST_PLACES = 6

NOT_LISTED = (
    "Its keys are not listed here; DeepSpeed documents its configuration at https://www.deepspeed.ai/docs/config-json/."
)
"""The sentence on a block whose keys no class of DeepSpeed has."""

AUTO = '"auto": '
"""Start of the sentence on the value for `auto`."""


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
    default: Any
    """DeepSpeed's default; None if it has no value, none is known, or it depends on the ZeRO stage."""
    default_in_words: str
    """The default with its stages, or what DeepSpeed takes without the key; "" if neither is known."""
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
    """A configuration with the key and a value, other than the default if another is known; {} for a block and if none
    is known."""
    plan: str
    """The plan for which the costs are predicted; "" without a question."""
    file: str
    """The file that has the key or whose plan it is; "" for another plan, or without a question."""
    origin: str
    """Where the plan has the value from: `recommended` or `this plan` without a file, else `in the file`, `default`,
    `assumed for auto`; "" without a plan."""
    gradient_type: str
    """Type in which the plan reduces and accumulates gradients if the configuration names none; "" if it is another one
    at some places, and without a plan."""
    assumed: str
    """What a file's plan assumes, because neither the file nor the question has it; "" if nothing."""
    is_recommended: bool
    """Whether the plan is the recommended one."""
    recommended: Mapping[str, Any]
    """The key as the file or the plan's configuration has it; {} if it leaves the key out, or without both."""
    option: str
    """The option of a question that the key follows, whose values the costs have; "" for other keys."""
    costs: tuple[KeyCost, ...]
    no_cost: str
    """Why there are no costs; "" if there are some."""

    def deprecated(self) -> dict[str, str]:
        """Return the deprecated names among the keys of a block -> the present ones."""
        names = {name: _present_name(f"{self.path}.{name}", load_facts()) for name in self.keys}
        return {name: now for name, now in names.items() if now}


def is_key(name: str) -> bool:
    """Whether the text is the name or path of a key, or close to one, or a path in a block, and not the name of a
    file. A key that DeepSpeed removed or renamed counts."""
    if not _letters(name).replace(".", "").isalnum() or Path(name).exists():
        return False
    facts = load_facts()
    if any(name.startswith(f"{block.path}.") for block in facts.blocks if block.path) or key_places(name, facts):
        return True
    near = _nearest(name, facts, cutoff=0.85)
    return bool(_removed(name, facts) or _renamed(name)) or (
        bool(near) and ("_" in name or _letters(near) == _letters(name))
    )


def names_key(word: str) -> bool:
    """Whether a word is a key, or a path that means one, such as `zero.stage`."""
    return is_key(word) or bool(({*"./="} & {*word} or word.endswith(":")) and keys_meant(word))


def is_exact_key(name: str) -> bool:
    """Whether the text is the path of a key, or the name of only one."""
    return len(key_places(name, load_facts())) == 1


def _letters(name: str) -> str:
    """Return a name without what is mistyped most: `overlapcomm` for `overlap_comm`, `overlap-comm`, `Overlap_Comm`."""
    return name.casefold().replace("_", "").replace("-", "")


def _removed(name: str, facts: DeepSpeedFacts) -> str:
    """Return the path of the removed key or block that a name is, or is in; "" for any other name."""
    return next((path for path in facts.removed if f".{path}".endswith(f".{name}") or name.startswith(f"{path}.")), "")


def _renamed(name: str) -> str:
    """Return the path of the key that now has another name than this one or than the end of a path; "" for none."""
    found = ((old.rpartition(".")[0], new) for old, new in OLD_NAMES.items() if f".{old}".endswith(f".{name}"))
    return ".".join(filter(None, next(found, ())))


def key_places(name: str, facts: DeepSpeedFacts) -> tuple[str, ...]:
    """Return the path itself, or every path that ends with it; without one those that do but for the case of letters
    and the characters between words."""
    return _places(name, facts, str) or _places(name, facts, _letters)


def _places(name: str, facts: DeepSpeedFacts, form: Callable[[str], str]) -> tuple[str, ...]:
    end, found = form(f".{name}"), []
    for block in facts.blocks:
        for key in (*block.keys, *(each for known in block.fields for each in known.names)):
            if form(f".{block.qualified_path(key)}").endswith(end):
                field = block.field(key)
                found.append(block.qualified_path(field.usual_name if field is not None else key))
    found += [path for path in CONFIG_KEYS if form(f".{path}").endswith(end)]
    unique = tuple(dict.fromkeys(path for path in found if not path.startswith("bfloat16.")))
    return (name,) if name in unique else unique


def keys_meant(word: str) -> tuple[str, ...]:
    """Return up to three keys that are meant by a word: the key of `overlap_comm=true` or `optimizer/params/lr`, the
    new name of an old one, the path that a shorter one stands for, such as `zero.stage`, what lint has for an unknown
    name of the root or of another tool, or those whose names begin with it (blocks, else single keys)."""
    facts = load_facts()
    name = re.split("[=:]", word)[0].strip("\"' ").replace("/", ".")
    if name != word and (places := key_places(name, facts)):
        return places[:3]
    if renamed := _renamed(name):
        return (renamed,)
    if "." in name:
        return _along(name, facts)[:3]
    root = facts.block("")
    if root is not None and "_" in word and (meant := meant_by((word,), names_of(root))).names:
        return tuple(".".join(filter(None, (meant.block, each))) for each in meant.names[:3])
    blocks = [block.path.rpartition(".")[2] for block in facts.blocks]
    for names in (blocks, [name for block in facts.blocks for name in block.names()]):
        if found := dict.fromkeys(name for name in names if name.startswith(f"{word}_")):
            return tuple(found)[:3]
    return ()


def _along(name: str, facts: DeepSpeedFacts) -> tuple[str, ...]:
    """Return the paths that have the parts of a shorter path in their order, of which blocks may be shortened to their
    first words: `optimizer.lr`, `zero.stage`."""
    *blocks, last = name.split(".")
    known = dict.fromkeys([block.qualified_path(key) for block in facts.blocks for key in block.names()])
    known |= dict.fromkeys(CONFIG_KEYS)

    def has_parts(path: str) -> bool:
        *owners, key = path.split(".")
        left = iter(owners)
        return key == last and all(
            any(owner == block or owner.startswith(f"{block}_") for owner in left) for block in blocks
        )

    return tuple(filter(has_parts, known))


def _nearest(name: str, facts: DeepSpeedFacts, cutoff: float = 0.6) -> str:
    """Return the key whose name is most like that at the end of a path, in blocks most like those of the path; of a
    deprecated one its successor."""
    places = [tuple(map(block.qualified_path, pair)) for block in facts.blocks for pair in names_of(block).items()]
    paths = [(old.split("."), now.split(".")) for old, now in places]
    parts, own = name.count(".") + 1, _letters(name.rpartition(".")[2])
    names = {*get_close_matches(own[:60], {_letters(path[-1]) for path, _ in paths}, n=3, cutoff=cutoff)}
    found = (pair for pair in paths if len(pair[0]) >= parts and _letters(pair[0][-1]) in names)
    keys = {_letters(".".join(path[-parts:])): ".".join(now[-parts:]) for path, now in found}
    return keys.get(nearest(_letters(name), keys, cutoff=cutoff), "")


def find_key(name: str, facts: DeepSpeedFacts) -> str:
    """Return the path of a key that is given by its path or its last name. Raises ConfigFileError for an unknown or
    removed name, and for one that several blocks have."""
    places = key_places(name, facts)
    blocks = [block.path for block in facts.blocks if block.path.rpartition(".")[2].startswith(f"{name}_")]
    if len(places) == 1 and blocks and all(path.count(".") < places[0].count(".") for path in blocks):
        fix = f"pass its path: {', '.join([*blocks, places[0]])}"
        raise ConfigFileError(f"{name!r} is the name of one key, and the start of others", fix=fix)
    if not places and (path := _removed(name, facts)):
        why = facts.removed[path].strip().rstrip(".")
        raise ConfigFileError(
            f"{path} is not in DeepSpeed {facts.version}", why=why, fix="leave it out of the configuration"
        )
    if not places and (now := _renamed(name)):
        why = f"it is now {now.rpartition('.')[2]}"
        raise ConfigFileError(f"DeepSpeed {facts.version} has no key {name!r}", why=why, fix=f"name {now}")
    if not places:
        near = alternatives(keys_meant(name)) or _nearest(name, facts)
        fix = f"did you mean {near}?" if near else "name a key of the configuration, such as overlap_comm"
        raise ConfigFileError(f"DeepSpeed {facts.version} has no key {name[:60]!r}", fix=fix)
    if len(places) > 1:
        paths = ", ".join(places[:_MOST_PLACES]) + (", ..." if len(places) > _MOST_PLACES else "")
        raise ConfigFileError(f"{len(places)} blocks have a key {name!r}", fix=f"pass its path: {paths}")
    return places[0]


def explain_key(
    name: str, *, facts: DeepSpeedFacts, context: KeyContext | None = None, side: Side | None = None
) -> KeyExplanation:
    """Explain a key, given by its path or its last name. context: the plan for which costs are predicted. side: without
    a context, the file whose value is shown. Raises the errors of `find_key`."""
    path = find_key(name, facts)
    field, block = facts.find_field(path), facts.block(path)
    kind = key_type(path, facts)
    default, default_in_words = (None, "") if block is not None else _default(path, facts)
    file, config = ("", {}) if side is None else (side.name, side.settings.config)
    if context is not None:
        file, config = context.file, context.config
    own = value_at(path, config)
    example = {} if block is not None or (field is not None and field.deprecated) else example_of(path, facts)
    costs, no_cost = ((), "") if context is None else key_costs(path, context)
    if context is not None and config and not follows_option(path):
        costs = tuple(replace(cost, lint=remarks(path, cost.value, context, facts)) for cost in costs)
    if context is not None and no_cost and config:
        no_cost = refusal(path, example, context, facts) or no_cost

    def described(path: str) -> str:
        known, now = facts.find_field(path), _present_name(path, facts)
        of_class = known.description if known is not None else ""
        return meaning(path) or (f"the deprecated name of {now}" if now else of_class)

    return KeyExplanation(
        schema_version=SCHEMA_VERSION,
        path=path,
        meaning=described(path),
        description=field.description if field is not None and meaning(path) else "",
        type="a block" if block is not None else "" if kind is None else _describe(path, kind, facts),
        default=default,
        default_in_words=default_in_words,
        deepspeed=facts.version,
        stages=stages_of(successor_path(path, facts) or path),
        acts=tuple(_acts(path, context)),
        keys={} if block is None else {key: described(f"{path}.{key}") for key in block.names()},
        rules=tuple(_rules(path, facts)),
        example=example,
        plan="" if context is None else context.title,
        file=file,
        origin="" if context is None else _origin(path, context, side),
        gradient_type="" if context is None else _gradient_type(context),
        assumed="" if context is None or side is None else side.all_assumed,
        is_recommended=context is not None and context.is_recommended,
        recommended={} if own is None else with_value({}, path.split("."), as_written(path, own, facts)),
        option=follows_option(path),
        costs=costs,
        no_cost=no_cost,
    )


def _present_name(path: str, facts: DeepSpeedFacts) -> str:
    """Return the name that took the place of a deprecated one; "" for any other."""
    return successor_path(path, facts).rpartition(".")[2]


def _describe(path: str, kind: FieldType, facts: DeepSpeedFacts) -> str:
    """Return a key's type; of the name of a class the names that DeepSpeed has."""
    names = {"optimizer.type": facts.optimizers, "scheduler.type": (*facts.schedulers,)}.get(path)
    if names is None:
        return describe_type(kind)
    # With ZeRO or 16 bits the engine wraps the optimizer, and torch's schedulers refuse that (lint's DS609).
    torch = "optim, in its own letters" if path == "optimizer.type" else "optim.lr_scheduler, in fp32 without ZeRO"
    return f"a name: {', '.join(names)}; or a class of torch.{torch}"


def _gradient_type(context: KeyContext) -> str:
    """Return DeepSpeed 0.19.8's default type of gradients (runtime/engine.py `communication_data_type`,
    `get_data_types`): that of the training, except with sequence parallelism."""
    return context.workload.precision if context.plan.sequence_parallel_size == 1 else ""


def _origin(path: str, context: KeyContext, side: Side | None) -> str:
    """Return where a plan has the value of a key, or of the option that the key follows, from."""
    if side is None:
        return "recommended" if context.is_recommended else "this plan"
    option, settings = follows_option(path), side.settings
    setting = settings.get(path)
    if option and setting.is_default:  # another key may have what the option names, as fp16.enabled
        same = [each.path for each in CONFIG_KEYS.values() if each.option == option]
        if any(settings.get(each).origin == "file" for each in same):
            return "in the file"
        return OPTIONS[option].flag if option in side.given else "assumed"
    is_named = not option or option in side.given
    if path in (*FILLED.values(), TOTAL):
        is_named = _names_batch(path, side)
    return {
        "file": "in the file",
        "auto": "for auto" if is_named else "assumed for auto",
        "derived": "computed" if is_named else "assumed",
    }.get(setting.origin, "default")


def _names_batch(path: str, side: Side) -> bool:
    """Return whether the file or the options decide a size of the batch."""
    settings, given = side.settings, side.given
    known = {key for option, key in FILLED.items() if option in given or settings.get(key).origin != "auto"}
    if path == FILLED["micro_batch"]:
        return path in known
    has_total = "global_batch" in given or settings.get(TOTAL).origin == "file"
    return has_total or (path in known if path != TOTAL else known == {*FILLED.values()})


def _rules(path: str, facts: DeepSpeedFacts) -> Iterator[str]:
    """Yield the rules on a key: first those whose fix names it, then those whose example is corrected at it."""
    (block, _, key), field, found = path.rpartition("."), facts.find_field(path), list[Rule]()
    named = rf'"{key}": ' + rf"|\buse (?:that )?{key}\b" * (facts.block(path) is None)  # a block in place of another
    if len(facts.owners(key)) > 1:
        named = rf'"{block.rpartition(".")[2]}": {{"{key}": '
    if field is not None and field.deprecated:
        found += (rule for rule in RULES if rule.code == DEPRECATED)
    rules = [each for each in RULES if not each.code.startswith("DS0")]  # those are about any key
    found += (rule for rule in rules if re.search(named, rule.fix))
    for rule in rules:
        bad, good, _ = rule.example
        mistake, mended = value_at(path, bad), value_at(path, good)
        if mistake != mended and (mistake is not None or _is_what_is_added(path, bad, good)):
            found.append(rule)
    yield from dict.fromkeys(f"{rule.code} {rule.title}" for rule in found)


_FEW = 2
"""Keys that the correction of a mistake adds, if the mistake is that they are missing."""


def _is_what_is_added(path: str, bad: Any, good: Any) -> bool:
    """Return whether a mistake is that the key is missing: its correction adds few keys, replaces none of another
    block, and adds no block of which the key is only a part."""
    before, after = _leaves(bad), _leaves(good)
    new = {each for each in after if after[each] != before.get(each)}
    replaced = {each.rpartition(".")[0] for each in {*before} - {*after}}
    blocks = accumulate(path.split("."), "{}.{}".format)  # the outermost first, then the key
    whole = next(each for each in blocks if value_at(each, bad) is None)
    others = {each for each in new if each.startswith(f"{whole}.") and not f"{each}.".startswith(f"{path}.")}
    return len(new) <= _FEW and replaced <= {path.rpartition(".")[0]} and not others


def _leaves(config: Any, above: str = "") -> dict[str, Any]:
    """Return every value that is no object by its path."""
    if not isinstance(config, dict):
        return {above: config}
    parts = (_leaves(value, f"{above}.{key}".lstrip(".")) for key, value in config.items())
    return {path: value for part in parts for path, value in part.items()}


def _default(path: str, facts: DeepSpeedFacts) -> tuple[Any, str]:
    """Return (the default value, its words); see `KeyExplanation`."""
    by_stage = {
        stage: ConfigSettings({"zero_optimization": {"stage": stage}}, facts).default(path).value for stage in range(4)
    }
    usual = by_stage[1]
    others = [f"{json_text(value)} at stage {stage}" for stage, value in by_stage.items() if stage and value != usual]
    known = CONFIG_KEYS.get(path)
    unset = "" if known is None else known.unset
    words = ", ".join([json_text(usual), *others]) if usual is not None or others else unset
    return None if others else usual, words


def _acts(path: str, context: KeyContext | None) -> Iterator[str]:
    known = CONFIG_KEYS.get(path)
    if cases := [check.what for check in REFUSED if path in check.paths and check.what]:
        yield f"DeepSpeed refuses it if {'; if '.join(cases)}."
    if path in NOT_READ_HERE:
        yield NOT_LISTED
    if path.startswith("aio.") or (known is not None and known.nvme_only):
        yield "It takes effect only with offload to NVMe."
    if known is not None and known.condition:
        yield f"It takes effect only {known.condition}."
    if known is None or not known.fill:
        return
    with_size = known.filled_from_hidden_size
    value = known.filled_with or (f"{known.argument} of TrainingArguments" if known.argument else "")
    if known.fill == "always":
        yield f"Under the Trainer or accelerate it has no effect: any value is replaced by {value}."
    elif with_size is not None and context is not None:
        yield f"{AUTO}the Trainer fills in {with_size(context.model.hidden_size):,}, computed from the hidden size."
    elif with_size is not None:
        yield f"{AUTO}the Trainer computes it from the hidden size."
    else:
        refused = "; it refuses a value that differs from it." if known.fill == "match" else "."
        yield f"{AUTO}the Trainer fills in {value}{refused}"


def split_settings(settings: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return (the settings without those of keys that a plan does not have, the paths of all keys among them)."""
    facts = load_facts()
    places = {name: key_places(name.replace("-", "_"), facts) for name in settings}
    paths = {name: found[0] for name, found in places.items() if len(found) == 1}
    # A block with the name of a setting, and a key that an option decides, are settings.
    decided = {name for name in settings if name.replace("-", "_") in PLAN_FIELDS or meant_option(name, "")}
    outside = {name for name, path in paths.items() if name not in decided and not _is_plans(path)}
    kept = {name: value for name, value in settings.items() if name not in outside}
    return kept, tuple(path for name, path in paths.items() if name in outside or _is_plans(path))


def _is_plans(path: str) -> bool:
    known = CONFIG_KEYS.get(path)
    return known is not None and bool(known.field)
