"""A data file as samples on disk: rows become token sequences, which are cut to the sequence length and packed.

Token sequences are stored in three flat files that every rank maps into memory. Samples are indices into them.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...estimators.phrase import phrase
from ..text.output import seldom
from ..text.units import percent, seconds
from .rows import DataError, read_rows
from .shapes import ROW_SHAPES, PlainText, TextPart, is_empty, recognise, teaches_nothing
from .tokenizing import Renderer, Tokenized, tokenize

_ROWS_AT_ONCE = 1000
"""Number of rows that are tokenized together, on all cores."""

_NAMED = 5
"""Number of empty rows whose place is recorded."""

_IDS, _TRAINED, _STARTS = "ids.bin", "is_trained.bin", "starts.npy"
_ID, _FLAG = np.dtype("<i4"), np.dtype(np.bool_)

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Token sequences. Sequence i is `ids[starts[i]:starts[i + 1]]`; tokens with `is_trained` count in the loss."""

    ids: npt.NDArray[np.int32]
    is_trained: npt.NDArray[np.bool_]
    starts: Integers

    @property
    def lengths(self) -> Integers:
        return np.diff(self.starts)


class TokenWriter:
    """Writer that appends sequences to the files in a folder. Its memory does not grow with the tokens."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ids = (folder / _IDS).open("wb")
        self._is_trained = (folder / _TRAINED).open("wb")
        self._starts = [0]

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, *_: Any) -> None:
        self._ids.close()
        self._is_trained.close()
        np.save(self._folder / _STARTS, np.asarray(self._starts, dtype=np.int64))

    def add(self, sequence: Tokenized) -> None:
        self._ids.write(np.asarray(sequence.ids, dtype=_ID).tobytes())
        self._is_trained.write(np.asarray(sequence.is_trained, dtype=_FLAG).tobytes())
        self._starts.append(self._starts[-1] + len(sequence.ids))


def open_tokens(folder: Path) -> Tokens:
    """The sequences in a folder, mapped into memory."""
    starts: Integers = np.load(folder / _STARTS)
    if not starts[-1]:  # an empty file cannot be mapped
        return Tokens(ids=np.empty(0, np.int32), is_trained=np.empty(0, np.bool_), starts=starts)
    return Tokens(
        ids=np.memmap(folder / _IDS, dtype=_ID, mode="r"),
        is_trained=np.memmap(folder / _TRAINED, dtype=_FLAG, mode="r"),
        starts=starts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file with its rows as token sequences in `folder`."""

    name: str
    folder: Path
    shape: str
    """A key of `ROW_SHAPES`."""
    divisible: bool
    """Whether the sequences may be cut anywhere."""
    rows: int
    """Number of rows that became sequences."""
    empty_rows: int
    """Number of rows without text or with an empty answer, which are left out."""
    empty_places: tuple[str, ...]
    """The places of the first empty rows, in words."""
    tokens: int
    trained_tokens: int
    """Tokens that count in the loss."""
    longest: int
    """Tokens of the longest sequence."""
    typical: int
    """The 95th percentile of the sequences' tokens."""
    untrained_turns: int
    """Number of earlier answers left out of the loss (`Renderer.untrained_turns`)."""
    has_own_template: bool
    """Whether the tokenizer has a chat template of its own."""

    def opened(self) -> Tokens:
        return open_tokens(self.folder)


