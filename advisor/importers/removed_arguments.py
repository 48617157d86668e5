"""Arguments of TrainingArguments that transformers 5 no longer has, and what took their place."""

from __future__ import annotations

from collections.abc import Iterable

from ...probes.failures.messages import find_message
from ...probes.installed_packages import installed_version
from ...validate import parse_version
from .imported_run import known_names

_REFUSAL = "TypeError: TrainingArguments.__init__() got an unexpected keyword argument '{}'"


def removed_arguments() -> set[str]:
    """The arguments that releases before transformers 5 alone have."""
    return known_names("transformers-4") - known_names("training-arguments")


def replacement(argument: str) -> str:
    """What took the place of a removed argument, by the table of failure messages; "" for nothing."""
    refusal = _REFUSAL.format(argument)
    message = find_message(refusal)
    return "" if message is None else message.names(refusal).get("replacement", "")


def refusal_of(arguments: Iterable[str]) -> str:
    """A clause that says where TrainingArguments refuse these removed arguments, and what took their places."""
    named = [f"{name} (now {new})" if (new := replacement(name)) else name for name in arguments]
    return f"transformers 5 has no {', '.join(named)}: TrainingArguments refuse {'them' if len(named) > 1 else 'it'}"


def are_refused_here() -> bool:
    """Whether the installed transformers is 5 or newer."""
    return parse_version(installed_version("transformers") or "0").major >= 5
