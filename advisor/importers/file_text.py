"""YAML and JSON files of options: reading, and editing that keeps comments, order and quotes of other keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from ...estimators.errors import ConfigFileError
from ...estimators.phrase import phrase
from ...validate.lint.config_file import Remove, Replace, apply
from ...validate.lint.document import Document, read_document
from .imported_run import KeyPath, Value


def edit_json(text: str, changes: Mapping[KeyPath, Value]) -> str:
    """The text with these keys set, or removed if the value is None. Raises ConfigFileError if that would lose a
    comment."""
    document = read_document(text.encode(), name="the file")
    for path, value in changes.items():
        member = document.member(path)
        if member is None:
            text = document.text if value is None else _inserted(document, path, value)
        else:
            text, made = apply(document, [Remove(path) if value is None else Replace(path, value)])
            if not made:
                raise ConfigFileError(
                    phrase("{path} cannot be removed without its comment", path=".".join(path)),
                    fix="remove the comment next to it",
                )
        document = read_document(text.encode(), name="the changed file")
    return text


def _inserted(document: Document, path: KeyPath, value: Value) -> str:
    owner, depth = document.root, 0
    while depth < len(path) - 1 and (member := owner.member(path[depth])) is not None:
        owner, depth = member.node, depth + 1
    text, value = document.text, _nested(path[depth + 1 :], value)
    if not owner.members:
        return f"{text[: owner.start + 1]}{json.dumps(path[depth])}: {json.dumps(value)}{text[owner.end - 1 :]}"
    first, last = owner.members[0], owner.members[-1]
    column = document.place(first.start)[1]
    written = json.dumps(value, indent=2).replace("\n", "\n" + " " * (column - 1))
    entry = f"{text[owner.start + 1 : first.start]}{json.dumps(path[depth])}: {written}"
    return f"{text[: last.node.end]},{entry}{text[last.node.end :]}"


def _nested(path: KeyPath, value: Value) -> Value:
    for name in reversed(path):
        value = {name: value}
    return value


_MOST_ALIASES = 20
"""Maximum number of aliases. Nested aliases multiply; with this number, a text grows to at most thousands of values."""

_FIX = "give the configuration file that you pass to the tool"


def read_yaml(text: str, name: str) -> dict[str, Any]:
    """The mapping in a text, parsed like `yaml.safe_load`. Raises ConfigFileError if the text is not a mapping."""
    try:
        aliases = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader))
        if aliases > _MOST_ALIASES:
            raise ConfigFileError(
                phrase("{name}: {aliases} aliases, more than a configuration has", name=name, aliases=aliases), fix=_FIX
            )
        value = yaml.safe_load(text)
        json.dumps(value, default=str)  # raises for a value that contains itself
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise ConfigFileError(
            phrase(
                "{name}: not YAML: {words}{where}", name=name, words=problem.problem or problem.context, where=where
            ),
            fix=_FIX,
        ) from problem
    except yaml.reader.ReaderError as problem:
        raise ConfigFileError(
            phrase("{name}: not YAML: a character that no text has", name=name), fix=_FIX
        ) from problem
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        raise ConfigFileError(phrase("{name}: not YAML that can be read", name=name), fix=_FIX) from problem
    if not isinstance(value, dict):
        raise ConfigFileError(phrase("{name}: holds no keys with values", name=name), fix=_FIX)
    return {str(key): item for key, item in value.items()}


def edit_yaml(text: str, changes: Mapping[KeyPath, Value]) -> str:
    """The text with these keys set, or removed if the value is None. Raises ConfigFileError if the form of the text
    does not allow it, such as a key behind an alias, or a mapping in braces."""
    expected = yaml.safe_load(text)
    for path, value in changes.items():
        text = _set(text, path, value)
        expected = _with_change(expected, path, value)
    try:
        done = yaml.safe_load(text) == expected
    except yaml.YAMLError:
        done = False
    if not done:
        raise ConfigFileError(
            "the file's form does not let its keys be changed one by one", fix="write one key a line, without aliases"
        )
    return text


def _with_change(values: Mapping[str, Any], path: KeyPath, value: Value) -> Mapping[str, Any]:
    (name, *below), others = path, {key: item for key, item in values.items() if key != path[0]}
    if not below:
        return others if value is None else {**values, name: value}
    inner = values.get(name)
    if not isinstance(inner, Mapping):
        return values if value is None else {**values, name: _nested(tuple(below), value)}
    return {**values, name: _with_change(inner, tuple(below), value)}


def _set(text: str, path: KeyPath, value: Value) -> str:
    owner, depth = yaml.compose(text, Loader=yaml.SafeLoader), 0
    found = _entry(owner, path[0])
    while found is not None and depth < len(path) - 1 and _is_block(found[1]):
        owner, depth = found[1], depth + 1
        found = _entry(owner, path[depth])
    missing = path[depth + 1 :]
    if value is None:
        return text if found is None or missing else _remove(text, found)
    value = _nested(missing, value)
    return _insert(text, owner, {path[depth]: value}) if found is None else _replace(text, found, value)


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and bool(node.value) and not node.flow_style


def _entry(owner: yaml.Node, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    """The (key, value) nodes of a name in a mapping; of duplicates the last, as the loader does."""
    entries = owner.value if isinstance(owner, yaml.MappingNode) else []
    return next(((key, value) for key, value in reversed(entries) if key.value == name), None)


def _replace(text: str, found: tuple[yaml.Node, yaml.Node], value: Value) -> str:
    key, old = found
    start, end = key.end_mark.index, max(_end(old), key.end_mark.index)
    colon = text.index(":", start) + 1
    is_plain = isinstance(old, yaml.ScalarNode) and old.end_mark.index > colon
    if is_plain and not isinstance(value, Mapping):  # the blanks before the value stay
        return text[: old.start_mark.index] + _scalar(value) + text[end:]
    written = _block(value, key.start_mark.column + 2) if isinstance(value, Mapping) else f" {_scalar(value)}"
    return text[:colon] + written + text[max(end, colon) :]


def _remove(text: str, found: tuple[yaml.Node, yaml.Node]) -> str:
    key, value = found
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    end = text.find("\n", max(_end(value), key.end_mark.index))
    return text[:start] + (text[end + 1 :] if end != -1 else "")


def _insert(text: str, owner: yaml.Node, entries: Mapping[str, Value]) -> str:
    last_key, last = owner.value[-1]
    column = owner.value[0][0].start_mark.column
    end = text.find("\n", max(_end(last), last_key.end_mark.index))
    before, after = (text + "\n", "") if end == -1 else (text[: end + 1], text[end + 1 :])
    return before + _block(entries, column).lstrip("\n") + "\n" + after


def _block(entries: Mapping[str, Any], column: int) -> str:
    """A mapping as YAML in block style, on lines of its own that begin at a column."""
    lines = yaml.safe_dump(dict(entries), sort_keys=False, width=10**6, allow_unicode=True).rstrip("\n").split("\n")
    return "".join(f"\n{' ' * column}{line}" for line in lines)


def _scalar(value: Value) -> str:
    dumped: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return dumped.removesuffix("...\n").rstrip("\n")


def _end(node: yaml.Node) -> int:
    """End of a value's own text. A block ends with its last element, not at the beginning of the next token."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        end: int = node.end_mark.index
        is_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
        return len(node.end_mark.buffer[:end].rstrip()) if is_block else end
    last = node.value[-1]
    return max(_end(last[1]), last[0].end_mark.index + 1) if isinstance(node, yaml.MappingNode) else _end(last)
