"""Typed access to a `config.json`. Each value is checked for presence, type and plausible size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from ..errors import ModelConfigError

# Far above any published model (Llama 405B: 16,384 wide, 126 layers). Larger values are not those of a model.
MAX_WIDTH = 1 << 20
MAX_HEADS = 1 << 12
MAX_LAYERS = 1 << 11
MAX_VOCABULARY = 1 << 23
MAX_POSITIONS = 1 << 31


class Fields:
    """A `config.json` as one family reads it.

    A field may have several names (`n_embd`, `hidden_size`), as in transformers. `null` counts as absent, as in most
    configuration classes; `has` distinguishes them for classes that do.

    Every method raises ModelConfigError, with the name of the field.
    """

    __slots__ = ("_values", "where")

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self.where = where

    def error(self, what: str, *, why: str = "") -> ModelConfigError:
        return ModelConfigError(f"{self.where}: {what}", why=why, fix="give a config.json as transformers writes it")

    def has(self, name: str) -> bool:
        """Return whether the field is in the file, possibly as `null`."""
        return name in self._values

    def _raw(self, names: tuple[str, ...]) -> object:
        return next((value for name in names if (value := self._values.get(name)) is not None), None)

    def _read(self, names: tuple[str, ...], types: type | tuple[type, ...], kind: str) -> Any:
        """Return the value, which must be of one of these types; None if absent. true and false are not numbers."""
        value = self._raw(names)
        # bool is a subclass of int in Python: without the second condition `true` would be the size 1.
        if value is not None and (not isinstance(value, types) or (isinstance(value, bool) and types is not bool)):
            raise self.error(f"{names[0]} must be {kind}, not {_short(value)}")
        return value

    def size(self, *names: str, default: int | None = None, limit: int = MAX_WIDTH) -> int:
        """Return an integer of at least 1. The field is required unless there is a default."""
        value: int | None = self._read(names, int, "a whole number")
        if value is None:
            if default is None:
                raise self.error(f"{names[0]} is missing", why="the dimension cannot be guessed")
            return default
        if not 1 <= value <= limit:
            raise self.error(f"{names[0]} must lie between 1 and {limit:,}, not {_short(value)}")
        return value

    def size_or_none(self, *names: str, limit: int = MAX_WIDTH) -> int | None:
        """Return an integer as `size` does; None if the field is absent."""
        return None if self._raw(names) is None else self.size(*names, limit=limit)

    def count(self, name: str, *, default: int, limit: int = MAX_WIDTH) -> int:
        """Return an integer of at least 0."""
        value = self._values.get(name)
        return 0 if _is_int(value) and value == 0 else self.size(name, default=default, limit=limit)

    def positive(self, name: str, *, limit: int = MAX_WIDTH) -> int | None:
        """Return an integer; None if it is absent, zero or negative."""
        value = self._values.get(name)
        return None if _is_int(value) and value <= 0 else self.size_or_none(name, limit=limit)

    def pair(self, name: str, *, default: int) -> tuple[int, int]:
        """Return height and width, given as one number or two."""
        value = self._values.get(name)
        if not isinstance(value, (list, tuple)):
            size = self.size(name, default=default)
            return size, size
        if len(value) != 2:
            raise self.error(f"{name} must be a number or two")
        height, width = (Fields({name: side}, self.where).size(name) for side in value)
        return height, width

    def flag(self, *names: str, default: bool) -> bool:
        value: bool | None = self._read(names, bool, "true or false")
        return default if value is None else value

    def number(self, name: str, *, default: int) -> int:
        value: int | None = self._read((name,), int, "a whole number")
        return default if value is None else value

    def is_set(self, name: str, *, default: bool) -> bool:
        """Return whether an optional number is set. An explicit `null` means that it is not."""
        return self._values[name] is not None if name in self._values else default

    def refuse(self, name: str) -> None:
        """Raise an error if this switch is on, because it changes the model in an unsupported way."""
        if self.flag(name, default=False):
            raise self.error(f"{name} is not supported")

    def probability(self, name: str, *, default: float) -> float:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
            raise self.error(f"{name} must lie between 0 and 1, not {_short(value)}")
        return float(value)

    def text(self, *names: str, default: str) -> str:
        value: str | None = self._read(names, str, "a text")
        return default if value is None else value

    def items(self, name: str) -> list[object] | None:
        """Return a list; None if the field is absent."""
        value: Sequence[object] | None = self._read((name,), (list, tuple), "a list")
        return None if value is None else list(value)

    def section(self, name: str) -> Fields | None:
        """Return a nested object such as `text_config`; None if the field is absent."""
        value: Mapping[str, object] | None = self._read((name,), Mapping, "an object")
        return None if value is None else Fields(value, f"{self.where}, {name}")

    def layer_types(self, layers: int, known: tuple[str, ...]) -> list[str] | None:
        """Return one of the `known` strings for each layer; None if the field is absent."""
        values = self.items("layer_types")
        if values is None:
            return None
        if len(values) != layers:
            raise self.error(f"layer_types has {len(values)} entries for {layers} layers")
        kinds = [value for value in values if isinstance(value, str) and value in known]
        if len(kinds) != layers:
            raise self.error(f"layer_types may hold only {', '.join(known)}")
        return kinds

    def labels(self) -> int:
        """Return the number of classes of a classification head; two by default, as in transformers."""
        # transformers derives `num_labels` from the length of `id2label`, so the latter wins.
        names = self.section("id2label")
        if names is None:
            return self.size("num_labels", default=2)
        if not names._values:
            raise self.error("id2label is empty")
        return len(names._values)

    def divide(self, name: str, value: int, by: str, divisor: int) -> int:
        """Return `value` / `divisor`, which must be an integer."""
        if value % divisor:
            raise self.error(f"{name} {value} is not a multiple of {by} {divisor}")
        return value // divisor


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: object) -> str:
    if _is_int(value) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    if not isinstance(value, (str, int, float)):
        return {"list": "a list", "dict": "an object"}.get(type(value).__name__, type(value).__name__)
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
