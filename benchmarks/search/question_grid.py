"""300 questions, 2 to 512 GPUs, 2k to 1M tokens: where a feature beyond ZeRO is chosen, what there is without it, and
how long the search takes.

    python -m benchmarks.search.question_grid            # prints the table: a minute or two of one core
    python -m benchmarks.search.question_grid --write    # docs/question-grid.md

The search's time is the processor's, so that waiting for a busy one does not count; what earlier questions left to
Python's collector is looked through before each.
"""

# mypy: disable-error-code="arg-type"
# The options in a table have the type str.
from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

from ds_advise.advisor.advise import build_question
from ds_advise.advisor.search.candidate import Candidate
from ds_advise.advisor.search.choice import fastest_that_fits
from ds_advise.advisor.search.search import predict_all
from ds_advise.advisor.text.units import rate
from ds_advise.estimators.plan import Plan

from ..document import table_command

MODELS = ("Llama-3.1-8B", "Qwen2.5-32B", "Llama-3.1-70B")
GPUS = ("2x", "8x", "4x8x", "16x8x", "64x8x")
KINDS = ("H100", "A100-80GB")
SEQUENCES = (2_048, 8_192, 32_768, 131_072, 1_048_576)
METHODS = ("full", "lora")
INTERCONNECT, RAM = "400Gb/s", "2TB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question and its answers."""

    model: str
    gpus: str
    seq_len: int
    method: str
    chosen: Candidate | None
    without: Candidate | None
    """The fastest that fits among the candidates without any of the features."""
    search_s: float


def features(plan: Plan) -> str:
    """What a plan has beyond ZeRO, offload and checkpointing; empty for none."""
    words = (
        f"sequence_parallel_size {plan.sequence_parallel_size}" * (plan.sequence_parallel_size > 1),
        f"autotp_size {plan.autotp_size}" * (plan.autotp_size > 1),
        f"autoep_size {plan.autoep_size}" * (plan.autoep_size > 1),
        "cpu_checkpointing" * plan.cpu_checkpointing,
        f"zero_hpz_partition_size {plan.zero_hpz_partition_size}" * (plan.zero_hpz_partition_size > 1),
    )
    return ", ".join(word for word in words if word)


def rows() -> Iterator[Row]:
    for model, gpus, kind, seq_len, method in product(MODELS, GPUS, KINDS, SEQUENCES, METHODS):
        question = build_question(
            model,
            gpus=gpus + kind,
            seq_len=seq_len,
            method=method,
            global_batch="no-accumulation",
            attention="flash",
            loss="fused",
            ram=RAM,
            interconnect=INTERCONNECT if gpus.count("x") > 1 else None,
            offline=True,
        )
        gc.collect()
        start = time.process_time()
        ladder, candidates = predict_all(question)
        search_s = time.process_time() - start
        plain = [each for each in candidates if not features(each.plan) and each.fit.fits]
        yield Row(
            model=model,
            gpus=gpus + kind,
            seq_len=seq_len,
            method=method,
            chosen=fastest_that_fits(ladder),
            without=max(plain, key=lambda each: each.tokens_per_s, default=None),
            search_s=search_s,
        )


def table(found: Sequence[Row]) -> str:
    """The summary, and a line for every question that a feature wins."""
    won = [row for row in found if row.chosen is not None and features(row.chosen.plan)]
    times = sorted(row.search_s for row in found)
    fitting, alone = sum(row.chosen is not None for row in found), sum(row.without is None for row in won)
    lines = [
        f"{len(found)} questions: something fits in {fitting}, and {len(won)} of these answers have a feature beyond "
        f"ZeRO; without it nothing fits in {alone} of them. Search: median {1000 * median(times):.0f} ms, "
        f"90th percentile {1000 * times[len(times) * 9 // 10]:.0f} ms, worst {1000 * times[-1]:.0f} ms of a core.",
        "",
        "| model | GPUs | tokens | method | chosen | tokens/s | best without | tokens/s |",
        "|---|---|---:|---|---|---:|---|---:|",
    ]
    for row in won:
        assert row.chosen is not None
        cells = (
            row.model,
            row.gpus,
            f"{row.seq_len:,}",
            row.method,
            f"{row.chosen.strategy}, {features(row.chosen.plan)}",
            rate(row.chosen.tokens_per_s),
            row.without.strategy if row.without else "nothing fits",
            rate(row.without.tokens_per_s) if row.without else "",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    table_command(__doc__, "question-grid.md", "search/question_grid", lambda: table(list(rows())))
