"""Values of keys: the types that DeepSpeed accepts, and how they are shown.

`find_problem` decides by pydantic's rules whether DeepSpeed accepts a value, without importing pydantic, which browsers
lack.
"""

from __future__ import annotations

import contextlib
import json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from typing import Any, NamedTuple

from ...ds_configs.conversions import TRUTHS, as_integer, as_number, as_truth

MOST_TO_WRITE = 200
"""Characters of a value that a fix proposes: it is to be copied whole."""

_SIGNS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most", "ne": "other than"}

_WORDS: Mapping[str, str] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "path": "a path",
    "list": "a list",
    "dict": "an object",
}
"""Name of a type -> its description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """The type of a key's value."""

    name: str
    """bool, int, float, str, path, dict, any; unwritable (an object that no file can hold); list (items of the type in
    `parts`); tuple (a list with an item of each of `parts`); union (of `parts`); choice (an enumeration; values are
    converted to one of `choices`); literal (one of `choices`)."""
    optional: bool = False
    choices: tuple[Any, ...] = ()
    parts: tuple[FieldType, ...] = ()
    bounds: tuple[tuple[str, float], ...] = ()
    """(sign, number) pairs; the signs are "gt", "ge", "lt", "le" and "ne"."""
    refuses: tuple[str, ...] = ()
    """Python's names of types ("bool", "str") that a validator of the class refuses, where pydantic converts them."""

    @property
    def is_numeric(self) -> bool:
        """Whether it is a number or a truth value."""
        numbers = self.name == "choice" and all(isinstance(choice, int) for choice in self.choices)
        return numbers or self.name in ("bool", "int", "float")


class Problem(NamedTuple):
    """Why DeepSpeed rejects a value."""

    what: str
    wanted: str
    """What it accepts."""
    is_range: bool = False
    """Whether the type is right, and the number out of range."""


def find_problem(kind: FieldType, value: Any, *, converts_text: bool = True) -> Problem | None:
    """Why DeepSpeed rejects a value; None if it accepts it.

    value: never "auto", which DeepSpeed drops before validation. converts_text: whether a pydantic class reads the
    value, which accepts numbers written as text.
    """
    try:
        taken = _converted(kind, value, converts_text)
    except ValueError:
        return Problem(f"is {json_text(value)}, which is not {_type_words(kind)}", _type_words(kind))
    for sign, bound in kind.bounds if isinstance(taken, int | float) else ():
        if not getattr(operator, sign)(taken, bound):
            limit = _limit(sign, bound)
            return Problem(f"is {json_text(value)}, but must be {limit}", f"a value that is {limit}", is_range=True)
    return None


def read_value(kind: FieldType, value: Any) -> Any:
    """The value that a pydantic class reads; one that it rejects, and "auto", as it is written."""
    with contextlib.suppress(ValueError):
        return _converted(kind, value, converts_text=True)
    return value


def parsed_text(kind: FieldType, value: Any) -> Any:
    """The number, truth value or choice (in another case of letters) that a text stands for, for a list its items; None
    if DeepSpeed does not accept it."""
    if isinstance(value, list) and kind.parts and any(isinstance(item, str) for item in value):
        items = [parsed_text(kind.parts[0], item) if isinstance(item, str) else item for item in value]
        return None if None in items else items
    if not isinstance(value, str):
        return None
    if not kind.is_numeric:
        words = (each for each in kind.choices if isinstance(each, str) and each != value)
        return next((each for each in words if each.lower() == value.strip().lower()), None)
    plain = TRUTHS.get(value.lower()) if kind.name == "bool" else number_in(value)
    return None if plain is None or find_problem(kind, plain) else _converted(kind, plain, True)


def number_in(value: Any) -> int | float | None:
    """The finite number written in a text, an integer if it has no decimal point; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not abs(number) < 1e300 or "_" in value:
        return None
    return int(number) if number == int(number) and not ("." in value or "e-" in value.lower()) else number


def json_text(value: Any, *, longest: int = 40) -> str:
    """A value in JSON, cut to a short length; a text that is cut keeps its quotes."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:
        text = repr(value)
    if len(text) <= longest:
        return text
    return f'{text[: longest - 4]}..."' if isinstance(value, str) else f"{text[: longest - 3]}..."


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The known name closest to a misspelled one; "" if none is close."""
    return next(iter(get_close_matches(name[:60], list(known), n=1, cutoff=cutoff)), "")


def describe_type(kind: FieldType) -> str:
    """The description of a type with its range: `a whole number, above 0`, `one of "none", "cpu", "nvme"`."""
    if kind.name == "union":
        return " or ".join(map(describe_type, kind.parts))
    limits = " and ".join(_limit(sign, bound) for sign, bound in kind.bounds)
    return f"{_type_words(kind)}, {limits}" if limits else _type_words(kind)


def _limit(sign: str, bound: float) -> str:
    return "finite" if bound == inf else f"{_SIGNS[sign]} {bound:g}"


def _type_words(kind: FieldType) -> str:
    if kind.choices:
        return f"one of {', '.join(map(json_text, kind.choices))}"
    if kind.name == "union":
        return " or ".join(map(_type_words, kind.parts))
    if kind.name == "tuple":
        return f"a list of {len(kind.parts)} numbers"
    words = _WORDS.get(kind.name, "a value that a file can hold")
    return f"{words} or null" if kind.optional and kind.name == "dict" else words


def _has_type(kind: FieldType, value: Any) -> bool:
    if value is None or kind.name == "any":
        return kind.optional or kind.name == "any"
    if kind.choices:
        return any(value == choice and type(value) is type(choice) for choice in kind.choices)
    if kind.name == "list":
        return isinstance(value, list) and all(_has_type(part, item) for part in kind.parts for item in value)
    if kind.name == "tuple":
        is_whole = isinstance(value, list) and len(value) == len(kind.parts)
        return is_whole and all(map(_has_type, kind.parts, value))
    if kind.name == "float":
        return type(value) in (int, float) and abs(value) < 1e300
    return type(value) is {"bool": bool, "int": int, "str": str, "path": str, "dict": dict}.get(kind.name)


def _converted(kind: FieldType, value: Any, converts_text: bool) -> Any:
    """The value that pydantic converts a value of another type to. Raises ValueError if it rejects the value.

    Source: pydantic-core 2 (validators/enum_.rs) and `conversions`.
    """
    if type(value).__name__ in kind.refuses:
        raise ValueError
    if _has_type(kind, value):
        return value
    if kind.name == "union":
        for part in kind.parts:
            with contextlib.suppress(ValueError):
                return _converted(part, value, converts_text)
    elif kind.name == "list" and isinstance(value, list):
        return [_converted(part, item, converts_text) for part in kind.parts for item in value]
    elif kind.name == "tuple" and isinstance(value, list) and len(value) == len(kind.parts):
        return [_converted(part, item, converts_text) for part, item in zip(kind.parts, value, strict=True)]
    elif kind.is_numeric and isinstance(value, str) and not converts_text:
        raise ValueError
    elif kind.name == "choice" and not all(isinstance(choice, str) for choice in kind.choices):
        if (number := as_integer(value)) in kind.choices:
            return number
    elif kind.name in _READERS:
        return _READERS[kind.name](value)
    raise ValueError


_READERS: Mapping[str, Callable[[Any], Any]] = {"bool": as_truth, "int": as_integer, "float": as_number}
