"""Data loaders of a script: real tensors in this process, bounded, and ended once the training has been seen."""

from __future__ import annotations

import functools
import importlib
import inspect
import time
from collections.abc import Callable
from math import prod
from typing import Any, Self

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..recording.engine_phases import EngineObserver

_WORKER_OPTIONS = """num_workers pin_memory prefetch_factor persistent_workers timeout multiprocessing_context
    pin_memory_device"""
_LONGEST_SEARCH_S = 120.0


class Loaders:
    """Replaces `DataLoader`.

    is_training: whether the script trains, and does not evaluate.
    is_finished: whether the training has been seen; loaders of training then end.
    on_refusal: called for each batch that is refused.
    has_generated: whether the script generates text, which takes as long as many batches.
    longest: yield the batch with the most elements of all batches, again and again.
    evaluated_batches: after these an evaluation ends.
    """

    def __init__(
        self,
        *,
        is_training: Callable[[], bool],
        is_finished: Callable[[], bool],
        on_refusal: Callable[[], None],
        has_generated: Callable[[], bool],
        longest: bool,
        evaluated_batches: int = 3,
    ) -> None:
        self._has_generated = has_generated
        self._is_training = is_training
        self._is_finished = is_finished
        self._on_refusal = on_refusal
        self._longest = longest
        self._evaluated_batches = evaluated_batches
        self.shapes: list[dict[str, tuple[int, ...]]] = []
        """Shapes of the tensors of the batches of training, by name."""
        self.searched: list[dict[str, tuple[int, ...]]] = []
        """Shapes of the batches among which the longest was found."""
        self.cut_evaluation = False

    @classmethod
    def following(cls, observer: EngineObserver, *, longest: bool, evaluated_batches: int = 3) -> Self:
        """Loaders that ask an observer of the engine."""
        return cls(
            is_training=lambda: observer.is_training,
            is_finished=lambda: observer.finished,
            on_refusal=observer.count_refusal,
            has_generated=lambda: "generation" in observer.seen,
            longest=longest,
            evaluated_batches=evaluated_batches,
        )

    @property
    def has_varying_shapes(self) -> bool:
        """Whether batches of training had different shapes."""
        return any(shapes != self.shapes[0] for shapes in self.shapes)

    def install(self) -> None:
        loader: Any = torch.utils.data.DataLoader
        iterator: Any = importlib.import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
        init, make_iterator, next_batch = loader.__init__, loader.__iter__, iterator.__next__
        names = list(inspect.signature(init).parameters)[1:]

        @functools.wraps(init)  # Lightning reads the signature
        def in_process(own: Any, *arguments: Any, **options: Any) -> None:
            named = dict(zip(names, arguments, strict=False)) | options
            init(own, **{name: value for name, value in named.items() if name not in _WORKER_OPTIONS.split()})

        def iterate(own: Any) -> Any:
            with _disable_current_modes():
                made = make_iterator(own)
            made._loader = own
            return made

        def next_of(own: Any) -> Any:
            return self._next(own, next_batch)

        loader.__init__, loader.__iter__, iterator.__next__ = in_process, iterate, next_of

    def _next(self, iterator: Any, next_batch: Callable[[Any], Any]) -> Any:
        trains = self._is_training()
        if trains and self._is_finished():
            self._on_refusal()
            raise StopIteration
        if not trains:
            if iterator._num_yielded >= (1 if self._has_generated() else self._evaluated_batches):
                self.cut_evaluation = True
                raise StopIteration
            with _disable_current_modes():
                return next_batch(iterator)
        with _disable_current_modes():
            batch = self._longest_of(iterator, next_batch) if self._longest else next_batch(iterator)
        self.shapes.append(_shapes(batch))
        return batch

    def _longest_of(self, iterator: Any, next_batch: Callable[[Any], Any]) -> Any:
        """The batch with the most elements; kept with the loader, which may start many iterators."""
        kept = iterator._loader.__dict__.get("_longest_batch")
        if kept is not None:
            return kept
        longest, elements = None, -1
        ends = time.monotonic() + _LONGEST_SEARCH_S
        while time.monotonic() < ends:
            try:
                batch = next_batch(iterator)
            except StopIteration:
                break
            self.searched.append(_shapes(batch))
            count = max(map(prod, self.searched[-1].values()), default=0)
            if count > elements:
                longest, elements = batch, count
        if longest is None:
            raise StopIteration
        iterator._loader.__dict__["_longest_batch"] = longest
        return longest


def _shapes(batch: Any, name: str = "") -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a batch by their names, nested ones joined by a point."""
    if isinstance(batch, torch.Tensor):
        return {name or "batch": tuple(batch.shape)}
    if hasattr(batch, "items"):
        parts = list(batch.items())
    elif isinstance(batch, list | tuple):
        parts = list(enumerate(batch))
    else:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for key, value in parts[:64]:
        found |= _shapes(value, f"{name}.{key}" if name else str(key))
    return found
