"""A data file as samples: rows become token sequences, which are cut to the sequence length and packed.

Every step is a `map` of Hugging Face `datasets`, whose result is a file that every rank maps into memory.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import datasets
import numpy as np
import numpy.typing as npt
from datasets import Dataset, Features, List, Value

from .formats import Completion, read_sample, recognise
from .rows import DataError, no_rows, read_rows, unreadable
from .tokenizing import IGNORED, Rendered, Renderer, tokenize

Integers = npt.NDArray[np.int64]

_SEQUENCES = {"input_ids": List(Value("int32")), "labels": List(Value("int32")), "length": Value("int32")}
"""Columns of a token sequence. Only tokens with a label other than `IGNORED` count in the loss."""

_PACKED = {**_SEQUENCES, "position_ids": List(Value("int32"))}
"""Columns of a packed sample: `position_ids` restart with every row."""


_NAMED_ROWS = 5
"""Rows without an answer that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file with its rows as token sequences."""

    name: str
    row_format: str
    """A key of `ROW_FORMATS`."""
    sequences: Dataset
    trained_tokens: int
    """Tokens that count in the loss."""
    empty_rows: int
    """Number of rows without text or without an answer, which are left out."""
    first_empty: tuple[int, ...]
    """The numbers of the first of them, from 1."""
    untrained_turns: int
    """Number of earlier answers left out of the loss (`Renderer.untrained_turns`)."""
    has_own_template: bool
    """Whether the tokenizer has a chat template of its own."""
    lengths: Integers
    """Tokens of each sequence."""
    highest_id: int

    @property
    def divisible(self) -> bool:
        """Whether a sequence may be cut anywhere and continue in the next sample."""
        return self.row_format == "text"

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def longest(self) -> int:
        return int(self.lengths.max())

    @property
    def typical(self) -> int:
        """The 95th percentile of the sequences' tokens."""
        return int(np.percentile(self.lengths, 95, method="higher"))


def prepare(
    path: Path, tokenizer: Any, folder: Path, *, row_format: str | None = None, system: str | None = None
) -> DataFile:
    """Tokenize every row of `path` into a file in `folder`, except rows without text and those without an answer.

    row_format: a key of `ROW_FORMATS`; None for that of the file's columns.
    system:     a system message for chats without one.

    Raises DataError, naming the row, for the first row that is broken, and for a file without rows.
    """
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    folder.mkdir(parents=True, exist_ok=True)
    # `map` without num_proc runs in this process, so its function can count here.
    renderer, counts, first_empty = Renderer(tokenizer, system=system), Counter[str](), list[int]()
    with TemporaryDirectory(dir=folder) as cache:
        read = read_rows(path, Path(cache))
        columns, rows = read.column_names, len(read)
        chosen = row_format or recognise(path, columns)

        def render(batch: dict[str, list[Any]], numbers: list[int]) -> Iterator[Rendered]:
            if path.suffix.lower() == ".txt":  # one text, in pieces of a batch of lines
                text = Completion("", "".join(batch["text"]))
                yield renderer.render(text, path.name, continues=numbers[-1] < rows - 1)
                return
            for number, values in zip(numbers, zip(*batch.values(), strict=True), strict=True):
                place = f"{path.name}, row {number + 1}"
                sample = read_sample(dict(zip(columns, values, strict=True)), chosen, place)
                if sample is not None:
                    yield renderer.render(sample, place)
                elif len(first_empty) < _NAMED_ROWS:
                    first_empty.append(number + 1)

        def tokenized(batch: dict[str, list[Any]], numbers: list[int]) -> dict[str, list[Any]]:
            made = tokenize(tokenizer, list(render(batch, numbers)))
            counts["trained"] += sum(len(labels) - labels.count(IGNORED) for labels in made["labels"])
            counts["highest"] = max(counts["highest"], *map(max, filter(None, made["input_ids"])), 0)
            return made | {"length": list(map(len, made["input_ids"]))}

        try:
            sequences = _mapped(read, tokenized, folder / "tokens.arrow", f"Tokenizing {path.name}", with_indices=True)
        except UnicodeDecodeError as problem:  # of JSON, whose strings are decoded when a row is read
            raise unreadable(path, problem) from None
    empty = 0 if path.suffix.lower() == ".txt" else rows - len(sequences)
    if not len(sequences):
        raise no_rows(path, f"every row is empty or has an empty answer ({empty:,})")
    return DataFile(
        name=path.name,
        row_format=chosen,
        sequences=sequences,
        trained_tokens=counts["trained"],
        empty_rows=empty,
        first_empty=tuple(first_empty),
        untrained_turns=renderer.untrained_turns,
        has_own_template=renderer.has_own_template,
        lengths=_lengths(sequences),
        highest_id=counts["highest"],
    )


