"""`ds-advise bench`: this machine's own speeds, which later answers use."""

from __future__ import annotations

import json
import sys
from typing import Literal

import click

from .options import COUNT


@click.command(short_help="Measure this machine's own speeds, which answers then use.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="What trains.  [default: cuda where there is a GPU]")
@click.option("--ranks", type=COUNT, help="GPUs to use, or processes on the CPU.  [default: all GPUs, 2 on the CPU]")
@click.option(
    "--nvme", metavar="PATH", help="A folder on an NVMe drive: measure it, with a file that is removed again."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def bench(
    device: Literal["cuda", "cpu"] | None, ranks: int | None, nvme: str | None, as_json: bool, debug: bool
) -> int:
    """Measure matrix products, memory, links, collectives, CPU Adam and NVMe of this machine, each with its spread.

    It takes less than a minute; the first time longer, because DeepSpeed compiles its CPU Adam and its NVMe code. The
    result is kept, and answers about this machine (--gpus auto, --device cpu) use it in place of data sheets and
    assumptions.

    \b
    ds-advise bench
    ds-advise bench --nvme /mnt/nvme
    ds-advise bench --device cpu --ranks 2

    Exit code: 0, or 2 where it could not be done.
    """
    del debug  # read from the arguments by the program's error handler
    from ...probes.bench.ask import ask_bench

    record = ask_bench(
        device=device, ranks=ranks, nvme=nvme, on_progress=lambda title: click.echo(f"ds-advise: {title} ...", err=True)
    )
    if as_json:
        print(json.dumps(record.to_json(), indent=1))
        return 0
    from rich.console import Console

    from ..reports.bench import render_bench

    render_bench(record, Console(file=sys.stdout, highlight=False))
    return 0
