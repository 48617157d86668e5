"""The request and the outcome of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...ds_configs.launch_commands import Launcher, Rendezvous
from ...estimators.estimate import Estimate
from ...probes.command.training_command import TrainingCommand, read_command
from ...probes.command.words import script_in
from ...probes.run import Device, Run
from ..answer.command_answer import CommandAnswer
from ..importers.script_arguments import ScriptArguments
from ..verification.prediction import PhaseFigures, Prediction, by_dry_run, by_estimate

LaunchStatus = Literal["finished", "stopped", "failed"]
"""How a training ended; "stopped" means by Ctrl-C or SIGTERM."""

FailureKind = Literal[
    "gpu_out_of_memory",
    "host_out_of_memory",
    "communication_timeout",
    "disk_full",
    "nan_loss",
    "lost_rank",
    "ended_early",
    "fewer_ranks",
    "not_resumed",
    "hang",
    "crash",
]

FAILURE_TITLES: dict[FailureKind, str] = {
    "gpu_out_of_memory": "The GPU's memory ran out",
    "host_out_of_memory": "The host's memory ran out",
    "communication_timeout": "A collective operation timed out",
    "disk_full": "The disk is full",
    "nan_loss": "The loss is NaN",
    "lost_rank": "A rank was lost",
    "ended_early": "A rank ended early",
    "fewer_ranks": "The ranks do not train together",
    "not_resumed": "The script did not resume",
    "hang": "The ranks made no progress",
    "crash": "The script failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One training to launch."""

    words: tuple[str, ...]
    """The command that trains: with a launcher in front, or a Python script or module with its arguments."""
    is_users: bool = True
    """Whether the user typed the command, which is not so for the script of `train`."""
    run: Run
    """The run; `nodes` and `gpus_per_node` of its cluster are the ranks. An empty `model` means an unknown model."""
    config_path: Path | None
    """A DeepSpeed configuration for a command that names none."""
    is_config_given: bool = True
    """Whether the user named it. If not, it is that of the folder, and a command with another one is right."""
    folder: Path
    """Folder of this launch, with `rank<R>.log`, `rank<R>.jsonl` and `launcher.log`."""
    is_folder_given: bool = True
    """Whether the user named it. If not, it is named by the time, and numbered if another launch has that name."""
    requested_launcher: Launcher | None = None
    """The launcher that the user requests for a command without one."""
    device: Device = "cuda"
    rendezvous: Rendezvous | None = None
    """The rendezvous of several nodes; None on one node, and for a command with a launcher."""
    dry_run: CommandAnswer | None = None
    """A dry run of the command, as it was before a fallback changed it."""
    estimate: Estimate | None = None
    """The closed form of the run."""
    offline: bool = False
    fallbacks: int = 0
    """Number of earlier plans of this training that ran out of memory."""
    resumes_after: int = 0
    """Step of the checkpoint to resume from, 0 for none. The training is ended if its first step is not after this
    one."""
    stall_s: float | None = None
    """Seconds without a step and without output after which the training is ended; None for no limit."""

    @property
    def command(self) -> TrainingCommand:
        return read_command(self.words)

    @property
    def target(self) -> str:
        """The name of what is trained by: the script, or the tool that starts it."""
        command = self.command
        if command.program is not None:
            return command.program.target
        return script_in(command.words) or command.words[0]

    @property
    def options(self) -> ScriptArguments:
        """The command line of the script."""
        return ScriptArguments(self.command.arguments)

    @property
    def launcher(self) -> Launcher:
        """The launcher for a command without one: torchrun, or deepspeed for a script of its own loop that was seen to
        take `--local_rank`, which only that launcher passes."""
        takes_rank = self.dry_run is not None and self.dry_run.arguments.takes_local_rank
        return self.requested_launcher or ("deepspeed" if takes_rank and self.rendezvous is None else "torchrun")

    @property
    def arguments(self) -> ScriptArguments:
        """The settings of the script: its TrainingArguments if a dry run saw them, else its command line."""
        seen = self.dry_run and self.dry_run.arguments
        return ScriptArguments.from_values(seen.trainer) if seen and seen.trainer else self.options

    @property
    def prediction(self) -> Prediction | None:
        if self.dry_run is not None and not self.fallbacks:
            return by_dry_run(self.dry_run)
        return None if self.estimate is None else by_estimate(self.estimate, self.run.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFailure:
    """Failure of a training, by the rank that failed first."""

    kind: FailureKind
    rank: int | None
    """The rank that failed first; None if no single rank is the cause."""
    step: int
    """The last completed step."""
    message: str
    """The error message in one line."""
    evidence: tuple[str, ...] = ()
    """Evidence for the kind of failure: a counter, a signal, an exception."""
    cause: str = ""
    """Its known cause; "" if the kind says as much."""
    is_cause_certain: bool = False
    """Whether no other cause has this message."""
    fix: str = ""
    """The change that avoids the failure; "" if only the next plan is known."""

    @property
    def is_out_of_memory(self) -> bool:
        return self.kind in ("gpu_out_of_memory", "host_out_of_memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peak figures over the ranks of this node; None if the device has no such counter."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    """Memory of all processes on one GPU, as reported by the driver."""
    host_bytes: int = 0
    """Resident memory of all ranks of this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOutcome:
    """Outcome of a launched training."""

    status: LaunchStatus
    failure: TrainingFailure | None
    last_step: int
    """The last optimizer step that every rank of this node completed; 0 if DeepSpeed's engine was not seen."""
    peaks: Peaks
    seconds: float
    folder: Path
    """The folder with the ranks' output and records."""
    stop_requested: bool = False
    """Whether a signal asked it to stop. A training that had made all steps finishes."""
    total_steps: int | None = None
    """The optimizer steps of the whole training, by the Trainer; null for another loop."""
    launcher: Launcher | None = "torchrun"
    """The launcher that was put in front; null for a command with its own."""
    config: Path | None = None
    """The DeepSpeed configuration file that was passed; null if the command names its own."""
    first_step_s: float | None = None
    """Seconds from the start to the end of the first step."""
    step_s: float | None = None
    """Median seconds of the later steps."""
    tokens_per_step: float | None = None
    """Median tokens of the later steps, of the whole job. Every position of a batch counts as a token, padding
    included."""
    tokens_per_s: float | None = None
    """`tokens_per_step` / `step_s`."""
    samples_per_step: int | None = None
    """Samples of a step of the whole job, by the engine's batch; null if it was not seen."""
    losses: tuple[tuple[int, float | None], ...] = ()
    """(step, loss) of the steps that the ranks reported; a loss that is not a number is null."""
    phases: tuple[PhaseFigures, ...] = ()
    """Median time and highest memory of the phases of a step."""
    predicted: Prediction | None = None
    """What was predicted; null without a check."""
    engine: Mapping[str, int] = field(default_factory=dict)
    """The engine's ZeRO stage and batch, under the names of `Plan`; empty if it was not seen."""
    plain: str = ""
    """Torch's data parallelism by which the script trains in place of DeepSpeed; "" if none was seen."""
    differences: tuple[str, ...] = ()
    """Engine settings that differ from the plan that was checked and predicted."""
    checkpoint: Path | None = None
    """The newest checkpoint that the Trainer saved, before a loss that is NaN."""
    warnings: tuple[str, ...] = ()
    """Warnings printed during the training."""

    @property
    def made_all_steps(self) -> bool:
        return self.total_steps is not None and self.last_step >= self.total_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One launch: the request and its outcome."""

    request: LaunchRequest
    outcome: LaunchOutcome
    was_busy: str = ""
    """Why the measured speed may be too low, as a sentence; "" if no reason is known."""
