"""What `--seq-len max` and `--micro-batch max` take, and that more memory never allows less.

    python -m benchmarks.search.largest

Processor time of each search, model and GPUs known; then each search on one kind of card with 16 sizes of its memory.
"""

# mypy: disable-error-code="arg-type"
# The options in a table have the type str.
from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ds_advise.advisor.advise import ask
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.question.question import Question

from .core import core_score

QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Qwen2.5-14B", {"gpus": "2x32GB"}),
    ("Llama-3.1-8B", {"gpus": "8xH100"}),
    ("Qwen2.5-7B", {"gpus": "4x24GB", "method": "lora"}),
    ("Llama-3.1-70B", {"gpus": "8x8xH100", "ram": "2TB"}),
    ("Qwen3-30B-A3B", {"gpus": "8xA100-80GB", "method": "lora"}),
    ("Qwen2.5-7B", {"gpus": "12xRTX-A6000"}),
    ("gpt2", {"gpus": "1xT4"}),
)
MEMORY_GIB = (4, 6, 8, 11, 12, 15, 16, 20, 24, 32, 40, 48, 64, 80, 141, 192)


def main() -> None:
    slowest = 0.0
    for model, options in QUESTIONS:
        for option in ("seq_len", "micro_batch"):
            slowest = max(slowest, _timed(model, **{option: "max"}, **options))
    print(f"slowest: {slowest:.2f} s; {core_score()}")
    for model, options in QUESTIONS:
        for option in ("seq_len", "micro_batch"):
            _with_rising_memory(model, option, options)


def _timed(model: str, **options: Any) -> float:
    """Seconds of one search, which are printed with what it found."""
    start = time.process_time()
    question = ask(model, **options)
    took = time.process_time() - start
    assert question.largest is not None
    words = " ".join(f"{name}={value}" for name, value in options.items())
    print(f"{took:5.2f} s  {model} {words}: {question.largest.value}, not {question.largest.too_large}", flush=True)
    return took


def _with_rising_memory(model: str, option: str, options: dict[str, Any]) -> None:
    given = dict(options)
    cluster = parse_cluster(given.pop("gpus"), ram=given.pop("ram", None))
    found: list[int] = []
    for gib in MEMORY_GIB:
        sized = replace(cluster, gpu=replace(cluster.gpu, memory_bytes=gib * 2**30))
        found.append(_value(ask(model, gpus=sized, **{option: "max"}, **given)))
    falls = sum(more < less for less, more in pairwise(found))
    print(f"{model} {option}: {falls} falls over {len(MEMORY_GIB)} sizes of memory: {found}", flush=True)


def _value(question: Question) -> int:
    assert question.largest is not None
    return int(question.largest.value or 0)


if __name__ == "__main__":
    main()
