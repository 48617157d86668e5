"""Record the execution of a module on the meta device: every operation, its tensors, and the release of their memory.

Linear layers, attention and dropout are one operation each, as on a GPU. Nothing is computed: the module runs on
tensors without data and without gradients.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
import torch.fx.experimental._config
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.flop_counter import flop_registry

from ...estimators.models.program import ROWS

MAX_OPERATIONS = 40_000
"""Maximum number of operations in one forward pass."""


class UnrecordableError(ValueError):
    """No program can represent the model: its operations, or the sizes of their tensors, are not polynomials of batch
    and length."""


class TooManyOperationsError(UnrecordableError):
    """The forward pass has more operations than a trace keeps."""


@dataclass(frozen=True)
class TracedTensor:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    storage: int
    """Number of the tensor's memory, equal for tensors that share it; -1 for a parameter's."""
    source: int = 0
    """Number of a tensor from outside the module, the same in several traces; 0 if the module made it."""
    needs_grad: bool = False
    """Whether the tensor comes from outside and requires a gradient."""

    @property
    def is_differentiable(self) -> bool:
        """Whether the tensor can have a gradient; a tensor from outside only if it requires one."""
        if self.source > 0 and not self.needs_grad:
            return False
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Reference:
    """The place of a tensor in the arguments of a recorded call."""

    number: int


@dataclass(frozen=True)
class Step:
    """One operation. Tensors are given by number."""

    kind: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    call: tuple[Callable[..., Any], Any, Any] | None = None
    """Function, arguments and keyword arguments; None if no derivative is taken."""
    details: Mapping[str, int] = field(default_factory=dict)
    flops: int = 0


class Trace:
    """The tensors and operations of one run of a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.tensors: list[TracedTensor] = []
        self.steps: list[Step] = []
        self.parameters = {parameter.untyped_storage()._cdata: name for name, parameter in module.named_parameters()}
        self.weight_names: dict[int, str] = {}
        self.used: set[str] = set()
        """Names of the parameters that an operation reads."""
        self.no_grad_depth = 0
        """Nesting depth of the contexts without gradients that the module's code has entered."""
        self.flops = 0
        """FLOPs of the operations since the last step."""
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._storage_count = 0
        self._kept: list[torch.Tensor] = []

    def number(self, tensor: torch.Tensor, source: int = -1, *, needs_grad: bool = False) -> int:
        """The number of a tensor. A tensor that no step made comes from outside and lives as long as the trace."""
        if id(tensor) not in self._numbers:
            self._kept.append(tensor)
            self._add(tensor, source, needs_grad=needs_grad)
        return self._numbers[id(tensor)]

    def step(
        self,
        kind: str,
        name: str,
        arguments: Any,
        result: Any,
        call: tuple[Callable[..., Any], Any, Any] | None = None,
        details: Mapping[str, int] | None = None,
    ) -> None:
        """Record an operation that read the tensors in `arguments` and made those in `result`."""
        inputs, outputs = tensors_in(arguments), tensors_in(result)
        # Views of weights are weights, and cost nothing.
        if inputs and all(self._is_weight(tensor) for tensor in (*inputs, *outputs)):
            self._kept += outputs
            return
        numbers = tuple(self.number(tensor) for tensor in inputs if not self._is_weight(tensor))
        if name == "cat" and (whole := self._unbound(numbers)) is not None:
            made = tuple(self._add(tensor, 0) for tensor in outputs)
            copy = Step(kind, "clone", (whole,), made, call=(torch.ops.aten.clone.default, (Reference(whole),), {}))
            self.steps.append(copy)
            return
        weights = tuple(self._weight(tensor) for tensor in inputs if self._is_weight(tensor))
        recorded = None
        if call is not None and not self.no_grad_depth:
            function, args, kwargs = call
            recorded = function, self._references(args), self._references(kwargs)
        made = tuple(self._add(tensor, 0) for tensor in outputs)
        self.steps.append(Step(kind, name, numbers, made, weights, recorded, details or {}, self.flops))
        self.flops = 0

    def _unbound(self, numbers: tuple[int, ...]) -> int | None:
        """The tensor whose parts along its first dimension these are, in order, if nothing else reads them. Their
        number is the batch size, which no program can have; joined, they are a copy of it."""
        place = next((place for place in range(len(self.steps) - 1, -1, -1) if self.steps[place].kind != "hold"), 0)
        last = self.steps[place] if self.steps else None
        if last is None or last.name != "unbind" or last.outputs != numbers:
            return None
        del self.steps[place]
        return last.inputs[0]

    def parameter_name(self, tensor: torch.Tensor) -> str | None:
        """The name of the parameter that a tensor is, or is a view of."""
        return self.parameters.get(tensor.untyped_storage()._cdata)

    def keep(self, tensor: torch.Tensor) -> int:
        """Keep a tensor's memory for the lifetime of the trace. Returns its number."""
        self._kept.append(tensor)
        return self._numbers[id(tensor)]

    def _add(self, tensor: torch.Tensor, source: int, *, needs_grad: bool = False) -> int:
        storage, number = tensor.untyped_storage(), len(self.tensors)
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = self._storage_count
            self._storage_count += 1
            # When the code drops its last reference, as on a GPU: the trace itself holds only numbers.
            weakref.finalize(storage, self._released, key, number)
        self.tensors.append(
            TracedTensor(
                tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, self._storages[key], source, needs_grad
            )
        )
        self._numbers[id(tensor)] = number
        weakref.finalize(tensor, self._forget, id(tensor), number)
        return number

    def _weight(self, tensor: torch.Tensor) -> int:
        number = len(self.tensors)
        self.tensors.append(TracedTensor(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, -1, -1))
        self.weight_names[number] = self.parameters[tensor.untyped_storage()._cdata]
        self._kept.append(tensor)
        return self._numbers.setdefault(id(tensor), number)

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        return self.parameter_name(tensor) is not None

    def _references(self, tree: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda tensor: Reference(self._numbers[id(tensor)]), tree)

    def _forget(self, key: int, number: int) -> None:
        # Python reuses the id of a dead object, maybe before this callback runs.
        if self._numbers.get(key) == number:
            del self._numbers[key]

    def _released(self, key: int, number: int) -> None:
        self._storages.pop(key, None)
        self.steps.append(Step("hold", "", (number,)))


