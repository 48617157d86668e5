"""`ds-advise compare A B`: two configurations, or plans by the name of their rung, side by side."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from ..text.output import Output
from .options import compare_options, output_options, share_options


@click.command(short_help="Compare two configurations: what differs, and what that does.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@compare_options
@share_options("both sides' memory against the GPU")
@output_options
def compare(
    first: str,
    second: str,
    with_: dict[str, Any],
    html: Path | None,
    plot: Path | None,
    force: bool,
    output: Output,
) -> int:
    """Compare two ds_config.json, or rungs such as zero2-offload, or one with the other.

    What is missing has DeepSpeed's default and `auto` has what fills it, so that only true differences are shown.

    \b
    ds-advise compare old.json new.json
    ds-advise compare old.json zero3 --model Qwen2.5-14B --gpus 4xA100-80GB --ram 512GB
    ds-advise compare zero2-offload zero3 --model Qwen2.5-7B --gpus 2x48GB --micro-batch 4

    Exit code: 0, or 2 where one cannot be read or cannot run.
    """
    from ..answer.comparison import compare as compare_sides
    from ..answer.comparison import read_context
    from ..question.job import JobOptions
    from ..render.comparison import render_comparison

    model, spec = with_.pop("model"), with_.pop("gpus")
    job = JobOptions(**{field.name: with_.pop(field.name) for field in fields(JobOptions)})
    if job.is_asked and model is None:
        raise click.UsageError("a job's duration needs --model: time follows from it")
    if spec is not None and model is None:
        raise click.UsageError("--gpus needs --model: memory and speed follow from both")
    if plot and model is None:
        raise click.UsageError("--plot needs --model: it draws memory")
    if html or plot:
        from ..html_report.output_files import check_targets

        check_targets(html, plot, force=force)
    context = None if model is None else read_context(model, gpus=spec or "auto", job=job, say=output.say, **with_)
    comparison = compare_sides(first, second, context)
    if html or plot:
        from ..html_report.comparison import write_comparison_report

        write_comparison_report(comparison, html, plot, output.say)
    output.show(comparison.to_json, lambda console: render_comparison(comparison, console))
    return 0
