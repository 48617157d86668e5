"""A data file as samples on disk: read, recognised, rendered, tokenized; then cut to a sequence length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..text.progress import seldom
from .batching import Cuts, Index, evaluation_split, index_of
from .errors import DataError
from .rendering import Renderer
from .rows import Row, read_rows
from .shapes import ROW_SHAPES, PlainText, TextPart, is_empty, recognise, teaches_nothing
from .tokenizing import tokenize
from .tokens import Integers, Tokens, TokenWriter, open_tokens

_ROWS_AT_ONCE = 1000
"""Rows that are tokenized together, on all cores."""

_NAMED = 5
"""Empty rows whose places are told; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """What is in a data file, once its rows are token sequences in `folder`."""

    name: str
    folder: Path
    shape: str
    """A key of `ROW_SHAPES`."""
    divisible: bool
    """Whether the sequences may be cut anywhere."""
    rows: int
    """Those that are sequences now."""
    empty_rows: int
    """Left out: nothing stands in them, or an answer is empty."""
    empty_places: tuple[str, ...]
    """Of the first of these, in words."""
    tokens: int
    trained_tokens: int
    """Those that count in the loss."""
    longest: int
    """Tokens of the longest sequence."""
    typical: int
    """The 95th percentile of the sequences' tokens."""
    untrained_turns: int
    """See `Renderer`."""
    has_own_template: bool
    """Whether the tokenizer brought its chat template."""

    def opened(self) -> Tokens:
        return open_tokens(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A data file cut to a sequence length: where its indices lie, and how many samples there are."""

    train: Path
    evaluation: Path | None
    train_samples: int
    evaluation_samples: int
    seq_len: int
    """The most tokens of a sample."""
    packing: bool
    tokens: int
    """Tokens of all training samples, those of one epoch."""
    cuts: Cuts

    @property
    def fill(self) -> float:
        """Share of `seq_len` that the average training sample has."""
        return self.tokens / (self.train_samples * self.seq_len)


def prepare(
    path: Path,
    tokenizer: Any,
    folder: Path,
    *,
    shape: str | None = None,
    system: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> DataFile:
    """Tokenize every row of `path` into `folder`.

    shape:  a key of `ROW_SHAPES`; None: what the first row has, and then every row must have it.
    system: a system message for chats that bring none.
    say:    told every few seconds how many rows are done.

    Rows in which nothing stands, and those with an empty answer, are counted and left out.

    Raises DataError, naming file and line, for the first row that is broken, and for a file without rows.
    """
    rows, empty, say_seldom = read_rows(path), _Empty(), seldom(say)
    first = next((row for row in rows if not (is_empty(row) and empty.add(row))), None)
    if first is None:
        raise _nothing(path, empty.count)
    name = shape or recognise(first)
    renderer, divisible, trained_tokens, kept, done = Renderer(tokenizer, system=system), False, 0, 0, 0
    with TokenWriter(folder) as writer:
        for batch in _batches(first, rows):
            rendered: list[list[TextPart]] = []
            for row in batch:
                sample = None if is_empty(row) else ROW_SHAPES[name].sample(row)
                if sample is None or teaches_nothing(sample):
                    empty.add(row)
                    continue
                divisible = divisible or (isinstance(sample, PlainText) and sample.divisible)
                rendered.append(renderer.parts(sample, row.place))
            for sequence in tokenize(tokenizer, rendered) if rendered else ():
                writer.add(sequence)
                trained_tokens += sum(sequence.is_trained)
            kept, done = kept + len(rendered), done + len(batch)
            say_seldom(f"{path.name}: {done:,} rows ...")
    if not kept:
        raise _nothing(path, empty.count)
    lengths = open_tokens(folder).lengths
    return DataFile(
        name=path.name,
        folder=folder,
        shape=name,
        divisible=divisible,
        rows=kept,
        empty_rows=empty.count,
        empty_places=tuple(empty.places),
        tokens=int(lengths.sum()),
        trained_tokens=trained_tokens,
        longest=int(lengths.max()),
        typical=int(np.percentile(lengths, 95, method="higher")),
        untrained_turns=renderer.untrained_turns,
        has_own_template=renderer.has_own_template,
    )


def _nothing(path: Path, empty: int) -> DataError:
    what = f"every row is empty or has an empty answer ({empty:,})" if empty else "no rows"
    return DataError(f"{path}: {what}", why="there is nothing to train on", fix="check --data")


class _Empty:
    """Rows that are left out."""

    def __init__(self) -> None:
        self.count, self.places = 0, list[str]()

    def add(self, row: Row) -> bool:
        self.count += 1
        if len(self.places) < _NAMED:
            self.places.append(row.place)
        return True


def _batches(first: Row, rest: Iterator[Row]) -> Iterator[list[Row]]:
    batch = [first, *islice(rest, _ROWS_AT_ONCE - 1)]
    while batch:
        yield batch
        batch = list(islice(rest, _ROWS_AT_ONCE))


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
    """The samples of `seq_len` that training and evaluation take, their indices in `folder`.

    evaluation_share: of the sequences, chosen by `seed`; evaluated and not trained. evaluation: a file of its own
        instead.

    Raises DataError where no sample has a token to train on.
    """

    def indexed(of: DataFile, sequences: Integers) -> tuple[Index, Cuts]:
        return index_of(of.opened(), sequences, seq_len=seq_len, divisible=of.divisible, packing=packing)

    trained, held_out = evaluation_split(data.rows, 0 if evaluation is not None else evaluation_share, seed)
    index, cuts = indexed(data, trained)
    if not len(index):
        raise DataError(
            f"{data.name}: no sample keeps an answer within {seq_len} tokens",
            why="what lies beyond the sequence length is cut",
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
