"""`ds-advise dry-run DS_CONFIG --model NAME --gpus SPEC`: the real engine on a simulated GPU, and where every byte goes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from .options import COUNT


@click.command("dry-run", short_help="Run a configuration through the real DeepSpeed engine on a simulated GPU.")
@click.argument("config", metavar="DS_CONFIG")
@click.option("--model", required=True, metavar="MODEL",
              help="A name, folder, config.json or hub id; or FILE.py:FACTORY, a function of yours that returns a module.")
@click.option("--gpus", default="auto", metavar="SPEC", show_default=True, help="As for the advice: 2x32GB, 4x8xH100, ...")
@click.option("--ram", metavar="SIZE", help="Host RAM per node, such as 256GB; unset: not checked.")
@click.option("--seq-len", type=COUNT, help="Tokens per sample; unset: 2048, or the model's positions if fewer.")
@click.option("--micro-batch", type=COUNT, help="Fills an `auto` micro batch.  [default: 1]")
@click.option("--accumulation", type=COUNT, help="Fills `auto` gradient_accumulation_steps.  [default: 1]")
@click.option("--method", type=click.Choice(["full", "lora"]), default="full", show_default=True,
              help="Train all weights, or LoRA adapters through peft.")
@click.option("--lora-rank", type=COUNT, default=8, show_default=True, help="Rank of the adapters.")
@click.option("--lora-targets", metavar="NAMES", help="Modules to adapt, such as q_proj,v_proj; unset: all linear.")
@click.option("--precision", type=click.Choice(["auto", "bf16", "fp16", "fp32"]), default="auto", show_default=True,
              help="Fills an `auto` in bf16 or fp16.")
@click.option("--gradient-checkpointing", type=click.Choice(["on", "off"]), default="on", show_default=True,
              help="Recompute each layer in the backward pass.")
@click.option("--attention", type=click.Choice(["flash", "sdpa", "eager"]), default="sdpa", show_default=True,
              help="The attention implementation of the model.")
@click.option("--framework", type=click.Choice(["hf", "deepspeed"]), default="hf", show_default=True,
              help="Who fills `auto`, and builds a ZeRO-3 model in shards: the HF Trainer, or nobody.")
@click.option("--input-shape", metavar="SIZES", help="Shape of one sample for FILE.py:FACTORY, such as 3,32,32.")
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Which rank to be.")
@click.option("--iterations", type=COUNT, default=4, show_default=True, help="Optimizer steps.")
@click.option("--expandable-segments/--no-expandable-segments", default=True, show_default=True,
              help="The PYTORCH_CUDA_ALLOC_CONF setting that the advice prints.")
@click.option("--explain", is_flag=True, help="List the largest modules and tensors at the peak.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--offline", is_flag=True, help="Never use the network.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def dry_run(config: str, model: str, gpus: str, ram: str | None, seq_len: int | None, micro_batch: int | None,
            accumulation: int | None, method: str, lora_rank: int, lora_targets: str | None, precision: str,
            gradient_checkpointing: str, attention: str, framework: str, input_shape: str | None, rank: int,
            iterations: int, expandable_segments: bool, explain: bool, as_json: bool, offline: bool, debug: bool) -> int:
    """Run DS_CONFIG through the installed DeepSpeed's real engine, as one rank of the GPUs, on a simulated GPU.

    No GPU, no weights, no download: every tensor is fake, the code is real. Tells the bytes on GPU, host and NVMe by
    phase, and what the peak consists of.

    \b
    ds-advise dry-run ds_config.json --model Qwen2.5-14B --gpus 2x32GB
    ds-advise dry-run ds_config.json --model train.py:build_model --input-shape 3,32,32 --gpus RTX4090

    Exit code: 0 it fits, 1 it does not, 2 the run could not be done.
    """
    del debug  # read from the arguments by the program's error handler
    from ..dry_run_question import ask_dry_run

    answer = ask_dry_run(
        Path(config), model, gpus=gpus, ram=ram, seq_len=seq_len, micro_batch=micro_batch, accumulation=accumulation,
        method=method, lora_rank=lora_rank, lora_targets=lora_targets, precision=precision,
        gradient_checkpointing=gradient_checkpointing == "on", attention=attention, framework=framework,
        input_shape=input_shape, rank=rank, iterations=iterations, expandable_segments=expandable_segments,
        offline=offline)
    if as_json:
        print(json.dumps(answer.to_json(), indent=1))
    else:
        from rich.console import Console

        from ..dry_run_report import render_dry_run

        render_dry_run(answer, Console(file=sys.stdout, highlight=False), explain=explain)
    return 0 if answer.fits else 1
