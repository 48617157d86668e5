"""The phases of a training that is not ours, recorded on the simulated GPU.

A training ends by itself, or as soon as a step repeats: then data loaders end, so that the script evaluates and saves
as it would at its end.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

from .engine_hooks import BETWEEN, EngineHooks, engine_config
from .phases import PhaseRecorder

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
    padded: bool | None = None
    """Whether the attention mask excludes tokens; None without a mask, or if its numbers are not known."""

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


class EngineObserver(EngineHooks):
    """Divides a training into phases and decides when it has been seen.

    last_step: number of optimizer steps of each trained engine after which the training ends without a repetition.
    varies: whether the batches have different shapes.
    on_ignored: called where the script catches `TrainingEnded` and goes on.
    before_engine: called with the number and the module of each engine before it is made.
    numbers: returns the numbers of a tensor of a batch, or None if they are not known.
    """

    def __init__(
        self,
        recorder: PhaseRecorder,
        *,
        last_step: int,
        varies: Callable[[], bool],
        on_ignored: Callable[[], object] = lambda: None,
        before_engine: Callable[[int, Any], object] = lambda _number, _module: None,
        numbers: Callable[[torch.Tensor], torch.Tensor | None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._numbers = numbers
        self._before_engine = before_engine
        self.recorder = recorder
        self._varies, self._on_ignored = varies, on_ignored
        self.last_step = last_step
        self.models: list[tuple[Any, tuple[int, int]]] = []
        """(module, (parameters, trainable parameters)) of each engine, counted before the engine changes them."""
        self.dtypes: list[dict[str, int]] = []
        """Trainable parameters of each engine by dtype, before the engine casts them."""
        self.configs: list[dict[str, Any]] = []
        """DeepSpeed's configuration of each engine, with its batch sizes."""
        self.calls: dict[int, Call] = {}
        """The largest forward pass in training of each engine, by its identity."""
        self.accumulation = dict[int, int]()
        """Most backward passes of an optimizer step, by id of the engine. The engine's own number is 1 if the Trainer
        accumulates and the configuration lacks the key."""
        self._backward_passes = Counter[int]()
        self.repeated = False
        self.finished = False
        """Whether enough steps were seen."""
        self.plain_steps = 0
        """Steps of optimizers before there is an engine."""
        self._part = ""
        """The micro batch of the last pass; "" of a pipeline, whose instructions have no engine."""
        self._first_phase = 0
        self._more = self._micro_batches = 0
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

    def begin(self, iteration: int, name: str) -> None:
        self.recorder.begin(iteration, name, self._part if name in ("forward", "backward") else "")

    def _micro_batch(self, engine: Any) -> str:
        """`micro batch 5 of 16` of the optimizer step; "" of a step that is not known to have several."""
        number = self._backward_passes[id(engine)] + 1
        most = max(int(engine.gradient_accumulation_steps()), self.accumulation.get(id(engine), 1))
        if number <= most:
            return f"micro batch {number} of {most}" if most > 1 else ""
        return f"micro batch {number}"

    def leave(self, name: str) -> None:
        phases = self.recorder.phases
        self.recorder.end()
        # What the script still trains after the observed steps repeats them; a pause without memory of its own is none.
        repeats = self.finished and name in _STEP
        before = phases[-2].gpu_live_bytes if len(phases) > 1 else 0
        if repeats or (name == BETWEEN and phases[-1].gpu_peak_bytes < before + _PAUSE_BYTES):
            del phases[-1]

    # ------------------------------------------------------------------ hooks

    def observe(self) -> None:
        """Observe DeepSpeed's engines and the steps of optimizers without one."""
        self.install(importlib.import_module("deepspeed.runtime.engine"))
        self.install_pipeline(importlib.import_module("deepspeed.runtime.pipe.engine"))
        register_optimizer_step_post_hook(self._count_plain_step)

    def on_module(self, module: Any) -> None:
        self.models.append((None, (0, 0) if module is None else count_parameters(module)))
        self.dtypes.append(_dtypes(module))
        self._describe(module)
        self._before_engine(len(self.engines), module)
        super().on_module(module)

    def on_engine(self, engine: Any) -> None:
        self.models[-1] = (engine.module, self.models[-1][1])
        self.configs.append(engine_config(engine))
        self.recorder.classifier.watch_modules(engine.module, first=not self.engines)
        self.recorder.sweep(engine.module, engine.optimizer)
        self.recorder.name_gradients(engine.module)
        super().on_engine(engine)
        if not self._trained:
            self.recorder.ledger.restart_trace()

    def _describe(self, module: Any) -> None:
        """Tell the classifier of allocations the shapes of the weights and the size of the vocabulary."""
        if module is None:
            return
        classifier = self.recorder.classifier
        classifier.weight_shapes |= {tuple(getattr(each, "ds_shape", each.shape)) for each in module.parameters()}
        config: Any = getattr(module, "config", None)
        text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
        classifier.vocab_size = classifier.vocab_size or int(getattr(text_config, "vocab_size", 0) or 0)

    def on_forward(self, engine: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._part = self._micro_batch(engine)
        super().on_forward(engine, arguments, options)
        self._micro_batches += torch.is_grad_enabled()
        called = self._called(engine, arguments, options) if torch.is_grad_enabled() else None
        self._last = called, []

    def on_output(self, output: Any) -> None:
        self._last[1][:] = [id(each) for each in tree_flatten(output)[0] if isinstance(each, torch.Tensor)]

    def _called(self, engine: Any, arguments: Any, options: Any) -> Call:
        """The arguments of a forward pass, kept if it is the largest."""
        made = tree_map_only(
            torch.Tensor, lambda each: TensorForm(tuple(each.shape), each.dtype), (arguments, dict(options))
        )
        call, largest = Call(*made), self.calls.get(id(engine))
        if largest is None or call.elements > largest.elements:
            self.calls[id(engine)] = call
            call.padded = self._is_padded(options.get("attention_mask"))
        return call

    def _is_padded(self, mask: Any) -> bool | None:
        """mask: rows x tokens, with 0 for padding."""
        if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or (numbers := self._numbers(mask)) is None:
            return None
        with _disable_current_modes():
            return bool((numbers == 0).any())

    def on_backward(self, engine: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._part = self._micro_batch(engine)
        super().on_backward(engine, arguments, options)
        self._backward_passes[id(engine)] += 1
        called, outputs = self._last
        loss = arguments[0] if arguments else options.get("loss")
        if called is not None and id(loss) in outputs:
            called.loss = outputs.index(id(loss))

    def on_called(self, engine: Any) -> None:
        self.recorder.sweep(engine.module, engine.optimizer)

    def on_step(self, engine: Any) -> None:
        super().on_step(engine)
        micro_batches = self._backward_passes.pop(id(engine), 0)
        is_whole = micro_batches >= self.accumulation.get(id(engine), 0)  # an epoch may end before the accumulation
        if is_whole:
            self.accumulation[id(engine)] = micro_batches
        if self.finished:
            self.count_refusal()
            return
        if is_whole:
            self.recorder.schedule.complete_iteration()
        self.recorder.join_micro_batches(self._first_phase)
        self._first_phase = len(self.recorder.phases)
        period = max(len(self._trained), _LONGEST_PERIOD)
        # In the first iteration the optimizer creates its states; ZeRO-3 also records the order of the layers.
        repeats = self.recorder.repeats(period)
        # One generation serves several steps: the first one with the optimizer's states is awaited.
        generated = self.seen.get("generation", 0)
        self.repeated = repeats and self.iteration > 2 and generated != 1
        # Batches of different shapes never repeat: some are as good as many.
        enough = self._varies() and (self.iteration >= _STEPS_OF_VARYING or self._micro_batches >= _VARYING_BATCHES)
        enough |= generated > 1 and self.iteration >= _GENERATING_STEPS
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
