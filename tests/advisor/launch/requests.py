"""Requests of launches on the CPU, their monitors, and events of ranks as files."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from ds_advise.advisor.launch.monitor import Monitor
from ds_advise.advisor.launch.records import Records
from ds_advise.advisor.launch.request import LaunchRequest
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.text.display import Display
from ds_advise.probes.run import Run
from rich.console import Console

from tests.helpers import launch_request


def write_events(tmp_path: Path, *ranks: list[dict[str, Any]]) -> Records:
    for number, lines in enumerate(ranks):
        start = {"rank": number, "pid": 0, "host": "elsewhere"}
        text = [json.dumps({"time": 0.0, **line}) for line in (start, *lines)]
        (tmp_path / f"rank{number}.jsonl").write_text("\n".join(text) + "\n")
    records = Records(tmp_path)
    records.read()
    return records


def step_event(number: int, time_s: float, loss: float = 1.0) -> dict[str, Any]:
    return {"step": number, "tokens": 100, "time": time_s, "loss": loss}


def cpu_run(ranks: int) -> Run:
    return Run(config={}, model={}, cluster=cpu_cluster(ranks))


def monitor_of(request: LaunchRequest, page: TextIO | None = None) -> Monitor:
    display = Display(Console(file=page or StringIO()), "training")
    return Monitor(request, display, os.getpid())


def request_of(tmp_path: Path, script: str, *arguments: str, ranks: int = 2, **changes: Any) -> LaunchRequest:
    (tmp_path / "train.py").write_text(script)
    return launch_request(cpu_run(ranks), tmp_path, *arguments, device="cpu", **changes)
