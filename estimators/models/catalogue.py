"""The catalogue of models by name: published dimensions and common spellings.

A spelling is compared without case, punctuation and words that do not change the shape (`-Instruct`, `-hf`). The rest
must be one model's name, a prefix of names whose remainder contains no size, or the first words of one model's alone
(`tinyllama`). A spelling that fits two models of different shape is an error that lists both. A name never resolves to
a similar one.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise, takewhile
from math import inf, log
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import NoSuchModelError, UnknownModelError
from .families import FAMILIES, shape_from_config
from .model_shape import ModelShape
from .recordings import recording

_DATA = Path(__file__).parents[1] / "data" / "models.json"
_PIECE = re.compile(r"\d+(?:\.\d+)?|[a-z]+")
_SIZE = re.compile(r"\d[bm]")

_MIRRORS = frozenset({"nousresearch", "mistralcommunity", "unsloth"})
"""Organisations that republish others' models, without a licence to accept."""

# Words in a name for further training or packaging of the weights, which do not change the shape.
_VARIANTS = frozenset({"instruct", "chat", "base", "hf", "it", "pt", "sft", "dpo", "meta"})


class _Name(NamedTuple):
    """One name of one entry: the published id, and the key for comparison with a spelling."""

    id: str
    entry: int
    pieces: list[str]
    key: str

    @property
    def organisation(self) -> str:
        """The organisation in this name, or else in the entry's."""
        own = self.id.rpartition("/")[0] or _entries()[self.entry]["id"].partition("/")[0]
        return _letters_and_digits(own)

    @property
    def stripped(self) -> str:
        """The key without the words for variants."""
        return _stripped(self.pieces)


def find(name: str) -> ModelShape:
    """Return the model with this name, in any common spelling.

    An organisation before the name (`qwen/...`) must be the model's own, or a mirror that has it under the same full
    name, because other organisations publish other weights under the same name. If several entries of the same shape
    fit, the first is returned, with `max_positions` unknown if they differ in it.

    Raises UnknownModelError, with the candidates for an ambiguous name, otherwise NoSuchModelError.
    """
    organisation, _, rest = name.strip().rpartition("/")
    owner, pieces = _letters_and_digits(organisation), _pieces(rest)
    key, stripped = _keys([pieces])[0], _stripped(pieces)
    owned = [known for known in _names() if not owner or _same_owner(owner, known.organisation)]
    exact = [known for known in (_names() if owner in _MIRRORS else owned) if known.key == key]
    if exact:
        return _shared_shape(name, exact)
    # A variant without an entry resolves to its model; an entry is preferred (`...-chat-hf` for `llama2-7b-chat`).
    same = [known for known in owned if stripped and known.stripped == stripped]
    if same:
        return _shared_shape(name, [known for known in same if known.key.startswith(key)] or same)
    longer = [(known, known.key[len(key) :]) for known in owned if key and _starts_with(known.key, key)] or [
        (known, known.stripped[len(stripped) :])
        for known in owned
        if stripped and _starts_with(known.stripped, stripped)
    ]
    found = [known for known, _ in longer]
    # A remainder with a size ("qwen2.5" of "qwen2.5-7b") would choose the model's size, which is the user's choice,
    # unless there is only one.
    whole_words = all(known.pieces[: len(pieces)] == pieces for known in found)
    if any(_SIZE.search(rest) for _, rest in longer) and not (
        whole_words and len({known.entry for known in found}) == 1
    ):
        raise _ambiguous(name, found)
    if found:
        return _shared_shape(name, found)
    meant = _meant(name)
    near = list(dict.fromkeys([*filter(None, [meant]), *_similar(name)]))[:_NAMED]
    error = NoSuchModelError(
        f"no model named {name[:80]!r} in the catalogue",
        why=_phrase(near),
        fix=f"write {meant.rpartition('/')[2]}, or name another, a folder with a config.json, or a hub id"
        if meant
        else "name a model such as Qwen2.5-14B, a folder with a config.json, or a hub id",
    )
    error.meant, error.names = meant, tuple(near)
    raise error


