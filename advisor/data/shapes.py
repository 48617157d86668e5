"""The shapes of rows that are understood, each brought to one of two forms: a chat, or plain parts of text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ...estimators.phrase import phrase
from .rows import DataError, Row

Message = dict[str, Any]
"""At least `role` (system, user, assistant, tool) and `content`, as chat templates read it."""


class TextPart(NamedTuple):
    """A stretch of text, and whether the loss counts it."""

    text: str
    is_trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation whose assistant messages are trained."""

    messages: tuple[Message, ...]
    tools: Any = None
    """The functions that may be called, for the template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """Text that no template is put around."""

    parts: tuple[TextPart, ...]
    divisible: bool = False
    """Whether it may be cut anywhere and goes on in the next sample."""
    goes_on: bool = False
    """It does not end here: the next sample is the same text."""


RowSample = Chat | PlainText

_MESSAGES = ("messages", "conversations", "conversation")
_QUESTIONS = ("instruction", "question", "query", "prompt")
_ANSWERS = ("output", "response", "answer")
_ROLES = {name: name for name in ("user", "assistant", "system", "developer", "tool")} | {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """One shape of rows."""

    title: str
    """For people: "1,204 rows of chat messages"."""
    fields: str
    """The fields by which it is recognised, for people."""
    matches: Callable[[Mapping[str, Any]], bool]
    """Whether a row of these fields has it."""
    sample: Callable[[Row], RowSample]
    """The row as a sample; it raises DataError, naming the row's place."""


def recognise(row: Row) -> str:
    """The name of the first of `ROW_SHAPES` that a row has. Raises DataError where it has none."""
    for name, shape in ROW_SHAPES.items():
        if shape.matches(row.fields):
            return name
    known = "; ".join(f"{name} ({shape.fields})" for name, shape in ROW_SHAPES.items())
    raise DataError(
        f"{row.place}: fields {', '.join(map(str, row.fields)) or '(none)'} are no known shape",
        why="it is not clear what is trained",
        fix=f"name the fields as one of: {known}",
    )


def is_empty(row: Row) -> bool:
    """Whether nothing but gaps stands in a row."""
    return not any(value.strip() if isinstance(value, str) else value for value in row.fields.values())


def teaches_nothing(sample: RowSample) -> bool:
    """Whether what is trained, or one answer of a chat, is empty."""
    if isinstance(sample, PlainText):
        return not any(part.text.strip() for part in sample.parts if part.is_trained)
    answers = [message for message in sample.messages if message["role"] == "assistant"]
    return any(not any(_said(value) for name, value in answer.items() if name != "role") for answer in answers)


def _said(value: Any) -> bool:
    return bool(value.strip() if isinstance(value, str) else value)


def _chat(row: Row) -> Chat:
    name = _first(row.fields, _MESSAGES)
    listed = row.fields.get(name or "messages")
    if isinstance(listed, str):  # a CSV cell
        try:
            listed = json.loads(listed)
        except ValueError:
            _refuse(row, f"{name} is text that is not JSON")
    if not isinstance(listed, list) or not listed:
        _refuse(row, f"{name or 'messages'} is no list of messages")
    messages = tuple(_message(row, number, message) for number, message in enumerate(listed, 1))
    system = row.fields.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages = ({"role": "system", "content": system}, *messages)
    if all(message["role"] != "assistant" for message in messages):
        _refuse(row, "no message is the assistant's, so nothing is trained")
    return Chat(messages=messages, tools=row.fields.get("tools") or None)


def _message(row: Row, number: int, message: Any) -> Message:
    """One message of either spelling: role and content, or ShareGPT's from and value."""
    if not isinstance(message, dict):
        _refuse(row, f"message {number} is no object")
    role = message.get("role", message.get("from"))
    if role not in _ROLES:
        _refuse(row, f"message {number} has the role {role!r}")
    content = _content(row, number, message.get("content", message.get("value")), has_calls="tool_calls" in message)
    known = ("role", "content", "from", "value")
    # Parquet has every field in every message, null where it is missing.
    further = {name: value for name, value in message.items() if name not in known and value is not None}
    return {"role": _ROLES[role], "content": content, **further}


