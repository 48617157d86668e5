"""A fast FakeTensorMode with a cache of results.

The result of an operation depends on the properties of its arguments. torch's own cache serves a compiler (symbolic
shapes, sparse layouts, memoized values), and a dry run of a large model would spend most of its time in it. The keys of
this cache are the few properties that distinguish the tensors of eager training. The offset of a tensor in its storage
is not part of a key: a flat buffer has one part per weight of the model, and their results differ only in the offset.
Operations that torch does not cache, and other arguments, use torch's implementation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    _DISPATCH_HANDLE_DIRECTLY,
    _DISPATCH_META_HANDLERS,
    FakeTensor,
    FakeTensorMode,
    _BypassDispatchCache,
)

_PLAIN = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size}
)
_AS_STRIDED = torch.ops.aten.as_strided.default
_SLICE = torch.ops.aten.slice.Tensor
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_UNCACHED = frozenset((*_DISPATCH_META_HANDLERS, *_DISPATCH_HANDLE_DIRECTLY))


class _Output(NamedTuple):
    """A recipe for one result: `argument` itself, a view of its storage, or (None) a new tensor."""

    argument: int | None
    """Index among the tensor arguments."""
    is_view: bool = False
    shape: Any = ()
    stride: Any = ()
    offset: int = 0
    """Offset relative to that of the argument, in the storage."""
    dtype: torch.dtype = torch.float32
    device: Any = None
    requires_grad: bool = False


class FastFakeTensorMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """FakeTensorMode for eager code: real tensors are allowed, nothing is traced, no shape is symbolic.

    refuses_mixed_products: raise an error for a product of two dtypes, as a GPU's kernels do.
    """

    def __init__(self, *, refuses_mixed_products: bool = False) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._refuses_mixed_products = refuses_mixed_products
        self._recipes: dict[tuple[Any, ...], Any] = {}
        self._attributes: dict[torch.device, dict[str, Any]] = {}
        self._meta_functions: dict[Any, Any] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; the guard against it would cost a third of every operation

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = self.cached_result(operation, args, kwargs)
        if result is not NotImplemented:
            return result
        if operation in _UNCACHED:
            return self.dispatch(operation, types, args, kwargs)
        # `.item()` returns the known value; all other operations get tensors without values.
        if operation is not torch.ops.aten._local_scalar_dense.default:
            _forget_values(args)
        if self._refuses_mixed_products:
            _refuse_mixed_product(operation, args)
        keyed = self._recipe_key(operation, args, kwargs)  # before the operation, which may change its arguments
        result = self._dispatch_impl(operation, types, args, kwargs)
        if keyed is not None and keyed[0] not in self._recipes:
            key, tensors = keyed
            # None marks a result that cannot be cached, so that torch's check runs once per key.
            self._recipes[key] = _recipe(result, tensors) if self._is_cacheable(operation, args, kwargs) else None
        return result

    def cached_result(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """The cached result, or NotImplemented; no operation is dispatched."""
        if operation is _SLICE or operation is _AS_STRIDED:
            result = self._slice_view(operation, args, kwargs)
            if result is not NotImplemented:
                return result
        elif operation.namespace == "c10d":
            return self._collective(operation, args, kwargs)
        keyed = self._recipe_key(operation, args, kwargs)
        if keyed is None:
            return NotImplemented
        key, tensors = keyed
        recipe = self._recipes.get(key)
        if recipe is None:
            return NotImplemented
        if type(recipe) is _Output:
            return self._build(recipe, tensors)
        return recipe[0](output if output is None else self._build(output, tensors) for output in recipe[1])

    def _recipe_key(self, operation: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], list[Any]] | None:
        """(key of the result, tensor arguments); None if an argument is of another kind."""
        # The default dtype and inference mode change results of factory functions and views.
        parts: list[Any] = [id(operation), torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        tensors: list[Any] = []
        if self._add_to_key(parts, tensors, args) and (not kwargs or self._add_to_key(parts, tensors, kwargs.items())):
            return tuple(parts), tensors
        return None

    def _add_to_key(self, parts: list[Any], tensors: list[Any], values: Any) -> bool:
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if not self._is_plain(value):
                    return False
                tensors.append(value)
                parts += (value.dtype, value.shape, value.stride(), value._fake_device, value.requires_grad)
            elif kind in _PLAIN:
                parts += (kind, value)  # 1 and 1.0 are equal but give different dtypes
            elif kind is list or kind is tuple:
                parts += (kind, len(value))
                if not self._add_to_key(parts, tensors, value):
                    return False
            else:
                return False
        return True

    def _is_plain(self, tensor: Any) -> bool:
        return (
            tensor.fake_mode is self
            and tensor.constant is None
            and tensor.layout is torch.strided
            and not tensor.dtype.is_complex
            and not tensor.is_neg()
        )

    def _is_cacheable(self, operation: Any, args: Any, kwargs: Any) -> bool:
        """Whether torch allows caching. `_unsafe_view` is cacheable here, because the storage shows that it is a
        view."""
        if operation in (_AS_STRIDED, _UNSAFE_VIEW):
            return operation is _UNSAFE_VIEW
        try:
            self._validate_cache_key(operation, args, kwargs)
        except _BypassDispatchCache:
            return False
        return True

    def _slice_view(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """A slice or a strided view, computed directly; NotImplemented for unusual arguments."""
        whole, *numbers = args
        if kwargs or type(whole) is not FakeTensor or not self._is_plain(whole):
            return NotImplemented
        if operation is _AS_STRIDED:
            if len(numbers) < 3 or numbers[2] is None:
                return NotImplemented
            shape, stride, offset = numbers
            last = offset + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
            # torch's own code raises the error for a view beyond the storage.
            if 0 in shape or (last + 1) * whole.itemsize > whole.untyped_storage().nbytes():
                return NotImplemented
            return self._view(whole, shape, stride, offset)
        dim, start, end, step = list(numbers) + [0, None, None, 1][len(numbers) :]
        shape = list(whole.shape)
        stride = list(whole.stride())
        if not shape:
            return NotImplemented
        # aten::slice clamps like Python's slice, and uses None and sys.maxsize for the ends.
        first, last, step = slice(start, end, step).indices(shape[dim])
        shape[dim] = max(0, -(-(last - first) // step))
        offset = whole.storage_offset() + first * stride[dim]
        stride[dim] *= step
        return self._view(whole, shape, stride, offset)

    def _collective(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """The result of torch's meta function for a collective; NotImplemented if there is none."""
        function = self._meta_functions.get(operation)
        if function is None:
            # torch registers these as meta kernels; a direct call saves the dispatcher.
            from torch.distributed._meta_registrations import _META_FUNCTIONS

            function = _META_FUNCTIONS.get(operation._opname, lambda *_: NotImplemented)
            self._meta_functions[operation] = function
        return NotImplemented if kwargs else function(*args)

    def _build(self, output: _Output, tensors: list[Any]) -> Any:
        if output.argument is not None:
            argument: Any = tensors[output.argument]
            if not output.is_view:
                return argument
            return self._view(argument, output.shape, output.stride, argument.storage_offset() + output.offset)
        options = {"dtype": output.dtype, "device": "meta", "requires_grad": output.requires_grad}
        return self._fake(self._on_meta(torch.empty_strided, output.shape, output.stride, **options), output.device)

    def _view(self, tensor: Any, shape: Any, stride: Any, offset: int) -> Any:
        return self._fake(self._on_meta(torch.as_strided, tensor, shape, stride, offset), tensor._fake_device)

    def _on_meta(self, function: Any, *args: Any, **options: Any) -> torch.Tensor:
        """The result of a function on the meta tensors inside of fake ones."""
        # As torch's `in_kernel_invocation_manager`, whose generator would cost more than the function.
        with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(True)
            self.in_kernel_invocation = True
            try:
                result: torch.Tensor = function(*args, **options)
            finally:
                self.in_kernel_invocation = False
        return result

    def _fake(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """FakeTensor(self, meta, device), with the attributes of the first one that torch created."""
        attributes = self._attributes.get(device)
        if attributes is None:
            first = FakeTensor(self, meta, device)
            self._attributes[device] = dict(vars(first))
            return first
        fake = torch.Tensor._make_subclass(
            FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        # The constructor of FakeTensor does the same: code that writes through `data_ptr` must fail.
        torch._C._set_throw_on_mutable_data_ptr(fake)
        vars(fake).update(attributes)
        return fake


_FACTORS = {
    torch.ops.aten.mm.default: (0, 1),
    torch.ops.aten.bmm.default: (0, 1),
    torch.ops.aten.addmm.default: (1, 2),
    torch.ops.aten.baddbmm.default: (1, 2),
    torch.ops.aten.convolution.default: (0, 1),
}
"""Products, with the positions of their factors."""


def _refuse_mixed_product(operation: Any, args: Any) -> None:
    """Factors of two dtypes: a GPU's kernels refuse them, meta functions do not (torch 2.13)."""
    factors = _FACTORS.get(operation)
    if factors is None:
        return
    first, second = (args[place].dtype for place in factors)
    if first is not second:
        names = "Input type and weight type" if operation is torch.ops.aten.convolution.default else "mat1 and mat2"
        got = " and ".join(str(dtype).removeprefix("torch.") for dtype in (first, second))
        raise RuntimeError(f"{names} must have the same dtype, but got {got}")


def _forget_values(arguments: Any) -> None:
    """Remove the known value of fake tensors made from a number: torch would compute with it, and the simulated GPU has
    no kernels."""
    for argument in arguments:
        if isinstance(argument, FakeTensor) and argument.constant is not None and argument.device.type != "cpu":
            argument.constant = None


def _recipe(result: Any, tensors: list[Any]) -> Any:
    """An `_Output`, or (list or tuple, its outputs); None for another result."""
    if isinstance(result, FakeTensor):
        return _output(result, tensors)
    if type(result) not in (list, tuple):
        return None
    outputs = [
        None if value is None else _output(value, tensors)
        for value in result
        if value is None or isinstance(value, FakeTensor)
    ]
    if len(outputs) < len(result) or any(
        output is None and value is not None for output, value in zip(outputs, result, strict=True)
    ):
        return None
    return type(result), tuple(outputs)


def _output(result: Any, tensors: list[Any]) -> _Output | None:
    for number, tensor in enumerate(tensors):
        if tensor is result:
            return _Output(number)
    if result.constant is not None or result.layout is not torch.strided or result.dtype.is_complex or result.is_neg():
        return None
    # Results are compared with arguments by storage: a view shares it, whatever the schema states.
    seen = {"shape": result.shape, "stride": result.stride(), "dtype": result.dtype, "device": result.fake_device}
    offset = result.storage_offset()
    storage = result.untyped_storage()
    for number, tensor in enumerate(tensors):
        if tensor.untyped_storage()._cdata == storage._cdata:
            is_same_kind = tensor.dtype is result.dtype and tensor.fake_device == result.fake_device
            return (
                _Output(number, is_view=True, offset=offset - tensor.storage_offset(), **seen) if is_same_kind else None
            )
    return _Output(None, requires_grad=result.requires_grad, **seen) if not offset else None
