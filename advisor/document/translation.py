"""A document in another language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from ..text.language import Language, translate
from .blocks import UNTRANSLATED, Document

T = TypeVar("T")

_NAMES = frozenset(("name", "ink", "style", "look", "tone", "data", "language", "source"))
"""Fields of blocks and charts that are not shown as text."""


def translated(part: T, language: Language) -> T:
    """Return a document, blocks or a chart with the texts in a language; code, the output of programs and the data of a
    document stay as they are."""
    return part if language == "en" else cast(T, _translated(part, language))


def _translated(part: Any, language: Language) -> Any:
    if hasattr(part, "_asdict") and not isinstance(part, UNTRANSLATED):
        return part._replace(**_fields(part._asdict(), language))
    match part:
        case str():
            return "\n".join(_line(line, language) for line in part.split("\n"))
        case list() | tuple() if not hasattr(part, "_asdict"):
            return [_translated(each, language) for each in part]
        case Mapping():
            return {key: _translated(value, language) for key, value in part.items()}
        case _ if is_dataclass(part) and not isinstance(part, type):
            values = _fields({each.name: getattr(part, each.name) for each in fields(part)}, language)
            return replace(part, **values | ({"language": language} if isinstance(part, Document) else {}))
    return part


def _fields(values: Mapping[str, Any], language: Language) -> dict[str, Any]:
    return {name: value if name in _NAMES else _translated(value, language) for name, value in values.items()}


def _line(text: str, language: Language) -> str:
    words = text.strip(" ")
    return text.replace(words, translate(words, language)) if words else text
