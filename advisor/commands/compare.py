"""`ds-advise compare A B`: two configurations, or plans by the name of their rung, side by side."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from .options import COUNT


@click.command(short_help="Two configurations side by side: what differs, and what that does.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--model", metavar="MODEL", help="A name, folder, config.json or hub id; with it memory and speed are compared."
)
@click.option("--gpus", metavar="SPEC", help="As for the advice: 2x32GB, 4x8xH100, ...; unset: auto.")
@click.option("--ram", metavar="SIZE", help="Host RAM per node, such as 256GB.")
@click.option("--nvme", metavar="PATH:SIZE", help="Folder on an NVMe drive and its free space, such as /nvme:2TB.")
@click.option("--interconnect", metavar="RATE", help="Between nodes, one way per node, such as 200Gb/s.")
@click.option(
    "--method",
    type=click.Choice(["full", "lora", "qlora"]),
    default="full",
    show_default=True,
    help="Train all weights, LoRA adapters, or LoRA on a 4-bit (NF4) base.",
)
@click.option("--lora-rank", type=COUNT, default=8, show_default=True, help="Rank of the adapters.")
@click.option(
    "--lora-dropout", type=float, default=0.0, metavar="P", show_default=True, help="Dropout before each adapter."
)
@click.option("--lora-targets", metavar="NAMES", help="Modules to adapt, such as q_proj,v_proj; unset: all linear.")
@click.option("--seq-len", type=COUNT, help="Tokens per sample; unset: 2048, or the model's positions if fewer.")
@click.option("--micro-batch", type=COUNT, help="Fills `auto`.  [default: 1; for a rung what is fastest]")
@click.option("--accumulation", type=COUNT, help="Fills `auto` gradient_accumulation_steps.  [default: 1]")
@click.option(
    "--precision",
    type=click.Choice(["auto", "bf16", "fp16", "fp32"]),
    default="auto",
    show_default=True,
    help="Fills `auto`, and of rungs.",
)
@click.option(
    "--optimizer", default="adamw", metavar="NAME", show_default=True, help="Where a file names none, and of rungs."
)
@click.option(
    "--gradient-checkpointing",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Recompute each layer in the backward pass.",
)
@click.option(
    "--attention",
    type=click.Choice(["flash", "sdpa", "eager"]),
    default="sdpa",
    show_default=True,
    help="The attention implementation of the model.",
)
@click.option(
    "--loss",
    type=click.Choice(["standard", "fused"]),
    default="standard",
    show_default=True,
    help="fused: a loss that never holds all logits (Liger).",
)
@click.option(
    "--framework",
    type=click.Choice(["hf", "deepspeed"]),
    default="hf",
    show_default=True,
    help="Who trains: the HF Trainer, or plain DeepSpeed.",
)
@click.option("--offline", is_flag=True, help="Never use the network.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def compare(
    first: str, second: str, model: str | None, gpus: str | None, as_json: bool, debug: bool, **options: Any
) -> int:
    """Compare two ds_config.json, or rungs such as zero2-offload, or one with the other.

    What is missing has DeepSpeed's default and `auto` has what fills it, so that only true differences are shown.

    \b
    ds-advise compare old.json new.json
    ds-advise compare old.json zero3 --model Qwen2.5-14B --gpus 4xA100-80GB --ram 512GB
    ds-advise compare zero2-offload zero3 --model Qwen2.5-7B --gpus 2x48GB --micro-batch 4

    Exit code: 0, or 2 where one cannot be read or cannot run.
    """
    del debug  # read from the arguments by the program's error handler
    if gpus is not None and model is None:
        raise click.UsageError("--gpus needs --model: memory and speed follow from both")
    from ..compare.comparison import circumstances_of
    from ..compare.comparison import compare as compared

    options["gradient_checkpointing"] = options["gradient_checkpointing"] == "on"
    circumstances = None if model is None else circumstances_of(model, gpus=gpus or "auto", **options)
    comparison = compared(first, second, circumstances)
    if as_json:
        print(json.dumps(comparison.to_json(), indent=1))
        return 0
    from rich.console import Console

    from ..compare.report import render_comparison

    render_comparison(comparison, Console(file=sys.stdout, highlight=False))
    return 0
