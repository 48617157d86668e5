"""One option of a question: its declaration, and how the declaration is read from the annotation of a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from ...estimators.errors import WorkloadError
from ...estimators.phrase import phrase
from ...estimators.workload import Method

LARGEST_COUNT = 10**9
"""Larger counts are assumed to be typing errors."""


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
    name: str = ""
    """The name of the parameter. This field and the following ones are read from the annotation."""
    kind: Literal["switch", "choice", "count", "count or max", "number", "text"] = "text"
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The name on the command line, such as `--seq-len`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def text(self) -> str:
        """The help text with the default."""
        default = self.default_text or ("" if self.default in (None, False) else self.default)
        return f"{self.help} [default: {default}]" if default != "" else self.help

    def check(self, value: Any) -> None:
        """Raise WorkloadError for a value that is not a choice of the option, or a count out of range."""
        if self.choices and value not in self.choices:
            fix = phrase("pass one of {names}", names=", ".join(self.choices))
            raise WorkloadError(phrase("unknown {name} {value!r}", name=self.name, value=str(value)[:40]), fix=fix)
        if self.kind.startswith("count") and value != "max" and not 0 < value <= LARGEST_COUNT:
            raise WorkloadError(
                phrase("{name} is {value}", name=self.name, value=value),
                why=phrase("it must be between 1 and {most}", most=LARGEST_COUNT),
                fix=phrase("pass another {flag}", flag=self.flag),
            )


def _declared(name: str, annotation: Any) -> Option:
    """The option of an annotation, with name, kind and choices."""
    option: Option = annotation.__metadata__[0]
    members = get_args(annotation.__origin__) or (annotation.__origin__,)
    types = {member for member in members if isinstance(member, type)}
    choices = tuple(word for member in members for word in (get_args(member) or (member,)) if isinstance(word, str))
    if int in types and str not in types:
        return option._replace(name=name, kind="count or max" if choices else "count")
    if choices and str not in types:
        return option._replace(name=name, kind="choice", choices=choices)
    return option._replace(name=name, kind="switch" if bool in types else "number" if float in types else "text")


def declared(annotations: Mapping[str, Any]) -> dict[str, Option]:
    """The options among annotations, by name."""
    return {name: _declared(name, each) for name, each in annotations.items() if hasattr(each, "__metadata__")}


def parse_count(text: str) -> int:
    """An integer from 1 to 999999999 in digits. Raises ValueError for any other text."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise ValueError(phrase("{text!r} is not a whole number from 1 to 999999999", text=text[:40]))
    return int(text)
