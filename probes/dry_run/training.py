"""Load, initialize and train for a few iterations, with a ledger that watches; on the simulated GPU or on a real
device."""

from __future__ import annotations

import gc
import importlib
from typing import Any

import torch

from ...ds_configs.read import autotp_size_in
from ..recording.phases import PhaseRecorder
from ..recording.request import Request
from . import auto_values, long_sequences, models

_REPEATABLE = 3
"""The first iteration that can repeat the one before: in the first the optimizer makes its states, and ZeRO-3 records
the order of the layers, by which it prefetches later."""


def run(
    request: Request, recorder: PhaseRecorder, device: str, *, until_repeated: bool = False
) -> tuple[dict[str, Any], int, int]:
    """Train; answers the configuration that DeepSpeed got, the number of parameters and of trainable ones.

    until_repeated: stop after an iteration that repeats the one before it.
    """
    description = models.transformers_config(request) if request.model is not None else None
    config = auto_values.filled(request, models.hidden_size(description) if description is not None else None)
    dtype = model_dtype(config)
    keep_alive = announce_zero3(request, config)
    with recorder.phase(0, "load"):
        if description is not None:
            subject = models.from_config(request, description, dtype, device)
        else:
            subject = models.from_file(request, dtype, device)
        subject = long_sequences.prepared(subject, request, config, device)
        gc.collect()  # weights that tying replaced are in cycles; when Python finds them is chance
    model, classifier = subject.model, recorder.classifier
    classifier.vocab_size = subject.vocab_size
    classifier.weight_shapes = frozenset(
        tuple(getattr(parameter, "ds_shape", parameter.shape)) for parameter in model.parameters()
    )
    parameters, trainable = _count(model)
    with recorder.phase(0, "initialize"):
        engine = initialize(config, model, subject.groups)
        classifier.watch_modules(engine.module)
        recorder.sweep(engine.module, engine.optimizer)
    recorder.name_gradients(engine.module)
    micro, steps = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    config |= {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps}
    classifier.tokens = micro * request.workload.seq_len // request.sequence_parallel_size
    held: list[Any] | None = [] if holds_output(request) else None
    recorder.schedule.first_iteration = min(_REPEATABLE, request.iterations) if until_repeated else request.iterations
    for iteration in range(1, request.iterations + 1):
        first = len(recorder.phases)
        for _ in range(steps):
            _micro_batch(engine, subject, recorder, iteration, micro, held)
        recorder.join_micro_batches(first)
        if recorder.repeats() and until_repeated and iteration >= _REPEATABLE:
            break
    del keep_alive
    return config, parameters, trainable


def holds_output(request: Request) -> bool:
    """Whether the loop names the model's output, as `output = engine(x); loss = criterion(output, y)` does: one of the
    user's own, with plain DeepSpeed or a module of theirs. The Trainer drops the output."""
    return request.model is None or request.workload.framework == "deepspeed"


def _micro_batch(
    engine: Any,
    subject: models.TrainableModel,
    recorder: PhaseRecorder,
    iteration: int,
    size: int,
    held: list[Any] | None,
) -> None:
    """`held`: the output that the loop's name still binds, None where the loop drops it."""
    with recorder.phase(iteration, "forward"):
        batch = subject.make_batch(size)
        output = engine(**batch) if isinstance(batch, dict) else engine(*batch)
        if held is not None:
            held[:] = [output]  # the name is bound again, and lets go of the output of the micro batch before
        loss = subject.loss(output, batch)
        del output
    with recorder.phase(iteration, "backward"):
        engine.backward(loss)
        del loss, batch
        recorder.sweep(engine.module, engine.optimizer)
    with recorder.phase(iteration, "step"):
        engine.step()
        recorder.sweep(engine.module, engine.optimizer)


def model_dtype(config: dict[str, Any]) -> torch.dtype:
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if (config.get(name) or {}).get("enabled"):
            return dtype
    return torch.float32


def announce_zero3(request: Request, config: dict[str, Any]) -> Any:
    """Tell transformers about ZeRO-3, as creating TrainingArguments does, so that the model is partitioned while it is
    built (`zero.Init`); the returned object must outlive the run."""
    if request.workload.framework != "hf" or request.model is None:
        return None
    integrations: Any = importlib.import_module("transformers.integrations")
    return integrations.HfDeepSpeedConfig(config)


def _count(model: torch.nn.Module) -> tuple[int, int]:
    """(parameters, trainable parameters), tied ones once, partitioned ones in full."""
    sizes = [
        (getattr(parameter, "ds_numel", parameter.numel()), parameter.requires_grad) for parameter in model.parameters()
    ]
    return sum(size for size, _ in sizes), sum(size for size, trainable in sizes if trainable)


def initialize(config: dict[str, Any], model: torch.nn.Module, groups: Any) -> Any:
    """DeepSpeed's engine around the model; `groups` is its `mpu`, None where ranks share no sample.

    Where ranks split layers (AutoTP), their groups are formed before, by DeepSpeed's own function for where torch
    cannot split groups: a `DeviceMesh` computes them with tensors, whose values a dry run does not know. Left out is
    the comparison of those ranks' first batches: it needs values too, and the batches of a probe are random.
    """
    import deepspeed

    split_by = autotp_size_in(config)
    if split_by > 1:
        from deepspeed.utils import groups as process_groups

        process_groups._init_tp_groups_with_new_group(split_by)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = _client_optimizer(config, trained)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trained, optimizer=optimizer, config=config, mpu=groups
    )
    check = getattr(engine, "first_dataloader_check", None)
    if check is not None:
        check.remove()
    return engine


def _client_optimizer(config: dict[str, Any], parameters: list[torch.nn.Parameter]) -> Any:
    """The optimizer that the Trainer brings when the configuration names none; None when it names one.

    torch's fused AdamW is the Trainer's default; with the optimizer offloaded, accelerate exchanges it for DeepSpeed's
    CPU Adam (accelerate `utils/deepspeed.py`, map_pytorch_optim_to_deepspeed).
    """
    if config.get("optimizer"):
        return None
    offload = ((config.get("zero_optimization") or {}).get("offload_optimizer") or {}).get("device", "none")
    if offload != "none":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(parameters, lr=1e-5)
    config["zero_allow_untested_optimizer"] = True
    return torch.optim.AdamW(parameters, lr=1e-5, fused=True)