def names_size(name: str) -> bool:
    """Return whether a name states the size of its model."""
    return _SIZE.search(_keys([_pieces(name.rpartition("/")[2])])[0]) is not None


def config(hub_id: str) -> dict[str, Any]:
    """Return the `config.json` fields of a model, given its name as in `find(...).name`."""
    entry = next(known.entry for known in _names() if known.id == hub_id)
    fields: dict[str, Any] = _entries()[entry]["config"]
    return dict(fields)


_NAMED = 5
"""Similar names that are listed."""

_CLOSE, _SIMILAR = 0.8, 0.55
"""Share of equal characters from which a name is taken for a misspelling, and from which it is worth naming."""


def nearest_phrase(name: str) -> str:
    """Return the most similar names in words; "" without a similar one."""
    return _phrase(_similar(name))


def misspelled_owner(hub_id: str) -> str:
    """Return the hub id of the same name whose owner is nearly the same, `meta-llama/Llama-3.1-8B` for
    `meta-lama/Llama-3.1-8B`; "" without one."""
    from difflib import SequenceMatcher  # slow to import, and needed only if a name was not found

    owner, _, name = hub_id.casefold().partition("/")
    for known in _names():
        own, _, own_name = known.id.casefold().partition("/")
        if own_name == name and SequenceMatcher(None, owner, own).ratio() >= _CLOSE:
            return known.id
    return ""


def _similar(name: str) -> list[str]:
    """Return the names worth naming: a size and a letter in common make no family alike (`mamba-2.8b`, `aya-23-8B`)."""
    own = [_family_letters(pieces) for pieces in _meant_pieces(name)]
    found = nearest(name, 4 * _NAMED, least=_SIMILAR)
    return [hub_id for hub_id in found if any(_is_alike(letters, hub_id) for letters in own)][:_NAMED]


def _is_alike(letters: str, hub_id: str) -> bool:
    from difflib import SequenceMatcher  # as below

    known = _family_letters(_pieces(hub_id.rpartition("/")[2]))
    return not letters or SequenceMatcher(None, letters, known).ratio() >= _SAME_FAMILY


def _family_letters(pieces: list[str]) -> str:
    return re.sub(r"[^a-z]", "", _family_and_size(pieces)[0])


_SAME_FAMILY = 0.65
"""Share of equal letters from which two families may be one: `lama` and `llama`, but not `mamba` and `llama`."""


def _phrase(near: list[str]) -> str:
    return f"nearest names: {', '.join(near)}" if near else ""


def nearest(name: str, n: int, *, least: float) -> list[str]:
    """Return the hub ids of the most similar names, the nearest size first among those that differ in it alone, and
    that with the longest equal beginning among those that are as similar. least: the share of equal characters that
    they need."""
    found = (hub_id for likeness, hub_id in _ranked(name) if likeness >= least)
    return list(dict.fromkeys(found))[:n]


@lru_cache(maxsize=64)
def _ranked(name: str) -> list[tuple[float, str]]:
    """Return (share of equal characters, hub id) of all names, in the order of `nearest`."""
    from difflib import SequenceMatcher  # slow to import, and needed only if a name was not found

    found = list[tuple[float, float, int, str]]()
    for pieces in _meant_pieces(name):
        wanted, (family, size) = _keys([pieces])[0], _family_and_size(pieces)
        for known in _names():
            likeness, (own, own_size) = SequenceMatcher(None, wanted, known.key).ratio(), _family_and_size(known.pieces)
            distance = abs(log(size / own_size)) if own == family and size and own_size else inf
            if distance == inf and size and own_size == size and family and family in own:  # `llama-8b`
                distance = _OTHER_FAMILY
            beginning = len([*takewhile(lambda pair: pair[0] == pair[1], zip(wanted, known.key, strict=False))])
            found.append((distance, -likeness, -beginning, _entries()[known.entry]["id"]))
    return [(-likeness, hub_id) for _, likeness, _, hub_id in sorted(found)]


