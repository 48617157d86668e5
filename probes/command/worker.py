"""The subprocess that runs a user's command on a simulated GPU. It reads a pickled `CommandRequest` from stdin and
writes its answer as JSON into the folder in its first argument.

It runs in the interpreter of the command, with that environment's torch, DeepSpeed and trainers.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from ...estimators.json_form import to_json
from ..dry_run.worker import simulated_recorder
from ..recording.engine_phases import EngineObserver, TrainingEnded
from ..recording.phases import PhaseRecorder, highest_peak, peak_by_phase, timeline
from ..recording.result import DryRunResult
from ..simulated_gpu import autocast, cuda, libraries, values, weights
from ..simulated_gpu.fast_fake_tensor import FastFakeTensorMode
from ..simulated_gpu.loaders import Loaders
from ..simulated_gpu.rank import simulate
from .observe import observed
from .observed import CommandResult
from .request import CommandRequest


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["DS_ACCELERATOR"] = "cpu"  # until the simulated one is set: no search for vendors' libraries
    gc.disable()  # imported modules are no garbage
    request: CommandRequest = pickle.load(sys.stdin.buffer)
    Session(request, folder).run()


class Session:
    """One run of the command. `answer` writes the answer and ends the process."""

    def __init__(self, request: CommandRequest, folder: Path) -> None:
        self.request = request
        self.folder = folder
        self.started = time.monotonic()
        self.remarks: list[str] = []
        self.recorder: PhaseRecorder = simulated_recorder((folder / "phase").write_text)
        self.observer = EngineObserver(self.recorder, last_step=request.iterations)
        self.loaders = Loaders(lambda: self.observer.finished, self.observer.count_refusal, longest=request.longest)
        fake = FastFakeTensorMode()
        self.fake = fake
        self.mode = values.ValueRecordingMode(self.recorder.ledger, self.recorder.schedule, fake.cached_result)

    def prepare(self) -> None:
        """Patch torch and the libraries."""
        request, recorder = self.request, self.recorder
        accelerator = simulate(request.cluster, request.rank, recorder.ledger, recorder.schedule)
        libraries.install_distributed()
        values.install(self.mode)
        cuda.install(accelerator, recorder.ledger, request.cluster)
        autocast.install()
        if libraries.has("accelerate"):
            libraries.install_accelerate(request.cluster.world_size)
        weights.install()
        libraries.install_transformers(phased=self.observer.phased, is_finished=lambda: self.observer.finished)
        self.loaders.install()
        self.observer.install()
        libraries.give_config(request.config_file)

    def run(self) -> None:
        script = self.request.words[0]
        self.mode.script_files = (str(Path(script).resolve().parent),)
        try:
            self.prepare()
            sys.argv = [script, *self.request.words[1:]]
            sys.path[0] = str(Path(script).resolve().parent)
            gc.freeze()  # imported modules are no garbage, and scanning them is slow
            gc.enable()
            self.observer.enter("load", iteration=0)
            # The innermost mode is called first: the recorder sees every operation, the fake mode computes it.
            with self.fake, self.mode:
                runpy.run_path(script, run_name="__main__")
        except TrainingEnded:
            pass
        except Exception as error:
            if not self.observer.finished:
                self.fail(error)
            if not isinstance(error, StopIteration):  # the loaders ended
                self.remarks.append(f"after the observed steps the script failed: {type(error).__name__}: {error}")
        except SystemExit as error:
            if error.code not in (None, 0):
                self.fail(error)
        except BaseException as error:
            self.fail(error)
        self.succeed()

    def succeed(self) -> None:
        if not self.observer.engines:
            self.write({"error": "no engine", "kind": "NoEngine", "phase": self.recorder.current})
        self.observer.close()
        gc.disable()  # objects that die from here on belong to no phase
        self.write({"result": to_json(CommandResult(result=self.result(), observed=observed(self)))})

    def result(self) -> DryRunResult:
        request, recorder, cluster = self.request, self.recorder, self.request.cluster
        phases = tuple(recorder.phases)
        first = self.observer.trained_engine
        _, (parameters, trainable) = self.observer.models[first]
        return DryRunResult(
            phases=phases,
            iterations=self.observer.iteration,
            peak=highest_peak(
                recorder,
                expandable_segments=request.expandable_segments,
                gpus_per_node=cluster.gpus_per_node,
            ),
            peak_by_phase=peak_by_phase(recorder),
            timeline=timeline(recorder),
            schedule=recorder.schedule.recorded(),
            peak_loading_gpu_bytes=max(phase.gpu_peak_bytes for phase in phases if phase.iteration == 0),
            nvme_bytes_per_rank=sum(recorder.ledger.nvme_files.values()),
            parameters=parameters,
            trainable_parameters=trainable,
            world_size=cluster.world_size,
            rank=request.rank,
            gpus_per_node=cluster.gpus_per_node,
            config=self.observer.configs[first],
            seconds=time.monotonic() - self.started,
            versions={
                name: str(getattr(sys.modules[name], "__version__", ""))
                for name in ("torch", "deepspeed", "transformers", "accelerate", "trl", "peft")
                if name in sys.modules
            },
        )

    def fail(self, error: BaseException) -> None:
        self.write(
            {
                "error": str(error),
                "kind": type(error).__name__,
                "phase": self.recorder.current,
                "traceback": traceback.format_exc(),
            }
        )

    def write(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        (self.folder / "answer.json").write_text(json.dumps(answer))
        os._exit(0)  # skips the exit handlers of the script and of the fake process group


if __name__ == "__main__":
    main()
