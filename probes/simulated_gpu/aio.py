"""NVMe without a disk: DeepSpeed's asynchronous I/O handle that counts bytes instead of moving them."""

from __future__ import annotations

from typing import Any

import torch

from ..recording.ledger import Ledger
from ..recording.schedule import ScheduleRecorder


class CountingHandle:
    """Stands in for `aio_handle` (deepspeed/ops/op_builder/async_io.py): every transfer succeeds at once.

    Like the real handle it answers `wait()` with the number of transfers since the last one, and hands out page-locked
    host tensors. Those come from `posix_memalign` in the real handle, so torch's rounding of pinned blocks does not
    apply to them.
    """

    def __init__(self, ledger: Ledger, recorder: ScheduleRecorder, *arguments: Any, **options: Any) -> None:
        self._ledger, self._recorder, self._pending = ledger, recorder, 0
        self._queue = recorder.new_stream()

    def async_pread(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._read(buffer, path)
        self._pending += 1
        return 0

    def async_pwrite(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._write(buffer, path)
        self._pending += 1
        return 0

    def sync_pread(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._read(buffer, path)
        self._recorder.synchronize_stream(self._queue)
        return 1

    def sync_pwrite(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._write(buffer, path)
        self._recorder.synchronize_stream(self._queue)
        return 1

    def _read(self, buffer: torch.Tensor, path: str) -> None:
        self._ledger.nvme_read(path, buffer.nbytes)
        self._recorder.transfer("read", buffer.nbytes, self._queue)

    def _write(self, buffer: torch.Tensor, path: str) -> None:
        self._ledger.nvme_write(path, buffer.nbytes)
        self._recorder.transfer("write", buffer.nbytes, self._queue)

    def wait(self) -> int:
        self._recorder.synchronize_stream(self._queue)
        done, self._pending = self._pending, 0
        return done

    def new_cpu_locked_tensor(self, numel: int, example: torch.Tensor) -> torch.Tensor:
        return self._ledger.new_locked(int(numel), example.dtype)

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        return True

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._ledger.is_pinned(tensor)
