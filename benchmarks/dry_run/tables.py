"""The errors of the closed form as Markdown tables, and which targets they miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from ..numbers import printed
from .compare import COMPONENTS, Comparison, relative_error

MEAN_ALLOCATED, WORST_ALLOCATED, WORST_HOST, WORST_NVME = 0.03, 0.08, 0.05, 0.02
"""Targets: errors of the allocated peak, of host bytes and of NVMe bytes."""

LARGE_BYTES = 4 << 30
"""Peaks beside which the constant part of the allocator's slack is small."""

_AXES: tuple[tuple[str, Callable[[Comparison], object]], ...] = (
    ("strategy", lambda row: row.case.strategy),
    ("family", lambda row: row.case.model),
    ("checkpointing", lambda row: "on" if row.case.checkpointing else "off"),
    ("method", lambda row: row.case.method),
    ("sequence", lambda row: row.case.seq_len),
    ("world size", lambda row: row.case.world_size),
)


def missed(rows: Sequence[Comparison]) -> list[str]:
    """The targets that the rows miss, in words."""
    allocated = [abs(relative_error(row.allocated)) for row in rows]
    host, nvme = _errors(rows, "host"), _errors(rows, "nvme")
    checks = (
        (fmean(allocated) if allocated else 0.0, MEAN_ALLOCATED, "mean error of the allocated peak"),
        (max(allocated, default=0.0), WORST_ALLOCATED, "largest error of the allocated peak"),
        (max(map(abs, host), default=0.0), WORST_HOST, "largest error of host bytes"),
        (max(map(abs, nvme), default=0.0), WORST_NVME, "largest error of NVMe bytes"),
    )
    return [f"{what} is {value:.1%}, the target is {target:.0%}" for value, target, what in checks if value > target]


def figures(rows: Sequence[Comparison]) -> dict[str, str]:
    """Figures of docs/numbers.json: how many cases there are, and the errors of the allocated peak."""
    errors = [abs(relative_error(row.allocated)) for row in rows]
    return {"plans": str(len(rows)), "mean": printed(fmean(errors), 2), "worst": printed(max(errors), 1)}


def report(rows: Sequence[Comparison], *, versions: str, total: int) -> str:
    """Every table; `total`: how many cases there are."""
    errors = [relative_error(row.allocated) for row in rows]
    worst = max(rows, key=lambda row: abs(relative_error(row.allocated)))
    lines = [
        f"{len(rows)} of {total} cases, {versions}. Allocated peak: mean error {_mean(errors):.2%}, largest "
        f"{relative_error(worst.allocated):+.1%} ({worst.case.name}).",
        "",
        "| | cases | mean error | lowest | highest |",
        "|---|---|---|---|---|",
    ]
    for axis, key in _AXES:
        for value in dict.fromkeys(sorted((key(row) for row in rows), key=_order)):
            some = [relative_error(row.allocated) for row in rows if key(row) == value]
            lines.append(f"| {axis} {value} | {_cells(some)} |")
    lines += ["", "| bytes | cases | mean error | lowest | highest |", "|---|---|---|---|---|"]
    for kind in ("allocated", "reserved", "host", "nvme"):
        some = _errors(rows, kind)
        if some:
            lines.append(f"| {kind} | {_cells(some)} |")
    for stage in ("ddp", "zero1", "zero2", "zero3"):
        some = [relative_error(row.reserved) for row in rows if row.case.strategy.startswith(stage)]
        if some:
            lines.append(f"| reserved, {stage} | {_cells(some)} |")
    large = [row for row in rows if row.allocated[1] >= LARGE_BYTES]
    if large:
        for name, pairs in (("reserved", [row.reserved for row in large]), ("held", [row.held for row in large])):
            lines.append(
                f"| {name}, peaks of {LARGE_BYTES >> 30} GiB and more | {_cells(list(map(relative_error, pairs)))} |"
            )
    lines += ["", "| component, as a share of the peak | mean error | lowest | highest |", "|---|---|---|---|"]
    for name in COMPONENTS:
        some = [row.component_error(name) for row in rows]
        lines.append(f"| {name} | {_mean(some):.2%} | {min(some):+.1%} | {max(some):+.1%} |")
    return "\n".join(lines) + "\n"


def _order(value: object) -> tuple[int, str]:
    return (value, "") if isinstance(value, int) else (0, str(value))


def _errors(rows: Iterable[Comparison], kind: str) -> list[float]:
    """Of one kind of bytes, where there are any."""
    pairs = (getattr(row, kind) for row in rows)
    return [relative_error(pair) for pair in pairs if pair[1]]


def _mean(errors: Sequence[float]) -> float:
    return fmean(map(abs, errors))


def _cells(errors: Sequence[float]) -> str:
    return f"{len(errors)} | {_mean(errors):.2%} | {min(errors):+.1%} | {max(errors):+.1%}"
