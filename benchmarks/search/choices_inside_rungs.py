"""What the search wins inside a rung: the largest micro batch that surely fits, instead of a power of two.

    python -m benchmarks.search.choices_inside_rungs [--dry-run N]

Each question of a grid is answered; its fastest plan that fits is held against the fastest of those whose micro batch
is a power of two. --dry-run: so many of the plans that gained, evenly spread, are run dry, and must fit with the
probability that the recommendation asks for. Exit 1 where one does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from itertools import product

from ds_advise.advisor.advise import advise
from ds_advise.advisor.prove.dry_run import prove_by_dry_run
from ds_advise.advisor.question.run import run_of
from ds_advise.advisor.recommend.candidate import Candidate
from ds_advise.advisor.recommend.fit import SURE
from ds_advise.advisor.recommend.recommendation import Recommendation

MODELS = ("Qwen2.5-1.5B", "Qwen2.5-7B", "llama3.1-8b", "Qwen2.5-14B", "Qwen2.5-32B")
METHODS = ("full", "lora")
GPUS = ("1x24GB", "2x24GB", "2x32GB", "4x24GB", "8xA100-80GB", "2x48GB", "8x40GB")
LENGTHS = (512, 2048, 8192)
GAIN = 1.1


def fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    """The fastest that surely fits."""
    fitting = [candidate for candidate in candidates if candidate.fit.fits]
    return max(fitting, key=lambda candidate: candidate.tokens_per_s, default=None)


def is_power_of_two(candidate: Candidate) -> bool:
    size = candidate.plan.micro_batch_size
    return not size & (size - 1)


def answers() -> Iterable[tuple[str, Recommendation]]:
    """Every question of the grid with its answer."""
    for model, method, gpus, length in product(MODELS, METHODS, GPUS, LENGTHS):
        answer = advise(model, gpus=gpus, method=method, seq_len=length, offline=True, deepspeed_estimate=False)  # type: ignore[arg-type]
        yield f"{model} --method {method} --gpus {gpus} --seq-len {length}", answer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.choices_inside_rungs", description=__doc__)
    parser.add_argument("--dry-run", type=int, default=0, metavar="N", help="run so many of the gained plans dry")
    asked = parser.parse_args()
    gained: list[tuple[str, Recommendation, Candidate]] = []
    questions = feasible = 0
    for words, answer in answers():
        questions += 1
        best, plain = fastest(answer.candidates), fastest(filter(is_power_of_two, answer.candidates))
        if best is None:
            continue
        feasible += plain is None
        gain = best.tokens_per_s / plain.tokens_per_s if plain else float("inf")
        if gain >= GAIN:
            gained.append((words, answer, best))
            print(f"{words}: {best.rung}, micro batch {best.plan.micro_batch_size}, {gain:.2f} x")
    print(f"{len(gained)} of {questions} questions gain {GAIN - 1:.0%} or more, {feasible} of them become feasible")
    chosen = gained[:: max(1, len(gained) // asked.dry_run)][: asked.dry_run] if asked.dry_run else []
    refuted = 0
    for words, answer, best in chosen:
        fit = prove_by_dry_run(run_of(answer.question, best.plan, offline=True)).fit
        refuted += fit.probability < SURE
        print(f"dry run of {words}: {fit.verdict}, {fit.probability:.1%}", flush=True)
    return int(refuted > 0)


if __name__ == "__main__":
    sys.exit(main())
