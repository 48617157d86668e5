"""The shared memory through which ranks on one machine's CPU exchange tensors, which DeepSpeed never removes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")


def free_abandoned_buffers() -> None:
    """Remove this user's buffers that no process has open any more: 66 MiB a rank and training, which stay in memory
    otherwise until the machine starts anew.

    To be called when the ranks have ended; what another job uses stays. A job in another container is not seen where
    `/dev/shm` is shared and processes are not; it keeps the memory, but a rank of it that looks for the name of another
    in that moment would wait. Source: deepspeed 0.19.8 csrc/cpu/comm/shm.cpp shm_initialize.
    """
    buffers = {str(path) for path in FOLDER.glob(f"deepspeed_allreduce_buffer_{os.getuid()}_*")}
    for process in Path("/proc").glob("[0-9]*") if buffers else ():
        buffers.difference_update(_opened(process))
    for buffer in buffers:
        Path(buffer).unlink(missing_ok=True)


def _opened(process: Path) -> Iterator[str]:
    """The files that a process has open or mapped, as far as it may be asked; a file is opened before it is mapped."""
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(descriptor.readlink())
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text(errors="replace").splitlines():
            yield line.split(maxsplit=5)[-1]
