"""The options of a question in the signature and the docstring of a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from .question.options import GROUPS, OPTIONS, QuestionOptions, check_names, names_in
from .question.python_words import python_words

_Function = TypeVar("_Function", bound=Callable[..., Any])


def documented(function: _Function) -> _Function:
    """The function with every option in its signature and docstring in place of `**options`; a keyword that is not in
    the signature is an UnknownOptionError."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=OPTIONS[name].default, annotation=_written(annotation)
        )
        for name, annotation in QuestionOptions.__annotations__.items()
    ]
    parameters = [*own, *shared]
    names = [each.name for each in parameters]

    @wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        with python_words():
            check_names(given, names, function.__name__)
            return function(*args, **given)

    shown = _Signature(parameters, return_annotation=signature.return_annotation)
    checked.__signature__ = shown  # type: ignore[attr-defined]
    checked.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n{_options_text()}\n    "
    return cast(_Function, checked)


class _Signature(inspect.Signature):
    """A signature whose text, which `help` shows, has one line per parameter."""

    def __str__(self) -> str:
        lines = re.split(r", (?=\*,|\w+: )", super().__str__()[1:])
        return "(\n    " + ",\n    ".join(lines).replace(") -> ", ",\n) -> ")


def _written(annotation: Any) -> Any:
    """The type of an option, as its declaration writes it."""
    declared = annotation.__origin__
    return getattr(declared, "__forward_arg__", declared)


def _options_text() -> str:
    """The options by group, for a docstring. They are named as parameters, not as on the command line."""
    lines = []
    for title, group in GROUPS.items():
        lines += ["", f"    {title}:"]
        for option in (OPTIONS[name] for name in names_in(group)):
            text = re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), option.text)
            lines += _filled(f"{option.name}: {text}")
    return "\n".join(lines[1:])


def _filled(text: str) -> list[str]:
    """The lines of an entry, as `textwrap` makes them: its import takes longer than an answer can wait."""
    lines = ["       "]
    for word in text.split():
        if len(lines[-1]) + len(word) >= 100:
            lines.append("           ")
        lines[-1] += f" {word}"
    return lines
