"""The settings of a training. The options that `ds-advise train` has in addition to those of a question are declared
here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from ...ds_configs.emit import GRADIENT_CLIPPING, OPTIMIZER_PARAMS
from ...estimators.errors import WorkloadError
from ...estimators.plan import Strategy
from ...probes.run import Device
from ..data.counting import SEED
from ..question.job import check_epochs
from ..question.option import Option, declared
from ..question.options import LORA_METHODS

CheckKind = Literal["probe", "dry-run", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The options of one training, with None and "auto" replaced by defaults."""

    model: str
    """The model's name or folder, as given by the user."""
    data: Path
    config_file: Path | None = None
    """A DeepSpeed configuration, whose plan is trained; None for the recommended plan."""
    device: Device = "cuda"
    eval_data: Annotated[Path | None, Option("Evaluation data; replaces --eval-split.", metavar="FILE")] = None
    eval_split: float = 0.0
    format: Annotated[
        Literal["chat", "prompt-completion", "instruction", "text-label", "text"] | None,
        Option("Format of a row.", default_text="detected"),
    ] = None
    system: Annotated[str | None, Option("System message for chats without one.", metavar="TEXT")] = None
    packing: bool = False
    epochs: float | None = None
    max_steps: Annotated[int | None, Option("Number of optimizer steps; replaces --epochs.")] = None
    learning_rate: Annotated[
        float | None, Option("Peak learning rate.", metavar="RATE", default_text="2e-5; 2e-4 with LoRA")
    ] = None
    lora_alpha: Annotated[
        int | None, Option("Scale of the LoRA adapters.", default_text="twice --lora-rank", methods=LORA_METHODS)
    ] = None
    seed: int = SEED
    save_steps: Annotated[
        int | None,
        Option("Steps between checkpoints and evaluations.", default_text="a tenth of all, from 10 to 500"),
    ] = None
    report_to: Annotated[
        Literal["auto", "tensorboard", "swanlab", "wandb", "none"],
        Option("Logger of the loss; auto: TensorBoard if installed."),
    ] = "auto"
    merge: Annotated[bool, Option("Also save the model with the LoRA adapters merged.", methods=LORA_METHODS)] = False
    strategy: Annotated[Strategy | None, Option("Strategy.", default_text="the fastest that fits")] = None
    check: CheckKind = "probe"
    """How to check that the training fits; "none" skips the check of the disk too."""
    offline: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> TrainingSettings:
        """The settings among the command's options. Raises WorkloadError for impossible ones."""
        own = {field.name: options[field.name] for field in fields(cls) if field.name in options}
        for name in ("data", "eval_data", "config_file"):
            own[name] = Path(own[name]) if own.get(name) else None
        own["check"] = "none" if options["no_check"] else "dry-run" if options["no_probe"] else "probe"
        return cls(**own)

    def __post_init__(self) -> None:
        check_epochs(self.epochs, self.eval_split)
        rate = self.learning_rate
        if self.eval_split and self.eval_data:
            raise WorkloadError("--eval-split and --eval-data both select the rows to evaluate", fix="leave one out")
        if rate is not None and not 0 < rate < 100:
            fix = "pass one such as --learning-rate 2e-5"
            raise WorkloadError(f"--learning-rate is {rate:g}", why="it must be above 0 and below 100", fix=fix)


KEPT_CHECKPOINTS = 2
"""Number of checkpoints to keep. With two, an incomplete one is never the only one. The Trainer removes the oldest
after the new one is written, so three exist for a short time."""

WARMUP = 0.03
"""Share of the steps in which the learning rate rises, before its cosine decay (Alpaca's value)."""

FIXED_ARGUMENTS: Mapping[str, object] = {
    "lr_scheduler_type": "cosine",
    "weight_decay": OPTIMIZER_PARAMS["weight_decay"],
    "max_grad_norm": GRADIENT_CLIPPING,
    "logging_steps": 1,
    "logging_nan_inf_filter": False,
    "save_strategy": "steps",
    "save_total_limit": KEPT_CHECKPOINTS,
}
"""TrainingArguments that every training has, for which there are no options. The loss of every step is logged, and a
loss that is not a number is not replaced."""

TRAINING_OPTIONS: Mapping[str, Option] = {
    name: option._replace(default=TrainingSettings.__dataclass_fields__[name].default)
    for name, option in declared(get_type_hints(TrainingSettings, include_extras=True)).items()
}
"""The options declared above, by name."""
