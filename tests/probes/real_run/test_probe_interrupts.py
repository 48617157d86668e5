"""Ctrl-C at any moment of a probe: it ends, and nothing is left. The ranks are stand-ins that load no library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

PHASES = ("import", "join", "load", "initialize", "step 1")
RANK = f"""
import json, subprocess, sys, time
folder, rank = sys.argv[1:3]
compiler = subprocess.Popen(["sh", "-c", f"sleep 3600; : {{folder}}"])
with open(f"{{folder}}/rank{{rank}}.jsonl", "a", buffering=1) as log:
    for phase in {PHASES!r}:
        log.write(json.dumps({{"time": time.time(), "phase": phase}}) + "\\n")
        time.sleep(0.15)
    time.sleep(3600)
"""

PROBE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
from ds_advise.estimators.hardware.cluster import Cluster
from ds_advise.estimators.hardware.gpus import gpu_of_memory
from ds_advise.probes.real_run import run
from ds_advise.probes.run import Run
watch = run.watch
run.watch = lambda numbers, folder, **settings: watch(numbers, folder, **{**settings, "worker": "stand_in"})
config = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": sys.argv[1]}}}
cluster = Cluster(nodes=1, gpus_per_node=2, gpu=gpu_of_memory(24))
print("ready", flush=True)
run.probe(Run(config=config, model={}, cluster=cluster), device="cpu")
"""


@pytest.mark.parametrize("moment", ["at once", "a rank starts", *PHASES])
def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """From before the first rank starts to the middle of a step: no process, no file, no swap folder."""
    temporary, disk = tmp_path / "temporary", tmp_path / "disk"
    temporary.mkdir()
    disk.mkdir()
    (tmp_path / "stand_in.py").write_text(RANK)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE, str(disk)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    while not has_come(moment, temporary):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == -signal.SIGINT and error.rstrip().endswith("KeyboardInterrupt")
    assert not processes_of(temporary) and not list(temporary.iterdir()) and not list(disk.iterdir())


def has_come(moment: str, temporary: Path) -> bool:
    if moment in PHASES:
        return any(f'"{moment}"' in log.read_text() for log in temporary.glob("*/rank*.jsonl"))
    return moment == "at once" or bool(processes_of(temporary))


def processes_of(folder: Path) -> list[Any]:
    """Processes with a file of the folder among their arguments: ranks, and what they started."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in part for part in process.info["cmdline"] or ())
    ]
