"""`ds-advise check FILE...`: one line a requirement, and the exit code that a pipeline wants."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...estimators.json_form import SCHEMA_VERSION
from ..text.output import Output
from .options import compare_options, output_options

if TYPE_CHECKING:
    from rich.console import Console

    from ..answer.requirements import CheckResult


@click.command(short_help="Check configurations against requirements, one line each (CI).")
@click.argument("config_files", metavar="DS_CONFIG...", nargs=-1, required=True)
@click.option("--max-memory", metavar="SIZE", help="Allow at most so much memory of each GPU, such as 30GiB.")
@click.option("--max-ram", metavar="SIZE", help="Allow at most so much host RAM per node, such as 200GiB.")
@click.option("--min-tokens-per-second", type=float, metavar="N", help="Want at least this predicted speed in all.")
@click.option("--max-duration", metavar="TIME", help="Allow the whole job at most so long: 24h, 90m or 3d.")
@click.option("--max-cost", type=float, metavar="N", help="Allow the whole job to cost at most so much, by --price.")
@compare_options
@output_options
def check(config_files: tuple[str, ...], with_: dict[str, Any], output: Output, **said: Any) -> int:
    """Check DeepSpeed configurations against requirements, one line each.

    Lint must find no errors. With --model the plan must fit the GPUs too, and keep the limits that are given.

    \b
    ds-advise check ds_config.json
    ds-advise check ds_config.json --model Qwen2.5-7B --gpus 8xA100-80GB --min-tokens-per-second 20000
    ds-advise check ds_config.json --model Qwen2.5-7B --gpus 8xA100-80GB --tokens 1B --max-duration 24h

    Exit code: 0 all are met, 1 one is not, 2 a file cannot be read or the question cannot be answered.
    """
    from ..answer.comparison import read_context
    from ..answer.requirements import CheckResult, Limits, check_file
    from ..question.job import JobOptions

    model, spec = with_.pop("model"), with_.pop("gpus")
    job = JobOptions(**{field.name: with_.pop(field.name) for field in fields(JobOptions)})
    if model is None and (job.is_asked or any(value is not None for value in said.values())):
        raise click.UsageError("limits of memory, speed, time and cost need --model")
    if (said["max_duration"] or said["max_cost"]) and not job.is_asked:
        raise click.UsageError("--max-duration and --max-cost need --data, --samples or --tokens")
    if said["max_cost"] and job.price is None:
        raise click.UsageError("--max-cost needs --price")
    limits, framework = Limits.of(**said), with_["framework"]
    known = None if model is None else read_context(model, gpus=spec or "auto", job=job, say=output.say, **with_)
    found = [
        requirement
        for file in config_files
        for requirement in check_file(
            Path(file), known, limits, gpus=spec, framework=framework if framework == "deepspeed" else None
        )
    ]
    result = CheckResult(schema_version=SCHEMA_VERSION, met=all(each.met for each in found), requirements=tuple(found))
    output.show(lambda: result, lambda console: _render(result, console))
    return int(not result.met)


def _render(result: CheckResult, console: Console) -> None:
    """One line a requirement, whatever the terminal's width: a pipeline's log is searched by line."""
    from ..text.lines import printable

    for each in result.requirements:
        word = "ok  " if each.met else "FAIL"
        line = printable(f"{word}  {each.file}: {each.name}: {each.detail}")
        console.print(line, style="green" if each.met else "bold red", soft_wrap=True, markup=False)
