"""The subprocess of a dry run: it reads a pickled request from stdin and writes the answer as JSON into the folder in
its first argument.

It changes torch, transformers and DeepSpeed permanently, so the process ends with its answer.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...estimators.json_form import to_json
from ...estimators.objectives import OBJECTIVES
from ..recording.allocation_classifier import AllocationClassifier
from ..recording.ledger import Ledger, RecordingMode
from ..recording.phases import PhaseRecorder, recorded_result
from ..recording.result import DryRunResult
from ..recording.schedule import ScheduleRecorder
from ..run import Request, Run, isolated_config
from ..simulated_gpu import kernels, patches
from ..simulated_gpu.device import DEVICE_TYPE, register
from ..simulated_gpu.fast_fake_tensor import FastFakeTensorMode
from ..simulated_gpu.rank import simulate
from . import training
from .run import Answering


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["DS_ACCELERATOR"] = "cpu"  # until the simulated one is set: no search for vendors' libraries
    gc.disable()  # imported modules are no garbage
    answer = run_request(pickle.load(sys.stdin.buffer), on_phase=(folder / "phase").write_text)
    (folder / "answer.json").write_text(json.dumps(answer))
    # `os._exit` does not flush.
    sys.stdout.flush()
    os._exit(0)  # skips the exit handlers of the fake process group


def run_request(request: Request | Answering, on_phase: Callable[[str], object] = lambda _name: None) -> dict[str, Any]:
    """{"result": ...}, a `DryRunResult` or the `ModelShape` of a module, or {"error": message, "kind": exception class,
    "phase", "where": line of the user's code, "package": origin of the exception, "fix", "traceback"}.

    on_phase: called with the name of each phase.
    """
    recorder = None
    try:
        started = time.monotonic()
        if not isinstance(request, Request):
            return {"result": to_json(request.answer())}
        recorder = simulated_recorder(on_phase)
        return {"result": _run(request, recorder, started).to_json()}
    except Exception as error:
        return {
            "error": str(error),
            "kind": type(error).__name__,
            "phase": recorder.current if recorder else "start" if isinstance(request, Request) else "",
            "where": users_line(traceback.extract_tb(error.__traceback__)),
            "package": _package(error),
            "fix": getattr(error, "fix", ""),
            "traceback": traceback.format_exc(),
        }


def users_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """FILE:LINE of the innermost frame in the user's code; "" if there is none."""
    # Frames of this package are no user's code, wherever it is installed.
    here = str(Path(__file__).parents[1])
    libraries = ("site-packages", "dist-packages", str(Path(os.__file__).parent))
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in frames
        if not any(part in frame.filename for part in libraries) and not frame.filename.startswith((here, "<"))
    ]
    return lines[-1] if lines else ""


def _package(error: Exception) -> str:
    """The installed package of the innermost frame, ignoring pydantic, which validates on behalf of its caller."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    names = [file.split("-packages/")[1].split("/")[0] for file in files if "-packages/" in file]
    return next((name for name in reversed(names) if not name.startswith("pydantic")), "")


def simulated_recorder(on_phase: Callable[[str], object]) -> PhaseRecorder:
    """Register the simulated GPU with torch, and a recorder of what happens on it."""
    register()
    classifier = AllocationClassifier()
    ledger = Ledger(DEVICE_TYPE, classifier.classify)
    schedule = ScheduleRecorder(lambda: ledger.stream, ledger.is_pinned)
    return PhaseRecorder(ledger, classifier, schedule, on_phase)


def _simulate(run: Run, rank: int, recorder: PhaseRecorder) -> None:
    """Patch torch, DeepSpeed and transformers to train on the simulated GPU."""
    schedule, workload = recorder.schedule, run.workload
    simulate(run.cluster, rank, recorder.ledger, schedule)
    kernels.install_losses(workload, schedule)
    if run.config.get("expert_parallel"):
        patches.patch_autoep()
    objective = OBJECTIVES[workload.objective]
    if (objective.trainer and not objective.value_model) or workload.loss == "chunked-head":
        kernels.patch_trl(schedule)
        patches.count_every_element(workload.seq_len, workload.scored_len)


def _run(request: Request, recorder: PhaseRecorder, started: float) -> DryRunResult:
    ledger = recorder.ledger
    schedule = recorder.schedule
    _simulate(request.run, request.rank, recorder)
    isolated = replace(request.run, config=isolated_config(request.run.config, str(Path.cwd())))
    gc.freeze()  # imported modules are no garbage, and scanning them is slow
    gc.enable()
    fake = FastFakeTensorMode()
    # The innermost mode is called first: the recorder sees every operation, the fake mode computes it.
    with fake, RecordingMode(ledger, schedule, fake.cached_result):
        config, parameters, trainable = training.run(
            replace(request, run=isolated), recorder, DEVICE_TYPE, until_repeated=True
        )
    gc.disable()  # objects that die from here on belong to no phase
    return recorded_result(
        recorder,
        cluster=request.run.cluster,
        rank=request.rank,
        iterations=request.iterations,
        expandable_segments=request.expandable_segments,
        parameters=(parameters, trainable),
        config=config,
        started=started,
        libraries=("torch", "deepspeed", "transformers"),
    )


if __name__ == "__main__":
    main()
