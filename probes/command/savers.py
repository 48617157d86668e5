"""Checkpoints without numbers: what torch and safetensors save is small, and loads as tensors of the same shapes.

torch.save writes a mark and a pickle in which a tensor is its description, so that a saved file can be renamed, copied
and loaded. safetensors writes the header of the real file without the data behind it.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .extensions import rebind

_MARK = b"ds-advise tensors without numbers\n"
_KEPT_BYTES = 1 << 13
"""Storages up to this size keep their numbers where these are known: states of random generators, counters."""


def install(
    shadow: Callable[[torch.Tensor], torch.Tensor | None] = lambda tensor: (
        tensor if tensor.device.type == "cpu" else None
    ),
    attach: Callable[[Any, Any], None] = lambda result, real: None,
) -> None:
    """Replace torch.save and torch.load, and what safetensors.torch reads and writes with. Files that this run did not
    save are loaded as before.

    shadow: the numbers of a tensor, None if unknown; small ones are kept. attach: gives a loaded tensor numbers.
    """
    load = torch.load
    rebind({torch.save: _saver(shadow), load: _loader(load, attach)})
    try:
        safetensors: Any = importlib.import_module("safetensors.torch")
    except ImportError:
        return
    _replace_safetensors(safetensors)


# ---------------------------------------------------------------------- torch.save


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, protocol: int, shadow: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        super().__init__(file, protocol)
        self._shadow = shadow
        self._alive: list[Any] = []  # the identity of a storage must not be used for another one

    def persistent_id(self, obj: Any) -> Any:
        """("storage", identity, bytes, device, numbers), and of a tensor its dtype, size, stride, offset, requires_grad
        and whether it is a parameter. Numbers are one character for each byte: protocol 2 has no bytes."""
        if isinstance(obj, torch.UntypedStorage):
            return ("storage", obj._cdata, obj.nbytes(), str(obj.device), None)
        if not isinstance(obj, torch.Tensor):
            return None
        flags = (obj.requires_grad, isinstance(obj, torch.nn.Parameter))
        if obj.layout is not torch.strided:
            return ("storage", 0, 0, str(obj.device), None, obj.dtype, tuple(obj.shape), None, 0, *flags)
        storage = obj.untyped_storage()
        self._alive.append(storage)
        numbers = self._numbers(obj, storage.nbytes()) if storage.nbytes() <= _KEPT_BYTES else None
        place = (tuple(obj.shape), obj.stride(), obj.storage_offset())
        return ("storage", storage._cdata, storage.nbytes(), str(obj.device), numbers, obj.dtype, *place, *flags)

    def _numbers(self, tensor: torch.Tensor, nbytes: int) -> str | None:
        """Those of the whole storage; None where the tensor's own are all that is known."""
        real = self._shadow(tensor)
        if real is None or real.untyped_storage().nbytes() != nbytes:
            return None
        with _disable_current_modes():
            content: Any = torch.empty(0, dtype=torch.uint8).set_(real.untyped_storage())
            return bytes(content.tolist()).decode("latin1")


