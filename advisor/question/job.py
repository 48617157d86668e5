"""What a user says of the whole training: `--data`, `--samples`, `--tokens`, `--epochs`, `--price`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...estimators.errors import WorkloadError
from ...estimators.models.model_shape import ModelShape
from ...estimators.phrase import phrase
from ...estimators.time.job import Job, Price
from ..data.counting import EPOCHS, global_batch

_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MOST = 10**15
_MOST_EPOCHS = 10_000
_MOST_PER_HOUR = 10**6

_CURRENCY = r"(?:[$€£¥₹]|[a-z]{3})?"
_PRICE = re.compile(
    rf"(?P<before>{_CURRENCY})\s*(?P<figure>\d{{1,7}}(\.\d{{1,6}})?)\s*(?P<after>{_CURRENCY})"
    r"(/\s*(?P<unit>gpu|card|node|machine))?\s*(/\s*(h|hr|hour))?"
)


class AskedJob(NamedTuple):
    """The job of a question, and what follows from its data."""

    job: Job
    seq_len: int | None
    """The sequence length that the data need; None where they do not say."""
    basis: tuple[str, ...] = ()
    """Sentences on what was counted or taken for granted."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options as they were given; one of `data`, `samples` and `tokens` makes a job."""

    data: str | Path | None = None
    samples: int | str | None = None
    tokens: int | str | None = None
    epochs: float | None = None
    packing: bool = False
    eval_split: float = 0.0
    price: str | None = None

    def __post_init__(self) -> None:
        named = [f"--{name}" for name in ("data", "samples", "tokens") if getattr(self, name) is not None]
        if len(named) > 1:
            raise WorkloadError(f"{' and '.join(named)} both say how much is trained", fix="leave all but one out")
        for name in ("epochs", "price", "eval_split"):
            if getattr(self, name) and not named:
                raise WorkloadError(
                    f"--{name.replace('_', '-')} needs the amount that is trained",
                    why="a duration and a cost are those of a whole job",
                    fix="add --data FILE, --samples N or --tokens 1B",
                )
        if self.packing and self.data is None:
            raise WorkloadError(
                "--packing needs --data",
                why="how many rows fill a sample is counted",
                fix="add --data FILE; of packed samples, give their number with --samples",
            )
        if self.tokens is not None and self.epochs is not None:
            raise WorkloadError("--tokens counts all epochs", fix="leave --epochs out, or give --samples")
        if self.tokens is not None and self.eval_split:
            raise WorkloadError("--eval-split is a share of samples", fix="give --samples in place of --tokens")
        if not 0 <= self.eval_split < 1:
            fix = "pass one such as --eval-split 0.05"
            raise WorkloadError(f"--eval-split is {self.eval_split:g}", why="it is a share below 1", fix=fix)
        if self.epochs is not None and not 0 < self.epochs <= _MOST_EPOCHS:
            fix = "pass one such as --epochs 3"
            raise WorkloadError(f"--epochs is {self.epochs:g}", why=f"from above 0 to {_MOST_EPOCHS}", fix=fix)

    @property
    def is_asked(self) -> bool:
        return self.data is not None or self.samples is not None or self.tokens is not None

    def asked(
        self, model: str, shape: ModelShape, *, seq_len: int | None, say: Callable[[str], None] = lambda _: None
    ) -> AskedJob:
        """The job for a model; the data are counted for it. seq_len: None leaves it to the data. say: progress.

        Raises DsAdviseError for amounts that are no numbers, and data that cannot be trained on.
        """
        if self.tokens is not None:
            return AskedJob(job=Job(tokens=parse_amount("tokens", self.tokens)), seq_len=None)
        epochs = self.epochs if self.epochs is not None else EPOCHS
        assumed = (
            () if self.epochs is not None else (phrase("{epochs} epochs are taken (--epochs).", epochs=f"{EPOCHS:g}"),)
        )
        if self.samples is not None:
            samples = parse_amount("samples", self.samples)
            held_out = round(samples * self.eval_split)
            job = Job(samples=max(1, samples - held_out), epochs=epochs, evaluation_samples=held_out)
            return AskedJob(job=job, seq_len=None, basis=assumed)
        # Imported here: it loads numpy, which an answer without data never needs.
        from ..data.counting import count_data

        assert self.data is not None
        counted = count_data(
            Path(self.data).expanduser(),
            model,
            shape,
            seq_len=seq_len,
            packing=self.packing,
            epochs=epochs,
            evaluation_share=self.eval_split,
            say=say,
        )
        return AskedJob(job=counted.job, seq_len=counted.samples.seq_len, basis=(counted.sentence, *assumed))

    def parsed_price(self) -> Price | None:
        """The price. Raises WorkloadError for a text that is none."""
        return None if self.price is None else parse_price(self.price)


def batch_of(job: Job, *, ranks: int, micro_batch: int | None) -> int | None:
    """The global batch where the user leaves it open: that of `train` for samples, the search's for tokens."""
    return None if job.samples is None else global_batch(job.samples, ranks=ranks, micro_batch=micro_batch)


def parse_amount(of: str, text: int | str) -> int:
    """How many of `samples` or `tokens`: `1B`, `500M`, `1.5T`, `20,000` or `20000`. Raises WorkloadError for others."""
    plain = re.sub(r"(?<=\d)[_,](?=\d{3}(?!\d))", "", str(text).strip())
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmbgt]?)", plain, re.IGNORECASE | re.ASCII)
    number = round(float(match[1]) * _SCALES[match[2].lower()]) if match else 0
    if not 0 < number <= _MOST:
        raise WorkloadError(
            f"--{of} {str(text)[:40]!r} is no number of {of}",
            why=f"from 1 to {_MOST // 10**12:,}T are accepted",
            fix=f"write it as --{of} 20000, 500k or 1B",
        )
    return number


def parse_duration(option: str, text: str) -> float:
    """Seconds of `24h`, `90m` or `3d`. Raises WorkloadError for anything else."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|m|min|h|d)", text.strip().lower(), re.ASCII)
    duration_s = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not duration_s:
        fix = f"write it as {option} 24h, 90m or 3d"
        raise WorkloadError(f"{option} {text[:40]!r} is no time", why="a number and a unit are needed", fix=fix)
    return duration_s


def parse_price(text: str) -> Price:
    """`2.49/h` of each GPU, `$20/node/h` of each node. Raises WorkloadError for anything else."""
    match = _PRICE.fullmatch(text.strip().lower())
    figure = float(match["figure"]) if match else 0.0
    if match is None or not 0 < figure <= _MOST_PER_HOUR:
        raise WorkloadError(
            f"--price {text[:40]!r} is no price",
            why="a figure by the hour is needed, of each GPU unless it says /node",
            fix="write it as --price 2.49/h or --price $20/node/h",
        )
    is_node = match["unit"] in ("node", "machine")
    return Price(per_hour=figure, unit="node" if is_node else "gpu", currency=match["before"] or match["after"])
