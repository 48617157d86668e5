"""Load, initialize and train for a few iterations under a recorder, on the simulated GPU or a real device."""

from __future__ import annotations

import copy
import gc
import importlib
from typing import Any

import torch

from ...ds_configs.read import autotp_size_in, optimizer_step_in
from ...estimators.plan import PLAN_FIELDS
from ...estimators.workload import Workload
from ..recording.engine_phases import count_parameters
from ..recording.phases import PhaseRecorder
from ..run import Request, Run
from . import models, user_module
from .models import TrainableModel
from .trl_step import apply_objective

_REPEATABLE = 3
"""The first iteration that can repeat its predecessor: in the first one the optimizer creates its states, and ZeRO-3
records the order of the layers for later prefetching."""


class UnfilledAutoError(ValueError):
    fix = "write a number there: the Trainer replaces `auto` only for some keys, and only for models with a hidden size"

    def __init__(self, name: str) -> None:
        super().__init__(f'nothing replaces "auto" at {name}')


def filled_config(run: Run, description: Any) -> dict[str, Any]:
    """The configuration with the batch sizes, and with `auto` replaced like in the Hugging Face Trainer.

    Source: transformers `integrations/deepspeed.py`, `HfTrainerDeepSpeedConfig.trainer_config_process` and
    `trainer_config_finalize`. Of these values, only those that follow from the hidden size change memory
    (`ConfigKey.filled_from_hidden_size`).

    Raises UnfilledAutoError under the Trainer for an `auto` without a value. For plain DeepSpeed such an `auto` stays.
    """
    # DeepSpeed and `_fill` change the configuration in place.
    config = copy.deepcopy(dict(run.config))
    _set_batch(config, run)
    values: dict[str, Any] = {
        "gradient_clipping": 1.0,
        "bf16.enabled": run.workload.precision == "bf16",
        "fp16.enabled": run.workload.precision == "fp16",
        "optimizer.params.lr": 1e-5,
        "optimizer.params.betas": [0.9, 0.999],
        "optimizer.params.eps": 1e-8,
        "optimizer.params.weight_decay": 0.0,
        "scheduler.params.warmup_min_lr": 0.0,
        "scheduler.params.warmup_max_lr": 1e-5,
        "scheduler.params.warmup_num_steps": 1,
        "scheduler.params.total_num_steps": 1000,
    }
    if (hidden_size := models.hidden_size(description)) is not None:
        values |= {
            known.path: known.filled_from_hidden_size(hidden_size)
            for known in PLAN_FIELDS.values()
            if known.filled_from_hidden_size is not None
        }
    strict = run.workload.uses_trainer
    if strict:  # as accelerate does (DeepSpeedPlugin.__post_init__)
        values |= {"steps_per_print": 10, "zero_optimization.stage3_gather_16bit_weights_on_model_save": False}
    _fill(config, "", values, strict=strict)
    enabled = any((config.get(key) or {}).get("enabled") for key in ("bf16", "fp16"))
    if not enabled and run.workload.precision != "fp32" and run.workload.precision not in config:
        # as accelerate does (DeepSpeedPlugin.set_mixed_precision)
        config[run.workload.precision] = {"enabled": True}
    return config


def _set_batch(config: dict[str, Any], run: Run) -> None:
    """Replace `auto` and absent batch sizes by the requested ones; DeepSpeed derives the rest."""
    total = config.get("train_batch_size")
    for key, requested in (
        ("train_micro_batch_size_per_gpu", run.micro_batch_size),
        ("gradient_accumulation_steps", run.gradient_accumulation_steps),
    ):
        if config.get(key, "auto") == "auto":
            config.pop(key, None)
            if requested is not None or not isinstance(total, int):
                config[key] = requested or 1
    if total == "auto":
        del config["train_batch_size"]


