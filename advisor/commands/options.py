"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource


class _Count(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer versions of Click
    """A whole number of at least 1, in digits (`4096`)."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if not (text.isascii() and text.isdigit() and 0 < len(text) <= 9 and int(text) > 0):
            self.fail(f"{text[:40]!r} is not a whole number from 1 to 999999999", param, ctx)
        return int(text)


COUNT = _Count()

_LORA: tuple[Callable[[Any], Any], ...] = (
    click.option("--lora-rank", type=COUNT, default=8, show_default=True, help="Rank of the adapters."),
    click.option(
        "--lora-dropout",
        type=float,
        default=0.0,
        metavar="P",
        show_default=True,
        help="Dropout before each adapter, from 0 to below 1.",
    ),
    click.option("--lora-targets", metavar="NAMES", help="Modules to adapt, such as q_proj,v_proj; unset: all linear."),
)

_MACHINE_AND_METHOD: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--gpus",
        default="auto",
        metavar="SPEC",
        show_default=True,
        help="2x32GB, 8xA100-80GB, 4x8xH100 (nodes x GPUs x kind), RTX4090, or auto (this machine).",
    ),
    click.option("--ram", metavar="SIZE", help="Host RAM per node, such as 256GB; unset: detected on this machine."),
    click.option("--nvme", metavar="PATH:SIZE", help="Folder on an NVMe drive and its free space, such as /nvme:2TB."),
    click.option("--interconnect", metavar="RATE", help="Between nodes, one way per node, such as 200Gb/s."),
    click.option(
        "--method",
        type=click.Choice(["full", "lora", "qlora"]),
        default="full",
        show_default=True,
        help="Train all weights, LoRA adapters, or LoRA on a 4-bit (NF4) base.",
    ),
    *_LORA,
)

_STEP: tuple[Callable[[Any], Any], ...] = (
    click.option("--micro-batch", type=COUNT, help="Samples per GPU and forward pass; unset: what is fastest."),
    click.option(
        "--precision",
        type=click.Choice(["auto", "bf16", "fp16", "fp32"]),
        default="auto",
        show_default=True,
        help="auto: bf16 where the GPU has it, else fp16.",
    ),
    click.option(
        "--optimizer",
        default="adamw",
        metavar="NAME",
        show_default=True,
        help="adamw, adamw_8bit, adafactor, lion, muon, sgd, ...",
    ),
    click.option(
        "--gradient-checkpointing",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        show_default=True,
        help="Recompute each layer in the backward pass.",
    ),
    click.option(
        "--attention",
        type=click.Choice(["flash", "sdpa", "eager"]),
        default="sdpa",
        show_default=True,
        help="The attention implementation of the model.",
    ),
    click.option(
        "--loss",
        type=click.Choice(["standard", "fused"]),
        default="standard",
        show_default=True,
        help="fused: a loss that never holds all logits (Liger).",
    ),
)

_OFFLINE = click.option("--offline", is_flag=True, help="Never use the network.")

_QUESTION: tuple[Callable[[Any], Any], ...] = (
    click.argument("model", metavar="MODEL"),
    *_MACHINE_AND_METHOD,
    click.option("--seq-len", type=COUNT, help="Tokens per sample; unset: 2048, or the model's positions if fewer."),
    click.option(
        "--global-batch", type=COUNT, help="Samples per optimizer step, kept exactly; unset: what is fastest."
    ),
    *_STEP,
    click.option(
        "--framework",
        type=click.Choice(["hf", "deepspeed"]),
        default="hf",
        show_default=True,
        help="Flavour of the configuration: HF Trainer and accelerate, or plain deepspeed.initialize.",
    ),
    _OFFLINE,
)
_NAMES = (
    "model",
    "gpus",
    "ram",
    "nvme",
    "interconnect",
    "method",
    "lora_rank",
    "lora_dropout",
    "lora_targets",
    "seq_len",
    "global_batch",
    "micro_batch",
    "precision",
    "optimizer",
    "gradient_checkpointing",
    "attention",
    "loss",
    "framework",
    "offline",
)


_RUN: tuple[Callable[[Any], Any], ...] = (
    click.argument("config_file", metavar="DS_CONFIG"),
    click.option(
        "--model",
        required=True,
        metavar="MODEL",
        help="A name, folder, config.json or hub id; or FILE.py:FACTORY, a function of yours that returns a module.",
    ),
    click.option("--seq-len", type=COUNT, help="Tokens per sample; unset: 2048, or the model's positions if fewer."),
    click.option("--micro-batch", type=COUNT, help="Fills an `auto` micro batch.  [default: 1]"),
    click.option("--accumulation", type=COUNT, help="Fills `auto` gradient_accumulation_steps.  [default: 1]"),
    click.option(
        "--method",
        type=click.Choice(["full", "lora"]),
        default="full",
        show_default=True,
        help="Train all weights, or LoRA adapters through peft.",
    ),
    *_LORA,
    click.option(
        "--precision",
        type=click.Choice(["auto", "bf16", "fp16", "fp32"]),
        default="auto",
        show_default=True,
        help="Fills an `auto` in bf16 or fp16.",
    ),
    click.option(
        "--gradient-checkpointing",
        type=click.Choice(["on", "off"]),
        default="on",
        show_default=True,
        help="Recompute each layer in the backward pass.",
    ),
    click.option(
        "--attention",
        type=click.Choice(["flash", "sdpa", "eager"]),
        default="sdpa",
        show_default=True,
        help="The attention implementation of the model.",
    ),
    click.option(
        "--framework",
        type=click.Choice(["hf", "deepspeed"]),
        default="hf",
        show_default=True,
        help="Who fills `auto`, and builds a ZeRO-3 model in shards: the HF Trainer, or nobody.",
    ),
    click.option("--input-shape", metavar="SIZES", help="Shape of one sample for FILE.py:FACTORY, such as 3,32,32."),
    click.option("--offline", is_flag=True, help="Never use the network."),
)
_OPTIONAL_MODEL = click.option(
    "--model", metavar="MODEL", help="As for the advice; unset: what the script's arguments name."
)
_RUN_NAMES = (
    "config_file",
    "model",
    "seq_len",
    "micro_batch",
    "accumulation",
    "method",
    "lora_rank",
    "lora_dropout",
    "lora_targets",
    "precision",
    "gradient_checkpointing",
    "attention",
    "framework",
    "input_shape",
    "offline",
)


def run_options(command: Callable[..., int], *, model_required: bool = True) -> Callable[..., int]:
    """Gives a command the argument and options that say what is run, and hands it their values as `run`: arguments of
    `advisor.question.run.run_question` besides the cluster. model_required: without it `run["model"]` may be None."""

    @functools.wraps(command)
    def asked(**settings: Any) -> int:
        run = {name: settings.pop(name) for name in _RUN_NAMES}
        run["config_file"] = Path(run["config_file"])
        run["gradient_checkpointing"] = run["gradient_checkpointing"] == "on"
        return command(run=run, **settings)

    return _decorated(asked, _RUN if model_required else (_RUN[0], _OPTIONAL_MODEL, *_RUN[2:]))


def question_options(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command the argument and options that make up a question, and hands it their values as `question`:
    keyword arguments of `advisor.advise.advise`."""

    @functools.wraps(command)
    def asked(**settings: Any) -> int:
        question = {name: settings.pop(name) for name in _NAMES}
        question["lora_targets"] = _targets(question["lora_targets"])
        for option in _without_effect(question["method"]):
            click.echo(f"ds-advise: {option} has no effect with --method full", err=True)
        return command(question=question, **settings)

    return _decorated(asked, _QUESTION)


def training_question_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options of `question_options` for a training with data: MODEL is an option, and what is unset follows from
    the data. They reach the command under their own names, so that they can be kept with the training;
    `training_question` takes them."""
    return _decorated(
        command,
        (
            click.option(
                "--model", metavar="MODEL", help="A folder with config.json, tokenizer and safetensors, or a hub id."
            ),
            click.option("--data", metavar="FILE", help="Rows to train on: .jsonl, .json, .csv, .tsv or .parquet."),
            *_MACHINE_AND_METHOD,
            click.option(
                "--seq-len", type=COUNT, help="Tokens per sample; unset: the longest of the data, within the model's."
            ),
            click.option(
                "--global-batch", type=COUNT, help="Samples per optimizer step; unset: 32, fewer for little data."
            ),
            *_STEP,
            _OFFLINE,
        ),
    )


def training_question(options: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `advise` among a training's options, but for the model."""
    question = {name: options[name] for name in _NAMES if name not in ("model", "framework")}
    for option in _without_effect(question["method"], "lora_alpha", "merge"):
        click.echo(f"ds-advise: {option} has no effect with --method full", err=True)
    return {**question, "lora_targets": _targets(question["lora_targets"])}


def _decorated(command: Callable[..., int], options: Sequence[Callable[[Any], Any]]) -> Callable[..., int]:
    for decorate in reversed(options):
        command = decorate(command)
    return command


def _targets(text: str | None) -> list[str] | None:
    if text is None:
        return None
    targets = [name.strip() for name in text.split(",") if name.strip()]
    if not targets:
        raise click.UsageError("--lora-targets names no module; leave it out for all linear layers")
    return targets


def _without_effect(method: str, *further: str) -> list[str]:
    """LoRA's options, `further` ones too, that were given although nothing is adapted."""
    given = click.get_current_context().get_parameter_source
    return [
        f"--{name.replace('_', '-')}"
        for name in ("lora_rank", "lora_dropout", "lora_targets", *further)
        if method == "full" and given(name) is ParameterSource.COMMANDLINE
    ]
