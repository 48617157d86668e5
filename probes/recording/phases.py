"""The phases of a run: what the ledger counted in each of them, and who holds the storages at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .allocation_classifier import AllocationClassifier, owners
from .ledger import Ledger
from .result import PhaseMemory
from .schedule import ScheduleRecorder


@dataclass(slots=True, kw_only=True)
class RecordedPhase:
    """One phase as it ran (micro batches apart), by the ledger's event clock."""

    iteration: int
    name: str
    first_event: int
    gpu_peak_bytes: int = 0
    gpu_peak_event: int = 0


class PhaseRecorder:
    """Divides the run into phases. `current` names the one that runs, for the report of an error; `on_phase` gets it
    too."""

    def __init__(
        self,
        ledger: Ledger,
        classifier: AllocationClassifier,
        schedule: ScheduleRecorder,
        on_phase: Callable[[str], object] = lambda _name: None,
    ) -> None:
        self.ledger, self.classifier, self.schedule, self.on_phase = ledger, classifier, schedule, on_phase
        self.current = "start"
        self.phases: list[PhaseMemory] = []
        self.recorded = [RecordedPhase(iteration=0, name="start", first_event=0)]
        self._before: tuple[Any, ...] = ()

    @contextlib.contextmanager
    def phase(self, iteration: int, name: str) -> Iterator[None]:
        ledger = self.ledger
        self.current = name if iteration == 0 else f"{name} of iteration {iteration}"
        self.on_phase(self.current)
        self.schedule.begin(iteration, name)
        self.classifier.begin(name)
        ledger.begin_phase(name)
        recorded = RecordedPhase(iteration=iteration, name=name, first_event=ledger.events)
        self.recorded.append(recorded)
        yield
        recorded.gpu_peak_bytes, recorded.gpu_peak_event = ledger.gpu.peak_bytes, ledger.gpu.peak_event
        self.phases.append(PhaseMemory(iteration=iteration, phase=name, **ledger.figures()))

    def join_micro_batches(self, first: int) -> None:
        """Take the phases of one name together, from the phase number `first` on."""
        parts: dict[str, list[PhaseMemory]] = {}
        for memory in self.phases[first:]:
            parts.setdefault(memory.phase, []).append(memory)
        self.phases[first:] = [_together(part) for part in parts.values()]

    def repeats(self) -> bool:
        """Whether what happened since the last call is what happened before that, to the byte: the same storages were
        born and died in the same order in the same phases, and as much is held as then."""
        ledger = self.ledger
        counters = (ledger.gpu, ledger.host, ledger.host_pinned, ledger.host_held)
        now = (ledger.trace, [counter.live_bytes for counter in counters])
        ledger.restart_trace()
        before, self._before = self._before, now
        return now == before

    def sweep(self, module: torch.nn.Module, optimizer: Any) -> None:
        """Give every storage that the module or an optimizer holds its owner's name."""
        seen: set[int] = set()
        for tensor, category, name in owners(module, optimizer):
            life = self.ledger.storage_of(tensor)
            if life is not None and id(life) not in seen:
                seen.add(id(life))
                life.category, life.owned = category, True
                if name:
                    life.module = name.rpartition(".")[0]

    def name_gradients(self, module: torch.nn.Module) -> None:
        """Name each weight's gradient when autograd delivers it; in the backward pass nothing else tells it apart."""

        def named(gradient: torch.Tensor) -> None:
            life = self.ledger.storage_of(gradient)
            if life is not None and not life.owned:
                life.category, life.owned = "gradients", True

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(named)  # type: ignore[no-untyped-call]


def _together(parts: list[PhaseMemory]) -> PhaseMemory:
    """The micro batches of one phase as one: last live, highest peak, summed NVMe."""
    combine: dict[str, Callable[[list[int]], int]] = {"live": lambda v: v[-1], "peak": max, "read": sum, "written": sum}
    values: dict[str, Any] = {"iteration": parts[0].iteration, "phase": parts[0].phase}
    for name in PhaseMemory.__dataclass_fields__:
        if name not in values:
            how = next(how for word, how in combine.items() if f"_{word}" in name)
            values[name] = how([getattr(part, name) for part in parts])
    return PhaseMemory(**values)
