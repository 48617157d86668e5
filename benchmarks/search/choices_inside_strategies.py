"""What the search wins inside a strategy: the largest micro batch that surely fits, instead of a power of two, and a
part of an offloaded optimizer on the GPU where that has room.

    python -m benchmarks.search.choices_inside_strategies [--dry-run N] [--write]

For each question of a grid, the fastest plan that fits is compared with the fastest of those with a power of two as
micro batch and the whole optimizer offloaded. --dry-run: N of the plans that gained, evenly spread, are dry-run and
must fit with the probability of a recommendation. --write: all of them are, and docs/question-grid.md gets the table.
Exit 1 where one does not fit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from ds_advise.advisor.advise import advise
from ds_advise.advisor.answer.dry_run_answer import DryRunAnswer
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.question.run import build_run
from ds_advise.advisor.search.candidate import FIT_THRESHOLD, Candidate
from ds_advise.advisor.text.units import gib
from ds_advise.advisor.verification.dry_run import compared_dry_run

from ..document import put

MODELS = ("Qwen2.5-1.5B", "Qwen2.5-7B", "llama3.1-8b", "Qwen2.5-14B", "Qwen2.5-32B")
METHODS = ("full", "lora")
GPUS = ("1x24GB", "2x24GB", "2x32GB", "4x24GB", "8xA100-80GB", "2x48GB", "8x40GB")
LENGTHS = (512, 2048, 8192)
GAIN = 1.1


class Gained(NamedTuple):
    """A question whose answer is `GAIN` times as fast for what is chosen inside a strategy."""

    words: str
    answer: Recommendation
    best: Candidate
    gain: float
    """Infinite where nothing fits without."""


def fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    """The fastest that surely fits."""
    fitting = [candidate for candidate in candidates if candidate.fit.fits]
    return max(fitting, key=lambda candidate: candidate.tokens_per_s, default=None)


def is_plain(candidate: Candidate) -> bool:
    """Whether nothing inside the strategy was chosen."""
    size = candidate.plan.micro_batch_size
    return not size & (size - 1) and candidate.plan.offload_optimizer_ratio == 1


def answers() -> Iterable[tuple[str, Recommendation]]:
    """Every question of the grid with its answer."""
    for model, method, gpus, length in product(MODELS, METHODS, GPUS, LENGTHS):
        asked = {"gpus": gpus, "method": method, "seq_len": length, "loss": "standard"}
        answer = advise(model, **asked, offline=True, deepspeed_estimate=False)  # type: ignore[arg-type]
        yield f"{model} --method {method} --gpus {gpus} --seq-len {length}", answer


def gains() -> tuple[int, list[Gained]]:
    """The number of questions, and those that gain."""
    questions, found = 0, []
    for words, answer in answers():
        questions += 1
        best, plain = fastest(answer.candidates), fastest(filter(is_plain, answer.candidates))
        gain = 0.0 if best is None else best.tokens_per_s / plain.tokens_per_s if plain else float("inf")
        if best is not None and gain >= GAIN:
            found.append(Gained(words, answer, best, gain))
            print(f"{words}: {chosen_in(best)}, {gain:.2f} x", flush=True)
    return questions, found


def chosen_in(best: Candidate) -> str:
    """`zero3-offload, micro batch 5`, and what of the optimizer is offloaded."""
    ratio = best.plan.offload_optimizer_ratio
    kept = "" if ratio == 1 else f", offload_optimizer.ratio {ratio}"
    return f"{best.strategy}, micro batch {best.plan.micro_batch_size}{kept}"


def summary(questions: int, found: list[Gained]) -> str:
    feasible = sum(each.gain == float("inf") for each in found)
    return (
        f"{len(found)} of {questions} questions ({len(found) / questions:.1%}) gain {GAIN - 1:.0%} or more, {feasible} "
        "of them become feasible"
    )


HEADER = """| question | chosen | faster | closed form, GiB | dry run, GiB | of GiB | by the dry run |
|---|---|---:|---:|---:|---:|---|
"""


def line(each: Gained, proof: DryRunAnswer) -> str:
    """A line of the table."""
    faster = "nothing fits without" if each.gain == float("inf") else f"{each.gain:.2f} x"
    cells = (
        each.words,
        chosen_in(each.best),
        faster,
        gib(each.best.device_bytes),
        gib(proof.required_device_bytes_per_gpu),
        gib(each.answer.question.cluster.gpu.memory_bytes),
        proof.fit.verdict,
    )
    return "| " + " | ".join(cells) + " |\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.choices_inside_strategies", description=__doc__)
    parser.add_argument("--dry-run", type=int, default=0, metavar="N", help="number of gained plans to run dry")
    parser.add_argument("--write", action="store_true", help="run all of them dry and write the table")
    asked = parser.parse_args()
    questions, found = gains()
    print(summary(questions, found))
    number = len(found) if asked.write else asked.dry_run
    chosen = found[:: max(1, len(found) // number)][:number] if number else []
    refuted, lines = 0, ""
    for each in chosen:
        run = build_run(each.answer.question, each.best.plan, offline=True)
        proof = compared_dry_run(run)
        refuted += proof.fit.probability < FIT_THRESHOLD
        lines += line(each, proof)
        print(f"dry run of {each.words}: {proof.fit.verdict}, {proof.fit.probability:.1%}", flush=True)
    if asked.write:
        introduction = (
            f"{summary(questions, found)}. Dry runs of the real engine: {len(found) - refuted} of them fit.\n\n"
        )
        put("question-grid.md", "search/choices_inside_strategies", introduction + HEADER + lines)
    return int(refuted > 0)


if __name__ == "__main__":
    sys.exit(main())