def _fill(node: dict[str, Any], prefix: str, values: dict[str, Any], *, strict: bool) -> None:
    """Fill the `auto` values. strict: an `auto` without a value is an error, as in accelerate; DeepSpeed may accept
    it."""
    for key, value in node.items():
        name = prefix + key
        if isinstance(value, dict):
            _fill(value, name + ".", values, strict=strict)
        elif value == "auto":
            if name in values:
                node[key] = values[name]
            elif strict:
                raise UnfilledAutoError(name)


def run(
    request: Request, recorder: PhaseRecorder, device: str, *, until_repeated: bool = False
) -> tuple[dict[str, Any], int, int]:
    """Train. Returns DeepSpeed's configuration, the number of parameters and the number of trainable parameters.

    until_repeated: stop after an iteration that repeats its predecessor.
    """
    trained = request.run
    description = None if trained.description is None else models.transformers_config(trained.description)
    config = filled_config(trained, description)
    dtype = model_dtype(config)
    keep_alive = announce_zero3(trained, config)
    with recorder.phase(0, "load"):
        if description is not None:
            subject = models.from_config(trained, description, dtype, device)
        else:
            subject = user_module.from_file(trained, dtype, device)
        subject = models.for_long_sequences(subject, trained, config, device)
        subject = apply_objective(
            subject,
            trained,
            config,
            device,
            lambda run: models.from_config(run, models.transformers_config(run.description or {}), dtype, device),
        )
        gc.collect()  # weights that tying replaced are in reference cycles
    model = subject.model
    classifier = recorder.classifier
    classifier.vocab_size = subject.vocab_size
    classifier.weight_shapes = frozenset(
        tuple(getattr(parameter, "ds_shape", parameter.shape)) for parameter in model.parameters()
    )
    # Before the engine: it flattens and partitions the weights.
    parameters, trainable = count_parameters(model)
    with recorder.phase(0, "initialize"):
        engine = initialize(config, model, subject.groups, trained.workload)
        classifier.watch_modules(engine.module)
        recorder.sweep(engine.module, engine.optimizer)
    recorder.name_gradients(engine.module)
    micro = engine.train_micro_batch_size_per_gpu()
    steps = engine.gradient_accumulation_steps()
    config |= {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps}
    classifier.tokens = micro * trained.workload.seq_len // trained.sequence_parallel_size
    kept_output: list[Any] | None = [] if holds_output(trained) else None
    recorder.schedule.first_iteration = min(_REPEATABLE, request.iterations) if until_repeated else request.iterations
    for iteration in range(1, request.iterations + 1):
        first = len(recorder.phases)
        if subject.before_training is not None:
            subject.before_training(engine, recorder, iteration=iteration, micro=micro, steps=steps)
        for _ in range(steps):
            _micro_batch(engine, subject, recorder, iteration, micro, kept_output)
        recorder.join_micro_batches(first)
        if recorder.repeats() and until_repeated and iteration >= _REPEATABLE:
            break
    if trained.workload.eval_batch is not None:
        recorder.schedule.first_iteration = iteration + 1  # the time is that of the step
        with recorder.phase(iteration, "evaluation"):
            evaluate(engine, subject, trained)
    del keep_alive
    return config, parameters, trainable


def holds_output(run: Run) -> bool:
    """Whether the loop keeps the model's output in a variable (`output = engine(x); loss = criterion(output, y)`), like
    loops with plain DeepSpeed or a user's module. The Trainer drops the output."""
    return run.description is None or not run.workload.uses_trainer


def _micro_batch(
    engine: Any,
    subject: models.TrainableModel,
    recorder: PhaseRecorder,
    iteration: int,
    size: int,
    kept_output: list[Any] | None,
) -> None:
    """Run one micro batch. kept_output: as in `TrainableModel.compute_loss`. Loss and batch live until after the step,
    as in the Trainer, whose `training_step` calls it (accelerate utils/deepspeed.py
    `DeepSpeedEngineWrapper.backward`)."""
    with recorder.phase(iteration, "forward"):
        batch = subject.make_batch(size)
        loss = subject.compute_loss(engine, batch, kept_output)
    with recorder.phase(iteration, "backward"):
        engine.backward(loss)
        recorder.sweep(engine.module, engine.optimizer)
    with recorder.phase(iteration, "step"):
        engine.step()
        recorder.sweep(engine.module, engine.optimizer)


