"""`ds-advise [advise] MODEL --gpus SPEC`: the recommendation, its configuration file, and the command that starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

_DEFAULT_OUTPUT = "ds_config.json"


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


def _without_effect(method: str) -> list[str]:
    """LoRA's options that were given although nothing is adapted."""
    given = click.get_current_context().get_parameter_source
    return [f"--{name.replace('_', '-')}" for name in ("lora_rank", "lora_targets")
            if method == "full" and given(name) is ParameterSource.COMMANDLINE]


@click.command(short_help="Recommend the fastest DeepSpeed configuration that fits.")
@click.argument("model", metavar="MODEL")
@click.option("--gpus", default="auto", metavar="SPEC", show_default=True,
              help="2x32GB, 8xA100-80GB, 4x8xH100 (nodes x GPUs x kind), RTX4090, or auto (this machine).")
@click.option("--ram", metavar="SIZE", help="Host RAM per node, such as 256GB; unset: detected on this machine.")
@click.option("--nvme", metavar="PATH:SIZE", help="Folder on an NVMe drive and its free space, such as /nvme:2TB.")
@click.option("--interconnect", metavar="RATE", help="Between nodes, one way per node, such as 200Gb/s.")
@click.option("--method", type=click.Choice(["full", "lora", "qlora"]), default="full", show_default=True,
              help="Train all weights, LoRA adapters, or LoRA on a 4-bit (NF4) base.")
@click.option("--lora-rank", type=COUNT, default=8, show_default=True, help="Rank of the adapters.")
@click.option("--lora-targets", metavar="NAMES", help="Modules to adapt, such as q_proj,v_proj; unset: all linear.")
@click.option("--seq-len", type=COUNT, help="Tokens per sample; unset: 2048, or the model's positions if fewer.")
@click.option("--global-batch", type=COUNT, help="Samples per optimizer step, kept exactly; unset: what is fastest.")
@click.option("--micro-batch", type=COUNT, help="Samples per GPU and forward pass; unset: what is fastest.")
@click.option("--precision", type=click.Choice(["auto", "bf16", "fp16", "fp32"]), default="auto", show_default=True,
              help="auto: bf16 where the GPU has it, else fp16.")
@click.option("--optimizer", default="adamw", metavar="NAME", show_default=True,
              help="adamw, adamw_8bit, adafactor, lion, muon, sgd, ...")
@click.option("--gradient-checkpointing", type=click.Choice(["auto", "on", "off"]), default="auto", show_default=True,
              help="Recompute each layer in the backward pass.")
@click.option("--attention", type=click.Choice(["flash", "sdpa", "eager"]), default="sdpa", show_default=True,
              help="The attention implementation of the model.")
@click.option("--loss", type=click.Choice(["standard", "fused"]), default="standard", show_default=True,
              help="fused: a loss that never holds all logits (Liger).")
@click.option("--framework", type=click.Choice(["hf", "deepspeed"]), default="hf", show_default=True,
              help="Flavour of the configuration: HF Trainer and accelerate, or plain deepspeed.initialize.")
@click.option("-o", "--output", default=_DEFAULT_OUTPUT, metavar="FILE", show_default=True,
              help="Where the configuration is written; - for stdout.")
@click.option("--no-write", is_flag=True, help="Write no file.")
@click.option("--force", is_flag=True, help="Overwrite a file that differs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--all", "all_candidates", is_flag=True, help="Every candidate, not only each rung's best.")
@click.option("--no-deepspeed-estimate", is_flag=True, help="Do not call DeepSpeed's own estimator (saves a second or two).")
@click.option("--verify", "verified", is_flag=True,
              help="Dry-run the recommendation through the real DeepSpeed engine, and the next best if it fails.")
@click.option("--offline", is_flag=True, help="Never use the network.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def advise(model: str, output: str, no_write: bool, force: bool, as_json: bool, all_candidates: bool,
           no_deepspeed_estimate: bool, verified: bool, debug: bool, lora_targets: str | None, **settings: Any) -> int:
    """Recommend the fastest DeepSpeed configuration that fits MODEL on the GPUs.

    MODEL is a name in any usual spelling (Qwen2.5-14B, llama3.1-8b, gpt2-xl), a folder or config.json, or a hub id.

    \b
    ds-advise Qwen2.5-14B --gpus 2x32GB
    ds-advise llama3.1-8b --gpus 8xA100-80GB --method lora --seq-len 8192
    ds-advise ./my-model --gpus 4x8xH100 --global-batch 512 --json

    Exit code: 0 a plan fits, 1 none does, 2 the question could not be answered.
    """
    del debug  # read from the arguments by the program's error handler
    from ..advise import advise as ask
    from ..outcome import Destination, deliver

    if as_json and output == "-":
        raise click.UsageError("--json and -o - both want stdout; leave one out")
    if not output:
        raise click.UsageError("--output is empty; name a file, or pass --no-write")
    targets = None if lora_targets is None else [name.strip() for name in lora_targets.split(",") if name.strip()]
    if targets == []:
        raise click.UsageError("--lora-targets names no module; leave it out for all linear layers")
    for option in _without_effect(settings["method"]):
        click.echo(f"ds-advise: {option} has no effect with --method full", err=True)
    answer = ask(model, lora_targets=targets, deepspeed_estimate=not no_deepspeed_estimate, **settings)
    if verified:
        from ..verify import verify

        answer = verify(answer, offline=settings["offline"], on_start=lambda candidate: click.echo(
            f"ds-advise: dry run of {candidate.rung} ...", err=True))
    destination: Destination = None if no_write else "-" if output == "-" else Path(output)
    return deliver(answer, destination, force=force, as_json=as_json, all_candidates=all_candidates)
