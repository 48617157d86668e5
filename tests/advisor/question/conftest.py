"""A driver of NVIDIA GPUs for tests."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that replaces pynvml by a driver with `count` GPUs, or with these (name, GiB) ones."""

    def install(*devices: tuple[str, float], count: int = 1, fails: bool = False) -> None:
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
        monkeypatch.setitem(sys.modules, "pynvml", module)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return install
