"""The language of the answer: English, or Chinese.

All code writes English. `document.translation` translates the texts of a document, by the catalogue `zh.po` (gettext's
format), whose keys are English texts with a `{name}` for each figure, name or part: `{need} of {have} GiB per
{device}`. A text is matched against the keys, so no code has to mark its sentences; a part that is itself a text of the
catalogue is translated too. English loads no catalogue.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

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

_NEEDLESS_SPACES = (
    r"(?<=[\uff00-\uffef\u3000-\u303f]) | (?=[\uff00-\uffef\u3000-\u303f])"
    r"|(?<=[\u4e00-\u9fff]) (?=[\u4e00-\u9fff])"
)
"""Spaces next to wide punctuation, and between Chinese characters, where a field holds words in place of a figure."""

_MISSING_SPACES = r"(?<=[A-Za-z0-9])(?=[\u4e00-\u9fff])|(?<=[\u4e00-\u9fff])(?=[A-Za-z0-9])"
"""Places between Latin and Chinese characters."""

_FIELD = re.compile(r"\{(\w+)\}")

_WORD = r"[^\s()]*[^\s():;,.](?: [MBT]\b)?"
"""A figure or a name: `1,120`, `14.77 B`, `zero3-offload`."""

_TEXT = r"(?:\([^()]*\)|(?![.;:] |, | · ).)+?"
"""A text without separators, except in parentheses."""

_TEXTS = ("age", "begin", "chance", "end", "gpu", "largest", "moment", "part", "peak", "plan", "time", "what", "whole")
_LISTS = ("arguments", "names", "reason")
_FIGURES = ("gib", "low", "high")

_FIELD_PATTERNS = {
    **dict.fromkeys(_TEXTS, _TEXT),
    **dict.fromkeys(_LISTS, r"(?:(?!\. ).)+?"),  # within a sentence
    **dict.fromkeys(_FIGURES, r"[\d.,]+(?: [MBT]\b)?"),
}
"""What a field of this name matches; any other field is a `_WORD`. Without kinds, `{speed}, {each} per {device}` would
also match a device of several words, and swap the parts of a sentence."""

_SEPARATORS: Mapping[str, str] = {" · ": " · ", ". ": "\u3002", "; ": "\uff1b", ": ": "\uff1a", ", ": "\uff0c"}
"""Where a text is divided if the catalogue does not have it as a whole, the strongest first, and the Chinese mark."""


class _Entry(NamedTuple):
    """A text of the catalogue with fields."""

    literals: tuple[str, ...]
    """The text between the fields."""
    pattern: str
    """Regular expression of the whole text. A field contains no separator."""
    translation: str


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


@cache
def catalogue(language: Language) -> dict[str, str]:
    """Return the translation of every text from a file of this folder."""
    # Imported here: English needs no catalogue.
    import json
    from importlib.resources import files

    entries: list[dict[str, str]] = []
    keyword = ""
    for line in files(__package__).joinpath(f"{language}.po").read_text(encoding="utf-8").splitlines():
        word, _, text = line.partition('"')
        if line.startswith("#") or not text:
            continue
        keyword = word.strip() or keyword
        if word.startswith("msgid"):
            entries.append({"msgid": "", "msgstr": ""})
        entries[-1][keyword] += cast(str, json.loads(f'"{text}'))
    return {entry["msgid"]: entry["msgstr"] for entry in entries if entry["msgid"]}


@cache
def _entries(language: Language) -> list[_Entry]:
    """Return the texts with fields. Those with the most words of their own come first, because a general text, such as
    `{part} {share} %`, also matches what a longer one says."""
    entries = []
    for text, translation in catalogue(language).items():
        pieces = _FIELD.split(text)
        if len(pieces) > 1:
            fields = [f"(?P<{name}>{_FIELD_PATTERNS.get(name, _WORD)})" for name in pieces[1::2]]
            literals = [re.escape(piece) for piece in pieces[::2]]
            pattern = "".join(part for pair in zip(literals, [*fields, ""], strict=True) for part in pair)
            entries.append(_Entry(tuple(pieces[::2]), pattern, translation))
    return sorted(entries, key=lambda entry: -sum(map(len, entry.literals)))


def can_encode(console: Console, text: str) -> bool:
    try:
        text.encode(console.encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def translate(text: str, language: Language) -> str:
    """Return an English text in a language. A part that the catalogue does not have stays English."""
    return text if language == "en" else _translated(text, language)


@cache
def _translated(text: str, language: Language) -> str:
    known = catalogue(language)
    if text in known:
        return known[text]
    if text.endswith("."):
        sentence = _translated(text[:-1], language)
        return f"{sentence}\u3002" if sentence != text[:-1] else text
    for literals, pattern, translation in _entries(language):
        if text.startswith(literals[0]) and text.endswith(literals[-1]) and all(part in text for part in literals):
            found = re.fullmatch(pattern, text)
            if found is not None:
                fields = {name: _translated(value, language) for name, value in found.groupdict().items()}
                if "names" in fields:
                    fields["names"] = fields["names"].replace("\uff0c", "\u3001")
                spaced = re.sub(_MISSING_SPACES, " ", translation.format(**fields))
                return re.sub(_NEEDLESS_SPACES, "", spaced)
    for separator, mark in _SEPARATORS.items():
        parts = re.split(rf"{re.escape(separator)}(?![^()]*\))", text)
        if len(parts) > 1:
            translations = [_translated(part, language) for part in parts]
            return re.sub(_NEEDLESS_SPACES, "", mark.join(translations)) if translations != parts else text
    return text
