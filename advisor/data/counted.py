"""A data file as a job: how many samples of which lengths the `train` command makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ...estimators.errors import ModelConfigError, UnknownModelError
from ...estimators.models.model_shape import ModelShape
from ...estimators.phrase import Phrase, phrase
from ...estimators.time.job import Job, SamplesOfLength
from .approx_tokenizer import BYTES_PER_TOKEN, FourBytes
from .batching import Index
from .defaults import SEED, sequence_length
from .model_files import load_tokenizer
from .prepare import DataFile, Samples, cut, prepare
from .shapes import ROW_SHAPES


@dataclass(frozen=True, kw_only=True)
class CountedData:
    """What was counted in a data file."""

    data: DataFile
    samples: Samples
    job: Job
    exact: bool
    """The model's own tokenizer counted; otherwise tokens are estimated from bytes."""

    @property
    def sentence(self) -> Phrase:
        """What the file holds, for people."""
        truncated = self.samples.cuts.truncated
        said = phrase(
            "{file}: {rows} of {kind} are {samples} of at most {tokens} tokens",
            file=self.data.name,
            rows=_rows(self.data.rows),
            kind=ROW_SHAPES[self.data.shape].title,
            samples=_samples(self.samples.train_samples, packed=self.samples.packing),
            tokens=f"{self.samples.seq_len:,}",
        )
        if truncated:
            said = phrase("{counted}; {rows} longer than that", counted=said, rows=_rows(truncated))
        return phrase(
            "{counted}; {tokens} tokens, {how}.",
            counted=said,
            tokens=f"{self.samples.tokens:,}",
            how=phrase("by the model's tokenizer")
            if self.exact
            else phrase(
                "estimated as {bytes} bytes a token, because the model's tokenizer is not on this machine",
                bytes=BYTES_PER_TOKEN,
            ),
        )


def _rows(count: int) -> Phrase:
    return phrase("{count} row", count=count) if count == 1 else phrase("{count} rows", count=f"{count:,}")


def _samples(count: int, *, packed: bool) -> Phrase:
    number = f"{count:,}"
    if packed:
        one, more = phrase("{count} packed sample", count=number), phrase("{count} packed samples", count=number)
    else:
        one, more = phrase("{count} sample", count=number), phrase("{count} samples", count=number)
    return one if count == 1 else more


def count_data(
    path: Path,
    model: str,
    shape: ModelShape,
    *,
    seq_len: int | None,
    packing: bool,
    epochs: float,
    evaluation_share: float,
    say: Callable[[str], None] = lambda _: None,
) -> CountedData:
    """The job that a data file makes, by the same steps as `ds-advise train` with these options.

    model: as it was named. seq_len: None is what the data need, as in `train`. Only a tokenizer on this machine is
    used; where there is none, four bytes are a token. say: told now and then how many rows are done.

    Raises DataError for a file that cannot be read or trained on, ModelConfigError for a model without causal text.
    """
    check_causal(shape, fix="give the number of samples with --samples")
    tokenizer = _tokenizer(model, shape)
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = prepare(path, tokenizer or FourBytes(), folder / "tokens", say=say)
        samples = cut(
            data,
            folder,
            seq_len=seq_len or sequence_length(data, None, shape, packing=packing),
            packing=packing,
            evaluation_share=evaluation_share,
            seed=SEED,
        )
        job = job_of_samples(samples, epochs)
    return CountedData(data=data, samples=samples, job=job, exact=tokenizer is not None)


def check_causal(shape: ModelShape, *, fix: str) -> None:
    """Raises ModelConfigError for a model that does not predict the next token of one text."""
    others = (each.stack == "encoder" or not each.attention.causal or each.cross_attention for each in shape.blocks)
    if shape.fixed_len is not None or not shape.vocab_size or shape.num_labels or any(others):
        raise ModelConfigError(
            f"{shape.name} ({shape.architecture}) is no causal language model",
            why="rows are read as text for these alone",
            fix=fix,
        )


def job_of_samples(samples: Samples, epochs: float) -> Job:
    """The samples that were cut, as a job."""
    index = Index.load(samples.train)
    lengths, counts = np.unique(np.add.reduceat(index.lengths, index.firsts[:-1]), return_counts=True)
    return Job(
        samples=samples.train_samples,
        epochs=epochs,
        lengths=tuple(
            SamplesOfLength(int(tokens), int(number)) for tokens, number in zip(lengths, counts, strict=True)
        ),
        evaluation_samples=samples.evaluation_samples,
    )


def _tokenizer(model: str, shape: ModelShape) -> Any:
    """The model's tokenizer, where it is on this machine."""
    try:
        return load_tokenizer(model, shape, offline=True)
    except (ModelConfigError, UnknownModelError):
        return None
