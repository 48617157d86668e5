"""The memory runs that two other estimators measured and publish with what they predict of them.

`benchmarks/data/peer_memory.csv` has their 90 runs, repetitions too; the first columns name a row of
`published_memory.csv`, which has the settings.

    role:                "calibration" for a run that their constants were fitted on, "repeat", "holdout", "excluded"
                         from their own statistics, or "" where they do not say
    measured_bytes:      peak of allocated memory
    theirs_bytes:        their prediction of the tensors, without overheads and margins
    theirs_need_bytes:   what they print as the need
    measured_need_bytes: what they hold that against: reserved memory and the CUDA context (fitcheck), reserved memory

fitcheck-llm's 79 runs of a Tesla T4 are in its sdist (data/measurements); can-i-finetune-this has 11 of an RTX 4080
(docs/rtx4080_baselines.md@053ce9e) and a smoke test. Nothing of ds-advise is fitted to them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from statistics import mean
from typing import NamedTuple

from .predicted_memory import Result, results
from .report import Table
from .rows import DATA, Run

FILE = DATA / "peer_memory.csv"
KEY = ("source", "model", "method", "attention", "seq_len", "micro_batch", "lora_rank", "checkpointing")


class PeerRun(NamedTuple):
    peer: str
    result: Result
    theirs: float
    """Error of their prediction of the peak."""
    theirs_need: float
    ours: float
    """Error of the peak, of ds-advise."""


@cache
def peer_runs() -> tuple[PeerRun, ...]:
    """Every row, with the published run of its settings."""
    published = {_key(result.run): result for result in results()}
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(_read(row, published[tuple(row[name] for name in KEY)]) for row in csv.DictReader(file))


def _key(run: Run) -> tuple[str, ...]:
    workload, plan = run.workload, run.plan
    sizes = (str(workload.seq_len), str(plan.micro_batch_size), str(workload.lora_rank))
    checkpointing = "yes" if plan.gradient_checkpointing else "no"
    return (run.source, run.model.name, workload.method, workload.attention, *sizes, checkpointing)


def _read(row: dict[str, str], result: Result) -> PeerRun:
    measured = int(row["measured_bytes"])
    return PeerRun(
        row["source"].split()[0].rpartition("/")[2],
        result,
        int(row["theirs_bytes"]) / measured - 1,
        int(row["theirs_need_bytes"]) / int(row["measured_need_bytes"]) - 1,
        result.memory.allocated_bytes_per_gpu / measured - 1,
    )


def _by_peer() -> dict[str, list[PeerRun]]:
    by_peer: dict[str, list[PeerRun]] = {}
    for run in peer_runs():
        by_peer.setdefault(run.peer, []).append(run)
    return by_peer


def mean_errors() -> list[tuple[str, int, float, float]]:
    """Peer, number of its runs, and the mean errors of the peak: theirs and ours."""
    return [
        (name, len(found), mean(abs(run.theirs) for run in found), mean(abs(run.ours) for run in found))
        for name, found in _by_peer().items()
    ]


def table() -> Table:
    """Their runs by peer, with their printed errors and ours."""

    def sizes(found: list[PeerRun], of: Callable[[PeerRun], float]) -> tuple[str, str]:
        errors = [of(run) for run in found]
        return f"{mean(map(abs, errors)):.1%}", f"{max(errors, key=abs):+.1%}"

    errors = {"theirs": lambda run: run.theirs, "their need": lambda run: run.theirs_need, "ours": lambda run: run.ours}
    return Table(
        title="Runs that two peers measured: error of the peak of allocated memory, theirs and ours",
        header=("peer", " n", *(cell for name in errors for cell in (f" {name}, mean", " worst"))),
        rows=tuple(
            (peer, str(len(found)), *(cell for of in errors.values() for cell in sizes(found, of)))
            for peer, found in _by_peer().items()
        ),
    )
