"""The simulated GPU: a torch device that has no memory and no kernels, for fake tensors to stand on.

torch lets Python register one device of its own (the PrivateUse1 key). Tensors on it are `FakeTensor`s: they have
shapes, dtypes, strides and storages with a size, but no bytes. Real model and engine code runs on them unchanged, host
and GPU stay told apart by `tensor.device`, and autograd, hooks and lifetimes are torch's own.

What torch refuses for fake tensors is completed here: moving a parameter to another device in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

DEVICE_TYPE = "simgpu"

_KERNELS_OF_CUDA = ("silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm")
"""Operators with a CUDA kernel and a composite for devices without one (torch 2.13, native_functions.yaml). Only those
that the CompositeImplicitAutograd key covers matter; anything else reaches FakeTensorMode whole."""


def register() -> None:
    """Register the simulated device with torch; once per process, before the first tensor is made on it.

    Raises RuntimeError on a torch that has no Python backend for PrivateUse1.
    """
    try:
        from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

        create: Any = torch._C._acc.create_empty_tensor
    except (ImportError, AttributeError):
        raise RuntimeError(f"torch {torch.__version__} offers no Python-defined device; torch 2.13 does") from None

    class Module(_DummyBackendModule):
        """What torch asks of `torch.simgpu`."""

        def device(self, _device: Any) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        def set_device(self, _device: Any) -> None:
            pass

        def get_rng_state(self, _device: Any = None) -> torch.Tensor:
            return torch.empty(16, dtype=torch.uint8)

        def set_rng_state(self, _state: Any, _device: Any = None) -> None:
            pass

        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.float16, torch.bfloat16]

    _setup_privateuseone_for_python_backend(DEVICE_TYPE, backend_module=Module())

    # torch calls these three while it converts an argument to the device; the tensors they return are discarded, since
    # FakeTensorMode computes the true result.
    def empty(size: Any, *, dtype: Any = None, **_: Any) -> Any:
        return create(list(size), dtype or torch.get_default_dtype())

    def empty_strided(size: Any, _stride: Any, *, dtype: Any = None, **_: Any) -> Any:
        return create(list(size), dtype or torch.get_default_dtype())

    def copy_from(_source: torch.Tensor, target: torch.Tensor, _non_blocking: bool = False) -> torch.Tensor:
        return target

    global _library
    library_class: Any = torch.library.Library
    _library = library_class("aten", "IMPL")

    # torch decomposes these for a device without a kernel of its own. A GPU has one, so there must appear to be one
    # here.
    def kernel(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("only fake tensors live on the simulated device")

    for name in _KERNELS_OF_CUDA:
        _library.impl(name, kernel, "PrivateUse1")
    for name, function in (("empty.memory_format", empty), ("empty_strided", empty_strided), ("_copy_from", copy_from)):
        _library.impl(name, function, "PrivateUse1")

    # setattr, because a type checker rightly objects to exchanging torch's methods.
    setattr(FakeTensor, "data", property(_DATA.__get__, _set_data))  # noqa: B010
    setattr(FakeTensor, "__deepcopy__", _deepcopy)  # noqa: B010
    setattr(torch.nn.Module, "_apply", _apply)  # noqa: B010
    setattr(torch.Tensor, "record_stream", lambda _tensor, _stream: None)  # noqa: B010


_library: Any  # torch unregisters the kernels when this object dies
_DATA: Any = torch.Tensor.__dict__.get("data", torch._C.TensorBase.__dict__["data"])


def _set_data(tensor: Any, new: torch.Tensor) -> None:
    """`tensor.data = new`, also when `new` lies on another device.

    torch forbids that because a tensor's dispatch keys name its device. The tensor implementation is exchanged instead,
    so the Python object, which optimizers, peft and DeepSpeed hold on to, stays the same.
    """
    if not isinstance(new, FakeTensor) or new.device == tensor.device:
        _DATA.__set__(tensor, new)
        return
    carrier: Any = new.detach().requires_grad_(tensor.requires_grad)
    torch._C._swap_tensor_impl(tensor, carrier)
    tensor.fake_device = carrier.fake_device


def _deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A tensor of its own in the same mode, as peft makes of modules that it trains; torch's would copy the mode too,
    and with it take every view of the copy for new memory."""
    if id(tensor) not in memo:
        copied = tensor.detach().clone()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(copied, tensor.requires_grad) if is_parameter else copied
    found: torch.Tensor = memo[id(tensor)]
    return found


def _apply(module: Any, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
    """`nn.Module._apply` that keeps every parameter object; torch's own insists on new ones for fake tensors."""
    if recurse:
        for child in module.children():
            child._apply(function)
    for parameter in module._parameters.values():
        if parameter is not None:
            with torch.no_grad():
                parameter.data = function(parameter.data)
                if parameter.grad is not None:
                    parameter.grad.data = function(parameter.grad.data)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module
