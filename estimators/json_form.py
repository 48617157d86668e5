"""JSON from dataclasses, with the field names as keys.

A command's `--json` is declared once, as a frozen dataclass of JSON's types (`str`, `int`, `float`, `bool`, None,
tuples, dicts and other such dataclasses), with a docstring under each field that needs one. `from_attributes` fills it
from the objects that hold the figures; `advisor.text.output.Output.show` prints it through `to_json`; `ds-advise
schema` prints its JSON Schema, with the docstrings as descriptions:

    @dataclass(frozen=True, kw_only=True)
    class StepFigures:
        strategy: Strategy
        fit_probability: float
        '''Between 0 and 1.'''

    output.show(lambda: from_attributes(StepFigures, step, fit_probability=step.fit.probability), render)

Types of the fields must be importable at run time (not under `TYPE_CHECKING`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

SCHEMA_VERSION = 2
"""Version of the JSON of all commands. It is incremented when a field changes its meaning or is removed."""

Form = TypeVar("Form")


def to_json(value: Any) -> Any:
    """Convert a value to JSON's types: dataclasses to objects, tuples to lists, paths to strings, NaN and infinity to
    null."""
    # First, because nearly all values are of these types; bool is an int.
    if isinstance(value, str | int) or value is None:
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    assert is_dataclass(value), f"no JSON form of {type(value)}"
    return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}


def from_json(kind: type[Form], values: Any) -> Form:
    """Restore a value of type `kind` from the output of `to_json` or `asdict`. Dataclasses, named tuples (lists in
    JSON), tuples, mappings and `X | None` are converted; other values are returned unchanged.

    pydantic is not used because its import would slow down answers with stored results. Raises TypeError, ValueError
    or AttributeError for values of another form.
    """
    return _reader(kind)(values)  # type: ignore[no-any-return,arg-type]


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return the conversion to one type. It is made once: a recording has thousands of values."""
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types(kind)
        return lambda values: kind(**{name: _reader(types.get(name))(value) for name, value in values.items()})
    arguments, origin = get_args(kind), get_origin(kind)
    if hasattr(kind, "_fields"):
        readers = [_reader(each) for each in _types(kind).values()]
        return lambda values: kind(*[read(value) for read, value in zip(readers, values, strict=True)])
    # The only unions in stored results are `X | None`.
    if origin is UnionType:
        return lambda value: None if value is None else _reader(arguments[0])(value)
    if origin is Mapping:
        read = _reader(arguments[1])
        return lambda values: {name: read(value) for name, value in values.items()}
    if origin is not tuple:
        return _unchanged
    readers = [_reader(each) for each in arguments if each is not Ellipsis]
    # Tuples of numbers are the bulk of a recording; converting them item by item would take most of the time.
    if all(read is _unchanged for read in readers):
        return tuple
    if arguments[-1] is Ellipsis:
        return lambda values: tuple(map(readers[0], values))
    return lambda values: tuple([read(value) for read, value in zip(readers, values, strict=True)])


def _unchanged(value: Any) -> Any:
    return value


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def from_attributes(kind: type[Form], *sources: object, **overrides: Any) -> Form:
    """Build a dataclass by field name. Each field is the keyword argument if given, else the attribute of the first
    source that has it, else the field's default."""
    values = dict(overrides)
    for field in fields(kind):  # type: ignore[arg-type]
        source = next(
            (source for source in sources if field.name not in overrides and hasattr(source, field.name)), None
        )
        if source is not None:
            values[field.name] = getattr(source, field.name)
    return kind(**values)
