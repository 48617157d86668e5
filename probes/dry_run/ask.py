"""The subprocess seen from outside: requests go in; answers, or the true error, come out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...estimators.errors import DsAdviseError
from ..recording.result import DryRunResult, from_json
from ..run import Request

_NEEDS_VALUES = ("DynamicOutputShapeException", "DataDependentOutputException", "GuardOnDataDependentSymNode")


class DryRunError(DsAdviseError):
    """A dry run that ended without an answer; `phase` says where, `details` holds the traceback."""

    def __init__(self, what: str, *, phase: str, details: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what, why=why, fix=fix)
        self.phase, self.details = phase, details


class NeedsValuesError(DryRunError):
    """A model whose control flow or shapes depend on values: no dry run can know it, a probe can."""


def ask(requests: Sequence[Request], timeout_s: float) -> list[DryRunResult]:
    """The answers to all requests. Raises DryRunError for the first that has none."""
    answers = []
    for answer in ask_each(requests, timeout_s):
        if isinstance(answer, DryRunError):
            raise answer
        answers.append(answer)
    return answers


def ask_each(requests: Sequence[Request], timeout_s: float) -> list[DryRunResult | DryRunError]:
    """What became of each request; they run side by side, in forks of one process that imports torch and DeepSpeed
    once.

    Raises DryRunError where that process does not end in time. No process outlives the call.
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
    return _error(values) if "error" in values else from_json(values["result"])


def _run_worker(requests: Sequence[Request], folder: Path, output: Any, timeout_s: float) -> int:
    """Run `worker.py` to its end; its exit status, negative for a signal, as subprocess has it."""
    worker = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.worker", str(folder)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        text=True,
        cwd=folder,
        start_new_session=True,  # so that its forks can be ended with it
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1"},
    )  # some libraries read their own files in the locale's encoding
    try:
        worker.communicate(json.dumps([asdict(request) for request in requests]), timeout=timeout_s)
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
    """A process that ended without writing an answer: by a signal, or by an exit of its own."""
    if status < 0:
        name = signal.Signals(-status).name
        if name == "SIGKILL":
            return DryRunError(
                f"the dry run was killed (SIGKILL, during {phase})",
                phase=phase,
                details=printed,
                why="the system does that to a process when this machine's memory runs out",
                fix="free memory, or ask for fewer --iterations",
            )
        what = f"the dry run crashed ({name}, during {phase})"
    else:
        what = f"the dry run ended without an answer (exit code {status}, during {phase})"
    return DryRunError(
        what, phase=phase, details=printed, why=_last_line(printed), fix="report it with what --debug shows"
    )


def _last_line(printed: str) -> str:
    return next((line.strip() for line in reversed(printed.splitlines()) if line.strip()), "")


def _error(answer: dict[str, str]) -> DryRunError:
    """The subprocess's exception, in the words of its origin, with what can be done about it."""
    kind, phase, where = answer["kind"], answer["phase"], answer["where"]
    text = " ".join(line.strip() for line in answer["error"].splitlines() if "errors.pydantic.dev" not in line)
    why, fix = f"raised at {where}" if where else "", answer["fix"]
    if kind in _NEEDS_VALUES:
        text = f"{where or 'the model'} needs real values: {text}"
        why = "a dry run knows shapes, not values"
        fix = (
            "write it without shapes that depend on values (a mask instead of an index), or run it for real: "
            "ds-advise probe, with --device cpu where there is no GPU; ds-advise launch takes --no-check"
        )
    elif kind == "MemoryError":
        text, fix = "this machine's memory is used up", "free memory, or ask for fewer --iterations"
    elif answer["package"] == "deepspeed" and phase in ("load", "initialize"):
        why, fix = "DeepSpeed rejects this configuration", "correct what its message names"
    elif where or not text:
        text = f"{kind}: {text}" if text else kind
    chosen = NeedsValuesError if kind in _NEEDS_VALUES else DryRunError
    return chosen(f"{text} (during {phase})", phase=phase, details=answer["traceback"], why=why, fix=fix)
