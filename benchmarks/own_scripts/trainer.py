"""A training of full sequences with the Trainer, as the dry run of a name describes it: `equality` compares the two."""

import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

FOLDER, SEQ_LEN, LORA_RANK, *ARGUMENTS = sys.argv[1:]


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, _index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 1000, (int(SEQ_LEN),))
        return {"input_ids": ids, "labels": ids.clone()}


parser: Any = HfArgumentParser
(args,) = parser(TrainingArguments).parse_args_into_dataclasses(ARGUMENTS)
dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
model: Any = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=dtype)
model.config.use_cache = False
model.train()
if int(LORA_RANK):
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(r=int(LORA_RANK), target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, adapters)
Trainer(model=model, args=args, train_dataset=Rows()).train()
