"""Clocks, temperature and power of the GPU during a measurement, from its driver."""

from __future__ import annotations

import contextlib
import threading
import time
from statistics import median
from typing import Any

_EVERY_S = 0.5
_SETTLING_S = 3.0
"""Longest wait for the memory of a process that has ended to be free again."""


class GpuWatch:
    """Looks at the first GPU twice a second, from `with` to its end; `summary` has the readings."""

    def __init__(self) -> None:
        self._seen: list[dict[str, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._reasons: set[str] = set()

    def __enter__(self) -> GpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def summary(self) -> dict[str, Any]:
        """Middle clocks while the GPU was busy, the highest temperature, power and memory; empty without a GPU."""
        if not self._seen:
            return {}
        busy = [seen for seen in self._seen if seen["busy"] > 0] or self._seen
        return {
            **{name: median(seen[name] for seen in busy) for name in ("sm_mhz", "memory_mhz")},
            **{name: max(seen[name] for seen in self._seen) for name in ("celsius", "watts", "used_bytes")},
            "used_bytes_before": self._seen[0]["used_bytes"],
            "throttled_by": sorted(self._reasons),
            "looks": len(self._seen),
        }

    def _look(self) -> None:
        with contextlib.suppress(Exception):  # a driver that does not tell: the measurement counts all the same
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            while True:
                self._seen.append(
                    {
                        "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                        "memory_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
                        "celsius": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
                        "watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                        "busy": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
                        "used_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).used,
                    }
                )
                with contextlib.suppress(Exception):  # renamed from one version of the library to the next
                    self._reasons |= _reasons(pynvml, handle)
                if self._over.wait(_EVERY_S):
                    return


def _reasons(pynvml: Any, handle: Any) -> set[str]:
    """Names of what slows the clocks down now; that nothing runs is none."""
    bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    prefix = "nvmlClocksThrottleReason"
    names = (name for name in vars(pynvml) if name.startswith(prefix))
    slowed = {name.removeprefix(prefix): getattr(pynvml, name) for name in names}
    return {
        name
        for name, bit in slowed.items()
        if isinstance(bit, int) and bits & bit and name not in ("GpuIdle", "None", "All", "UserDefinedClocks")
    }


def wait_until_free() -> None:
    """Wait until no process holds memory of the GPU, as far as the driver knows."""
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        deadline = time.monotonic() + _SETTLING_S
        while pynvml.nvmlDeviceGetComputeRunningProcesses(handle) and time.monotonic() < deadline:
            time.sleep(0.1)
