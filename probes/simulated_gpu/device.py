"""The simulated GPU: a torch device without memory and kernels, for fake tensors.

Python can register one device with torch (the PrivateUse1 key). Tensors on it are `FakeTensor`s: they have shapes,
dtypes, strides and storages with a size, but no bytes. Model and engine code runs on them unchanged, `tensor.device`
distinguishes host and GPU, and autograd, hooks and lifetimes are torch's own.

This module adds an operation that torch lacks for fake tensors: moving a parameter to another device in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

DEVICE_TYPE = "simgpu"

_CUDA_KERNELS = ("silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm")
"""Operators with a CUDA kernel and a composite for other devices (torch 2.13, native_functions.yaml). Only those of the
CompositeImplicitAutograd key matter; other operators reach FakeTensorMode undecomposed."""


def register() -> None:
    """Register the simulated device with torch, once per process and before its first tensor.

    Raises RuntimeError before torch 2.13: 2.4 has no Python backend for PrivateUse1, and fake tensors of 2.11 do not
    keep its device (both were tested).
    """
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        raise RuntimeError(f"dry runs need torch 2.13 or newer, and this is torch {torch.__version__}")
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

    # A tensor of PrivateUse1 without memory; FakeTensorMode needs it only to see the device.
    create: Any = torch._C._acc.create_empty_tensor

    class Module(_DummyBackendModule):
        def device(self, _device: Any) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        def set_device(self, _device: Any) -> None:
            pass

        def get_rng_state(self, _device: Any = None) -> torch.Tensor:
            return torch.empty(16, dtype=torch.uint8)

        def set_rng_state(self, _state: Any, _device: Any = None) -> None:
            pass

        # torch.autocast raises an error for a device module without it (torch/amp/autocast_mode.py).
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.float16, torch.bfloat16]

    # Renames PrivateUse1, and registers torch.simgpu, a device guard and hooks.
    _setup_privateuseone_for_python_backend(DEVICE_TYPE, backend_module=Module())

    # torch calls these three to convert an argument to the device; their results are discarded, since FakeTensorMode
    # computes the result.
    def empty(size: Any, *_stride: Any, dtype: Any = None, **_: Any) -> Any:
        return create(list(size), dtype or torch.get_default_dtype())

    def copy_from(_source: torch.Tensor, target: torch.Tensor, _non_blocking: bool = False) -> torch.Tensor:
        return target

    global _library
    library_class: Any = torch.library.Library
    _library = library_class("aten", "IMPL")

    # torch decomposes these for a device without a kernel. A GPU has one.
    def kernel(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("the simulated device has fake tensors only")

    for name in _CUDA_KERNELS:
        _library.impl(name, kernel, "PrivateUse1")
    for name, function in (("empty.memory_format", empty), ("empty_strided", empty), ("_copy_from", copy_from)):
        _library.impl(name, function, "PrivateUse1")

    # setattr, because a type checker rightly objects to exchanging torch's methods.
    setattr(FakeTensor, "data", property(_DATA.__get__, _set_data))  # noqa: B010
    setattr(FakeTensor, "__deepcopy__", _deepcopy)  # noqa: B010
    setattr(torch.nn.Module, "_apply", _apply)  # noqa: B010
    # PrivateUse1 has no kernel for it, and the ledger frees memory without regard to streams.
    setattr(torch.Tensor, "record_stream", lambda _tensor, _stream: None)  # noqa: B010


_library: Any  # torch unregisters the kernels when this object dies
_DATA: Any = torch.Tensor.__dict__.get("data", torch._C.TensorBase.__dict__["data"])


def _set_data(tensor: Any, new: torch.Tensor) -> None:
    """`tensor.data = new`, also when `new` is on another device.

    torch forbids it because a tensor's dispatch keys name its device. The tensor implementation is swapped instead, so
    the Python object, which optimizers, peft and DeepSpeed refer to, stays the same.
    """
    if not isinstance(new, FakeTensor) or new.device == tensor.device:
        _DATA.__set__(tensor, new)
        return
    carrier: Any = new.detach().requires_grad_(tensor.requires_grad)
    # The shape and the storage of the carrier; its Python attributes stay, so the device is set below.
    torch._C._swap_tensor_impl(tensor, carrier)
    tensor.fake_device = carrier.fake_device


def _deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A copy in the same mode, as peft makes of modules that it trains. torch's deepcopy would copy the mode too, and
    treat every view of the copy as new memory."""
    if id(tensor) not in memo:
        # Under the active mode, so that the ledger counts the new memory.
        copied = tensor.detach().clone()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(copied, tensor.requires_grad) if is_parameter else copied
    found: torch.Tensor = memo[id(tensor)]
    return found


def _apply(module: Any, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
    """`nn.Module._apply` that keeps every parameter object; torch's own replaces fake parameters."""
    if recurse:
        for child in module.children():
            child._apply(function)
    for parameter in module._parameters.values():
        if parameter is not None:
            with torch.no_grad():
                # `.data` keeps the object that optimizers and DeepSpeed's hooks hold.
                parameter.data = function(parameter.data)
                if parameter.grad is not None:
                    parameter.grad.data = function(parameter.grad.data)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module