def prepare(
    path: Path,
    tokenizer: Any,
    folder: Path,
    *,
    shape: str | None = None,
    system: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> DataFile:
    """Tokenize every row of `path` into `folder`, except rows without text and those with an empty answer.

    shape:  a key of `ROW_SHAPES`; None for that of the first row. Every row must have it.
    system: a system message for chats without one.
    say:    receives a line of progress every few seconds.

    Raises DataError, naming file and line, for the first row that is broken, and for a file without rows.
    """
    rows, say_seldom, started = read_rows(path), seldom(say), time.monotonic()
    empty_places: list[str] = []
    renderer, divisible, trained_tokens, kept, done = Renderer(tokenizer, system=system), False, 0, 0, 0
    with TokenWriter(folder) as writer:
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            rendered: list[list[TextPart]] = []
            for row in batch:
                sample = None
                if not is_empty(row):
                    shape = shape or recognise(row)
                    sample = ROW_SHAPES[shape].sample(row)
                if sample is None or teaches_nothing(sample):
                    empty_places.append(row.place)
                    continue
                divisible = divisible or (isinstance(sample, PlainText) and sample.divisible)
                rendered.append(renderer.parts(sample, row.place))
            for sequence in tokenize(tokenizer, rendered) if rendered else ():
                writer.add(sequence)
                trained_tokens += sum(sequence.is_trained)
            kept += len(rendered)
            done += len(batch)
            say_seldom(_progress(path, done, batch[-1].share, time.monotonic() - started))
    if not kept:
        what = f"every row is empty or has an empty answer ({len(empty_places):,})" if empty_places else "no rows"
        raise DataError(
            phrase("{path}: {what}", path=path, what=what), why="there is nothing to train on", fix="check --data"
        )
    assert shape is not None, "a kept row has a shape"
    lengths = open_tokens(folder).lengths
    return DataFile(
        name=path.name,
        folder=folder,
        shape=shape,
        divisible=divisible,
        rows=kept,
        empty_rows=len(empty_places),
        empty_places=tuple(empty_places[:_NAMED]),
        tokens=int(lengths.sum()),
        trained_tokens=trained_tokens,
        longest=int(lengths.max()),
        typical=int(np.percentile(lengths, 95, method="higher")),
        untrained_turns=renderer.untrained_turns,
        has_own_template=renderer.has_own_template,
    )


def _progress(path: Path, rows: int, share: float | None, passed_s: float) -> str:
    """Progress with the remaining time at the average speed. share: share of the file that has been read."""
    if not share:
        return phrase("{file}: {rows} rows ...", file=path.name, rows=f"{rows:,}")
    left = seconds(passed_s * (1 - share) / share)
    return phrase(
        "{file}: {rows} rows, {share} of {size} MB, {left} left",
        file=path.name,
        rows=f"{rows:,}",
        share=percent(share),
        size=f"{path.stat().st_size / 1e6:,.0f}",
        left=left,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Index of samples into token sequences. Sample j has the pieces `firsts[j]` to `firsts[j + 1]`; piece p has
    `lengths[p]` tokens from `starts[p]` on. Without packing a sample is one piece."""

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
            return Index(**arrays)


class Cuts(NamedTuple):
    """Effect of the sequence length: the number of sequences that were truncated, and of those without a trained token
    left."""

    truncated: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples of a data file at a sequence length."""

    train: Path
    """The file with the `Index` of the training samples."""
    evaluation: Path | None
    train_samples: int
    evaluation_samples: int
    seq_len: int
    """Maximum number of tokens of a sample."""
    packing: bool
    tokens: int
    """Tokens of all training samples, in one epoch."""
    cuts: Cuts

    @property
    def fill(self) -> float:
        """Mean length of a training sample as a share of `seq_len`."""
        return self.tokens / (self.train_samples * self.seq_len)


def cut(
    data: DataFile,
    folder: Path,
    *,
    seq_len: int,
    packing: bool,
    evaluation_share: float,
    seed: int,
    evaluation: DataFile | None = None,
) -> Samples:
    """The samples for training and evaluation, with their indices in `folder`.

    evaluation_share: share of the sequences that are used for evaluation and not for training, chosen by `seed`.
    evaluation: a file for evaluation instead.

    Raises DataError if no sample has a token to train on.
    """

    def indexed(file: DataFile, sequences: Integers) -> tuple[Index, Cuts]:
        return index_of(file.opened(), sequences, seq_len=seq_len, divisible=file.divisible, packing=packing)

    trained, held_out = evaluation_split(data.rows, 0 if evaluation is not None else evaluation_share, seed)
    index, cuts = indexed(data, trained)
    if not len(index):
        raise DataError(
            phrase("{data}: no sample keeps an answer within {seq_len} tokens", data=data.name, seq_len=seq_len),
            why="text beyond the sequence length is cut",
            fix="pass a larger --seq-len",
        )
    evaluated, _ = indexed(data, held_out) if evaluation is None else indexed(evaluation, np.arange(evaluation.rows))
    train_file, evaluation_file = folder / "train.npz", folder / "evaluation.npz"
    index.save(train_file)
    if len(evaluated):
        evaluated.save(evaluation_file)
    return Samples(
        train=train_file,
        evaluation=evaluation_file if len(evaluated) else None,
        train_samples=len(index),
        evaluation_samples=len(evaluated),
        seq_len=seq_len,
        packing=packing,
        tokens=index.tokens,
        cuts=cuts,
    )


def evaluation_split(sequences: int, share: float, seed: int) -> tuple[Integers, Integers]:
    """(training, evaluation): a random split with both parts in the file's order, neither of them empty unless `share`
    is 0."""
    wanted = 0 if share == 0 else min(max(1, round(sequences * share)), sequences - 1)
    is_evaluated = np.zeros(sequences, dtype=np.bool_)
    is_evaluated[np.random.default_rng(seed).permutation(sequences)[:wanted]] = True
    return np.flatnonzero(~is_evaluated), np.flatnonzero(is_evaluated)


def index_of(
    tokens: Tokens, sequences: Integers, *, seq_len: int, divisible: bool, packing: bool
) -> tuple[Index, Cuts]:
    """The samples of these sequences. A sequence longer than `seq_len` continues in further samples if `divisible`;
    otherwise it is truncated. With `packing` a sample holds as many whole pieces as fit. The longest piece is placed
    first, each in the sample with the least remaining room."""
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
    order = np.fromiter(chain.from_iterable(bins), np.int64)
    firsts = np.cumsum([0, *map(len, bins)], dtype=np.int64)
    return Index(starts=starts[order], lengths=lengths[order], firsts=firsts), cuts


def _packed(lengths: Integers, room: int) -> list[list[int]]:
    """Best-fit-decreasing bin packing: at most 11/9 of the fewest bins, plus one (D. S. Johnson, 1973)."""
    bins: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # room left -> bins
    rooms: list[int] = []  # the keys of `with_room`, sorted
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
