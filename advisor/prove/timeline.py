"""A dry run's memory over time: a line of sparks for the terminal, and a file for a trace viewer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ...ds_configs.write import write_config
from ...estimators.errors import ConfigFileError
from ...probes.dry_run import DryRunResult, TimelinePoint

SPARKS = "▁▂▃▄▅▆▇█"
PLAIN_SPARKS = "_.-~=+*#"


def spark(size_bytes: int, top_bytes: int, sparks: str) -> str:
    """The spark whose height is nearest to the share of the top; the lowest is for less than an eighth, not for
    nothing."""
    return sparks[min(len(sparks) - 1, size_bytes * len(sparks) // max(1, top_bytes))]


def sparkline(points: Sequence[TimelinePoint], columns: int, sparks: str) -> tuple[str, str]:
    """GPU memory over the run, each column the highest of its stretch, and a line that marks where iterations (by
    number) and phases (by initial) begin: in their column or, for lack of room, up to three later."""
    end = points[-1].event + 1
    heights = [0] * columns
    for point in points:
        column = point.event * columns // end
        heights[column] = max(heights[column], point.gpu_bytes)
    for column in range(1, columns):  # nothing happened in between
        heights[column] = heights[column] or heights[column - 1]
    top = max(heights)
    marks = [" "] * columns
    free, seen = 0, 0
    for (iteration, phase), own in groupby(points, key=lambda point: (point.iteration, point.phase)):
        begins = next(own).begins * columns // end
        label = f"{iteration}{phase[0]}" if iteration > seen else phase[0]
        seen = iteration
        column = max(begins, free)
        if phase != "start" and column <= begins + 3 and column + len(label) <= columns:
            marks[column : column + len(label)] = label
            free = column + len(label)
    return "".join(spark(height, top, sparks) for height in heights), "".join(marks).rstrip()


def trace(result: DryRunResult) -> dict[str, Any]:
    """The run in Chrome's trace event format, which Perfetto and chrome://tracing open.

    One event of the run (an allocation or a free) is a microsecond on the axis: order is true, duration is not.
    Counters are bytes; spans are iterations and phases.
    """
    points = result.timeline
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"rank {result.rank} of {result.world_size}"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "iterations"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "phases"}},
    ]
    end = points[-1].event + 1
    events += _spans(
        points, end, 1, lambda point: f"iteration {point.iteration}" if point.iteration else "before training"
    )
    events += _spans(points, end, 2, lambda point: point.phase)
    categories = dict.fromkeys(name for point in points for name in point.by_category)
    for point in points:
        for name, values in (
            ("GPU allocated", {"bytes": point.gpu_bytes}),
            ("GPU by purpose", {name: point.by_category.get(name, 0) for name in categories}),
            ("host", {"pinned": point.host_pinned_bytes, "pageable": point.host_bytes - point.host_pinned_bytes}),
        ):
            events.append({"ph": "C", "pid": 1, "name": name, "ts": point.event, "args": values})
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "time axis": "one allocation or free is one microsecond: the order is true, durations are not",
            "unit of the counters": "bytes of tensors of one rank, the highest of each stretch of the run",
            "peak allocated bytes": result.peak.allocated_bytes_per_gpu,
            "versions": result.versions,
        },
    }


def _spans(points: Sequence[TimelinePoint], end: int, thread: int, name_of: Any) -> list[dict[str, Any]]:
    starts = [(name, next(own).begins) for name, own in groupby(points, key=name_of)]
    ends = [begins for _, begins in starts[1:]] + [end]
    return [
        {"ph": "X", "pid": 1, "tid": thread, "name": name, "ts": begins, "dur": until - begins}
        for (name, begins), until in zip(starts, ends, strict=True)
    ]


def check_trace_file(path: Path, *, force: bool) -> None:
    """Raises ConfigFileError where the trace could not be written, before anything takes long."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigFileError(
            f"{path} cannot be written",
            why="it is a folder, or its folder does not exist",
            fix="pass another file to --timeline",
        )
    if path.exists() and not force:
        raise ConfigFileError(
            f"{path} exists", why="it would be lost", fix="pass --force, or another file to --timeline"
        )


def write_trace(result: DryRunResult, path: Path) -> None:
    """Write the trace, over a file that is there."""
    write_config(trace(result), path, force=True)
