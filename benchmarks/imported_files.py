"""`ds-advise from FILE` against `ds-advise MODEL` about the same training, for 40 files of six formats:

    python -m benchmarks.imported_files

Each file sets a training and, as people write it after a run that was out of memory, micro batch 1, checkpointing and
ZeRO-3 with all offloads. `advise` gets the training and the global batch. A line per file has the speeds of both
recommended plans. Exit code 1 if a file's plan is slower by more than `MOST_LOST`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

from ds_advise.advisor.advise import answer, build_question
from ds_advise.advisor.importers.answer import import_file
from ds_advise.advisor.question.cluster import parse_cluster

MOST_LOST = 0.03
RANK = 16

Values = dict[str, Any]

CONFIG: Values = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}


class Training(NamedTuple):
    model: str
    gpus: str
    length: int
    method: str
    steps: int
    """Accumulation steps."""

    @property
    def ranks(self) -> int:
        return parse_cluster(self.gpus).world_size

    @property
    def options(self) -> Values:
        """The options of `advise`."""
        rank = {"lora_rank": RANK} if self.method != "full" else {}
        batch = self.steps * self.ranks
        return {"gpus": self.gpus, "seq_len": self.length, "method": self.method, "global_batch": batch, **rank}

    def adapters(self, **values: Any) -> Values:
        """These keys, if the training has adapters."""
        return values if self.method != "full" else {}


TRAININGS = (
    Training("Qwen2.5-0.5B", "1xRTX4090", 2048, "full", 8),
    Training("Qwen2.5-7B", "4xA100-40GB", 2048, "full", 8),
    Training("Qwen2.5-7B", "4xA100-40GB", 8192, "full", 8),
    Training("Llama-3.1-8B", "8xH100", 4096, "full", 4),
    Training("Qwen2.5-7B", "1xA100-80GB", 4096, "lora", 16),
    Training("Llama-3.1-8B", "2xRTX4090", 2048, "lora", 8),
    Training("Qwen2.5-14B", "1xA100-80GB", 2048, "qlora", 16),
    Training("Mistral-7B-v0.1", "1xRTX4090", 4096, "qlora", 8),
    Training("Qwen2.5-32B", "8xA100-80GB", 4096, "lora", 4),
    Training("Llama-3.1-70B", "2x8xH100", 4096, "full", 2),
)


def _trainer(training: Training) -> Values:
    return {
        "model_name_or_path": training.model,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": training.steps,
        "gradient_checkpointing": True,
        "learning_rate": 1e-5,
        "bf16": True,
        "output_dir": "out",
        "deepspeed": "z3.json",
    }


def _accelerate(training: Training) -> Values:
    block = {"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "cpu"}
    block["gradient_accumulation_steps"] = training.steps
    launch = {"mixed_precision": "bf16", "num_processes": training.ranks}
    return {"distributed_type": "DEEPSPEED", **launch, "deepspeed_config": block}


def _training_arguments(training: Training) -> Values:
    adapters = training.adapters(use_lora=True, lora_r=RANK, q_lora=training.method == "qlora")
    return {**_trainer(training), "max_length": training.length, **adapters}


def _trl(training: Training) -> Values:
    adapters = training.adapters(use_peft=True, lora_r=RANK, load_in_4bit=training.method == "qlora")
    return {**_trainer(training), "max_length": training.length, "packing": True, **adapters}


def _llama_factory(training: Training) -> Values:
    bits = {"quantization_bit": 4} if training.method == "qlora" else {}
    kind = {"stage": "sft", "do_train": True, "finetuning_type": "full" if training.method == "full" else "lora"}
    values = {**_trainer(training), **kind, **bits, "cutoff_len": training.length, **training.adapters(lora_rank=RANK)}
    del values["gradient_checkpointing"]  # on by default
    return values


def _ms_swift(training: Training) -> Values:
    values = {**_trainer(training), "model": training.model, "max_length": training.length}
    del values["model_name_or_path"]
    bits = {"quant_bits": 4, "quant_method": "bnb"} if training.method == "qlora" else {}
    kind = "full" if training.method == "full" else "lora"
    zero = {"tuner_type": kind, "torch_dtype": "bfloat16", "deepspeed": "zero3_offload"}
    return {**values, **zero, **bits, **training.adapters(lora_rank=RANK, lora_dropout=0)}


def _axolotl(training: Training) -> Values:
    four_bits = training.method == "qlora"
    adapters = {"adapter": training.method, "lora_r": RANK, "lora_target_linear": True, "load_in_4bit": four_bits}
    return {
        "base_model": training.model,
        "sequence_len": training.length,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": training.steps,
        "gradient_checkpointing": True,
        "bf16": True,
        "optimizer": "adamw_torch",
        "deepspeed": "z3.json",
        **training.adapters(**adapters),
    }


FORMATS: Mapping[str, Callable[[Training], Values]] = {
    "accelerate": _accelerate,
    "llama-factory": _llama_factory,
    "trl": _trl,
    "axolotl": _axolotl,
    "training-arguments": _training_arguments,
    "ms-swift": _ms_swift,
}


def cases() -> Iterator[tuple[str, Training]]:
    """Every training in four of the formats."""
    for number, training in enumerate(TRAININGS):
        for name in [*FORMATS, *FORMATS][number % 6 : number % 6 + 4]:
            yield name, training


def speeds(name: str, training: Training) -> tuple[float, float]:
    """Tokens/s of the recommended plans of `from` and `advise`; 0 if nothing fits."""
    Path("z3.json").write_text(json.dumps(CONFIG))
    Path("file.json").write_text(json.dumps(FORMATS[name](training)))
    options = training.options
    by_hand = {"model": training.model, **options} if name == "accelerate" else {}  # its file has no training
    by_hand = {key: value for key, value in by_hand.items() if key not in ("gpus", "global_batch")}
    figures = import_file(Path("file.json"), format=name, gpus=training.gpus, offline=True, **by_hand).figures
    assert figures is not None
    options = options | {"framework": "trl" if name == "trl" else "hf"}
    advised = answer(build_question(training.model, offline=True, **options)).recommended
    imported = figures.recommended
    return imported.tokens_per_s if imported else 0.0, advised.tokens_per_s if advised else 0.0


def main() -> int:
    lost = 0
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for name, training in cases():
            by_from, by_advise = speeds(name, training)
            difference = by_from / by_advise - 1 if by_advise else 0.0
            lost += difference < -MOST_LOST
            case = f"{name:<18} {training.model:<16} {training.gpus:<11} {training.length:>5} {training.method:<5}"
            print(f"{case} from {by_from:>7,.0f}  advise {by_advise:>7,.0f}  {difference:+.1%}")
    print(f"{lost} of {len([*cases()])} files are slower by more than {MOST_LOST:.0%}")
    return int(lost > 0)


if __name__ == "__main__":
    raise SystemExit(main())
