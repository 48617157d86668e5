"""`torch.cuda` and the device "cuda" are the simulated GPU, for code that asks for CUDA by name."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from ...estimators.hardware import Cluster
from ..recording.ledger import Ledger
from .device import DEVICE_TYPE

_MULTIPROCESSORS = 132
"""Streaming multiprocessors of an H100, for code that divides work by them. No memory depends on it."""

_NCCL = (2, 27, 3)
"""Version that scripts, and errors of torch.distributed, print."""

_CONSTRUCTORS = """tensor zeros ones empty full arange linspace rand randn randint randperm eye as_tensor zeros_like
    ones_like empty_like full_like rand_like randn_like randint_like tril_indices triu_indices empty_strided normal
    asarray"""
_WITHOUT_EFFECT = """init reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached
    ipc_collect manual_seed manual_seed_all set_rng_state set_rng_state_all seed seed_all synchronize
    set_per_process_memory_fraction _lazy_init _sleep"""
_OF_TENSOR = """new_tensor new_zeros new_ones new_empty new_full"""
_KEPT_BY_ZERO_INIT = """tensor empty zeros ones full arange eye randn"""


def gpu_device(value: Any) -> Any:
    """The simulated GPU for a name or object of a CUDA device; other values unchanged."""
    named = isinstance(value, str) and value.split(":")[0] == "cuda"
    if named or (isinstance(value, torch.device) and value.type == "cuda"):
        return gpu_number(torch.device(value).index or 0)
    return value


def gpu_number(index: int) -> torch.device:
    """The simulated GPU for the index of a CUDA device. Raises RuntimeError as CUDA does where there is none."""
    if index >= torch.cuda.device_count():
        raise RuntimeError(f"CUDA error: invalid device ordinal (cuda:{index} of {torch.cuda.device_count()} GPUs)")
    return torch.device(DEVICE_TYPE, 0)


def install(accelerator: Any, ledger: Ledger, cluster: Cluster) -> None:
    """Replace torch's functions. To be called after `set_accelerator` and before DeepSpeed's `zero.Init` is used."""
    for name, answer in _answers(accelerator, ledger, cluster).items():
        setattr(torch.cuda, name, answer)
        if hasattr(torch.cuda.memory, name):
            setattr(torch.cuda.memory, name, answer)
    torch_module: Any = torch
    torch_module._C._cuda_getCurrentRawStream = lambda *_: 0
    torch_module.backends.cuda.is_built = lambda: True
    torch_module.backends.cudnn.is_available = lambda: True
    torch_module.cuda.nccl.version = lambda: _NCCL
    torch_module.version.cuda = torch.version.cuda or "12.8"
    _accept_cuda_names(torch_module)
    checkpointing: Any = importlib.import_module("deepspeed.runtime.activation_checkpointing.checkpointing")
    checkpointing._set_cuda_rng_state = lambda *_, **__: None
    partitioning: Any = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
    for name in _KEPT_BY_ZERO_INIT.split():  # zero.Init restores these when it ends
        if hasattr(partitioning, f"_orig_torch_{name}"):
            setattr(partitioning, f"_orig_torch_{name}", getattr(torch, name))


def _answers(accelerator: Any, ledger: Ledger, cluster: Cluster) -> dict[str, Callable[..., Any]]:
    gpu = cluster.gpu
    capability = gpu.compute_capability or 9.0
    major, minor = int(capability), round(capability * 10) % 10
    properties = SimpleNamespace(
        name=f"{gpu.vendor} {gpu.name}",
        total_memory=gpu.memory_bytes,
        major=major,
        minor=minor,
        multi_processor_count=_MULTIPROCESSORS,
        is_integrated=False,
        warp_size=32,
    )
    highest = 0

    def peak(*_: Any, **__: Any) -> int:
        nonlocal highest
        highest = max(highest, ledger.gpu.peak_bytes)
        return highest

    def live(*_: Any, **__: Any) -> int:
        return ledger.gpu.live_bytes

    def free(*_: Any, **__: Any) -> tuple[int, int]:
        return gpu.memory_bytes - ledger.gpu.live_bytes, gpu.memory_bytes

    def constant(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    # Each a function of its own: torch._dynamo, imported later, has a rule for each.
    answers = {name: constant(None) for name in _WITHOUT_EFFECT.split()}
    return answers | {
        "is_available": constant(True),
        "is_initialized": constant(True),
        "device_count": constant(cluster.gpus_per_node),
        "current_device": constant(0),
        "set_device": lambda device: gpu_number(device) if isinstance(device, int) else gpu_device(device),
        "get_device_name": constant(properties.name),
        "get_device_capability": constant((major, minor)),
        "get_device_properties": constant(properties),
        "get_arch_list": constant([f"sm_{major}{minor}"]),
        "is_bf16_supported": constant(gpu.has_bf16),
        "is_tf32_supported": constant(major >= 8),
        "can_device_access_peer": constant(True),
        "memory_allocated": live,
        "memory_reserved": live,
        "memory_cached": live,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "max_memory_cached": peak,
        "mem_get_info": free,
        "memory_stats": lambda *_, **__: _Zeros(),
        "memory_summary": constant(""),
        "empty_cache": lambda: ledger.empty_cache(),
        "utilization": constant(0),
        "is_current_stream_capturing": constant(False),
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": list,
        "Stream": _as_class(accelerator.Stream),
        "Event": _as_class(accelerator.Event),
        "current_stream": lambda *_: accelerator.current_stream(),
        "default_stream": lambda *_: accelerator.default_stream(),
        "stream": lambda stream: contextlib.nullcontext() if stream is None else accelerator.stream(stream),
        "device": lambda *_: contextlib.nullcontext(),
    }


def _as_class(made: functools.partial[Any]) -> type:
    """A class, which annotations name, for a class with its first arguments; others have no effect."""
    base: Any = made.func
    return type(base.__name__, (base,), {"__init__": lambda own, *_, **__: base.__init__(own, *made.args)})


class _Zeros(dict[str, int]):
    """Statistics of the allocator: no retries, no failures."""

    def __missing__(self, _key: str) -> int:
        return 0


def _accept_cuda_names(torch_module: Any) -> None:
    contexts: Any = importlib.import_module("torch.utils._device")
    contexts._device_constructors()  # kept by torch: functions that heed `with torch.device(...)`, not yet replaced
    begin = contexts.DeviceContext.__init__
    contexts.DeviceContext.__init__ = lambda own, device: begin(own, gpu_device(device))
    for name in _CONSTRUCTORS.split():
        setattr(torch_module, name, _translated(getattr(torch_module, name)))
    torch_module.Generator = _generator(torch.Generator)
    for name in _OF_TENSOR.split():
        setattr(torch.Tensor, name, _translated(getattr(torch.Tensor, name)))
    for name in ("tensor", "as_tensor"):
        setattr(torch_module, name, _by_host(getattr(torch_module, name)))
    tensor: Any = torch.Tensor
    module: Any = torch.nn.Module
    for owner in (tensor, module):
        owner.to = _translated(owner.to, positional=True)
    tensor.cuda = lambda own, device=None, *_, **__: own.to(0 if device is None else device)
    tensor.is_cuda = property(lambda own: own.device.type == DEVICE_TYPE)
    # A fake tensor of another process cannot be shared; it has no memory.
    tensor.share_memory_ = lambda own: own
    tensor.is_shared = lambda _own: True
    module.cuda = lambda own, device=None: own.to(0 if device is None else device)
    set_device = torch_module.set_default_device
    torch_module.set_default_device = lambda device: set_device(gpu_device(device))


def _translated(function: Any, *, positional: bool = False) -> Any:
    """The function with CUDA devices replaced, also among positional arguments; an integer names a GPU there."""

    @functools.wraps(function, updated=())
    def call(*arguments: Any, **options: Any) -> Any:
        if options.get("device") is not None:
            device = options["device"]
            is_index = type(device) is int
            options["device"] = gpu_number(device) if is_index else gpu_device(device)
        if positional and len(arguments) > 1:
            own, first, *others = arguments
            index = type(first) is int
            arguments = (own, gpu_number(first) if index else gpu_device(first), *others)
        return function(*arguments, **options)

    return call


def _generator(plain: Any) -> Any:
    """torch's class of random generators, which annotations and `isinstance` name; none is on the simulated GPU."""

    class Meta(type(plain)):  # type: ignore[misc]
        def __instancecheck__(cls, each: Any) -> bool:
            return isinstance(each, plain)

        def __call__(cls, device: Any = "cpu") -> Any:  # the device is not used
            return plain("cpu")

    return Meta("Generator", (plain,), {})


def _by_host(function: Any) -> Any:
    """`torch.tensor(data, device=GPU)` through the host, so that its numbers are known."""

    @functools.wraps(function, updated=())
    def call(data: Any, *arguments: Any, **options: Any) -> Any:
        device = options.get("device")
        if device is None or isinstance(data, torch.Tensor) or torch.device(gpu_device(device)).type != DEVICE_TYPE:
            return function(data, *arguments, **options)
        needs_gradient = options.pop("requires_grad", False)
        made = function(data, *arguments, **{**options, "device": "cpu"}).to(gpu_number(0))
        return made.requires_grad_() if needs_gradient else made

    return call
