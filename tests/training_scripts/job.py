"""What both training scripts share: the job they are given, the small model, its data, and the report they leave."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
from ds_advise.ds_configs.tiled_compute import tile_feed_forward, tile_loss
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config


def read_job() -> dict[str, Any]:
    """The job that the test describes in the file $TRAINING_JOB."""
    return json.loads(Path(os.environ["TRAINING_JOB"]).read_text())


def build_model(job: dict[str, Any], in_shards: AbstractContextManager[Any] | None = None) -> PreTrainedModel:
    """A Qwen2 of the job's dimensions with random weights; with a `lora_rank` in the job, under LoRA adapters.

    in_shards: the context that partitions the base model as it is built; the Trainer has its own.
    """
    torch.manual_seed(0)
    with in_shards or nullcontext():
        model = AutoModelForCausalLM.from_config(Qwen2Config(**job["model"]), dtype=getattr(torch, job["dtype"]))
    if job["lora_rank"]:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=job["lora_rank"], target_modules="all-linear", task_type="CAUSAL_LM")
        )
    model.register_forward_pre_hook(_count_forward)
    model.forward_passes = 0
    return model


def tile(model: Any, job: dict[str, Any]) -> None:
    """As the printed lines do."""
    if tiles := job.get("tiles", 0):
        tile_feed_forward(model, tiles=tiles)
        tile_loss(model, tiles=tiles)


def samples(job: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    """Different random sequences. Of one global batch every optimizer step sees the same, so the loss falls."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, job["model"]["vocab_size"], (job["samples"], job["seq_len"]), generator=generator)
    positions = {"position_ids": torch.arange(job["seq_len"])} if job["sequence_parallel_size"] > 1 else {}
    return [{"input_ids": row, "labels": row, **positions} for row in tokens]


def finish(job: dict[str, Any], losses: list[float], engine: Any) -> NoReturn:
    """Leave this rank's report where the test looks for it, and end the process.

    The process groups are ended explicitly, and the interpreter is not shut down: gloo's threads now and then abort
    that (SIGABRT, "terminate called without an active exception") after all work is done.
    """
    report = {"losses": losses, "forward_passes": engine.module.forward_passes, **engine_facts(engine)}
    Path(job["reports"], f"rank{os.environ['RANK']}.json").write_text(json.dumps(report))
    engine.destroy()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def engine_facts(engine: Any) -> dict[str, Any]:
    """What the DeepSpeed engine itself says it does."""
    zero = engine._config.zero_config
    folders = {
        block.nvme_path
        for block in (zero.offload_optimizer, zero.offload_param)
        if block is not None and block.device == "nvme"
    }
    return {
        "zero_stage": int(engine.zero_optimization_stage()),
        "offload_optimizer": str(getattr(zero.offload_optimizer, "device", "none")),
        "offload_optimizer_ratio": getattr(zero.offload_optimizer, "ratio", 1.0),
        "offload_param": str(getattr(zero.offload_param, "device", "none")),
        "optimizer": type(engine.basic_optimizer).__name__,
        "dtype": str(next(engine.module.parameters()).dtype).removeprefix("torch."),
        "reduce_bucket_size": zero.reduce_bucket_size,
        "stage3_prefetch_bucket_size": zero.prefetch_bucket_size,
        "sub_group_size": zero.sub_group_size,
        "train_micro_batch_size_per_gpu": engine.train_micro_batch_size_per_gpu(),
        "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
        "train_batch_size": engine.train_batch_size(),
        "optimizer_steps": engine.global_steps,
        "swapped": sorted({kind for folder in folders for kind in _swapped(Path(folder))}),
    }


def _swapped(folder: Path) -> set[str]:
    """What lies on NVMe: "param" for weights, "optimizer" for masters and states."""
    return {"param" if "_param." in file.name else "optimizer" for file in folder.rglob("*.swp")}


def _count_forward(model: Any, _: Any) -> None:
    model.forward_passes += 1
