"""Named shares of what is saved, for any micro batch size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...estimate import MemoryTerm
from .saved_tensors import Size, Storage, total

SOURCE = "transformers 5.23 modeling code; what torch 2.13 autograd saves"


@dataclass(frozen=True, slots=True)
class Part:
    """One term before the micro batch size is known."""

    name: str
    size: Size
    formula: str
    inputs: tuple[tuple[str, float], ...]

    def term(self, micro_batch_size: int) -> MemoryTerm:
        return MemoryTerm(
            name=self.name,
            size_bytes=self.size.at(micro_batch_size),
            formula=self.formula,
            inputs=(("B", micro_batch_size), *self.inputs),
            source=SOURCE,
        )


def saved_part(name: str, storages: Sequence[Storage], *, count: int, rows: int) -> Part:
    """`count` times what one graph saves, every tensor with its bytes per token (per batch where B does not matter)."""
    tokens = " + ".join(f"{storage.size / rows:g} {storage.label}" for storage in storages if not storage.fixed)
    fixed = " + ".join(f"{storage.size} {storage.label}" for storage in storages if storage.fixed)
    formula = " + ".join(
        text for text in (f"L B S ({tokens})" if tokens else "", f"L ({fixed})" if fixed else "") if text
    )
    return Part(name, total(storages).times(count), formula, (("L", count), ("S", rows)))


def saved_parts(stack: str, storages: Iterable[Storage], *, count: int, rows: int) -> list[Part]:
    """The same, by part of the layer."""
    groups: dict[str, list[Storage]] = {}
    for storage in storages:
        groups.setdefault(storage.part, []).append(storage)
    return [saved_part(f"{stack} {name}", group, count=count, rows=rows) for name, group in groups.items()]
