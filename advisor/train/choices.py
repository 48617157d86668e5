"""What a training has where the user leaves it open: learning rate, warm-up, checkpoints."""

from __future__ import annotations

from ...estimators.workload import Method

LEARNING_RATES: dict[Method, float] = {"full": 2e-5, "lora": 2e-4, "qlora": 2e-4}
"""Peak rates for AdamW. full: Stanford Alpaca's for LLaMA 7B. LoRA: QLoRA's for 7B and 13B (arXiv:2305.14314, appendix
B)."""

WARMUP = 0.03
"""Share of the steps in which the learning rate rises, before it falls as a cosine; Alpaca's."""

_CHECKPOINTS, _MOST_STEPS_BETWEEN = 10, 500
"""A training leaves so many checkpoints, and never makes more steps between two (TrainingArguments' save_steps)."""


def save_steps(steps: int) -> int:
    return max(1, min(_MOST_STEPS_BETWEEN, steps // _CHECKPOINTS))
