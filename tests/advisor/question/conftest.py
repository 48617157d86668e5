"""A driver of NVIDIA GPUs for tests."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that replaces pynvml by a driver with `count` GPUs, or with these (name, GiB) ones, in slots of this
    generation and number of lanes."""

    def install(
        *devices: tuple[str, float],
        count: int = 1,
        fails: bool = False,
        slot: tuple[int, int] | None = None,
        nvlinks: int = 0,
    ) -> None:
        module: Any = types.ModuleType("pynvml")
        module.NVMLError = type("NVMLError", (Exception,), {})
        listed = list(devices) * count

        def init() -> None:
            if fails:
                raise module.NVMLError("Driver Not Loaded")

        def by_index(index: int) -> tuple[str, float]:
            if index >= len(listed):
                raise module.NVMLError("Invalid Argument")
            return listed[index]

        module.nvmlInit, module.nvmlShutdown = init, lambda: None
        module.nvmlDeviceGetCount = lambda: len(listed)
        module.nvmlDeviceGetHandleByIndex = by_index
        module.nvmlDeviceGetName = lambda handle: handle[0]
        module.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(total=int(handle[1] * 2**30))
        module.nvmlSystemGetDriverVersion = lambda: "570.1"

        def part_of_slot(part: int) -> int:
            if slot is None:
                raise module.NVMLError("Not Supported")
            return slot[part]

        def has_nvlink(_handle: tuple[str, float], link: int) -> int:
            if not nvlinks:
                raise module.NVMLError("Not Supported")
            return int(link < nvlinks)

        module.NVML_NVLINK_MAX_LINKS = 18
        module.nvmlDeviceGetMaxPcieLinkGeneration = lambda _handle: part_of_slot(0)
        module.nvmlDeviceGetMaxPcieLinkWidth = lambda _handle: part_of_slot(1)
        module.nvmlDeviceGetNvLinkState = has_nvlink
        monkeypatch.setitem(sys.modules, "pynvml", module)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return install
