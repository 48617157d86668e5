"""The subprocess: one dry run from a JSON request on stdin to a JSON answer in the file named by the first argument.

Everything that changes torch, transformers or DeepSpeed for good happens in here, so the process ends with its answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from . import allocator, collectives
from .request import Request
from .result import DryRunResult, LiveTensor, Peak


def main() -> None:
    answer_file = Path(sys.argv[1])
    values = json.load(sys.stdin)
    for name in ("input_shape", "lora_targets"):
        values[name] = tuple(values[name]) if values[name] is not None else None
    answer = answer_to(Request(**values))
    answer_file.write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of a process group that does not exist have nothing to do


def answer_to(request: Request) -> dict[str, Any]:
    """{"result": ...}, or {"error": text, "kind": exception's name, "phase": where, "traceback": text}."""
    recorder = None
    try:
        started = time.monotonic()
        recorder = _recorder(request)
        return {"result": _run(request, recorder, started).to_json()}
    except Exception as error:
        return {"error": str(error), "kind": type(error).__name__, "phase": recorder.current if recorder else "start",
                "traceback": traceback.format_exc()}


def _recorder(request: Request) -> Any:
    from .device import DEVICE_TYPE, register
    from .ledger import Ledger
    from .origins import Origins
    from .training import Recorder
    register()
    origin = Origins()
    return Recorder(Ledger(DEVICE_TYPE, origin.classify), origin)


def _run(request: Request, recorder: Any, started: float) -> DryRunResult:
    import torch
    from . import attention, kernels, training, unknown_values
    from .device import DEVICE_TYPE
    from .mode import QuickFakeTensorMode, RecordingMode

    ledger = recorder.ledger
    collectives.join(request.rank, request.world_size, min(request.gpus_per_node, request.world_size))
    os.environ["DS_ACCELERATOR"] = "cpu"  # until ours is set: no probing for vendors' libraries
    import deepspeed.accelerator
    from deepspeed.accelerator import set_accelerator

    from .accelerator import SimulatedAccelerator
    set_accelerator(SimulatedAccelerator(ledger, device_count=request.gpus_per_node,
                                         memory_bytes=request.gpu_memory_bytes))
    import deepspeed
    kernels.install(ledger)
    deepspeed.init_distributed(dist_backend="fake")
    import transformers
    attention.install(request.compute_capability)
    attention.register_with_transformers()
    unknown_values.neutralize(ledger)
    unknown_values.neutralize_transformers()
    collectives.silence_comparisons()
    # Backward passes of the simulated device would run in a thread of their own, which dispatch modes do not follow into.
    torch.autograd.set_multithreading_enabled(False)
    with QuickFakeTensorMode(allow_non_fake_inputs=True), RecordingMode(ledger):
        config, parameters, trainable = training.run(request, recorder, DEVICE_TYPE)
        peak = _peak(recorder, request.expandable_segments)
    phases = tuple(recorder.phases)
    ranks_per_node = min(request.gpus_per_node, request.world_size)
    return DryRunResult(
        phases=phases, peak=peak,
        peak_loading_gpu_bytes=max(phase.gpu_peak_bytes for phase in phases if phase.iteration == 0),
        host_bytes_per_node=ranks_per_node * max(phase.host_held_peak_bytes for phase in phases),
        nvme_bytes_per_rank=sum(ledger.nvme_files.values()),
        parameters=parameters, trainable_parameters=trainable, world_size=request.world_size, rank=request.rank,
        gpus_per_node=request.gpus_per_node, config=config, seconds=time.monotonic() - started,
        versions={"torch": torch.__version__, "deepspeed": deepspeed.__version__,
                  "transformers": transformers.__version__})


def _reserved_peak(recorder: Any, expandable_segments: bool) -> int:
    """Highest bytes that the caching allocator would hold during training."""
    ledger = recorder.ledger
    events: list[allocator.Event | None] = [None] * (ledger.events + 1)
    for key, block in enumerate(ledger.blocks):
        if block.device == "gpu":
            events[block.born] = allocator.Allocate(key, block.size_bytes, block.stream)
            if block.died >= 0:
                events[block.died] = allocator.Free(key)
    for event in ledger.cache_emptied:
        events[event] = allocator.EmptyCache()
    training_starts = next(start for start, (iteration, _) in zip(recorder.starts, recorder.names, strict=True) if iteration)
    before = sum(event is not None for event in events[:training_starts + 1])
    _, peak = allocator.reserved_peaks((event for event in events if event is not None), [before],
                                       expandable_segments=expandable_segments)
    return peak


def _peak(recorder: Any, expandable_segments: bool) -> Peak:
    """The highest GPU peak of all iterations, taken apart."""
    training_phases = [index for index, (iteration, _) in enumerate(recorder.names) if iteration > 0]
    at = max(training_phases, key=lambda index: recorder.gpu_peaks[index][0])
    from .ledger import gpu_bytes
    allocated, event = recorder.gpu_peaks[at]
    alive = [block for block in recorder.ledger.blocks if block.device == "gpu" and block.alive_at(event)]
    by_category, by_module = Counter[str](), Counter[str]()
    for block in alive:
        by_category[block.category] += gpu_bytes(block.size_bytes)
        by_module[block.module] += gpu_bytes(block.size_bytes)
    alive.sort(key=lambda block: -block.size_bytes)
    iteration, phase = recorder.names[at]
    return Peak(
        iteration=iteration, phase=phase, allocated_bytes_per_gpu=allocated,
        reserved_bytes_per_gpu=_reserved_peak(recorder, expandable_segments),
        by_category=dict(by_category.most_common()), by_module=dict(by_module.most_common()),
        largest=tuple(LiveTensor(size_bytes=gpu_bytes(block.size_bytes), category=block.category, module=block.module,
                                 shape=block.shape, dtype=str(block.dtype).removeprefix("torch."),
                                 phase=recorder.names[block.phase][1]) for block in alive[:40]))


if __name__ == "__main__":
    main()
