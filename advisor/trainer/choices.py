"""What the user left open and the data decide: sequence length, global batch, learning rate, steps, checkpoints."""

from __future__ import annotations

import math

from ...estimators.models.model_shape import ModelShape
from ...estimators.workload import Method
from ..question.workload import DEFAULT_SEQ_LEN
from .data.prepare import DataFile

LEARNING_RATES: dict[Method, float] = {"full": 2e-5, "lora": 2e-4, "qlora": 2e-4}
"""Peak rates for AdamW. full: Stanford Alpaca's for LLaMA 7B. LoRA: QLoRA's for 7B and 13B (arXiv:2305.14314, appendix
B)."""

WARMUP = 0.03
"""Share of the steps in which the learning rate rises, before it falls as a cosine; Alpaca's."""

EPOCHS = 3.0
"""Alpaca's, and TrainingArguments' default."""

GLOBAL_BATCH = 32
"""Samples per optimizer step where the user leaves it open: between QLoRA's 16 (appendix B) and Alpaca's 128."""

_STEPS_PER_EPOCH = 10
"""Least number of optimizer steps in an epoch of few samples; with fewer there is hardly any training."""

_LENGTH_STEP = 8
"""Sequence lengths that are chosen here are multiples of what batches are padded to."""

_CHECKPOINTS, _MOST_STEPS_BETWEEN = 10, 500
"""A training leaves so many checkpoints, and never makes more steps between two (TrainingArguments' save_steps)."""


def sequence_length(data: DataFile, evaluation: DataFile | None, model: ModelShape, *, packing: bool) -> int:
    """The longest sequence of the data, so that none is cut, within the positions that the model has.

    2048 where samples are not given by the data: plain text that is longer, because it goes on in the next sample, and
    packed samples that are shorter, as far as there are tokens to fill one.
    """
    longest = max(data.longest, evaluation.longest if evaluation is not None else 0)
    wanted = min(longest, DEFAULT_SEQ_LEN) if data.divisible else longest
    if packing:
        wanted = max(wanted, min(DEFAULT_SEQ_LEN, data.tokens))
    wanted = -(-wanted // _LENGTH_STEP) * _LENGTH_STEP
    return min(wanted, model.max_positions) if model.max_positions else wanted


def global_batch(samples: int, *, ranks: int, micro_batch: int | None) -> int:
    """`GLOBAL_BATCH`, less for few samples, rounded up to what the ranks and a given micro batch divide."""
    wanted = min(GLOBAL_BATCH, max(1, samples // _STEPS_PER_EPOCH))
    unit = ranks * (micro_batch or 1)
    return -(-wanted // unit) * unit


def total_steps(samples: int, batch: int, *, epochs: float, max_steps: int | None) -> int:
    """Optimizer steps: `max_steps`, or the epochs' whole."""
    return max_steps if max_steps is not None else max(1, math.ceil(epochs * samples / batch))


def save_steps(steps: int) -> int:
    return max(1, min(_MOST_STEPS_BETWEEN, steps // _CHECKPOINTS))
