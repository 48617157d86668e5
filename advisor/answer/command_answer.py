"""A dry run of the user's command, with what was observed of its training and the change that would help most."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ...ds_configs.presets import BUCKET
from ...ds_configs.read import offload_device_in, reduce_bucket_size_in
from ...estimators.json_form import to_json
from ...estimators.objectives import LIGER_LAYERS_ALONE
from ...probes.command.observed import CommandResult, Observed, ObservedArguments, ObservedEngine, ObservedTraining
from ...probes.failures.messages import Message, find_message
from ..text.units import gib
from .dry_run_answer import DryRunAnswer

_WORTH = 0.02
"""Share of the peak below which a change is not worth a line."""

_SHARDED_BY_STAGE = {1: ("optimizer states", "master weights"), 2: ("gradients",), 3: ("parameters",)}
"""ZeRO stage -> categories that it shards, in addition to those of lower stages."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the training, and the most that it takes off the peak."""

    what: str
    saved_bytes: int
    is_free: bool = False
    """Whether it costs no speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFigures:
    """What the answer for a command adds to a dry run."""

    command: tuple[str, ...]
    observed: Observed
    best_change: Change | None
    """The change that takes most off the peak; null if none takes anything."""


@dataclass(frozen=True, kw_only=True)
class CommandAnswer(DryRunAnswer):
    """A dry run of a command. `run` has DeepSpeed's configuration as the engine filled it, and no model."""

    observed: Observed
    words: tuple[str, ...]
    training: ObservedTraining
    arguments: ObservedArguments

    @property
    def found(self) -> CommandResult:
        """The result of the dry run."""
        return CommandResult(
            result=self.result, observed=self.observed, training=self.training, arguments=self.arguments
        )

    @property
    def engine(self) -> ObservedEngine:
        """The engine that is trained."""
        return self.observed.engines[0]

    @property
    def unit(self) -> str:
        """What a step's rate counts: "tokens", or "samples" for a model without tokens."""
        return "tokens" if self.training.seq_len else "samples"

    @property
    def late_failure(self) -> Message | None:
        """A known failure after the observed steps that has one cause, not the simulation: a training fails there
        too."""
        found = find_message(self.observed.late_error)
        return found if found is not None and found.certain else None

    @property
    def best_change(self) -> Change | None:
        """The change that takes most off the peak; None if none takes `_WORTH` of it, or a size that is shown as 0."""
        return self._best(self._changes())

    @property
    def free_change(self) -> Change | None:
        """The same of the changes that cost no speed."""
        return self._best(change for change in self._changes() if change.is_free)

    def _best(self, changes: Iterable[Change]) -> Change | None:
        found = max(changes, key=lambda change: change.saved_bytes, default=None)
        worth = _WORTH * self.result.peak.allocated_bytes_per_gpu
        is_small = found is None or found.saved_bytes < worth or gib(found.saved_bytes) == gib(0)
        return None if is_small else found

    @property
    def _liger_has_its_loss(self) -> bool:
        """Whether `use_liger_kernel` replaces the loss, which TRL keeps since `LIGER_LAYERS_ALONE`."""
        version = re.match(r"(\d+)\.(\d+)", self.training.versions.get("trl", ""))
        known = LIGER_LAYERS_ALONE if version is None else (int(version[1]), int(version[2]))
        return self.training.framework != "trl" or known < LIGER_LAYERS_ALONE

    def _changes(self) -> Iterator[Change]:
        """Upper bounds from the parts of the peak."""
        parts, engine, observed = self.result.peak.by_category, self.engine, self.observed
        activations, logits = parts.get("activations", 0), parts.get("logits", 0)
        if logits and self._liger_has_its_loss:
            yield Change("a loss that keeps no logits (use_liger_kernel)", logits)
        if activations and engine.checkpointing and not observed.in_training_mode:
            yield Change("calling model.train(), so that gradient checkpointing runs", activations)
        elif activations and not observed.recomputes:
            yield Change("gradient checkpointing", activations)
        if engine.micro_batch_size > 1 and (activations or logits):
            share = (activations + logits) * (engine.micro_batch_size - 1) // engine.micro_batch_size
            steps = engine.gradient_accumulation_steps * engine.micro_batch_size
            yield Change(f"micro batch 1 with {steps} accumulation steps", share)
        buckets, size = parts.get("buckets", 0), reduce_bucket_size_in(engine.config)
        usual = min(BUCKET, engine.trainable_parameters)
        if engine.zero_stage and buckets and size > usual:
            yield Change(f"reduce_bucket_size {usual}", buckets * (size - usual) // size, is_free=True)
        for stage, categories in _SHARDED_BY_STAGE.items():
            whole, ranks = sum(parts.get(name, 0) for name in categories), engine.data_parallel_size
            if stage > engine.zero_stage and ranks > 1 and whole:
                yield Change(f"ZeRO stage {stage}", whole * (ranks - 1) // ranks)
        if engine.zero_stage and offload_device_in(engine.config) == "none":
            states = sum(parts.get(name, 0) for name in _SHARDED_BY_STAGE[1])
            yield Change("offload of the optimizer to the host", states)

    def to_json(self) -> dict[str, Any]:
        """Return the dry run with the observed facts."""
        figures = CommandFigures(command=self.words, observed=self.observed, best_change=self.best_change)
        return {**super().to_json(), **to_json(figures)}
