"""Values of fake tensors: integers, masks and small tensors of a script keep their numbers.

Beside a fake tensor a real tensor on the host, its shadow, holds the numbers. An operation runs on the shadows too when
all its inputs have one, up to `LARGEST` elements. Shapes that depend on values (`nonzero`, `x[mask]`), `.item()` and
`.tolist()` are then exact. A tensor computed from weights has no shadow. A number that is read from it is invented:
1.0, 1 or False, so that losses are finite and no overflow is seen. An unknown mask selects every element.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from ..recording.ledger import Ledger, RecordingMode
from ..recording.schedule import ScheduleRecorder

LARGEST = 1 << 22
"""Elements of the largest tensor with a shadow: a batch of token ids, or a mask of 2,048 x 2,048."""
_LARGEST_FLOATS = 4096
"""Elements of the largest new floating-point tensor with a shadow: real computations on larger ones would be slow."""

_aten: Any = torch.ops.aten
_ITEM = _aten._local_scalar_dense.default
_TO = _aten._to_copy.default
_INDEX = _aten.index.Tensor
_DEVICE = torch.ops.prim.device.default
_real: Any = torch._C._DisableTorchDispatch
_READERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
"""Folders of the code between a script's line and the operation that reads a number."""
_READS = frozenset({"item", "is_nonzero"})
"""Composite operations, which inference mode leaves whole."""
_RANDOM = frozenset({"rand", "randn", "normal", "uniform"})
_EMPTY = frozenset({"empty", "empty_strided", "new_empty", "new_empty_strided"})
_OR = frozenset({"bitwise_or", "logical_or", "__or__", "bitwise_or_"})
_AND = frozenset({"bitwise_and", "logical_and", "__and__", "bitwise_and_"})
_NOT_FINITE = frozenset({"isnan", "isinf"})
_KEEP_UNIFORM = frozenset({"logical_or", "bitwise_or", "logical_and", "_to_copy", "any", "max", "sum"})
"""Operations whose result on a tensor of one repeated number follows from that number, where it is 0."""


class _Facts:
    """What is fixed for an operation."""

    __slots__ = ("data_dependent", "mutates", "name", "namespace")

    def __init__(self, operation: Any) -> None:
        tags = operation.tags
        self.data_dependent = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
        self.mutates = operation._schema.is_mutable
        self.namespace = operation.namespace
        self.name = operation._schema.name.split("::")[1]


