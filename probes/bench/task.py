"""What the processes of a benchmark are to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal["device", "host_link", "host_memory", "cpu_adam", "nvme", "collectives"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One group of figures."""

    group: Group
    device: Literal["cuda", "cpu"]
    ranks: int
    """Processes that measure at the same time."""
    threads: int
    """Threads that each of them has on the host."""
    budget_s: float
    """How long the measurements may take, beside starting the processes."""
    buffer_bytes: int
    """The largest buffer on the host; a group holds a few of them."""
    nvme_folder: str = ""
    """Where the NVMe group may write; it is removed afterwards."""
