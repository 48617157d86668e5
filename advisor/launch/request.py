"""What is to be launched, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...ds_configs.launch_commands import Launcher, Rendezvous
from ...estimators.estimate import Estimate
from ...estimators.hardware.cluster import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.workload import Framework, Workload
from ...probes.real_run.job import Device

Status = Literal["finished", "stopped", "failed"]
FailureKind = Literal[
    "gpu_out_of_memory",
    "host_out_of_memory",
    "communication_timeout",
    "disk_full",
    "nan_loss",
    "lost_rank",
    "not_resumed",
    "crash",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What every rank runs as `__main__`.

    target:    a path of a file, or the name of a module (`is_module`).
    arguments: as they stand on the command line, without those that pass the DeepSpeed configuration.
    """

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One training.

    config, config_path: the ds_config and its file. passes_config: hand the file to the script in its framework's way;
                 False where the script knows it.
    framework:   "hf" for the Trainer and accelerate, "deepspeed" for plain `deepspeed.initialize`.
    launcher:    what starts the ranks. rendezvous: how several nodes meet; None on one.
    cluster:     its `nodes` and `gpus_per_node` are the ranks; with device "cpu" the ranks of this machine.
    environment: variables for the ranks, over those that this process has.
    folder:      made for this launch: the ranks' output and records (`rank<R>.log`, `rank<R>.jsonl`), `launcher.log`.
    prediction:  shown beside what is measured, and kept with it; None where nothing was predicted.
    model:       None for one that is not known; then nothing goes into the store. model_name: for people.
    total_steps: optimizer steps in all, None where only the Trainer knows, which tells.
    resumes_after: the step of the checkpoint that the script is told to resume from, 0 for none; a first step that is
                 not beyond it ends the training at once.
    """

    script: Script
    config: Mapping[str, Any]
    config_path: Path
    framework: Framework
    launcher: Launcher
    cluster: Cluster
    folder: Path
    device: Device = "cuda"
    rendezvous: Rendezvous | None = None
    passes_config: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    prediction: Estimate | None = None
    model: ModelShape | None = None
    model_name: str = ""
    workload: Workload = field(default_factory=Workload)
    gradient_checkpointing: bool = True
    total_steps: int | None = None
    resumes_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a training ended, as the rank that failed first tells it.

    rank:     None where no single rank is to blame. step: the last one that it completed.
    message:  one line, the error's own words. evidence: what says that it is this kind: a counter, a signal, an
        exception.
    """

    kind: FailureKind
    rank: int | None
    step: int
    message: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The highest figures of any rank of this node while it ran; bytes, None where the device has no such counter.

    allocated_bytes, reserved_bytes: torch's. device_bytes: of a GPU, by the driver, all its processes together.
    host_bytes: resident memory of all ranks of this node together.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    host_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a training ended.

    status:     "stopped": by Ctrl-C or SIGTERM.
    last_step:  the last optimizer step that every rank of this node completed; 0 where DeepSpeed's engine was not seen.
    first_step_s: seconds from the start to the end of the first step. step_s: median of the later ones.
    losses:     (step, loss) as far as they were told. checkpoint: the newest that the Trainer saved.
    warnings:   what was said while it ran.
    """

    status: Status
    failure: Failure | None
    last_step: int
    peaks: Peaks
    seconds: float
    folder: Path
    first_step_s: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    losses: tuple[tuple[int, float], ...] = ()
    checkpoint: Path | None = None
    warnings: tuple[str, ...] = ()
