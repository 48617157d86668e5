"""What a probe answers: every rank's memory and time, or why there is none."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from ..rank_processes.failure import RankFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step, all its micro batches together."""

    total_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    """The engine's three calls; they and little else make up `total_s`."""
    waiting_s: float | None
    """How long the rank was blocked in collectives (transfer and waiting for slower ranks); None where the device waits
    and not the process (CUDA)."""
    optimizer_waiting_s: float | None = None
    """The part of `waiting_s` in the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank's measured memory and time; None where the device has no such counter."""

    rank: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    """Both are torch.cuda's peaks over the training steps."""
    device_bytes: int | None
    """What the driver says this process holds on the GPU at the end (NVML)."""
    host_baseline_bytes: int
    """Resident memory once the libraries and the model's class are loaded, before the model."""
    host_loading_peak_bytes: int
    """The highest resident memory until the engine stands."""
    host_peak_bytes: int
    """The highest resident memory while training."""
    host_pinned_bytes: int | None
    """Page-locked memory that torch's allocator holds."""
    nvme_bytes: int
    """Files of the swappers at the end."""
    nvme_read_bytes: int
    nvme_written_bytes: int
    """By the process as a whole, while training."""
    steps: tuple[StepTime, ...]
    """The optimizer steps after the first, which creates the optimizer's states."""
    losses: tuple[float, ...]

    @property
    def step_s(self) -> float:
        return median(step.total_s for step in self.steps)

    @property
    def host_tensor_bytes(self) -> int:
        """What training added to the libraries; on the CPU device the rank's tensors, GPU's and host's together."""
        return self.host_peak_bytes - self.host_baseline_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """A probe that ran, or failed; either is an answer."""

    world_size: int
    device: str
    solo: bool
    tokens_per_step: int
    ranks: tuple[RankReport, ...]
    failure: RankFailure | None
    versions: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)
    """The configuration as DeepSpeed got it, `auto` filled; empty after a failure."""
    seconds: float = 0.0
    load: float = 0.0
    """Processes that wanted a core in the minute before, on average: more than a few make the times too long."""

    @property
    def step_s(self) -> float:
        """A step of the slowest rank."""
        assert self.ranks, "a failed probe has no times"
        return max(report.step_s for report in self.ranks)

    @property
    def tokens_per_s(self) -> float:
        """The speed of the whole job; without communication when `solo`."""
        return self.tokens_per_step / self.step_s

    def highest(self, name: str) -> int | None:
        """The highest of a rank's figures, None where the device has no such counter."""
        values = [getattr(report, name) for report in self.ranks]
        return max(values) if values and None not in values else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def from_json(values: dict[str, Any]) -> ProbeResult:
    """The result that `to_json` wrote. By hand: answers read stored probes and have no time to import pydantic."""
    failure, ranks = values["failure"], tuple(rank_report(report) for report in values["ranks"])
    return ProbeResult(**values | {"ranks": ranks, "failure": None if failure is None else RankFailure(**failure)})


def rank_report(values: dict[str, Any]) -> RankReport:
    """The report that a rank wrote as JSON."""
    steps = tuple(StepTime(**step) for step in values["steps"])
    return RankReport(**values | {"steps": steps, "losses": tuple(values["losses"])})
