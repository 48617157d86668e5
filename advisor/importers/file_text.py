"""YAML and JSON files of options: reading, and editing that keeps comments, order and quotes of other keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from ...estimators.errors import ConfigFileError
from ...validate.lint.config_file import Remove, Replace, apply
from ...validate.lint.document_reader import read_document
from .imported_run import Value


def edit_json(text: str, changes: Mapping[str, Value]) -> str:
    """The text with these keys set, or removed if the value is None. Raises ConfigFileError if that would lose a
    comment."""
    for name, value in changes.items():
        document = read_document(text.encode(), name="the file")
        members = document.list_members(())
        if document.member((name,)) is not None:
            text, made = apply(document, [Remove((name,)) if value is None else Replace((name,), value)])
            if not made:
                raise ConfigFileError(
                    f"{name} cannot be removed without its comment", fix="remove the comment next to it"
                )
        elif value is not None:
            end, blank = members[-1].value_end, document.text[document.start + 1 : members[0].start]
            text = f"{document.text[:end]},{blank}{json.dumps(name)}: {json.dumps(value)}{document.text[end:]}"
    return text


_MOST_ALIASES = 20
"""Maximum number of aliases. Nested aliases multiply; with this number, a text grows to at most thousands of values."""

_FIX = "give the configuration file that you pass to the tool"


def read_yaml(text: str, name: str) -> dict[str, Any]:
    """The mapping in a text, parsed like `yaml.safe_load`. Raises ConfigFileError if the text is not a mapping."""
    try:
        aliases = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader))
        if aliases > _MOST_ALIASES:
            raise ConfigFileError(f"{name}: {aliases} aliases, more than a configuration has", fix=_FIX)
        value = yaml.safe_load(text)
        json.dumps(value, default=str)  # raises for a value that contains itself
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise ConfigFileError(f"{name}: not YAML: {problem.problem or problem.context}{where}", fix=_FIX) from problem
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        raise ConfigFileError(f"{name}: not YAML that can be read", fix=_FIX) from problem
    if not isinstance(value, dict):
        raise ConfigFileError(f"{name}: has no keys with values", fix=_FIX)
    return {str(key): item for key, item in value.items()}


def edit_yaml(text: str, changes: Mapping[str, Value]) -> str:
    """The text with these keys of the outermost mapping set, or removed if the value is None. Raises ConfigFileError if
    the form of the text does not allow it, such as a key that stands in several lines of a mapping in braces."""
    expected = yaml.safe_load(text)
    for name, value in changes.items():
        text = _set_key(text, name, value)
        expected = {key: item for key, item in (expected | {name: value}).items() if item is not None or key != name}
    # The edits are made on the text: only reading it again shows that no other value changed.
    try:
        done = yaml.safe_load(text) == expected
    except yaml.YAMLError:
        done = False
    if not done:
        raise ConfigFileError(
            "single keys of this file cannot be changed in its present form",
            fix="write one key a line, without aliases",
        )
    return text


def _set_key(text: str, name: str, value: Value) -> str:
    entries = yaml.compose(text, Loader=yaml.SafeLoader).value
    index = next((index for index, (key, _) in enumerate(entries) if key.value == name), None)
    if index is None and value is None:
        return text
    key, old = entries[-1 if index is None else index]
    following = None if index is None or index + 1 == len(entries) else entries[index + 1][0]
    entry = text[key.start_mark.index : len(text) if following is None else following.start_mark.index]
    # A comment after the last line of a value belongs to the next key.
    end = key.start_mark.index + len(re.sub(r"(?:^[ \t]*(?:#.*)?(?:\n|\Z))+\Z", "", entry, flags=re.MULTILINE))
    dumped = "" if value is None else yaml.safe_dump({name: value}, sort_keys=False, width=10**6, allow_unicode=True)
    if index is None:
        before = text[:end] + "\n" * (not text[:end].endswith("\n"))
        return before + dumped + text[end:]
    start, colon = key.start_mark.index, text.index(":", key.end_mark.index) + 1
    is_line = isinstance(old, yaml.ScalarNode) and old.style not in ("|", ">")
    if value is None or isinstance(value, Mapping) or not is_line:
        return text[:start] + dumped + text[end:]
    written = dumped[len(name) + 2 :].removesuffix("\n")
    if old.end_mark.index <= colon:  # an empty value
        return f"{text[:colon]} {written}{text[colon:]}"
    return text[: old.start_mark.index] + written + text[old.end_mark.index :]
