"""`ds-advise dry-run DS_CONFIG --model NAME --gpus SPEC`: the real engine on a simulated GPU, and where every byte
goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..text.output import Output
from .options import COUNT, gpus, output_options, run_options, share_options


@click.command("dry-run", short_help="Run a configuration through the real DeepSpeed engine on a simulated GPU.")
@run_options
@gpus("Name the GPUs, as for the advice: 2x32GB, 4x8xH100, ...")
@click.option(
    "--ram", metavar="SIZE", help="Set the host RAM per node, such as 256GB; without it host memory is not checked."
)
@click.option("--rank", type=click.IntRange(min=0), help="Be this rank; by default the one whose GPU is the fullest.")
@click.option(
    "--iterations",
    type=COUNT,
    default=4,
    show_default=True,
    help="Run at most so many optimizer steps; it stops when one repeats.",
)
@click.option(
    "--expandable-segments/--no-expandable-segments",
    default=True,
    show_default=True,
    help="Replay the allocator with the PYTORCH_CUDA_ALLOC_CONF setting that the advice prints.",
)
@click.option(
    "--fast",
    is_flag=True,
    help="Let three shallow models answer for the deep one where memory is linear in depth; else say why not.",
)
@click.option(
    "--timeline",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Write memory over time and the lanes of one step, for Perfetto or chrome://tracing.",
)
@share_options("memory over the run")
@click.option("--explain", is_flag=True, help="List the largest modules and tensors at the peak.")
@output_options
def dry_run(
    run: dict[str, Any],
    gpus: str,
    ram: str | None,
    timeline: Path | None,
    force: bool,
    explain: bool,
    html: Path | None,
    plot: Path | None,
    output: Output,
    **settings: Any,
) -> int:
    """Run DS_CONFIG through the installed DeepSpeed's real engine, as one rank of the GPUs, on a simulated GPU.

    No GPU, no weights, no download: every tensor is fake, the code is real. Tells the bytes on GPU, host and NVMe by
    phase, and what the peak consists of.

    \b
    ds-advise dry-run ds_config.json --model Qwen2.5-14B --gpus 2x32GB
    ds-advise dry-run ds_config.json --model train.py:build_model --input-shape 3,32,32 --gpus RTX4090

    Exit code: 0 it fits, 1 it does not, 2 the run could not be done.
    """
    from ..question.cluster import parse_cluster
    from ..question.run import read_run
    from ..render.dry_run import render_dry_run
    from ..verification.dry_run import check_trace_file, prove_by_dry_run, write_trace

    if settings["fast"] and (timeline or explain):
        raise click.UsageError("--fast extrapolates: it has no --timeline and nothing to --explain; leave it out")
    if timeline is not None:
        check_trace_file(timeline, force=force)
    if html or plot:
        from ..html_report.output_files import check_targets

        check_targets(html, plot, force=force)
    answer = prove_by_dry_run(read_run(**run, cluster=parse_cluster(gpus, ram=ram)), **settings)
    if timeline is not None:
        write_trace(answer, timeline)
    if html or plot:
        from ..html_report.dry_run import write_dry_run_report

        write_dry_run_report(answer, run["config_file"], html, plot, output.say)
    output.show(answer.to_json, lambda console: render_dry_run(answer, console, explain=explain))
    return 0 if answer.fit.fits else 1
