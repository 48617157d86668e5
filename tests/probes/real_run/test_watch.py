"""Ranks as processes, here stand-ins that load no library: what they find, and how a failure is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ds_advise.probes.real_run.result import RankFailure
from ds_advise.probes.real_run.watch import watch

RANK = """
import json, os, sys, time
folder, rank = sys.argv[1:3]
log = open(f"{folder}/rank{rank}.jsonl", "a", buffering=1)
def note(**values):
    log.write(json.dumps({"time": time.time(), **values}) + "\\n")
"""


def watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, ranks: int = 1, stall_s: float = 3600
) -> tuple[list[dict[str, Any]], RankFailure | None]:
    (tmp_path / "stand_in.py").write_text(RANK + body + "\nos._exit(0)")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return watch(range(ranks), tmp_path, worker="stand_in", stall_s=stall_s, timeout_s=3600)


def test_ranks_find_the_ninja_of_their_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a training in the activated environment does: by two versions of ninja the extensions would be compiled in
    turns."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    reports, failure = watched(tmp_path, monkeypatch, 'note(phase="report", report=os.environ["PATH"])')
    assert failure is None
    assert reports[0]["report"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin", "/bin"]


def test_a_phase_without_progress_is_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported with the rank and the phase, after the time that was stated."""
    body = 'note(phase="step 1")\nif rank == "0": note(phase="step 2")\ntime.sleep(3600)'
    _, failure = watched(tmp_path, monkeypatch, body, ranks=2, stall_s=8)
    assert failure is not None
    assert (failure.kind, failure.rank, failure.phase) == ("hang", 1, "step 1") and "8 s" in failure.message


def test_a_rank_that_ends_without_a_word_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have left without an error, as where its report could not be written; what it printed is kept."""
    _, failure = watched(tmp_path, monkeypatch, 'note(phase="load")\nprint("so long", flush=True)')
    assert failure is not None and "exit code 0" in failure.message
    assert (failure.kind, failure.phase, failure.details.strip()) == ("crash", "load", "so long")
