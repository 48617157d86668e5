"""An allocation for which no plan can make room."""

from __future__ import annotations

from dataclasses import replace

from ...estimators.hardware import Cluster
from ...probes.failures.out_of_memory import MemoryFigures, memory_figures
from ...probes.machine import host_memory_bytes
from ..text.units import memory_size
from ..verification.prediction import Prediction
from .request import TrainingFailure

MISPREDICTED = 2.0
"""Multiple of the predicted bytes from which a message contradicts the prediction: far above every error of it."""


def most_bytes_in(figures: MemoryFigures | None) -> int:
    """The most that an allocator's message says of the tensors of its process: those that it had, or the one that it
    asked for; 0 without a figure."""
    return 0 if figures is None else max(figures.allocated_bytes or 0, figures.asked_bytes or 0)


def judge_allocation(failure: TrainingFailure, prediction: Prediction | None, cluster: Cluster) -> TrainingFailure:
    """The failure; as an error of the script if memory ran out by one allocation that is larger than the whole memory,
    and than all that the training is predicted to need: a plan only changes what is predicted."""
    figures = memory_figures(failure.message)
    if prediction is None or figures is None or figures.asked_bytes is None or not failure.is_out_of_memory:
        return failure
    device, host = prediction.most_bytes(cluster)
    if failure.kind == "host_out_of_memory":
        where, needed, whole = "the whole host", host, cluster.host_memory_bytes_per_node or host_memory_bytes()
    else:
        where, needed, whole = "the whole GPU", device, figures.total_bytes or cluster.gpu.memory_bytes
    if figures.asked_bytes <= max(whole, MISPREDICTED * needed):
        return failure
    return replace(
        failure,
        kind="crash",
        cause=f"One allocation of {memory_size(figures.asked_bytes)} exceeds {where} ({memory_size(whole)}); the "
        f"training is predicted to need at most {memory_size(needed)}, so no plan makes it fit",
        is_cause_certain=True,
        fix="Correct the size of this allocation in the script",
    )
