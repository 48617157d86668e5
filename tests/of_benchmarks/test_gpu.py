"""`python -m benchmarks.gpu`: what it goes on with, its chapter, and a run without a GPU."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.estimators.hardware import find_gpu
from ds_advise.probes.machine import Machine

from benchmarks.gpu import chapter, tables
from benchmarks.gpu.agenda.configurations import MEMORY
from benchmarks.gpu.agenda.order import agenda
from benchmarks.gpu.agenda.questions import QUESTIONS, in_order
from benchmarks.gpu.configuration import Configuration
from benchmarks.gpu.machine.place import Place, cluster_of
from benchmarks.gpu.measure.__main__ import answer
from benchmarks.gpu.measurement import Measurement
from benchmarks.gpu.records import FILE, Outcome, Record, Records
from benchmarks.gpu.session import Session
from benchmarks.gpu.tables import training_row, write
from tests.helpers import dry_runs_in_forks
from tests.training_scripts.forked_ranks import in_forks

ROOT = Path(__file__).parents[2]
H100 = find_gpu("H100-SXM5")
MACHINE = Machine(
    gpus=("NVIDIA H100 80GB HBM3",), gpu_memory_bytes=(1,), driver="580", cpu="a CPU", cpu_cores=16, ram_bytes=1
)

Go = Callable[..., list[str]]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(device="cpu", limit_s=0, ram_bytes=None, nvme_folder=str(tmp_path))


@pytest.fixture
def go(tmp_path: Path, place: Place) -> Go:
    """A session over an agenda with given outcomes by name; answers what it measured."""

    def go(names: str, outcomes: dict[str, str], *, left_s: float = 1000.0) -> list[str]:
        measured = []

        def run(one: Measurement, _place: Place, *, limit_s: float) -> dict[str, Any]:
            measured.append(one.name)
            assert limit_s <= left_s
            return {"outcome": outcomes.get(one.name, "measured"), "value": {}, "reason": ""}

        session = Session(
            Records(tmp_path), place, deadline=time.monotonic() + left_s, say=lambda _: None, run=run, machine=MACHINE
        )
        session.go([Measurement(name=name, kind="context", arguments={}, about_s=10, limit_s=100) for name in names])
        return measured

    return go


def test_what_is_not_on_record_is_measured_in_turn(go: Go, tmp_path: Path) -> None:
    """Running out of memory is a result; what failed is tried again after the rest until it succeeds; nothing is begun
    that takes longer than is left, nor recorded where the end of the time cut it off."""
    assert go("ab", {"a": "out of memory", "b": "failed"}) == ["a", "b"]
    assert go("abc", {"b": "timed out"}) == ["c", "b"]
    assert go("abcd", {"d": "timed out"}, left_s=20) == ["d", "b"]
    assert go("abcd", {}, left_s=5) == []
    assert go("abcd", {}) == ["d"]
    with (tmp_path / FILE).open("r+b") as stream:  # the machine was taken away while the last one was written
        stream.truncate((tmp_path / FILE).stat().st_size - 30)
    assert go("abcde", {}) == ["d", "e"]


def test_records_of_a_gpu_become_the_chapter_on_a_gpu(tmp_path: Path) -> None:
    """Without records there is none; made-up figures show that predictions are compared with them."""
    assert chapter.section(tmp_path) is None
    one, full = MEMORY[0], MEMORY[14]
    ran = in_order(cluster_of(H100, 1))[0]
    step = {"total_s": 0.25, "forward_s": 0.1, "backward_s": 0.1, "optimizer_s": 0.05}
    rank = {
        "allocated_bytes": 30 << 30,
        "reserved_bytes": 31 << 30,
        "device_bytes": 32 << 30,
        "host_peak_bytes": 3,
        "host_baseline_bytes": 1,
        "steps": [step] * 3,
    }
    records = [record(one, "measured", [rank]), record(full, "out of memory", []), record(ran, "measured", [rank])]
    dry = {"allocated_bytes": 33 << 30, "reserved_bytes": 34 << 30, "device_bytes": 35 << 30, "step_s": 0.2}
    write(tmp_path / "trainings.csv", [training_row(found, dry) for found in records])
    section = chapter.section(tmp_path)
    assert section is not None
    text = section.markdown()
    assert "## On a GPU: NVIDIA H100 80GB HBM3" in text
    assert "| allocated, dry run | 1 | 10.0% | +10.0% | +10.0% |" in text
    assert "| step, schedule | 1 | 20.0% | -20.0% | -20.0% |" in text
    assert f"| {full.name} | " in text
    assert "x the memory |" in text
    assert f"| {QUESTIONS[0].name} | 1 | {ran.strategy} | {ran.strategy} | 100.0% |" in text


def record(one: Configuration, outcome: Outcome, ranks: list[dict[str, Any]]) -> Record:
    memory = {"gpu_memory_bytes": [H100.memory_bytes], "gpus": list(MACHINE.gpus)}
    return Record(
        name=one.name,
        kind="training",
        arguments=one.arguments,
        outcome=outcome,
        value={"result": {"ranks": ranks, "tokens_per_step": 8192}},
        device="cuda",
        versions=dict.fromkeys(("driver", "torch", "deepspeed", "transformers"), "1"),
        machine=MACHINE.to_json() | memory,
        gpu={},
        began="",
        seconds=1.0,
    )


@pytest.mark.slow
def test_a_cpu_measures_what_it_can(
    tmp_path: Path, place: Place, extensions: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At toy sizes, by the command and by a session whose measurements are forks. Tables are made of the records."""
    extensions("FusedAdamBuilder", "CPUAdamBuilder")
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--minutes", "20", "--out", str(tmp_path)]
    subprocess.run([*command, "--only", "CPU Adam"], cwd=ROOT, check=True, timeout=1300)

    def run(one: Measurement, place: Place, *, limit_s: float) -> Any:
        job = {"kind": one.kind, "arguments": dict(one.arguments), "place": asdict(replace(place, limit_s=limit_s))}
        (tmp_path / "job.json").write_text(json.dumps(job))
        in_forks(answer, [tmp_path])
        return json.loads((tmp_path / "answer.json").read_text())

    session = Session(Records(tmp_path), place, deadline=time.monotonic() + 1300, run=run)
    session.go(agenda(place))
    outcomes = {record.name: record.outcome for record in Records(tmp_path).all}
    not_here = {"CUDA context and workspaces", "allocator's trace of a training, expandable segments"}
    assert outcomes == {one.name: "not possible" if one.name in not_here else "measured" for one in agenda(place)}
    monkeypatch.setattr(sys, "argv", ["tables", str(tmp_path), "--device", "cpu", "--into", str(tmp_path / "tables")])
    with dry_runs_in_forks():
        assert tables.main() == 0
    with (tmp_path / "tables" / "trainings.csv").open(encoding="utf-8") as stream:
        (row,) = csv.DictReader(stream)
    assert float(row["total_s"]) > 0 and int(row["host_bytes"]) > 0 and int(row["dry_run_allocated_bytes"]) > 0
    assert "ds-advise doctor" in (tmp_path / "tables" / "commands.md").read_text(encoding="utf-8")
