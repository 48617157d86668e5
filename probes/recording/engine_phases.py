"""The phases of a training that is not ours: hooks on DeepSpeed's engine classes see loading, steps, evaluation,
generation and saving, whatever loop calls them.

A training ends by itself, or as soon as a step repeats: then data loaders end, so that the script evaluates and saves
as it would at its end.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_flatten, tree_map_only

from .phases import PhaseRecorder

BETWEEN = "between"
"""Name of the phase between a step and the next forward pass: the script moves batches, logs, computes metrics."""

_STEP = ("forward", "backward", "step")
_LONGEST_PERIOD = 4
"""Most optimizer steps in a period: one generation serves several steps (GRPO), engines take turns (GAN)."""

_PAUSE_BYTES = 16 << 20
"""A pause between two phases that allocates less is not listed."""

_PLAIN_STEPS = 20
"""Optimizer steps without DeepSpeed after which a script is known to train without it."""

_STEPS_OF_VARYING = 4
_VARYING_BATCHES = 8
"""Optimizer steps, or micro batches of at least two steps, where the batches have different shapes."""

_GENERATING_STEPS = 3
"""Optimizer steps of a training that generates: one with the optimizer's states follows a generation."""

_MORE_CALLS = 6
"""Optimizer steps or batches that a script may take after the last observed step, before it is ended."""


class TrainingEnded(BaseException):
    """The observed training is over. No `except Exception` of a script catches it."""


