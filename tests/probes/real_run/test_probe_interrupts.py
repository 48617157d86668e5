"""Ctrl-C at any moment of a probe: it ends at once, and nothing is left. The ranks are stand-ins that load no
library."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

RANK = """
import json, subprocess, sys, time
folder, rank = sys.argv[1:3]
compiler = subprocess.Popen(["sh", "-c", f"sleep 3600; : {folder}"])
with open(f"{folder}/rank{rank}.jsonl", "a", buffering=1) as log:
    for phase in ("import", "join", "load", "initialize", "step 1"):
        log.write(json.dumps({"time": time.time(), "phase": phase}) + "\\n")
        time.sleep(0.15)
    time.sleep(3600)
"""

PROBE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
from ds_advise.estimators.hardware.cluster import Cluster
from ds_advise.estimators.hardware.gpus import gpu_of_memory
from ds_advise.probes.real_run import run
watch = run.watch
run.watch = lambda numbers, folder, **settings: watch(numbers, folder, **{**settings, "worker": "stand_in"})
config = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": sys.argv[1]}}}
print("ready", flush=True)
run.probe(config, {}, cluster=Cluster(nodes=1, gpus_per_node=2, gpu=gpu_of_memory(24)), device="cpu")
"""


def test_an_interrupt_at_any_of_ten_moments_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From before the first rank starts to the middle of a step: no process, no file, no swap folder, within ten
    seconds."""
    temporary, disk = tmp_path / "temporary", tmp_path / "disk"
    temporary.mkdir()
    disk.mkdir()
    (tmp_path / "stand_in.py").write_text(RANK)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    dice, had_ranks = random.Random(5), 0
    for moment in (dice.uniform(0.0, 1.2) for _ in range(10)):
        process = subprocess.Popen(
            [sys.executable, "-c", PROBE, str(disk)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(moment)
        had_ranks += bool(processes_of(temporary))
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, error = process.communicate(timeout=60)
        assert time.monotonic() - started < 10
        assert process.returncode == -signal.SIGINT and error.rstrip().endswith("KeyboardInterrupt")
        assert not processes_of(temporary) and not list(temporary.iterdir()) and not list(disk.iterdir())
    assert had_ranks > 2, "most of the moments are after the start of the ranks"


def processes_of(folder: Path) -> list[Any]:
    """Processes with a file of the folder among their arguments: ranks, and what they started."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in part for part in process.info["cmdline"] or ())
    ]