class ValueRecordingMode(RecordingMode):  # type: ignore[no-untyped-call]
    """`RecordingMode` with shadows.

    invented: numbers that code read although they are unknown, by (file, line of the script) with the number.
    """

    def __init__(self, ledger: Ledger, recorder: ScheduleRecorder, known: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__(ledger, recorder, known)
        self._facts: dict[int, _Facts] = {}
        self._stale: dict[int, Any] = {}
        """Address of a shadow's storage whose numbers no longer hold -> a tensor that keeps the address in use."""
        self.invented: dict[tuple[str, int], Any] = {}
        self.unknown_masks = 0
        self.script_folders: tuple[str, ...] = ()
        """Folders of the script's own files, for `invented`."""

    # ------------------------------------------------------------------ shadows

    def shadow(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The numbers of a tensor; None where they are unknown."""
        if not isinstance(tensor, FakeTensor):
            return tensor if tensor.device.type == "cpu" else None
        value: torch.Tensor | None = tensor.__dict__.get("_shadow")
        if value is None or value.shape != tensor.shape or value.dtype != tensor.dtype:
            return None
        return None if value.untyped_storage()._cdata in self._stale else value

    def readable(self, tensor: torch.Tensor) -> torch.Tensor:
        """A real tensor of the same shape: the shadow, or zeros."""
        value = self.shadow(tensor)
        if value is not None:
            return value
        with _real():
            return torch.zeros(tuple(tensor.shape), dtype=tensor.dtype)

    def attach(self, result: Any, real: Any) -> None:
        """Give fake results the shadows of the real ones."""
        if isinstance(result, FakeTensor) and isinstance(real, torch.Tensor):
            fits = result.shape == real.shape and result.dtype == real.dtype and real.numel() <= LARGEST
            if fits and not isinstance(result, torch.nn.Parameter):
                result.__dict__["_shadow"] = real
        elif isinstance(result, list | tuple) and isinstance(real, list | tuple):
            for one, other in zip(result, real, strict=False):
                self.attach(one, other)

    def _forget(self, tensor: Any) -> None:
        """The tensor's numbers changed in an unknown way, and so did those of its views."""
        if isinstance(tensor, FakeTensor):
            value = tensor.__dict__.pop("_shadow", None)
            if value is not None:
                self._stale[value.untyped_storage()._cdata] = value

    # ------------------------------------------------------------------ operations

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation is _DEVICE and isinstance(args[0], FakeTensor):  # as frequent as all others together
            return args[0].fake_device
        facts = self._facts.get(id(operation))
        if facts is None:
            facts = self._facts[id(operation)] = _Facts(operation)
        kwargs = kwargs or {}
        if facts.namespace == "c10d":
            result = super().__torch_dispatch__(operation, types, args, kwargs)
            self._communicated(facts.name, args)
            return result
        if facts.name in _READS:
            number = self.__torch_dispatch__(_ITEM, types, args[:1])
            return bool(number) if facts.name == "is_nonzero" else number
        tensors = _leaves(args, kwargs)
        shadows = self._shadows(tensors) if tensors else []
        if shadows is None and (facts.name in _OR or facts.name in _AND):
            shadows = self._decided(facts.name, tensors)
        if facts.data_dependent and (operation is not _INDEX or any(map(_is_mask, args[1]))):
            return self._data_dependent(operation, facts, types, args, kwargs, tensors, shadows)
        if not tensors:
            return self._factory(operation, facts, types, args, kwargs)
        if shadows is not None and all(value is tensor for value, tensor in zip(shadows, tensors, strict=True)):
            target = kwargs.get("device")
            if (target is None or torch.device(target).type == "cpu") and not kwargs.get("pin_memory"):
                with _real():  # every tensor is real and on the host, and stays there
                    result = operation(*args, **kwargs)
                for each in _leaves((result,), {}):
                    self._ledger.track(each)
                return result
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if shadows is not None:
            self._follow(operation, args, kwargs, tensors, shadows, result, mutates=facts.mutates)
            if isinstance(result, FakeTensor) and any(map(self._is_invented, tensors)):
                result.__dict__["_invented"] = True
        elif facts.mutates:
            self._forget_written(operation, facts, args, kwargs)
        else:
            self._uniform(facts.name, args, result)
        return result

    def _shadows(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The shadows, with an invented one for unknown scalars; None where a tensor is unknown."""
        found: list[torch.Tensor] = []
        known = False
        for tensor in tensors:
            value = self.shadow(tensor)
            if value is None:
                if tensor.dim() != 0 and tensor.numel() != 1:
                    return None
                if isinstance(tensor, torch.nn.Parameter) or tensor.device.type == "meta":
                    return None
                found.append(self._invent(tensor))
                continue
            if value.numel() > LARGEST:
                return None
            known = True
            found.append(value)
        return found if known or all(tensor.numel() == 1 for tensor in tensors) else None

    def _is_invented(self, tensor: torch.Tensor) -> bool:
        """Whether the numbers of a tensor are invented, or follow from invented ones."""
        return isinstance(tensor, FakeTensor) and ("_invented" in tensor.__dict__ or self.shadow(tensor) is None)

    def _invent(self, tensor: torch.Tensor) -> torch.Tensor:
        uniform = tensor.__dict__.get("_uniform")
        number = 1 if tensor.dtype is not torch.bool else 0
        if uniform is not None:
            number = uniform
        with _real():
            # On the host by name: zero.Init's torch makes tensors on the GPU otherwise.
            return torch.full(tuple(tensor.shape), number, dtype=tensor.dtype, device="cpu")

    def _decided(self, name: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """In `a | unknown` and `a & unknown` the known one decides: the unknown end of a text is none, an unknown mask
        selects all. So generation lasts to its maximum."""
        known = [self.shadow(tensor) for tensor in tensors]
        if all(value is None or value.numel() > LARGEST for value in known):
            return None
        fill = torch.ones if name in _AND else torch.zeros
        with _real():
            return [
                fill(tuple(tensor.shape), dtype=tensor.dtype, device="cpu") if value is None else value
                for value, tensor in zip(known, tensors, strict=True)
            ]

    def _uniform(self, name: str, args: Any, result: Any) -> None:
        """Gradients are finite: the mask of infinite or undefined elements is false, however large it is."""
        if not isinstance(result, FakeTensor):
            return
        is_zero = name in _NOT_FINITE
        if name in _KEEP_UNIFORM:
            tensors = _leaves(args, {})
            masks = [tensor for tensor in tensors if "_uniform" in tensor.__dict__]
            is_zero = bool(masks) and all("_uniform" in tensor.__dict__ for tensor in tensors if tensor.dim())
        if is_zero:
            result.__dict__["_uniform"] = 0

    def _factory(self, operation: Any, facts: _Facts, types: Any, args: Any, kwargs: Any) -> Any:
        """A new tensor. Integers of the host are real; a small one of the device has a shadow."""
        device = kwargs.get("device")
        on_host = device is None or torch.device(device).type == "cpu"
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if not isinstance(result, FakeTensor) or result.device.type == "meta" or result.numel() > LARGEST:
            return result
        is_float = result.is_floating_point() or result.is_complex()
        if facts.name in _RANDOM or (is_float and (result.numel() > _LARGEST_FLOATS or facts.name in _EMPTY)):
            return result
        with _real():
            real = operation(*args, **_on_host(kwargs))
            if facts.name in _EMPTY:
                real.zero_()
        if on_host and not is_float and facts.name not in _EMPTY and not kwargs.get("pin_memory"):
            self._ledger.track(real)
            return real
        self.attach(result, real)
        return result

    def _follow(
        self,
        operation: Any,
        args: Any,
        kwargs: Any,
        tensors: Sequence[torch.Tensor],
        shadows: Sequence[torch.Tensor],
        result: Any,
        *,
        mutates: bool,
    ) -> None:
        """Run the operation on the shadows too."""
        table = {id(tensor): value for tensor, value in zip(tensors, shadows, strict=True)}

        def shadowed(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return table[id(value)]
            return torch.device("cpu") if isinstance(value, torch.device) else value

        try:
            with _real():
                options = _on_host({name: tree_map(shadowed, value) for name, value in kwargs.items()})
                if operation is _TO:
                    options["non_blocking"] = False
                real = operation(*(tree_map(shadowed, value) for value in args), **options)
        except Exception:  # what the CPU lacks a kernel for is unknown
            if mutates:
                self._forget_written(operation, self._facts[id(operation)], args, kwargs)
            return
        self.attach(result, real)
        if mutates:
            for tensor, value in zip(tensors, shadows, strict=True):
                if isinstance(tensor, FakeTensor) and self.shadow(tensor) is None:
                    self.attach(tensor, value)

    def _forget_written(self, operation: Any, facts: _Facts, args: Any, kwargs: Any) -> None:
        if facts.name == "_amp_foreach_non_finite_check_and_unscale_":
            return  # `found_inf` stays as it is: gradients are finite
        for argument, given in zip(operation._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for each in given if isinstance(given, list | tuple) else [given]:
                    self._forget(each)
        self._forget(kwargs.get("out"))

    def _communicated(self, name: str, args: Any) -> None:
        """After a collective: every rank has this rank's numbers."""
        if name == "_allgather_base_":
            output, given = args[0], args[1]
            value = self._sent(given)
            if value is None or output.numel() > LARGEST or not given.numel():
                self._forget(output)
            else:
                with _real():
                    times = output.numel() // given.numel()
                    self.attach(output, value.reshape(1, -1).expand(times, -1).reshape(output.shape).clone())
        elif name == "allgather_":
            for outputs, given in zip(args[0], args[1], strict=True):
                value = self._sent(given)
                for output in outputs:
                    self._forget(output)
                    if value is not None and value.numel() == output.numel():
                        with _real():
                            self.attach(output, value.clone().reshape(output.shape))
        elif name in ("reduce_scatter_", "_reduce_scatter_base_", "alltoall_base_", "alltoall_", "scatter_", "gather_"):
            for each in _leaves(args[:1], {}):
                self._forget(each)

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor | None:
        value = self.shadow(tensor)
        return self._invent(tensor) if value is None and tensor.numel() == 1 else value

    # ------------------------------------------------------------------ shapes and numbers that depend on values

    def _data_dependent(
        self,
        operation: Any,
        facts: _Facts,
        types: Any,
        args: Any,
        kwargs: Any,
        tensors: Sequence[torch.Tensor],
        shadows: Sequence[torch.Tensor] | None,
    ) -> Any:
        if operation is _ITEM:
            if tensors[0].device.type != "cpu" and self._recorder.active:
                self._recorder.note(operation, args, kwargs, None)  # the host waits for the number
            value = self.shadow(tensors[0])
            if value is None:
                value = self._invent(tensors[0])
            with _real():
                number = value.item()
            if self._is_invented(tensors[0]):
                self._note_invented(number)
            return number
        if operation is _INDEX:
            return self._indexed(types, args, kwargs)
        if shadows is not None:
            table = {id(tensor): value for tensor, value in zip(tensors, shadows, strict=True)}
            with _real():
                real = operation(
                    *tree_map(lambda each: table[id(each)] if isinstance(each, torch.Tensor) else each, args),
                    **tree_map(lambda each: table[id(each)] if isinstance(each, torch.Tensor) else each, dict(kwargs)),
                )
            if not any(isinstance(tensor, FakeTensor) for tensor in tensors):
                return real
            return tree_map(
                lambda each: self._faked(each, tensors[0]) if isinstance(each, torch.Tensor) else each, real
            )
        self.unknown_masks += 1
        return self._selecting_all(operation, facts.name, types, args, kwargs)

    def _indexed(self, types: Any, args: Any, kwargs: Any) -> Any:
        """`x[mask]` by the places that the mask selects; an unknown mask selects all."""
        places: list[Any] = []
        for place in args[1]:
            if not _is_mask(place):
                places.append(place)
                continue
            known = self.shadow(place)
            if known is None:
                self.unknown_masks += 1
                places += [self._new((place.numel(),), torch.int64, place) for _ in range(place.dim())]
            else:
                with _real():
                    chosen = known.bool().nonzero(as_tuple=True)
                places += [self._faked(each, place) if isinstance(args[0], FakeTensor) else each for each in chosen]
        return self.__torch_dispatch__(_INDEX, types, (args[0], places), kwargs)

    def _note_invented(self, number: Any) -> None:
        """Note the number if a line of the script read it; what libraries read is theirs."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(_READERS):
                frame = frame.f_back
                continue
            if str(Path(file).absolute()).startswith(self.script_folders) and "-packages" not in file:
                self.invented.setdefault((file, frame.f_lineno), number)
            return

    def _faked(self, real: torch.Tensor, example: torch.Tensor) -> Any:
        fake = self._new(real.shape, real.dtype, example)
        self.attach(fake, real)
        return fake

    def _new(self, shape: Sequence[int], dtype: torch.dtype, example: torch.Tensor) -> Any:
        options = {"dtype": dtype, "device": example.device}
        return super().__torch_dispatch__(_aten.empty.memory_format, (), (list(shape),), options)

    def _selecting_all(self, operation: Any, name: str, types: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation with an unknown mask, as if it selected every element."""
        first = args[0]
        if name == "nonzero":
            return self._new((first.numel(), first.dim()), torch.int64, first)
        if name == "masked_select":
            chosen = self.shadow(args[1])
            with _real():
                count = first.numel() if chosen is None else int(chosen.sum())
            return self._new((count,), first.dtype, first)
        if name in ("_unique2", "unique_dim", "unique_consecutive"):
            count = first.numel()
            counts = self._new((count,), torch.int64, first)
            return self._new((count,), first.dtype, first), self._new(first.shape, torch.int64, first), counts
        if name == "bincount":
            length = kwargs.get("minlength", args[2] if len(args) > 2 else 1)
            return self._new((max(1, length),), torch.int64, first)
        if name in ("equal", "_is_all_true", "_is_any_true", "allclose"):
            return True
        if name == "repeat_interleave":
            return self._new((kwargs.get("output_size") or first.numel(),), torch.int64, first)
        return super().__torch_dispatch__(operation, types, args, kwargs)


def _leaves(args: Any, kwargs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    stack: list[Any] = [args, kwargs.values()] if kwargs else [args]
    while stack:
        for each in stack.pop():
            if isinstance(each, torch.Tensor):
                found.append(each)
            elif type(each) in (list, tuple):
                stack.append(each)
    return found


def _is_mask(tensor: Any) -> bool:
    return tensor is not None and tensor.dtype in (torch.bool, torch.uint8)


def _on_host(options: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments for the same operation on the host."""
    changed = dict(options)
    if changed.get("device") is not None:
        changed["device"] = "cpu"
    if "pin_memory" in changed:
        changed["pin_memory"] = False
    return changed


def install(mode: ValueRecordingMode) -> None:
    """Make the methods of fake tensors that read numbers return those of the shadow."""

    def replace(name: str, method: Callable[..., Any]) -> None:
        plain = getattr(torch.Tensor, name)

        def chosen(tensor: Any, *arguments: Any, **options: Any) -> Any:
            function = method if isinstance(tensor, FakeTensor) else plain
            return function(tensor, *arguments, **options)

        setattr(torch.Tensor, name, chosen)
        if name in FakeTensor.__dict__:
            setattr(FakeTensor, name, chosen)

    def numpy(tensor: Any, *arguments: Any, **options: Any) -> Any:
        with _disable_current_modes():
            return mode.readable(tensor).numpy(*arguments, **options)

    def array(tensor: Any, dtype: Any = None, copy: Any = None) -> Any:
        return numpy(tensor) if dtype is None else numpy(tensor).astype(dtype)

    def text(tensor: Any, spec: str) -> str:
        return format(tensor.item(), spec) if tensor.dim() == 0 else object.__format__(tensor, "")

    deepcopy: Any = torch.Tensor.__deepcopy__

    def copied(tensor: Any, memo: dict[int, Any]) -> Any:
        if isinstance(tensor, FakeTensor):
            return deepcopy(tensor, memo)
        with _disable_current_modes():
            return deepcopy(tensor, memo)

    setattr(torch.Tensor, "__deepcopy__", copied)  # noqa: B010  # a type checker objects to exchanging torch's method
    replace("tolist", lambda tensor: mode.readable(tensor).tolist() if tensor.dim() else tensor.item())
    replace("numpy", numpy)
    replace("__array__", array)
    replace("__format__", text)
