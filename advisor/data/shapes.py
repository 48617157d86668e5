"""The shapes of rows, each converted to one of two forms: a chat, or parts of plain text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ...estimators.phrase import phrase
from .rows import DataError, Row, refuse

Message = dict[str, Any]
"""A message with at least `role` (system, user, assistant, tool) and `content`, the format of chat templates."""


class TextPart(NamedTuple):
    """A piece of text, and whether it counts in the loss."""

    text: str
    is_trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation. The assistant's messages are trained."""

    messages: tuple[Message, ...]
    tools: Any = None
    """The functions that may be called, passed to the template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """Text without a chat template."""

    parts: tuple[TextPart, ...]
    divisible: bool = False
    """Whether the text may be cut anywhere and continue in the next sample."""
    goes_on: bool = False
    """Whether the next row continues the same text."""


RowSample = Chat | PlainText

_MESSAGES = ("messages", "conversations", "conversation")
_QUESTIONS = ("instruction", "question", "query", "prompt")
_ANSWERS = ("output", "response", "answer")
_TEXTS = ("text", "content")
_ROLES = {name: name for name in ("user", "assistant", "system", "developer", "tool")} | {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}


class RowShape(NamedTuple):
    """One shape of rows."""

    title: str
    """The title in messages: "1,204 rows of chat messages"."""
    fields: str
    """The fields in messages."""
    needed: tuple[Sequence[str], ...]
    """Groups of field names. A row has this shape if it has one field of each group."""
    sample: Callable[[Row], RowSample]
    """Converts a row to a sample. Raises DataError with the row's place."""


def recognise(row: Row) -> str:
    """The name of the first of `ROW_SHAPES` that matches a row. Raises DataError if none matches."""
    for name, shape in ROW_SHAPES.items():
        if all(_first(row.fields, names) is not None for names in shape.needed):
            return name
    known = "; ".join(f"{name} ({shape.fields})" for name, shape in ROW_SHAPES.items())
    raise DataError(
        f"{row.place}: fields {', '.join(map(str, row.fields)) or '(none)'} match no known shape",
        why="it is not clear what is trained",
        fix=phrase("name the fields as one of: {known}", known=known),
    )


def is_empty(row: Row) -> bool:
    """Whether all fields are empty or white space."""
    return not any(map(_has_content, row.fields.values()))


def teaches_nothing(sample: RowSample) -> bool:
    """Whether the trained text, or an answer of a chat, is empty."""
    if isinstance(sample, PlainText):
        return not any(part.text.strip() for part in sample.parts if part.is_trained)
    answers = [message for message in sample.messages if message["role"] == "assistant"]
    return any(not any(_has_content(value) for name, value in answer.items() if name != "role") for answer in answers)


def _has_content(value: Any) -> bool:
    return bool(value.strip() if isinstance(value, str) else value)


def _chat(row: Row) -> Chat:
    name = _first(row.fields, _MESSAGES) or "messages"
    listed = row.fields.get(name)
    if isinstance(listed, str):  # a CSV cell
        try:
            listed = json.loads(listed)
        except ValueError:
            _refuse(row, f"{name} is text that is not JSON")
    if not isinstance(listed, list) or not listed:
        _refuse(row, f"{name} is not a list of messages")
    messages = [_message(row, number, message) for number, message in enumerate(listed, 1)]
    if messages[0]["role"] != "system":
        messages = [*_system(row), *messages]
    if all(message["role"] != "assistant" for message in messages):
        _refuse(row, "no message is the assistant's, so nothing is trained")
    return Chat(messages=tuple(messages), tools=row.fields.get("tools") or None)


def _system(row: Row) -> list[Message]:
    system = row.fields.get("system")
    return [{"role": "system", "content": system}] if isinstance(system, str) and system else []


def _message(row: Row, number: int, message: Any) -> Message:
    """One message in either format: role and content, or ShareGPT's from and value."""
    if not isinstance(message, dict):
        _refuse(row, f"message {number} is not an object")
    role = message.get("role", message.get("from"))
    if role not in _ROLES:
        _refuse(row, f"message {number} has the role {role!r}")
    content = message.get("content", message.get("value"))
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text") for part in content]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
    if content is None and "tool_calls" in message:
        content = ""
    if not isinstance(content, str):
        _refuse(row, f"message {number} has no text as its content")
    known = ("role", "content", "from", "value")
    # Parquet has every field in every message, null where it is missing.
    further = {name: value for name, value in message.items() if name not in known and value is not None}
    return {"role": _ROLES[role], "content": content, **further}


def _instruction(row: Row) -> Chat:
    """Question and answer as a chat of two messages; `input` follows the instruction after an empty line."""
    question = _string(row, _first(row.fields, _QUESTIONS) or _QUESTIONS[0])
    further = row.fields.get("input")
    if further is not None and not isinstance(further, str):
        _refuse(row, "input is not text")
    return _exchange(row, f"{question}\n\n{further}" if further else question, _answer(row, _ANSWERS))


def _label(row: Row) -> Chat:
    return _exchange(row, _string(row, "text"), _answer(row, ("label",)))


def _exchange(row: Row, question: str, answer: str) -> Chat:
    exchange: list[Message] = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Chat(messages=(*_system(row), *exchange))


def _completion(row: Row) -> RowSample:
    """Two texts, concatenated without a separator; or two lists of messages, which form one chat."""
    prompt, completion = row.fields.get("prompt"), row.fields.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        return _chat(Row(row.place, {**row.fields, "messages": prompt + completion}))
    completion = "" if completion is None and "completion" in row.fields else _string(row, "completion")
    return PlainText(parts=(TextPart(_string(row, "prompt"), False), TextPart(completion, True)))


def _text(row: Row) -> PlainText:
    text = _string(row, _first(row.fields, _TEXTS) or "text")
    return PlainText(parts=(TextPart(text, True),), divisible=True, goes_on=row.goes_on)


ROW_SHAPES: dict[str, RowShape] = {
    "chat": RowShape(phrase("chat messages"), "messages or conversations", (_MESSAGES,), _chat),
    "prompt-completion": RowShape(
        phrase("prompt and completion"), "prompt and completion", (("prompt",), ("completion",)), _completion
    ),
    "instruction": RowShape(
        phrase("instruction and output"),
        "instruction or question, perhaps input, and output, response or answer",
        (_QUESTIONS, _ANSWERS),
        _instruction,
    ),
    "text-label": RowShape(phrase("text and label"), "text and label", (("text",), ("label",)), _label),
    "text": RowShape(phrase("plain text"), "text or content", (_TEXTS,), _text),
}
"""Shapes in the order in which they are tried; those that need more fields come first."""


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these names that a row has. A null field counts as missing (Parquet, and tables with gaps)."""
    return next((name for name in names if fields.get(name) is not None), None)


def _string(row: Row, name: str) -> str:
    value = row.fields.get(name)
    if not isinstance(value, str):
        _refuse(row, f"{name} is {'missing' if value is None else 'not text'}")
    return value


def _answer(row: Row, names: Sequence[str]) -> str:
    """The answer: text unchanged, other values (the entities of a text, the number of a class) as JSON. A null field is
    an empty answer; a row without the field is an error."""
    name = _first(row.fields, names)
    if name is None:
        if not any(name in row.fields for name in names):
            _refuse(row, f"{names[0]} is missing")
        return ""
    value = row.fields[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _refuse(row: Row, what: str) -> NoReturn:
    refuse(row.place, what, phrase("repair or remove it, or name another shape with --format"))
