"""What a benchmark answers: figures with their spread, and what could not be measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

BENCH_VERSION = 2
"""Rises when a figure is measured in another way, so that new figures are not compared with old ones."""

FigureKind = Literal[
    "matrix_product",
    "attention_forward",
    "attention_backward",
    "elementwise_sum",
    "memory_copy",
    "launch",
    "host_to_device",
    "device_to_host",
    "host_memory",
    "new_memory",
    "host_score",
    "cpu_adam",
    "nvme_read",
    "nvme_write",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
]

COLLECTIVES: tuple[FigureKind, ...] = ("all_reduce", "all_gather", "reduce_scatter")

Unit = Literal["flop/s", "B/s", "parameters/s", "s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFigure:
    """One speed (or time, unit "s") and its spread.

    kind, how, size, of:
        matrix_product        dtype; n of an n x n by n x n product; one device
        attention_forward, attention_backward    dtype; tokens of a sample, all of which its last one sees (torch's
                              scaled_dot_product_attention, causal); one device
        elementwise_sum       dtype; bytes of an operand; two read, one written; one device
        memory_copy           dtype; bytes copied; one read, one written; one device
        new_memory            "": bytes of a block that the kernel maps and takes back, touched once a page; one process
                              (on the CPU alone)
        launch                "": seconds of the host for one operation on one element
        host_to_device, device_to_host    "pinned" or "pageable"; bytes copied
        host_memory           "": a sum as above, by all cores of the host together
        host_score            "": seconds of the single-thread workload of `probes/host_time/score.py`, whose rounds are
                              the size
        cpu_adam              "fp32": DeepSpeedCPUAdam, all cores; parameters updated at once
        nvme_read, nvme_write "aio": DeepSpeed's handle as the configurations set it; bytes of the file
        all_reduce, all_gather, reduce_scatter   "nccl" or "gloo"; bytes of the whole tensor; bus bandwidth, that is
                              bytes that the slowest link carries, as NVIDIA's nccl-tests count it; the smallest size in
                              seconds
    """

    kind: FigureKind
    how: str
    size: int
    unit: Unit
    median: float
    """This, the lowest and the highest are of `repeats` measurements, each of several calls where one is short."""
    lowest: float
    highest: float
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """What was not measured, and why."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A benchmark of this machine."""

    version: int
    device: Literal["cuda", "cpu"]
    ranks: int
    """How many devices took part in collectives. On the CPU the ranks share the cores, and the figures of one device
    are those of one rank while the others do the same."""
    figures: tuple[BenchFigure, ...]
    skipped: tuple[Skipped, ...]
    nvme_mount: str
    """Where the drive that was measured is mounted, "" when none was."""
    versions: Mapping[str, str]
    seconds: float
    """How long the whole benchmark took."""

    def best(self, kind: FigureKind, how: str | None = None) -> float | None:
        """The higher median rate of the two largest sizes, at which a rate has levelled off and noise is small; None
        without any."""
        rates = [
            figure
            for figure in self.figures
            if figure.kind == kind and figure.unit != "s" and how in (None, figure.how)
        ]
        large = sorted({figure.size for figure in rates})[-2:]
        return max((figure.median for figure in rates if figure.size in large), default=None)

    @property
    def memory_bytes_per_s(self) -> float | None:
        """Speed of one device's memory: the better of a sum and a copy."""
        return max(filter(None, (self.best("elementwise_sum"), self.best("memory_copy"))), default=None)

    @property
    def links_bytes_per_s(self) -> float | None:
        """Bus bandwidth between the devices: between that of all-gather and of reduce-scatter."""
        rates = list(filter(None, (self.best("all_gather"), self.best("reduce_scatter"))))
        return median(rates) if rates else None

    @property
    def collective_call_s(self) -> float | None:
        """Seconds of a collective that carries next to nothing: the middle one."""
        times = [figure.median for figure in self.figures if figure.kind in COLLECTIVES and figure.unit == "s"]
        return median(times) if times else None

    @property
    def host_score_s(self) -> float | None:
        """A core's single-thread score."""
        return next((figure.median for figure in self.figures if figure.kind == "host_score"), None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bench_from_json(values: Mapping[str, Any]) -> BenchResult:
    """The result that `to_json` wrote. By hand: answers read stored results and have no time to import pydantic."""
    figures = tuple(BenchFigure(**figure) for figure in values["figures"])
    return BenchResult(
        **{**values, "figures": figures, "skipped": tuple(Skipped(**skipped) for skipped in values["skipped"])}
    )


def figure(
    kind: FigureKind, how: str, size: int, work: float, samples: Sequence[float], unit: Unit = "B/s"
) -> BenchFigure:
    """The figure of calls that took `samples` seconds each; work: flops, bytes or parameters of one call, ignored for
    "s"."""
    values = sorted(samples if unit == "s" else (work / seconds for seconds in samples))
    return BenchFigure(
        kind=kind,
        how=how,
        size=size,
        unit=unit,
        median=median(values),
        lowest=values[0],
        highest=values[-1],
        repeats=len(values),
    )


def of_all_ranks(figures: Sequence[Sequence[BenchFigure]]) -> tuple[BenchFigure, ...]:
    """One figure for what every rank measured: the median rank's, with the spread over all of them."""
    return tuple(
        replace(
            same[0],
            median=median(one.median for one in same),
            lowest=min(one.lowest for one in same),
            highest=max(one.highest for one in same),
        )
        for same in zip(*figures, strict=True)
    )
