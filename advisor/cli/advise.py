"""`ds-advise [advise] MODEL --gpus SPEC`: the recommendation, its configuration, and the command that starts it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..gc_pause import collector_paused
from ..text.language import Language, language_of_environment
from ..text.output import Output
from .options import CPU_RANKS, device, memory, output_options, question_options, say_without_effect, share_options


@click.command(short_help="Recommend the fastest DeepSpeed configuration that fits.")
@question_options
@click.option(
    "-o",
    "--output",
    "destination",
    default="ds_config.json",
    metavar="FILE",
    show_default=True,
    help="Write the configuration to this file; - is stdout.",
)
@click.option("--no-write", is_flag=True, help="Write no file.")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@click.option(
    "--sharding",
    type=click.Choice(["zero", "fsdp"]),
    default="zero",
    show_default=True,
    help="With fsdp, also show what plain PyTorch would need (torch's optimizer alone on one GPU), for comparison.",
)
@click.option("--all", "all_candidates", is_flag=True, help="Show every candidate, not only each rung's best.")
@click.option(
    "--details",
    is_flag=True,
    help="Also show the reasons, DeepSpeed's own estimate, what is assumed, the script's arguments and every launcher.",
)
@click.option(
    "--lang",
    "language",
    type=click.Choice(["en", "zh"]),
    help="Print the answer in English or Chinese; by default as LANGUAGE, LC_ALL, LC_MESSAGES or LANG say.",
)
@click.option("--markdown", is_flag=True, help="Print a summary in GitHub's Markdown instead, to paste into an issue.")
@click.option(
    "--no-deepspeed-estimate", is_flag=True, help="Do not call DeepSpeed's own estimator (saves a second or two)."
)
@click.option(
    "--verify",
    is_flag=True,
    help="Dry-run the recommendation through the real DeepSpeed engine, and the next best if it fails.",
)
@click.option(
    "--probe", is_flag=True, help="Settle it by a few real runs on this machine; needs --gpus auto, or --device cpu."
)
@click.option(
    "--budget", metavar="TIME", default="30m", show_default=True, help="Limit the time of the probes: 90s, 5m, 1h."
)
@share_options("every plan's memory against the GPU", force=False)
@device()
@CPU_RANKS
@memory()
@output_options
@collector_paused()
def advise(
    question: dict[str, Any],
    destination: str,
    no_write: bool,
    force: bool,
    sharding: str,
    all_candidates: bool,
    details: bool,
    language: Language | None,
    markdown: bool,
    no_deepspeed_estimate: bool,
    html: Path | None,
    plot: Path | None,
    output: Output,
    **proofs: Any,
) -> int:
    """Recommend the fastest DeepSpeed configuration that fits MODEL on the GPUs.

    MODEL is a name in any usual spelling (Qwen2.5-14B, llama3.1-8b, gpt2-xl), a folder or config.json, or a hub id.

    \b
    ds-advise Qwen2.5-14B --gpus 2x32GB
    ds-advise llama3.1-8b --gpus 8xA100-80GB --method lora --seq-len 8192
    ds-advise ./my-model --gpus 4x8xH100 --global-batch 512 --json

    Exit code: 0 a plan fits, 1 none does, 2 the question could not be answered.
    """
    from ..advise import answer_with_proofs
    from ..render.deliver import Destination, deliver

    if output.mode == "json" and destination == "-":
        raise click.UsageError("--json and -o - both want stdout; leave one out")
    if no_write and click.get_current_context().get_parameter_source("destination") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--output and --no-write contradict each other; leave one out")
    if not proofs["probe"]:
        say_without_effect("budget", "without --probe")
    if not destination:
        raise click.UsageError("--output is empty; name a file, or pass --no-write")
    if markdown and output.mode != "human":
        raise click.UsageError("--markdown is an answer of its own; leave --json and --quiet out")
    if markdown and (destination == "-" or details or all_candidates):
        raise click.UsageError("--markdown prints a summary; leave -o -, --details and --all out")
    if html or plot:
        from ..html_report.output_files import check_targets

        check_targets(html, plot, force=force)
    shows_estimate = output.mode == "json" or details or html is not None
    answer = answer_with_proofs(
        {**question, "sharding": sharding},
        say=output.say,
        no_deepspeed_estimate=no_deepspeed_estimate or not shows_estimate,
        **proofs,
    )
    place: Destination = None if no_write else "-" if destination == "-" else Path(destination)
    path, instead = str(place) if isinstance(place, Path) else "ds_config.json", None
    if html or plot:
        from ..html_report.advice import write_advice_report

        write_advice_report(answer, path, html, plot, say=output.say)
    if markdown:
        from ..render.markdown import advice_markdown

        instead = partial(advice_markdown, config_path=path)
    return deliver(
        answer,
        place,
        output,
        force=force,
        all_candidates=all_candidates,
        details=details,
        instead=instead,
        language=language or language_of_environment(),
    )
