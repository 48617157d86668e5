"""The program's replay of the caching allocator against the real one, on the requests of a real training.

torch records every request and every segment that it asks the driver for (`torch.cuda.memory` snapshots); the same
requests go through `probes.recording.allocator`, and what it would have reserved is compared at every request.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ds_advise.probes.recording.allocator import CachingAllocator

from ..configuration import from_arguments
from ..machine.place import NotPossibleError, Place
from ..outcome import Outcome

_MOST_EVENTS = 400_000
"""Requests, frees and segments that torch keeps; a few steps of a model make some ten thousand."""

_LARGEST_TRACE = 1_000_000
"""Characters of a trace that go into the record; a longer one is left out of it, after it was compared."""

_RESERVING = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Actions of a snapshot that change what is reserved."""


def measure(arguments: dict[str, Any], place: Place) -> Outcome:
    """A traced training in this process, as a probe's rank runs it, and its trace replayed."""
    configuration = from_arguments(arguments)
    if place.device != "cuda":
        raise NotPossibleError("only CUDA's allocator records its segments")
    if "FusedAdamBuilder" in place.broken:
        raise NotPossibleError(f"FusedAdamBuilder does not compile here: {place.broken['FusedAdamBuilder'][:300]}")
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{configuration.expandable_segments}"
    trace = _trace(configuration.run(place.cluster()), configuration.steps)
    value = compare(trace, expandable_segments=configuration.expandable_segments)
    packed = pack(trace)
    return {"value": {**value, "trace": packed if len(packed) <= _LARGEST_TRACE else ""}}


def _trace(run: Any, steps: int) -> list[dict[str, Any]]:
    """What torch's allocator did in the training, in order."""
    import torch
    from ds_advise.probes.dry_run.run import request_for
    from ds_advise.probes.real_run import training
    from ds_advise.probes.real_run.measure import Clock
    from ds_advise.probes.real_run.rank import EventLog
    from ds_advise.probes.real_run.run import ProbeJob

    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    torch.cuda.set_device(0)
    torch.cuda.memory._record_memory_history(context=None, stacks="python", max_entries=_MOST_EVENTS)
    meeting = f"file://{Path('rendezvous').resolve()}"
    torch.distributed.init_process_group("nccl", init_method=meeting, rank=0, world_size=1)
    import deepspeed

    deepspeed.init_distributed()
    request = request_for(run, iterations=steps)
    job = ProbeJob(request=request, device="cuda", solo=False, checkpoint=None, memory_limit_bytes=None, nvme_folder="")
    log = EventLog(Path("events.jsonl"))
    description, config = training.prepare(job)
    training.train(job, description, config, "cuda:0", log, Clock(cuda=True), None)
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return [entry for entry in trace if entry["action"] in _RESERVING or entry["action"] in ("alloc", "free_completed")]


def compare(trace: Sequence[dict[str, Any]], *, expandable_segments: bool) -> dict[str, Any]:
    """Reserved bytes by torch and by the replay, over a snapshot's trace; both peaks, and how far apart at most.

    Entries have `action`, `addr`, `size` and `stream`. What was there before the recording began is in neither.
    """
    replay = CachingAllocator(expandable_segments=expandable_segments)
    reserved = allocated = 0
    peaks = {"torch_reserved": 0, "replayed_reserved": 0, "torch_allocated": 0, "replayed_allocated": 0}
    equal = compared = furthest = 0
    giving_back = False
    live: dict[int, int] = {}
    streams: dict[int, int] = {}
    for key, entry in enumerate(trace):
        action, address = entry["action"], entry["addr"]
        if action in _RESERVING:
            change = _RESERVING[action]
            reserved += change * entry["size"]
            if change < 0 and not giving_back:  # the first of the segments that an emptied cache gives back
                replay.empty_cache()
            giving_back = change < 0
        elif action == "alloc" or (action == "free_completed" and address in live):
            giving_back = False
            if action == "alloc":
                live[address] = key
                allocated += _rounded(entry["size"])
                replay.allocate(key, entry["size"], streams.setdefault(entry["stream"], len(streams)))
            else:
                allocated -= _rounded(entry["size"])
                replay.free(live.pop(address))
            compared += 1
            equal += reserved == replay.reserved_bytes
            furthest = max(furthest, abs(reserved - replay.reserved_bytes))
        for name, size in (
            ("torch_reserved", reserved),
            ("replayed_reserved", replay.reserved_bytes),
            ("torch_allocated", allocated),
            ("replayed_allocated", replay.allocated_bytes),
        ):
            peaks[name] = max(peaks[name], size)
    return {"peaks": peaks, "requests_and_frees": compared, "equal": equal, "furthest_apart_bytes": furthest}


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // 512) * 512


def pack(trace: Iterable[dict[str, Any]]) -> str:
    """The trace in little space: zlib and base64 of lines `action address size stream`."""
    lines = (f"{entry['action']} {entry['addr']:x} {entry['size']} {entry['stream']:x}" for entry in trace)
    return base64.b64encode(zlib.compress("\n".join(lines).encode(), 9)).decode()


def unpack(packed: str) -> list[dict[str, Any]]:
    """The trace that `pack` packed."""
    lines = zlib.decompress(base64.b64decode(packed)).decode().splitlines()
    found = []
    for line in lines:
        action, address, size, stream = line.split()
        found.append({"action": action, "addr": int(address, 16), "size": int(size), "stream": int(stream, 16)})
    return found
