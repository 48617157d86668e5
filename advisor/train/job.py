"""One training as its ranks get it, and what they leave: JSON files in the training's folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...ds_configs.write import write_config
from ...estimators.errors import ConfigFileError
from ...estimators.workload import Workload
from ...probes.real_run.job import Device
from ..question.json_file import read_json_object

_REPAIR = "start the training without --resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What every rank needs to know. Paths are absolute."""

    model: str
    """The folder with the weights."""
    tokenizer: str
    """The folder of the tokenizer with its chat template; it is saved beside whatever is saved."""
    workload: Workload
    lora_alpha: int
    """It has no effect with method "full"."""
    device: Device
    ranks: int
    tokens: str
    """The folder of the tokens."""
    samples: str
    """The file with the index into the tokens."""
    evaluation_tokens: str | None
    evaluation_samples: str | None
    packing: bool
    """As the samples were cut."""
    arguments: dict[str, Any]
    """Keyword arguments of TrainingArguments."""
    checkpoint: str | None = None
    """Where to go on; None: from the beginning."""
    mlp_tiles: int = 0
    """Tiles of a tiled feed-forward; 0: it is whole."""
    loss_tiles: int = 0
    """Tiles of a tiled loss; 0: the loss is another."""
    gathers: bool = True
    """Whether ZeRO-3 collects the whole weights when it saves; under other stages they are whole anyway."""

    @property
    def sequence_parallel_size(self) -> int:
        """Ranks that share each sample."""
        return int((self.arguments.get("parallelism_config") or {}).get("sp_size", 1))

    @property
    def output(self) -> Path:
        return Path(self.arguments["output_dir"])

    @property
    def dtype(self) -> str:
        """torch's name of the weights' type."""
        return {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[self.workload.precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What the first rank leaves when the training has ended."""

    finished: bool
    """All steps were made and the model is saved; otherwise it was stopped and can go on."""
    step: int
    losses: tuple[tuple[int, float], ...]
    """(step, loss), those before a resumed checkpoint too; as `evaluations`."""
    evaluations: tuple[tuple[int, float], ...]
    whole: bool
    """Whether the saved weights are whole; otherwise they lie as ZeRO's shards in the last checkpoint."""


def write_record(record: TrainingJob | TrainingResult, path: Path) -> None:
    """Write it at once, over an earlier one."""
    write_config(asdict(record), path, force=True)


def read_job(path: Path) -> TrainingJob:
    """The job in a file. Raises ConfigFileError where there is none."""
    from pydantic import TypeAdapter, ValidationError

    values = read_json_object(path, error=ConfigFileError, what="a training's job", fix=_REPAIR)
    try:
        return TypeAdapter(TrainingJob).validate_python(values)
    except ValidationError as problem:
        raise ConfigFileError(
            f"{path}: not a training's job", why="another version of ds-advise may have written it", fix=_REPAIR
        ) from problem


def read_result(path: Path) -> TrainingResult | None:
    """None where the training left none."""
    from pydantic import TypeAdapter

    return TypeAdapter(TrainingResult).validate_json(path.read_bytes()) if path.exists() else None