class TensorForm(NamedTuple):
    """A tensor without its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(slots=True)
class Call:
    """A forward pass of an engine in training: its arguments, with a `TensorForm` for each tensor."""

    arguments: Any
    options: Any
    loss: int | None = None
    """Place of the loss among the tensors of the output; None if the loss is none of them."""

    @property
    def forms(self) -> list[TensorForm]:
        leaves = tree_flatten((self.arguments, self.options), is_leaf=lambda each: isinstance(each, TensorForm))[0]
        return [each for each in leaves if isinstance(each, TensorForm)]

    @property
    def elements(self) -> int:
        return sum(prod(form.shape) for form in self.forms)

    @property
    def rows(self) -> int:
        """The first dimension that most tensors have; 0 without tensors."""
        first = [form.shape[0] for form in self.forms if form.shape]
        return max(first, key=first.count, default=0)

    @property
    def length(self) -> int:
        """Tokens of a sample: columns of the widest matrix of whole numbers; 0 without one."""
        matrices = [form for form in self.forms if len(form.shape) == 2 and not form.dtype.is_floating_point]
        return max((form.shape[1] for form in matrices), default=0)


class EngineObserver:
    """Divides a training into phases and decides when it has been seen.

    last_step: number of optimizer steps of each trained engine after which the training ends without a repetition.
    varies: whether the batches have different shapes.
    on_ignored: called where the script catches `TrainingEnded` and goes on.
    before_engine: called with the number and the module of each engine before it is made.
    """

    def __init__(
        self,
        recorder: PhaseRecorder,
        *,
        last_step: int,
        varies: Callable[[], bool],
        on_ignored: Callable[[], object] = lambda: None,
        before_engine: Callable[[int, Any], object] = lambda _number, _module: None,
    ) -> None:
        self._before_engine = before_engine
        self.recorder = recorder
        self._varies, self._on_ignored = varies, on_ignored
        self.last_step = last_step
        self.engines: list[Any] = []
        self.models: list[tuple[Any, tuple[int, int]]] = []
        """(module, (parameters, trainable parameters)) of each engine, counted before the engine changes them."""
        self.dtypes: list[dict[str, int]] = []
        """Trainable parameters of each engine by dtype, before the engine casts them."""
        self.configs: list[dict[str, Any]] = []
        """DeepSpeed's configuration of each engine, with its batch sizes."""
        self.calls: dict[int, Call] = {}
        """The largest forward pass in training of each engine, by its identity."""
        self.iteration = 1
        self.seen: set[str] = set()
        """Names of the phases of their own that were entered, also within others."""
        self.repeated = False
        self.finished = False
        """Whether enough steps were seen."""
        self.in_training_mode = True
        """Whether the last trained module was in training mode."""
        self.plain_steps = 0
        """Steps of optimizers before there is an engine."""
        self._trained: set[int] = set()
        self._first_phase = 0
        self._more = self._micro_batches = 0
        self._nested = 0
        self._current = ""
        self._last: tuple[Call | None, list[int]] = None, []

    @property
    def has_trained(self) -> bool:
        """Whether an engine made an optimizer step."""
        return bool(self._trained)

    @property
    def steps(self) -> int:
        """Number of observed optimizer steps."""
        return self.iteration - 1

    @property
    def trained_engine(self) -> int:
        """Index of the first engine that was trained, or that could be."""
        for number, engine in enumerate(self.engines):
            if id(engine) in self._trained:
                return number
        return max(range(len(self.engines)), key=lambda number: self.models[number][1][1])

    @property
    def is_training(self) -> bool:
        """Whether the script trains now; if not, it evaluates or generates."""
        if self._nested or not torch.is_grad_enabled():
            return False
        trained = [engine for engine in self.engines if id(engine) in self._trained]
        return not trained or any(engine.module.training == self.in_training_mode for engine in trained)

    # ------------------------------------------------------------------ phases

    def enter(self, name: str, *, iteration: int | None = None) -> None:
        """Begin a phase, unless it runs already or a nested one does."""
        if self._nested or name == self._current:
            return
        self._leave()
        self._current = name
        self.recorder.begin(self.iteration if iteration is None else iteration, name)

    def _leave(self) -> None:
        if not self._current:
            return
        phases = self.recorder.phases
        self.recorder.end()
        # What the script still trains after the observed steps repeats them; a pause without memory of its own is none.
        repeats = self.finished and self._current in _STEP
        before = phases[-2].gpu_live_bytes if len(phases) > 1 else 0
        if repeats or (self._current == BETWEEN and phases[-1].gpu_peak_bytes < before + _PAUSE_BYTES):
            del phases[-1]
        self._current = ""

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """A phase of its own, such as generation; phases within it are part of it."""
        self.seen.add(name)
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

    # ------------------------------------------------------------------ hooks

    def install(self) -> None:
        """Wrap the methods of DeepSpeed's engines."""
        engine: Any = importlib.import_module("deepspeed.runtime.engine").DeepSpeedEngine
        pipeline: Any = importlib.import_module("deepspeed.runtime.pipe.engine").PipelineEngine
        engine.__init__ = self._initialized(engine.__init__)
        engine.forward = self._forward(engine.forward)
        engine.backward = self._backward(engine.backward)
        engine.step = self._step(engine.step)
        for name in ("save_checkpoint", "save_16bit_model", "save_fp16_model"):
            if hasattr(engine, name):
                setattr(engine, name, self.phased("saving", getattr(engine, name)))
        self._install_pipeline(pipeline)
        register_optimizer_step_post_hook(self._count_plain_step)

    def phased(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a phase."""

        @functools.wraps(method)  # some tools read the source of what they wrap
        def run(*arguments: Any, **options: Any) -> Any:
            with self.during(name):
                return method(*arguments, **options)

        return run

    def _initialized(self, method: Any) -> Any:
        def init(engine: Any, *arguments: Any, **options: Any) -> None:
            module = options.get("model") or next((a for a in arguments if isinstance(a, torch.nn.Module)), None)
            counted = (0, 0) if module is None else count_parameters(module)
            self.dtypes.append(_dtypes(module))
            self._describe(module)
            self._before_engine(len(self.engines), module)
            self.enter("initialize", iteration=0 if not self._trained else None)
            method(engine, *arguments, **options)
            self.engines.append(engine)
            self.models.append((engine.module, counted))
            self.configs.append(_config(engine))
            self.recorder.classifier.watch_modules(engine.module, first=len(self.engines) == 1)
            self.recorder.sweep(engine.module, engine.optimizer)
            self.recorder.name_gradients(engine.module)
            self.enter(BETWEEN, iteration=0 if not self._trained else None)
            if not self._trained:
                self.recorder.ledger.restart_trace()

        return init

    def _describe(self, module: Any) -> None:
        """Tell the classifier of allocations the shapes of the weights and the size of the vocabulary."""
        if module is None:
            return
        classifier = self.recorder.classifier
        classifier.weight_shapes |= {tuple(getattr(each, "ds_shape", each.shape)) for each in module.parameters()}
        config: Any = getattr(module, "config", None)
        text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
        classifier.vocab_size = classifier.vocab_size or int(getattr(text_config, "vocab_size", 0) or 0)

    def _forward(self, method: Any) -> Any:
        def forward(engine: Any, *arguments: Any, **options: Any) -> Any:
            if torch.is_grad_enabled():
                self.in_training_mode = engine.module.training
                self._micro_batches += 1
                self.enter("forward")
            elif self._current == BETWEEN:
                self.enter("scoring" if engine.module.training else "evaluation")
            called = self._called(engine, arguments, options) if torch.is_grad_enabled() else None
            output = method(engine, *arguments, **options)
            self._last = called, [id(each) for each in tree_flatten(output)[0] if isinstance(each, torch.Tensor)]
            return output

        return forward

    def _called(self, engine: Any, arguments: Any, options: Any) -> Call:
        """The arguments of a forward pass, kept if it is the largest."""
        made = tree_map_only(
            torch.Tensor, lambda each: TensorForm(tuple(each.shape), each.dtype), (arguments, dict(options))
        )
        call, largest = Call(*made), self.calls.get(id(engine))
        if largest is None or call.elements > largest.elements:
            self.calls[id(engine)] = call
        return call

    def _backward(self, method: Any) -> Any:
        def backward(engine: Any, *arguments: Any, **options: Any) -> Any:
            self.enter("backward")
            called, outputs = self._last
            loss = arguments[0] if arguments else options.get("loss")
            if called is not None and id(loss) in outputs:
                called.loss = outputs.index(id(loss))
            result = method(engine, *arguments, **options)
            self.recorder.sweep(engine.module, engine.optimizer)
            return result

        return backward

    def _step(self, method: Any) -> Any:
        def step(engine: Any, *arguments: Any, **options: Any) -> Any:
            self.enter("step")
            is_boundary = engine.is_gradient_accumulation_boundary()
            result = method(engine, *arguments, **options)
            self.recorder.sweep(engine.module, engine.optimizer)
            if is_boundary:
                self._end_step(engine)
            self.enter(BETWEEN)
            return result

        return step

    def _end_step(self, engine: Any) -> None:
        self._trained.add(id(engine))
        self._leave()
        if self.finished:
            self.count_refusal()
            return
        self.recorder.schedule.complete_iteration()
        self.recorder.join_micro_batches(self._first_phase)
        self._first_phase = len(self.recorder.phases)
        period = max(len(self._trained), _LONGEST_PERIOD)
        # In the first iteration the optimizer creates its states; ZeRO-3 also records the order of the layers.
        repeats = self.recorder.repeats(period)
        self.repeated = repeats and self.iteration > 2
        # Batches of different shapes never repeat: some are as good as many.
        enough = self._varies() and (self.iteration >= _STEPS_OF_VARYING or self._micro_batches >= _VARYING_BATCHES)
        enough |= "generation" in self.seen and self.iteration >= _GENERATING_STEPS
        last = 2 if enough else self.last_step
        if self.repeated or self.iteration >= last * len(self._trained):
            self.finished = True
            self.recorder.schedule.stop()
        self.iteration += 1  # also for what follows the last step

    def count_refusal(self) -> None:
        """The script goes on although it has been seen. Raises TrainingEnded where it does not end by itself."""
        self._more += 1
        if self._more > 2 * _MORE_CALLS:
            self._on_ignored()
        if self._more > _MORE_CALLS:
            raise TrainingEnded

    def _count_plain_step(self, *_: Any) -> None:
        if not self.engines:
            self.plain_steps += 1
            if self.plain_steps > _PLAIN_STEPS + _MORE_CALLS:
                self._on_ignored()
            if self.plain_steps >= _PLAIN_STEPS:
                raise TrainingEnded

    def _install_pipeline(self, pipeline: Any) -> None:
        """A pipeline's engine has instructions in place of forward, backward and step."""
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

        def one_batch(engine: Any, *arguments: Any, **options: Any) -> Any:
            result = train_batch(engine, *arguments, **options)
            self.recorder.sweep(engine.module, engine.optimizer)
            self._end_step(engine)
            self.enter(BETWEEN)
            return result

        pipeline.train_batch = one_batch


def count_parameters(module: torch.nn.Module) -> tuple[int, int]:
    """(parameters, trainable parameters): tied ones count once, partitioned ones in full."""
    sizes = [(int(getattr(each, "ds_numel", each.numel())), each.requires_grad) for each in module.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)


def _dtypes(module: Any) -> dict[str, int]:
    sizes = Counter[str]()
    for each in module.parameters() if module is not None else ():
        if each.requires_grad:
            sizes[str(each.dtype).removeprefix("torch.")] += int(getattr(each, "ds_numel", each.numel()))
    return dict(sizes)


def _config(engine: Any) -> dict[str, Any]:
    """The configuration as a JSON value."""
    config = json.loads(json.dumps(engine._config._param_dict, default=str))
    return {
        **config,
        "train_micro_batch_size_per_gpu": int(engine.train_micro_batch_size_per_gpu()),
        "gradient_accumulation_steps": int(engine.gradient_accumulation_steps()),
    }
