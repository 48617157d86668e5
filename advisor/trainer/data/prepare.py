"""A data file as samples on disk: read, recognised, rendered, tokenized; then cut to a sequence length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .batching import Cuts, Index, evaluation_split, index_of
from .errors import DataError
from .rendering import Renderer
from .rows import Row, read_rows
from .shapes import ROW_SHAPES, PlainText, TextPart, recognise
from .tokenizing import tokenize
from .tokens import Tokens, TokenWriter, open_tokens

_ROWS_AT_ONCE = 1000
"""Rows that are tokenized together, on all cores."""

OnRows = Callable[[int], None]
"""Called now and then with the number of rows that are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """What is in a data file, once its rows are token sequences in `folder`.

    shape:    a key of `ROW_SHAPES`. divisible: the sequences may be cut anywhere.
    rows:     sequences. longest, typical: tokens of the longest, and the 95th percentile.
    trained_tokens: those that count in the loss.
    untrained_turns: see `Renderer`. has_own_template: the tokenizer brought its chat template.
    """

    name: str
    folder: Path
    shape: str
    divisible: bool
    rows: int
    tokens: int
    trained_tokens: int
    longest: int
    typical: int
    untrained_turns: int
    has_own_template: bool

    def opened(self) -> Tokens:
        return open_tokens(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A data file cut to a sequence length: where its indices lie, and how many there are.

    seq_len: at most so many tokens a sample. tokens: of all training samples, those of one epoch.
    """

    train: Path
    evaluation: Path | None
    train_samples: int
    evaluation_samples: int
    seq_len: int
    packing: bool
    tokens: int
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
    on_rows: OnRows = lambda _: None,
) -> DataFile:
    """Tokenize every row of `path` into `folder`.

    shape:  a key of `ROW_SHAPES`; None: what the first row has, and then every row must have it.
    system: a system message for chats that bring none.

    Raises DataError, naming file and line, for the first row that is broken, and for a file without rows.
    """
    rows = read_rows(path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: no rows", why="there is nothing to train on", fix="check --data")
    name = shape or recognise(first)
    renderer, divisible, trained_tokens = Renderer(tokenizer, system=system), False, 0
    done = 0
    with TokenWriter(folder) as writer:
        for batch in _batches(first, rows):
            rendered: list[list[TextPart]] = []
            for row in batch:
                sample = ROW_SHAPES[name].sample(row)
                divisible = divisible or (isinstance(sample, PlainText) and sample.divisible)
                rendered.append(renderer.parts(sample, row.place))
            for sequence in tokenize(tokenizer, rendered):
                writer.add(sequence)
                trained_tokens += sum(sequence.is_trained)
            done += len(batch)
            on_rows(done)
    lengths = open_tokens(folder).lengths
    return DataFile(
        name=path.name,
        folder=folder,
        shape=name,
        divisible=divisible,
        rows=done,
        tokens=int(lengths.sum()),
        trained_tokens=trained_tokens,
        longest=int(lengths.max()),
        typical=int(np.percentile(lengths, 95, method="higher")),
        untrained_turns=renderer.untrained_turns,
        has_own_template=renderer.has_own_template,
    )


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
    tokens = data.opened()
    share = 0 if evaluation is not None else evaluation_share
    trained, held_out = evaluation_split(data.rows, share, seed)
    index, cuts = index_of(tokens, trained, seq_len=seq_len, divisible=data.divisible, packing=packing)
    if not len(index):
        raise DataError(
            f"{data.name}: no sample keeps an answer within {seq_len} tokens",
            why="what lies beyond the sequence length is cut",
            fix="pass a larger --seq-len",
        )
    evaluated: Index | None = None
    if evaluation is not None:
        evaluated, _ = index_of(
            evaluation.opened(),
            np.arange(evaluation.rows),
            seq_len=seq_len,
            divisible=evaluation.divisible,
            packing=packing,
        )
    elif len(held_out):
        evaluated, _ = index_of(tokens, held_out, seq_len=seq_len, divisible=data.divisible, packing=packing)
    train_file, evaluation_file = folder / "train.npz", folder / "evaluation.npz"
    index.save(train_file)
    if evaluated is not None:
        evaluated.save(evaluation_file)
    return Samples(
        train=train_file,
        evaluation=evaluation_file if evaluated is not None and len(evaluated) else None,
        train_samples=len(index),
        evaluation_samples=0 if evaluated is None else len(evaluated),
        seq_len=seq_len,
        packing=packing,
        tokens=index.tokens,
        cuts=cuts,
    )
