"""`ds-advise doctor`: what will go wrong with DeepSpeed on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command(short_help="Tell what will go wrong with DeepSpeed on this machine.")
@click.option("--nvme", metavar="PATH", help="A folder to swap to: its drive, file system, room and O_DIRECT.")
@click.option(
    "--hostfile", metavar="FILE", help="The deepspeed launcher's: names, ssh without a password, port, clocks."
)
@click.option("--report", is_flag=True, help="Print a block for a bug report, without names, addresses and secrets.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def doctor(nvme: str | None, hostfile: str | None, report: bool, as_json: bool, debug: bool) -> int:
    """Check versions, compilers, GPUs and their links, memory and its limits, cores, storage, variables, other nodes.

    Each line says what was seen and, where something is wrong, why it matters and what mends it. Nothing is changed. It
    needs neither torch nor a GPU nor any rights.

    \b
    ds-advise doctor
    ds-advise doctor --nvme /mnt/nvme --hostfile hostfile
    ds-advise doctor --report

    Exit code: 0 no problem (there may be warnings), 1 problems, 2 it could not be done.
    """
    del debug  # read from the arguments by the program's error handler
    if report and as_json:
        raise click.UsageError("--report and --json both want stdout; leave one out")
    from ...validate.doctor import examine

    checkup = examine(nvme=nvme, hostfile=None if hostfile is None else Path(hostfile))
    if as_json:
        print(json.dumps(checkup.to_json(), indent=1))
    else:
        from rich.console import Console

        from ..reports.doctor import render_doctor, report_block

        if report:
            print(report_block(checkup))
        else:
            render_doctor(checkup, Console(file=sys.stdout, highlight=False))
    return 1 if checkup.count("problem") else 0
