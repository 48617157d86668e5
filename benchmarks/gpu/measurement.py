"""One measurement, and its run in a process of its own that nothing outlives."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from .machine.checkout import ROOT
from .machine.place import Place
from .outcome import Outcome

_GRACE_S = 5.0
"""How much longer than its limit a process may take before it is ended from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What is to be measured, and how long that takes."""

    name: str
    kind: str
    """The module of `benchmarks.gpu.measure`."""
    arguments: Mapping[str, Any]
    about_s: float
    """What it usually takes: it is not begun when less is left."""
    limit_s: float
    """When it is given up."""


def measure(measurement: Measurement, place: Place, *, limit_s: float) -> Outcome:
    """The answer of the measurement's process; that it was ended, crashed or was killed is an answer too."""
    folder = Path(tempfile.mkdtemp(prefix="ds-advise-gpu-measure-"))
    try:
        job = {
            "kind": measurement.kind,
            "arguments": dict(measurement.arguments),
            "place": asdict(replace(place, limit_s=limit_s)),
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        search = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # for `benchmarks`
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu.measure", str(folder), str(os.getpid())],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                in_time = _ended(process, limit_s + _GRACE_S)
            finally:
                _end(process)
        if (folder / "answer.json").exists():
            answer: Outcome = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
            return answer
        return _without_answer(process.returncode, in_time, limit_s, folder / "output.txt")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(within_s)
        return True
    except subprocess.TimeoutExpired:
        return False


def _without_answer(exit_code: int, in_time: bool, limit_s: float, output: Path) -> Outcome:
    printed = output.read_text(encoding="utf-8", errors="replace")[-4000:]
    if not in_time:
        return {"outcome": "timed out", "value": {}, "reason": f"not done within {limit_s:.0f} s\n{printed}"}
    if exit_code == -signal.SIGKILL:
        ended = "it was killed, as the kernel does when the host's memory runs out"
        return {"outcome": "out of memory", "value": {}, "reason": f"{ended}\n{printed}"}
    return {"outcome": "failed", "value": {}, "reason": f"exit code {exit_code}\n{printed}"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started, in sessions of their own too."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
