"""Train a small model with the Hugging Face Trainer as most people's scripts do: TrainingArguments from the command
line.

$RUN_OUT_AT_STEP: raise CUDA's error for memory that has run out at this step, under the configuration named
`ds_config.json` in the working folder only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

SEQ_LEN, SAMPLES = 32, 4096


@dataclass
class ModelArguments:
    model_name_or_path: str = ""


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random sequences, each made from its index."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.randint(0, self.vocabulary, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": row, "labels": row}


class RunOut(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        first = Path(args.deepspeed).resolve() == Path("ds_config.json").resolve()
        if first and state.global_step == int(os.environ.get("RUN_OUT_AT_STEP", "0")):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")


def main() -> None:
    deepspeed.init_distributed("gloo")
    model_arguments, arguments = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(model_arguments.model_name_or_path)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    trainer = Trainer(model=model, args=arguments, train_dataset=Samples(config.vocab_size), callbacks=[RunOut()])
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # gloo's threads now and then abort the interpreter's end


if __name__ == "__main__":
    main()
