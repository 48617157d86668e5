"""The declaration of an option: its help, default and type, and what values it accepts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from decimal import Decimal
from math import isfinite
from numbers import Integral, Real
from operator import index
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from ...estimators.errors import WorkloadError
from ...estimators.workload import Method

LARGEST_COUNT = 10**9
"""Larger counts are assumed to be typing errors."""

KIBI = 1024
"""Value of `k` in lengths of sequences: a model of 32k tokens has 32,768."""

_POWERS = {"": 0, "k": 1, "m": 2, "b": 3, "g": 3, "t": 4}


Count = int | str
"""A whole number, or its text as on the command line: `8k`."""


class Option(NamedTuple):
    """The declaration of one option."""

    help: str
    default: Any = None
    metavar: str = ""
    """The placeholder of the value in the help; "" for a choice, a count or a switch."""
    default_text: str = ""
    """The meaning of a default of None."""
    methods: tuple[Method, ...] = ()
    """The training methods in which the option has an effect; () for all."""
    kilo: int = 1000
    """The value of `k` in a count."""
    former: Mapping[str, str] = MappingProxyType({})
    """Words that the option no longer has, each with what to write instead."""
    title: str = ""
    """The name of its field in a form; "" for the words of `name`."""
    name: str = ""
    """The name of the parameter. This field and the following ones are read from the annotation."""
    kind: Literal["switch", "choice", "count", "count or word", "number", "text"] = "text"
    choices: tuple[str, ...] = ()
    """The words that are accepted, for "count or word" in place of a count."""
    types: tuple[type, ...] = ()
    """The types of the annotation."""

    @property
    def flag(self) -> str:
        """The name on the command line, such as `--seq-len`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def label(self) -> str:
        """The name of its field in a form, such as `Micro batch`."""
        words = self.name.replace("_", " ")
        return self.title or f"{words[:1].upper()}{words[1:]}"

    @property
    def text(self) -> str:
        """The help text with the default."""
        default = self.default_text or ("" if self.default in (None, False) else self.default)
        return f"{self.help} [default: {default}]" if default != "" else self.help

    def check(self, value: Any) -> None:
        """Raise WorkloadError for a value that is not a choice or a number of the option, or a count out of
        range."""
        what, is_number = f"{self.name} is {str(value)[:40]!r}", not isinstance(value, bool)
        if isinstance(value, str) and value in self.choices:
            return
        self.check_former(value)
        if self.kind == "choice":
            from .other_names import meant_choice  # imported here: only mistakes need it

            near = meant_choice(str(value), self.choices)
            fix = f"pass {self.name}={near!r}" if near else f"pass one of {', '.join(self.choices)}"
            raise WorkloadError(f"unknown {self.name} {str(value)[:40]!r}", fix=fix)
        if self.kind.startswith("count"):
            if not (isinstance(value, Integral) and is_number):
                is_finite = isinstance(value, Real) and is_number and isfinite(value)
                meant = max(1, round(float(value))) if is_finite else self._number_in(value)
                raise WorkloadError(what, why="it must be a whole number", fix=self._advice(meant))
            if not 0 < int(value) <= LARGEST_COUNT:
                raise WorkloadError(
                    f"{self.name} is {Decimal(int(value)):.12g}",
                    why=f"it must be between 1 and {LARGEST_COUNT}",
                    fix=self._advice(None),
                )
        if self.kind == "number" and not (isinstance(value, Real) and is_number):
            raise WorkloadError(what, why="it must be a number", fix=self._advice(self._number_in(value)))
        if self.kind == "switch" and is_number:
            raise WorkloadError(what, why="it must be True or False")
        if (
            self.kind == "text"
            and isinstance(value, bool | bytes | Collection)
            and not isinstance(value, (str, *self.types))
        ):
            raise WorkloadError(what, why="it must be text", fix="help(ds_advise.advise) has examples")

    def _advice(self, meant: float | None) -> str:
        """What to pass: the number that was meant, else the default."""
        number = self.default if meant is None else meant
        return f"leave {self.name} out" if number is None else f"pass {self.name}={number}"

    def _number_in(self, value: Any) -> float | None:
        """The number that a text begins with (`8kk`: 8k), None without one that the option can have."""
        if not isinstance(value, str):
            return None
        begin = re.match(r"\s*(\d[\d.,]*\s*[kmbgt]?)", value, re.IGNORECASE | re.ASCII)
        with suppress(ValueError):
            text = begin[1] if begin else ""
            return parse_count(text, kilo=self.kilo) if self.kind.startswith("count") else float(text.strip(" ,.kKmM"))
        return None

    def check_former(self, value: Any) -> None:
        """Raise WorkloadError for a word that the option no longer has."""
        if isinstance(value, str) and value in self.former:
            raise WorkloadError(f"{self.flag} has no value {value} any more", fix=self.former[value])

    def typed(self, value: Any) -> Any:
        """A value of Python in the type that the option has: a count as the text of the command line (`8k`), numbers of
        numpy and whole floats, a choice in any case, and a number where the option is text (`ram=128`). Other values
        are returned unchanged, for `check`."""
        if isinstance(value, str):
            word = value.casefold()
            if self.kind != "text" and word in self.choices:
                return word
            if self.kind.startswith("count"):
                with suppress(ValueError):  # a word, or a mistake, which `check` names
                    return parse_count(value, kilo=self.kilo)
            return value
        if not isinstance(value, Real) or isinstance(value, bool):
            return value
        if self.kind == "text":
            return str(value)
        if isinstance(value, Integral):
            return index(value)
        number = float(value)
        return int(number) if self.kind.startswith("count") and number.is_integer() else number


def _declared(name: str, annotation: Any) -> Option:
    option: Option = annotation.__metadata__[0]
    members = get_args(annotation.__origin__) or (annotation.__origin__,)
    types = tuple(each for member in members if isinstance(each := get_origin(member) or member, type))
    option = option._replace(name=name, types=types)
    choices = tuple(word for member in members for word in (get_args(member) or (member,)) if isinstance(word, str))
    if int in types and not option.metavar:
        return option._replace(kind="count or word" if choices else "count", choices=choices)
    if choices and str not in types:
        return option._replace(kind="choice", choices=choices)
    return option._replace(kind="switch" if bool in types else "number" if float in types else "text")


def declared(annotations: Mapping[str, Any]) -> dict[str, Option]:
    """The options among annotations, by name."""
    return {name: _declared(name, each) for name, each in annotations.items() if hasattr(each, "__metadata__")}


def parse_count(text: str, *, kilo: int = 1000, most: int = LARGEST_COUNT) -> int:
    """The whole number in `4096`, `20,000`, `1e6`, `500k`, `1.5B`. kilo: the value of `k`; `M`, `B` and `T` are its
    powers. Raises ValueError for any other text, and for a number that is not from 1 to `most`."""
    plain = re.sub(r"(?<=\d)[_,](?=\d{3}(?!\d))", "", text.strip())
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?(?:e\d{1,2})?)\s*([kmbgt]?)", plain, re.IGNORECASE | re.ASCII)
    number = Decimal(match[1]) * kilo ** _POWERS[match[2].lower()] if match else Decimal(0)
    if not 0 < number <= most or number % 1:
        raise ValueError(f"{text[:40]!r} is not a whole number from 1 to {most:,}")
    return int(number)
