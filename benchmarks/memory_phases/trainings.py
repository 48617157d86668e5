"""Small trainings of the installed software on one CPU rank: each a function of a folder that it may write."""

# mypy: disable-error-code="no-untyped-call"
# torch's backward() has no types.
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

_TOKENS, _LENGTH, _STEPS, _RATE = 96, 16, 2, 1e-3


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Four rows of tokens."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.arange(index, index + _LENGTH) % _TOKENS
        return {"input_ids": row, "labels": row}


class Decoder(nn.Module):
    """A model of a user's own file, with the loss outside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_TOKENS, 32)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2))
        self.head = nn.Linear(32, _TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def _config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=_TOKENS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )


def _zero(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
        "optimizer": {"type": "AdamW", "params": {"lr": _RATE, "torch_adam": True}},
        "steps_per_print": 1000,
    }


def _trainer(folder: Path, stage: int | None) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=2,
        max_steps=_STEPS,
        learning_rate=_RATE,
        bf16=True,
        use_cpu=True,
        save_steps=_STEPS,
        eval_strategy="steps",
        eval_steps=_STEPS,
        report_to=[],
        disable_tqdm=True,
        optim="adamw_torch",
        deepspeed=None if stage is None else _zero(stage),
    )
    return Trainer(model=_pretrained(folder), args=arguments, train_dataset=Rows(), eval_dataset=Rows())


def _pretrained(folder: Path) -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder / "model", dtype=torch.bfloat16)
    return model


def prepare(folder: Path) -> None:
    """Write the weights that the trainings load."""
    LlamaForCausalLM(_config()).bfloat16().save_pretrained(folder / "model")


def hf_trainer(folder: Path) -> None:
    """HF Trainer without DeepSpeed, and a generation."""
    trainer = _trainer(folder, None)
    trainer.train()
    model: Any = trainer.model
    model.generate(torch.arange(4)[None], max_new_tokens=3)


def hf_trainer_zero2(folder: Path) -> None:
    _resumed(folder, 2)


def hf_trainer_zero3(folder: Path) -> None:
    _resumed(folder, 3)


def _resumed(folder: Path, stage: int) -> None:
    _trainer(folder, stage).train()
    again = _trainer(folder, stage)
    again.args.max_steps = _STEPS + 1
    again.train(resume_from_checkpoint=True)


def own_loop_zero1(folder: Path) -> None:
    _engine_loop(folder, 1)


def own_loop_zero3(folder: Path) -> None:
    _engine_loop(folder, 3)


def _batch(index: int) -> torch.Tensor:
    """One row, twice."""
    return Rows()[index]["input_ids"][None].repeat(2, 1)


def _engine_loop(folder: Path, stage: int) -> None:
    with deepspeed.zero.Init(config_dict_or_path=_zero(stage), enabled=stage == 3):
        model = Decoder()
    engine, *_ = deepspeed.initialize(model=model, config=_zero(stage), model_parameters=model.parameters())
    for index in range(_STEPS):
        tokens = _batch(index)
        logits = engine(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(str(folder / "saved"))
    engine.load_checkpoint(str(folder / "saved"))


def own_loop_ddp(folder: Path) -> None:
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(Decoder())
    optimizer = torch.optim.AdamW(model.parameters())
    for index in range(_STEPS):
        tokens = _batch(index)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save(model.module.state_dict(), folder / "weights.pt")


TRAININGS: tuple[Callable[[Path], None], ...] = (
    hf_trainer,
    hf_trainer_zero2,
    hf_trainer_zero3,
    own_loop_zero1,
    own_loop_zero3,
    own_loop_ddp,
)
