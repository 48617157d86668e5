"""`ds-advise doctor`: causes of failing or slow DeepSpeed trainings on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from ..text.output import Output
from .options import output_options


@click.command(short_help="Find causes of failing or slow DeepSpeed trainings on this machine.")
@click.option("--nvme", metavar="PATH", help="Check this folder to swap to: drive, file system, free space, O_DIRECT.")
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Check the nodes of the deepspeed launcher's hostfile: names, ssh without a password, port, GPUs.",
)
@click.option("--report", is_flag=True, help="Print a block for a bug report, without names, addresses and secrets.")
@output_options
def doctor(nvme: str | None, hostfile: Path | None, report: bool, output: Output) -> int:
    """Check versions, compilers, GPUs and their links, memory limits, cores, storage, variables and other nodes.

    Each line is an observation and, for a fault, why it matters and how to fix it. Nothing is changed. Neither torch
    nor a GPU nor permissions are needed.

    \b
    ds-advise doctor
    ds-advise doctor --nvme /mnt/nvme --hostfile hostfile
    ds-advise doctor --report

    Exit code: 0 no problem (there may be warnings), 1 problems, 2 an error.
    """
    if report and output.mode != "human":
        raise click.UsageError("--report cannot be combined with --json or --quiet")
    from ...estimators.json_form import to_json
    from ...validate.doctor import gather, judge
    from ..render.doctor import render_doctor, report_block

    facts = gather(nvme=nvme, hostfile=hostfile)
    checkup = judge(facts)
    if report:
        print(report_block(facts))
    else:
        output.show(lambda: to_json(checkup), lambda console: render_doctor(checkup, console))
    return 1 if checkup.counts["problem"] else 0
