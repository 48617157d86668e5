"""The memory of a dry run's phases, and what its host RAM consists of: in its answer, and in its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from ..document import blocks as doc
from ..document.charts import memory_unit
from ..text.units import gib, memory_size

_COLUMNS = {
    "GPU peak": "gpu_peak_bytes",
    "GPU live": "gpu_live_bytes",
    "host peak": "host_held_peak_bytes",
    "host live": "host_live_bytes",
    "pinned": "host_pinned_live_bytes",
    "NVMe read": "nvme_read_bytes",
    "written": "nvme_written_bytes",
}
"""Fields of a phase by the titles of their columns, of one rank; a column without any bytes is left out. The host's
peak has the rounding of pinned blocks."""


def phase_table(phases: Sequence[Mapping[str, Any]], iterations: int, *, device: str = "GPU") -> doc.Table:
    """Return a table with one row per phase (`PhaseMemory` as data); a repeated iteration takes one row. iterations: of
    the whole run, of which the last ones may not be recorded. device: in place of GPU in the titles."""
    last = max(phase["iteration"] for phase in phases)
    shown = {title: name for title, name in _COLUMNS.items() if any(phase.get(name) for phase in phases)}
    unit = memory_unit(max((phase.get(name) or 0 for phase in phases for name in shown.values()), default=0))
    rows, previous, own_number, repeated = list[doc.Row](), list[tuple[str, int, int]](), 0, 0
    for iteration, group in groupby(phases, key=lambda phase: phase["iteration"]):
        own = list(group)
        key = [(phase["phase"], phase["gpu_peak_bytes"], phase["gpu_live_bytes"]) for phase in own]
        if key == previous:
            if repeated:
                rows.pop()
            repeated = repeated or iteration
            numbers = str(iteration) if repeated == iteration else f"{repeated}-{iteration}"
            later = "; later iterations repeat it" if iteration == last < iterations else ""
            rows.append(doc.Row([doc.Figure(numbers), f"same as {own_number}{later}"], "faded"))
            continue
        previous, own_number, repeated = key, iteration, 0
        number = str(iteration) if any(phase["phase"] == "step" for phase in own) else ""
        for phase in own:
            sizes = (doc.make_figure(phase.get(name), unit.part) for name in shown.values())
            shown_row = doc.Row([doc.Figure(number), phase["phase"], *sizes])
            if not rows or rows[-1] != shown_row:  # a Trainer saves the model, and then the engine's states
                rows.append(shown_row)
    titles = (title.replace("GPU", device) for title in shown)
    return doc.Table(["iteration", f"phase ({unit.title})", *titles], rows, optional=range(len(shown) + 1, 2, -1))


def host_sentence(result: Mapping[str, Any], processes_bytes: int, tensors_bytes: int) -> str:
    """Return what takes the RAM of a node. result: a dry run's, as data. processes_bytes: without tensors."""
    ranks, when = result["gpus_per_node"], ""
    most = result["peak"]["host_bytes_per_node"]
    if most and most == ranks * result["peak_loading_host_bytes"]:
        when = " while the model loads"
    fullest = max(result["phases"], key=itemgetter("host_held_peak_bytes"))
    rounding = ranks * (fullest["host_held_peak_bytes"] - fullest["host_peak_bytes"])
    rounding = 0 if result.get("device") == "cpu" else rounding
    rounded = ""
    if gib(rounding) != gib(0):
        rounded = f"; {gib(rounding)} of them are added by torch, which rounds a pinned block up to a power of two"
    of = f" of {ranks} ranks" if ranks > 1 else ""
    tensors = f"at most {memory_size(tensors_bytes)} of tensors{of}{when}{rounded}"
    return f"Host RAM: {gib(processes_bytes)} GiB for the processes, and {tensors}."
