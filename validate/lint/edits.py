"""Changes to a configuration's text: only the characters that must change, so that order and layout stay."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .document import Document, DocumentNode, Member, read_document
from .rule import Edit, Rename, Replace


def apply(document: Document, edits: Sequence[Edit]) -> tuple[str, int]:
    """The text with the edits, and how many were made.

    Left out are those whose key is gone with an earlier one's, and removals that would take a comment with them.
    """
    made = 0
    for edit in edits:
        span = _span(document, edit)
        if span is not None:
            start, end, replacement = span
            text = document.text[:start] + replacement + document.text[end:]
            document = read_document(text.encode(), name="the corrected file")
            made += 1
    return document.text, made


def _span(document: Document, edit: Edit) -> tuple[int, int, str] | None:
    """(start, end, new text) of an edit."""
    owner, member = _find(document, edit.path)
    if owner is None or member is None:
        return None
    if isinstance(edit, Rename):
        return None if owner.member(edit.name) else (member.start, member.end, json.dumps(edit.name))
    if isinstance(edit, Replace):
        return member.node.start, member.node.end, json.dumps(edit.value)
    start, end = _removal(document.text, owner, member)
    commented = any(start < found.end and found.start < end for found in document.departures if found.kind == "comment")
    return None if commented else (start, end, "")


def _find(document: Document, path: tuple[str, ...]) -> tuple[DocumentNode | None, Member | None]:
    node: DocumentNode = document.root
    for name in path[:-1]:
        member = node.member(name)
        if member is None:
            return None, None
        node = member.node
    return node, node.member(path[-1])


def _removal(text: str, owner: DocumentNode, member: Member) -> tuple[int, int]:
    """From where to where a member is taken out, with one comma and its line's break."""
    index = next(index for index, other in enumerate(owner.members) if other is member)
    if index + 1 < len(owner.members):  # up to the next key, which moves to this one's place
        return member.start, owner.members[index + 1].start
    start = owner.members[index - 1].node.end if index else owner.start + 1
    comma = text.find(",", member.node.end, owner.end)
    return start, comma if comma != -1 and not text[member.node.end : comma].strip() else member.node.end