def _meant_pieces(name: str) -> list[list[str]]:
    """Return the pieces of a name, and those with a version in front of the size: `llama-3.8b` may be Llama 3 of 8B."""
    own = name.rpartition("/")[2][:100]  # the comparison takes quadratic time
    divided = re.sub(r"(?<=\d)\.(?=\d+[bm])", "-", own.lower())
    return [_pieces(each) for each in dict.fromkeys((own.lower(), divided))]


_NEAR_BEGINNING = 0.9
"""Share of equal characters from which a name is taken for the misspelled beginning of one."""

_OTHER_SIZE = 1.25
"""Ratio of the sizes of two models from which one is no misspelling of the other. Sizes of usual names are rounded:
14B and 14.8B."""

_OTHER_FAMILY = 0.05
"""What the words that a name lacks count beside the logarithm of the ratio of sizes: less than another size does."""


def _meant(name: str) -> str:
    """Return the hub id of the model whose name is misspelled, or has its words in another order; "" without one. Its
    size is the one that the name states."""
    if variant := _misspelled_variant(name):
        return variant
    stated = [*map(_family_and_size, _meant_pieces(name))]
    same = next(iter(nearest(name, 1, least=_SIMILAR)), "")
    if same and _family_and_size(_pieces(same.rpartition("/")[2])) in [each for each in stated if each[1]]:
        return same
    near = next(iter(nearest(name, 1, least=_CLOSE)), "") or (same if _begins(name, same) else "")
    _, known = _family_and_size(_pieces(near.rpartition("/")[2]))
    sizes = [size for _, size in stated if size]
    return near if not sizes or any(1 / _OTHER_SIZE <= known / size <= _OTHER_SIZE for size in sizes) else ""


def _misspelled_variant(name: str) -> str:
    """Return the hub id of the model of which a name states a misspelled variant: `llama-3-8b-instuct`; "" without
    one."""
    from difflib import get_close_matches  # as above

    pieces = _pieces(name.rpartition("/")[2][:100])
    longer = [word for word in _VARIANTS if len(word) >= _LONG_WORD]
    spelled = [next(iter(get_close_matches(piece, longer, 1, _CLOSE)), piece) for piece in pieces]
    stripped = _stripped(spelled)
    if spelled == pieces or not stripped:
        return ""
    same = (known for known in _names() if known.stripped == stripped)
    return next((_entries()[known.entry]["id"] for known in same), "")


_LONG_WORD = 4
"""Least number of characters of a word that can be misspelled: two of shorter ones have too little in common."""


def _begins(name: str, hub_id: str) -> bool:
    """Return whether a name is nearly the beginning of a longer one: `Mistrall-7B` of `Mistral-7B-v0.1`."""
    from difflib import SequenceMatcher  # as above

    own, known = (_keys([_pieces(each.rpartition("/")[2][:100])])[0] for each in (name, hub_id))
    return bool(known) and SequenceMatcher(None, own, known[: len(own)]).ratio() >= _NEAR_BEGINNING


def _family_and_size(pieces: list[str]) -> tuple[str, float]:
    """Return a name without its size and the words for variants, and the size in millions of parameters; 0 without."""
    for at, (number, unit) in enumerate(pairwise(pieces)):
        if unit in ("b", "m") and number[0].isdigit():
            return _stripped([*pieces[:at], *pieces[at + 2 :]]), float(number) * (1000 if unit == "b" else 1)
    return _stripped(pieces), 0.0


