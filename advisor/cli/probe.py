"""`ds-advise probe DS_CONFIG --model NAME`: a few real steps on this machine, beside the predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from ..text.output import Output
from .options import CPU_RANKS, device, gpus, memory, output_options, run_options, share_options


@click.command(short_help="Run a configuration for a few real steps on this machine.")
@run_options
@gpus("Use these GPUs of this machine, such as 2x24GB; with --solo, name those of the whole job.")
@device("Run on GPUs, or on DeepSpeed's CPU accelerator with ranks joined by gloo.")
@CPU_RANKS
@click.option(
    "--solo", is_flag=True, help="Run one rank of the job alone, on one device: its memory without the others."
)
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Be this rank, with --solo.")
@click.option(
    "--steps", type=click.IntRange(min=4, max=1000), default=4, show_default=True, help="Run so many optimizer steps."
)
@memory()
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(min=1),
    default=1800,
    show_default=True,
    metavar="SECONDS",
    help="Give up after so many seconds.",
)
@click.option(
    "--stall",
    "stall_s",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Call a phase a hang after so many seconds without progress.",
)
@click.option("--dry-run/--no-dry-run", "dry", default=True, show_default=True, help="Put a dry run beside it.")
@share_options()
@output_options
def probe(
    run: dict[str, Any],
    gpus: str,
    device: Literal["cuda", "cpu"],
    ranks: int | None,
    memory: str | None,
    html: Path | None,
    force: bool,
    output: Output,
    **settings: Any,
) -> int:
    """Run DS_CONFIG for a few real optimizer steps on this machine, and put the measured memory and time beside what
    was predicted. Random weights, unless MODEL is a folder with safetensors; a batch of full sequences.

    \b
    ds-advise probe ds_config.json --model Qwen2.5-1.5B
    ds-advise probe ds_config.json --model Qwen2.5-14B --gpus 8x8xH100 --solo
    ds-advise probe ds_config.json --model ./tiny --device cpu --ranks 2

    Exit code: 0 it ran, 1 it failed (and why), 2 the probe could not be made.
    """
    if html:
        from ..html_report.output_files import check_targets

        check_targets(html, None, force=force)
    from ..question.cluster import ClusterOptions
    from ..question.run import read_run
    from ..render.probe import render_probe
    from ..verification.probe import prove_by_probe

    machines = ClusterOptions(gpus=gpus, device=device, ranks=ranks, memory=memory)
    answer = prove_by_probe(
        read_run(**run, cluster=machines.cluster_here(devices=1 if settings["solo"] else None)),
        device=device,
        memory_limit_bytes=machines.memory_limit_bytes,
        on_progress=output.say,
        **settings,
    )
    if html:
        from ..html_report.probe import write_probe_report

        write_probe_report(answer, run["config_file"], html, output.say)
    output.show(answer.to_json, lambda console: render_probe(answer, console))
    return 0 if answer.result.failure is None else 1
