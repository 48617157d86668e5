"""What the data decide where the user leaves it open: sequence length, global batch, epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...estimators.models.model_shape import ModelShape
from ...estimators.time.job import PADDED_TO
from ...estimators.workload import DEFAULT_SEQ_LEN

if TYPE_CHECKING:
    from .prepare import DataFile  # which loads numpy

EPOCHS = 3.0
"""Alpaca's, and TrainingArguments' default."""

GLOBAL_BATCH = 32
"""Samples per optimizer step where the user leaves it open: between QLoRA's 16 (appendix B) and Alpaca's 128."""

SEED = 42
"""By which rows are held out for evaluation, and samples put in order."""

_STEPS_PER_EPOCH = 10
"""Least number of optimizer steps in an epoch of few samples; with fewer there is hardly any training."""


def sequence_length(data: DataFile, evaluation: DataFile | None, model: ModelShape, *, packing: bool) -> int:
    """The longest sequence of the data, so that none is cut, within the positions that the model has.

    2048 where samples are not given by the data: plain text that is longer, because it goes on in the next sample, and
    packed samples that are shorter, as far as there are tokens to fill one.
    """
    longest = max(data.longest, evaluation.longest if evaluation is not None else 0)
    wanted = min(longest, DEFAULT_SEQ_LEN) if data.divisible else longest
    if packing:
        wanted = max(wanted, min(DEFAULT_SEQ_LEN, data.tokens))
    wanted = -(-wanted // PADDED_TO) * PADDED_TO
    return min(wanted, model.max_positions) if model.max_positions else wanted


def global_batch(samples: int, *, ranks: int, micro_batch: int | None) -> int:
    """`GLOBAL_BATCH`, less for few samples, rounded up to what the ranks and a given micro batch divide."""
    wanted = min(GLOBAL_BATCH, max(1, samples // _STEPS_PER_EPOCH))
    unit = ranks * (micro_batch or 1)
    return -(-wanted // unit) * unit
