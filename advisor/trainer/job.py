"""One training as its ranks are told it: a JSON file in the output folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...ds_configs.write import write_config
from ...estimators.errors import ConfigFileError
from ...estimators.workload import Workload
from ...probes.real_run.job import Device
from ..question.json_file import read_json_object


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every rank needs to know. Paths are absolute.

    model:       folder with the weights. tokenizer: with its chat template; saved beside whatever is saved.
    workload:    what is trained, as the plan was made for it. lora_alpha: no effect with method "full".
    tokens, samples: the folder of the tokens, and the index into them; evaluation_tokens, evaluation_samples: None for
        none.
    packing:     as the samples were cut.
    arguments:   keyword arguments of TrainingArguments.
    checkpoint:  where to go on, None: from the beginning.
    gathers:     ZeRO-3 collects the whole weights when it saves; elsewhere they are whole anyway.
    """

    model: str
    tokenizer: str
    workload: Workload
    lora_alpha: int
    device: Device
    ranks: int
    tokens: str
    samples: str
    evaluation_tokens: str | None
    evaluation_samples: str | None
    packing: bool
    arguments: dict[str, Any]
    checkpoint: str | None = None
    gathers: bool = True

    @property
    def output(self) -> Path:
        return Path(self.arguments["output_dir"])

    @property
    def dtype(self) -> str:
        """torch's name of the weights' type."""
        return {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[self.workload.precision]


def write_job(job: Job, path: Path) -> None:
    """Write it at once, over an earlier one."""
    write_config(asdict(job), path, force=True)


def read_job(path: Path) -> Job:
    """The job in a file. Raises ConfigFileError where there is none."""
    values = read_json_object(
        path, error=ConfigFileError, what="a training's job", fix="start the training without --resume"
    )
    try:
        workload = values["workload"]
        targets = workload["lora_targets"]
        return Job(
            **{
                **values,
                "workload": Workload(**{**workload, "lora_targets": tuple(targets) if targets is not None else None}),
            }
        )
    except (TypeError, KeyError) as problem:
        raise ConfigFileError(
            f"{path}: not a training's job",
            why="another version of ds-advise may have written it",
            fix="start the training without --resume",
        ) from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the first rank leaves when the training has ended.

    finished: all steps were made and the model is saved; otherwise it was stopped and can go on.
    losses, evaluations: (step, loss), those before a resumed checkpoint too.
    whole:    the saved weights are whole; otherwise they lie as ZeRO's shards in the last checkpoint.
    """

    finished: bool
    step: int
    losses: tuple[tuple[int, float], ...]
    evaluations: tuple[tuple[int, float], ...]
    whole: bool


def write_result(result: Result, path: Path) -> None:
    path.write_text(json.dumps(asdict(result)), encoding="utf-8")


def read_result(path: Path) -> Result | None:
    """None where the training left none."""
    if not path.exists():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    return Result(
        **{
            **values,
            "losses": tuple(map(tuple, values["losses"])),
            "evaluations": tuple(map(tuple, values["evaluations"])),
        }
    )
