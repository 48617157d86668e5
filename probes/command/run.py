"""`dry_run_command`: run a user's command as one rank of a simulated cluster."""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...estimators.errors import DsAdviseError
from ...estimators.json_form import from_json
from ..recording.result import add_overhead
from ..run_errors import CommandFailedError as CommandFailedError
from ..run_errors import DryRunError, command_error, ended_error, way_to_deepspeed
from ..run_errors import NoEngineError as NoEngineError
from ..scratch import scratch
from ..worker_process import OnProgress, WorkerTimeoutError, read_phase, run_worker, worker_environment
from .files import View
from .files import environment as files_environment
from .limits import STACKS, last_line
from .observed import CommandResult
from .request import CommandRequest
from .words import check_script, interpreter_of

_MOST_STARTS = 5
"""Most processes in a chain: a tool's command starts a launcher, which starts a script."""

_MORE_ROWS = 16
"""Factor for the rows that are read if they make less than two optimizer steps: the second one shows the peak, with the
optimizer's states in the passes."""

_START = """import sys
sys.path[:1] = [sys.argv.pop(1)]
from ds_advise.probes.command.worker import main
main()"""
"""Code of the worker: the package is found in a folder of its own, so that its neighbours are not."""


def dry_run_command(
    request: CommandRequest,
    *,
    timeout_s: float = 1800.0,
    on_progress: OnProgress = lambda _phase: None,
    error: Callable[[Mapping[str, Any]], DsAdviseError] = command_error,
) -> CommandResult:
    """Memory of one rank of the command's training, under the real trainer and engine, on a simulated GPU.

    Nothing that the command writes is kept. Processes that it starts for the training are followed.
    error: makes the error of an answer, which has "kind", "error", "phase", "where", "package" and "traceback".

    Raises CommandFailedError with the script's own message and line, and DryRunError if the script cannot be simulated
    or does not end in time.
    """
    asked = request
    if not request.files:  # they may have the script
        check_script(request.words, request.folder)
    with scratch("command") as folder:
        (folder / "ds_advise").symlink_to(Path(__file__).parents[2], target_is_directory=True)
        view = View(folder)
        working_folder = view.mirror(request.folder)
        for path, text in request.files.items():
            Path(view.written(path, keep_content=False)).write_text(text, encoding="utf-8")
        for _ in range(_MOST_STARTS):
            answer = start(request, folder, working_folder, timeout_s, on_progress)
            if "relaunch" not in answer:
                break
            request = replace(request, words=tuple(answer["relaunch"]), variables=answer["variables"])
            working_folder = Path(answer["folder"])
        else:
            raise DryRunError("the command starts itself again and again", phase="start")
    if "error" in answer:
        failure = error(answer)
        if isinstance(failure, NoEngineError) and asked.config_file is not None:
            failure.takes_config = False  # it did not take this one
            failure.why, failure.fix = way_to_deepspeed(takes_config=False)
        raise failure
    found = from_json(CommandResult, answer["result"])
    seen = found.observed
    if asked.rows is None and seen.rows and seen.ended == "script" and seen.steps < 2:
        more = replace(asked, rows=_MORE_ROWS * seen.rows_read)
        return dry_run_command(more, timeout_s=timeout_s, on_progress=on_progress, error=error)
    return replace(found, result=add_overhead(found.result, request.cluster))


def start(
    request: CommandRequest, folder: Path, working_folder: Path, timeout_s: float, on_progress: OnProgress
) -> dict[str, Any]:
    """One process of the command: its answer, an error, or the process to start in its place."""
    interpreter = interpreter_of(request.words, folder=request.folder, environment=request.variables) or Path(
        sys.executable
    )
    for name in ("answer.json", STACKS):
        (folder / name).unlink(missing_ok=True)
    environment = {
        **worker_environment(),
        **(request.variables or {}),
        **files_environment(folder, offline=request.offline),
        "PYTORCH_JIT": "0",  # a compiled function would not reach the recorder
    }
    try:
        status, printed = run_worker(
            [str(interpreter), "-c", _START, str(folder), str(folder), str(time.monotonic() + timeout_s)],
            request=pickle.dumps(request),
            folder=folder,
            environment=environment,
            working_folder=working_folder,
            timeout_s=timeout_s,
            on_progress=on_progress,
        )
    except WorkerTimeoutError as error:
        raise DryRunError(
            f"the command did not end within {timeout_s:.0f} s (during {error.phase})",
            phase=error.phase,
            details=error.printed,
            why=_at(folder),
            fix="pass --timeout SECONDS, or arguments with fewer steps and rows",
        ) from None
    written = folder / "answer.json"
    if not written.exists():
        raise ended_error(status, read_phase(folder), printed, _at(folder))
    text = written.read_text()
    answer: dict[str, Any] = json.loads(text)
    if "error" in answer:  # its messages have the paths that the user knows
        answer = json.loads(text.replace(View(folder).root, ""))
    return answer | {"printed": printed}


def _at(folder: Path) -> str:
    """Where the script stood when its process was ended."""
    line = last_line(folder)
    return f"at {View(folder).user_path(line)}" if line else ""
