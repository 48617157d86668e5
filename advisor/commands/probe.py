"""`ds-advise probe DS_CONFIG --model NAME`: a few real steps on this machine, beside the predictions."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from .options import COUNT, run_options


@click.command(short_help="Run a configuration for a few real steps on this machine.")
@run_options
@click.option(
    "--gpus",
    default="auto",
    metavar="SPEC",
    show_default=True,
    help="The GPUs of this machine to use, such as 2x24GB; with --solo, of the job that one rank is run of.",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="cpu: DeepSpeed's CPU accelerator, ranks joined by gloo.",
)
@click.option("--ranks", type=COUNT, help="Ranks with --device cpu.  [default: 2]")
@click.option(
    "--solo", is_flag=True, help="Run one rank of the job alone, on one device: its memory without the others."
)
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Which rank, with --solo.")
@click.option("--steps", type=click.IntRange(min=4, max=1000), default=4, show_default=True, help="Optimizer steps.")
@click.option(
    "--memory", metavar="SIZE", help="What each rank may take with --device cpu, such as 2GB; unset: no limit."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(min=1),
    default=1800,
    show_default=True,
    metavar="SECONDS",
    help="When the whole is given up.",
)
@click.option(
    "--stall",
    "stall_s",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="When a phase without progress is called a hang.",
)
@click.option("--dry-run/--no-dry-run", "dry", default=True, show_default=True, help="Put a dry run beside it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def probe(run: dict[str, Any], as_json: bool, debug: bool, **settings: Any) -> int:
    """Run DS_CONFIG for a few real optimizer steps on this machine, and put the measured memory and time beside what
    was predicted. Random weights, unless MODEL is a folder with safetensors; a batch of full sequences.

    \b
    ds-advise probe ds_config.json --model Qwen2.5-1.5B --gpus 2x24GB
    ds-advise probe ds_config.json --model Qwen2.5-14B --gpus 8x8xH100 --solo
    ds-advise probe ds_config.json --model ./tiny --device cpu --ranks 2

    Exit code: 0 it ran, 1 it failed (and why), 2 the probe could not be made.
    """
    del debug  # read from the arguments by the program's error handler
    from ..prove.probe_question import ask_probe

    answer = ask_probe(**run, **settings, on_progress=lambda text: click.echo(f"ds-advise: {text}", err=True))
    if as_json:
        print(json.dumps(answer.to_json(), indent=1))
    else:
        from rich.console import Console

        from ..prove.probe_report import render_probe

        render_probe(answer, Console(file=sys.stdout, highlight=False))
    return 0 if answer.result.failure is None else 1
