"""Raise torch's out-of-memory error at one operation of a phase, in a training that runs for real on the CPU.

Functions of torch, DeepSpeed and transformers are wrapped, each with the phase that it begins. Within them every
operation of torch is counted for the phase that it belongs to, and the one that is asked for raises. The traceback is
then the one of the installed software, without frames of this file.
"""

# mypy: disable-error-code="no-untyped-call"
# TorchDispatchMode has no types.
from __future__ import annotations

import importlib
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WRAPPED: Mapping[str, tuple[str, ...]] = {
    "load": ("transformers.modeling_utils:PreTrainedModel.from_pretrained",),
    "zero_init": ("deepspeed.runtime.zero.partition_parameters:Init._post_init_method",),
    "forward": ("transformers.models.llama.modeling_llama:LlamaModel.forward", "{own}:Decoder.forward"),
    "loss": ("torch.nn.functional:cross_entropy",),
    "backward": ("torch.autograd:backward",),
    "reduction": (
        "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.reduce_independent_p_g_buckets_and_remove_grads",
        "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.reduce_ipg_grads",
        "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.reduce_independent_p_g_buckets_and_remove_grads",
        "deepspeed.runtime.engine:DeepSpeedEngine.allreduce_gradients",
    ),
    "first_step": (
        "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.__init__",
        "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.__init__",
        "torch.optim.adamw:AdamW._init_group",
    ),
    "optimizer_step": (
        "deepspeed.runtime.engine:DeepSpeedEngine._take_model_step",
        "torch.optim.adamw:AdamW.step",
    ),
    "evaluation": ("transformers.trainer:Trainer.evaluation_loop",),
    "generation": ("transformers.generation.utils:GenerationMixin.generate",),
    "checkpoint": ("deepspeed.runtime.engine:DeepSpeedEngine.load_checkpoint",),
    "saving": (
        "deepspeed.runtime.engine:DeepSpeedEngine.save_checkpoint",
        "deepspeed.runtime.engine:DeepSpeedEngine.save_16bit_model",
        "torch:save",
    ),
}
"""The functions that begin a phase, as MODULE:NAME; {own} is the module of the trainings."""

_WHOLE = ("load", "zero_init", "evaluation", "generation", "checkpoint", "saving", "first_step")
"""Phases that keep all operations within them: the forward pass of an evaluation is the evaluation's. Within the
others the innermost phase counts."""

_MESSAGE = (
    "CUDA out of memory. Tried to allocate 1.94 GiB. GPU 0 has a total capacity of 23.64 GiB of which 312.00 MiB is "
    "free. Including non-PyTorch memory, this process has 23.33 GiB memory in use. Of the allocated memory 22.10 GiB "
    "is allocated by PyTorch, and 310.00 MiB is reserved by PyTorch but unallocated."
)


class Strike(TorchDispatchMode):
    """Counts the operations of each phase, and raises at one."""

    def __init__(self, phase: str = "", ordinal: int = 0) -> None:
        """phase, ordinal: the operation of the phase that raises, from 1; by default none does."""
        super().__init__()
        self.counts = Counter[str]()
        self._phase, self._ordinal = phase, ordinal
        self._begun: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if phase := self._now():
            self.counts[phase] += 1
            if phase == self._phase and self.counts[phase] == self._ordinal:
                raise torch.OutOfMemoryError(_MESSAGE)
        return func(*args, **(kwargs or {}))

    def _now(self) -> str:
        whole = next((phase for phase in self._begun if phase in _WHOLE), "")
        return whole or (self._begun[-1] if self._begun else "")

    def wrap(self, own: str) -> None:
        """Wrap the functions of the phases. own: the module of the trainings."""
        for phase, names in WRAPPED.items():
            for name in names:
                module, _, path = name.format(own=own).partition(":")
                *owners, last = path.split(".")
                with suppress(ImportError, AttributeError, KeyError):  # a part that another release does not have
                    owner: Any = importlib.import_module(module)
                    for each in owners:
                        owner = getattr(owner, each)
                    setattr(owner, last, self._of_phase(phase, owner.__dict__[last]))

    def _of_phase(self, phase: str, function: Any) -> Any:
        kind = type(function) if isinstance(function, classmethod | staticmethod) else None
        inner: Callable[..., Any] = function.__func__ if kind else function

        @wraps(inner)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._begun.append(phase)
            try:
                return inner(*args, **kwargs)
            finally:
                self._begun.pop()

        return kind(wrapper) if kind else wrapper


def print_without_strike(error: BaseException) -> None:
    """Print the traceback of an error as the interpreter does, without frames of this file."""
    frames = traceback.StackSummary.from_list(
        [frame for frame in traceback.extract_tb(_of(error)) if not frame.filename.endswith("memory_phases/strike.py")]
    )
    kind = type(error)
    print(
        "Traceback (most recent call last):",
        *[line.rstrip("\n") for line in frames.format()],
        sep="\n",
        file=sys.stderr,
    )
    print(f"{kind.__module__}.{kind.__qualname__}: {error}", file=sys.stderr)


def _of(error: BaseException) -> TracebackType | None:
    """The traceback without the frame that caught it."""
    return error.__traceback__.tb_next if error.__traceback__ else None
