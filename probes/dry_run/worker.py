"""The subprocess: one dry run from a JSON request on stdin to a JSON answer in the file named by the first argument.

Everything that changes torch, transformers or DeepSpeed for good happens in here, so the process ends with its answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import analysis, collectives
from .request import Request
from .result import DryRunResult


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
                "where": _users_line(error), "traceback": traceback.format_exc()}


def _users_line(error: Exception) -> str:
    """FILE:LINE of the innermost code that is neither ours nor an installed package's, "" if there is none."""
    here = str(Path(__file__).parent)
    lines = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
             if "site-packages" not in frame.filename and not frame.filename.startswith((here, "<"))]
    return lines[-1] if lines else ""


def harmless(config: dict[str, Any], folder: str) -> dict[str, Any]:
    """The configuration without what would reach beyond this process and does not change memory.

    DeepSpeed clears and creates its swap folders below `nvme_path`, where a real training may be running: they go into
    `folder` instead. Monitors would write files or open connections; the profiler would print.
    """
    config = {key: value for key, value in config.items()
              if key not in ("tensorboard", "wandb", "comet", "csv_monitor", "flops_profiler")}
    zero = config.get("zero_optimization")
    if isinstance(zero, dict):
        config["zero_optimization"] = {
            key: {**value, "nvme_path": folder} if isinstance(value, dict) and value.get("nvme_path") else value
            for key, value in zero.items()}
    return config


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
    from .mode import RecordingMode
    from .quick_fake import QuickFakeTensorMode

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
    safe = replace(request, config=harmless(request.config, str(Path.cwd())))
    with QuickFakeTensorMode(), RecordingMode(ledger):
        config, parameters, trainable = training.run(safe, recorder, DEVICE_TYPE)
    phases = tuple(recorder.phases)
    return DryRunResult(
        phases=phases, peak=analysis.peak(recorder, request), timeline=analysis.timeline(recorder),
        peak_loading_gpu_bytes=max(phase.gpu_peak_bytes for phase in phases if phase.iteration == 0),
        nvme_bytes_per_rank=sum(ledger.nvme_files.values()),
        parameters=parameters, trainable_parameters=trainable, world_size=request.world_size, rank=request.rank,
        gpus_per_node=request.gpus_per_node, config=config, seconds=time.monotonic() - started,
        versions={"torch": torch.__version__, "deepspeed": deepspeed.__version__,
                  "transformers": transformers.__version__})


if __name__ == "__main__":
    main()