def names() -> list[str]:
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
    """Split each name into words and numbers, in lower case; `1_5` becomes 1.5, and `7b1` becomes 7.1b."""
    lower = re.sub(r"(?<=\d)_(?=\d)", ".", "\n".join(names).lower())
    return [_PIECE.findall(line) for line in re.sub(r"(?<![\d.])(\d)b(\d)(?!\d)", r"\1.\2b", lower).split("\n")]


def _keys(names: list[list[str]]) -> list[str]:
    """Join the pieces of each name so that `gpt-j` becomes `gptj`, but 2 and 7 do not become 27."""
    lines = "\n".join([" ".join(pieces) for pieces in names])
    # All names in one regular expression: a call for each of them would take longer than the rest of an answer.
    return re.sub(r"(?<=\d) (?=\d)", "|", lines).replace(" ", "").split("\n")


def _stripped(pieces: list[str]) -> str:
    return _keys([[piece for piece in pieces if piece not in _VARIANTS]])[0]


@cache
def _letters_and_digits(organisation: str) -> str:
    return re.sub(r"[^a-z0-9]", "", organisation.lower())


def _same_owner(named: str, known: str) -> bool:
    """Return whether the organisations are equal. `meta` is accepted for meta-llama, `openai` for openai-community."""
    return named == known or (len(named) >= 4 and known.startswith(named))


def _starts_with(key: str, start: str) -> bool:
    """Return whether the key starts with these pieces, without cutting a number."""
    return key.startswith(start) and not (start[-1].isdigit() and re.match(r"[\d.]", key[len(start) :]))


def _shared_shape(name: str, found: list[_Name]) -> ModelShape:
    entries = list(dict.fromkeys(known.entry for known in found))
    shapes = [_shape(entry) for entry in entries]
    if len({replace(shape, name="", source="", max_positions=None) for shape in shapes}) > 1:
        raise _ambiguous(name, found)
    own = _name(found[0])
    first = replace(shapes[0], name=own, quantized=_quantized(entries[0], own))
    # Base and instruct models often differ in their context length alone, which decides no estimate.
    alike = len({shape.max_positions for shape in shapes}) == 1
    return first if alike else replace(first, max_positions=None)


def _name(known: _Name) -> str:
    """Return the hub id: the instruct variant's if the name is a variant, the entry's own for other spellings of it."""
    hub_id: str = _entries()[known.entry]["id"]
    other_words = known.stripped != known.key or known.stripped != _stripped(_pieces(hub_id.rpartition("/")[2]))
    return known.id if "/" in known.id and other_words else hub_id


def _quantized(entry: int, hub_id: str) -> str:
    """Return the method by which a name's checkpoint is quantized; "" for 16 or 32 bits. A base model's can have 16
    bits although those of its variants are quantized."""
    methods: dict[str, list[str]] = _entries()[entry].get("quantized", {})
    return next((method for method, names in methods.items() if hub_id in names), "")


def _shape(entry: int) -> ModelShape:
    facts = _entries()[entry]
    config, source = facts["config"], f"catalogue: {'; '.join(facts['sources'])}"
    if config["model_type"] in FAMILIES:
        return shape_from_config(config, name=facts["id"], source=source)
    recorded = recording(config["model_type"], facts["id"])
    return replace(recorded, name=facts["id"], source=f"{source}; {recorded.source}")


def _ambiguous(name: str, found: list[_Name]) -> UnknownModelError:
    candidates = list(dict.fromkeys(_entries()[known.entry]["id"] for known in found))
    shown = ", ".join(candidates[:8]) + (f" and {len(candidates) - 8} more" if len(candidates) > 8 else "")
    error = UnknownModelError(
        f"{name!r} is ambiguous",
        why=f"it matches: {shown}",
        fix=f"give one of these names in full, such as {candidates[0]}",
    )
    if len(candidates) == 1:
        error = UnknownModelError(f"{name!r} is not the full name of a model", fix=f"did you mean {shown}?")
    error.names = tuple(candidates[:8])
    return error
