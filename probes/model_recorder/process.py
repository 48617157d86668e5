"""Recordings in a subprocess, which reads a pickled request from stdin and writes its answer as JSON into a folder."""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, Protocol

from ...estimators.json_form import to_json
from ..run_errors import DryRunError, crash_error, package_of, users_line, worker_error
from ..worker_process import WorkerTimeoutError, read_phase, run_worker, worker_environment


class Answering(Protocol):
    """A request that computes its own answer in the subprocess; it is pickled."""

    def answer(self) -> Any: ...


def answer(request: Answering, timeout_s: float) -> dict[str, Any]:
    """The result of a request in JSON, from a subprocess.

    Raises DryRunError if the request fails or the process exceeds the time limit. No process outlives the call.
    """
    with tempfile.TemporaryDirectory(prefix="ds-advise-") as name:
        folder = Path(name)
        try:
            status, printed = run_worker(
                [sys.executable, "-m", f"{__package__}.process", str(folder)],
                request=pickle.dumps(request),
                folder=folder,
                environment=worker_environment(),
                working_folder=folder,
                timeout_s=timeout_s,
                on_progress=lambda _phase: None,
            )
        except WorkerTimeoutError as error:
            what = f"the recording did not end within {timeout_s:.0f} s"
            raise DryRunError(what, phase=error.phase, details=error.printed) from None
        written = folder / "answer.json"
        if not written.exists():
            raise crash_error(status, read_phase(folder), printed)
        values: dict[str, Any] = json.loads(written.read_text())
    if "error" in values:
        raise worker_error(values)
    result: dict[str, Any] = values["result"]
    return result


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["DS_ACCELERATOR"] = "cpu"  # no search for vendors' libraries
    gc.disable()  # imported modules are no garbage
    answer = run_request(pickle.load(sys.stdin.buffer))
    (folder / "answer.json").write_text(json.dumps(answer))
    # `os._exit` does not flush.
    sys.stdout.flush()
    os._exit(0)


def run_request(request: Answering) -> dict[str, Any]:
    """{"result": ...}, or {"error": message, "kind": exception class, "phase", "where": line of the user's code,
    "package": origin of the exception, "fix", "traceback"}."""
    try:
        return {"result": to_json(request.answer())}
    except Exception as error:
        return {
            "error": str(error),
            "kind": type(error).__name__,
            "phase": "",
            "where": users_line(traceback.extract_tb(error.__traceback__)),
            "package": package_of(error),
            "fix": getattr(error, "fix", ""),
            "traceback": traceback.format_exc(),
        }


if __name__ == "__main__":
    main()
