"""What a user says of a training besides the question to `advise`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...estimators.errors import WorkloadError
from ...probes.real_run.job import Device
from .check import Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One training's own options; None and "auto": chosen, see `choices`.

    model:       as it was named. data, evaluation_data: files; evaluation_share: of `data`, where there is no file for
        it.
    shape:       a key of `data.shapes.SHAPES`.
    system:      a message put before chats without one.
    packing:     several sequences fill one sample.
    epochs, max_steps: the latter wins.
    save_steps:  optimizer steps between checkpoints, and between evaluations.
    report_to:   "auto" (TensorBoard where it is installed), "tensorboard", "swanlab", "wandb" or "none".
    merge:       also save the model with the adapters in its weights.
    rung:        the rung to train on, in place of the recommended one.
    proof:       what must say that it fits; "none" leaves out the check of the disk too.
    """

    model: str
    data: Path
    device: Device = "cuda"
    evaluation_data: Path | None = None
    evaluation_share: float = 0.0
    shape: str | None = None
    system: str | None = None
    packing: bool = False
    lora_alpha: int | None = None
    epochs: float | None = None
    max_steps: int | None = None
    learning_rate: float | None = None
    seed: int = 42
    save_steps: int | None = None
    report_to: str = "auto"
    merge: bool = False
    rung: str | None = None
    proof: Proof = "probe"
    offline: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.evaluation_share < 1:
            raise WorkloadError(
                f"--eval-split is {self.evaluation_share:g}",
                why="it is a share of the rows, below 1",
                fix="pass one such as --eval-split 0.05",
            )
        if self.evaluation_share and self.evaluation_data:
            raise WorkloadError("--eval-split and --eval-data both say what is evaluated", fix="leave one out")
        if self.epochs is not None and not 0 < self.epochs <= 10_000:
            raise WorkloadError(
                f"--epochs is {self.epochs:g}", why="it must be above 0", fix="pass one such as --epochs 3"
            )
        if self.learning_rate is not None and not 0 < self.learning_rate < 100:
            raise WorkloadError(
                f"--learning-rate is {self.learning_rate:g}",
                why="it must be above 0",
                fix="pass one such as --learning-rate 2e-5",
            )
