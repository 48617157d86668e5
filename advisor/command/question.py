"""From what a dry run of a command observed to a `Question` about the same training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...ds_configs.read import autoep_size_in, optimizer_in, precision_in, sequence_parallel_size_in
from ...estimators.errors import ModelConfigError
from ...estimators.models.model_shape import ModelShape
from ...estimators.models.vision_parts import freeze_tensors, without_layers
from ...estimators.objectives import OBJECTIVES, framework_loss, liger_loss
from ...estimators.optimizers import OPTIMIZERS, trainer_optimizer
from ...estimators.workload import NEXT_TOKEN, Objective, Software
from ...probes.command.observed import CommandResult, ObservedTraining
from ..advise import build_question
from ..question.model_source import model_shape
from ..question.question import Question

_ROLLOUTS = ("num_generations", "max_completion_length", "beta", "num_iterations", "steps_per_generation")
"""Settings of rollouts that TRL's configurations and a question name alike."""


_LIBRARIES = ("transformers", "deepspeed", "trl")
"""Libraries whose version changes memory or time."""

_WHOLE = 0.98
"""Share of a model's bytes from which on a rank has the whole model; what a script frees or ties may lack."""


def command_question(found: CommandResult, given: Mapping[str, Any], *, offloads_checkpoints: bool = False) -> Question:
    """The question about the training of a command.

    given: the machine (`gpus`, ...), and the options of a question that replace what the command does.
    offloads_checkpoints: whether the changed command can keep the inputs of layers in host RAM.

    Raises ModelConfigError for a model that is neither described nor recorded, and the errors of `build_question`.
    """
    training = found.training
    shape = trained_shape(training)
    question = build_question(shape, **{**observed_options(found, shape), **given})
    question = replace(question, offloads_checkpoints=offloads_checkpoints)
    if shape.module is None and training.frozen:
        frozen = frozenset(training.frozen)
        model = freeze_tensors(question.model, lambda name: without_layers(name) in frozen)
        question = replace(question, model=model)
    return question


def trained_shape(training: ObservedTraining) -> ModelShape:
    """The shape of the trained model: by its configuration if it has one that is known, else as it was recorded."""
    name = Path(training.name).name or training.name
    if training.model and training.recorded is None:
        return model_shape(training.model, name=name, source="the model that the script trains")
    try:
        if training.model:
            return model_shape(training.model, name=name, source="the model that the script trains")
    except ModelConfigError:
        pass
    if training.recorded is None:
        raise ModelConfigError(
            f"the module {training.name} that the script trains cannot be recorded",
            why=training.not_recorded,
            fix="ds-advise dry-run -- COMMAND shows what it needs under its own configuration",
        )
    return replace(training.recorded, name=name)


def observed_options(found: CommandResult, shape: ModelShape) -> dict[str, Any]:
    """The options of a question that the command decides."""
    training, observed, arguments = found.training, found.observed, found.arguments
    engine, config, trainer = observed.engines[0], observed.engines[0].config, arguments.trainer
    objective = _objective(training, shape)
    precision = precision_in(config)
    software = _software(found)
    options: dict[str, Any] = {
        "objective": objective,
        "method": training.method or "lora",
        "seq_len": training.seq_len or None,
        "global_batch": engine.micro_batch_size * engine.gradient_accumulation_steps * engine.data_parallel_size,
        "precision": precision,
        "optimizer": _optimizer(found),
        "attention": {"flash_attention_2": "flash", "flash_attention_3": "flash", "eager": "eager"}.get(
            training.attention, "sdpa"
        ),
        "framework": training.framework,
        "kernels": "liger" if training.uses_liger else "torch",
        "software": software,
        "sequence_parallel_size": sequence_parallel_size_in(config),
        "experts": "autoep" if autoep_size_in(config) > 1 else "zero",
    }
    known = Software(trl=tuple(map(int, software["trl"].split(".")))) if "trl" in software else Software()  # type: ignore[arg-type]
    decide_loss = liger_loss if training.uses_liger else framework_loss
    options["loss"] = decide_loss(objective, training.framework, known)  # type: ignore[arg-type]
    if training.method in ("lora", "qlora"):
        options |= {
            "lora_rank": training.lora_rank,
            "lora_targets": training.lora_targets,
            "lora_dropout": training.lora_dropout,
            "dora": training.dora,
            "modules_to_save": training.modules_to_save or None,
        }
        if training.method == "qlora":
            options["quantization"] = training.quantization
    if OBJECTIVES[objective].rollouts is not None:
        options |= {name: trainer[name] for name in _ROLLOUTS if trainer.get(name) is not None}
        options["rollout"] = f"vllm-{trainer.get('vllm_mode', 'server')}" if trainer.get("use_vllm") else "generate"
    if objective in ("dpo", "kto"):
        options["precompute_ref_log_probs"] = bool(trainer.get("precompute_ref_log_probs"))
    if trainer and any(phase.phase == "evaluation" for phase in found.result.phases):
        options["eval_batch"] = trainer.get("per_device_eval_batch_size")
    if shape.module is not None:
        options |= {"method": "full", "seq_len": None, "loss": "auto", "objective": NEXT_TOKEN}
        options = {
            name: value for name, value in options.items() if not name.startswith(("lora_", "modules_to", "dora"))
        }
    return options


