"""The models that are known by name: published dimensions, and the spellings that people use.

A spelling is compared without case, punctuation and words that do not change the shape (`-Instruct`, `-hf`); what is
left must be one model's name, or the beginning of one whose rest is no size. Two models of different shape behind one
spelling are an error that lists both: a name never resolves to a neighbour.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UnknownModelError
from ..phrase import phrase
from .families import FAMILIES, UnknownModelTypeError, shape_from_config
from .model_shape import ModelShape

_DATA = Path(__file__).parents[1] / "data" / "models.json"
_PIECE = re.compile(r"\d+(?:\.\d+)?|[a-z]+")
_SIZE = re.compile(r"\d[bm]")

_MIRRORS = frozenset({"nousresearch", "mistralcommunity", "unsloth"})
"""Organisations that publish others' models again, for which no licence has to be accepted."""

# Words in a name that mark how the weights were trained on, or packed, and leave the shape as it is.
_VARIANTS = frozenset({"instruct", "chat", "base", "hf", "it", "pt", "sft", "dpo", "meta"})

_SIZED = re.compile(
    r"(?:\d{4} |moe )?"
    r"(?:(?:[\d.]+ x )?[\d.]+ [bm](?: a [\d.]+ b)?|a [\d.]+ b"
    r"|x?small|tiny|mini|medium|base|x*large|x+l|huge)"
    r"(?: v ?[\d.]+| \d{4}| \d+ k| (?:un)?cased| [\d.]+ [bm]| base)*"
)
"""Pieces of a name after its family's: a size in numbers (`7 b`, `8 x 7 b`, `30 b a 3 b`) or words, and what else tells
the members of a family apart: a version, a date, a context length, the case of letters."""


class _Name(NamedTuple):
    """One name of one entry: the id as published, and what a spelling is compared with."""

    id: str
    entry: int
    pieces: list[str]
    key: str

    @property
    def organisation(self) -> str:
        """Its own, or the entry's."""
        own = self.id.rpartition("/")[0] or _entries()[self.entry]["id"].partition("/")[0]
        return _squeeze(own)

    @property
    def stripped(self) -> str:
        """The key without variants."""
        return _stripped(self.pieces)


def find(name: str) -> ModelShape:
    """The model that a name means, in any usual spelling.

    An organisation before the name (`qwen/...`) must be that of the model, or a mirror that has it under the whole
    name: others publish other weights under the same name. Where several entries of the same shape fit, the first
    stands for all, with `max_positions` unknown if they differ in it.

    Raises UnknownModelError, with the candidates for an ambiguous name, else with the nearest names.
    """
    organisation, _, rest = name.strip().rpartition("/")
    owner, pieces = _squeeze(organisation), _pieces(rest)
    key, stripped = _keys([pieces])[0], _stripped(pieces)
    owned = [known for known in _names() if not owner or _same_owner(owner, known.organisation)]
    exact = [known for known in (_names() if owner in _MIRRORS else owned) if known.key == key]
    if exact:
        return _one(name, exact)
    # A variant that has no entry stands for its model; one that has is preferred (`llama2-7b-chat`: `...-chat-hf`).
    same = [known for known in owned if stripped and known.stripped == stripped]
    if same:
        return _one(name, [known for known in same if known.key.startswith(key)] or same)
    longer = [(known, known.key[len(key) :]) for known in owned if key and _begins(known.key, key)] or [
        (known, known.stripped[len(stripped) :]) for known in owned if stripped and _begins(known.stripped, stripped)
    ]
    found = [known for known, _ in longer]
    if any(_SIZE.search(rest) for _, rest in longer):
        raise _ambiguous(name, found)
    if found:
        return _one(name, found)
    raise UnknownModelError(
        phrase("no model named {name!r} in the catalogue", name=name[:80]),
        why=phrase("nearest names: {names}", names=", ".join(nearest(name))),
        fix=phrase("give one of these, a folder with a config.json, or a hub id such as Qwen/Qwen2.5-14B"),
    )


def family(name: str) -> tuple[ModelShape, ...]:
    """The models of a family (`Qwen2.5`, `llama3.1`, `gpt2`) of a type with a row, by rising parameters: those whose
    names are the family's and a size, so that `Qwen2.5-Coder` is a family of its own. Of one size the first in the
    catalogue stands for all.

    Raises UnknownModelError for a name with less than two sizes.
    """
    organisation, _, rest = name.strip().rpartition("/")
    owner, wanted = _squeeze(organisation), [piece for piece in _pieces(rest) if piece not in _VARIANTS]
    found: dict[int, ModelShape] = {}
    for entry, facts in enumerate(_entries()):
        publisher, _, hub_name = facts["id"].rpartition("/")
        pieces = [piece for piece in _pieces(hub_name) if piece not in _VARIANTS - {"base"}]
        has_row = facts["config"]["model_type"] in FAMILIES
        if (
            has_row
            and wanted
            and pieces[: len(wanted)] == wanted
            and (not owner or _same_owner(owner, _squeeze(publisher)))
        ):
            size = " ".join(pieces[len(wanted) :])
            if not size or _SIZED.fullmatch(size):
                shape = _shape(entry)
                found.setdefault(shape.parameters, shape)
    if len(found) < 2:
        raise UnknownModelError(
            phrase("{name!r} is no family of models in the catalogue", name=name[:80])
            if not found
            else phrase("{name!r} has one size", name=name[:80]),
            why=phrase("nearest names: {names}", names=", ".join(nearest(name))),
            fix="give a name without its size, such as Qwen2.5, llama-3.1 or gpt2",
        )
    return tuple(found[parameters] for parameters in sorted(found))


