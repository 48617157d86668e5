"""DeepSpeed's accelerator interface over the simulated GPU.

Where DeepSpeed asks what the device can do, the answers are a CUDA device's (asynchronous, streams, pinned host
memory), so the engine takes the same branches as on a GPU.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from ..recording.ledger import Ledger
from .device import DEVICE_TYPE
from .kernels import op_builder


class Stream:
    """A stream or an event: everything has always finished. The number names the stream in the recorded trace."""

    _count = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        Stream._count += 1
        self.number = Stream._count

    def synchronize(self) -> None: ...
    def wait_stream(self, _stream: Any) -> None: ...
    def wait_event(self, _event: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def wait(self, *_: Any) -> None: ...
    def query(self) -> bool:
        return True

    def record_event(self, *_: Any) -> Stream:
        return self

    def elapsed_time(self, _other: Any) -> float:
        return 0.0


_DEFAULT_STREAM = Stream()
_DEFAULT_STREAM.number = 0


class SimulatedAccelerator(CPU_Accelerator):  # type: ignore[misc]  # DeepSpeed has no types
    """The accelerator object to pass to `deepspeed.accelerator.set_accelerator`.

    It derives from the CPU's for what does not matter here; every answer that does is given below.
    """

    _torch_pins_host_memory = True

    device_type = DEVICE_TYPE

    def __init__(self, ledger: Ledger, *, device_count: int, memory_bytes: int) -> None:
        super().__init__()
        self._name, self._communication_backend_name = self.device_type, "fake"
        self._ledger, self._device_count, self._memory_bytes = ledger, device_count, memory_bytes
        self._stream = _DEFAULT_STREAM

    def is_synchronized_device(self) -> bool:
        return False

    def use_host_timers(self) -> bool:
        return True

    def resolves_data_dependency(self) -> bool:
        return False

    def handles_memory_backpressure(self) -> bool:
        return False

    def device_name(self, device_index: int | None = None) -> str:
        return self.device_type if device_index is None else f"{self.device_type}:{device_index}"

    # Every rank's GPU is number 0 here: torch's dummy backend has one device.
    def device(self, device_index: int | None = None) -> Any:
        return contextlib.nullcontext()

    def set_device(self, device_index: int) -> None: ...
    def current_device(self) -> int:
        return 0

    def current_device_name(self) -> str:
        return f"{self.device_type}:0"

    def device_count(self) -> int:
        return self._device_count

    def synchronize(self, device_index: int | None = None) -> None: ...
    def communication_backend_name(self) -> str:
        return "fake"

    def is_available(self) -> bool:
        return True

    Stream = Stream
    Event = Stream

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Any:
        before, self._stream = self._stream, stream
        self._ledger.stream = stream.number
        try:
            yield
        finally:
            self._stream = before
            self._ledger.stream = before.number

    def current_stream(self, device_index: int | None = None) -> Any:
        return self._stream

    def default_stream(self, device_index: int | None = None) -> Any:
        return _DEFAULT_STREAM

    def empty_cache(self) -> None:
        self._ledger.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return self._ledger.gpu.live_bytes

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return self._ledger.gpu.peak_bytes

    def memory_reserved(self, device_index: int | None = None) -> int:
        return self._ledger.gpu.live_bytes

    def total_memory(self, device_index: int | None = None) -> int:
        return self._memory_bytes

    def available_memory(self, device_index: int | None = None) -> int:
        return self._memory_bytes - self._ledger.gpu.live_bytes

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float, torch.half, torch.bfloat16]

    def get_rng_state(self, device_index: int | None = None) -> Any:
        return torch.empty(16, dtype=torch.uint8)

    def set_rng_state(self, new_state: Any, device_index: int | None = None) -> None: ...

    # CPU_Accelerator overrides these with no-ops; a GPU's host pins for real, into a new block.
    def pin_memory(self, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor.pin_memory()

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Any) -> torch.Tensor:
        return tensor.new_empty(shape, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self.device_type

    def op_builder_dir(self) -> str:
        return "deepspeed.ops.op_builder"

    def get_op_builder(self, class_name: str) -> type | None:
        return op_builder(class_name, self._ledger)

    def create_op_builder(self, class_name: str) -> Any:
        builder = self.get_op_builder(class_name)
        return builder() if builder else None


def _maker_of(dtype: torch.dtype) -> Any:
    return lambda accelerator: partial(torch.tensor, dtype=dtype, device=accelerator.device_type)


for _name, _dtype in (
    ("BFloat16", torch.bfloat16),
    ("Byte", torch.uint8),
    ("Double", torch.double),
    ("Float", torch.float),
    ("Half", torch.half),
    ("Int", torch.int),
    ("Long", torch.long),
):
    setattr(SimulatedAccelerator, f"{_name}Tensor", property(_maker_of(_dtype)))
