"""The worker of a probe: one rank trains a few optimizer steps, timed by phase. FOLDER holds `JOB_FILE`."""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...ds_configs.read import offload_device_in, optimizer_step_in
from ...estimators.optimizers import deepspeed_optimizer
from ...estimators.workload import Workload
from ..dry_run import models, user_module
from ..dry_run.models import UnusableModelError
from ..dry_run.training import announce_zero3, filled_config, holds_output, initialize, model_dtype
from ..simulated_gpu import collectives as fake_group
from ..store import LIBRARIES
from . import extension_lock, measure
from .events import EventLog
from .measure import CollectiveTime
from .result import RankReport, StepTime
from .run import JOB_FILE, ProbeJob

_BLOCK = 1_000_003
"""Number of random values, which all weights repeat: torch draws on one core in 30 ns each, minutes for a model with
billions of parameters. No width divides the number, so the rows of a matrix differ."""


class Clock:
    """Marks moments on the device: the host's clock for the CPU, events in the stream for CUDA.

    Events do not make the host wait between the phases of a step, which would slow down launch-bound training.
    """

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()  # CPU operations are synchronous
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def seconds(self, earlier: Any, later: Any) -> float:
        """Seconds between two marks. To be called after `synchronize`."""
        return float(earlier.elapsed_time(later)) / 1000.0 if self._cuda else later - earlier


def work(folder: Path, rank: int, log: EventLog) -> dict[str, Any]:
    """Train, and return this rank's report."""
    job: ProbeJob = pickle.loads((folder / JOB_FILE).read_bytes())
    run = job.request.run
    gpu = (0 if job.solo else rank) if job.device == "cuda" else None
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(0 if job.solo else rank),
        WORLD_SIZE=str(run.cluster.world_size),
        LOCAL_WORLD_SIZE=str(run.cluster.gpus_per_node),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
        # DeepSpeed's shared-memory collectives for CPUs start when LOCAL_SIZE equals WORLD_SIZE, and wait for peers by
        # name.
        LOCAL_SIZE=str(run.cluster.world_size + 1),
    )
    extension_lock.install()
    collectives = None
    if gpu is not None:
        torch.cuda.set_device(gpu)
    elif not job.solo:
        collectives = CollectiveTime()
        collectives.install(dist)
    log.enter("join")
    _join(job, rank, folder)
    log.enter("load")
    description, config = prepare(job)
    baseline_bytes = measure.memory_bytes("VmRSS")
    if job.memory_limit_bytes is not None:
        # RLIMIT_DATA, not RLIMIT_AS: libraries map far more addresses than they use.
        limit = measure.memory_bytes("VmData") + job.memory_limit_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if job.solo:
        torch.set_flush_denormal(True)  # undefined values include many denormals, a hundred times slower on a CPU
    device = "cpu" if gpu is None else f"cuda:{gpu}"
    engine, measured = train(job, description, config, device, log, Clock(cuda=gpu is not None), collectives)
    log.enter("report")
    report = RankReport(
        rank=rank,
        host_baseline_bytes=baseline_bytes,
        nvme_bytes=measure.folder_bytes(job.nvme_folder),
        **measure.gpu_memory(gpu),
        **measured,
    )
    if not job.solo:
        dist.barrier()  # no rank exits while another still needs it
    samples = engine.train_micro_batch_size_per_gpu() * engine.gradient_accumulation_steps() * run.cluster.world_size
    return {
        "report": asdict(report),
        "config": config,
        "tokens_per_step": samples // run.ranks_per_sample * run.workload.seq_len,
        "versions": {name: version(name) for name in LIBRARIES},
    }


def _join(job: ProbeJob, rank: int, folder: Path) -> None:
    """Join the process group of the ranks; a solo rank joins torch's fake process group."""
    if job.solo:
        fake_group.join(rank, job.request.run.cluster.world_size, job.request.run.cluster.gpus_per_node)
    else:
        # A file instead of a port: no other process can take it, and no other job can join.
        dist.init_process_group(
            "nccl" if job.device == "cuda" else "gloo",
            init_method=f"file://{folder / 'rendezvous'}",
            rank=rank,
            world_size=job.request.run.cluster.world_size,
        )
    import deepspeed

    deepspeed.init_distributed()
    if job.solo:
        fake_group.silence_comparisons()


