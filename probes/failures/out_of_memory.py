"""The figures in an allocator's message, in the wordings of torch since 1.12."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 2**10, "MB": 2**20}
_SIZE = r"(\d+(?:\.\d+)?) ?(TiB|GiB|MiB|KiB|KB|MB|bytes|B)\b"

_FORMS = {
    "asked_bytes": (rf"[Tt]ried to allocate {_SIZE}", rf"Requested\s*: {_SIZE}"),
    "total_bytes": (
        rf"{_SIZE} total capacity",
        rf"total capac?i?ty of {_SIZE}",  # torch 2.1 writes "capacty"
        rf"Device limit\s*: {_SIZE}",
    ),
    "free_bytes": (rf"{_SIZE} free", rf"of which {_SIZE} is free", rf"Free \(according to CUDA\)\s*: {_SIZE}"),
    "allocated_bytes": (
        rf"{_SIZE} already allocated",
        rf"{_SIZE} is allocated by PyTorch",
        rf"Currently allocated\s*: {_SIZE}",
    ),
    "unallocated_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
    "reserved_bytes": (rf"{_SIZE} reserved in total",),
}

_DEVICE = re.compile(r"\bGPU (\d+)\b|on device (\d+)")

_LISTED = re.compile(rf"Process \d+ has {_SIZE} memory in use")

_CONTEXT_BYTES = 2 * 2**30
"""Most that the CUDA context and NCCL's buffers of one process take (benchmarks/data/failure_logs.jsonl has 2.1 GiB of
full GPUs that nobody shares); figures before torch 2.2 do not include them."""

_CONTEXTS_BYTES = 2**30
"""Contexts of the node's other ranks on the GPU, which are not named as other processes."""

_FRAGMENTED = 0.05
"""Least share of the GPU in free blocks that is called fragmentation: a full allocator has some always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """The figures of an allocator's message. None if it has none."""

    device: int | None
    """Index of the GPU in the process."""
    asked_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    allocated_bytes: int | None
    """Live tensors."""
    reserved_bytes: int | None
    """Live tensors and the allocator's free blocks."""
    process_bytes: int | None
    """The process with its CUDA context (torch 2.1 and later); null if the driver could not attribute it."""

    @property
    def other_bytes(self) -> int | None:
        """Memory of other processes: total - free - this process. Before torch 2.2: total - free - reserved, less a
        context of at most 2 GiB."""
        if self.total_bytes is None or self.free_bytes is None:
            return None
        used = self.total_bytes - self.free_bytes
        if self.process_bytes is not None:
            return max(0, used - self.process_bytes)
        return None if self.reserved_bytes is None else max(0, used - self.reserved_bytes - _CONTEXT_BYTES)

    @property
    def is_fragmented(self) -> bool:
        """Whether the allocator's free blocks would hold the request if they were one block, and are a notable part of
        the GPU."""
        if self.asked_bytes is None or self.allocated_bytes is None or self.reserved_bytes is None:
            return False
        notable = round(_FRAGMENTED * (self.total_bytes or 0))
        return self.reserved_bytes - self.allocated_bytes >= max(self.asked_bytes, notable)

    @property
    def is_shared(self) -> bool:
        """Whether other processes hold more than the request lacked."""
        if self.other_bytes is None or self.asked_bytes is None or self.free_bytes is None:
            return False
        return self.other_bytes > max(_CONTEXTS_BYTES, self.asked_bytes - self.free_bytes)


def memory_figures(text: str) -> MemoryFigures | None:
    """The figures in a message whose lines are joined; None for a message without any."""
    found = {name: _first(text, forms) for name, forms in _FORMS.items()}
    unallocated = found.pop("unallocated_bytes")
    if found["reserved_bytes"] is None and None not in (found["allocated_bytes"], unallocated):
        found["reserved_bytes"] = (found["allocated_bytes"] or 0) + (unallocated or 0)
    if not any(found.values()):
        return None
    if not found["process_bytes"] and (listed := [_bytes_of(match) for match in _LISTED.finditer(text)]):
        # In a container torch does not know its own number among the GPU's processes: it is the one with the blocks.
        largest = max(listed)
        found["process_bytes"] = largest if largest >= (found["reserved_bytes"] or 0) else None
    device = _DEVICE.search(text)
    return MemoryFigures(
        device=int(next(filter(None, device.groups()))) if device else None,
        **found | {"process_bytes": found["process_bytes"] or None},
    )


def _first(text: str, forms: tuple[str, ...]) -> int | None:
    match = next(filter(None, (re.search(form, text) for form in forms)), None)
    return None if match is None else _bytes_of(match)


def _bytes_of(match: re.Match[str]) -> int:
    return round(float(match[1]) * _UNITS[match[2]])