def operation_flops(op: Any, args: Any, kwargs: Any, result: Any) -> int:
    """FLOPs of a dispatched matrix product or convolution; 0 for any other operation."""
    count = flop_registry.get(op._overloadpacket)
    return int(count(*args, **kwargs, out_val=result)) if count is not None else 0


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _assume_all_equal() -> bool:
    """The answer to a check in transformers' code whether all elements are equal (to detect padding or packing). Raises
    UnrecordableError for other code."""
    frame = sys._getframe(1)
    # The line to name is that of the model's code.
    while frame.f_back and any(part in frame.f_code.co_filename for part in (f"{os.sep}torch{os.sep}", __file__)):
        frame = frame.f_back
    if f"{os.sep}transformers{os.sep}" in frame.f_code.co_filename:
        return True
    raise UnrecordableError(f"{frame.f_code.co_filename}:{frame.f_lineno} asks for the value of a tensor")


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the operations that torch dispatches. all_nonzero: treat all elements of a tensor as nonzero; in a row of
    a mask, such as one expert's tokens, the row's share of all rows. Raises UnrecordableError if the operations do not
    end, and for code that reads a value (`_assume_all_equal`)."""

    def __init__(self, trace: Trace, max_operations: int, *, all_nonzero: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace
        self.max_operations = max_operations
        self.all_nonzero = all_nonzero
        self.is_paused = False
        self.count = 0
        self.places: set[int] = set()
        """Memory of the results of `nonzero`, by which code chooses an expert: all experts are alike."""
        self.marks: set[int] = set()
        """Memory of the results of `any`: in samples of text no token is special."""
        self.kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        aten = torch.ops.aten
        if op is aten._local_scalar_dense.default:
            # `bool(tensor)` of an all-equal check.
            if args[0].dtype == torch.bool:
                return _assume_all_equal()
            if self.is_place(args[0]):
                return 0
        self.trace.used.update(filter(None, map(self.trace.parameter_name, tensors_in((args, kwargs)))))
        self.count += 1
        if self.count > self.max_operations:
            raise TooManyOperationsError("a forward pass has tens of thousands of operations, as in a loop over tokens")
        if self.all_nonzero and op is aten.index.Tensor:
            masks = [index for index in args[1] if index is not None and index.dtype == torch.bool]
            if any(mask.numel() * mask.itemsize < mask.untyped_storage().nbytes() for mask in masks):
                raise UnrecordableError("it selects the tokens of each expert by a mask")
        if self.all_nonzero and op is aten.nonzero.default:
            rows = args[0].numel() ** 2 * args[0].itemsize // args[0].untyped_storage().nbytes()
            result = args[0].new_empty((rows, args[0].dim()), dtype=torch.long)
            self.places.add(result.untyped_storage()._cdata)
            self.kept.append(result)
        else:
            result = op(*args, **kwargs)
        if op is aten.any.default:
            self.marks.add(result.untyped_storage()._cdata)
            self.kept.append(result)
        self.trace.flops += operation_flops(op, args, kwargs, result)
        if self.is_paused:
            return result
        name = op._schema.name.partition("::")[2]
        matrix = self.trace.parameter_name(args[-1]) if name in ("mm", "addmm") else None
        if matrix is not None:  # a linear layer without `nn.Linear`, such as `Conv1D`
            self.trace.step("linear", matrix.removesuffix(".weight"), args[-2], result)
        else:
            kind = "cast" if name == "_to_copy" else "operation"
            self.trace.step(kind, name, (args, kwargs), result, (op, args, kwargs))
        return result

    def is_place(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is, or is a view of, a result of `nonzero`."""
        return tensor.untyped_storage()._cdata in self.places

    def unseen(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a function; its operations are not recorded."""
        was_paused, self.is_paused = self.is_paused, True
        try:
            return function(*args, **kwargs)
        finally:
            self.is_paused = was_paused


class _Functions(TorchFunctionMode):
    """Record linear layers and attention as one operation each, and run dropout like a GPU."""

    def __init__(self, trace: Trace, operations: _Operations) -> None:
        super().__init__()
        self.trace = trace
        self.operations = operations

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.Tensor.tolist and args[0].dim() == 1 and args[0].is_meta:
            # Code splits tokens by expert with this list; its values do not exist on the meta device.
            return _Counts([0] * len(args[0]))
        if function is torch.Tensor.item and args[0].is_meta and args[0].dtype == torch.bool:
            # torch refuses it before it dispatches.
            return _assume_all_equal() and args[0].untyped_storage()._cdata not in self.operations.marks
        if function in _SPLITS and isinstance(sizes := args[1], _Counts):
            rows, count = args[0].shape[(args[2:] or (kwargs.get("dim", 0),))[0]], len(sizes)
            return function(args[0], [(rows + place) // count for place in range(count)], *args[2:], **kwargs)
        # An expert's index in a parameter's name: all experts have the same shapes.
        if function is torch.Tensor.__format__ and self.operations.is_place(args[0]):
            return "0"
        if self.operations.is_paused:
            return function(*args, **kwargs)
        if function is F.linear:
            name = self.trace.parameter_name(args[1] if len(args) > 1 else kwargs["weight"])
            if name is not None:
                arguments = self._as_rows(args[0] if args else kwargs["input"])
                result = self.operations.unseen(function, *args, **kwargs)
                self.trace.step("linear", name.removesuffix(".weight"), arguments, result)
                return result
        if function is _ATTENTION:
            return self.attend(*args, **kwargs)
        if function is F.dropout:
            return _dropout(*args, **kwargs)
        return function(*args, **kwargs)

    def _as_rows(self, arguments: torch.Tensor) -> torch.Tensor:
        """The input of a matrix product; a copy if its rows are not contiguous in memory (`at::linear`)."""
        try:
            self.operations.unseen(arguments.view, -1, arguments.shape[-1])
        except RuntimeError:
            rows = arguments.contiguous()
            self.trace.steps[-1] = replace(self.trace.steps[-1], name=ROWS)
            return rows
        return arguments

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> torch.Tensor:
        if query.dim() != 4:  # no fused kernel (torch 2.13 aten/src/ATen/native/transformers/sdp_utils_cpp.h)
            return _ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, **more)
        batch, heads, tokens, width = query.shape
        head_major = query.stride(-3) > query.stride(-2)
        # A fused kernel's output has the queries' layout; `replay` transposes that of head-major queries.
        shape = batch, tokens, heads, value.shape[-1]
        has_layout = not head_major and value.shape[-1] == width
        result: torch.Tensor = self.operations.unseen(
            lambda: torch.empty_like(query) if has_layout else query.new_empty(shape).transpose(-3, -2)
        )
        details = {
            "heads": heads,
            "kv_heads": key.shape[-3],
            "tokens": tokens,
            "keys": key.shape[-2],
            "head_dim": width,
            "v_head_dim": value.shape[-1],
            "causal": int(is_causal),
            "masked": int(attn_mask is not None),
            "head_major": int(head_major),
            "dropout": int(dropout_p > 0),
        }
        bias = attn_mask if attn_mask is not None and attn_mask.is_floating_point() else None
        self.trace.step("attention", "attention", (query, key, value, bias), result, details=details)
        return result


class _Counts(list[int]):
    """Unknown numbers of rows by which code splits a tensor, such as the tokens of each expert: equal shares are
    used."""


_SPLITS = (torch.Tensor.split, torch.split)
_ATTENTION = F.scaled_dot_product_attention


def _dropout(value: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: ARG001 (F.dropout's signature)
    return torch.native_dropout(value, p, True)[0] if p and training else value


def _own_functions(trace: Trace, operations: _Operations) -> Any:
    """Record an `autograd.Function` of the model's code as one operation, because it defines its own derivative."""
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.__name__ == "CheckpointFunction":  # reentrant: function, whether it restores random numbers, arguments
            trace.steps.append(Step("checkpoint", "", ()))
            result = args[0](*args[2:])
            trace.steps.append(Step("checkpointed", "", ()))
            return result
        call = original.__get__(None, cls)
        if operations.is_paused:
            return call(*args, **kwargs)
        result = operations.unseen(call, *args, **kwargs)
        trace.step("operation", cls.__name__, (args, kwargs), result, (call, args, kwargs))
        return result

    return patch.object(torch.autograd.Function, "apply", classmethod(apply))


@contextmanager
def _without_gradients(trace: Trace) -> Iterator[None]:
    """Disable gradients while the trace runs, and count the contexts in which the model's own code disables them."""
    enter, leave = torch.no_grad.__enter__, torch.no_grad.__exit__

    def count_enter(self: Any) -> None:
        trace.no_grad_depth += 1
        enter(self)

    def count_exit(self: Any, *error: Any) -> None:
        trace.no_grad_depth -= 1
        leave(self, *error)
        # torch restores `is_grad_enabled()` of before, which module.py patches to be True.
        torch.set_grad_enabled(False)

    with torch.no_grad(), patch.multiple(torch.no_grad, __enter__=count_enter, __exit__=count_exit):
        yield


@contextmanager
def tracing(
    trace: Trace, max_operations: int = MAX_OPERATIONS, *, all_nonzero: bool = False
) -> Iterator[Callable[..., Any]]:
    """Record all operations in the context, up to a maximum number. Yields a function that runs another one unrecorded.

    all_nonzero: indices by condition choose every element, as in transformers' code for padding and images.
    """
    operations = _Operations(trace, max_operations, all_nonzero=all_nonzero)
    functions = _Functions(trace, operations)

    def attend(*args: Any, **kwargs: Any) -> Any:
        return (_ATTENTION if operations.is_paused else functions.attend)(*args, **kwargs)

    with (
        patch.object(torch.fx.experimental._config, "meta_nonzero_assume_all_nonzero", all_nonzero),
        _without_gradients(trace),
        operations,
        functions,
        _own_functions(trace, operations),
        patch.object(F, "scaled_dot_product_attention", attend),  # calls in torch itself, which no mode sees
    ):
        yield operations.unseen
