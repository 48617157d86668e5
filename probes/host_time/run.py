"""`host_times`: measure cases in a subprocess of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ...estimators.errors import DsAdviseError
from ..scratch import scratch
from .case import HostTimeCase
from .result import HostTime


class HostTimeError(DsAdviseError):
    """A case could not be run; the message is torch's, transformers' or DeepSpeed's."""


def host_times(cases: Sequence[HostTimeCase], *, steps: int = 7, timeout_s: float = 1200.0) -> list[HostTime]:
    """Host seconds of a micro batch's passes under the installed DeepSpeed's real engine.

    One process pretends to be rank 0 of `world_size`: collectives return at once (torch's fake process group), and
    widths are too small for arithmetic to take time, so what is left is Python, dispatch, autograd and DeepSpeed's
    hooks. Seconds are those in which the process had a core, so other programs on the machine change little.

    Not covered: what CUDA adds (launches, streams, events, NCCL's enqueue); the input pipeline and the Trainer's own
    bookkeeping; NVMe.

    Raises HostTimeError with the original message where a case cannot be run.
    """
    with scratch("host_time") as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TRANSFORMERS_VERBOSITY": "error"}
        process = subprocess.run(
            [sys.executable, "-m", f"{__package__}.worker", str(folder)],
            input=json.dumps([[asdict(case) for case in cases], steps]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
        return [_read(folder, index, process.stderr) for index in range(len(cases))]


def _read(folder: Path, index: int, printed: str) -> HostTime:
    file = folder / f"answer-{index}.json"
    answer = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"error": printed[-500:]}
    if "error" in answer:
        raise HostTimeError(answer["error"], why=answer.get("traceback", "")[-1500:])
    return HostTime.from_json(answer)
