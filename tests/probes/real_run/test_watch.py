"""Ranks as processes, here stand-ins that load no library: their environment, reported failures, and Ctrl-C at any
moment, which leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds_advise.probes.real_run.result import RankFailure
from ds_advise.probes.real_run.watch import watch

from tests.helpers import processes_of

RANK = """
import json, os, subprocess, sys, time
folder, rank = sys.argv[1:3]
log = open(f"{folder}/rank{rank}.jsonl", "a", buffering=1)
def note(**values):
    log.write(json.dumps({"time": time.time(), **values}) + "\\n")
"""
PHASES = ("import", "load", "step 1")
SLOW = f"""
compiler = subprocess.Popen(["sh", "-c", f"sleep 3600; : {{folder}}"], process_group=0)  # as ninja starts it
for phase in {PHASES!r}:
    note(phase=phase)
    time.sleep(0.15)
time.sleep(3600)
"""
PROBE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
from ds_advise.probes.real_run import run
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.hardware import gpu_of_memory
from ds_advise.probes.run import Run
watch = run.watch
run.watch = lambda numbers, folder, **settings: watch(numbers, folder, **{**settings, "worker": "stand_in"})
config = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": sys.argv[1]}}}
cluster = Cluster(nodes=1, gpus_per_node=2, gpu=gpu_of_memory(24))
print("ready", flush=True)
run.probe(Run(config=config, model={}, cluster=cluster), device="cpu")
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the module `stand_in`, a rank that runs this code."""
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    def write(body: str) -> None:
        (tmp_path / "stand_in.py").write_text(f"{RANK}{body}\nos._exit(0)")

    return write


def watched(folder: Path, ranks: int = 1, **limits: float) -> tuple[list[dict[str, Any]], RankFailure | None]:
    return watch(range(ranks), folder, worker="stand_in", **{"stall_s": 3600, "timeout_s": 3600} | limits)


def test_ranks_find_the_ninja_of_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: Callable[[str], None]
) -> None:
    """As a training in the activated environment does: by two versions of ninja the extensions would be compiled in
    turns."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    stand_in('note(phase="report", report=os.environ["PATH"])')
    reports, failure = watched(tmp_path)
    assert failure is None
    assert reports[0]["report"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin", "/bin"]


def test_a_phase_without_progress_is_a_hang(tmp_path: Path, stand_in: Callable[[str], None]) -> None:
    """It is reported with the rank and the phase, after the time that was stated."""
    stand_in('note(phase="step 1")\nif rank == "0": note(phase="step 2")\ntime.sleep(3600)')
    _, failure = watched(tmp_path, ranks=2, stall_s=4)
    assert failure is not None
    assert (failure.kind, failure.rank, failure.phase) == ("hang", 1, "step 1") and "4 s" in failure.message


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("os.kill(os.getpid(), 9)", "killed"),
        ("os.kill(os.getpid(), 19)", "stopped"),
        ("time.sleep(3600)", "timeout"),
    ],
)
def test_a_lost_rank_and_a_spent_budget_end_the_job(
    tmp_path: Path, stand_in: Callable[[str], None], body: str, kind: str
) -> None:
    """The other rank would wait forever. SIGKILL, SIGSTOP, and a time limit that holds whatever the ranks do."""
    stand_in(f'note(phase="step 2")\nif rank == "1": {body}\ntime.sleep(3600)')
    reports, failure = watched(tmp_path, ranks=2, timeout_s=4 if kind == "timeout" else 3600)
    assert failure is not None and failure.kind == kind and reports == []


def test_a_rank_that_ends_without_a_report_is_a_crash(tmp_path: Path, stand_in: Callable[[str], None]) -> None:
    """It may have left without an error, as where its report could not be written; what it printed is kept."""
    stand_in('note(phase="load")\nprint("so long", flush=True)')
    _, failure = watched(tmp_path)
    assert failure is not None and "exit code 0" in failure.message
    assert (failure.kind, failure.phase, failure.details.strip()) == ("crash", "load", "so long")


def test_the_rank_that_failed_first_is_blamed(tmp_path: Path, stand_in: Callable[[str], None]) -> None:
    """Rank 0 then fails because its peer is gone, which is not what happened; it says so first to the watch."""
    stand_in(
        'note(phase="step 2")\nbegan = time.time()\ntime.sleep(0.5 * (rank == "1"))\n'
        'message, late = ("a reactor leaks", 0) if rank == "1" else ("connection closed", 3600)\n'
        'error = {"kind": "crash", "phase": "step 2", "message": message, "details": ""}\n'
        'log.write(json.dumps({"time": began + late, "error": error}) + "\\n")'
    )
    _, failure = watched(tmp_path, ranks=2)
    assert failure is not None and (failure.kind, failure.rank, failure.phase) == ("crash", 1, "step 2")
    assert failure.message == "a reactor leaks"


@pytest.mark.parametrize("moment", ["at once", "a rank starts", "import", "step 1"])
def test_an_interrupt_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: Callable[[str], None], moment: str
) -> None:
    """From before the first rank starts to the middle of a step: no process, no file, no swap folder."""
    temporary, disk = tmp_path / "temporary", tmp_path / "disk"
    temporary.mkdir()
    disk.mkdir()
    stand_in(SLOW)
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = probing(moment, temporary, disk)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == -signal.SIGINT and error.rstrip().endswith("KeyboardInterrupt")
    assert not processes_of(temporary) and not list(temporary.iterdir()) and not list(disk.iterdir())


@pytest.mark.parametrize("killed_by", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_killed_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: Callable[[str], None], killed_by: signal.Signals
) -> None:
    """Ranks and compilers in process groups of their own are ended."""
    stand_in(SLOW)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = probing("load", tmp_path, tmp_path)
    process.send_signal(killed_by)
    process.communicate()
    deadline = time.monotonic() + 900
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_of(tmp_path)


def probing(moment: str, temporary: Path, disk: Path) -> subprocess.Popen[str]:
    """A probe that has come to a moment."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE, str(disk)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    while not has_come(moment, temporary):
        assert process.poll() is None
        time.sleep(0.01)
    return process


def has_come(moment: str, temporary: Path) -> bool:
    if moment in PHASES:
        return any(f'"{moment}"' in log.read_text() for log in temporary.glob("*/rank*.jsonl"))
    return moment == "at once" or bool(processes_of(temporary))
