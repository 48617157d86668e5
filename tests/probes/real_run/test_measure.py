"""Counters of a rank, on a stand-in for torch's GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ds_advise.probes.real_run.engine import Mark, Span, _sums, _tokens
from ds_advise.probes.real_run.measure import GpuPeaks


class Gpu:
    """Allocated and reserved bytes, and their peaks, of a module `torch`."""

    def __init__(self) -> None:
        self.bytes = {"allocated_bytes": 0, "reserved_bytes": 0}
        self.peaks = dict(self.bytes)
        memory = SimpleNamespace(
            memory_stats_as_nested_dict=lambda _device=None: self.statistics(),
            reset_peak_memory_stats=lambda _device=None: self.reset(),
        )
        memory.max_allocated = lambda: memory.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"]
        self.cuda: Any = SimpleNamespace(
            memory=memory,
            is_initialized=lambda: True,
            current_device=lambda: 0,
            reset_peak_memory_stats=memory.reset_peak_memory_stats,
        )
        self._C = SimpleNamespace(
            _cuda_memoryStats=lambda _device: self.statistics(), _cuda_resetPeakMemoryStats=lambda _device: self.reset()
        )

    def statistics(self) -> dict[str, Any]:
        return {name: {"all": {"current": self.bytes[name], "peak": peak}} for name, peak in self.peaks.items()}

    def reset(self) -> None:
        self.peaks = dict(self.bytes)

    def use(self, allocated: int) -> None:
        """Allocate up to a number of bytes and free them."""
        for name, size in (("allocated_bytes", allocated), ("reserved_bytes", 2 * allocated)):
            self.peaks[name] = max(self.peaks[name], size)


def test_peaks_of_phases_leave_the_scripts_own_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script reads and resets torch's peak as if nothing else did."""
    gpu, peaks = Gpu(), GpuPeaks()
    assert peaks.read() == (0, 0), "before torch is imported"
    monkeypatch.setitem(sys.modules, "torch", gpu)
    peaks.restart()
    gpu.use(10)
    assert peaks.read() == (10, 20)
    peaks.restart()
    gpu.use(3)
    assert peaks.read() == (3, 6) and gpu.cuda.memory.max_allocated() == 10
    gpu.cuda.reset_peak_memory_stats()
    assert peaks.read() == (3, 6), "of the phase, before and after the script's reset"
    gpu.use(1)
    assert gpu.cuda.memory.max_allocated() == 1
    peaks.restart()
    gpu.use(5)
    assert peaks.read() == (5, 10) and gpu.cuda.memory.max_allocated() == 5


class Event:
    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def query(self) -> bool:
        return self.at_ms < 100

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms


def test_the_tokens_of_a_batch_are_counted_wherever_they_are() -> None:
    ids, images, labels = torch.zeros(2, 8, dtype=torch.long), torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.long)
    assert _tokens((), {"attention_mask": ids, "input_ids": ids}) == _tokens((ids,), {}) == 16
    assert _tokens(({"tokens": ids, "labels": ids},), {}) == _tokens((), {"batch": [ids]}) == 16
    assert _tokens((images,), {"labels": ids}) == _tokens((labels,), {}) == _tokens((), {}) == 0
    assert _tokens((images.to(torch.uint8),), {"labels": ids}) == 0


def test_phases_are_timed_on_the_gpu_where_there_is_one() -> None:
    """Seconds and waits of the micro batches are summed, bytes are the highest; a GPU's time is not the host's."""
    host, gpu = [Mark(each, None) for each in (1.0, 3.0)], [Mark(9.0, Event(at)) for at in (10.0, 60.0, 100.0)]
    assert gpu[1].is_past and not gpu[2].is_past and host[0].is_past
    spans = [
        Span(1, "forward", *gpu[:2], 0.0, 5, 6, 0),
        Span(1, "forward", *gpu[1:], 0.5, 9, 4, 0),
        Span(1, "between", *host, 0.0, 0, 0, 7),
        Span(1, "load", host[0], gpu[0], 0.0, 0, 0, 0),
    ]
    assert _sums(spans) == {
        "forward": {"seconds": pytest.approx(0.09), "waiting_s": 0.5, "allocated_bytes": 9, "reserved_bytes": 6},
        "between": {"seconds": 2.0, "waiting_s": 0.0, "host_bytes": 7},
        "load": {"seconds": 8.0, "waiting_s": 0.0},
    }
