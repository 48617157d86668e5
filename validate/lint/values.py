"""Whether DeepSpeed's pydantic classes take a value: what is plainly right is decided here, the rest by pydantic
itself."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal, Optional, Union

from .facts import ConfigField, FieldType

_SIGNS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def problem(field: ConfigField, value: Any) -> str:
    """What is wrong with a value, "" where DeepSpeed takes it. `value` is not "auto", which DeepSpeed drops before."""
    try:
        taken = value if _plainly_right(field.type, value) else _converted(field.type, value)
    except ValueError:
        return f"is {shown(value)}, which is not {wanted(field.type)}"
    if field.bounds and isinstance(taken, int | float):
        for sign, bound in field.bounds:
            holds = {"gt": taken > bound, "ge": taken >= bound, "lt": taken < bound, "le": taken <= bound}
            if not holds[sign]:
                return f"is {shown(value)}, but must be {_SIGNS[sign]} {bound:g}"
    return ""


def is_converted_text(field: ConfigField, value: Any) -> bool:
    """A number or truth value that is written as text; DeepSpeed converts it, others who read the file do not."""
    numeric = field.type.name in ("bool", "int", "float") or (
        field.type.name == "choice" and all(isinstance(choice, int) for choice in field.type.choices)
    )
    return isinstance(value, str) and numeric and not problem(field, value)


def number_in(value: Any) -> int | float | None:
    """The finite number that a text writes, a whole one without a point as an integer; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not abs(number) < 1e300 or "_" in value:
        return None
    return int(number) if number == int(number) and not ("." in value or "e-" in value.lower()) else number


def shown(value: Any) -> str:
    """A value as JSON writes it, cut to a short length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:
        text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`; did you mean 'overlap_comm'?`, "" where no known name is near."""
    near = get_close_matches(name[:60], list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def wanted(kind: FieldType) -> str:
    """`a whole number`, `one of "none", "cpu", "nvme"`."""
    names = {
        "bool": "true or false",
        "int": "a whole number",
        "float": "a number",
        "str": "text",
        "path": "a path",
        "list": "a list",
        "dict": "an object",
        "union": " or ".join(wanted(part) for part in kind.parts),
    }
    if kind.choices:
        return f"one of {', '.join(shown(choice) for choice in kind.choices)}"
    return names.get(kind.name, "a value that a file can hold") + (
        " or null" if kind.optional and kind.name == "dict" else ""
    )


def _plainly_right(kind: FieldType, value: Any) -> bool:
    if value is None:
        return kind.optional or kind.name == "any"
    match kind.name:
        case "any":
            return True
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        case "str" | "path":
            return isinstance(value, str)
        case "dict":
            return isinstance(value, dict)
        case "list":
            return isinstance(value, list) and all(_plainly_right(part, item) for part in kind.parts for item in value)
        case "choice" | "literal":
            return any(value == choice and type(value) is type(choice) for choice in kind.choices)
    return False


def _converted(kind: FieldType, value: Any) -> Any:
    """The value that pydantic makes of it. Raises ValueError where it makes none."""
    if value is None or kind.name == "unwritable":
        raise ValueError
    if kind.name == "int" and isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    from pydantic import TypeAdapter

    return TypeAdapter(_python(kind)).validate_python(value)


def _python(kind: FieldType) -> Any:
    from pathlib import Path

    plain: dict[str, Any] = {
        "bool": bool,
        "int": int,
        "float": float,
        "str": str,
        "path": Path,
        "dict": dict,
        "any": Any,
    }
    enumeration: Any = Enum
    found: Any
    if kind.name in plain:
        found = plain[kind.name]
    elif kind.name == "list":
        found = list[_python(kind.parts[0])] if kind.parts else list  # type: ignore[misc]  # made while running
    elif kind.name == "union":
        found = Union[tuple(_python(part) for part in kind.parts)]  # noqa: UP007  made while running
    elif kind.name == "literal":
        found = Literal[tuple(kind.choices)]
    else:
        base = str if all(isinstance(choice, str) for choice in kind.choices) else int
        found = enumeration("Choice", {f"of_{choice}": choice for choice in kind.choices}, type=base)
    return Optional[found] if kind.optional else found  # noqa: UP045  made while running