def _content(row: Row, number: int, content: Any, *, has_calls: bool) -> str:
    if isinstance(content, list):
        texts: list[Any] = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else content
    if content is None and has_calls:
        return ""
    if not isinstance(content, str):
        _refuse(row, f"message {number} has no text as its content")
    return content


def _instruction(row: Row) -> Chat:
    """Question and answer as a chat of two; `input` follows the instruction after an empty line."""
    question = _string(row, _first(row.fields, _QUESTIONS) or _QUESTIONS[0])
    further = row.fields.get("input")
    if further is not None and not isinstance(further, str):
        _refuse(row, "input is no text")
    answer = _answer(row, *_ANSWERS)
    return _exchange(row, f"{question}\n\n{further}" if further else question, answer)


def _label(row: Row) -> Chat:
    return _exchange(row, _string(row, "text"), _answer(row, "label"))


def _exchange(row: Row, question: str, answer: str) -> Chat:
    system = row.fields.get("system")
    first: tuple[Message, ...] = ({"role": "system", "content": system},) if isinstance(system, str) and system else ()
    return Chat(messages=(*first, {"role": "user", "content": question}, {"role": "assistant", "content": answer}))


def _completion(row: Row) -> RowSample:
    """Two texts are put together as they are; two lists of messages are one chat."""
    prompt, completion = row.fields.get("prompt"), row.fields.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        return _chat(Row(row.place, {**row.fields, "messages": prompt + completion}))
    completion = "" if completion is None and "completion" in row.fields else _string(row, "completion")
    return PlainText(parts=(TextPart(_string(row, "prompt"), False), TextPart(completion, True)))


def _text(row: Row) -> PlainText:
    text = _string(row, _first(row.fields, ("text", "content")) or "text")
    return PlainText(parts=(TextPart(text, True),), divisible=True, goes_on=row.goes_on)


def _has(*alternatives: Sequence[str]) -> Callable[[Mapping[str, Any]], bool]:
    """A test for one field out of each of these."""
    return lambda fields: all(_first(fields, names) is not None for names in alternatives)


ROW_SHAPES: dict[str, RowShape] = {
    "chat": RowShape(
        title=phrase("chat messages"), fields="messages or conversations", matches=_has(_MESSAGES), sample=_chat
    ),
    "prompt-completion": RowShape(
        title=phrase("prompt and completion"),
        fields="prompt and completion",
        matches=_has(("prompt",), ("completion",)),
        sample=_completion,
    ),
    "instruction": RowShape(
        title=phrase("instruction and output"),
        matches=_has(_QUESTIONS, _ANSWERS),
        sample=_instruction,
        fields="instruction or question, perhaps input, and output, response or answer",
    ),
    "text-label": RowShape(
        title=phrase("text and label"), fields="text and label", matches=_has(("text",), ("label",)), sample=_label
    ),
    "text": RowShape(
        title=phrase("plain text"), fields="text or content", matches=_has(("text", "content")), sample=_text
    ),
}
"""In the order in which they are tried: those that need more fields first."""


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these names that a row has; a field that is null is not there (Parquet, and tables with gaps)."""
    return next((name for name in names if fields.get(name) is not None), None)


def _string(row: Row, name: str) -> str:
    value = row.fields.get(name)
    if not isinstance(value, str):
        _refuse(row, f"{name} is {'missing' if value is None else 'no text'}")
    return value


def _answer(row: Row, *names: str) -> str:
    """Text as it is; anything else (the entities of a text, a class's number) as JSON, so that it can be read back. A
    gap (null) is an empty answer, a row without the field is broken."""
    name = _first(row.fields, names)
    if name is None:
        if not any(name in row.fields for name in names):
            _refuse(row, f"{names[0]} is missing")
        return ""
    value = row.fields[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _refuse(row: Row, what: str) -> NoReturn:
    raise DataError(
        f"{row.place}: {what}",
        why="every row must be one whole sample",
        fix="repair or remove it, or name another shape with --format",
    )
