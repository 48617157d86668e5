"""`dry_run_command`: run a user's command as one rank of a simulated cluster."""

from __future__ import annotations

import json
import pickle
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...estimators.errors import DsAdviseError
from ...estimators.json_form import from_json
from ..dry_run.run import DryRunError, add_overhead, crash_error, worker_environment
from ..scratch import scratch
from ..worker_process import OnProgress, WorkerTimeoutError, read_phase, run_worker
from .files import View
from .files import environment as files_environment
from .limits import STACKS, last_line
from .observed import CommandResult
from .refused import PlainTrainingError
from .request import CommandRequest
from .words import interpreter_of

_MOST_STARTS = 5
"""Most processes in a chain: a tool's command starts a launcher, which starts a script."""

_START = """import sys
sys.path[:1] = [sys.argv.pop(1)]
from ds_advise.probes.command.worker import main
main()"""
"""Code of the worker: the package is found in a folder of its own, so that its neighbours are not."""


class CommandFailedError(DryRunError):
    """The user's script failed. details: its traceback or the end of its output."""

    exit_code = 1


class NoEngineError(CommandFailedError):
    """The script trained without DeepSpeed."""


def dry_run_command(
    request: CommandRequest,
    *,
    timeout_s: float = 1800.0,
    on_progress: OnProgress = lambda _phase: None,
) -> CommandResult:
    """Memory of one rank of the command's training, under the real trainer and engine, on a simulated GPU.

    Nothing that the command writes is kept. Processes that it starts for the training are followed.

    Raises CommandFailedError with the script's own message and line, and DryRunError if the script cannot be simulated
    or does not end in time.
    """
    with scratch("command") as folder:
        (folder / "ds_advise").symlink_to(Path(__file__).parents[2], target_is_directory=True)
        view = View(folder)
        working_folder = view.mirror(request.folder)
        for path, text in request.files.items():
            Path(view.written(path, keep_content=False)).write_text(text, encoding="utf-8")
        for _ in range(_MOST_STARTS):
            answer = _start(request, folder, working_folder, timeout_s, on_progress)
            if "relaunch" not in answer:
                break
            request = replace(request, words=tuple(answer["relaunch"]), variables=answer["variables"])
            working_folder = Path(answer["folder"])
        else:
            raise DryRunError("the command starts itself again and again", phase="start")
    if "error" in answer:
        raise _error(answer)
    found = from_json(CommandResult, answer["result"])
    return replace(found, result=add_overhead(found.result, request.cluster))


def _start(
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
        raise _ended(status, read_phase(folder), printed, _at(folder))
    text = written.read_text()
    answer: dict[str, Any] = json.loads(text)
    if "error" in answer:  # its messages have the paths that the user knows
        answer = json.loads(text.replace(View(folder).root, ""))
    return answer | {"printed": printed}


def _at(folder: Path) -> str:
    """Where the script stood when its process was ended."""
    line = last_line(folder)
    return f"at {View(folder).user_path(line)}" if line else ""


def _ended(status: int, phase: str, printed: str, where: str) -> DsAdviseError:
    """The error for a process without an answer. where: the line at which it crashed."""
    if status >= 0:
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        return CommandFailedError(
            f"the script ended its process with exit code {status} (during {phase})",
            phase=phase,
            details=printed,
            why=lines[-1] if lines else "",
            fix="see its output with --debug",
        )
    if status == -signal.SIGKILL:
        return crash_error(status, phase, printed)
    name = signal.Signals(-status).name
    return CommandFailedError(f"the script ended by {name} (during {phase})", phase=phase, details=printed, why=where)


def _error(answer: Mapping[str, Any]) -> DsAdviseError:
    """The error for an exception in the script's process."""
    kind, phase, where = answer["kind"], answer["phase"], answer.get("where", "")
    text = " ".join(line.strip() for line in str(answer["error"]).splitlines() if line.strip())
    details = f"{answer.get('printed', '')}\n{answer.get('traceback', '')}"
    if kind == "NoEngine":
        missing = NoEngineError if answer["trained"] else CommandFailedError
        return missing(
            "the script trained without DeepSpeed" if answer["trained"] else "the script ended before it trained",
            phase=phase,
            details=details,
            why="deepspeed.initialize was never called, by the script, accelerate or the Trainer",
            fix="name a configuration: ds-advise dry-run ds_config.json --gpus ... -- COMMAND",
        )
    if kind == "NoStep":
        what = f"the script ended before an optimizer step (during {phase})"
        return CommandFailedError(what, phase=phase, details=details, why="its DeepSpeed engine was not trained")
    if kind == "SystemExit":
        code = text.isdecimal() or text.startswith("-")
        what = f"the script exited with {f'code {text}' if code else 'the message'} (during {phase})"
        why = ", ".join(part for part in ("" if code else text, f"at {where}" if where else "") if part)
        return CommandFailedError(what, phase=phase, details=details, why=why)
    if answer.get("what"):  # an error of this package
        error = DryRunError if phase == "start" else CommandFailedError  # at the start no script ran
        error = NoEngineError if kind == PlainTrainingError.__name__ else error
        return error(answer["what"], phase=phase, details=details, why=answer["why"], fix=answer["fix"])
    what = f"{kind}: {text}" if text and kind not in text else text or kind
    return CommandFailedError(
        f"the script failed (during {phase}): {what}",
        phase=phase,
        details=details,
        why=f"at {where}" if where else "",
        fix="it needs more host memory than is free here" if kind == "MemoryError" else "",
    )
