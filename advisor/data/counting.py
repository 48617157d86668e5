"""A data file as a job: the number and lengths of its samples, and the defaults derived from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ...estimators.errors import ModelConfigError, UnknownModelError
from ...estimators.models.model_shape import ModelShape
from ...estimators.time.job import PADDED_TO, Job, SamplesOfLength
from ...estimators.workload import DEFAULT_SEQ_LEN
from ..text.units import counted_noun
from .formats import ROW_FORMATS
from .rows import check_file
from .tokenizing import load_tokenizer

if TYPE_CHECKING:
    from .prepare import DataFile, Samples  # imports datasets

BYTES_PER_TOKEN = 4
"""Assumed bytes of text per token of byte-pair encodings (README of openai/tiktoken: "on average, in practice, each
token corresponds to about 4 bytes"). With small vocabularies, Chinese text and code have fewer."""

EPOCHS = 3.0
"""Default number of epochs: Alpaca's, and the default of `TrainingArguments`."""

SEED = 42
"""Default seed of the evaluation split and of the order of samples."""


class ApproxTokenizer:
    """Tokenizer that counts `BYTES_PER_TOKEN` bytes as one token. It has the part of a tokenizer's interface that
    `prepare` uses. Its chat template marks messages in the style of ChatML, with about five tokens per message."""

    eos_token = "<e>\n"  # one token
    bos_token = ""
    bos_token_id = None
    chat_template = "ChatML"

    def apply_chat_template(self, messages: Sequence[Any], *, add_generation_prompt: bool, **_: Any) -> str:
        text = "".join(f"<start>{each['role']}\n{each['content']}<end>\n" for each in messages)
        return f"{text}<start>assistant\n" if add_generation_prompt else text

    def __call__(self, texts: str | Sequence[str], **_: Any) -> dict[str, list[Any]]:
        if isinstance(texts, str):
            return {"input_ids": [0] * len(self._places(texts))}
        places = list(map(self._places, texts))
        return {"input_ids": [[0] * len(each) for each in places], "offset_mapping": places}

    def _places(self, text: str) -> list[tuple[float, float]]:
        """(start, end) of every token in the characters of the text."""
        count = -(-len(text.encode()) // BYTES_PER_TOKEN)
        return [(number * len(text) / count, (number + 1) * len(text) / count) for number in range(count)]


@dataclass(frozen=True, kw_only=True)
class CountedData:
    """The job of a data file."""

    data: DataFile
    samples: Samples
    job: Job
    exact: bool
    """Whether the tokens were counted with the model's tokenizer; otherwise they are estimated from bytes."""

    @property
    def sentence(self) -> str:
        """A sentence on the contents of the file."""
        data, samples = self.data, self.samples
        made = counted_noun(samples.train_samples, "packed sample" if samples.packing else "sample")
        contents = f"{data.name}: {counted_noun(data.rows, 'row')} of {ROW_FORMATS[data.row_format].title} are {made}"
        contents += f" of at most {samples.seq_len:,} tokens"
        if samples.cuts.truncated:
            contents += f"; {counted_noun(samples.cuts.truncated, 'row')} longer than that"
        how = "by the model's tokenizer"
        if not self.exact:
            how = f"estimated as {BYTES_PER_TOKEN} bytes a token, because the model's tokenizer is not on this machine"
        return f"{contents}; {samples.tokens:,} tokens, {how}."


def count_data(
    path: Path,
    model: str,
    shape: ModelShape,
    *,
    seq_len: int | None,
    packing: bool,
    epochs: float,
    evaluation_share: float,
) -> CountedData:
    """The job of a data file, counted with the steps of `ds-advise train`.

    model: the name as given; its tokenizer is used only if it is on this machine.
    seq_len: None for the longest sample.

    Raises DataError for a file that cannot be read or trained on, ModelConfigError for a model that is not causal.
    """
    check_file(path)
    from .prepare import cut, prepare  # imports datasets

    check_causal(shape, fix="give the number of samples with --samples")
    # A count must not download: without a local tokenizer it is an estimate.
    tokenizer = None
    with suppress(ModelConfigError, UnknownModelError, ModuleNotFoundError):
        tokenizer = load_tokenizer(model, shape, offline=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = prepare(path, tokenizer or ApproxTokenizer(), folder)
        samples = cut(
            data,
            folder,
            seq_len=seq_len or sequence_length(data, None, shape, packing=packing),
            packing=packing,
            evaluation_share=evaluation_share,
            seed=SEED,
        )
        job = samples_job(samples, epochs)
    return CountedData(data=data, samples=samples, job=job, exact=tokenizer is not None)


def check_causal(shape: ModelShape, *, fix: str) -> None:
    """Raise ModelConfigError for a model that does not predict the next token of one text."""
    others = (each.stack == "encoder" or not each.attention.causal or each.cross_attention for each in shape.blocks)
    if shape.fixed_len is not None or not shape.vocab_size or shape.num_labels or any(others):
        raise ModelConfigError(
            f"{shape.name} ({shape.architecture}) is not a causal language model",
            why="a data file is read as text for causal language models",
            fix=fix,
        )


def samples_job(samples: Samples, epochs: float) -> Job:
    """The job of prepared samples, with their lengths."""
    lengths = sorted(Counter(samples.lengths.tolist()).items())
    return Job(
        samples=samples.train_samples,
        epochs=epochs,
        lengths=tuple(starmap(SamplesOfLength, lengths)),
        evaluation_samples=samples.evaluation_samples,
    )


def sequence_length(data: DataFile, evaluation: DataFile | None, model: ModelShape, *, packing: bool) -> int:
    """The sequence length for the data: the longest sequence, rounded up to `PADDED_TO`, at most the model's number of
    positions. It is `DEFAULT_SEQ_LEN` for longer plain text, which continues in the next sample, and for shorter packed
    samples, as far as there are tokens to fill one."""
    longest = max(data.longest, evaluation.longest if evaluation is not None else 0)
    wanted = min(longest, DEFAULT_SEQ_LEN) if data.divisible else longest
    if packing:
        wanted = max(wanted, min(DEFAULT_SEQ_LEN, data.tokens))
    wanted = -(-wanted // PADDED_TO) * PADDED_TO
    return min(wanted, model.max_positions) if model.max_positions else wanted
