"""README's commands that need a GPU, as a user types them."""

from __future__ import annotations

from typing import Any

from ds_advise.estimators.models import catalogue

from ..measurement import Measurement

_SMALL = {**catalogue.config("Qwen/Qwen2.5-0.5B"), "max_position_embeddings": 4096}
"""What a training starts from; its weights are made at random, 1 GB of them."""


_ANSWER = "ds-advise Qwen2.5-1.5B --gpus auto --no-deepspeed-estimate --force"


def _command(
    name: str, *lines: str, about_s: float, model: dict[str, Any] | None = None, codes: tuple[int, ...] = (0,)
) -> Measurement:
    arguments = {"commands": list(lines), "model": model, "expected": list(codes)}
    return Measurement(
        name=f"command {name}", kind="commands", arguments=arguments, about_s=about_s, limit_s=60 + 2 * about_s
    )


DOCTOR = _command("doctor", "ds-advise doctor --nvme {nvme}", about_s=5, codes=(0, 1))

COMMANDS = (
    _command("bench", "ds-advise bench --nvme {nvme}", "ds-advise history --json", _ANSWER, about_s=75),
    DOCTOR,
    _command(
        "probe",
        _ANSWER,
        "ds-advise probe ds_config.json --model Qwen2.5-1.5B --gpus auto --no-dry-run",
        about_s=40,
    ),
    _command(
        "train",
        "ds-advise train --model ./model --data chats.jsonl --method lora --max-steps 10 --output-dir trained",
        about_s=90,
        model=_SMALL,
    ),
    _command(
        "launch",
        "ds-advise ./model --gpus auto --seq-len 512 --no-deepspeed-estimate",
        "ds-advise launch ds_config.json --model ./model --seq-len 512 -- "
        "train.py --output_dir out --max_steps 6 --bf16 True --per_device_train_batch_size 4",
        about_s=60,
        model=_SMALL,
    ),
    _command("answer with probes", f"{_ANSWER} --probe --budget 2m", about_s=150),
    _command("dry run", "ds-advise Qwen2.5-1.5B --gpus 2x32GB --no-write --verify", about_s=60),
)
