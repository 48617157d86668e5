"""One rank: `python -m ...rank --folder FOLDER [--set NAME=VALUE]... [--is-module] TARGET ARGUMENTS`.

Runs the user's script as `__main__` under the conditions of the launcher: the same sys.argv, sys.path[0], working
folder and exit code. Its output goes to `rank<R>.log` in FOLDER, and its steps are recorded in `rank<R>.jsonl`. When
the script imports DeepSpeed's engine or the Trainer, three methods of the engine are wrapped, a callback is added to
the Trainer's defaults, and the lock of extension builds is replaced by one that is released when a rank is killed. On
the CPU, accelerate is made to count the ranks. Nothing is imported for this; a script that uses none of these modules
is not observed. An error in the observation must not make the script fail.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import gc
import importlib.util
import os
import runpy
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ...probes.real_run.rank import EventLog
from ...validate.checkpoint import CHECKSUMS

STOP_FILE = "stop"
"""File that, once created in a node's record folder, makes the training save and stop."""

_REQUESTED, _STOP_AT = "ds_advise/stop_asked", "ds_advise/stop_at"

_STEPS_AHEAD = 3
"""Number of steps between the choice of the last step and that step. Rank 0 chooses it. A rank that has completed step
k + 1 has used the weights of step k, which took all ranks' gradients. When it completes step s + 3, rank 0 has
therefore completed step s, in which it chose."""


def main() -> None:
    arguments = _parse(sys.argv[1:])
    os.environ.update(variable.split("=", 1) for variable in arguments.set)
    number = os.environ.get("RANK", "0")
    with contextlib.suppress(OSError):
        arguments.folder.mkdir(parents=True, exist_ok=True)
        _redirect_output(arguments.folder / f"rank{number}.log")
    events = EventLog(arguments.folder / f"rank{number}.jsonl")
    events.note({"rank": int(number), "pid": os.getpid(), "host": socket.gethostname()})
    with contextlib.suppress(Exception):
        install(events, arguments.folder)
    try:
        _run(arguments)
    except SystemExit as error:
        code = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
        events.note({"end": code})
        if code:
            raise
    except BaseException as error:
        events.note({"error": _description(error)})
        raise
    else:
        events.note({"end": 0})
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        _end_without_finalization()


def _end_without_finalization() -> None:
    """End this process with exit code 0, after Python's usual steps before finalization: wait for threads, call the
    exit handlers, and delete the script's objects. Threads of gloo sometimes abort the finalization (SIGABRT,
    "terminate called without an active exception"). The launcher would then end the other ranks and report a failure of
    a training that made all its steps."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # the script may have closed it
            stream.flush()
    os._exit(0)


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--local_rank")  # the deepspeed launcher puts it first; it belongs to the script
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--is-module", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="TARGET ARGUMENTS")
    arguments = parser.parse_args(words)
    if arguments.local_rank is not None:
        arguments.command.insert(1, f"--local_rank={arguments.local_rank}")
    return arguments


def _run(arguments: argparse.Namespace) -> None:
    target = arguments.command[0]
    sys.argv = arguments.command
    if arguments.is_module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        # `python script.py` imports from the script's folder; `python -m`, which started this, from the working folder.
        sys.path[0] = str(Path(target).resolve().parent)
        runpy.run_path(target, run_name="__main__")


def _redirect_output(path: Path) -> None:
    """Redirect both streams by their descriptors, to include the output of libraries and child processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _description(error: BaseException) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "message": " ".join(str(error).split())[:2000],
        "errno": error.errno if isinstance(error, OSError) else None,
        "details": "".join(traceback.format_exception(error))[-8000:],
    }


def install(events: EventLog, folder: Path) -> None:
    """Start observing this process."""
    actions: dict[str, Callable[[ModuleType], None]] = {
        "deepspeed.runtime.engine": lambda module: observe(module, events),
        "transformers.trainer": lambda module: _add_callback(module, events, folder),
        "torch.utils.file_baton": _use_lasting_lock,
    }
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        actions |= {"accelerate.state": _count_ranks_on_cpu, "transformers.training_args": _train_on_cpu}
    sys.meta_path.insert(0, _AfterImport(actions))


