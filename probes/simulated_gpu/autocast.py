"""Autocast on the simulated GPU, as on CUDA: which operations run in half precision, which in fp32.

The lists of operations are read from the installed torch's own header, ATen/autocast_mode.h.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .device import DEVICE_TYPE

_aten: Any = torch.ops.aten

_KINDS = {
    "AT_FORALL_LOWER_PRECISION_FP": "half",
    "AT_FORALL_FP32": "float",
    "AT_FORALL_FP32_SET_OPT_DTYPE": "float result",
    "AT_FORALL_PROMOTE": "widest",
}
"""Macro of torch's header -> what its operations do under autocast."""

_library: list[Any] = []
_cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
"""Identity of an fp32 weight -> (the weight, its copy in half precision), until autocast ends."""


def install() -> None:
    """Register the kernels, and let `torch.autocast("cuda")` mean the simulated GPU."""
    keys: Any = torch._C.DispatchKey
    key = torch._C.DispatchKeySet(keys.AutocastPrivateUse1)
    library_class: Any = torch.library.Library
    fallback = library_class("_", "IMPL", "AutocastPrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel)
    library = library_class("aten", "IMPL")
    _library.extend((fallback, library))

    def kernel(operation: Any, kind: str) -> Any:
        names = [argument.name for argument in operation._schema.arguments]

        def run(*arguments: Any, **options: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(key):
                if kind == "float result":
                    options |= dict(zip(names[1:], arguments[1:], strict=False))
                    if options.get("dtype") is None and arguments[0].is_floating_point():
                        options["dtype"] = torch.float32
                    return operation(arguments[0], **options)
                if kind == "widest":
                    is_float = any(each.dtype is torch.float32 for each in arguments if isinstance(each, torch.Tensor))
                else:
                    is_float = kind == "float"
                dtype = torch.float32 if is_float else torch.get_autocast_dtype(DEVICE_TYPE)
                cast = {name: _cast(value, dtype) for name, value in options.items()}
                return operation(*(_cast(value, dtype) for value in arguments), **cast)

        return run

    for name, overload, kind in listed_operations():
        packet = getattr(_aten, name, None)
        if packet is not None and overload in packet.overloads():
            suffix = "" if overload == "default" else f".{overload}"
            library.impl(name + suffix, kernel(getattr(packet, overload), kind), "AutocastPrivateUse1")
    _replace_contexts()


def listed_operations() -> Iterator[tuple[str, str, str]]:
    """(operation, overload, kind) of torch's lists. The kinds are the values of `_KINDS`."""
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    for macro, kind in _KINDS.items():
        # A macro is one definition whose lines end with a backslash.
        (body,) = re.findall(rf"#define {macro}\(_\)((?:.*\\\n)*.*)", header)
        for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", body):
            yield name, overload or "default", kind


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        castable = value.is_floating_point() and value.dtype not in (dtype, torch.float64)
        if not castable or value.device.type != DEVICE_TYPE:
            return value
        is_weight = value.is_leaf and value.requires_grad and value.dtype is torch.float32
        if not is_weight or dtype is torch.float32 or not torch.is_autocast_cache_enabled():
            return value.to(dtype)
        kept = _cast_weights.get(id(value))
        if kept is None:
            kept = _cast_weights[id(value)] = (value, value.to(dtype))
        return kept[1]
    if type(value) in (list, tuple):
        return type(value)(_cast(each, dtype) for each in value)
    return value


def _replace_contexts() -> None:
    begin, end = torch.autocast.__init__, torch.autocast.__exit__
    torch_module: Any = torch

    def own(device_type: str) -> str:
        return DEVICE_TYPE if device_type == "cuda" else device_type

    def init(context: Any, device_type: str = "cuda", *arguments: Any, **options: Any) -> None:
        begin(context, own(device_type), *arguments, **options)

    def leave(context: Any, *arguments: Any) -> Any:
        result = end(context, *arguments)
        if not torch.is_autocast_enabled(DEVICE_TYPE):
            _cast_weights.clear()
        return result

    class CudaAutocast(torch.autocast):
        def __init__(
            self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
        ) -> None:
            super().__init__(DEVICE_TYPE, enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)

    torch_module.autocast.__init__ = init
    torch_module.autocast.__exit__ = leave
    torch_module.cuda.amp.autocast = CudaAutocast
    is_enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    torch_module.is_autocast_enabled = lambda device_type="cuda": is_enabled(own(device_type))
    torch_module.get_autocast_dtype = lambda device_type: get_dtype(own(device_type))
    torch_module.get_autocast_gpu_dtype = lambda: get_dtype(DEVICE_TYPE)
