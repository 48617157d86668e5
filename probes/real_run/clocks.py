"""When something happened on the device: the host's clock for the CPU, events in the stream for CUDA.

Events do not make the host wait between the phases of a step, which would slow down a training that is bound by
launches.
"""

from __future__ import annotations

import time
from typing import Any, Protocol


class Clock(Protocol):
    """Marks moments, and tells the seconds between them once the device has reached both."""

    def mark(self) -> Any: ...

    def settle(self) -> None:
        """Wait until the device has done all that was asked of it."""

    def seconds(self, earlier: Any, later: Any) -> float: ...


class HostClock:
    """The CPU computes while the call lasts."""

    def mark(self) -> float:
        return time.perf_counter()

    def settle(self) -> None:
        pass

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier


class CudaClock:
    """Events of the current stream."""

    def mark(self) -> Any:
        import torch

        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:
        import torch

        torch.cuda.synchronize()

    def seconds(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) / 1000.0
