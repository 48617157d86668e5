"""The language of a printed answer: English, or another one with a catalogue (`*.po`, gettext's format).

A catalogue is parsed without compilation, and only if it is used, so English has no cost.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Literal, cast

from ...estimators.phrase import Phrase

if TYPE_CHECKING:
    from rich.console import Console

Language = Literal["en", "zh"]

_LOCALES: Mapping[str, Language] = {"zh": "zh", "zh_CN": "zh", "zh_SG": "zh", "zh_Hans": "zh"}
"""Locales with a language other than English. zh_TW and zh_HK use traditional characters, which no catalogue has."""

_VARIABLES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
"""Environment variables in gettext's order; the first one that is set decides. LANGUAGE may list several, the best
first."""

SAMPLES: Mapping[Language, str] = {"en": "", "zh": "显存"}
"""Characters of each language, to test the terminal's encoding."""

_NEEDLESS_SPACES = r"(?<=[\uff00-\uffef\u3000-\u303f]) | (?=[\uff00-\uffef\u3000-\u303f])"
"""Spaces next to wide punctuation."""

_templates: dict[str, str] = {}
"""Templates of the current language; empty for English."""


def language_of_environment() -> Language:
    """Return the language that the environment selects."""
    wanted = next((value for name in _VARIABLES if (value := os.environ.get(name))), "")
    for locale in wanted.split(":"):
        name = locale.partition(".")[0].partition("@")[0]
        if name in _LOCALES:
            return _LOCALES[name]
        if name.partition("_")[0] in ("en", "C", "POSIX"):
            break
    return "en"


def catalogue(name: str) -> dict[str, str]:
    """Return the translation of every template from a file of this folder."""
    # Imported here: English needs no catalogue.
    import json
    from importlib.resources import files

    entries: list[dict[str, str]] = []
    keyword = ""
    for line in files(__package__).joinpath(f"{name}.po").read_text(encoding="utf-8").splitlines():
        word, _, text = line.partition('"')
        if line.startswith("#") or not text:
            continue
        keyword = word.strip() or keyword
        if word.startswith("msgid"):
            entries.append({"msgid": "", "msgstr": ""})
        entries[-1][keyword] += cast(str, json.loads(f'"{text}'))
    return {entry["msgid"]: entry["msgstr"] for entry in entries if entry["msgid"]}


@contextmanager
def use_language(language: Language) -> Iterator[None]:
    """Translate phrases into a language within the context."""
    before = dict(_templates)
    _templates.clear()
    if language != "en":
        _templates.update(catalogue(language))
    try:
        yield
    finally:
        _templates.clear()
        _templates.update(before)


def is_translated(text: str) -> bool:
    """Whether a displayed text has been translated from English, apart from names in it."""
    return bool(_templates) and any(char >= "\u3000" for char in text)


def in_language(console: Console, language: Language) -> AbstractContextManager[None]:
    """Return sentences in this language, or in English if the terminal cannot display it."""
    return use_language(language if can_encode(console, SAMPLES[language]) else "en")


def can_encode(console: Console, text: str) -> bool:
    try:
        text.encode(console.encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def translate(text: str) -> str:
    """Return a text in the current language: unchanged unless it is a `Phrase` in the catalogue."""
    if not _templates or not isinstance(text, Phrase):
        return text
    template = _templates.get(text.template, text.template)
    if not text.fields:
        return template
    fields = {name: translate(value) if isinstance(value, str) else value for name, value in text.fields.items()}
    return re.sub(_NEEDLESS_SPACES, "", template.format(**fields))
