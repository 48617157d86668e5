"""A few optimizer steps of one rank, timed by phase."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch

from ...estimators.optimizers import optimizer_of_type
from ..dry_run import auto_values, long_sequences, models
from ..dry_run.training import announce_zero3, holds_output, initialize, model_dtype
from ..rank_processes.event_log import EventLog
from ..recording.request import Request
from . import base_model, memory
from .clocks import Clock
from .communication import CollectiveTime
from .job import ProbeJob
from .result import StepTime


@dataclass(slots=True, kw_only=True)
class TrainingMeasurements:
    """What a rank's training leaves behind."""

    config: dict[str, Any]
    loading_peak_bytes: int = 0
    peak_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    micro_batch_size: int = 0
    gradient_accumulation_steps: int = 0
    steps: list[StepTime] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Prepared:
    """What is known before there is a model: transformers' configuration of it (None: the user's own module), and
    DeepSpeed's with `auto` filled."""

    description: Any
    config: dict[str, Any]


def prepare(job: ProbeJob, request: Request) -> Prepared:
    """Load the code that training needs, the model's class and DeepSpeed's extensions: it is no part of a plan's
    memory, and compilers take more than a rank may be allowed."""
    description = models.transformers_config(request) if request.model is not None else None
    if description is not None:
        models.model_class(description)
    config = auto_values.filled(request, models.hidden_size(description) if description is not None else None)
    zero = config.get("zero_optimization")
    if isinstance(zero, dict) and zero.get("stage"):
        importlib.import_module("torch._dynamo")  # the stages' decorators load it with their first call
    accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
    for builder in _extensions(config, job.nvme_folder):
        accelerator.create_op_builder(builder).load()
    return Prepared(description=description, config=config)


def _extensions(config: dict[str, Any], nvme_folder: str) -> list[str]:
    """What DeepSpeed compiles for Adam and for NVMe; a malformed configuration is DeepSpeed's to judge."""
    optimizer, zero = config.get("optimizer"), config.get("zero_optimization")
    builders = ["AsyncIOBuilder"] if nvme_folder else []
    spec = optimizer_of_type(str(optimizer.get("type"))) if isinstance(optimizer, dict) else None
    if spec is not None and spec.is_adam:
        offload = zero.get("offload_optimizer") if isinstance(zero, dict) else None
        offloaded = isinstance(offload, dict) and offload.get("device", "none") != "none"
        builders.append("CPUAdamBuilder" if offloaded else "FusedAdamBuilder")
    return builders


def run(
    job: ProbeJob,
    request: Request,
    prepared: Prepared,
    device: str,
    log: EventLog,
    clock: Clock,
    collectives: CollectiveTime | None,
) -> TrainingMeasurements:
    """Load, initialize and train `request.iterations` optimizer steps."""
    description, config = prepared.description, prepared.config
    keep_alive = announce_zero3(request, config)
    dtype = model_dtype(config)
    subject = long_sequences.prepared(_subject(job, request, description, dtype, device), request, config, device)
    log.enter("initialize")
    engine = initialize(config, subject.model, subject.groups)
    if job.solo:
        _never_skip_a_step(engine.optimizer)
    result = TrainingMeasurements(
        config=config,
        loading_peak_bytes=memory.peak_resident_bytes(),
        micro_batch_size=engine.train_micro_batch_size_per_gpu(),
        gradient_accumulation_steps=engine.gradient_accumulation_steps(),
    )
    memory.restart_peak()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    storage_before = memory.storage_bytes()
    held: list[Any] | None = [] if holds_output(request) else None
    for step in range(1, request.iterations + 1):
        log.enter(f"step {step}")
        timed, loss = _step(engine, subject, result, clock, collectives, held)
        result.losses.append(loss)
        if step > 1:
            result.steps.append(timed)
    storage = memory.storage_bytes()
    result.peak_bytes = memory.peak_resident_bytes()
    result.read_bytes, result.written_bytes = storage[0] - storage_before[0], storage[1] - storage_before[1]
    del keep_alive
    return result


def _subject(
    job: ProbeJob, request: Request, description: Any, dtype: torch.dtype, device: str
) -> models.TrainableModel:
    if description is None:
        return models.from_file(request, dtype, device)
    return models.from_config(
        request,
        description,
        dtype,
        device,
        checkpoint=job.checkpoint,
        prepare_base=lambda model: base_model.prepare(
            model, request.workload, dtype, device, has_weights=job.checkpoint is not None
        ),
    )


def _step(
    engine: Any,
    subject: models.TrainableModel,
    run: TrainingMeasurements,
    clock: Clock,
    collectives: CollectiveTime | None,
    held: list[Any] | None,
) -> tuple[StepTime, float]:
    """One optimizer step; the three parts add up the micro batches. `held` is as in the dry run's loop."""
    blocked = [0.0, 0.0]  # in forward and backward passes, in the optimizer
    marks: list[tuple[Any, Any, Any, Any]] = []
    loss = None
    clock.settle()
    begin = clock.mark()
    for _ in range(run.gradient_accumulation_steps):
        batch = _with_tokens(subject.make_batch(run.micro_batch_size), subject.vocab_size)
        before = collectives.seconds if collectives else 0.0
        started = clock.mark()
        output = engine(**batch) if isinstance(batch, dict) else engine(*batch)
        if held is not None:
            held[:] = [output]
        loss = subject.loss(output, batch)
        del output
        forwarded = clock.mark()
        engine.backward(loss)
        loss = loss.detach()
        del batch
        backwarded = clock.mark()
        between = collectives.seconds if collectives else 0.0
        engine.step()
        marks.append((started, forwarded, backwarded, clock.mark()))
        if collectives:
            blocked = [blocked[0] + between - before, blocked[1] + collectives.seconds - between]
    end = clock.mark()
    clock.settle()
    parts = [sum(clock.seconds(mark[index], mark[index + 1]) for mark in marks) for index in range(3)]
    assert loss is not None, "there is at least one micro batch"
    return StepTime(
        total_s=clock.seconds(begin, end),
        forward_s=parts[0],
        backward_s=parts[1],
        optimizer_s=parts[2],
        waiting_s=sum(blocked) if collectives else None,
        optimizer_waiting_s=blocked[1] if collectives else None,
    ), float(loss)


def _with_tokens(batch: Any, vocab_size: int) -> Any:
    """The batch with random tokens; routers and embeddings then work as they do in training."""
    if vocab_size and isinstance(batch, dict):
        for name, value in batch.items():
            if isinstance(value, torch.Tensor) and not value.is_floating_point() and name == "input_ids":
                batch[name] = torch.randint_like(value, vocab_size)
    return batch


def _never_skip_a_step(optimizer: Any) -> None:
    """Alone, a rank computes with junk; a NaN must not make the engine skip the step that creates the optimizer's
    states."""
    for name in (
        "has_overflow",
        "has_overflow_serial",
        "has_overflow_partitioned_grads_serial",
        "check_overflow",
        "_has_inf_or_nan",
        "_check_overflow",
    ):
        if hasattr(optimizer, name):
            setattr(optimizer, name, lambda *_, **__: False)
    importlib.import_module("deepspeed.runtime.utils").CheckOverflow.check = lambda *_, **__: False
