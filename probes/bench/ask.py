"""From `ds-advise bench` to a benchmark of this machine, kept for later answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from ...estimators.errors import ClusterError
from ..machine import this_machine
from ..store import Record, try_store
from ..this_machine import visible_gpus
from .run import TOTAL_S, bench

_CPU_RANKS = 2
"""Fewest ranks that communicate."""


def ask_bench(
    *,
    device: Literal["cuda", "cpu"] | None,
    ranks: int | None,
    nvme: str | None,
    on_progress: Callable[[str], None],
    total_s: float = TOTAL_S,
) -> Record:
    """Measure and keep it; the record has no number where the store cannot be used.

    device: None takes the GPUs where there are some. ranks: None takes all GPUs, or two processes on the CPU.

    Raises ClusterError for more ranks than GPUs, for GPUs where there are none, and for a folder that cannot be written
    to.
    """
    try:
        gpus = len(visible_gpus())
    except ClusterError:
        if device == "cuda":
            raise
        gpus = 0
    device = device or ("cuda" if gpus else "cpu")
    if device == "cuda" and ranks is not None and ranks > gpus:
        raise ClusterError(
            f"--ranks {ranks} is more than the {gpus} GPU{'s' * (gpus != 1)} of this machine",
            why="every rank has a GPU of its own",
            fix=f"pass --ranks {gpus} or less",
        )
    result = bench(
        device=device,
        ranks=ranks or (gpus if device == "cuda" else _CPU_RANKS),
        nvme=nvme,
        total_s=total_s,
        on_progress=on_progress,
    )
    record = Record(kind="bench", machine=this_machine(), result=result.to_json(), versions=result.versions)
    return replace(record, id=try_store(lambda store: store.add(record), None))
