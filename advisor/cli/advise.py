"""The default command: `ds-advise [advise] MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...ds_configs.job import JobKind
from ..question.options import OPTIONS
from ..text.language import Language, language_of_environment
from ..text.output import Output
from .options import (
    EMIT,
    FORCE,
    LANG,
    MODEL_ARGUMENT,
    GroupedCommand,
    output_options,
    passed_options,
    question_options,
    report_options,
    warn_ignored,
)


@click.command(cls=GroupedCommand)
@MODEL_ARGUMENT
@question_options(tuple(OPTIONS), searches=True)
@click.option(
    "-o", "--output", "destination", default="ds_config.json", metavar="FILE", help="Output file; - is stdout."
)
@click.option("--no-write", is_flag=True, help="Do not write the configuration.")
@EMIT
@FORCE
@click.option(
    "--sharding",
    type=click.Choice(["zero", "fsdp"]),
    default="zero",
    help="Sharding; fsdp: also predict PyTorch's FSDP2 for comparison (on one GPU plain PyTorch).",
)
@click.option("--all", "all_candidates", is_flag=True, help="Show every candidate, not only the best of each strategy.")
@click.option(
    "--details",
    is_flag=True,
    help="Also show reasons, DeepSpeed's estimate, assumptions, script arguments and launchers.",
)
@click.option("--markdown", is_flag=True, help="Print a summary in GitHub's Markdown instead.")
@click.option("--no-deepspeed-estimate", is_flag=True, help="Do not call DeepSpeed's estimator (saves seconds).")
@click.option(
    "--verify", is_flag=True, help="Dry-run the recommended plan through DeepSpeed; if it fails, the next best plan."
)
@click.option("--probe", is_flag=True, help="Run the best candidates for a few steps on this machine.")
@click.option("--budget", metavar="TIME", default="30m", help="Time limit of --probe: 90s, 5m, 1h.")
@report_options("the memory of all plans; scaling.svg: memory and speed against length, batch, GPUs", own_force=True)
@LANG
@output_options
def advise(
    model: str,
    question: dict[str, Any],
    destination: str,
    no_write: bool,
    emit: tuple[JobKind, ...],
    force: bool,
    all_candidates: bool,
    details: bool,
    markdown: bool,
    no_deepspeed_estimate: bool,
    html: Path | None,
    plot: Path | None,
    language: Language | None,
    output: Output,
    **checks: Any,
) -> int:
    """Recommend the fastest DeepSpeed configuration that fits MODEL on the GPUs.

    MODEL is a name in any usual spelling (Qwen2.5-14B, llama3.1-8b, gpt2-xl), a folder or config.json, or a hub id.

    \b
    ds-advise Qwen2.5-14B --gpus 2x32GB
    ds-advise llama3.1-8b --gpus 8xA100-80GB --method lora --seq-len 8192
    ds-advise ./my-model --gpus 4x8xH100 --global-batch 512 --json

    Exit code: 0 if a plan fits, 1 if none fits, 2 if the question cannot be answered.
    """
    # Imported here: `--help` needs none of it.
    from ..advise import checked_answer
    from ..render.deliver import Destination, deliver

    if output.mode == "json" and destination == "-":
        raise click.UsageError("--json and -o - both write to stdout; leave one out")
    if no_write and "destination" in passed_options():
        raise click.UsageError("--output and --no-write contradict each other; leave one out")
    if emit and (no_write or destination == "-"):
        raise click.UsageError(
            "--emit writes files that refer to the configuration file; leave --no-write and -o - out"
        )
    if not checks["probe"]:
        warn_ignored("budget", "without --probe")
    if not destination:
        raise click.UsageError("--output is empty; name a file, or pass --no-write")
    if destination != "-" and not Path(destination).name:
        raise click.UsageError(f"--output {destination} is a folder; name a file in it, or pass --no-write")
    if markdown and (output.mode != "human" or destination == "-" or details or all_candidates):
        raise click.UsageError("--markdown prints a summary; leave --json, --quiet, -o -, --details and --all out")
    shows_estimate = output.mode == "json" or details or html is not None
    answer = checked_answer(
        model, deepspeed_estimate=shows_estimate and not no_deepspeed_estimate, say=output.say, **checks, **question
    )
    place: Destination = None if no_write else "-" if destination == "-" else Path(destination)
    return deliver(
        answer,
        place,
        output,
        force=force,
        all_candidates=all_candidates,
        details=details,
        markdown=markdown,
        emit=emit,
        html=html,
        plot=plot,
        language=language or language_of_environment(),
    )