def config(hub_id: str) -> dict[str, Any]:
    """The `config.json` fields of a model, named as `find(...).name` names it."""
    entry = next(known.entry for known in _names() if known.id == hub_id)
    fields: dict[str, Any] = _entries()[entry]["config"]
    return dict(fields)


def nearest(name: str, n: int = 5) -> list[str]:
    """The n catalogue names that look most like this one."""
    from difflib import SequenceMatcher  # slow to import, and needed only where a name was not found

    wanted = _keys([_pieces(name.rpartition("/")[2])])[0]

    def likeness(known: _Name) -> float:
        return SequenceMatcher(None, wanted, known.key).ratio()

    best: list[str] = []
    for known in sorted(_names(), key=likeness, reverse=True):
        hub_id = _entries()[known.entry]["id"]
        if hub_id not in best:
            best.append(hub_id)
    return best[:n]


def names() -> list[str]:
    """The hub id of every entry."""
    return [entry["id"] for entry in _entries()]


@cache
def _entries() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(_DATA.read_text(encoding="utf-8"))
    return entries


@cache
def _names() -> tuple[_Name, ...]:
    known = [(hub_id, index) for index, entry in enumerate(_entries()) for hub_id in (entry["id"], *entry["aliases"])]
    pieces = _all_pieces([hub_id.rpartition("/")[2] for hub_id, _ in known])
    return tuple(map(_Name, *zip(*known, strict=True), pieces, _keys(pieces)))


def _pieces(name: str) -> list[str]:
    return _all_pieces([name.replace("\n", " ")])[0]


def _all_pieces(names: list[str]) -> list[list[str]]:
    """Words and numbers of each name, in lower case; `1_5` between digits is 1.5, and `7b1` is 7.1b."""
    lower = re.sub(r"(?<=\d)_(?=\d)", ".", "\n".join(names).lower())
    return [_PIECE.findall(line) for line in re.sub(r"(?<![\d.])(\d)b(\d)(?!\d)", r"\1.\2b", lower).split("\n")]


def _keys(names: list[list[str]]) -> list[str]:
    """Pieces of each name joined so that `gpt-j` is `gptj` but 2 and 7 do not become 27."""
    lines = "\n".join([" ".join(pieces) for pieces in names])
    return re.sub(r"(?<=\d) (?=\d)", "|", lines).replace(" ", "").split("\n")


def _stripped(pieces: list[str]) -> str:
    return _keys([[piece for piece in pieces if piece not in _VARIANTS]])[0]


def _squeeze(organisation: str) -> str:
    return re.sub(r"[^a-z0-9]", "", organisation.lower())


def _same_owner(given: str, known: str) -> bool:
    """`meta` for meta-llama and `openai` for openai-community are accepted."""
    return given == known or (len(given) >= 4 and known.startswith(given))


def _begins(key: str, start: str) -> bool:
    """The key starts with these pieces; a number is not cut."""
    return key.startswith(start) and not (start[-1].isdigit() and re.match(r"[\d.]", key[len(start) :]))


def _one(name: str, found: list[_Name]) -> ModelShape:
    """The shape that all these names share."""
    entries = list(dict.fromkeys(known.entry for known in found))
    try:
        shapes = [_shape(entry) for entry in entries]
    except UnknownModelTypeError as error:  # which is recorded under the name that was asked
        raise UnknownModelTypeError(error.config, _name(found[0]), error.source) from None
    if len({replace(shape, name="", source="", max_positions=None) for shape in shapes}) > 1:
        raise _ambiguous(name, found)
    first = replace(shapes[0], name=_name(found[0]))
    alike = len({shape.max_positions for shape in shapes}) == 1
    return first if alike else replace(first, max_positions=None)


def _name(known: _Name) -> str:
    """The hub id: that of an instruct variant where it was named, not a mere other spelling of the entry's own."""
    hub_id: str = _entries()[known.entry]["id"]
    other_words = known.stripped != known.key or known.stripped != _stripped(_pieces(hub_id.rpartition("/")[2]))
    return known.id if "/" in known.id and other_words else hub_id


def _shape(entry: int) -> ModelShape:
    facts = _entries()[entry]
    return shape_from_config(facts["config"], name=facts["id"], source=f"catalogue: {'; '.join(facts['sources'])}")


def _ambiguous(name: str, found: list[_Name]) -> UnknownModelError:
    candidates = list(dict.fromkeys(_entries()[known.entry]["id"] for known in found))
    shown = ", ".join(candidates[:8]) + (f" and {len(candidates) - 8} more" if len(candidates) > 8 else "")
    return UnknownModelError(
        phrase("{name!r} does not say which model is meant", name=name),
        why=phrase("it may be: {shown}", shown=shown),
        fix="give one of these names in full",
    )
