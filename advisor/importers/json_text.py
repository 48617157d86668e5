"""A JSON file of options, changed in as few characters as will do."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...estimators.errors import ConfigFileError
from ...validate.lint.document import Document, DocumentNode, read_document
from ...validate.lint.edits import apply
from ...validate.lint.rule import Remove, Replace
from .change import KeyPath, Value


def edit_json(text: str, changes: Mapping[KeyPath, Value]) -> str:
    """The text with these keys set, or taken out where the value is None. Raises ConfigFileError where that cannot be
    done without losing a comment."""
    document = read_document(text.encode(), name="the file")
    for path, value in changes.items():
        member = document.member(path)
        if member is None:
            text = document.text if value is None else _inserted(document, path, value)
        else:
            text, made = apply(document, [Remove(path) if value is None else Replace(path, value)])
            if not made:
                raise ConfigFileError(
                    f"{'.'.join(path)} cannot be taken out without its comment", fix="remove the comment beside it"
                )
        document = read_document(text.encode(), name="the changed file")
    return text


def _inserted(document: Document, path: KeyPath, value: Value) -> str:
    """The text with a new key after the last one of its object."""
    owner, depth = document.root, 0
    while depth < len(path) - 1 and (member := owner.member(path[depth])) is not None:
        owner, depth = member.node, depth + 1
    for name in reversed(path[depth + 1 :]):
        value = {name: value}
    text, entry = document.text, f"{json.dumps(path[depth])}: {_dumped(value, document, owner)}"
    if not owner.members:
        return text[: owner.start + 1] + entry + text[owner.end - 1 :]
    first, last = owner.members[0], owner.members[-1]
    return text[: last.node.end] + "," + text[owner.start + 1 : first.start] + entry + text[last.node.end :]


def _dumped(value: Value, document: Document, owner: DocumentNode) -> str:
    """The value as JSON, its lines indented like the object's own keys."""
    if not owner.members:
        return json.dumps(value)
    _, column = document.place(owner.members[0].start)
    return json.dumps(value, indent=2).replace("\n", "\n" + " " * (column - 1))
