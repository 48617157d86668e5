"""`ds-advise bench`: this machine's own speeds, which later answers use."""

from __future__ import annotations

from typing import Literal

import click

from ..text.output import Output
from .options import COUNT, output_options


@click.command(short_help="Measure this machine's own speeds, which answers then use.")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="Measure GPUs or the CPU.  [default: cuda where there is a GPU]",
)
@click.option(
    "--ranks", type=COUNT, help="Use so many GPUs, or processes on the CPU.  [default: all GPUs, 2 on the CPU]"
)
@click.option(
    "--nvme", metavar="PATH", help="Measure the NVMe drive of this folder, with a file that is removed again."
)
@output_options
def bench(device: Literal["cuda", "cpu"] | None, ranks: int | None, nvme: str | None, output: Output) -> int:
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
    from ...probes.bench.ask import ask_bench
    from ..render.bench import render_bench

    record = ask_bench(device=device, ranks=ranks, nvme=nvme, on_progress=lambda title: output.say(f"{title} ..."))
    output.show(record.to_json, lambda console: render_bench(record, console))
    return 0
