"""The result of a probe: every rank's memory and time, or its failure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

RankFailureKind = Literal["out_of_memory", "crash", "hang", "stopped", "killed", "timeout", "disk_full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """The failure of the rank that failed first."""

    kind: RankFailureKind
    rank: int
    phase: str
    """The phase of the rank."""
    message: str
    """The error in one line."""
    details: str = ""
    """Its traceback, or the end of the rank's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step, summed over its micro batches."""

    total_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    """The three calls of the engine, which are nearly all of `total_s`."""
    waiting_s: float | None
    """Time blocked in collectives (transfer and waiting for slower ranks); None where the device waits instead of the
    process (CUDA)."""
    optimizer_waiting_s: float | None = None
    """The part of `waiting_s` in the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank's measured memory and time; None where the device has no such counter."""

    rank: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    """Peaks of torch.cuda over the training steps."""
    device_bytes: int | None
    """GPU memory of this process at the end, by the driver (NVML)."""
    host_baseline_bytes: int
    """Resident memory after the libraries and the model's class are loaded, before the model."""
    host_loading_peak_bytes: int
    """Peak resident memory until the engine is initialized."""
    host_peak_bytes: int
    """Peak resident memory during training."""
    host_pinned_bytes: int | None
    """Page-locked memory of torch's allocator."""
    nvme_bytes: int
    """Size of the swap files at the end."""
    nvme_read_bytes: int
    nvme_written_bytes: int
    """By the whole process, during training."""
    steps: tuple[StepTime, ...]
    """The optimizer steps without the first, which creates the optimizer's states."""
    losses: tuple[float, ...]

    @property
    def step_s(self) -> float:
        return median(step.total_s for step in self.steps)

    @property
    def host_tensor_bytes(self) -> int:
        """Memory that training added; on the CPU device it includes the tensors of the GPU."""
        return self.host_peak_bytes - self.host_baseline_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """A probe that succeeded or failed."""

    world_size: int
    device: str
    solo: bool
    tokens_per_step: int
    ranks: tuple[RankReport, ...]
    failure: RankFailure | None
    versions: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)
    """The configuration of DeepSpeed, without `auto`; empty after a failure."""
    seconds: float = 0.0
    load: float = 0.0
    """Load average of the minute before the probe; other busy processes make the times too long."""

    @property
    def step_s(self) -> float:
        """A step of the slowest rank."""
        assert self.ranks, "a failed probe has no times"
        return max(report.step_s for report in self.ranks)

    @property
    def tokens_per_s(self) -> float:
        """Speed of the job; without communication when `solo`."""
        return self.tokens_per_step / self.step_s

    def highest(self, name: str) -> int | None:
        """The maximum of a figure over the ranks, None where the device has no such counter."""
        values = [getattr(report, name) for report in self.ranks]
        return max(values) if values and None not in values else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