def model_dtype(config: dict[str, Any]) -> torch.dtype:
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if (config.get(name) or {}).get("enabled"):
            return dtype
    return torch.float32


def announce_zero3(run: Run, config: dict[str, Any]) -> Any:
    """Announce ZeRO-3 to transformers, like TrainingArguments, so that the model is partitioned while it is built
    (`zero.Init`); a quantized model is loaded whole. The returned object must outlive the run."""
    if not run.workload.uses_trainer or run.description is None or run.workload.method == "qlora":
        return None
    integrations: Any = importlib.import_module("transformers.integrations")
    return integrations.HfDeepSpeedConfig(config)


def initialize(config: dict[str, Any], model: torch.nn.Module, groups: Any, workload: Workload) -> Any:
    """DeepSpeed's engine around the model. groups: its `mpu`, None without sequence parallelism.

    With AutoTP the groups are created first, by DeepSpeed's fallback function: a `DeviceMesh` needs tensor values,
    which a dry run does not have. The comparison of the ranks' first batches is removed: it also needs values, and the
    batches of a probe are random.
    """
    import deepspeed

    split_by = autotp_size_in(config)
    if split_by > 1:
        from deepspeed.utils import groups as process_groups

        # Before `initialize`, which keeps groups that exist.
        process_groups._init_tp_groups_with_new_group(split_by)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = _client_optimizer(config, trained, workload)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trained, optimizer=optimizer, config=config, mpu=groups
    )
    check = getattr(engine, "first_dataloader_check", None)
    if check is not None:
        check.remove()
    return engine


def _client_optimizer(config: dict[str, Any], parameters: list[torch.nn.Parameter], workload: Workload) -> Any:
    """The script's optimizer if the configuration has none (`optimizer_step_in`), else None.

    It is AdamW with one parameter group. (The Trainer has two: norms and biases are without weight decay.)
    """
    if config.get("optimizer"):
        return None
    step = optimizer_step_in(config, workload)
    if step == "auto":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(parameters, lr=1e-5)
    config["zero_allow_untested_optimizer"] = True
    return torch.optim.AdamW(parameters, lr=1e-5, foreach=step == "foreach", fused=step == "fused")


def evaluate(engine: Any, subject: TrainableModel, run: Run) -> None:
    """Forward passes without gradients. For metrics, the logits of all ranks are gathered and concatenated batch by
    batch. No tokens are generated."""
    from transformers.trainer_pt_utils import EvalLoopContainer

    workload, kept = run.workload, EvalLoopContainer(padding_index=-100)
    gathered = None
    engine.eval()
    for _ in range(workload.eval_logits or 1):
        logits = _prediction_step(engine, subject, workload.eval_batch or 1, keeps=workload.eval_logits is not None)
        if logits is not None:
            gathered = None
            gathered = torch.empty(run.cluster.world_size * logits.numel(), dtype=logits.dtype, device=logits.device)
            torch.distributed.all_gather_into_tensor(gathered, logits)
            gathered = gathered.view(-1, *logits.shape[1:])
            del logits
            kept.add(gathered)
    engine.train()


@torch.no_grad()
def _prediction_step(engine: Any, subject: TrainableModel, samples: int, *, keeps: bool) -> Any:
    """One prediction step: the logits, or None if metrics do not receive them."""
    batch = subject.make_batch(samples)
    if not keeps:
        subject.compute_loss(engine, batch, None)
        return None
    output = engine(**batch)
    subject.loss(output, batch)
    return output.logits