def prepare(job: ProbeJob) -> tuple[Any, dict[str, Any]]:
    """(transformers' configuration of the model, None for the user's own module; DeepSpeed's with `auto` filled).

    Loads the training's code, the model's class and DeepSpeed's extensions before memory is measured and limited: they
    are not part of a plan's memory, and compilers may need more memory than a rank may use.
    """
    run = job.request.run
    description = models.transformers_config(run.description) if run.description is not None else None
    if description is not None:
        models.model_class(description)
    config = filled_config(run, description)
    zero = config.get("zero_optimization")
    if isinstance(zero, dict) and zero.get("stage"):
        importlib.import_module("torch._dynamo")  # decorators of the ZeRO stages load it at their first call
    accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
    for builder in _extensions(config, job.nvme_folder):
        accelerator.create_op_builder(builder).load()
    return description, config


def _extensions(config: dict[str, Any], nvme_folder: str) -> list[str]:
    """Builders of the extensions for Adam and for NVMe; DeepSpeed itself rejects a malformed configuration."""
    optimizer = config.get("optimizer")
    builders = ["AsyncIOBuilder"] if nvme_folder else []
    spec = deepspeed_optimizer(str(optimizer.get("type"))) if isinstance(optimizer, dict) else None
    is_deepspeeds = optimizer_step_in(config, Workload()) == "auto"  # not torch's, which `torch_adam` selects
    if spec is not None and spec.is_adam and is_deepspeeds:
        builders.append("FusedAdamBuilder" if offload_device_in(config) == "none" else "CPUAdamBuilder")
    return builders


def train(
    job: ProbeJob,
    description: Any,
    config: dict[str, Any],
    device: str,
    log: EventLog,
    clock: Clock,
    collectives: CollectiveTime | None,
) -> tuple[Any, dict[str, Any]]:
    """Load, initialize and train `job.request.iterations` optimizer steps. Returns the engine and the training's fields
    of `RankReport`."""
    run = job.request.run
    # transformers holds a weak reference to it (integrations/deepspeed.py).
    keep_alive = announce_zero3(run, config)
    dtype = model_dtype(config)
    subject = _subject(job, description, dtype, device)
    subject = models.for_long_sequences(subject, run, config, device)
    log.enter("initialize")
    engine = initialize(config, subject.model, subject.groups, run.workload)
    if job.solo:
        _never_skip_a_step(engine.optimizer)
    loading_peak_bytes = measure.memory_bytes("VmHWM")
    # Loading has a peak of its own; the second one is that of training.
    measure.release_freed()
    measure.restart_peak()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    read_before, written_before = measure.storage_bytes()
    kept_output: list[Any] | None = [] if holds_output(run) else None
    steps: list[StepTime] = []
    losses: list[float] = []
    for step in range(1, job.request.iterations + 1):
        log.enter(f"step {step}")
        timed, loss = _step(engine, subject, clock, collectives, kept_output)
        losses.append(loss)
        # The first step allocates the optimizer's states, and its time is no steady state.
        if step > 1:
            steps.append(timed)
    read, written = measure.storage_bytes()
    del keep_alive
    return engine, {
        "host_loading_peak_bytes": loading_peak_bytes,
        "host_peak_bytes": measure.memory_bytes("VmHWM"),
        "nvme_read_bytes": read - read_before,
        "nvme_written_bytes": written - written_before,
        "steps": tuple(steps),
        "losses": tuple(losses),
    }


def _subject(job: ProbeJob, description: Any, dtype: torch.dtype, device: str) -> models.TrainableModel:
    run = job.request.run
    if description is None:
        return user_module.from_file(run, dtype, device)
    has_weights = job.checkpoint is not None
    return models.from_config(
        run,
        description,
        dtype,
        device,
        checkpoint=job.checkpoint,
        prepare_base=lambda model: prepare_base(model, run.workload, dtype, device, has_weights=has_weights),
    )


