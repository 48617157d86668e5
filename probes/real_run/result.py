"""The result of a probe: every rank's memory and time, or its failure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

RankFailureKind = Literal["out_of_memory", "crash", "hang", "stopped", "killed", "timeout", "disk_full", "no_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """The failure of the rank that failed first."""

    kind: RankFailureKind
    rank: int
    phase: str
    """The rank's phase."""
    message: str
    """The error in one line."""
    details: str = ""
    """The traceback, or the end of the rank's output."""
    fix: str = ""
    """The change that avoids the failure; "" if it is not known."""

    @property
    def when(self) -> str:
        """`during load`, `after step 2`."""
        return self.phase if self.phase.startswith("after ") else f"during {self.phase}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step, summed over its micro batches."""

    total_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    """This and the two previous fields: the engine's calls, nearly all of `total_s`."""
    waiting_s: float | None
    """Time blocked in collectives (transfer and waiting for slower ranks); None if the device waits instead of the
    process (CUDA)."""
    optimizer_waiting_s: float | None = None
    """The part of `waiting_s` in the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport:
    """One phase of an optimizer step on one rank; of step 0 before the first one."""

    iteration: int
    phase: str
    seconds: float
    """Summed over the micro batches."""
    waiting_s: float = 0.0
    """The part that collectives block the process; 0 on a GPU, where the device waits."""
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    """This and the previous field: peaks of torch.cuda; 0 on the CPU."""
    host_bytes: int = 0
    """Peak resident memory of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank's measured memory and time; None if the device has no such counter."""

    rank: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    """This and the previous field: peaks of torch.cuda over the training steps."""
    device_bytes: int | None
    """GPU memory of this process at the end, according to the driver (NVML)."""
    host_baseline_bytes: int
    """Resident memory after loading the libraries and the model's class, before the model is built."""
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
    """Bytes that the whole process wrote during training."""
    steps: tuple[StepTime, ...]
    """The optimizer steps except the first, which creates the optimizer's states."""
    losses: tuple[float, ...]
    phases: tuple[PhaseReport, ...] = ()

    @property
    def step_s(self) -> float:
        return median(step.total_s for step in self.steps)

    def phases_named(self, name: str) -> tuple[PhaseReport, ...]:
        """The phases of a kind from the second optimizer step on; those of the first where it is the only one."""
        found = tuple(phase for phase in self.phases if phase.phase == name and phase.iteration)
        return found[1:] or found

    @property
    def host_tensor_bytes(self) -> int:
        """Memory added by training; on the CPU device it includes tensors that a GPU would hold."""
        return self.host_peak_bytes - self.host_baseline_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """A successful or failed probe."""

    world_size: int
    device: str
    solo: bool
    tokens_per_step: int
    """Of all ranks; samples where the batch has no tokens."""
    ranks: tuple[RankReport, ...]
    failure: RankFailure | None
    versions: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)
    """DeepSpeed's configuration, without `auto`; empty after a failure."""
    seconds: float = 0.0
    load: float = 0.0
    """Load average of the minute before the probe; other busy processes increase the times."""
    device_peak_bytes: int | None = None
    """Peak memory of all processes on the fullest GPU; None without a GPU."""
    host_peak_bytes: int | None = None
    """Peak anonymous and shared memory of all processes of the probe; None in one of an earlier version."""
    unit: Literal["tokens", "samples"] = "tokens"
    """What `tokens_per_step` counts."""

    @property
    def slowest(self) -> RankReport:
        """The rank with the longest step."""
        assert self.ranks, "a failed probe has no times"
        return max(self.ranks, key=lambda report: report.step_s)

    @property
    def step_s(self) -> float:
        """The time of a step on the slowest rank, in seconds."""
        return self.slowest.step_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the job; without communication if `solo`."""
        return self.tokens_per_step / self.step_s

    def highest(self, name: str) -> int | None:
        """The maximum of a figure over the ranks; None if the device has no such counter."""
        values = [getattr(report, name) for report in self.ranks]
        return max(values) if values and None not in values else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
