"""What the ranks of a probe are to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from ..recording.request import Request

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJob:
    """One probe, the same for all ranks."""

    request: Request
    """Configuration, model, workload; `request.rank` is the rank that runs alone when `solo`."""
    device: Device
    """ "cuda", or DeepSpeed's CPU accelerator over gloo."""
    solo: bool
    """One process is one rank of `request.world_size`; the others do not exist, and what they would send is junk."""
    checkpoint: str | None
    """Folder of a local checkpoint in safetensors; None: random weights."""
    memory_limit_bytes: int | None
    """What each rank may allocate beyond its libraries, on the CPU; None: all there is."""
    nvme_folder: str
    """Where the swappers write; "" when nothing is offloaded to NVMe."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that run as processes here."""
        return (self.request.rank,) if self.solo else tuple(range(self.request.world_size))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def read_job(path: Path) -> ProbeJob:
    """The job that `write` wrote."""
    from pydantic import TypeAdapter

    return TypeAdapter(ProbeJob).validate_json(path.read_text())


def of_rank(job: ProbeJob, rank: int) -> Request:
    """The request as one rank sees it."""
    return replace(job.request, rank=rank)
