"""`ds-advise from FILE` against `ds-advise MODEL` about the same training, for 40 files of six formats:

    python -m benchmarks.imported_files

Each file sets a training, a batch as people write it (micro batch 1 with accumulation, ZeRO-3 with offload, checkpointing
on), or leaves keys to the tool's defaults. `advise` gets the options that the file sets. A line per file has the speeds of
both recommended plans; exit code 1 if a file's is lower by more than `MOST_DIFFERENCE`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..advisor.advise import answer, build_question
from ..advisor.importers.answer import import_file

MOST_DIFFERENCE = 0.03

CONFIG = {
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    },
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
"""ZeRO-3 with all offloads, as people write it after a run that was out of memory."""

MACHINES = ("1xA100-80GB", "1xRTX4090", "2xRTX4090", "4xA100-40GB", "4xA100-80GB", "8xH100", "8xA100-80GB", "2x8xH100")
TRAININGS = (
    # model, length, method, accumulation, number of the machine
    ("Qwen2.5-0.5B", 2048, "full", 8, 1),
    ("Qwen2.5-7B", 2048, "full", 8, 3),
    ("Qwen2.5-7B", 8192, "full", 8, 4),
    ("Llama-3.1-8B", 4096, "full", 4, 5),
    ("Qwen2.5-7B", 4096, "lora", 16, 0),
    ("Llama-3.1-8B", 2048, "lora", 8, 2),
    ("Qwen2.5-14B", 2048, "qlora", 16, 0),
    ("Mistral-7B-v0.1", 4096, "qlora", 8, 1),
    ("Qwen2.5-32B", 4096, "lora", 4, 6),
    ("Llama-3.1-70B", 4096, "full", 2, 7),
)


def accelerate(length: int, method: str, steps: int, ranks: int) -> dict[str, Any]:
    return {
        "distributed_type": "DEEPSPEED",
        "mixed_precision": "bf16",
        "num_processes": ranks,
        "deepspeed_config": {
            "zero_stage": 3,
            "offload_optimizer_device": "cpu",
            "offload_param_device": "cpu",
            "gradient_accumulation_steps": steps,
        },
    }


def _trainer(length: int, method: str, steps: int, ranks: int) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": steps,
        "gradient_checkpointing": True,
        "learning_rate": 1e-5,
        "bf16": True,
        "output_dir": "out",
        "deepspeed": "z3.json",
        "max_length": length,
    }


def training_arguments(length: int, method: str, steps: int, ranks: int) -> dict[str, Any]:
    adapters = {"use_lora": True, "lora_r": 16, "q_lora": method == "qlora"} if method != "full" else {}
    return _trainer(length, method, steps, ranks) | adapters


def trl(length: int, method: str, steps: int, ranks: int) -> dict[str, Any]:
    adapters = {"use_peft": True, "lora_r": 16, "load_in_4bit": method == "qlora"} if method != "full" else {}
    return _trainer(length, method, steps, ranks) | {"dataset_name": "data", "packing": True} | adapters


def llama_factory(length: int, method: str, steps: int, ranks: int) -> dict[str, Any]:
    values = _trainer(length, method, steps, ranks) | {
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full" if method == "full" else "lora",
        "cutoff_len": length,
    }
    del values["max_length"], values["gradient_checkpointing"]
    if method != "full":
        values["lora_rank"] = 16
    return values | ({"quantization_bit": 4} if method == "qlora" else {})


def ms_swift(length: int, method: str, steps: int, ranks: int) -> dict[str, Any]:
    values = _trainer(length, method, steps, ranks) | {"deepspeed": "zero3_offload", "torch_dtype": "bfloat16"}
    values["tuner_type"] = "full" if method == "full" else "lora"
    if method != "full":
        values |= {"lora_rank": 16, "lora_dropout": 0}
    return values | ({"quant_bits": 4, "quant_method": "bnb"} if method == "qlora" else {})


def axolotl(length: int, method: str, steps: int, ranks: int) -> dict[str, Any]:
    values = {
        "sequence_len": length,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": steps,
        "gradient_checkpointing": True,
        "bf16": True,
        "optimizer": "adamw_torch",
        "deepspeed": "z3.json",
    }
    if method != "full":
        values |= {"adapter": method, "lora_r": 16, "lora_target_linear": True, "load_in_4bit": method == "qlora"}
    return values


FORMATS = {
    "accelerate": (accelerate, ""),
    "llama-factory": (llama_factory, "model_name_or_path"),
    "trl": (trl, "model_name_or_path"),
    "axolotl": (axolotl, "base_model"),
    "training-arguments": (training_arguments, "model_name_or_path"),
    "ms-swift": (ms_swift, "model"),
}


def cases() -> list[tuple[str, dict[str, Any], Mapping[str, Any]]]:
    """(format, file, options of `advise`) of 40 files: every training in four of the formats."""
    found = []
    for number, (model, length, method, steps, machine) in enumerate(TRAININGS):
        gpus = MACHINES[machine]
        ranks = {"2x8xH100": 16}.get(gpus) or int(gpus.split("x")[0])
        for name in [*FORMATS, *FORMATS][number % 6 : number % 6 + 4]:
            make, key = FORMATS[name]
            values = {**({key: model} if key else {}), **make(length, method, steps, ranks)}
            options: dict[str, Any] = {"gpus": gpus, "seq_len": length, "method": method, "global_batch": steps * ranks}
            if method != "full":
                options["lora_rank"] = 16
            if name == "trl":
                options["framework"] = "trl"
            found.append((name, values, {"model": model, **options}))
    return found


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("z3.json").write_text(json.dumps(CONFIG))
        for name, values, options in cases():
            Path("file.json").write_text(json.dumps(values))
            asked = dict(options)
            model = asked.pop("model")
            given = {"model": model, **{key: asked[key] for key in ("seq_len", "method", "lora_rank") if key in asked}}
            imported = import_file(
                Path("file.json"),
                format=name,
                gpus=asked["gpus"],
                offline=True,
                **(given if name == "accelerate" else {}),
            )
            assert imported.figures is not None, imported.obstacle
            advised = answer(build_question(model, offline=True, **asked)).recommended
            speeds = [0.0 if each is None else each.tokens_per_s for each in (imported.figures.recommended, advised)]
            difference = speeds[0] / speeds[1] - 1 if speeds[1] else 0.0
            missed += difference < -MOST_DIFFERENCE
            plans = [each and each.strategy for each in (imported.figures.recommended, advised)]
            print(
                f"{name:<18} {model:<16} {asked['gpus']:<12} {asked['seq_len']:>5} {asked['method']:<5} "
                f"from {speeds[0]:>8,.0f} {plans[0]!s:<20} advise {speeds[1]:>8,.0f} {plans[1]!s:<20} {difference:+.1%}"
            )
    print(f"{missed} of {len(cases())} files are slower by more than {MOST_DIFFERENCE:.0%}")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
