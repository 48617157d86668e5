"""A benchmark for people: every speed with its spread, what was not measured, and who uses it."""

from __future__ import annotations

from rich.console import Console

from ...probes.benchmark_result import BenchFigure, BenchResult, bench_from_json
from ...probes.machine import Machine
from ...probes.store import Record
from ..text.lines import blank, cells, sentence
from ..text.units import amount, amounts, count, gib, size
from ..text.units import seconds as duration

TITLES = {
    "matrix_product": "matrix product",
    "attention_forward": "attention forward",
    "attention_backward": "attention backward",
    "elementwise_sum": "sum in device memory",
    "memory_copy": "copy in device memory",
    "new_memory": "new memory, page by page",
    "launch": "launching an operation",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "host_memory": "sum in host memory",
    "host_score": "a core, single-threaded",
    "cpu_adam": "DeepSpeedCPUAdam",
    "nvme_read": "NVMe read",
    "nvme_write": "NVMe write",
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
}


def render_bench(record: Record, console: Console) -> None:
    """Print everything."""
    result = bench_from_json(record.result)
    sentence(console, f"This machine: {machine_title(record.machine)}.", style="bold")
    sentence(
        console,
        f"{_devices(result)}; measured in {duration(result.seconds)} with torch {result.versions['torch']}, "
        f"DeepSpeed {result.versions['deepspeed']}.",
    )
    blank(console)
    cells(console, f"  {'':<28}{'size':>9}{'median':>20}   lowest to highest", style="bold")
    for figure in result.figures:
        cells(console, _line(figure))
    blank(console)
    for skipped in result.skipped:
        sentence(console, f"Not measured: {skipped.what}: {skipped.reason}.")
    if record.id is not None:
        option = "--gpus auto" if result.device == "cuda" else "--device cpu"
        sentence(
            console,
            f"Kept as number {record.id} (ds-advise history). Answers to {option} on this machine use these "
            "speeds from now on.",
        )


def machine_title(machine: Machine) -> str:
    """`2 x L4, AMD EPYC 7742, 8 cores, 64.0 GiB of RAM`."""
    kinds = [f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus)]
    cores = f"{machine.cpu_cores} core{'s' * (machine.cpu_cores != 1)}"
    return ", ".join((*kinds, machine.cpu, cores, f"{gib(machine.ram_bytes)} GiB of RAM"))


def _devices(result: BenchResult) -> str:
    if result.device == "cuda":
        return f"{result.ranks} GPU{'s' * (result.ranks != 1)}"
    return f"The CPU as {result.ranks} rank{'s' * (result.ranks != 1)} that share the cores"


def _line(figure: BenchFigure) -> str:
    title = TITLES[figure.kind] + (f", {figure.how}" if figure.how and not figure.kind.startswith("nvme") else "")
    large = {
        "matrix_product": f"{figure.size}",
        "attention_forward": f"{figure.size}",
        "attention_backward": f"{figure.size}",
        "launch": "",
        "host_score": "",
        "cpu_adam": count(figure.size),
    }.get(figure.kind, size(figure.size))
    spread = amounts((figure.lowest, figure.highest), figure.median)
    return f"  {title:<28}{large:>9}{amount(figure.median, figure.unit):>20}   {spread}"
