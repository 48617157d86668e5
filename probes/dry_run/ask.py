"""Runs the subprocess of dry runs: requests in; results or errors out."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...estimators.errors import DsAdviseError
from ...estimators.json_form import from_json
from ..recording.result import DryRunResult
from ..run import Request

_NEEDS_VALUES = ("DynamicOutputShapeException", "DataDependentOutputException", "GuardOnDataDependentSymNode")


class DryRunError(DsAdviseError):
    """A failed dry run. details: the traceback or the output."""

    def __init__(self, what: str, *, phase: str, details: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what, why=why, fix=fix)
        self.phase = phase
        self.details = details


class NeedsValuesError(DryRunError):
    """A model whose control flow or shapes depend on values: only a probe can run it."""


def ask(requests: Sequence[Request], timeout_s: float) -> list[DryRunResult]:
    """The results of all requests. Raises the first DryRunError."""
    answers = []
    for answer in ask_each(requests, timeout_s):
        if isinstance(answer, DryRunError):
            raise answer
        answers.append(answer)
    return answers


def ask_each(requests: Sequence[Request], timeout_s: float) -> list[DryRunResult | DryRunError]:
    """The result or error of each request; they run in parallel, in forks of one process that imports torch once.

    Raises DryRunError where the process does not end in time. No process outlives the call.
    """
    with tempfile.TemporaryDirectory(prefix="ds-advise-") as name:
        folder = Path(name)
        with (folder / "output").open("w+", encoding="utf-8", errors="replace") as output:
            status = _run_worker(requests, folder, output, timeout_s)
            output.seek(max(0, output.seek(0, os.SEEK_END) - 100_000))
            printed = output.read()
        return [_outcome(folder, index, status, printed) for index in range(len(requests))]


def _outcome(folder: Path, index: int, status: int, printed: str) -> DryRunResult | DryRunError:
    answer = folder / f"answer-{index}.json"
    if not answer.exists():
        return _died(
            int(_text(folder / f"status-{index}") or status), _text(folder / f"phase-{index}") or "start", printed
        )
    values = json.loads(answer.read_text())
    return _error(values) if "error" in values else from_json(DryRunResult, values["result"])


def _run_worker(requests: Sequence[Request], folder: Path, output: Any, timeout_s: float) -> int:
    """Run `worker.py`; returns its exit status, negative for a signal."""
    worker = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.worker", str(folder)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        cwd=folder,
        start_new_session=True,  # so that its forks end with it
        # PYTHONUTF8: some libraries read their own files in the encoding of the locale
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1"},
    )
    try:
        worker.communicate(pickle.dumps(list(requests)), timeout=timeout_s)
        return worker.returncode
    except subprocess.TimeoutExpired:
        raise DryRunError(
            f"the dry run did not end within {timeout_s:.0f} s", phase=_text(folder / "phase-0") or "start"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _died(status: int, phase: str, printed: str) -> DryRunError:
    """The error of a process that ended without an answer."""
    if status < 0:
        name = signal.Signals(-status).name
        if name == "SIGKILL":
            return DryRunError(
                f"the dry run was killed (SIGKILL, during {phase})",
                phase=phase,
                details=printed,
                why="the system kills a process when the memory of the machine runs out",
                fix="free memory, or use fewer --iterations",
            )
        what = f"the dry run crashed ({name}, during {phase})"
    else:
        what = f"the dry run ended without an answer (exit code {status}, during {phase})"
    return DryRunError(
        what, phase=phase, details=printed, why=_last_line(printed), fix="report it with the output of --debug"
    )


def _last_line(printed: str) -> str:
    return next((line.strip() for line in reversed(printed.splitlines()) if line.strip()), "")


def _error(answer: dict[str, str]) -> DryRunError:
    """The error for the subprocess's exception, with its original message and a fix."""
    kind, phase, where = answer["kind"], answer["phase"], answer["where"]
    text = " ".join(line.strip() for line in answer["error"].splitlines() if "errors.pydantic.dev" not in line)
    why = f"raised at {where}" if where else ""
    fix = answer["fix"]
    if kind in _NEEDS_VALUES:
        text = f"{where or 'the model'} needs real values: {text}"
        why = "a dry run has shapes, not values"
        fix = (
            "avoid shapes that depend on values (a mask instead of an index), or probe it: ds-advise probe, with "
            "--device cpu without a GPU; ds-advise launch has --no-check"
        )
    elif kind == "MemoryError":
        text = "this machine is out of memory"
        fix = "free memory, or use fewer --iterations"
    elif answer["package"] == "deepspeed" and phase in ("load", "initialize"):
        why = "DeepSpeed rejects this configuration"
        fix = "correct the setting in its message"
    elif where or not text:
        text = f"{kind}: {text}" if text else kind
    chosen = NeedsValuesError if kind in _NEEDS_VALUES else DryRunError
    return chosen(f"{text} (during {phase})", phase=phase, details=answer["traceback"], why=why, fix=fix)
