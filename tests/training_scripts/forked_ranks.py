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
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRELOAD = [__name__ + "_imports"]
LIMIT_S = 900
COLLECTOR_THRESHOLDS = (700, 10, 10)
"""Python's own, which the processes that import have not (`quick/sitecustomize.py`)."""


def start_server() -> None:
    """Start the process whose forks are ranks and dry runs, unless it runs."""
    forkserver.set_forkserver_preload(PRELOAD)
    with contextlib.chdir(ROOT):  # it looks for its imports there
        forkserver.ensure_running()


def recordings(requests: Sequence[Any]) -> list[dict[str, Any]]:
    """The answers of `probes.model_recorder.process`."""
    return in_forks(_recording, requests)


def in_forks(function: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
    """The results of a function for each argument, computed in a fork of its own without output."""
    start_server()
    with multiprocessing.get_context("forkserver").Pool(2, maxtasksperchild=1) as pool:
        return pool.map(partial(_quietly, function), arguments, chunksize=1)


def _quietly(function: Callable[[Any], Any], argument: Any) -> Any:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    _collect_as_usual()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return function(argument)


def _recording(request: Any) -> dict[str, Any]:
    from ds_advise.probes.model_recorder.process import run_request

    return run_request(request)


class ForkedRank:
    """A process that runs a script, in a session of its own."""

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


def run_ranks(script: Path, arguments: Sequence[str], ranks: int, folder: Path, **variables: str) -> list[Path]:
    """Run a script on several ranks on the CPU, as a launcher does, without the network; returns their logs."""
    from ds_advise.probes.real_run.torchrun import free_port  # every fork imports this module

    environment = cpu_environment() | {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **variables,
    }

    def start(rank: int, log: Path) -> ForkedRank:
        env = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        return ForkedRank(script, arguments, cwd=folder, env=env, log=log)

    return run_to_the_end([partial(start, rank) for rank in range(ranks)], folder)


def run_to_the_end(
    starts: Sequence[Callable[[Path], ForkedRank]], folder: Path, limit_s: float = LIMIT_S
) -> list[Path]:
    """Run processes side by side, each in a session of its own and with a log. All must succeed, in time, and leave
    nothing running."""
    logs = [folder / f"log{number}" for number in range(len(starts))]
    processes: list[ForkedRank] = []
    try:
        for start, log in zip(starts, logs, strict=True):
            processes.append(start(log))
        deadline = time.monotonic() + limit_s
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            if any(process.poll() for process in processes):
                break  # the others would wait for the one that failed
            time.sleep(0.1)
        codes = [process.poll() for process in processes]
        left_behind = [process.pid for process in processes if process.poll() is not None and _has_group(process.pid)]
    finally:
        for process in processes:
            if _has_group(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert codes == [0] * len(starts), "\n".join(log.read_text()[-4000:] for log in logs if log.exists())
    assert not left_behind
    return logs


def cpu_environment() -> dict[str, str]:
    """No GPU, one thread for each rank, no network."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return inherited | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _has_group(group: int) -> bool:
    """Whether a process of this group runs; one that has ended and is not collected yet does not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _collect_as_usual() -> None:
    gc.freeze()  # the imported modules are no garbage, and scanning them takes long
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def _run(script: Path, arguments: list[str], cwd: Path, env: dict[str, str], log: Path) -> None:
    """In the fork: become the process of `python script arguments`."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    _collect_as_usual()
    runpy.run_path(str(script), run_name="__main__")
