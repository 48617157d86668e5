"""The folder that --nvme names: a fast local drive with room, written past the page cache."""

from __future__ import annotations

from collections.abc import Iterator

from .facts import MachineFacts
from .findings import DoctorFinding, note, ok, problem, warning

_LITTLE_BYTES = 100 * 10**9
"""A model of 7 B parameters swaps 18 bytes of each: fp32 weights, two states, gradients and weights in half
precision."""


def swap_folder(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """It is a folder that may be written to."""
    if facts.folder is not None and facts.folder.error:
        yield problem(
            facts.folder.error,
            "DeepSpeed writes its swap files there",
            "name a folder of yours on the drive: nvme_path in the configuration",
        )


def drive(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """It is on an NVMe drive, and not in memory or across a network."""
    folder = facts.folder
    if folder is None or folder.error:
        return
    kind = folder.filesystem or "unknown"
    measure = "ds-advise bench --nvme PATH measures it"
    match folder.device:
        case "nvme":
            yield ok(f"an NVMe drive ({kind})")
        case "memory":
            yield problem(
                f"{kind}: the folder is in RAM",
                "what is swapped there takes the memory that it was to save",
                "name a folder on a drive",
            )
        case "network":
            yield warning(
                f"{kind}: a network drive",
                "every step reads and writes all optimizer states, which takes minutes",
                "name a folder on a drive of this machine",
            )
        case "layered":
            yield warning(
                "the container's own layers (overlay)",
                "swap files fill the drive of the container engine, wherever that is",
                "mount a folder of the NVMe drive: docker run -v /mnt/nvme:/nvme",
            )
        case "disk":
            yield warning(
                f"a rotating disk ({kind})",
                "it moves 0.2 GB/s instead of 3 or more, so a step takes minutes",
                "name a folder on an NVMe drive",
            )
        case "ssd":
            yield note(
                f"an SSD that is not NVMe ({kind})",
                "SATA carries 0.5 GB/s, a fifth of a slow NVMe drive or less",
                measure,
            )
        case "virtual":
            yield note(f"a virtual machine's drive ({kind})", "what is under it cannot be seen", measure)
        case _:
            yield note(f"a drive of unknown kind ({kind})", "its speed decides the speed of training", measure)


def direct_io(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Files open with O_DIRECT, which DeepSpeed asks for (ops/csrc/aio/common/deepspeed_aio_common.cpp, 0.19.8)."""
    folder = facts.folder
    if folder is None or folder.error:
        return
    if folder.direct_error:
        yield problem(
            f"files cannot be opened past the page cache: {folder.direct_error}",
            "DeepSpeed opens its swap files with O_DIRECT and stops",
            "name a folder on ext4 or xfs",
        )
    else:
        yield ok("files open past the page cache (O_DIRECT)")


def room(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """There is room for the states of a model worth swapping."""
    folder = facts.folder
    if folder is None or folder.error:
        return
    free = f"{folder.free_bytes / 10**9:,.0f} GB free"
    if folder.free_bytes < _LITTLE_BYTES:
        yield note(free, "full training swaps 18 bytes a parameter: 126 GB of a 7 B model", "make room there")
    else:
        yield ok(free)


CHECKS = (swap_folder, drive, direct_io, room)
