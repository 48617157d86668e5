"""The formats of rows, each converted to one of two samples: a chat, or a prompt with its completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .rows import DataError

Message = dict[str, Any]
"""A message with at least `role` (system, user, assistant, tool) and `content`, the format of chat templates."""

Row = Mapping[str, Any]


class Chat(NamedTuple):
    """A conversation. The assistant's messages are trained."""

    messages: list[Message]
    tools: Any = None
    """The functions that may be called, passed to the template."""


class Completion(NamedTuple):
    """Two texts without a chat template, concatenated. The completion is trained."""

    prompt: str
    completion: str


Sample = Chat | Completion

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


class RowFormat(NamedTuple):
    """One format of rows."""

    title: str
    """The title in messages: "1,204 rows of chat messages"."""
    fields: str
    """The fields in messages."""
    needed: tuple[Sequence[str], ...]
    """Groups of field names. Rows have this format if they have one field of each group."""
    sample: Callable[[Row], Sample]
    """Converts a row. Raises ValueError with what is wrong."""


def recognise(path: Path, columns: Iterable[str]) -> str:
    """The first of `ROW_FORMATS` for which the file has the columns. Raises DataError if there is none."""
    have = set(columns)
    for name, row_format in ROW_FORMATS.items():
        if all(have.intersection(names) for names in row_format.needed):
            return name
    known = "; ".join(f"{name} ({row_format.fields})" for name, row_format in ROW_FORMATS.items())
    raise DataError(
        f"{path.name}: fields {_listed(columns)} match no known format",
        why="it is not clear what is trained",
        fix=f"name the fields as one of: {known}",
    )


def _listed(columns: Iterable[str]) -> str:
    names = [str(name)[:40] for name in columns]
    return ", ".join(names[:8]) + f" and {len(names) - 8:,} more" * (len(names) > 8) if names else "(none)"


def read_sample(row: Row, row_format: str, place: str) -> Sample | None:
    """The row's sample; None if all fields, the completion, or one of a chat's answers is empty. Raises DataError with
    `place` for a row that lacks the format's fields."""
    if not any(map(_has_content, row.values())):
        return None
    try:
        sample = ROW_FORMATS[row_format].sample(row)
    except ValueError as problem:
        raise DataError(
            f"{place}: {problem!s}",
            why="every row must be one whole sample",
            fix="repair or remove it, or name another format with --format",
        ) from None
    if isinstance(sample, Completion):
        return sample if sample.completion.strip() else None
    answers = [message for message in sample.messages if message["role"] == "assistant"]
    whole = all(any(_has_content(value) for name, value in each.items() if name != "role") for each in answers)
    return sample if whole else None


def _has_content(value: Any) -> bool:
    return bool(value.strip() if isinstance(value, str) else value)


def _chat(row: Row) -> Chat:
    name = _first(row, _MESSAGES)
    listed = row.get(name)
    if isinstance(listed, str):  # a CSV cell
        try:
            listed = json.loads(listed)
        except ValueError:
            raise ValueError(f"{name} is text that is not JSON") from None
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"{name} is not a list of messages")
    messages = [_message(number, message) for number, message in enumerate(listed, 1)]
    if messages[0]["role"] != "system":
        messages = [*_system(row), *messages]
    if all(message["role"] != "assistant" for message in messages):
        raise ValueError("no message is the assistant's, so nothing is trained")
    return Chat(messages, row.get("tools") or None)


def _system(row: Row) -> list[Message]:
    system = row.get("system")
    return [{"role": "system", "content": system}] if isinstance(system, str) and system else []


def _message(number: int, message: Any) -> Message:
    """One message in either format: role and content, or ShareGPT's from and value."""
    if not isinstance(message, dict):
        raise ValueError(f"message {number} is not an object")
    # Arrow has every field in every message, null where it is missing.
    message = {name: value for name, value in message.items() if value is not None}
    role = message.pop("role", message.pop("from", None))
    if role not in _ROLES:
        raise ValueError(f"message {number} has the role {role!r}")
    content = message.pop("content", message.pop("value", "" if "tool_calls" in message else None))
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"message {number} has no text as its content")
    return {**message, "role": _ROLES[role], "content": content}


def _exchange(row: Row, questions: Sequence[str], answers: Sequence[str]) -> Chat:
    """Question and answer as a chat of two messages; `input` follows the question after an empty line."""
    question, further = _text(row, questions), row.get("input")
    if further is not None and not isinstance(further, str):
        raise ValueError("input is not text")
    name = _first(row, answers)
    if not any(name in row for name in answers):
        raise ValueError(f"{name} is missing")
    answer = "" if row.get(name) is None else row[name]  # a null answer is an empty one
    if not isinstance(answer, str):
        answer = json.dumps(answer, ensure_ascii=False)  # the entities of a text, the number of a class
    content = f"{question}\n\n{further}" if further else question
    exchange = [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
    return Chat([*_system(row), *exchange])


def _completion(row: Row) -> Sample:
    """Two texts; or two lists of messages, which form one chat."""
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        return _chat({**row, "messages": prompt + completion})
    return Completion(_text(row, ("prompt",)), "" if completion is None else _text(row, ("completion",)))


ROW_FORMATS: dict[str, RowFormat] = {
    "chat": RowFormat("chat messages", "messages or conversations", (_MESSAGES,), _chat),
    "prompt-completion": RowFormat(
        "prompt and completion", "prompt and completion", (("prompt",), ("completion",)), _completion
    ),
    "instruction": RowFormat(
        "instruction and output",
        "instruction or question, perhaps input, and output, response or answer",
        (_QUESTIONS, _ANSWERS),
        lambda row: _exchange(row, _QUESTIONS, _ANSWERS),
    ),
    "text-label": RowFormat(
        "text and label",
        "text and label",
        (("text",), ("label",)),
        lambda row: _exchange(row, ("text",), ("label",)),
    ),
    "text": RowFormat("plain text", "text or content", (_TEXTS,), lambda row: Completion("", _text(row, _TEXTS))),
}
"""Formats in the order in which they are tried; those that need more fields come first."""


def _first(row: Row, names: Sequence[str]) -> str:
    """The first of these names that a row has, else the first name. A null field is missing (Arrow has every field in
    every row)."""
    return next((name for name in names if row.get(name) is not None), names[0])


def _text(row: Row, names: Sequence[str]) -> str:
    name = _first(row, names)
    value = row.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is {'missing' if value is None else 'not text'}")
    return value
