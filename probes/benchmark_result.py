"""The result of a benchmark: figures with their spread, and groups that could not be measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

BENCH_VERSION = 3
"""Increases when the measurement of a figure changes, so that old and new figures are not compared."""

MOST_SPREAD = 2.0
"""Ratio of the highest to the lowest value above which a figure is uncertain. Assumed."""

_NOISY_SHARE = 0.25
"""Share of uncertain rates above which a benchmark was disturbed. Assumed."""

FigureKind = Literal[
    "matrix_product",
    "attention_forward",
    "attention_backward",
    "elementwise_sum",
    "memory_copy",
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
        attention_forward, attention_backward    dtype; tokens of a sample (torch's causal
                              scaled_dot_product_attention); one device
        elementwise_sum       dtype; bytes of an operand; two read, one written; one device
        memory_copy           dtype; bytes copied; one read, one written; one device
        new_memory            "": bytes of a newly mapped block, touched once per page; one process (CPU only)
        host_to_device, device_to_host    "pinned" or "pageable"; bytes copied
        host_memory           "": a sum as above, by all cores of the host
        host_score            "": seconds of the single-thread workload `HostScore`, whose rounds are the size
        cpu_adam              "fp32": DeepSpeedCPUAdam, all cores; parameters of one step
        nvme_read, nvme_write "aio": DeepSpeed's handle as the configurations set it; bytes of the file
        all_reduce, all_gather, reduce_scatter   "nccl" or "gloo"; bytes of the whole tensor; bus bandwidth, that is
                              bytes over the slowest link, as in NVIDIA's nccl-tests; the smallest size in seconds
    """

    kind: FigureKind
    how: str
    size: int
    unit: Unit
    median: float
    """Over `repeats` measurements, like `lowest` and `highest`; a measurement has several calls if one is short."""
    lowest: float
    highest: float
    repeats: int

    @property
    def spread(self) -> float:
        """Ratio of the highest to the lowest value."""
        return self.highest / self.lowest if self.lowest else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A group of figures that was not measured."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A benchmark of this machine."""

    version: int
    device: Literal["cuda", "cpu"]
    ranks: int
    """Number of devices in collectives. On the CPU the ranks share the cores, and all of them measure the figures of
    one device at the same time."""
    figures: tuple[BenchFigure, ...]
    skipped: tuple[Skipped, ...]
    nvme_mount: str
    """Mount point of the measured drive; "" if none was measured."""
    versions: Mapping[str, str]
    seconds: float
    """Duration of the benchmark."""

    @property
    def is_noisy(self) -> bool:
        """Whether so many rates are uncertain that the machine was busy. Times of a few microseconds do not count."""
        rates = [figure for figure in self.figures if figure.unit != "s"]
        return sum(figure.spread > MOST_SPREAD for figure in rates) > _NOISY_SHARE * len(rates)

    @property
    def fp32_to_bf16(self) -> float | None:
        """Ratio of the rate of products in fp32 to that in bf16; None if one of them was not measured."""
        bf16, fp32 = (self.best("matrix_product", how=how) for how in ("bf16", "fp32"))
        return fp32 / bf16 if bf16 and fp32 else None

    def best(self, kind: FigureKind, how: str | None = None) -> float | None:
        """The higher median rate of the two largest sizes, where the rate has saturated; None if there are none."""
        rates = [
            figure
            for figure in self.figures
            if figure.kind == kind and figure.unit != "s" and how in (None, figure.how)
        ]
        large = sorted({figure.size for figure in rates})[-2:]
        return max((figure.median for figure in rates if figure.size in large), default=None)

    @property
    def memory_bytes_per_s(self) -> float | None:
        """Memory bandwidth of one device: the higher rate of sum and copy."""
        return max(filter(None, (self.best("elementwise_sum"), self.best("memory_copy"))), default=None)

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """Bandwidth between pinned host memory and one device: the slower direction."""
        up, down = (self.best(kind, how="pinned") for kind in ("host_to_device", "device_to_host"))
        return min(up, down) if up and down else None

    @property
    def links_bytes_per_s(self) -> float | None:
        """Bus bandwidth between the devices: the mean of all-gather and reduce-scatter."""
        rates = list(filter(None, (self.best("all_gather"), self.best("reduce_scatter"))))
        return median(rates) if rates else None

    @property
    def collective_call_s(self) -> float | None:
        """Seconds of a collective of a few bytes: the median over the kinds of collectives."""
        times = [figure.median for figure in self.figures if figure.kind in COLLECTIVES and figure.unit == "s"]
        return median(times) if times else None

    @property
    def host_score_s(self) -> float | None:
        """The single-thread score of a core."""
        return next((figure.median for figure in self.figures if figure.kind == "host_score"), None)


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


def merge_ranks(figures: Sequence[Sequence[BenchFigure]]) -> tuple[BenchFigure, ...]:
    """The figures of the median rank, with the spread over all ranks."""
    return tuple(
        replace(
            same[0],
            median=median(one.median for one in same),
            lowest=min(one.lowest for one in same),
            highest=max(one.highest for one in same),
        )
        for same in zip(*figures, strict=True)
    )
