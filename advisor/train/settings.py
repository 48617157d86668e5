"""The settings of a training besides the question to `advise`, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ...estimators.errors import WorkloadError
from ...estimators.workload import Method, Workload
from ...probes.run import Device
from ..data.counting import SEED
from ..question.job import check_epochs

KEPT_CHECKPOINTS = 2
"""Two, so that an incomplete one never is the only one. The Trainer removes the oldest once a new one is written, so
there is one more for a moment."""

LEARNING_RATES: dict[Method, float] = {"full": 2e-5, "lora": 2e-4, "qlora": 2e-4}
"""Peak rates for AdamW. full: Stanford Alpaca's for LLaMA 7B. LoRA: QLoRA's for 7B and 13B (arXiv:2305.14314, appendix
B)."""

WARMUP = 0.03
"""Share of the steps in which the learning rate rises, before it falls as a cosine; Alpaca's."""

Proof = Literal["probe", "dry-run", "none"]


def default_save_steps(steps: int) -> int:
    """Ten checkpoints a training, at most 500 steps apart (TrainingArguments' save_steps)."""
    return max(1, min(500, steps // 10))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The options of one training; None and "auto" are replaced by defaults."""

    model: str
    """As given by the user."""
    data: Path
    device: Device = "cuda"
    eval_data: Path | None = None
    eval_split: float = 0.0
    """Share of `data` for evaluation, without `eval_data`."""
    shape: str | None = None
    """A key of `data.shapes.ROW_SHAPES`."""
    system: str | None = None
    """System message for chats without one."""
    packing: bool = False
    """Whether several sequences fill one sample."""
    lora_alpha: int | None = None
    epochs: float | None = None
    max_steps: int | None = None
    """Takes precedence over `epochs`."""
    learning_rate: float | None = None
    seed: int = SEED
    save_steps: int | None = None
    """Optimizer steps between checkpoints, and between evaluations."""
    report_to: str = "auto"
    """"auto" (TensorBoard where it is installed), "tensorboard", "swanlab", "wandb" or "none"."""
    merge: bool = False
    """Whether the model with the adapters merged into its weights is saved too."""
    rung: str | None = None
    """The rung to train on, in place of the recommended one."""
    proof: Proof = "probe"
    """How to prove that it fits; "none" leaves out the check of the disk too."""
    offline: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TrainingSettings:
        """The settings among the command's options. Raises WorkloadError for impossible ones."""
        own = {field.name: options[field.name] for field in fields(cls) if field.name in options}
        own["data"] = Path(own["data"])
        if own["eval_data"]:
            own["eval_data"] = Path(own["eval_data"])
        own["proof"] = "none" if options["no_check"] else "dry-run" if options["no_probe"] else "probe"
        return cls(**own)

    def __post_init__(self) -> None:
        check_epochs(self.epochs, self.eval_split)
        rate = self.learning_rate
        if self.eval_split and self.eval_data:
            raise WorkloadError("--eval-split and --eval-data both select the rows to evaluate", fix="leave one out")
        if rate is not None and not 0 < rate < 100:
            fix = "pass one such as --learning-rate 2e-5"
            raise WorkloadError(f"--learning-rate is {rate:g}", why="it must be above 0", fix=fix)


def check_packages(workload: Workload, *, report_to: str, device: Device) -> None:
    """Raises WorkloadError for the first library that an option needs and that is not installed."""
    if workload.method == "qlora" and device == "cpu":
        raise WorkloadError(
            "--method qlora needs a GPU", why="bitsandbytes' kernels are for GPUs", fix="pass --method lora"
        )
    packages = {
        "peft": (workload.method != "full", f"--method {workload.method}"),
        "bitsandbytes": (workload.method == "qlora", "--method qlora"),
        "liger_kernel": (workload.loss == "fused", "--loss fused"),
        "flash_attn": (workload.attention == "flash", "--attention flash"),
        **{name: (report_to == name, f"--report-to {name}") for name in ("swanlab", "wandb", "tensorboard")},
    }
    for package, (is_needed, option) in packages.items():
        if is_needed and find_spec(package) is None:
            name = package.replace("_", "-")
            raise WorkloadError(f"{option} needs {name}", why="it is not installed", fix=f"pip install {name}")
