"""Seconds of a whole, cold `ds-advise` process, and of the search alone.

    python -m benchmarks.cold_start [--runs 9]

Prints the minimum, median and maximum wall time of `--help`, of the answer without and with DeepSpeed's own estimators
(each a fresh process in an empty folder, with its bytecode kept as an installed package has it), and of one search
inside a warm process, with the targets and the core's single-thread score.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

from .search.core import core_score

QUESTION = ["Qwen2.5-14B", "--gpus", "2x32GB", "--no-write"]
PROCESSES = (
    ("--help", ["--help"], 0.2),
    ("answer, --no-deepspeed-estimate", [*QUESTION, "--no-deepspeed-estimate"], 0.3),
    ("answer, with DeepSpeed's estimators", QUESTION, 2.5),
)
SEARCH_TARGET_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    print(f"{'what':<38}{'min':>8}{'median':>8}{'max':>8}{'target':>8}   seconds, {runs} runs")
    for name, arguments, target in PROCESSES:
        _report(name, _times(partial(_process, arguments), runs), target)
    _report("search alone, warm", _times(_search(), runs), SEARCH_TARGET_S)
    print(core_score())


def _times(action: Callable[[], object], runs: int) -> list[float]:
    action()  # fills the file cache
    measured = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        measured.append(time.perf_counter() - start)
    return measured


def _process(arguments: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "ds_advise", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


def _search() -> Callable[[], object]:
    """The search of a question that no cache has seen: each call asks for another sequence length."""
    from dataclasses import replace

    from ds_advise.advisor.question.cluster import parse_cluster
    from ds_advise.advisor.question.model_source import load_model
    from ds_advise.advisor.question.question import Question
    from ds_advise.advisor.search.search import predict_all
    from ds_advise.estimators.workload import Workload

    cluster = parse_cluster("2x32GB", ram=None, nvme=None, interconnect=None)
    question = Question(
        model=load_model("Qwen2.5-14B", offline=True), cluster=cluster, workload=Workload(precision="fp16")
    )
    lengths = iter(range(2048, 10**6))
    return lambda: predict_all(replace(question, workload=replace(question.workload, seq_len=next(lengths))))


def _report(name: str, measured: list[float], target: float) -> None:
    print(f"{name:<38}{min(measured):>8.3f}{statistics.median(measured):>8.3f}{max(measured):>8.3f}{target:>8.2f}")


if __name__ == "__main__":
    main()
