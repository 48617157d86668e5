"""`ds-advise doctor`: what will go wrong with DeepSpeed on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from ..text.output import Output
from .options import output_options


@click.command(short_help="Tell what will go wrong with DeepSpeed on this machine.")
@click.option("--nvme", metavar="PATH", help="Check this folder to swap to: its drive, file system, room and O_DIRECT.")
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Check the nodes of the deepspeed launcher's hostfile: names, ssh without a password, port, clocks.",
)
@click.option("--report", is_flag=True, help="Print a block for a bug report, without names, addresses and secrets.")
@output_options
def doctor(nvme: str | None, hostfile: Path | None, report: bool, output: Output) -> int:
    """Check versions, compilers, GPUs and their links, memory and its limits, cores, storage, variables, other nodes.

    Each line says what was seen and, where something is wrong, why it matters and what mends it. Nothing is changed. It
    needs neither torch nor a GPU nor any rights.

    \b
    ds-advise doctor
    ds-advise doctor --nvme /mnt/nvme --hostfile hostfile
    ds-advise doctor --report

    Exit code: 0 no problem (there may be warnings), 1 problems, 2 it could not be done.
    """
    if report and output.mode != "human":
        raise click.UsageError("--report prints a block of its own; leave --json and --quiet out")
    from ...validate.doctor import examine
    from ..render.doctor import render_doctor, report_block

    checkup = examine(nvme=nvme, hostfile=hostfile)
    if report:
        print(report_block(checkup))
    else:
        output.show(checkup.to_json, lambda console: render_doctor(checkup, console))
    return 1 if checkup.count("problem") else 0
