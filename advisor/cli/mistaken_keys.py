"""What to write in place of a word that `explain` does not know: an argument of TrainingArguments, an option of
ds-advise, the file of another tool, or a file behind the key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from ...ds_configs.config_keys import CONFIG_KEYS
from ...ds_configs.files import nearest_file
from ...estimators.errors import ConfigFileError, WorkloadError
from ...validate.lint.config_file import read_config_file
from ..question.option import Option
from ..question.options import OPTIONS
from ..question.other_names import FSDP_PLAN, other_name
from .mistaken_files import is_there, with_strategy
from .typed_line import GPUS, line, typed_words, value_of

_SAME_NAME = 0.85
"""Least similarity of a misspelled argument (difflib): one letter may differ."""


_SAME_SUFFIX = 0.8
"""Least similarity of a misspelled suffix: `.jsn`, `.jason`."""


def refuse_other_name(word: str) -> None:
    """Raise WorkloadError for the name of an argument of TrainingArguments, also a misspelled one, or of an option."""
    from ..importers.imported_run import known_names  # imported here: only mistakes need them
    from ..importers.removed_arguments import removed_arguments, replacement

    name = word.lstrip("-").replace("-", "_")
    arguments, own = known_names("training-arguments", "transformers-4"), OPTIONS.get(name)
    meant = [name] if name in arguments or "_" not in name else get_close_matches(name, arguments, cutoff=_SAME_NAME)
    what = f"{word[:60]!r} is not a key of a configuration"
    if len(meant) > 1 and own is None:
        why = f"{' and '.join(meant)} are arguments of TrainingArguments"
        raise WorkloadError(what, why=why, fix=f"name one of them: {line(['explain', meant[-1]])}")
    argument = next(iter(meant), "")
    if argument in arguments and (own is None or argument == name):
        named = "it" if argument == word else argument
        if argument in removed_arguments():
            now = replacement(argument)
            why = f"{named} was an argument of TrainingArguments that transformers 5 no longer has"
            raise WorkloadError(what, why=why, fix=f"use {now}" if now else "leave it out")
        others = "" if own is None else f", and {own.flag} an option of ds-advise: {own.help.rstrip('.')}"
        why = f"{named} is an argument of TrainingArguments{others}"
        raise WorkloadError(what, why=why, fix=_for_argument(argument))
    if own is not None:
        why = f"{own.flag} is an option of ds-advise: {own.help.rstrip('.')}"
        raise WorkloadError(what, why=why, fix=f"add it to a question: {_with_value(own)}")


def _with_value(option: Option) -> str:
    words = option.metavar or "|".join([*["N"] * option.kind.startswith("count"), *option.choices])
    return f"{option.flag} {words}".rstrip()


def _for_argument(argument: str) -> str:
    """Return the key that an argument must equal, or the option that has its meaning."""
    known = CONFIG_KEYS.values()
    keys = [each.path for each in known if each.argument == argument]
    keys += [each.path for each in known if argument in re.findall(r"\w+", each.filled_with)]
    if keys:
        return f"{keys[0]} must agree with it: write {line(['explain', keys[0]])}"
    if own := OPTIONS.get(argument):
        return f"add it to a question: {_with_value(own)}"
    written = other_name(argument)
    if written.startswith("--sharding"):
        return f"write {with_strategy(FSDP_PLAN)}"
    if written:
        return f"in a question it is {re.sub('[{}]', '', written)}"
    return "pass it to TrainingArguments"


def refuse_file_behind(model: str, words: Sequence[str]) -> None:
    """Raise WorkloadError for a configuration file behind a key or a model, with the line in the right order."""
    from ..question.file_question import is_ds_config
    from .model_argument import is_model

    if not (file := next((word for word in words if is_ds_config(Path(word))), "")):
        return
    rest = [word for word in typed_words() if word not in ("explain", model, file)]
    named = ["--model", model] if is_model(model) else [model]
    fix = f"write {line(['explain', file, *named, *rest])}"
    raise WorkloadError(f"{file[:80]} is a configuration file, and comes first", fix=fix)


def refuse_missing_file(name: str) -> None:
    """Raise ConfigFileError for the name of a file that does not exist, with a suffix like that of JSON: `.jsn`."""
    path = Path(name)
    if get_close_matches(path.suffix.casefold(), [".json"], cutoff=_SAME_SUFFIX) and not is_there(path):
        near = nearest_file(path)
        fix = f"write {near}" if near else "name a configuration file, or a model such as Qwen2.5-14B"
        raise ConfigFileError(f"{name[:80]}: no such file", fix=fix)


def refuse_broken_file(name: str) -> None:
    """Raise ConfigFileError for a file of JSON that cannot be read, other than a model's config.json."""
    path = Path(name)
    if path.suffix.casefold() == ".json" and path.name != "config.json" and is_there(path) and path.is_file():
        read_config_file(path)


def refuse_ignored_key(path: Path, name: str) -> None:
    """Raise ConfigFileError for a key of a file that DeepSpeed does not know, with what lint finds about it."""
    from ...validate.lint import lint, load_facts  # imported here: only mistakes need it
    from ...validate.lint.rules_keys import IGNORED_KEYS

    if not path.is_file():
        return
    report = lint(read_config_file(path, as_meant=True).document, facts=load_facts())
    for found in report.findings:
        if ".".join(found.path) == name and found.code in IGNORED_KEYS:
            raise ConfigFileError(f"{found.sentence} ({found.code} in lint)", why=found.why, fix=found.fix)


def refuse_file_of_tool(path: Path) -> None:
    """Raise ConfigFileError for a file that another tool reads, such as one of TrainingArguments, which shares some
    names of keys with DeepSpeed."""
    from ..importers.answer import FORMATS
    from ..importers.source import read_source

    if not path.is_file():
        return  # the reader of configurations says so
    source = read_source(path)
    form = next((each for each in FORMATS if each.matches(source)), None)
    if form is not None and "zero_optimization" not in source.values:
        fix = f"write ds-advise from {path} --gpus {value_of('--gpus', typed_words()) or GPUS}"
        raise ConfigFileError(f"{path} is {form.title}, not a DeepSpeed configuration", fix=fix)
