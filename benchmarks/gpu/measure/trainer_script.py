"""A user's training script on the Hugging Face Trainer, for `ds-advise launch` to start; random samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

SAMPLES, SEQ_LEN = 4096, 512


@dataclass
class ModelArguments:
    model_name_or_path: str = "model"


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random sequences, each made from its index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.randint(0, 1000, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": row, "labels": row}


def main() -> None:
    kinds: Any = (ModelArguments, TrainingArguments)
    named, arguments = HfArgumentParser(kinds).parse_args_into_dataclasses()
    model = AutoModelForCausalLM.from_pretrained(named.model_name_or_path, dtype=torch.bfloat16)
    Trainer(model=model, args=arguments, train_dataset=Samples()).train()


if __name__ == "__main__":
    main()
