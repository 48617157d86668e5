"""Save a checkpoint of a small Llama after one step under a stage of ZeRO, and its weights in fp32.

save_checkpoint.py FOLDER STAGE TIED
"""

from __future__ import annotations

import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param
from transformers import LlamaConfig, LlamaForCausalLM

folder, stage, tied = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "tied"
deepspeed.init_distributed("gloo")
config = LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=256,
    tie_word_embeddings=tied,
    architectures=["LlamaForCausalLM"],
    dtype="bfloat16",
)
ds_config = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": stage},
    "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
}
torch.manual_seed(0)
with deepspeed.zero.Init(config_dict_or_path=ds_config, enabled=stage == 3):
    model = LlamaForCausalLM(config)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)
tokens = torch.randint(0, 256, (1, 16))
engine.backward(engine(input_ids=tokens, labels=tokens).loss)
engine.step()
engine.save_checkpoint(str(folder))
weights = {name: safe_get_full_fp32_param(parameter).clone() for name, parameter in model.named_parameters()}
if torch.distributed.get_rank() == 0:
    config.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    torch.save(weights, folder.with_suffix(".weights"))