def _saver(shadow: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[..., None]:
    def save(obj: Any, f: Any, pickle_module: Any = None, pickle_protocol: int = 2, *_: Any, **__: Any) -> None:
        content = io.BytesIO()
        _Pickler(content, pickle_protocol, shadow).dump(obj)
        data = _MARK + content.getvalue()
        if not isinstance(f, str | os.PathLike):
            f.write(data)
            return
        parent = os.path.dirname(os.fspath(f))
        if parent and not os.path.isdir(parent):
            raise RuntimeError(f"Parent directory {parent} does not exist.")  # torch's own
        with open(f, "wb") as file:
            file.write(data)

    return save


def _loader(load: Callable[..., Any], attach: Callable[[Any, Any], None]) -> Callable[..., Any]:
    def loaded(f: Any, map_location: Any = None, pickle_module: Any = None, **options: Any) -> Any:
        data = _marked(f)
        if data is None:
            return load(f, map_location, pickle_module, **options)
        weights_only = options.get("weights_only")
        if weights_only is None:
            weights_only = pickle_module is None
        readers: Any = importlib.import_module("torch._weights_only_unpickler") if weights_only else pickle
        base: Any = readers.Unpickler
        storages: dict[int, torch.Tensor] = {}

        class Unpickler(base):  # type: ignore[misc]  # of the chosen module
            def persistent_load(self, described: Any) -> Any:
                return _rebuilt(described, map_location, storages, attach)

        try:
            return Unpickler(io.BytesIO(data), encoding="utf-8").load()
        except pickle.UnpicklingError as error:
            raise pickle.UnpicklingError(f"Weights only load failed. {error}") from None

    return loaded


def _marked(f: Any) -> bytes | None:
    """What `_save` wrote behind the mark; None for another file."""
    if isinstance(f, str | os.PathLike):
        with open(f, "rb") as file:
            return file.read() if file.read(len(_MARK)) == _MARK else None
    start = f.tell()
    if f.read(len(_MARK)) == _MARK:
        found: bytes = f.read()
        return found
    f.seek(start)
    return None


def _rebuilt(
    described: Any, map_location: Any, storages: dict[int, torch.Tensor], attach: Callable[[Any, Any], None]
) -> Any:
    _, identity, nbytes, location, numbers, *tensor = described
    device = _mapped(location, map_location)
    if not tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()
    dtype, size, stride, offset, requires_grad, is_parameter = tensor

    def placed(storage: torch.Tensor) -> torch.Tensor:
        return storage[: nbytes // dtype.itemsize * dtype.itemsize].view(dtype).as_strided(size, stride, offset)

    if stride is None:
        found = torch.empty(size, dtype=dtype, device=device)
    elif numbers and device.type == "cpu":
        with _disable_current_modes():
            found = placed(storages.setdefault(identity, _real(numbers)))
    else:
        if identity not in storages:
            storages[identity] = torch.empty(nbytes, dtype=torch.uint8, device=device)
        found = placed(storages[identity])
        if numbers:
            with _disable_current_modes():
                real = placed(_real(numbers))
            attach(found, real)
    if is_parameter:
        return torch.nn.Parameter(found, requires_grad)
    return found.requires_grad_() if requires_grad else found


def _real(numbers: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(numbers.encode("latin1")), dtype=torch.uint8)


def _mapped(location: str, map_location: Any) -> torch.device:
    if isinstance(map_location, dict):
        map_location = map_location.get(location)
    elif callable(map_location):  # of a storage that lies on the host
        moved = map_location(torch.empty(0).untyped_storage(), location)
        map_location = None if moved is None else moved.device
    return torch.device(location if map_location is None else map_location)


# ---------------------------------------------------------------------- safetensors


def _replace_safetensors(module: Any) -> None:
    """Its own functions check and arrange the tensors; below them, data is not taken out of tensors and not written."""
    package: Any = importlib.import_module("safetensors")
    numpy: Any = importlib.import_module("numpy")
    names = {dtype: name for name, dtype in module._TYPES.items()}

    def header(tensors: dict[str, Any], metadata: dict[str, str] | None) -> bytes:
        described: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        offset = 0
        for name, each in tensors.items():
            dtype = getattr(torch, each["dtype"])
            size = list(each["shape"])
            end = offset + torch.Size(size).numel() * dtype.itemsize
            described[name] = {"dtype": names[dtype], "shape": size, "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(described).encode()
        return len(text).to_bytes(8, "little") + text

    def serialize_file(tensors: dict[str, Any], filename: Any, metadata: dict[str, str] | None = None) -> None:
        with open(filename, "wb") as file:
            file.write(header(tensors, metadata))

    safe_open = package.safe_open
    module.serialize_file, module.serialize = serialize_file, lambda tensors, metadata=None: header(tensors, metadata)
    module.TensorSpec = dict
    module._to_ndarray = lambda tensor: (numpy.empty(0), tensor)
    module._tobytes = lambda tensor, name: b""  # before 0.8
    rebind({safe_open: lambda filename, *a, **k: _opened(safe_open, module, filename, *a, **k)})


def _opened(safe_open: Any, module: Any, filename: Any, *arguments: Any, **options: Any) -> Any:
    with open(filename, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        content = file.read(length) if 0 < length == os.fstat(file.fileno()).st_size - 8 else b""
    described = json.loads(content) if content else {}
    if not described.keys() - {"__metadata__"}:  # with data, or without tensors
        return safe_open(filename, *arguments, **options)
    device = options.get("device", arguments[1] if len(arguments) > 1 else "cpu")
    return HeaderOnly(described, module._TYPES, torch.device(device))


class HeaderOnly:
    """What safetensors.safe_open returns, for a file that this run saved."""

    def __init__(self, described: dict[str, Any], dtypes: dict[str, torch.dtype], device: torch.device) -> None:
        self._metadata: dict[str, str] | None = described.pop("__metadata__", None)
        self._described = described
        self._dtypes = dtypes
        self._device = device

    def __enter__(self) -> HeaderOnly:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def keys(self) -> list[str]:
        return sorted(self._described)

    def offset_keys(self) -> list[str]:
        return list(self._described)

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        found = self._described[name]
        return torch.empty(found["shape"], dtype=self._dtypes[found["dtype"]], device=self._device)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._described}

    def get_slice(self, name: str) -> Any:
        return _Slice(self, name, self._described[name])


class _Slice:
    def __init__(self, file: HeaderOnly, name: str, described: dict[str, Any]) -> None:
        self._file, self._name, self._described = file, name, described

    def get_shape(self) -> list[int]:
        return list(self._described["shape"])

    def get_dtype(self) -> str:
        return str(self._described["dtype"])

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._file.get_tensor(self._name)[index]
