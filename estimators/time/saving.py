"""Checkpoints of a run: how long one takes to write, and how often writing one loses least."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from ..hardware.cluster import Cluster
from ..hardware.host_defaults import nvme_write_bytes_per_s
from ..memory.checkpoint_size import checkpoint_bytes
from ..models.model_shape import ModelShape
from ..workload import Workload
from .price import HOUR_S

GPU_HOURS_BETWEEN_FAILURES = 16_384 * 54 * 24 / 419
"""50,700 hours: 419 unexpected interruptions in 54 days of training on 16,384 H100 (Llama 3, arXiv:2407.21783 section
3.3.4)."""

MOST_LOST_SHARE = 0.1
"""Share of a run between two checkpoints at most: a whole run is never lost to one mistake. The same as `ds-advise
train` takes."""

MOST_WRITING_SHARE = 0.03
"""Share of the time that writing may take to keep to `MOST_LOST_SHARE`."""

LEAST_LOST_S = 600.0
"""Ten minutes of training are not worth a checkpoint, where failures are not that frequent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The checkpoints of one run."""

    size_bytes: int
    """One checkpoint, the files of all ranks together."""
    write_s: float
    """Seconds that training stands still for one."""
    interval_s: float
    """Seconds of training between two."""
    count: int
    """Checkpoints that the run writes, the last one included."""

    @property
    def total_s(self) -> float:
        return self.count * self.write_s


def saving(model: ModelShape, workload: Workload, cluster: Cluster, training_s: float) -> Saving:
    """The checkpoints of so many seconds of training.

        write = bytes / nodes / rate of a node's drive
        interval = `young_interval_s`, but at most a tenth of the run (or ten minutes) where that costs at most 3 %

    Not covered: a network drive that all nodes share; writing beside the training (asynchronous checkpoints).
    """
    size = checkpoint_bytes(model, workload)
    write = size / cluster.nodes / nvme_write_bytes_per_s(cluster)
    between_failures = GPU_HOURS_BETWEEN_FAILURES * HOUR_S / cluster.world_size
    seldom = max(MOST_LOST_SHARE * training_s, write / MOST_WRITING_SHARE, LEAST_LOST_S)
    interval = min(young_interval_s(write, between_failures), seldom, training_s)
    return Saving(size_bytes=size, write_s=write, interval_s=interval, count=max(1, round(training_s / interval)))


def young_interval_s(write_s: float, between_failures_s: float) -> float:
    """sqrt(2 write failures): the time between checkpoints at which writing them and what failures undo lose least
    together (J. W. Young, 1974, doi:10.1145/361147.361115).

    write_s: seconds that one checkpoint takes. between_failures_s: mean seconds between two failures.
    """
    return sqrt(2 * write_s * between_failures_s)
