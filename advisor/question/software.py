"""What a user says of the software: `--software transformers=4.45,reentrant` as a `Software`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from ...estimators.errors import WorkloadError
from ...estimators.software import OptimizerStep, Software

_WORDS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_VERSION = re.compile(r"(\d{1,3})(\.(\d{1,3})(\..*)?)?")


def software_of(said: str | Mapping[str, Any] | None) -> Software:
    """The software that is described by names and values, in text separated by commas; a name alone means yes.

    Raises WorkloadError for a name or a value that does not exist.
    """
    if said is None:
        return Software()
    pairs = said if isinstance(said, Mapping) else named_values(said)
    return Software(**{_name(name): _value(_name(name), value) for name, value in pairs.items()})


def _name(name: str) -> str:
    key, known = str(name).replace("-", "_").lower(), [field.name for field in fields(Software)]
    if key not in known:
        listed = ", ".join(field.replace("_", "-") for field in known)
        raise WorkloadError(f"--software has nothing called {name[:40]!r}", fix=f"name one of {listed}")
    return key


def _value(name: str, value: Any) -> Any:
    if name in ("transformers", "deepspeed", "torch"):
        return _version(name, value)
    if name == "optimizer_step":
        if value not in get_args(OptimizerStep):
            listed = ", ".join(get_args(OptimizerStep))
            raise WorkloadError(f"unknown optimizer-step {str(value)[:40]!r}", fix=f"pass one of {listed}")
        return value
    return yes_or_no(f"--software {name.replace('_', '-')}", value)


def _version(name: str, value: Any) -> tuple[int, int]:
    found = _VERSION.fullmatch(".".join(map(str, value)) if isinstance(value, tuple | list) else str(value))
    if found is None:
        raise WorkloadError(
            f"{str(value)[:40]!r} is no version of {name}", fix=f"pass one such as --software {name}=4.45"
        )
    return int(found[1]), int(found[3] or 0)


def named_values(text: str) -> dict[str, str]:
    """The values by their names; a name alone means yes."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    return {name.strip(): value.strip() or "yes" for name, _, value in (word.partition("=") for word in words)}


def yes_or_no(name: str, value: object) -> bool:
    """The truth that a value says, as a word or as it is.

    Raises WorkloadError for another value.
    """
    found = value if isinstance(value, bool) else _WORDS.get(str(value).lower())
    if found is None:
        raise WorkloadError(f"{name} is {str(value)[:40]!r}", fix="say yes or no")
    return found
