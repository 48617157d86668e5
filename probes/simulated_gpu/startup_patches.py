"""What takes seconds of a dry run and decides nothing in it, taken out of the way."""

from __future__ import annotations

import importlib
import inspect
import sys
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any


def before_deepspeed() -> None:
    """Before DeepSpeed is imported: nothing is compiled, and nobody asks which processor this is.

    Importing Muon's functions compiles them, for which torch imports its compiler whole (deepspeed 0.19.8
    runtime/zero/muon/original_muon.py); they run as they are written. The optimizers on the host look up the
    processor's maker in a subprocess, for a warning (ops/adam/cpu_adam.py, ops/lion/cpu_lion.py).
    """
    torch: Any = importlib.import_module("torch")
    torch.compile = _as_written
    cpuinfo: Any = ModuleType("cpuinfo")
    cpuinfo.get_cpu_info = dict
    sys.modules["cpuinfo"] = cpuinfo


def after_deepspeed() -> None:
    """After DeepSpeed is imported and before anything runs: no ranges for a profiler, no search for functions that
    would take an operation from a dispatch mode, of which there are none, and signatures of autograd's functions are
    remembered."""
    nvtx: Any = importlib.import_module("deepspeed.utils.nvtx")
    nvtx.enable_nvtx = False
    registry: Any = importlib.import_module("torch._library.simple_registry")
    registry.find_torch_dispatch_rule = lambda _operation, _mode: None
    function: Any = importlib.import_module("torch.autograd.function")
    function.inspect = SimpleNamespace(signature=cache(inspect.signature))


def _as_written(model: Any = None, **_: Any) -> Any:
    """`torch.compile`, as a function or as a decorator with options, without compiling."""
    return (lambda function: function) if model is None else model
