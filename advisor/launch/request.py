"""What is to be launched, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...ds_configs.launch_commands import Launcher, Rendezvous
from ...estimators.estimate import Estimate
from ...probes.real_run.job import Device
from ...probes.run import Run

LaunchStatus = Literal["finished", "stopped", "failed"]
"""How a training ended; "stopped": by Ctrl-C or SIGTERM."""

FailureKind = Literal[
    "gpu_out_of_memory",
    "host_out_of_memory",
    "communication_timeout",
    "disk_full",
    "nan_loss",
    "lost_rank",
    "not_resumed",
    "hang",
    "crash",
]

FAILURE_TITLES: dict[FailureKind, str] = {
    "gpu_out_of_memory": "The GPU's memory ran out",
    "host_out_of_memory": "The host's memory ran out",
    "communication_timeout": "The ranks waited for each other in vain",
    "disk_full": "The disk is full",
    "nan_loss": "The loss is not a number",
    "lost_rank": "A rank was lost",
    "not_resumed": "It did not resume",
    "hang": "Nothing moved any more",
    "crash": "The script failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What every rank runs as `__main__`."""

    target: str
    """The path of a file, or the name of a module."""
    arguments: tuple[str, ...] = ()
    """As they stand on the command line, without those that pass the DeepSpeed configuration."""
    is_module: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One training."""

    script: Script
    run: Run
    """Its cluster's `nodes` and `gpus_per_node` are the ranks. With an empty `model` nothing is known of the model."""
    config_path: Path
    launcher: Launcher
    folder: Path
    """Made for this launch: the ranks' output and records (`rank<R>.log`, `rank<R>.jsonl`) and `launcher.log`."""
    device: Device = "cuda"
    rendezvous: Rendezvous | None = None
    """How several nodes meet; None on one."""
    passes_config: bool = True
    """Whether the file is handed to the script in its framework's way; False where the script knows it."""
    config_flag: bool = True
    """Whether a plain script's parser knows `--deepspeed` beside `--deepspeed_config`."""
    prediction: Estimate | None = None
    """What is shown beside the measured figures and kept with them; None where nothing was predicted."""
    total_steps: int | None = None
    """Optimizer steps in all; None where only the Trainer knows, whose callback then reports it."""
    resumes_after: int = 0
    """Step of the checkpoint that the script is to resume from, 0 for none. A first step that is not beyond it ends the
    training at once."""

    stall_s: float | None = None
    """Seconds without a step and without a line from any rank after which the training is ended; None: never."""

    @property
    def predicted_host_bytes(self) -> int | None:
        """Memory of all ranks of a node while it trains. None on the CPU, where the processes are without CUDA's
        libraries and smaller than those that the closed form knows."""
        if self.prediction is None or self.device == "cpu":
            return None
        return self.prediction.memory.host_training_bytes_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFailure:
    """Why a training ended, by the rank that failed first."""

    kind: FailureKind
    rank: int | None
    """None where no single rank is to blame."""
    step: int
    """The last step that was completed."""
    message: str
    """One line, the error's own words."""
    evidence: tuple[str, ...] = ()
    """What shows that it is this kind: a counter, a signal, an exception."""

    @property
    def is_out_of_memory(self) -> bool:
        return self.kind in ("gpu_out_of_memory", "host_out_of_memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The highest figures of any rank of this node while it ran; None where the device has no such counter."""

    allocated_bytes: int | None = None
    """By torch's allocator, as `reserved_bytes`."""
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    """Of one GPU, by the driver: all its processes together."""
    host_bytes: int = 0
    """Resident memory of all ranks of this node together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOutcome:
    """How a training ended."""

    status: LaunchStatus
    failure: TrainingFailure | None
    last_step: int
    """The last optimizer step that every rank of this node completed; 0 where DeepSpeed's engine was not seen."""
    peaks: Peaks
    seconds: float
    folder: Path
    first_step_s: float | None = None
    """From the start to the end of the first step."""
    step_s: float | None = None
    """Median of the later steps."""
    tokens_per_step: float | None = None
    """Median of the later steps, of the whole job: every position of a batch is a token, padding too."""
    tokens_per_s: float | None = None
    """`tokens_per_step` / `step_s`."""
    losses: tuple[tuple[int, float], ...] = ()
    """(step, loss), as far as the ranks reported them."""
    differences: tuple[str, ...] = ()
    """Where the engine was seen to train by another plan than the one that was checked and predicted."""
    checkpoint: Path | None = None
    """The newest that the Trainer saved."""
    warnings: tuple[str, ...] = ()
    """What was warned of while it ran."""
