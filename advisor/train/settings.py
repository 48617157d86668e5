"""What a user says of a training besides the question to `advise`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ...estimators.errors import WorkloadError
from ...probes.real_run.job import Device
from ..data.counting import SEED

Proof = Literal["probe", "dry-run", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """One training's own options; None and "auto" are chosen, see `choices`."""

    model: str
    """As it was named."""
    data: Path
    device: Device = "cuda"
    evaluation_data: Path | None = None
    evaluation_share: float = 0.0
    """Share of `data` that is evaluated, where there is no file for it."""
    shape: str | None = None
    """A key of `data.shapes.ROW_SHAPES`."""
    system: str | None = None
    """A message that is put before chats without one."""
    packing: bool = False
    """Whether several sequences fill one sample."""
    lora_alpha: int | None = None
    epochs: float | None = None
    max_steps: int | None = None
    """Counts in place of `epochs`."""
    learning_rate: float | None = None
    seed: int = SEED
    save_steps: int | None = None
    """Optimizer steps between checkpoints, and between evaluations."""
    report_to: str = "auto"
    """"auto" (TensorBoard where it is installed), "tensorboard", "swanlab", "wandb" or "none"."""
    merge: bool = False
    """Whether the model with the adapters in its weights is saved too."""
    rung: str | None = None
    """The rung to train on, in place of the recommended one."""
    proof: Proof = "probe"
    """What must show that it fits; "none" leaves out the check of the disk too."""
    offline: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TrainingSettings:
        """The settings among the command's options. Raises WorkloadError for those that are impossible."""
        own = {field.name: options[field.name] for field in fields(cls) if field.name in options}
        own["data"] = Path(own["data"])
        if own["evaluation_data"]:
            own["evaluation_data"] = Path(own["evaluation_data"])
        own["proof"] = "none" if options["no_check"] else "dry-run" if options["no_probe"] else "probe"
        return cls(**own)

    def __post_init__(self) -> None:
        share, epochs, rate = self.evaluation_share, self.epochs, self.learning_rate
        if not 0 <= share < 1:
            raise WorkloadError(
                f"--eval-split is {share:g}",
                why="it is a share of the rows, below 1",
                fix="pass one such as --eval-split 0.05",
            )
        if share and self.evaluation_data:
            raise WorkloadError("--eval-split and --eval-data both say what is evaluated", fix="leave one out")
        positive = "it must be above 0"
        if epochs is not None and not 0 < epochs <= 10_000:
            raise WorkloadError(f"--epochs is {epochs:g}", why=positive, fix="pass one such as --epochs 3")
        if rate is not None and not 0 < rate < 100:
            fix = "pass one such as --learning-rate 2e-5"
            raise WorkloadError(f"--learning-rate is {rate:g}", why=positive, fix=fix)
