"""NVMe without a disk: DeepSpeed's asynchronous I/O handle that counts bytes instead of moving them."""

from __future__ import annotations

from typing import Any

import torch

from ..recording.ledger import Ledger


class CountingHandle:
    """Stands in for `aio_handle` (deepspeed/ops/op_builder/async_io.py): every transfer succeeds at once.

    Like the real handle it answers `wait()` with the number of transfers since the last one, and hands out page-locked
    host tensors. Those come from `posix_memalign` in the real handle, so torch's rounding of pinned blocks does not
    apply to them.
    """

    def __init__(self, ledger: Ledger, *arguments: Any, **options: Any) -> None:
        self._ledger, self._pending = ledger, 0

    def async_pread(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._ledger.nvme_read(path, buffer.nbytes)
        self._pending += 1
        return 0

    def async_pwrite(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._ledger.nvme_write(path, buffer.nbytes)
        self._pending += 1
        return 0

    def sync_pread(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._ledger.nvme_read(path, buffer.nbytes)
        return 1

    def sync_pwrite(self, buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._ledger.nvme_write(path, buffer.nbytes)
        return 1

    def wait(self) -> int:
        done, self._pending = self._pending, 0
        return done

    def new_cpu_locked_tensor(self, numel: int, example: torch.Tensor) -> torch.Tensor:
        return self._ledger.new_locked(int(numel), example.dtype)

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        return True

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._ledger.is_pinned(tensor)
