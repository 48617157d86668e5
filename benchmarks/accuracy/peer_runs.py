"""The measured memory runs that two other estimators publish, with what those print of them.

`benchmarks/data/peer_memory.csv` has the columns of `published_memory.csv`, and

    theirs:         bytes that the other tool predicts for the tensors, which is what allocated memory counts
    theirs_total:   bytes that it prints as the need, with its overheads and margins
    measured_total: what it holds them against: reserved memory with the CUDA context (fitcheck), reserved (the other)
    role:           "calibration" for a run that its constants were fitted on, "repeat", "holdout", "excluded" from its
                    own statistics, or "" where it does not say

Anassbzdd/fitcheck data/measurements (79 runs of a Tesla T4, in the sdist of fitcheck-llm 0.3.1) and
DaoyuanLi2816/can-i-finetune-this benchmarks/results@053ce9e (docs/rtx4080_baselines.md, 12 runs of an RTX 4080). Both
call the model in a bare loop without autocast and keep its output. peft's `prepare_model_for_kbit_training` then leaves
every tensor between 4-bit layers in fp32, hence `precision` fp32 of the rows with QLoRA. fitcheck's rows of "sdpa" run
the memory-efficient kernel, which holds no scores, as "flash" does; their 4-bit weights are quantized once, not twice,
which the options do not say: 0.37 bits a weight more.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from statistics import mean
from typing import NamedTuple

from .predicted_memory import Result, error_of, result_of
from .report import Table
from .rows import DATA, run_of

FILE = DATA / "peer_memory.csv"


class PeerRun(NamedTuple):
    result: Result
    theirs: int
    theirs_total: int
    measured_total: int
    role: str


@cache
def peer_runs() -> tuple[PeerRun, ...]:
    """Every row but the smoke test, whose model of two layers the catalogue lacks."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = [row for row in enumerate(csv.DictReader(file), start=2) if "tiny-gpt2" not in row[1]["model"]]
    return tuple(
        PeerRun(
            result_of(run_of(number, row)),
            int(row["theirs"]),
            int(row["theirs_total"]),
            int(row["measured_total"]),
            row["role"],
        )
        for number, row in rows
    )


@cache
def results() -> tuple[Result, ...]:
    return tuple(run.result for run in peer_runs())


def mean_errors() -> list[tuple[str, int, float, float]]:
    """Peer, number of its runs, and the mean errors of the peak: theirs and ours."""
    by_peer: dict[str, list[PeerRun]] = {}
    for run in peer_runs():
        by_peer.setdefault(_peer(run), []).append(run)
    return [
        (
            name,
            len(found),
            mean(abs(error_of(run.theirs, run.result.run) or 0.0) for run in found),
            mean(abs(run.result.error or 0.0) for run in found),
        )
        for name, found in by_peer.items()
    ]


def _peer(run: PeerRun) -> str:
    return run.result.run.origin.rpartition("/")[2]


def table() -> Table:
    """Their runs: their printed errors beside ours."""
    groups: dict[tuple[str, str, str], list[PeerRun]] = {}
    for run in peer_runs():
        workload = run.result.run.workload
        groups.setdefault((_peer(run), f"{workload.method}, {workload.attention}", run.role), []).append(run)

    def sizes(found: list[PeerRun], of: Callable[[PeerRun], float]) -> tuple[str, str]:
        errors = [of(run) for run in found]
        return f"{mean(map(abs, errors)):.1%}", f"{max(errors, key=abs):+.1%}"

    return Table(
        title="Runs that two peers measured: error of the peak of allocated memory, theirs and ours",
        header=(
            "peer",
            "method, attention",
            "role",
            " n",
            " theirs, mean",
            " worst",
            " their need, mean",
            " worst",
            " ours, mean",
            " worst",
        ),
        rows=tuple(
            (
                *key,
                str(len(found)),
                *sizes(found, lambda run: error_of(run.theirs, run.result.run) or 0.0),
                *sizes(found, lambda run: run.theirs_total / run.measured_total - 1),
                *sizes(found, lambda run: run.result.error or 0.0),
            )
            for key, found in sorted(groups.items())
        ),
    )
