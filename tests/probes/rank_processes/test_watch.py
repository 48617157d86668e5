"""What is started finds the programs beside its Python first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from ds_advise.probes.rank_processes.watch import watch

RANK = """
import json, os, sys
folder, rank = sys.argv[1:3]
with open(f"{folder}/rank{rank}.jsonl", "a") as log:
    log.write(json.dumps({"time": 0.0, "phase": "report", "report": os.environ["PATH"]}) + "\\n")
"""


def test_ranks_find_the_ninja_of_their_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a training in the activated environment does: by two versions of ninja the extensions would be compiled in
    turns."""
    (tmp_path / "stand_in.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    reports, failure = watch([0], tmp_path, worker="stand_in", stall_s=60, timeout_s=60, on_progress=lambda _: None)
    assert failure is None
    assert reports[0]["report"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin", "/bin"]
