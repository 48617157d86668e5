"""What the processes of a benchmark are asked to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Group = Literal["device", "host_link", "host_memory", "cpu_adam", "nvme", "collectives"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One group of figures.

    ranks:        processes that measure at the same time. threads: of each of them on the host.
    budget_s:     how long the measurements may take, beside starting the processes.
    buffer_bytes: the largest buffer on the host; a group holds a few of them.
    nvme_folder:  where the NVMe group may write; it is removed afterwards.
    """

    group: Group
    device: Literal["cuda", "cpu"]
    ranks: int
    threads: int
    budget_s: float
    buffer_bytes: int
    nvme_folder: str = ""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_task(path: Path) -> Task:
    """The task that `write` wrote."""
    return Task(**json.loads(path.read_text(encoding="utf-8")))
