"""Hooks on DeepSpeed's engine classes, which divide any training into phases: loading, the passes and steps of its
iterations, evaluation, generation and saving, whatever loop calls them."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

BETWEEN = "between"
"""Name of the phase between a step and the next forward pass: the script moves batches, logs, computes metrics."""

PHASES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "transformers.trainer": (("Trainer", "evaluation_loop", "evaluation"), ("Trainer", "_save", "saving")),
    "transformers.generation.utils": (("GenerationMixin", "generate", "generation"),),
}
"""Module -> (class, method, phase): methods outside of DeepSpeed that are phases of their own."""


class EngineHooks:
    """The phases of a training. A subclass measures them: `begin` and `leave` enclose each phase, and the methods `on_`
    are called by the engines. An iteration ends with an optimizer step; iteration 0 is what precedes the first one."""

    def __init__(self) -> None:
        self.engines: list[Any] = []
        self.iteration = 1
        self.seen: dict[str, int] = {}
        """Phase of its own that was entered, also within another -> iteration in which it was last."""
        self.in_training_mode = True
        """Whether the last trained module was in training mode."""
        self._trained: set[int] = set()
        self._nested = 0
        self._current = ""

    def begin(self, iteration: int, name: str) -> None:
        raise NotImplementedError

    def leave(self, name: str) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------ phases

    def enter(self, name: str, *, iteration: int | None = None) -> None:
        """Begin a phase, unless it runs already or a nested one does."""
        if self._nested or name == self._current:
            return
        self._leave()
        self._current = name
        self.begin(self.iteration if iteration is None else iteration, name)

    def _leave(self) -> None:
        if self._current:
            self.leave(self._current)
            self._current = ""

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """A phase of its own, such as generation; phases within it are part of it."""
        self.seen[name] = self.iteration
        if self._nested:
            yield
            return
        outer = self._current
        self.enter(name, iteration=0 if not self.engines else None)
        self._nested += 1
        try:
            yield
        finally:
            self._nested -= 1
            self._leave()
            self.enter(outer or BETWEEN, iteration=0 if not self.engines else None)

    def close(self) -> None:
        """End the last phase."""
        self._nested = 0
        self._leave()

    def phased(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a phase."""

        @functools.wraps(method)  # some tools read the source of what they wrap
        def run(*arguments: Any, **options: Any) -> Any:
            with self.during(name):
                return method(*arguments, **options)

        return run

    def install_phases(self, module: Any) -> None:
        """Make the methods of a module in `PHASES` phases."""
        for owner, method, phase in PHASES[module.__name__]:
            found = getattr(module, owner)
            setattr(found, method, self.phased(phase, getattr(found, method)))

    # ------------------------------------------------------------------ calls of the engines

    def call(self, hook: Callable[..., object], *arguments: Any) -> None:
        """Call a hook."""
        hook(*arguments)

    def on_module(self, _module: Any) -> None:
        """An engine will be made of the module."""
        self.enter("initialize", iteration=None if self._trained else 0)

    def on_engine(self, engine: Any) -> None:
        """The engine is made."""
        self.engines.append(engine)
        self.enter(BETWEEN, iteration=None if self._trained else 0)

    def on_forward(self, engine: Any, _arguments: tuple[Any, ...], _options: dict[str, Any]) -> None:
        import torch

        if torch.is_grad_enabled():
            self.in_training_mode = engine.module.training
            self.enter("forward")
        elif self._current == BETWEEN:
            # Frozen models score completions too.
            self.enter("scoring" if any(each.module.training for each in self.engines) else "evaluation")

    def on_output(self, output: Any) -> None:
        """The output of a forward pass."""

    def on_backward(self, _engine: Any, _arguments: tuple[Any, ...], _options: dict[str, Any]) -> None:
        self.enter("backward")

    def on_called(self, engine: Any) -> None:
        """The engine has returned from a backward pass or a step."""

    def on_step(self, engine: Any) -> None:
        """An optimizer step was made."""
        self._trained.add(id(engine))
        self._leave()

    # ------------------------------------------------------------------ hooks

    def install(self, engine_module: Any) -> None:
        """Wrap the methods of the engine class in `deepspeed.runtime.engine`."""
        engine = engine_module.DeepSpeedEngine
        engine.__init__ = self._initialized(engine.__init__)
        engine.forward = self._forward(engine.forward)
        engine.backward = self._backward(engine.backward)
        engine.step = self._step(engine.step)
        for name in ("save_checkpoint", "save_16bit_model", "save_fp16_model"):
            if hasattr(engine, name):
                setattr(engine, name, self.phased("saving", getattr(engine, name)))

    def install_pipeline(self, pipeline_module: Any) -> None:
        """Wrap the methods of the engine class in `deepspeed.runtime.pipe.engine`, which has instructions in place of
        forward, backward and step."""
        pipeline = pipeline_module.PipelineEngine
        for instruction, name in (
            ("forward_pass", "forward"),
            ("backward_pass", "backward"),
            ("optimizer_step", "step"),
        ):
            attribute = f"_exec_{instruction}"
            plain = getattr(pipeline, attribute)

            def run(engine: Any, *arguments: Any, _plain: Any = plain, _name: str = name, **options: Any) -> Any:
                self.enter(_name)
                return _plain(engine, *arguments, **options)

            setattr(pipeline, attribute, run)
            pipeline._INSTRUCTION_MAP = {
                key: run if value is plain else value for key, value in pipeline._INSTRUCTION_MAP.items()
            }
        train_batch = pipeline.train_batch

        @functools.wraps(train_batch)
        def one_batch(engine: Any, *arguments: Any, **options: Any) -> Any:
            result = train_batch(engine, *arguments, **options)
            self._end_step(engine)
            return result

        pipeline.train_batch = one_batch

    def _end_step(self, engine: Any) -> None:
        self.call(self.on_called, engine)
        self.call(self.on_step, engine)
        self.call(self.enter, BETWEEN)

    def _initialized(self, method: Any) -> Any:
        @functools.wraps(method)
        def init(engine: Any, *arguments: Any, **options: Any) -> None:
            import torch

            module = options.get("model") or next((a for a in arguments if isinstance(a, torch.nn.Module)), None)
            self.call(self.on_module, module)
            method(engine, *arguments, **options)
            self.call(self.on_engine, engine)

        return init

    def _forward(self, method: Any) -> Any:
        @functools.wraps(method)
        def forward(engine: Any, *arguments: Any, **options: Any) -> Any:
            self.call(self.on_forward, engine, arguments, options)
            output = method(engine, *arguments, **options)
            self.call(self.on_output, output)
            return output

        return forward

    def _backward(self, method: Any) -> Any:
        @functools.wraps(method)
        def backward(engine: Any, *arguments: Any, **options: Any) -> Any:
            self.call(self.on_backward, engine, arguments, options)
            result = method(engine, *arguments, **options)
            self.call(self.on_called, engine)
            return result

        return backward

    def _step(self, method: Any) -> Any:
        @functools.wraps(method)
        def step(engine: Any, *arguments: Any, **options: Any) -> Any:
            self.call(self.enter, "step")
            before = engine.global_steps
            result = method(engine, *arguments, **options)
            # An accumulation ended, or the caller decides when it does (0.19.8 engine.py `step`).
            if engine.global_steps > before:
                self._end_step(engine)
            else:
                self.call(self.on_called, engine)
                self.call(self.enter, BETWEEN)
            return result

        return step


def engine_config(engine: Any) -> dict[str, Any]:
    """DeepSpeed's configuration of an engine as a JSON value, with its batch sizes."""
    config = json.loads(json.dumps(engine._config._param_dict, default=str))
    return {
        **config,
        "train_micro_batch_size_per_gpu": int(engine.train_micro_batch_size_per_gpu()),
        "gradient_accumulation_steps": int(engine.gradient_accumulation_steps()),
    }