def _count_ranks_on_cpu(module: Any) -> None:
    """Make accelerate join the ranks over gloo if it finds no GPU. Unless the script itself requests the CPU,
    accelerate then uses no backend and counts one process (1.15.0 state.py `PartialState._prepare_backend`): each rank
    trains on all samples, and the Trainer's batch sizes contradict the engine's. With `cpu=True` accelerate would not
    use DeepSpeed (`AcceleratorState.__init__`)."""
    prepared = module.PartialState._prepare_backend

    def prepare_backend(state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        backend, kind = prepared(state, *args, **kwargs)
        joins = backend is None and "LOCAL_RANK" in os.environ
        return ("gloo", module.DistributedType.MULTI_CPU) if joins else (backend, kind)

    module.PartialState._prepare_backend = prepare_backend


def _train_on_cpu(module: Any) -> None:
    """Make every TrainingArguments select the CPU, because it otherwise refuses bf16 without a GPU. Let DeepSpeed join
    the process group, as accelerate does on a GPU; otherwise ZeRO-3 counts one rank when it loads the model."""
    prepared = module.TrainingArguments.__post_init__

    def post_init(arguments: Any) -> None:
        arguments.use_cpu = True
        arguments.ddp_backend = arguments.ddp_backend or "gloo"
        prepared(arguments)
        if arguments.deepspeed_plugin is not None:
            import_module("deepspeed").init_distributed("gloo")

    module.TrainingArguments.__post_init__ = post_init


def _use_lasting_lock(_: ModuleType) -> None:
    from ...probes.real_run import extension_lock

    extension_lock.install()


class _AfterImport(MetaPathFinder):
    """Import hook that calls the function of each named module after the module's import."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        action = self._actions.pop(name, None)  # removed first, because the search below calls this method again
        spec = importlib.util.find_spec(name) if action is not None else None
        if action is None or spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            with contextlib.suppress(Exception):
                action(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _add_callback(module: Any, events: EventLog, folder: Path) -> None:
    """Add a callback to the defaults of every Trainer (transformers/trainer.py `DEFAULT_CALLBACKS`)."""
    from transformers.trainer_callback import TrainerCallback

    class Launched(TrainerCallback):  # its methods receive the Trainer's arguments
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.stop = _Stop(folder)
            events.note(
                {"trainer": {"total_steps": state.max_steps, "output_dir": str(Path(args.output_dir).resolve())}}
            )

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            stop_at = self.stop.after(state.global_step)
            if stop_at is not None and state.global_step >= stop_at:
                control.should_save = control.should_training_stop = True

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}").resolve()
            with contextlib.suppress(OSError):
                (checkpoint / CHECKSUMS).unlink(missing_ok=True)  # checksums of an earlier checkpoint in this folder
            events.note({"checkpoint": str(checkpoint)})

    module.DEFAULT_CALLBACKS.append(Launched)


class _Stop:
    """Agreement of the ranks on the step to stop after, through the store of their rendezvous. It takes one request per
    step and no collective, and works across nodes."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / STOP_FILE
        self._requested = False
        self._store: Any = None
        self._rank = 0
        with contextlib.suppress(Exception):
            import torch.distributed as dist

            if dist.is_initialized() and dist.get_world_size() > 1:
                self._rank = dist.get_rank()
                self._store = dist.distributed_c10d._get_default_store()

    def after(self, step: int) -> int | None:
        """The step after which to stop; None while no stop is requested."""
        if not self._requested and self._file.exists():
            self._requested = True
            if self._store is not None:
                self._store.set(_REQUESTED, "1")
        if self._store is None:
            return step if self._requested else None
        if self._store.check([_STOP_AT]):
            return int(self._store.get(_STOP_AT))
        if self._rank == 0 and self._store.check([_REQUESTED]):
            self._store.set(_STOP_AT, str(step + _STEPS_AHEAD))
            return step + _STEPS_AHEAD
        return None


def observe(module: Any, events: EventLog) -> None:
    """Wrap the methods of the engine class in `deepspeed.runtime.engine`."""
    engine_class, seen = module.DeepSpeedEngine, _EngineObserver(events)
    engine_class.forward = _wrap(engine_class.forward, before=seen.before_forward)
    engine_class.backward = _wrap(engine_class.backward, before=seen.before_backward)
    engine_class.step = _wrap(engine_class.step, before=seen.before_step, after=seen.after_step)


def _wrap(method: Any, *, before: Callable[..., None], after: Callable[[Any], None] = lambda _: None) -> Any:
    @functools.wraps(method)
    def wrapped(engine: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            before(engine, *args, **kwargs)
        result = method(engine, *args, **kwargs)
        with contextlib.suppress(Exception):
            after(engine)
        return result

    return wrapped


class _EngineObserver:
    """Tokens, losses and memory since the last optimizer step. The observer never waits for the GPU: it reads a GPU's
    loss one step later, after its computation."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._tokens = 0
        self._losses: list[Any] = []
        self._is_mean = True
        self._global_steps = 0
        self._pending: list[tuple[int, Any, Any]] = []
        """(step, loss, CUDA event after the loss's copy to the host)."""
        self._reported_settings = False

    def before_forward(self, engine: Any, *args: Any, **kwargs: Any) -> None:
        inputs: Any = kwargs.get("input_ids", args[0] if args else None)
        shape = getattr(inputs, "shape", ())
        if engine.module.training and len(shape) >= 2 and not inputs.is_floating_point():
            self._tokens += inputs.numel()

    def before_backward(self, _engine: Any, loss: Any, *_: Any, scale_wrt_gas: bool = True, **__: Any) -> None:
        self._losses.append(loss.detach())
        self._is_mean = scale_wrt_gas  # otherwise the caller has already divided by the accumulation steps

    def before_step(self, engine: Any, *_: Any, **__: Any) -> None:
        self._global_steps = engine.global_steps

    def after_step(self, engine: Any) -> None:
        if engine.global_steps == self._global_steps:
            return  # between accumulation steps
        import torch

        step, line = int(engine.global_steps), dict[str, float](tokens=self._tokens)
        losses = self._losses
        self._losses = []
        self._tokens = 0
        if not self._reported_settings:
            self._reported_settings = True
            settings = {  # under the names of `Plan`
                "zero_stage": int(engine.zero_optimization_stage()),
                "micro_batch_size": int(engine.train_micro_batch_size_per_gpu()),
                # Counted, because under the Trainer the engine's own value is 1 if the configuration lacks the key.
                "gradient_accumulation_steps": len(losses) or int(engine.gradient_accumulation_steps()),
            }
            self._events.note({"engine": settings, "engine_ranks": torch.distributed.get_world_size()})
        self._report_pending()
        if losses:
            stacked = torch.stack([value.float().reshape(()) for value in losses])
            loss = stacked.mean() if self._is_mean else stacked.sum()
            if loss.is_cuda:
                copy = torch.empty((), dtype=torch.float32, pin_memory=True)
                copy.copy_(loss, non_blocking=True)
                copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                copied.record()
                self._pending.append((step, copy, copied))
            else:
                line["loss"] = float(loss)
        if engine.device.type == "cuda":
            counters = torch.cuda.memory_stats()
            line |= {
                f"{name}_peak_bytes": counters.get(f"{name}_bytes.all.peak", 0) for name in ("allocated", "reserved")
            }
        self._events.note({"step": step, **line})

    def _report_pending(self) -> None:
        while self._pending and self._pending[0][2].query():
            step, loss, _ = self._pending.pop(0)
            self._events.note({"step": step, "loss": float(loss)})


if __name__ == "__main__":
    main()
