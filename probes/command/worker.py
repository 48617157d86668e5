"""The subprocess that runs a user's command on a simulated GPU. It reads a pickled `CommandRequest` from stdin and
writes its answer as JSON into the folder in its first argument.

It runs in the interpreter of the command, with that environment's torch, DeepSpeed and trainers.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any, NoReturn

from ...estimators.errors import DsAdviseError
from ...estimators.json_form import to_json
from ..recording.engine_phases import EngineObserver, TrainingEnded
from ..recording.phases import PhaseRecorder, recorded_result
from ..recording.result import DryRunResult
from ..run_errors import package_of, script_traceback, users_line
from ..simulated_gpu import autocast, cuda, generation, kernels, libraries, patches, values, weights
from ..simulated_gpu.fast_fake_tensor import FastFakeTensorMode
from ..simulated_gpu.loaders import Loaders
from ..simulated_gpu.rank import simulate, simulated_recorder
from . import follow, launchers, limits, plain_training, redirect, savers
from .arguments import Arguments
from .files import native
from .fullest_rank import FullestPartition
from .given_config import give_config
from .imports import on_import
from .observe import observed
from .observed import CommandResult
from .request import CommandRequest
from .rows import Rows
from .trained import TrainedModules, observe_training

_MOST_IDLE_S = 30.0
"""Time without a new tensor after which a script whose training was seen is ended: it waits for something."""
_ANSWER_S = 10.0
"""Time before the limit at which it is ended in any case, to answer."""
_HALT = getattr(signal, "SIGRTMAX", 0) - 6
"""The signal at which the main thread waits while another one answers for the script: a script that computes would take
Python's lock at every call that gives it away, and change what is read."""


def _halt(*_: object) -> None:
    while True:
        signal.pause()


_exit = os._exit


def main() -> None:
    folder, ends = Path(sys.argv[1]), float(sys.argv[2])
    limits.restrain(folder, ends)
    os.environ["DS_ACCELERATOR"] = "cpu"  # until the simulated one is set: no search for vendors' libraries
    gc.disable()  # imported modules are no garbage
    request: CommandRequest = pickle.load(sys.stdin.buffer)
    Session(request, folder, ends).run()


