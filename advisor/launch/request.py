"""What is launched, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...ds_configs.launch_commands import Launcher, Rendezvous
from ...estimators.estimate import Estimate
from ...estimators.phrase import phrase
from ...probes.run import Device, Run
from .script_source import Script

LaunchStatus = Literal["finished", "stopped", "failed"]
"""How a training ended; "stopped": by Ctrl-C or SIGTERM."""

FailureKind = Literal[
    "gpu_out_of_memory",
    "host_out_of_memory",
    "communication_timeout",
    "disk_full",
    "nan_loss",
    "lost_rank",
    "fewer_ranks",
    "not_resumed",
    "hang",
    "crash",
]

FAILURE_TITLES: dict[FailureKind, str] = {
    "gpu_out_of_memory": phrase("The GPU's memory ran out"),
    "host_out_of_memory": phrase("The host's memory ran out"),
    "communication_timeout": phrase("A collective operation timed out"),
    "disk_full": phrase("The disk is full"),
    "nan_loss": phrase("The loss is NaN"),
    "lost_rank": phrase("A rank was lost"),
    "fewer_ranks": phrase("The ranks do not train together"),
    "not_resumed": phrase("The script did not resume"),
    "hang": phrase("The ranks made no progress"),
    "crash": phrase("The script failed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One training to launch."""

    script: Script
    run: Run
    """Its cluster's `nodes` and `gpus_per_node` are the ranks. An empty `model`: the model is unknown."""
    config_path: Path
    launcher: Launcher
    folder: Path
    """Folder of this launch alone, with `rank<R>.log`, `rank<R>.jsonl` and `launcher.log`."""
    device: Device = "cuda"
    rendezvous: Rendezvous | None = None
    """None on one node."""
    passes_config: bool = True
    """Whether the configuration file is passed to the script; False if the script names it itself."""
    by_variables: bool = False
    """Whether accelerate's variables pass it: the script takes it from accelerate's launcher, and another starts it."""
    prediction: Estimate | None = None
    other_loss: str | None = None
    """The script's Trainer where its loss and its further models are not predicted, such as "DPOTrainer"."""
    total_steps: int | None = None
    """Optimizer steps of the whole training; None: the Trainer's callback reports them."""
    fallbacks: int = 0
    """Plans of this training that have run out of memory before."""
    resumes_after: int = 0
    """Step of the checkpoint to resume from, 0 for none. A first step that is not beyond it ends the training."""
    stall_s: float | None = None
    """Seconds without a step and without output after which the training is ended; None: never."""

    @property
    def predicted_host_bytes(self) -> int | None:
        """Memory of a node's ranks while they train."""
        return None if self.prediction is None else self.prediction.memory.host_training_bytes_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFailure:
    """Why a training ended, by the rank that failed first."""

    kind: FailureKind
    rank: int | None
    """None if no single rank is to blame."""
    step: int
    """The last step that was completed."""
    message: str
    """The error message in one line."""
    evidence: tuple[str, ...] = ()
    """What shows that it is this kind: a counter, a signal, an exception."""
    fix: str = ""
    """What to change; "" if the next plan is all that is known."""

    @property
    def is_out_of_memory(self) -> bool:
        return self.kind in ("gpu_out_of_memory", "host_out_of_memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The highest figures of any rank of this node; None if the device has no such counter."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    """Memory of all processes on one GPU, as the driver shows it."""
    host_bytes: int = 0
    """Resident memory of all ranks of this node together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOutcome:
    """How a launched training ended."""

    status: LaunchStatus
    failure: TrainingFailure | None
    last_step: int
    """The last optimizer step that every rank of this node completed; 0 if DeepSpeed's engine was not seen."""
    peaks: Peaks
    seconds: float
    folder: Path
    """The ranks' output and records."""
    launcher: Launcher = "torchrun"
    config: Path = Path()
    """The DeepSpeed configuration's file."""
    first_step_s: float | None = None
    """From the start to the end of the first step."""
    step_s: float | None = None
    """Median of the later steps."""
    tokens_per_step: float | None = None
    """Median of the later steps, of the whole job: every position of a batch is a token, padding too."""
    tokens_per_s: float | None = None
    """`tokens_per_step` / `step_s`."""
    losses: tuple[tuple[int, float | None], ...] = ()
    """(step, loss), as far as the ranks reported them; null: it was not a number."""
    differences: tuple[str, ...] = ()
    """Engine settings that differ from the plan that was checked and predicted."""
    checkpoint: Path | None = None
    """The newest that the Trainer saved."""
    warnings: tuple[str, ...] = ()
    """Warnings printed during the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One launch: what was started and how it ended."""

    request: LaunchRequest
    outcome: LaunchOutcome
