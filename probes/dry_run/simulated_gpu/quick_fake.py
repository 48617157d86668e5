"""Fake tensors at the speed that a whole training run needs.

torch remembers what an operation returned for arguments of the same shapes, and makes the next result from that. Its
key and its fake tensors serve a compiler (symbolic shapes, sparse layouts, memoized values), and a dry run of a large
model would spend most of its time in them. This mode puts a lookup in front: the few properties that tell the tensors
of eager training apart, and torch's own entry behind them. What is not such a tensor, and what torch does not keep,
goes torch's way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import (  # type: ignore[attr-defined]  # private names
    _DISPATCH_HANDLE_DIRECTLY,
    _DISPATCH_META_HANDLERS,
    FakeTensor,
    FakeTensorMode,
    _BypassDispatchCache,
    _CacheKeyState,
    _DispatchCacheValidEntry,
)

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class QuickFakeTensorMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """FakeTensorMode for eager code: real tensors may come in, nothing is traced, no shape is symbolic."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._entries: dict[tuple[Any, ...], Any] = {}
        self._attributes: dict[torch.device, dict[str, Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; the guard against it would cost a third of every operation

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operation in _DISPATCH_META_HANDLERS or operation in _DISPATCH_HANDLE_DIRECTLY:
            return self.dispatch(operation, types, args, kwargs)
        parts: list[Any] = [operation, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        if not self._describe(parts, args) or (kwargs and not self._describe(parts, kwargs.items())):
            return self._cached_dispatch_impl(operation, types, args, kwargs)
        key = tuple(parts)
        entry = self._entries.get(key)
        if entry is not None:
            if isinstance(entry, _DispatchCacheValidEntry):
                return self._result(entry, args)
            return self._dispatch_impl(operation, types, args, kwargs)  # torch does not keep it either
        torch_key = self._torch_key(operation, args, kwargs)  # before the operation, which may change its arguments
        result = self._cached_dispatch_impl(operation, types, args, kwargs)
        if torch_key in FakeTensorMode.cache:
            self._entries[key] = FakeTensorMode.cache[torch_key]
        return result

    def _describe(self, parts: list[Any], values: Any) -> bool:
        """Append what an operation's result depends on; False where a value is of no plain kind."""
        for value in values:
            if isinstance(value, FakeTensor):
                if (
                    value.fake_mode is not self
                    or value.constant is not None
                    or value.layout is not torch.strided
                    or value.dtype.is_complex
                    or value.is_neg()
                ):
                    return False
                parts += (
                    value.dtype,
                    value.shape,
                    value.stride(),
                    value.storage_offset(),
                    value.fake_device,
                    value.requires_grad,
                    value.untyped_storage().nbytes(),
                )
            elif isinstance(value, _PLAIN):
                parts += (type(value), value)  # 1 and 1.0 are equal, and give other dtypes
            elif isinstance(value, list | tuple):
                parts += (type(value), len(value))
                if not self._describe(parts, value):
                    return False
            else:
                return False
        return True

    def _torch_key(self, operation: Any, args: Any, kwargs: Any) -> Any:
        try:
            return self._cache_key(_CacheKeyState(None), operation, args, kwargs)
        except _BypassDispatchCache:
            return None

    def _result(self, entry: Any, args: Any) -> Any:
        if entry.is_output_tuple:
            return tuple(self._output(info, args) for info in entry.output_infos)
        return self._output(entry.output_infos[0], args)

    def _output(self, info: Any, args: Any) -> Any:
        """One output: an argument changed in place, a constant, or a new tensor, on an argument's storage if it is a
        view."""
        if info.inplace_idx is not None:
            return args[info.inplace_idx]
        metadata = info.metadata
        if metadata is None:
            return info.constant_value
        with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(True)
            self.in_kernel_invocation = True
            try:
                tensor = torch.empty_strided(
                    metadata.shape,
                    metadata.stride,
                    dtype=metadata.dtype,
                    device="meta",
                    requires_grad=metadata.requires_grad,
                )
                if info.view_idx is not None:
                    tensor.set_(
                        args[info.view_idx].untyped_storage(), metadata.storage_offset, metadata.shape, metadata.stride
                    )
            finally:
                self.in_kernel_invocation = False
        return self._fake(tensor, metadata.device)

    def _fake(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """FakeTensor(self, meta, device), with the attributes of the first one, which torch has made."""
        attributes = self._attributes.get(device)
        if attributes is None:
            first = FakeTensor(self, meta, device)
            self._attributes[device] = dict(vars(first))
            return first
        fake = torch.Tensor._make_subclass(
            FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(fake)
        vars(fake).update(attributes)
        return fake
