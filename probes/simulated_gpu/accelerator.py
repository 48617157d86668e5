"""DeepSpeed's accelerator interface for the simulated GPU.

Its capabilities are those of a CUDA device (asynchronous, streams, pinned host memory), so the engine takes the same
branches as on a GPU.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from ..recording.ledger import Ledger
from ..recording.schedule import ScheduleRecorder
from .device import DEVICE_TYPE
from .kernels import op_builder


class Stream:
    """A stream of the simulated GPU. Operations finish immediately; the recorder records the waits."""

    def __init__(self, recorder: ScheduleRecorder, *_: Any, number: int | None = None, **__: Any) -> None:
        self._recorder = recorder
        self.number = recorder.new_stream() if number is None else number

    def wait_stream(self, other: Stream) -> None:
        self._recorder.wait_stream(self.number, other.number)

    def wait_event(self, event: Event) -> None:
        self._recorder.wait(self.number, event.number)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self._recorder)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._recorder.synchronize_stream(self.number)

    def query(self) -> bool:
        return True


class Event:
    """An event of the simulated GPU."""

    def __init__(self, recorder: ScheduleRecorder, *_: Any, **__: Any) -> None:
        self._recorder = recorder
        self.number = recorder.new_event()

    def record(self, stream: Stream | None = None) -> None:
        self._recorder.record(self.number, None if stream is None else stream.number)

    def wait(self, stream: Stream | None = None) -> None:
        self._recorder.wait(self._recorder.current_stream() if stream is None else stream.number, self.number)

    def synchronize(self) -> None:
        self._recorder.synchronize(self.number)

    def query(self) -> bool:
        """Always pending, so that the engine synchronizes at the places where it limits how far the host runs ahead."""
        return False

    def elapsed_time(self, _other: Any) -> float:
        return 0.0


class SimulatedAccelerator(CPU_Accelerator):  # type: ignore[misc]  # DeepSpeed has no types
    """The accelerator for `deepspeed.accelerator.set_accelerator`.

    It inherits methods without effect on the simulation from the CPU's accelerator; others are below and in `_METHODS`.
    """

    # False in CPU_Accelerator, which pins nothing; DeepSpeed then does not count pinned memory.
    _torch_pins_host_memory = True

    device_type = DEVICE_TYPE

    def __init__(self, ledger: Ledger, recorder: ScheduleRecorder, *, device_count: int, memory_bytes: int) -> None:
        super().__init__()
        self._name = self.device_type
        # The constructor of the CPU's accelerator chose gloo or oneCCL.
        self._communication_backend_name = "fake"
        self._ledger = ledger
        self._device_count = device_count
        self._memory_bytes = memory_bytes
        self._recorder = recorder
        self._stream = self._default_stream = Stream(recorder, number=0)

    @property
    def Stream(self) -> Any:  # DeepSpeed's name
        return partial(Stream, self._recorder)

    @property
    def Event(self) -> Any:
        return partial(Event, self._recorder)

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Any:
        # The ledger stores the stream of each block: the allocator reuses memory within a stream.
        before, self._stream = self._stream, stream
        self._ledger.stream = stream.number
        try:
            yield
        finally:
            self._stream = before
            self._ledger.stream = before.number

    def get_op_builder(self, class_name: str) -> type | None:
        return op_builder(class_name, self._ledger, self._recorder)

    def create_op_builder(self, class_name: str) -> Any:
        builder = self.get_op_builder(class_name)
        return builder() if builder else None


_METHODS: dict[str, Any] = {
    "device": contextlib.nullcontext(),
    "device_name": lambda gpu, index=None: gpu.device_type if index is None else f"{gpu.device_type}:{index}",
    "current_device_name": lambda gpu: f"{gpu.device_type}:0",
    "device_count": lambda gpu: gpu._device_count,
    "current_stream": lambda gpu, _=None: gpu._stream,
    "default_stream": lambda gpu, _=None: gpu._default_stream,
    "synchronize": lambda gpu, _=None: gpu._recorder.synchronize(),
    "empty_cache": lambda gpu: gpu._ledger.empty_cache(),
    "memory_allocated": lambda gpu, _=None: gpu._ledger.gpu.live_bytes,
    "memory_reserved": lambda gpu, _=None: gpu._ledger.gpu.live_bytes,
    "max_memory_allocated": lambda gpu, _=None: gpu._ledger.gpu.peak_bytes,
    "total_memory": lambda gpu, _=None: gpu._memory_bytes,
    "available_memory": lambda gpu, _=None: gpu._memory_bytes - gpu._ledger.gpu.live_bytes,
    "get_rng_state": lambda _gpu, _=None: torch.empty(16, dtype=torch.uint8),
    # No-ops in CPU_Accelerator; the host of a GPU pins into a new block.
    "pin_memory": lambda _, tensor, *_more, **_options: tensor.pin_memory(),
    "_torch_pin_memory": lambda _, tensor: tensor.pin_memory(),
    "_torch_empty_pinned": lambda _, tensor, shape: tensor.new_empty(shape, pin_memory=True),
    "is_pinned": lambda _, tensor: tensor.is_pinned(),
    "on_accelerator": lambda gpu, tensor: tensor.device.type == gpu.device_type,
    "is_synchronized_device": False,
    "use_host_timers": True,
    "resolves_data_dependency": False,
    "handles_memory_backpressure": False,
    "set_device": None,
    "current_device": 0,  # torch's dummy backend has one device
    "communication_backend_name": "fake",
    "is_available": True,
    "is_bf16_supported": True,
    "is_fp16_supported": True,
    "supported_dtypes": [torch.float, torch.half, torch.bfloat16],
    "set_rng_state": None,
    "op_builder_dir": "deepspeed.ops.op_builder",
}
"""Method -> its constant result, or its implementation."""

_TENSOR_TYPES = {
    "ByteTensor": torch.uint8,
    "FloatTensor": torch.float,
    "IntTensor": torch.int,
    "LongTensor": torch.long,
}


def _constant(answer: Any) -> Any:
    return lambda _accelerator, *_, **__: answer


def _tensor_constructor(dtype: torch.dtype) -> Any:
    return property(lambda accelerator: partial(torch.tensor, dtype=dtype, device=accelerator.device_type))


# On the class, because CPU_Accelerator defines most of these names.
for _name, _answer in _METHODS.items():
    setattr(SimulatedAccelerator, _name, _answer if callable(_answer) else _constant(_answer))
for _name, _dtype in _TENSOR_TYPES.items():
    setattr(SimulatedAccelerator, _name, _tensor_constructor(_dtype))