def _step(
    engine: Any,
    subject: models.TrainableModel,
    clock: Clock,
    collectives: CollectiveTime | None,
    kept_output: list[Any] | None,
) -> tuple[StepTime, float]:
    """Run one optimizer step. Returns its times, summed over the micro batches, and its loss. kept_output: as in the
    dry run's loop."""
    passes_waiting_s = 0.0
    optimizer_waiting_s = 0.0
    marks: list[tuple[Any, Any, Any, Any]] = []
    loss = None
    clock.synchronize()
    begin = clock.mark()
    for _ in range(engine.gradient_accumulation_steps()):
        batch = _fill_tokens(subject.make_batch(engine.train_micro_batch_size_per_gpu()), subject.vocab_size)
        before = collectives.seconds if collectives else 0.0
        started = clock.mark()
        loss = subject.compute_loss(engine, batch, kept_output)
        forwarded = clock.mark()
        engine.backward(loss)
        loss = loss.detach()
        del batch
        backwarded = clock.mark()
        between = collectives.seconds if collectives else 0.0
        engine.step()
        marks.append((started, forwarded, backwarded, clock.mark()))
        if collectives:
            passes_waiting_s += between - before
            optimizer_waiting_s += collectives.seconds - between
    end = clock.mark()
    clock.synchronize()
    parts = [sum(clock.seconds(mark[index], mark[index + 1]) for mark in marks) for index in range(3)]
    assert loss is not None, "there is at least one micro batch"
    return StepTime(
        total_s=clock.seconds(begin, end),
        forward_s=parts[0],
        backward_s=parts[1],
        optimizer_s=parts[2],
        waiting_s=passes_waiting_s + optimizer_waiting_s if collectives else None,
        optimizer_waiting_s=optimizer_waiting_s if collectives else None,
    ), float(loss)


def _fill_tokens(batch: Any, vocab_size: int) -> Any:
    """The batch with random tokens, so that routers and embeddings work as in training."""
    if vocab_size and isinstance(batch, dict) and "input_ids" in batch:
        batch["input_ids"] = torch.randint_like(batch["input_ids"], vocab_size)
    return batch


def _never_skip_a_step(optimizer: Any) -> None:
    """Prevent skipped steps: a solo rank computes with undefined values, and a NaN must not skip the step that creates
    the optimizer's states."""
    checks = """has_overflow has_overflow_serial has_overflow_partitioned_grads_serial check_overflow _has_inf_or_nan
        _check_overflow"""
    for name in checks.split():
        if hasattr(optimizer, name):
            setattr(optimizer, name, lambda *_, **__: False)
    importlib.import_module("deepspeed.runtime.utils").CheckOverflow.check = lambda *_, **__: False


def prepare_base(
    model: torch.nn.Module, workload: Workload, dtype: torch.dtype, device: str, *, has_weights: bool
) -> None:
    """Change the model in place.

    has_weights: whether the weights were loaded; otherwise they are uninitialized and may be NaN.

    Raises UnusableModelError if bitsandbytes is missing or Liger unsuitable.
    """
    if not has_weights:
        _fill(model)
    if workload.method == "qlora" and workload.quantization != "nf4":
        raise UnusableModelError("a probe supports quantization to NF4 only", fix="leave --quantization out")
    if workload.method == "qlora":
        _quantize(model, dtype, device)
    if (workload.loss == "fused" or workload.kernels == "liger") and not torch.cuda.is_available():
        raise UnusableModelError("Liger's kernels are for GPUs", fix="leave --loss and --kernels out")


def _fill(model: torch.nn.Module) -> None:
    """Fill every weight, or this rank's shard of it, with random values."""
    block = torch.randn(_BLOCK).mul_(0.02)
    with torch.no_grad():
        for parameter in model.parameters():
            values = getattr(parameter, "ds_tensor", parameter)
            # Norms may be in another dtype than the matrices; the cast is repeated only when it changes.
            block = block.to(values.dtype)
            if not values.is_cpu or not values.is_contiguous():
                values.normal_(0, 0.02)
                continue
            flat = values.view(-1)
            rows, rest = divmod(flat.numel(), _BLOCK)
            flat[: rows * _BLOCK].view(rows, _BLOCK).copy_(block)
            flat[rows * _BLOCK :].copy_(block[:rest])


def _quantize(model: Any, dtype: torch.dtype, device: str) -> None:
    """Quantize every linear layer except the head to NF4 with quantized constants, like `BitsAndBytesConfig` for QLoRA.
    bitsandbytes quantizes a layer when it moves to the device; other modules stay on the host."""
    parts = models.imported("bitsandbytes", "QLoRA", "bitsandbytes").nn
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is not torch.nn.Linear or layer is head:
                continue
            options: dict[str, Any] = {"compress_statistics": True, "quant_type": "nf4"}
            # Size 1: its weight is replaced, and one of full size would be allocated first.
            smaller = parts.Linear4bit(1, 1, bias=False, compute_dtype=dtype, **options)
            smaller.in_features, smaller.out_features = layer.in_features, layer.out_features
            smaller.weight = parts.Params4bit(layer.weight.data, requires_grad=False, **options)
            smaller.bias = layer.bias
            setattr(parent, name, smaller.to(device))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    setattr(model, "is_loaded_in_4bit", True)  # noqa: B010  what peft looks for
