"""Which tokens make up a sample of the sequence length: cut, divided, packed, split for evaluation. Only index
arithmetic."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .tokens import Integers, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Sample j consists of the pieces `firsts[j]` to `firsts[j + 1]`, and piece p of `lengths[p]` tokens from
    `starts[p]` on.

    Without packing every sample is one piece.
    """

    starts: Integers
    lengths: Integers
    firsts: Integers

    def __len__(self) -> int:
        return len(self.firsts) - 1

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def pieces(self, sample: int) -> list[slice]:
        return [
            slice(int(self.starts[piece]), int(self.starts[piece] + self.lengths[piece]))
            for piece in range(int(self.firsts[sample]), int(self.firsts[sample + 1]))
        ]

    def save(self, file: Path) -> None:
        np.savez(file, starts=self.starts, lengths=self.lengths, firsts=self.firsts)

    @staticmethod
    def load(file: Path) -> Index:
        with np.load(file) as arrays:
            return Index(starts=arrays["starts"], lengths=arrays["lengths"], firsts=arrays["firsts"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """What the sequence length cost."""

    truncated: int = 0
    """Sequences that lost their end."""
    dropped: int = 0
    """Sequences that had no trained token left."""


def index_of(
    tokens: Tokens, sequences: Integers, *, seq_len: int, divisible: bool, packing: bool
) -> tuple[Index, Cuts]:
    """The samples that these sequences make.

    A sequence that is longer than `seq_len` goes on in further samples where it is `divisible`; otherwise it loses its
    end. With `packing` a sample holds as many whole pieces as fit, longest first, each where least room is left.
    """
    starts, ends = tokens.starts[sequences], tokens.starts[sequences + 1]
    truncated = 0
    if divisible:
        counts = -(-(ends - starts) // seq_len)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts, ends = np.repeat(starts, counts) + within * seq_len, np.repeat(ends, counts)
    else:
        truncated = int((ends - starts > seq_len).sum())
    lengths = np.minimum(ends - starts, seq_len)
    # The first token of a piece is never predicted, so it does not count.
    pieces = zip(starts, lengths, strict=True)
    trained = (bool(tokens.is_trained[start + 1 : start + length].any()) for start, length in pieces)
    has_trained = np.fromiter(trained, np.bool_, count=len(starts))
    starts, lengths = starts[has_trained], lengths[has_trained]
    cuts = Cuts(truncated=truncated, dropped=int((~has_trained).sum()))
    if not packing:
        return Index(starts=starts, lengths=lengths, firsts=np.arange(len(starts) + 1)), cuts
    bins = _packed(lengths, seq_len)
    order = np.asarray([piece for pieces in bins for piece in pieces], dtype=np.int64)
    firsts = np.concatenate([[0], np.cumsum([len(pieces) for pieces in bins], dtype=np.int64)])
    return Index(starts=starts[order], lengths=lengths[order], firsts=firsts.astype(np.int64)), cuts


def _packed(lengths: Integers, room: int) -> list[list[int]]:
    """Best fit decreasing: at most 11/9 of the fewest bins, and one more (D. S. Johnson, 1973)."""
    bins: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # room left -> bins
    rooms: list[int] = []  # its keys, sorted
    for piece in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[piece])
        at = bisect_left(rooms, length)
        if at == len(rooms):
            bins.append([])
            chosen, left = len(bins) - 1, room
        else:
            left = rooms[at]
            chosen = with_room[left].pop()
            if not with_room[left]:
                del with_room[left], rooms[at]
        bins[chosen].append(piece)
        if left - length not in with_room:
            with_room[left - length] = []
            insort(rooms, left - length)
        with_room[left - length].append(chosen)
    return bins


def evaluation_split(sequences: int, share: float, seed: int) -> tuple[Integers, Integers]:
    """(training, evaluation): each sequence in one of the two, by chance, both in the file's order. At least one is
    evaluated where `share` is above 0, and at least one trained."""
    wanted = 0 if share == 0 else min(max(1, round(sequences * share)), sequences - 1)
    chosen = np.random.default_rng(seed).permutation(sequences)[:wanted]
    is_evaluated = np.zeros(sequences, dtype=np.bool_)
    is_evaluated[chosen] = True
    return np.flatnonzero(~is_evaluated), np.flatnonzero(is_evaluated)
