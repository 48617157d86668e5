"""Ranks of real trainings as forks of one process that has imported torch, DeepSpeed and transformers.

The imports take longer than a small training, and every rank of every training would make them. The process that
imports computes nothing and starts no thread, so a fork of it goes on as a fresh process does.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRELOAD = [__name__ + "_imports", "benchmarks.dry_run.forked_dry_runs_imports"]


def start_server() -> None:
    """The one process whose forks are ranks and dry runs, unless it runs already."""
    forkserver.set_forkserver_preload(PRELOAD)
    with contextlib.chdir(ROOT):  # it looks for what it imports there
        forkserver.ensure_running()


class ForkedRank:
    """A process that runs a script, in a session of its own; polled and waited for as `subprocess.Popen` is."""

    def __init__(self, script: Path, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path) -> None:
        start_server()
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_run, args=(script, list(arguments), cwd, dict(env), log), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> None:
        self._process.join()

    def kill(self) -> None:
        self._process.kill()


def _run(script: Path, arguments: list[str], cwd: Path, env: dict[str, str], log: Path) -> None:
    """In the fork: become what `python script arguments` is."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    gc.freeze()  # what is imported is no garbage, and looking for it in there takes long
    runpy.run_path(str(script), run_name="__main__")
