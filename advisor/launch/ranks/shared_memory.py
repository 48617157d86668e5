"""The shared memory through which ranks on one machine's CPU exchange tensors, which DeepSpeed never removes."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path("/dev/shm")


def unname_buffer() -> None:
    """Take its name from this rank's buffer, which is then freed with the last process that has it open, however that
    ends. The name stays in memory otherwise: 66 MiB a rank and training, until the machine starts anew.

    To be called once every rank has opened it, such as after a collective of all. Source: deepspeed 0.19.8
    csrc/cpu/comm/shm.cpp shm_initialize.
    """
    of_job = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    name = "_".join(("deepspeed_allreduce_buffer", str(os.getuid()), *of_job))
    (FOLDER / name).unlink(missing_ok=True)
