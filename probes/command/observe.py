"""Collect what was observed, at the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..recording.engine_phases import EngineObserver
from ..simulated_gpu.loaders import Loaders
from ..simulated_gpu.values import ValueRecordingMode
from .observed import InventedNumber, Observed, ObservedEngine
from .rows import Rows

_ATTENTION = {"flash": "_scaled_dot_product_flash_attention", "efficient": "_scaled_dot_product_efficient_attention"}
"""Kernel -> its operation in a recorded schedule."""


def observed(
    observer: EngineObserver,
    loaders: Loaders,
    mode: ValueRecordingMode,
    rows: Rows,
    remarks: Sequence[str],
    late_error: str = "",
) -> Observed:
    """The facts that the parts of the worker hold."""
    recorder = observer.recorder
    schedule = recorder.schedule.recorded()
    names = {operation.name for operation in schedule.operations}
    attention = [kernel for kernel, name in _ATTENTION.items() if f"aten::{name}" in names]
    shapes = loaders.shapes[-1] if loaders.shapes else {}
    ended = "repeated" if observer.repeated else "steps" if observer.finished else "script"
    engines = tuple(_engine(observer, number, names) for number in range(len(observer.engines)))
    trained = engines[observer.trained_engine]
    if trained.recorded_micro_batches < trained.gradient_accumulation_steps:
        ran = f"{trained.recorded_micro_batches} of {trained.gradient_accumulation_steps} micro batches"
        remarks = [*remarks, f"The data end after {ran} of the only step."]
    return Observed(
        engines=(
            trained,
            *engines[: observer.trained_engine],
            *engines[observer.trained_engine + 1 :],
        ),
        ended=ended,
        steps=observer.steps,
        batch_shapes=shapes,
        batch_lengths=tuple(length for shapes in loaders.shapes if (length := batch_length(shapes))),
        searched_batches=len(loaders.searched),
        rows=rows.cut,
        rows_read=rows.most or 0,
        logits_bytes=_most_logits(recorder),
        recomputes="recomputed_operation" in schedule.calls,
        in_training_mode=observer.in_training_mode,
        attention=tuple(attention),
        evaluation_cut=loaders.cut_evaluation,
        invented=tuple(
            InventedNumber(file=file, line=line, number=float(number), decides=isinstance(number, bool))
            for (file, line), number in mode.invented.items()
        ),
        unknown_masks=mode.unknown_masks,
        remarks=tuple(remarks),
        late_error=late_error,
    )


def _engine(observer: EngineObserver, number: int, names: set[str]) -> ObservedEngine:
    """names: the operations of the recorded step."""
    engine, (module, (parameters, trainable)) = observer.engines[number], observer.models[number]
    stepping = _innermost(engine.optimizer)
    settings = stepping.param_groups[0] if isinstance(stepping, torch.optim.Optimizer) else {}
    is_foreach = any(name.startswith("aten::_foreach_") for name in names)
    micro, accumulation = int(engine.train_micro_batch_size_per_gpu()), int(engine.gradient_accumulation_steps())
    recorded = observer.accumulation.get(id(engine)) or accumulation
    # The engine's number is 1 if a Trainer accumulates without the key. A single step may have ended with the data.
    steps = max(recorded, accumulation) if observer.steps == 1 else recorded
    implementation = "fused" if settings.get("fused") else "foreach" if is_foreach and "foreach" in settings else ""
    # With sequence parallelism DeepSpeed knows no such size.
    replicas = engine.dp_world_size or engine.train_batch_size() // (micro * accumulation)
    config = {**observer.configs[number], "gradient_accumulation_steps": steps}
    if (shared_by := ranks_per_sample(engine)) > 1:
        config["sequence_parallel_size"] = shared_by
    return ObservedEngine(
        model=type(module).__name__,
        parameters=parameters,
        trainable_parameters=trainable,
        trainable_dtypes=observer.dtypes[number],
        optimizer=type(stepping).__name__ if settings else "",
        implementation=implementation,
        zero_stage=int(engine.zero_optimization_stage()),
        micro_batch_size=micro,
        gradient_accumulation_steps=steps,
        recorded_micro_batches=recorded,
        data_parallel_size=int(replicas),
        checkpointing=any(getattr(each, "gradient_checkpointing", False) is True for each in module.modules()),
        config=config,
    )


def ranks_per_sample(engine: Any) -> int:
    """The size of an engine's sequence-parallel groups, which accelerate passes beside the configuration."""
    return int(getattr(engine, "sequence_parallel_size", 1))


def _innermost(optimizer: Any) -> Any:
    """The optimizer that updates the weights, inside of DeepSpeed's wrappers."""
    while getattr(optimizer, "optimizer", None) is not None:
        optimizer = optimizer.optimizer
    return optimizer


def batch_length(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Tokens of the longest sample of a batch; 0 without a tensor of two dimensions."""
    widest = [shape for shape in shapes.values() if len(shape) == 2]
    return max((shape[1] for shape in widest), default=0)


def _most_logits(recorder: Any) -> int:
    """The most bytes of logits that were alive at one time."""
    changes = Counter[int]()
    for life in recorder.ledger.storages:
        if life.category == "logits" and life.device == "gpu":
            changes[life.born] += life.size_bytes
            if life.died >= 0:
                changes[life.died] -= life.size_bytes
    most = live = 0
    for event in sorted(changes):
        live += changes[event]
        most = max(most, live)
    return most
