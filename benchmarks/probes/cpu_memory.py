"""Memory of ranks on the CPU: the closed form against probes, and how far they may lie above it.

    python -m benchmarks.probes.cpu_memory ANSWERS [--write]

ANSWERS holds the runs of `cpu_probes`, which are made where they are missing: every plan of its models once, and of the
two larger ones those of `SOME`. Error: the predicted memory of a rank over the measured, all runs of a plan taken by
themselves.

--write: put the table into docs/probe.md. Exit 1 when `CPU_COVERED` in
    estimators/memory/fit_probability.py is not what `COVERED` of the runs need.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from ds_advise.advisor.search.candidate import Candidate
from ds_advise.advisor.verification.probe import cpu_rank_bytes
from ds_advise.estimators.memory.fit_probability import CPU_COVERED

from .cpu_probes import LARGER, MODELS, RANKS, Runs, ask, candidates, publish

SOME = (("ddp", 1, False), ("zero1", 2, False), ("zero2", 1, True), ("zero3", 2, False), ("zero3", 1, True))
"""Strategy, micro batch, checkpointing."""

STEPS = 3
"""Of a larger model's run: memory is at its peak from the second on."""

COVERED = 0.975


def errors(model: str, runs: Runs) -> list[float]:
    """Predicted over measured, less one, of every run of a model's plans without a limit."""
    prediction, found = ask(model), []
    for candidate in candidates(prediction):
        plan = candidate.estimate.plan
        if model in LARGER and _kind(candidate) not in SOME:
            continue
        runs.get(prediction, plan)
        predicted = cpu_rank_bytes(candidate.estimate.memory, RANKS)
        measured = [
            run.result.highest("host_tensor_bytes")
            for run in runs.all
            if (run.model, run.plan, run.limit_bytes) == (model, plan, None)
        ]
        found += [predicted / size - 1 for size in measured if size]
    return found


def _kind(candidate: Candidate) -> tuple[str, int, bool]:
    plan = candidate.estimate.plan
    return plan.strategy, plan.micro_batch_size, plan.gradient_checkpointing


def margin(every: Sequence[float]) -> float:
    """Share of the prediction that the measured memory exceeds it by in all but 1 - `COVERED` of the runs, in whole
    percent, rounded up."""
    beyond = sorted(1 / (1 + error) - 1 for error in every)
    return math.ceil(100 * beyond[math.ceil(COVERED * len(beyond)) - 1]) / 100


def main(arguments: Sequence[str]) -> int:
    if not arguments or not set(arguments[1:]) <= {"--write"}:
        sys.exit(__doc__)
    file = Path(arguments[0])
    small, large = Runs(file), Runs(file, STEPS)
    found = {model: errors(model, large if model in LARGER else small) for model in MODELS | LARGER}
    needed = margin([error for model in found.values() for error in model])
    text = "".join(
        (
            "| model | runs | mean error | from | to |\n|---|---|---|---|---|\n",
            *(
                f"| {model} | {len(row)} | {mean(map(abs, row)):.0%} | {min(row):+.0%} | {max(row):+.0%} |\n"
                for model, row in found.items()
            ),
            f"\nAll but 1 in 40 runs took at most {needed:.0%} more than predicted.\n",
        )
    )
    publish("cpu_memory", text, arguments)
    return int(needed != CPU_COVERED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
