"""What a display shows of a training that runs: its phase, steps, losses and memory, beside what was predicted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from statistics import fmean

from ...estimators.hardware import Cluster
from ...probes.real_run.output import last_line
from ...probes.real_run.ranks import Rank, Ranks
from ...probes.real_run.sampling import Extension, MemorySampler
from ...probes.real_run.watch import OnProgress
from ..text.output import Output
from ..text.units import whole_seconds
from ..text.view import MemoryUse, View
from .prediction import Prediction

_PHASES = {
    "start": "starting the ranks",
    "load": "loading libraries, data and model",
    "initialize": "initializing DeepSpeed",
}
"""Titles of the phases before the first step; later ones have their own names, such as `evaluation`."""

_RECENT = 20
"""Number of recent steps over which the shown speed is measured."""

_LATE_S, _LATE = 10.0, 3.0
"""A step is late after these seconds and this multiple of the longest recent one."""

_MOST_LOSSES = 256
"""Largest number of losses that are kept for the picture: twice the columns of a terminal."""


class RunView:
    """The views of one run. Each costs the same, however long the training is.

    total_steps: None if the Trainer reports them. shows_loss: False for random weights.
    """

    def __init__(
        self,
        cluster: Cluster,
        prediction: Prediction | None,
        *,
        total_steps: int | None = None,
        shows_loss: bool = True,
    ) -> None:
        self.prediction = prediction
        self._most_bytes = (0, 0) if prediction is None else prediction.most_bytes(cluster)
        self._cluster, self._total_steps, self._shows_loss = cluster, total_steps, shows_loss
        self._losses, self._next = list[float](), list[float]()
        self._read, self._per_mean = 0, 1

    def view(self, ranks: Ranks, memory: MemorySampler) -> View:
        """Return what the records and the last sample show."""
        predicted = self.prediction
        tokens, step_s = ranks.speed(self._cluster.world_size, last=_RECENT)
        total_steps = self._total_steps or ranks.total_steps
        losses = [loss for _, loss in (*ranks.losses[:1], *ranks.losses[-1:])] if self._shows_loss else []
        self._keep(ranks)
        return View(
            phase=_phase(ranks, memory),
            step=ranks.step,
            total_steps=total_steps,
            left_s=None if total_steps is None or _is_held_up(ranks) else _left_s(ranks.slowest, total_steps),
            step_s=step_s,
            tokens_per_s=tokens / step_s if tokens and step_s else None,
            predicted_tokens_per_s=predicted.tokens_per_s if predicted else None,
            losses=tuple(self._losses),
            first_loss=losses[0] if losses else None,
            loss=losses[-1] if losses else None,
            memory=self._memory(memory, is_stepping=bool(ranks.step)),
        )

    def _keep(self, ranks: Ranks) -> None:
        """Add the new steps' losses; once there are too many, each is the mean of two neighbours, then of four, and so
        on."""
        for _, loss in ranks.losses[self._read :]:
            self._read += 1
            self._next.append(loss)
            if len(self._next) < self._per_mean:
                continue
            self._losses.append(_mean(self._next))
            self._next.clear()
            if len(self._losses) == _MOST_LOSSES:
                self._losses = [_mean(self._losses[index : index + 2]) for index in range(0, _MOST_LOSSES, 2)]
                self._per_mean *= 2

    def _memory(self, memory: MemorySampler, *, is_stepping: bool) -> tuple[MemoryUse, ...]:
        cluster, predicted = self._cluster, self.prediction
        host = MemoryUse(
            "host",
            memory.host_bytes,
            memory.host_peak_bytes,
            predicted.host_bytes if predicted else None,
            cluster.host_memory_bytes_per_node,
            is_stepping,
            self._most_bytes[1],
        )
        if memory.device_bytes is None or memory.device_peak_bytes is None:
            return (host,)
        device = MemoryUse(
            "GPU",
            memory.device_bytes,
            memory.device_peak_bytes,
            predicted.device_bytes if predicted else None,
            cluster.gpu.memory_bytes,
            is_stepping,
            self._most_bytes[0],
        )
        return device, host


def _mean(losses: list[float]) -> float:
    """Return the mean without steps that overflowed in fp16; NaN if no other is left."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return fmean(finite) if finite else math.nan


@contextmanager
def shown_probe(output: Output, cluster: Cluster, prediction: Prediction | None, steps: int) -> Iterator[OnProgress]:
    """Return the function that shows a probe while it runs."""
    views = RunView(cluster, prediction, total_steps=steps, shows_loss=False)
    with output.display("probe") as display:
        yield lambda ranks, memory: display.show(views.view(ranks, memory))


def _phase(ranks: Ranks, memory: MemorySampler) -> str:
    """Return what the slowest rank does, or waits for; "" while it makes steps."""
    if memory.compiles:
        return "compiling" if memory.extension is None else _build(memory.extension)
    if obstacle := ranks.obstacle:
        return obstacle
    if (plain := ranks.first("plain")) and not ranks.step and ranks.slowest is not None:
        printed = last_line(ranks.folder / f"rank{ranks.slowest.number}.log")
        return f"training by torch's {plain}, whose steps are not seen" + (
            f"; it printed: {printed}" if printed else ""
        )
    name = ranks.phase.partition(" ")[0]
    if name == "step" and ranks.step:
        return f"waiting for step {ranks.step + 1}" if _is_late(ranks.slowest) else ""
    return _PHASES.get(name, "first step" if name == "step" else name)


def _build(extension: Extension) -> str:
    name, last_s = extension.folder.name, extension.last_s
    usual = "takes minutes" if last_s is None else f"{whole_seconds(last_s)} the last time"
    if extension.is_rebuilt:
        return f"rebuilding extension {name} (its sources or the Python environment changed; {usual})"
    return f"building extension {name} (first use; {usual})"


def _is_held_up(ranks: Ranks) -> bool:
    """Whether nobody knows when the next step ends."""
    is_stepping = ranks.phase.startswith("step")
    return bool(ranks.obstacle) or (is_stepping and _is_late(ranks.slowest))


def _is_late(rank: Rank | None) -> bool:
    """Whether its step takes much longer than those before."""
    ends = [end for end, _ in islice(reversed(rank.steps.values()), _RECENT)] if rank is not None else []
    longest_s = max((after - before for after, before in pairwise(ends)), default=math.inf)
    return bool(ends) and time.monotonic() - ends[0] > max(_LATE_S, _LATE * longest_s)


def _left_s(rank: Rank | None, total_steps: int) -> float | None:
    """Return the time left if the remaining steps take as long as those since the first, with what lies between."""
    if rank is None or len(rank.steps) < 2 or rank.step >= total_steps:
        return None
    first, (began, _) = next(iter(rank.steps.items()))
    last, (ended, _) = next(reversed(rank.steps.items()))
    step_s = (ended - began) / (last - first)
    # A step that takes longer than the others does not shorten those that follow it.
    return (total_steps - last) * step_s - min(step_s, max(0.0, time.monotonic() - ended))
