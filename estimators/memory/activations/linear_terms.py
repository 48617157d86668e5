"""Terms whose bytes are linear in the micro batch size, which is not known yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...estimate import MEMORY_SYMBOLS, Formula
from ..terms import Terms
from .saved_tensors import Size, Storage, total

SOURCE = "transformers 5.23 modeling code; what torch 2.13 autograd saves"


class LinearTerm(NamedTuple):
    """One term before the micro batch size is known."""

    name: str
    size: Size
    text: str
    """The formula."""
    inputs: Mapping[str, float]
    """Numbers for the formula's symbols, without B."""
    symbols: Mapping[str, str] = MEMORY_SYMBOLS
    not_covered: str = ""

    def terms(self, micro_batch_size: int) -> Terms:
        """A one-element tuple, or an empty one for zero bytes."""
        formula = Formula(self.name, self.text, SOURCE, self.symbols, self.not_covered)
        return formula.term(self.size.at(micro_batch_size), B=micro_batch_size, **self.inputs)


def saved_term(name: str, saved: Sequence[Storage], *, count: int, rows: int) -> LinearTerm:
    """`count` times what one graph saves, every tensor with its bytes per token (per batch where B does not matter)."""
    tokens = " + ".join(f"{storage.size / rows:g} {storage.label}" for storage in saved if not storage.fixed)
    fixed = " + ".join(f"{storage.size} {storage.label}" for storage in saved if storage.fixed)
    sums = ((f"L B S ({tokens})", tokens), (f"L ({fixed})", fixed))
    text = " + ".join(text for text, given in sums if given)
    return LinearTerm(name, total(saved).times(count), text, {"L": count, "S": rows})


def saved_terms(stack: str, saved: Iterable[Storage], *, count: int, rows: int) -> list[LinearTerm]:
    """A term for each part of a layer."""
    groups: dict[str, list[Storage]] = {}
    for storage in saved:
        groups.setdefault(storage.part, []).append(storage)
    return [saved_term(f"{stack} {name}", group, count=count, rows=rows) for name, group in groups.items()]
