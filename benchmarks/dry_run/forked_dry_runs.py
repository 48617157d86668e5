"""Many dry runs quickly: torch, DeepSpeed and transformers are imported once, and every run is a fork of that process.

What a dry run changes in torch and DeepSpeed stays in its fork. The process that imports runs nothing and starts no
thread, so its forks start as a fresh process does; the answers are those of `dry_run`.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ds_advise.probes.command.files import environment as files_environment
from ds_advise.probes.command.request import CommandRequest
from ds_advise.probes.recording.result import DryRunResult
from ds_advise.probes.run_errors import DryRunError, ended_error

ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "PYTORCH_JIT": "0",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def answers(
    dry_runs: Sequence[Callable[[], DryRunResult]], *, workers: int = 2
) -> Iterator[DryRunResult | DryRunError]:
    """The results of calls of `dry_run`, of tensors alone, in their order, as they become known; the error of a failed
    run."""
    tensors = patch("ds_advise.probes.command.run.add_overhead", lambda result, _cluster: result)
    with runs_in_forks(), tensors, ThreadPoolExecutor(workers) as threads:
        yield from threads.map(_outcome, dry_runs)


@contextmanager
def runs_in_forks() -> Iterator[None]:
    """Dry runs are forks of one process."""
    os.environ.update(ENVIRONMENT)  # what the server's imports see
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__ + "_imports"])
    with patch("ds_advise.probes.command.run.start", run_in_fork):
        yield


def _outcome(dry_run: Callable[[], DryRunResult]) -> DryRunResult | DryRunError:
    try:
        return dry_run()
    except DryRunError as error:
        return error


def run_in_fork(request: CommandRequest, folder: Path, working_folder: Path, *_: Any) -> dict[str, Any]:
    """In place of `probes.command.run.start`."""
    process = multiprocessing.get_context("forkserver").Process(
        target=run_session, args=(request, folder, working_folder), daemon=True
    )
    process.start()
    process.join()
    return written_answer(folder, process.exitcode or 0)


def written_answer(folder: Path, status: int) -> dict[str, Any]:
    """The answer of a session that has ended with a status. A command that starts another one is not followed."""
    written = folder / "answer.json"
    if not written.exists():
        raise ended_error(status, "", (folder / "printed").read_text(errors="replace"), "")
    text = written.read_text()
    answer: dict[str, Any] = json.loads(text.replace(f"{folder}/files", "") if '"error"' in text else text)
    return answer


def run_session(request: CommandRequest, folder: Path, working_folder: Path) -> None:
    """Run the command in this process, and end it."""
    from ds_advise.probes.command.worker import Session

    warnings.simplefilter("ignore")
    os.environ.update(files_environment(folder, offline=request.offline))
    os.environ.update(request.variables or {})
    os.chdir(working_folder)
    printed = os.open(folder / "printed", os.O_WRONLY | os.O_CREAT)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    gc.disable()
    gc.freeze()  # what was imported is no garbage
    Session(request, folder, time.monotonic() + 900.0).run()