def _mapped(
    rows: Dataset, function: Any, file: Path, title: str, features: Any = _SEQUENCES, **options: Any
) -> Dataset:
    """The rows in batches through a function, in a new Arrow file. The fingerprint is given, because `datasets` would
    derive it from the function's bytes, which contain the tokenizer."""
    made = rows.map(
        function,
        batched=True,
        remove_columns=rows.column_names,
        features=Features(features),
        cache_file_name=str(file),
        load_from_cache_file=False,
        new_fingerprint=file.stem,
        desc=title,
        **options,
    )
    assert isinstance(made, Dataset)
    return made


def _lengths(rows: Dataset) -> Integers:
    return np.asarray(rows["length"][:], dtype=np.int64)


class Cuts(NamedTuple):
    """Effect of the sequence length: the number of sequences that were truncated, and of those without a trained token
    left."""

    truncated: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples of a data file at a sequence length."""

    seq_len: int
    """Maximum number of tokens of a sample."""
    packing: bool
    cuts: Cuts
    lengths: Integers
    """Tokens of each training sample."""
    evaluation_samples: int

    @property
    def train_samples(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """Tokens of all training samples, in one epoch."""
        return int(self.lengths.sum())

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
    """The samples for training and evaluation, in `train.arrow` and `evaluation.arrow` of a folder.

    evaluation_share: share of the sequences that are used for evaluation and not for training, chosen by `seed`.
    evaluation: a file for evaluation instead.

    Raises DataError if no sample has a token to train on.
    """

    def samples(sequences: Dataset, name: str, *, divisible: bool) -> tuple[Dataset, Cuts]:
        file = folder / f"{name}.arrow"
        pieces, cuts = cut_sequences(sequences, file, seq_len=seq_len, divisible=divisible)
        return packed(pieces, file, seq_len=seq_len) if packing and len(pieces) else pieces, cuts

    trained, held_out = data.sequences, None if evaluation is None else evaluation.sequences
    if evaluation is None and evaluation_share and data.rows > 1:
        wanted = min(max(1, round(data.rows * evaluation_share)), data.rows - 1)
        order = np.random.default_rng(seed).permutation(data.rows)
        held_out = trained.select(np.sort(order[:wanted]), keep_in_memory=True)
        trained = trained.select(np.sort(order[wanted:]), keep_in_memory=True)
    train, cuts = samples(trained, "train", divisible=data.divisible)
    if not len(train):
        raise DataError(
            f"{data.name}: no sample keeps an answer within {seq_len} tokens",
            why="text beyond the sequence length is cut",
            fix="pass a larger --seq-len",
        )
    evaluated = 0
    if held_out is not None:
        evaluated = len(samples(held_out, "evaluation", divisible=(evaluation or data).divisible)[0])
    return Samples(seq_len=seq_len, packing=packing, cuts=cuts, lengths=_lengths(train), evaluation_samples=evaluated)


def cut_sequences(sequences: Dataset, file: Path, *, seq_len: int, divisible: bool) -> tuple[Dataset, Cuts]:
    """The sequences in a new file, at most `seq_len` tokens long: a longer one continues in further pieces if
    `divisible`; otherwise it is truncated. Pieces without a trained token are left out."""
    lengths = _lengths(sequences)

    def pieces(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {name: [] for name in _SEQUENCES}
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            for start in range(0, len(ids) if divisible else 1, seq_len):
                # The first token of a piece is never predicted.
                trained = [IGNORED, *labels[start + 1 : start + seq_len]]
                if trained.count(IGNORED) < len(trained):
                    made["input_ids"].append(ids[start : start + seq_len])
                    made["labels"].append(trained)
                    made["length"].append(len(trained))
        return made

    found = _mapped(sequences, pieces, file, f"Cutting to {seq_len} tokens")
    # Pieces before the filter, so that the difference is what was dropped.
    in_all = int((-(-lengths // seq_len)).sum()) if divisible else len(lengths)
    truncated = 0 if divisible else int((lengths > seq_len).sum())
    return found, Cuts(truncated=truncated, dropped=in_all - len(found))


def packed(pieces: Dataset, file: Path, *, seq_len: int) -> Dataset:
    """Samples of as many whole pieces as fit, with the places of their tokens within each piece. They replace the file
    of the pieces."""

    def joined(bins: dict[str, list[list[int]]]) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {name: [] for name in _PACKED}
        for numbers in bins["pieces"]:
            parts = pieces[numbers]
            for name in ("input_ids", "labels"):
                made[name].append([token for part in parts[name] for token in part])
            made["position_ids"].append([place for length in parts["length"] for place in range(length)])
            made["length"].append(sum(parts["length"]))
        return made

    bins = Dataset.from_dict({"pieces": pack_bins(_lengths(pieces), seq_len)})
    return _mapped(bins, joined, file, "Packing", _PACKED)


def pack_bins(lengths: Integers, room: int) -> list[list[int]]:
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
