"""The figures in an allocator's message, in the wordings of torch since 1.0."""

from __future__ import annotations

import math
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
    # torch 1.0 to 1.3: held by the allocator, and in no tensor (CUDACachingAllocator.cpp)
    "unallocated_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated", rf"{_SIZE} cached\b"),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
    "reserved_bytes": (rf"{_SIZE} reserved in total",),
}

_DEVICE = re.compile(r"\bGPU (\d+)\b|on device (\d+)")

_LISTED = re.compile(rf"Process \d+ has {_SIZE} memory in use")

_VARIABLE = re.compile(r"\bPYTORCH_(?:[A-Z]+_)?ALLOC_CONF\b")

_UNKNOWN_BYTES = 2**64
"""What torch prints of a process whose memory NVML does not know, as under WSL (microsoft/WSL issue 11050)."""

_CONTEXT_BYTES = 2 * 2**30
"""Most that the CUDA context and NCCL's buffers of one process take (benchmarks/data/failure_logs.jsonl has 2.1 GiB of
full GPUs that nobody shares); figures before torch 2.2 do not include them."""

_CONTEXTS_BYTES = 2**30
"""Contexts of the node's other ranks on the GPU, which are not named as other processes."""

_FRAGMENTED = 0.05
"""Least share of the GPU in free blocks that is called fragmentation: a full allocator has some always."""


OF_OLD_TORCH = "max_split_size_mb:128"
"""The setting against fragmentation of a torch up to 2.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """torch's figures when the memory of the GPU or of the host ran out; null where the message has none."""

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
    runtime_bytes: int | None
    """CUDA context and NCCL: process - reserved. Before torch 2.2: total - free - reserved, at most 2 GiB."""
    other_bytes: int | None
    """Other processes on the GPU: total - free - reserved - runtime."""
    is_assumed: bool
    """Whether runtime and other processes are told apart by an assumption: the message names no process."""
    is_fragmented: bool
    """Whether the allocator's free blocks would hold the request if they were one block, and are a notable part of the
    GPU; False where the allocator holds more than the GPU has."""

    @property
    def exceeds_gpu(self) -> bool:
        """Whether the allocator holds more than the GPU has: the driver keeps the rest in RAM, as those of Windows and
        WSL do."""
        return _exceeds(self.reserved_bytes or self.allocated_bytes, self.total_bytes)

    @property
    def asks_more_than_gpu(self) -> bool:
        """Whether the request alone is larger than the GPU."""
        return _exceeds(self.asked_bytes, self.total_bytes)

    @property
    def needed_bytes(self) -> int | None:
        """What the process had on the GPU and asked for, at least; None if the message does not say it."""
        held = self.process_bytes or self.reserved_bytes
        return None if held is None or self.asked_bytes is None else held + self.asked_bytes

    @property
    def is_shared(self) -> bool:
        """Whether other processes hold more than the request lacked."""
        if self.other_bytes is None or self.asked_bytes is None or self.free_bytes is None:
            return False
        return self.other_bytes > max(_CONTEXTS_BYTES, self.asked_bytes - self.free_bytes)


def memory_figures(text: str) -> MemoryFigures | None:
    """The figures in a message whose lines are joined; None for a message without any."""
    found = {name: _first(text, forms) for name, forms in _FORMS.items()}
    if not any(found.values()):
        return None
    unallocated, total, free = found.pop("unallocated_bytes"), found["total_bytes"], found["free_bytes"]
    allocated, reserved, process = found["allocated_bytes"], found["reserved_bytes"], found["process_bytes"] or None
    process = None if process == _UNKNOWN_BYTES else process
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    listed = [_bytes_of(match) for match in _LISTED.finditer(text)]
    if process is None:
        # In a container torch does not know its own number among the GPU's processes. It is one that can hold the
        # blocks, and the rest of it is small: the context and NCCL.
        process = min((each for each in listed if each >= (reserved or 0)), default=None)
    outside, runtime = _minus(_minus(total, free), reserved), _minus(process, reserved)
    if process is None and outside is not None:
        runtime = min(_CONTEXT_BYTES, outside)
    asked, unused, device = found["asked_bytes"], _minus(reserved, allocated), _DEVICE.search(text)
    least = max(asked or 0, round(_FRAGMENTED * (total or 0)))
    return MemoryFigures(
        device=int(next(filter(None, device.groups()))) if device else None,
        **found | {"reserved_bytes": reserved, "process_bytes": process},
        runtime_bytes=runtime,
        other_bytes=_minus(_minus(total, free), process) if process is not None else _minus(outside, runtime),
        is_assumed=process is None and not listed and outside is not None,
        is_fragmented=asked is not None and unused is not None and unused >= least and not _exceeds(reserved, total),
    )


def unfragmented(text: str) -> str:
    """The setting against fragmentation that the torch of a message has, by the message; "" if it names no variable.

    torch 2.0 and older write `N total capacity` and end with an error on `expandable_segments`. Of the newer ones each
    names the variable that it reads: 2.9 reads PYTORCH_ALLOC_CONF in part only (pytorch issue 183387)."""
    variable = _VARIABLE.search(text)
    if variable is None:
        return ""
    is_old = re.search(_FORMS["total_bytes"][0], text) is not None
    return f"{variable[0]}={OF_OLD_TORCH if is_old else 'expandable_segments:True'}"


def in_private_pools(text: str) -> str:
    """The size of the private pools in a message, such as `46.22 GiB`, if they are half of the tensors or more; else
    "". CUDA graphs have them (torch 2.13 c10/cuda/CUDACachingAllocator.cpp)."""
    pools, allocated = re.search(rf"{_SIZE} allocated in private pools", text), _first(text, _FORMS["allocated_bytes"])
    if pools is None or allocated is None or 2 * _bytes_of(pools) < allocated:
        return ""
    return f"{pools[1]} {pools[2]}"


def _minus(first: int | None, second: int | None) -> int | None:
    """The difference, at least 0; None if one of both is unknown."""
    return None if first is None or second is None else max(0, first - second)


def _exceeds(held: int | None, total: int | None) -> bool:
    """Whether more is held than there is; False if one of both is unknown."""
    return held is not None and total is not None and held > total


def _first(text: str, forms: tuple[str, ...]) -> int | None:
    match = next(filter(None, (re.search(form, text) for form in forms)), None)
    return None if match is None else _bytes_of(match)


def _bytes_of(match: re.Match[str]) -> int:
    return math.ceil(float(match[1]) * _UNITS[match[2]])  # 18.55 GiB stay 18.55, so that one decimal is 18.6