class Session:
    """One run of the command. `write` writes the answer and ends the process."""

    def __init__(self, request: CommandRequest, folder: Path, ends: float) -> None:
        self.request = request
        self.folder = folder
        self.started = time.monotonic()
        self.fullest = FullestPartition(request.rank)
        self.ends = ends
        self.process = os.getpid()
        self.failed_thread: BaseException | None = None
        self.remarks: list[str] = []
        self.late_error = ""
        self.recorder: PhaseRecorder = simulated_recorder(lambda name: self.save("phase", name))
        self.observer = EngineObserver(
            self.recorder,
            last_step=request.iterations,
            varies=lambda: self.loaders.has_varying_shapes,
            on_ignored=self.succeed,
            before_engine=lambda number, module: self.modules.keep(number, module),
            numbers=lambda tensor: self.mode.shadow(tensor),
        )
        self.modules = TrainedModules()
        self.loaders = Loaders.following(
            self.observer, longest=request.longest, evaluated_batches=request.evaluated_batches
        )
        self.rows = Rows(request.data_rows)
        fake = FastFakeTensorMode(refuses_mixed_products=True)
        self.fake = fake
        self.mode = values.ValueRecordingMode(self.recorder.ledger, self.recorder.schedule, fake.cached_result)

    def prepare(self) -> None:
        """Patch torch and the libraries."""
        request, recorder = self.request, self.recorder
        accelerator = simulate(request.cluster, request.rank or 0, recorder.ledger, recorder.schedule)
        libraries.install_distributed()
        values.install(self.mode)
        cuda.install(accelerator, recorder.ledger, request.cluster)
        autocast.install()
        if libraries.has("accelerate"):
            libraries.install_accelerate(request.cluster.world_size)
        self.replace_kernels()
        weights.install()
        savers.install(self.mode.shadow, self.mode.attach)
        if request.is_default_script:
            generation.replace_generate()
            on_import("trl.generation.vllm_generation", partial(generation.replace_vllm, self.observer.phased))
        for name in ("grpo", "rloo"):
            on_import(f"trl.trainer.{name}_trainer", partial(libraries.phase_scoring, self.observer.phased))
        libraries.install_transformers(self.observer, is_finished=lambda: self.observer.finished)
        self.modules.install()
        self.loaders.install()
        self.observer.observe()
        self.rows.install()
        self.arguments.install()
        if request.config_file is not None:  # outside of the hooks of `arguments`, which note the file
            give_config(request.config_file)
        follow.install()
        self.fullest.install()
        plain_training.follow(plain_training.refuse)
        os._exit = self.exited
        threading.excepthook = self.thread_failed
        if _HALT > 0:  # macOS has no such signals
            signal.signal(_HALT, _halt)
        _thread.start_new_thread(self.watch, ())
        any_thread: Any = threading.Thread
        run = any_thread.run

        def run_simulated(thread: threading.Thread) -> None:
            with self.fake, self.mode:  # modes apply to one thread
                run(thread)

        any_thread.run = run_simulated

    def replace_kernels(self) -> None:
        """Triton's kernels, which cannot run on fake tensors, of the losses that are known."""
        schedule = self.recorder.schedule
        if libraries.has("liger_kernel") and libraries.has("triton"):
            on_import("liger_kernel.transformers", partial(kernels.patch_liger, schedule))
        elif self.request.is_default_script:
            kernels.patch_liger(schedule, kernels.liger_stand_in())
            libraries.replace_in_loaded("is_liger_kernel_available", lambda: True)
        on_import("deepspeed.runtime.chunked_cross_entropy", partial(kernels.patch_chunked_softmax, schedule))
        on_import("deepspeed.module_inject.auto_ep_layer", lambda _module: patches.patch_autoep())
        on_import("deepspeed.sequence.cross_entropy", patches.patch_vocabulary_loss)
        on_import("trl.trainer.utils", partial(kernels.patch_trl, schedule))

    def run(self) -> None:
        try:
            self.view = redirect.install(self.folder)
            self.arguments = Arguments(self.request.forced, self.view.user_path)
            self.prepare()
            if self.request.is_default_script:  # which any launcher can start
                os.environ.update(launchers.node_variables())
            launch = launchers.read_launch(self.request.words, folder=Path.cwd())
            cluster = self.request.cluster
            self.remarks += launchers.contradictions(launch, cluster.nodes, cluster.gpus_per_node)
            script = Path.cwd() if launch.is_module else Path(launch.target).resolve().parent
            self.mode.script_folders = (str(script), str(Path.cwd()), str(self.request.folder))
            gc.freeze()  # imported modules are no garbage, and scanning them is slow
            gc.enable()
            self.observer.enter("load", iteration=0)
            # The innermost mode is called first: the recorder sees every operation, the fake mode computes it.
            self.arguments.active = True
            with self.fake, self.mode:
                launchers.run_target(launch)
        except TrainingEnded:
            pass
        except follow.Relaunch as other:
            relaunch = {"relaunch": other.words, "variables": other.environment, "folder": str(other.folder)}
            self.write(relaunch)
        except BaseException as error:
            self.end(error, traceback.extract_tb(error.__traceback__))
        self.succeed()

    def end(self, error: BaseException, frames: Iterable[traceback.FrameSummary]) -> None:
        """The script raised an error, at the innermost of the frames."""
        if isinstance(error, SystemExit) and error.code in (None, 0):
            self.succeed()
        if not self.observer.finished:
            self.fail(error, frames)
        if not isinstance(error, StopIteration):  # the loaders ended
            place = f" at {line}" if (line := self.script_line(error, frames)) else ""
            self.late_error = f"{type(error).__name__}: {error}"
            self.remarks.append(f"after the observed steps the script failed{place}: {self.late_error}")
        self.succeed()

    def exited(self, status: int) -> NoReturn:
        """`os._exit` of the script."""
        if os.getpid() == self.process:
            self.end(SystemExit(status), traceback.extract_stack())
        _exit(status)

    def thread_failed(self, failure: Any) -> None:
        if self.failed_thread is None and not isinstance(failure.exc_value, TrainingEnded):
            self.failed_thread = failure.exc_value
        threading.__excepthook__(failure)

    def watch(self) -> None:
        """End a script that does not end although its training was seen."""
        events, changed = -1, time.monotonic()
        while True:
            time.sleep(0.5)
            now = time.monotonic()
            if self.recorder.ledger.events != events or not self.observer.finished:
                events, changed = self.recorder.ledger.events, now
            if self.observer.finished and (now > changed + _MOST_IDLE_S or now > self.ends - _ANSWER_S):
                self.remarks.append("after the observed steps the script did not end; it was ended")
                if _HALT > 0:
                    signal.pthread_kill(threading.main_thread().ident or 0, _HALT)
                self.succeed()

    def succeed(self) -> NoReturn:
        trained = bool(self.observer.plain_steps or self.loaders.shapes)
        if not self.observer.has_trained:
            if self.failed_thread is not None:
                self.fail(self.failed_thread, traceback.extract_tb(self.failed_thread.__traceback__))
            kind = "NoStep" if self.observer.engines else "NoEngine"
            self.write(
                {
                    "error": "",
                    "kind": kind,
                    "phase": self.recorder.current,
                    "trained": trained,
                    "takes_config": _has_accelerator(),
                }
            )
        self.observer.close()
        gc.disable()  # objects that die from here on belong to no phase
        result = self.result()
        seen = observed(self.observer, self.loaders, self.mode, self.rows, self.remarks, self.late_error)
        found = CommandResult(
            result=result,
            observed=seen,
            training=observe_training(
                self.observer, self.modules, self.loaders.searched or self.loaders.shapes, seen.attention
            ),
            arguments=self.arguments.observed(),
        )
        self.write({"result": to_json(found)})

    def result(self) -> DryRunResult:
        first = self.observer.trained_engine
        return recorded_result(
            self.recorder,
            cluster=self.request.cluster,
            rank=self.fullest.rank,
            iterations=self.observer.steps,
            expandable_segments=self.request.expandable_segments,
            parameters=self.observer.models[first][1],
            config=self.observer.configs[first],
            started=self.started,
            libraries=("torch", "deepspeed", "transformers", "accelerate", "trl", "peft"),
        )

    def fail(self, error: BaseException, frames: Iterable[traceback.FrameSummary]) -> NoReturn:
        """Answer with the error: the script's own message and line."""
        answer: dict[str, Any] = {
            "error": str(error),
            "kind": type(error).__name__,
            "phase": self.recorder.current,
            "where": self.script_line(error, frames),
            "package": package_of(error),
            "traceback": "".join(traceback.format_exception(error)),
            "script_traceback": script_traceback(error),
            "fix": str(getattr(error, "fix", "")),  # of the default script's errors, which are no DsAdviseErrors
        }
        refuses = isinstance(error, SystemExit) and error.code == 2  # argparse has printed the words
        if refuses or isinstance(error, ValueError):
            answer["misspelt"] = self.arguments.misspelt(" ".join(sys.argv) if refuses else str(error))
        if isinstance(error, DsAdviseError):
            answer |= {"what": error.what, "why": error.why, "fix": error.fix}
        if isinstance(error, plain_training.PlainTrainingError):
            answer["takes_config"] = error.takes_config
        self.write(answer)

    def script_line(self, error: BaseException, frames: Iterable[traceback.FrameSummary]) -> str:
        """FILE:LINE of the innermost frame in the script's own files; "" if there is none."""
        if isinstance(error, SyntaxError) and error.filename:
            return f"{self.view.user_path(error.filename)}:{error.lineno}"
        line = users_line(frames)
        return self.view.user_path(line) if line else ""

    def save(self, name: str, text: str) -> None:
        with native.builtin_open(f"{self.folder}/{name}", "w", encoding="utf-8") as file:  # it is none of the script's
            file.write(text)

    def write(self, answer: dict[str, Any]) -> NoReturn:
        if os.getpid() != self.process:  # a fork of the script's
            _exit(0)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        self.save("answer.json", dumps(answer))
        _exit(0)  # skips the exit handlers of the script and of the fake process group


def _has_accelerator() -> bool:
    """Whether the script or its Trainer made an `Accelerator`; importing accelerate, as transformers does, is none."""
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(state.is_initialized())


if __name__ == "__main__":
    main()