def _objective(training: ObservedTraining, shape: ModelShape) -> Objective:
    named = (name for name, spec in OBJECTIVES.items() if spec.trainer and spec.trainer == training.trainer)
    classifies = shape.architecture.endswith("ForSequenceClassification")
    return next(named, "classification" if classifies else NEXT_TOKEN)


def _software(found: CommandResult) -> dict[str, Any]:
    """The differences from current software that the command shows."""
    training = found.training
    engine = found.observed.engines[0]
    used = ("deepspeed",) if training.framework == "deepspeed" and not training.model else _LIBRARIES
    software: dict[str, Any] = {
        name: ".".join(version.split(".")[:2]) for name in used if (version := training.versions.get(name))
    }
    software["padding_mask"] = training.has_padding_mask
    software["reentrant"] = training.reentrant
    software["fp32_adapters"] = training.method in ("lora", "qlora") and "float32" in engine.trainable_dtypes
    software["varying_lengths"] = training.varying_lengths
    is_torch = engine.optimizer in ("Adam", "AdamW") and optimizer_in(engine.config) is None
    if is_torch:
        software["optimizer_step"] = engine.implementation or "loop"
    return software | _loading(found)


def _loading(found: CommandResult) -> dict[str, Any]:
    """Where the command holds the whole model until the engine takes it. Under `zero.Init` no rank has all of it."""
    engine, phases = found.observed.engines[0], found.result.phases
    loaded = next((phase for phase in phases if phase.phase == "load"), None)
    width = 4 if precision_in(engine.config) == "fp32" else 2
    whole, in_fp32 = width * engine.parameters, (4 - width) * engine.trainable_parameters
    if loaded is None or found.training.method == "qlora":
        return {}
    on_gpu, on_host = loaded.gpu_live_bytes / _WHOLE, loaded.host_held_live_bytes / _WHOLE
    if max(on_gpu, on_host) < whole:
        return {}
    software: dict[str, Any] = {"zero_init": False} if engine.zero_stage == 3 else {}
    if on_gpu >= whole:
        software["loading"] = "gpu-fp32" if in_fp32 and on_gpu >= whole + in_fp32 else "gpu"
    elif width == 2 and on_host >= 4 * engine.parameters and len(found.observed.engines) == 1:
        software["loading"] = "host-fp32"
    return software


def _optimizer(found: CommandResult) -> str:
    """The optimizer's name: in DeepSpeed's configuration, in the Trainer's arguments, or that of its class."""
    engine = found.observed.engines[0]
    named = optimizer_in(engine.config) or ""
    by_trainer = trainer_optimizer(str(found.arguments.trainer.get("optim", "")))
    plain = engine.optimizer.lower()
    for prefix in ("fused", "deepspeedcpu"):
        plain = plain.removeprefix(prefix)
    return next((name for name in (named, by_trainer, plain) if name in OPTIMIZERS), "adamw")
