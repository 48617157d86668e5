"""Names with values in one option: `transformers=4.45,reentrant`."""

from __future__ import annotations

from ...estimators.errors import WorkloadError

_WORDS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


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
