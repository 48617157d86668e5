"""`python -m benchmarks.gpu`: what it continues with, its tables, and a run without a GPU."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.plan import STRATEGIES
from ds_advise.probes import machine

from benchmarks import gpu

ROOT = Path(__file__).parents[2]
FIGURES = [
    *(("allocated per GPU", "bytes", 10), ("reserved per GPU", "bytes", 12), ("device memory", "bytes", 13)),
    *(("step", "s", 0.5), ("tokens/s", "tokens/s", 100)),
]


def probe_answer(*, solo: bool, failure: dict[str, str] | None = None) -> str:
    keys = ("analytic", "analytic_error", "dry_run", "dry_run_error")
    figures = [
        {"name": name, "unit": unit, "measured": size}
        | dict(zip(keys, (1.1 * size, 0.1, 0.9 * size, -0.1), strict=True))
        for name, unit, size in FIGURES
    ]
    return json.dumps({"solo": solo, "failure": failure, "figures": [] if failure else figures})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """On a machine with an H100: the commands that were started."""
    monkeypatch.setattr(machine, "visible_gpus", lambda: [find_gpu("H100-SXM5")])
    found: list[list[str]] = []

    def run(command: Sequence[str], _limit_s: float) -> tuple[int | None, str, str]:
        words = list(command[3:])
        found.append(words)
        if "--micro-batch" not in words:
            return 0, json.dumps({"machine": {"gpus": ["H100"]}, "versions": {"torch": "2"}}), ""
        if "16" in words:  # the micro batch
            return 1, probe_answer(solo=False, failure={"kind": "out_of_memory", "message": "CUDA"}), ""
        return (None, "", "ended") if "gemma-2-2b" in words else (0, probe_answer(solo="--solo" in words), "")

    monkeypatch.setattr(gpu, "run", run)
    return found


def test_probes_cover_the_ladder_and_are_made_once(started: list[list[str]], tmp_path: Path) -> None:
    """One rank alone where the job has more GPUs than the machine. What has an answer is not started again, and what
    the deadline ends has none."""
    assert {probe.strategy for probe in gpu.PROBES} == {*STRATEGIES}
    gpu.measure(gpu.PROBES, tmp_path, "cuda", deadline=time.monotonic() + gpu.LEAST_S - 1)
    assert not started
    gpu.measure(gpu.PROBES, tmp_path, "cuda", deadline=time.monotonic() + gpu.LIMIT_S - 1)
    ended = [probe.model for probe in gpu.PROBES].index("gemma-2-2b")
    assert len(started) == 1 + ended + 1
    alone = [probe.world_size > 1 for probe in gpu.PROBES[: ended + 1]]
    assert ["--solo" in words for words in started[1:]] == alone
    gpu.measure(gpu.PROBES, tmp_path, "cuda", deadline=time.monotonic() + 1e6)
    assert len(started) == 1 + len(gpu.PROBES) + 1
    gpu.measure(gpu.PROBES, tmp_path, "cuda", deadline=time.monotonic() + 1e6)
    assert len(started) == 1 + len(gpu.PROBES) + 1


@pytest.mark.usefixtures("started")
def test_answers_become_tables(tmp_path: Path) -> None:
    gpu.measure(gpu.PROBES, tmp_path, "cuda", deadline=time.monotonic() + 1e6)
    gpu.write_tables(gpu.PROBES, tmp_path, tmp_path / "tables")
    text = (tmp_path / "tables" / "probes.md").read_text(encoding="utf-8")
    alone = sum(probe.world_size > 1 for probe in gpu.PROBES)
    measured = len(gpu.PROBES) - 2
    assert text.startswith("# Predicted and measured: H100 (torch 2)\n")
    assert f"| allocated per GPU | closed form | {measured} | 10.0% | +10.0% |" in text
    assert f"| step | dry run | {measured - alone} | 10.0% | -10.0% |" in text
    assert "out of memory: CUDA" in text and ": ended" in text
    with (tmp_path / "tables" / "probes.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * measured + measured - alone
    assert {row["figure"] for row in rows} == {name for name, *_ in FIGURES[:-1]}


@pytest.mark.slow
def test_a_cpu_measures_what_it_can(tmp_path: Path, extensions: Callable[..., None]) -> None:
    """The real commands at toy sizes, from a folder of another name that is not importable."""
    extensions("FusedAdamBuilder", "CPUAdamBuilder")
    checkout = tmp_path / "another-name"
    checkout.symlink_to(ROOT, target_is_directory=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DS_ADVISE_CACHE")}
    out = tmp_path / "out"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--minutes", "14", "--out", str(out)]
    subprocess.run(command, cwd=checkout, env=environment, check=True, timeout=1300)
    answers: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in out.glob("*.json")}
    assert {name: answer["exit_code"] for name, answer in answers.items()} == {"bench": 0, gpu.TOY[0].name: 0}
    text = (out / "probes.md").read_text(encoding="utf-8")
    assert "| memory per rank | closed form | 1 |" in text and "| step | closed form | 1 |" in text
    history = [sys.executable, "-m", "ds_advise", "history", "--json"]
    cache = environment | {"DS_ADVISE_CACHE": str(out / "store"), "PYTHONPATH": str(out / "import")}
    stored = subprocess.run(history, env=cache, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert {record["kind"] for record in json.loads(stored)["records"]} == {"bench", "probe"}
