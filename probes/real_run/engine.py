"""DeepSpeed's engine of an observed rank: its settings, and the tokens, loss and memory of each optimizer step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .process import ObservedProcess


def observe(module: Any, process: ObservedProcess) -> None:
    """Wrap the methods of the engine class in `deepspeed.runtime.engine`."""
    engine_class, seen = module.DeepSpeedEngine, _EngineObserver(process)
    join = lambda *_, **__: _become_rank(process)  # noqa: E731
    engine_class.__init__ = _wrap(engine_class.__init__, before=join, after=join)
    engine_class.forward = _wrap(engine_class.forward, before=seen.before_forward)
    engine_class.backward = _wrap(engine_class.backward, before=seen.before_backward)
    engine_class.step = _wrap(engine_class.step, before=seen.before_step, after=seen.after_step)


def _become_rank(process: ObservedProcess) -> None:
    """Make a process without RANK a rank as soon as it has joined the others."""
    import torch.distributed as dist

    if not process.is_rank and dist.is_initialized():
        process.become_rank(dist.get_rank())


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

    def __init__(self, process: ObservedProcess) -> None:
        self._process = process
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
            self._process.note({"engine": settings, "engine_ranks": torch.distributed.get_world_size()})
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
        self._process.note({"step": step, **line})

    def _report_pending(self) -> None:
        while self._pending and self._pending[0][2].query():
            step, loss, _ = self._pending.pop(0)
            self._process.note({"step": step, "loss": float(loss)})
