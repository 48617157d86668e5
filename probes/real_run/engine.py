"""DeepSpeed's engine of an observed rank: its settings, and the tokens, loss, time and memory of each optimizer step by
phase. The observer never waits for the GPU: it reads a GPU's loss and times some steps later, after its computation."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from ..recording.engine_hooks import BETWEEN, EngineHooks, engine_config
from ..simulated_gpu import collectives
from . import measure, solo
from .environment import Settings
from .process import ObservedProcess

_STEP = ("forward", "backward", "step", BETWEEN)
_LIBRARIES = ("torch", "deepspeed", "transformers", "accelerate", "trl", "peft")


class Mark(NamedTuple):
    """A moment: of the host's clock, and in the stream of the GPU where there is one. Events do not make the host wait
    between the phases of a step, which would slow down launch-bound training."""

    host_s: float
    event: Any

    @classmethod
    def now(cls) -> Mark:
        torch: Any = sys.modules.get("torch")
        event = None
        if torch is not None and torch.cuda.is_initialized():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return cls(time.perf_counter(), event)

    @property
    def is_past(self) -> bool:
        return self.event is None or self.event.query()

    def seconds_to(self, later: Mark) -> float:
        if self.event is None or later.event is None:
            return later.host_s - self.host_s
        return float(self.event.elapsed_time(later.event)) / 1000.0


@dataclass(slots=True)
class Span:
    """A phase that has ended."""

    iteration: int
    name: str
    begin: Mark
    end: Mark
    waiting_s: float
    allocated_bytes: int
    reserved_bytes: int
    host_bytes: int


class RankObserver(EngineHooks):
    """Notes what the engines of this process do. With `settings.steps` the rank reports after that optimizer step and
    waits until it is ended: the other ranks may still need it."""

    def __init__(self, process: ObservedProcess, settings: Settings) -> None:
        super().__init__()
        self._process, self._settings = process, settings
        self._on_cpu = os.environ.get("DS_ACCELERATOR") == "cpu"
        self.collectives = measure.CollectiveTime()
        self._gpu = measure.GpuPeaks()
        self._tokens = 0
        self._losses: list[Any] = []
        self._is_mean = True
        self._pending: list[tuple[int, Any, Any]] = []
        """(step, loss, CUDA event after the loss's copy to the host)."""
        self._begin: tuple[int, Mark, float] = 0, Mark.now(), 0.0
        self._spans: list[Span] = []
        self._step_of = {0: 0}
        """Iteration -> the engine's number of its optimizer step."""
        self._peaks = {"allocated_peak_bytes": 0, "reserved_peak_bytes": 0}
        self._baseline_bytes = 0

    def call(self, hook: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(Exception):
            hook(*arguments)

    def enter(self, name: str, *, iteration: int | None = None) -> None:
        with contextlib.suppress(Exception):
            super().enter(name, iteration=iteration)

    # ------------------------------------------------------------------ phases

    def begin(self, iteration: int, name: str) -> None:
        if name not in _STEP:
            self._process.note({"phase": name})
        elif name == "forward" and iteration not in self._step_of:
            self._process.note({"phase": f"step {iteration}"})
            self._step_of[iteration] = iteration
        elif name == BETWEEN and self.engines and not self._trained:
            self._process.note({"initialized": True})
        self._gpu.restart()
        if self._measures_host:
            measure.restart_peak()
        self._begin = iteration, Mark.now(), self.collectives.seconds

    def leave(self, name: str) -> None:
        iteration, begin, waited_s = self._begin
        allocated, reserved = self._gpu.read()
        self._spans.append(
            Span(
                iteration,
                name,
                begin,
                Mark.now(),
                self.collectives.seconds - waited_s,
                allocated,
                reserved,
                measure.memory_bytes("VmHWM") if self._measures_host else 0,
            )
        )
        for key, peak in zip(self._peaks, (allocated, reserved), strict=True):
            self._peaks[key] = max(self._peaks[key], peak)

    @property
    def _measures_host(self) -> bool:
        return self._on_cpu or self._settings.steps is not None

    # ------------------------------------------------------------------ calls of the engines

    def on_module(self, module: Any) -> None:
        self._join()
        if self._settings.solo is not None:
            collectives.silence_comparisons()
        super().on_module(module)

    def on_engine(self, engine: Any) -> None:
        self._join()
        super().on_engine(engine)
        if self._settings.solo is not None:
            solo.never_skip_a_step(engine.optimizer)
        if not self._trained and self._settings.steps is not None:
            measure.release_freed()  # loading has a peak of its own

    def _join(self) -> None:
        """Make a process without RANK a rank as soon as it has joined the others."""
        import torch.distributed as dist

        if not self._process.is_rank and dist.is_initialized():
            self._process.become_rank(dist.get_rank())

    def on_forward(self, engine: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        super().on_forward(engine, arguments, options)
        if engine.module.training:
            self._tokens += _tokens(arguments, options)

    def on_backward(self, engine: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        super().on_backward(engine, arguments, options)
        loss = arguments[0] if arguments else options["loss"]
        self._losses.append(loss.detach())
        self._is_mean = options.get("scale_wrt_gas", True)  # otherwise the caller has divided by the accumulation steps

    def on_step(self, engine: Any) -> None:
        is_first = not self._trained
        super().on_step(engine)
        step, line = int(engine.global_steps), dict[str, float](tokens=self._tokens)
        self._step_of[self.iteration] = step
        losses, self._losses, self._tokens = self._losses, [], 0
        if is_first:
            settings = {"engine": _settings(engine, len(losses)), "engine_ranks": _world_size()}
            self._process.note({**settings, "dtype": _dtype(engine), "data_parallel_size": int(engine.dp_world_size)})
        self._note_past()
        if losses:
            self._note_loss(step, losses, line)
        if engine.device.type == "cuda":
            line |= self._peaks
        self._process.note({"step": step, **line})
        self.iteration += 1
        if self._settings.steps is not None and self.iteration > self._settings.steps * len(self._trained):
            self.report(engine)
            while True:  # until the process is ended
                time.sleep(60)

    def _note_loss(self, step: int, losses: list[Any], line: dict[str, float]) -> None:
        """Put the loss of a CPU's step into its event; note that of a GPU later."""
        import torch

        stacked = torch.stack([value.float().reshape(()) for value in losses])
        loss = stacked.mean() if self._is_mean else stacked.sum()
        if not loss.is_cuda:
            line["loss"] = float(loss)
            return
        copy = torch.empty((), dtype=torch.float32, pin_memory=True)
        copy.copy_(loss, non_blocking=True)
        copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        self._pending.append((step, copy, copied))

    def _note_past(self) -> None:
        """Note the losses that the GPU has computed, and the phases of the iterations that it has completed."""
        while self._pending and self._pending[0][2].query():
            step, loss, _ = self._pending.pop(0)
            self._process.note({"step": step, "loss": float(loss)})
        while self._spans and self._spans[0].iteration < self.iteration:
            first = self._spans[0].iteration
            spans = [span for span in self._spans if span.iteration == first]
            if not all(span.end.is_past for span in spans):
                return
            self._spans = self._spans[len(spans) :]
            self._process.note({"step": self._step_of.get(first, first), "phases": _sums(spans)})

    # ------------------------------------------------------------------ the report of a probe

    def first_parameter(self, *_: Any) -> None:
        """A module has got a parameter; at the first, the libraries are loaded and no model is built. Sets the limit of
        memory: RLIMIT_DATA, not RLIMIT_AS, because libraries map far more addresses than they use."""
        if self._baseline_bytes:
            return
        self._baseline_bytes = measure.memory_bytes("VmRSS")
        with contextlib.suppress(Exception):
            if "deepspeed" in sys.modules:
                import_module("torch._dynamo")  # decorators of the ZeRO stages load it at their first call
            self._baseline_bytes = measure.memory_bytes("VmRSS")
            if self._settings.memory_limit_bytes is not None:
                measure.limit_memory(measure.memory_bytes("VmData") + self._settings.memory_limit_bytes)

    def report(self, engine: Any) -> None:
        """Note the counters of the whole process, after its computation."""
        torch: Any = sys.modules["torch"]
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._note_past()
        index = torch.cuda.current_device() if engine.device.type == "cuda" else None
        read, written = measure.storage_bytes()
        self._process.note(
            {
                "report": {
                    **measure.gpu_memory(index),
                    "host_baseline_bytes": self._baseline_bytes,
                    "nvme_bytes": _swapped_bytes(engine),
                    "nvme_read_bytes": read,
                    "nvme_written_bytes": written,
                },
                "config": engine_config(engine),
                "world_size": _world_size(),
                "processes": 1 if self._settings.solo is not None else _world_size(),
                "versions": {name: found for name in _LIBRARIES if (found := _version(name))},
            }
        )

    def close(self) -> None:
        """The script has ended."""
        with contextlib.suppress(Exception):
            super().close()
            if self._settings.steps is not None and self._trained:
                self.report(next(engine for engine in self.engines if id(engine) in self._trained))
            self.iteration += 1  # what follows the last step
            self._note_past()


def _tokens(arguments: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Positions of a batch: of `input_ids`, or of its first tensor, also within a dictionary; 0 if that holds no whole
    numbers, or bytes, as images do."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = (each for each in tree_leaves((arguments, options)) if hasattr(each, "is_floating_point"))
    inputs = options.get("input_ids")
    inputs = next(tensors, None) if inputs is None else inputs
    if inputs is None or inputs.dim() < 2 or inputs.is_floating_point() or inputs.dtype == torch.uint8:
        return 0
    return int(inputs.numel())


def _settings(engine: Any, micro_batches: int) -> dict[str, int]:
    """Settings of an engine under the names of `Plan`."""
    return {
        "zero_stage": int(engine.zero_optimization_stage()),
        "micro_batch_size": int(engine.train_micro_batch_size_per_gpu()),
        # Counted, because under the Trainer the engine's own value is 1 if the configuration lacks the key.
        "gradient_accumulation_steps": micro_batches or int(engine.gradient_accumulation_steps()),
    }


def _dtype(engine: Any) -> str:
    """The type in which an engine computes, such as `bfloat16`; "" of a DeepSpeed that does not tell."""
    with contextlib.suppress(AttributeError):
        in_autocast = engine.torch_autocast_enabled()
        return str(engine.torch_autocast_dtype() if in_autocast else engine.get_data_types()[0]).removeprefix("torch.")
    return ""


def _world_size() -> int:
    import torch.distributed as dist

    return dist.get_world_size()


def _sums(spans: list[Span]) -> dict[str, dict[str, float]]:
    """Each phase's seconds, summed over its spans, and its highest bytes."""
    phases: dict[str, dict[str, float]] = {}
    for span in spans:
        figures = phases.setdefault(span.name, {"seconds": 0.0, "waiting_s": 0.0})
        figures["seconds"] += span.begin.seconds_to(span.end)
        figures["waiting_s"] += span.waiting_s
        for name in ("allocated_bytes", "reserved_bytes", "host_bytes"):
            if getattr(span, name):
                figures[name] = max(figures.get(name, 0), getattr(span, name))
    return phases


def _swapped_bytes(engine: Any) -> int:
    """Size of the engine's swap files."""
    zero = engine._config._param_dict.get("zero_optimization") or {}
    blocks = [zero.get(name) or {} for name in ("offload_optimizer", "offload_param")]
    folders = {block["nvme_path"] for block in blocks if block.get("nvme_path")}
    swap = [folder for path in folders for folder in Path(path).glob("zero_stage_*")]
    return sum(measure.folder_bytes(str(folder)) for folder in swap)


def _version(name: str) -> str:
    with contextlib.suppress(PackageNotFoundError):
        return version(name)
    return ""
