"""When something happened on the device: the host's clock for the CPU, events in the stream for CUDA.

Events do not make the host wait between the phases of a step, which would slow down a training that is bound by
launches.
"""

from __future__ import annotations

import time
from typing import Any


class Clock:
    """Marks moments, and tells the seconds between them once the device has reached both."""

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()  # the CPU computes while the call lasts
        import torch

        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:
        """Wait until the device has done all that it was given."""
        if self._cuda:
            import torch

            torch.cuda.synchronize()

    def seconds(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) / 1000.0 if self._cuda else later - earlier
