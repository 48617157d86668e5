"""DeepSpeed's fastest plan that fits and FSDP2's, over a grid of questions.

python -m benchmarks.search.deepspeed_or_fsdp           # the table
python -m benchmarks.search.deepspeed_or_fsdp --write   # into docs/deepspeed-or-fsdp.md
"""

# mypy: disable-error-code="arg-type"
# The options in a table have the type str.
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from statistics import median
from typing import NamedTuple

from ds_advise.advisor.advise import build_question, plain_pytorch, predicted
from ds_advise.advisor.question.question import Question
from ds_advise.advisor.search.candidate import Candidate
from ds_advise.advisor.text.units import gib, rate
from ds_advise.estimators.errors import WorkloadError

from ..document import table_command

MODELS = ("Qwen2.5-1.5B", "Llama-3.1-8B", "Qwen2.5-32B", "Llama-3.1-70B")
GPUS = ("2x24GB", "4x24GB", "8x24GB", "4xA100-80GB", "8xA100-80GB", "8xH100", "4x8xH100")
SEQUENCES, METHODS, RAMS = (2048, 16384), ("full", "lora", "qlora"), ("64GB", "2TB")

SHOWN = (2048, "full", "2TB")
"""Sequence, method and RAM of the questions in the table."""


class Row(NamedTuple):
    """A question with the plans of both."""

    asked: tuple[str, str, int, str, str]
    deepspeed: Candidate | None
    fsdp2: Candidate | None
    """None where nothing fits."""

    @property
    def ratio(self) -> float | None:
        """Speed of FSDP2 over DeepSpeed's."""
        if self.deepspeed is None or self.fsdp2 is None:
            return None
        return self.fsdp2.tokens_per_s / self.deepspeed.tokens_per_s

    @property
    def is_apart(self) -> bool:
        """Whether the two 80 % intervals are apart, the faster being FSDP2."""
        if self.deepspeed is None or self.fsdp2 is None:
            return self.deepspeed is None and self.fsdp2 is not None
        ours, theirs = self.deepspeed.time.tokens_per_s_range, self.fsdp2.time.tokens_per_s_range
        return ours is not None and theirs is not None and theirs[0] > ours[1]


def rows() -> Iterator[Row]:
    for asked in product(MODELS, GPUS, SEQUENCES, METHODS, RAMS):
        model, gpus, seq_len, method, ram = asked
        network = "400Gb/s" if gpus.count("x") > 1 else None
        answer = predicted(
            build_question(
                model,
                gpus=gpus,
                seq_len=seq_len,
                method=method,
                ram=ram,
                interconnect=network,
                offline=True,
            )
        )
        yield Row(asked, answer.recommended, _fsdp2(answer.question))


def _fsdp2(question: Question) -> Candidate | None:
    try:
        plan = plain_pytorch(question)
    except WorkloadError:
        return None
    return plan if plan.fit.fits else None


def table(found: Sequence[Row]) -> str:
    """The summary, and the questions of `SHOWN`."""
    ratios = sorted(row.ratio for row in found if row.ratio is not None)
    alone = sum(row.deepspeed is not None and row.fsdp2 is None for row in found)
    without = [row for row in found if row.deepspeed is None and row.fsdp2 is not None]
    quantized = sum(row.asked[3] == "qlora" for row in without)
    share = "all" if quantized == len(without) else f"{quantized} of them"
    apart = sum(row.is_apart for row in found) - len(without)
    lines = [
        f"{len(found)} questions. Both fit in {len(ratios)}: FSDP makes {ratios[0]:.2f} to {ratios[-1]:.2f} times the "
        f"tokens/s of DeepSpeed's fastest plan, median {median(ratios):.2f}. DeepSpeed alone fits in {alone}, FSDP "
        f"alone in {len(without)}, {share} QLoRA. Where both fit, FSDP is faster beyond the error (the "
        f"80 % intervals of the two speeds are apart) in {apart}.",
        "",
        "| model | GPUs | DeepSpeed | GiB | tokens/s | FSDP2 GiB | tokens/s | ratio |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in found:
        model, gpus, *others = row.asked
        if tuple(others) != SHOWN or row.deepspeed is None:
            continue
        cells = [model, gpus, row.deepspeed.strategy, gib(row.deepspeed.device_bytes), rate(row.deepspeed.tokens_per_s)]
        other = row.fsdp2
        cells += ["does not fit", "", ""] if other is None else [gib(other.device_bytes), rate(other.tokens_per_s)]
        cells += [] if row.ratio is None else [f"{row.ratio:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    table_command(__doc__, "deepspeed-or-fsdp.md", "search/deepspeed_or_fsdp", lambda: table(list(rows())))
