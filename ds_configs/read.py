"""Conversion of DeepSpeed configurations to plans: `auto` is resolved like in the Trainer, missing keys like in
DeepSpeed.

`unmodeled_features` lists enabled features that no plan has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from ..estimators.errors import ConfigFileError
from ..estimators.hardware import Cluster
from ..estimators.models.model_shape import ModelShape
from ..estimators.plan import PLAN_FIELDS, ConfigKey, Offload, Plan
from ..estimators.workload import DEFAULT, OptimizerStep, Precision, Software, Workload
from .conversions import as_integer, as_number, as_truth, is_true

_HIGHEST = 2**63 - 1
"""sys.maxsize, DeepSpeed's own value for "no limit"."""

STAGE_FOR_AUTO = 2
"""The stage that accelerate fills in for `auto` (1.15 utils/dataclasses.py `DeepSpeedPlugin.__post_init__`), without
ACCELERATE_DEEPSPEED_ZERO_STAGE."""

_FP32 = ("fp32", "float32", "float", "torch.float32")
"""Names of the type in a configuration (deepspeed 0.19.8 runtime/config.py `DtypeEnum`)."""

_WITHOUT_CLASS = ("", "expert_parallel.")
"""Blocks whose numbers no pydantic class reads, so that a text stays one (0.19.8 runtime/config.py, "": the whole)."""

_TRAINER_MICRO_BATCH, _TRAINER_ACCUMULATION = 8, 1
"""TrainingArguments' defaults for per_device_train_batch_size and gradient_accumulation_steps."""

FIRST_WITHOUT_AUTOEP = (5, 23)
"""First version of transformers with which DeepSpeed 0.19.8 cannot initialize AutoEP: it calls `registry.get(key,
default)` (module_inject/auto_ep_presets/base.py), which accepts no default since 5.23.0 (utils/output_capturing.py).
Training was tested with 5.0 and 5.8; up to 5.22.0 the registry is a plain dict."""


def saves_model(config: Mapping[str, Any]) -> bool:
    """Whether the Trainer's checkpoints contain the model itself. ZeRO-3 shards that are not gathered are saved with
    all states, even with `save_only_model` (transformers 5.23 trainer.py `save_model`)."""
    zero = _zero_block(config)
    return zero_stage_in(config) != 3 or is_true(zero.get("stage3_gather_16bit_weights_on_model_save"))


def plan_from_ds_config(
    config: Mapping[str, Any],
    model: ModelShape,
    cluster: Cluster,
    *,
    micro_batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    gradient_checkpointing: bool = False,
    cpu_checkpointing: bool = False,
    software: Software = DEFAULT,
) -> Plan:
    """The plan that the Trainer or `deepspeed.initialize` runs with this configuration on this cluster.

    micro_batch_size, gradient_accumulation_steps: the values of TrainingArguments. They fill `auto`; if None,
        TrainingArguments' defaults do. gradient_checkpointing, cpu_checkpointing: never part of a DeepSpeed
        configuration as the Trainer uses it. software: its DeepSpeed decides what an absent `pin_memory` means.

    Other `auto` values follow from the model's hidden size (`ConfigKey.filled_from_hidden_size`) or are DeepSpeed's
    defaults, because its configuration classes drop them. Keys that a plan does not have or its stage does not use are
    not checked.

    Raises ConfigFileError, naming the key, for values that DeepSpeed rejects and for contradictory batch sizes.
    """
    zero = _zero_block(config)
    stage = zero_stage_in(config)
    shared_by = sequence_parallel_size_in(config)
    replicas = max(1, cluster.world_size // shared_by)
    micro, accumulation = _batch(config, replicas, micro_batch_size, gradient_accumulation_steps)
    optimizer = _offload_block(zero, "offload_optimizer", "cpu_offload") if stage else {}
    param = _offload_block(zero, "offload_param", "cpu_offload_param") if stage == 3 else {}
    offload_optimizer, offload_param = _device(optimizer, "offload_optimizer"), _device(param, "offload_param")
    if stage < 3 and offload_optimizer == "nvme":
        offload_optimizer = "cpu"  # stages 1 and 2 treat any device as the host's RAM
    plan = Plan(
        zero_stage=stage,  # type: ignore[arg-type]  # 0 to 3, checked by _number
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        sequence_parallel_size=shared_by,
        autotp_size=autotp_size_in(config),
        autoep_size=autoep_size_in(config),
        gradient_checkpointing=gradient_checkpointing,
        cpu_checkpointing=cpu_checkpointing,
        offload_optimizer=offload_optimizer,
        offload_param=offload_param,
        overlap_comm=stage == 3,
        bf16_master_weights_and_grads=_in_bf16(config, "bf16_master_weights_and_grads"),
        bf16_optimizer_states=_in_bf16(config, "bf16_optimizer_states"),
        fp16_master_weights_and_grads=is_true(_block(config, "fp16").get("fp16_master_weights_and_grads")),
    )
    blocks = {"zero_optimization": (zero, ""), "zero_optimization.offload_optimizer": (optimizer, offload_optimizer)}
    blocks["zero_optimization.offload_param"] = (param, offload_param)
    read = {}
    for name, known in PLAN_FIELDS.items():
        block, device = blocks.get(known.path.rpartition(".")[0], ({}, "none"))
        is_read = stage in known.stages or known.refused_elsewhere
        written = is_read and device != "none" and (device == "nvme" or not known.nvme_only)
        if written and name not in ("zero_stage", "offload_optimizer", "offload_param", "pin_memory"):
            read[name] = _value(block, known, getattr(plan, name), model.hidden_size)
    # A group larger than the number of ranks contains all ranks, and 0 means 1 (utils/groups.py, runtime/engine.py).
    copied = max(1, min(read.pop("zero_hpz_partition_size", 1), cluster.world_size))
    pinned = [
        _flag(block, "pin_memory", default=software.pins_by_default)
        for block, device in ((optimizer, offload_optimizer), (param, offload_param))
        if device != "none"
    ]
    reduced_in = str(config.get("communication_data_type") or "").lower()
    summed_in = str(_block(config, "data_types").get("grad_accum_dtype") or "").lower()
    return plan.replace_fields(
        pin_memory=any(pinned) or not pinned,
        zero_hpz_partition_size=copied,
        communication_data_type="" if read.get("zero_quantized_gradients") else reduced_in.replace("bfp16", "bf16"),
        grad_accum_dtype="fp32" if summed_in in _FP32 else "",
        **read,
    )


def _value(block: Mapping[str, Any], known: ConfigKey, default: Any, hidden_size: int) -> Any:
    """The value of a key, in the type of its default."""
    owner, _, key = known.path.rpartition(".")
    key = key if key in block else key.removeprefix("stage3_")  # DeepSpeed accepts both names
    if isinstance(default, bool):
        return _flag(block, key, default=default)
    value = default if block.get(key) in (None, "auto") else block[key]
    if isinstance(default, float):
        with contextlib.suppress(ValueError):
            if 0 <= (number := as_number(value)) <= 1:
                return number
        raise _invalid_value(f"{owner}.{key}", value, "a number from 0 to 1")
    filled = known.filled_from_hidden_size
    auto = None if filled is None else filled(hidden_size)
    return _number(block, key, default=default, auto=auto, lowest=known.lowest, where=f"{owner}.")


def precision_in(config: Mapping[str, Any]) -> Precision | Literal["auto"]:
    """The precision that a configuration sets; "auto" if the Trainer fills it, "fp32" if none is enabled.

    Source: deepspeed 0.19.8 runtime/precision_config.py (`get_bfloat16_config`, `get_float16_config`; pydantic reads 1
    and "true" as true); runtime/config.py refuses a file that enables both.
    """
    blocks = {"bf16": _bf16_block(config), "fp16": _block(config, "fp16")}
    for name, block in blocks.items():
        if is_true(block.get("enabled")):
            return "bf16" if name == "bf16" else "fp16"
    return "auto" if any(block.get("enabled") == "auto" for block in blocks.values()) else "fp32"


def _bf16_block(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return _block(config, "bfloat16" if config.get("bf16") is None else "bf16")


def _in_bf16(config: Mapping[str, Any], key: str) -> bool:
    """Whether a key of the bf16 block is on; DeepSpeed reads it even if the block is not enabled."""
    return is_true(_bf16_block(config).get(key))


def quantizes_collectives(config: Mapping[str, Any]) -> bool:
    """Whether a configuration quantizes weights or gradients in collectives (ZeRO++)."""
    zero = _zero_block(config)
    return any(_flag(zero, name, default=False) for name in ("zero_quantized_weights", "zero_quantized_gradients"))


def needs_quantizer(config: Mapping[str, Any]) -> bool:
    """Whether DeepSpeed loads its quantization kernels, which only stage 3 does (deepspeed 0.19.8
    runtime/zero/partition_parameters.py `Init`, runtime/comm/coalesced_collectives.py `all_to_all_quant_reduce`)."""
    zero = _zero_block(config)
    frozen = _flag(zero, "zero_quantized_nontrainable_weights", default=False)
    return zero_stage_in(config) == 3 and (frozen or quantizes_collectives(config))


def sequence_parallel_size_in(config: Mapping[str, Any]) -> int:
    """Number of ranks that share a sample. Raises ConfigFileError unless it is a whole number from 1."""
    return _number(config, "sequence_parallel_size", default=1, auto=1, lowest=1, where="")


def autotp_size_in(config: Mapping[str, Any]) -> int:
    """Number of ranks that split each layer. Raises ConfigFileError unless it is a whole number."""
    block = _mapping(config.get("tensor_parallel") or {}, "tensor_parallel")
    return max(1, _number(block, "autotp_size", default=1, where="tensor_parallel."))


def autoep_size_in(config: Mapping[str, Any]) -> int:
    """Number of ranks that experts are spread over, if predictions support it (ZeRO stages 1 to 3 without offload);
    otherwise 1. Raises ConfigFileError unless it is a whole number."""
    block, zero = _mapping(config.get("expert_parallel") or {}, "expert_parallel"), _block(config, "zero_optimization")
    offloads = any(zero.get(name) for name in ("offload_optimizer", "offload_param"))
    if not is_true(block.get("enabled")) or not _is_at(config, 1, 2, 3) or offloads:
        return 1
    return max(1, _number(block, "autoep_size", default=1, where="expert_parallel."))


def ranks_per_sample_in(config: Mapping[str, Any]) -> int:
    """Number of ranks that work on one sample, by sequence and tensor parallelism. Raises ConfigFileError."""
    return sequence_parallel_size_in(config) * autotp_size_in(config)


def optimizer_in(config: Mapping[str, Any]) -> str | None:
    """The name of the optimizer in a configuration, in lower case; None if the training script makes it."""
    name = _block(config, "optimizer").get("type")
    return str(name).lower() if name else None


def optimizer_step_in(config: Mapping[str, Any], workload: Workload) -> OptimizerStep:
    """The implementation of torch's optimizer that a configuration uses; "auto" for DeepSpeed's own optimizer.

    With an `optimizer` block DeepSpeed makes its own, unless `torch_adam` selects torch's (deepspeed 0.19.8
    runtime/engine.py `get_optimizer_configuration`). Without one the training script makes it (`Workload.script_step`).
    With the states in host RAM accelerate replaces it by DeepSpeed's CPU version (1.15 utils/deepspeed.py
    `map_pytorch_optim_to_deepspeed`), which plain DeepSpeed requires.
    """
    params = _block(_block(config, "optimizer"), "params")
    if optimizer_in(config) is not None:
        if not is_true(params.get("torch_adam")):
            return "auto"
        return "loop" if params.get("foreach") is False else "foreach"
    zero = _block(config, "zero_optimization")
    offloads = _block(zero, "offload_optimizer").get("device") in ("cpu", "nvme") or is_true(zero.get("cpu_offload"))
    return "auto" if offloads else workload.script_step


def offload_device_in(config: Mapping[str, Any], block: str = "offload_optimizer") -> Any:
    """The device of an offload block, as written; "none" without one."""
    return _block(_block(config, "zero_optimization"), block).get("device", "none")


def zero_stage_in(config: Mapping[str, Any]) -> int:
    """The ZeRO stage of a configuration; 0 without one. Raises ConfigFileError for a value that is no stage."""
    return _number(_zero_block(config), "stage", default=0, auto=STAGE_FOR_AUTO, highest=3)


def reduce_bucket_size_in(config: Mapping[str, Any]) -> int:
    """Elements of a reduction bucket: the engine's default if the configuration names no number."""
    with contextlib.suppress(ValueError):
        return as_integer(_zero_block(config).get("reduce_bucket_size"))
    default: int = PLAN_FIELDS["reduce_bucket_size"].default
    return default


def has_auto(value: Any) -> bool:
    """Whether any value of a configuration is `auto`."""
    return any(map(has_auto, value.values())) if isinstance(value, Mapping) else bool(value == "auto")


class UnmodeledFeature(NamedTuple):
    """An enabled feature that no plan has."""

    key: str
    """The dotted path of the key."""
    name: str
    predicted: str
    """A sentence on what the predictions cover instead."""
    not_dry_run: str = ""
    """A sentence on why a dry run does not support it; "" if it does."""


def unmodeled_features(config: Mapping[str, Any]) -> Iterator[UnmodeledFeature]:
    """The enabled features of a ds_config that predictions of memory and time ignore.

    Source: deepspeed 0.19.8 runtime/zenflow/, runtime/superoffload/, runtime/engine.py.
    """
    zero = _block(config, "zero_optimization")
    if zero.get("zenflow") is not None:
        yield UnmodeledFeature(
            "zero_optimization.zenflow",
            "ZenFlow",
            "predictions are for plain offload: they include neither the states of the chosen columns, which stay on "
            "the GPU, nor the steps that the host skips or hides",
            "ZenFlow selects columns by the values of their gradients, which a dry run does not have",
        )
    if is_true(_block(zero, "offload_optimizer").get("super_offload")) and _is_at(config, 3):
        yield UnmodeledFeature(
            "zero_optimization.offload_optimizer.super_offload",
            "SuperOffload",
            "predictions are for plain offload: the optimizer's own process and its overlap are not included",
            "SuperOffload requests CUDA by name, which a dry run does not have",
        )
    if is_true(_block(config, "compile").get("deepcompile")):
        yield UnmodeledFeature(
            "compile.deepcompile",
            "DeepCompile",
            "predictions and dry runs are for the model without engine.compile(): fused kernels and DeepCompile's "
            "passes are not included",
        )
    if is_true(_block(config, "torch_autocast").get("enabled")):
        yield UnmodeledFeature(
            "torch_autocast",
            "torch_autocast",
            "predictions are for training in the type of the weights: activations and reduced gradients in the lower "
            "type are not included",
            "the simulated GPU does not apply autocast's casts, and would count activations in the weights' type",
        )
    if is_true(_block(config, "expert_parallel").get("enabled")) and autoep_size_in(config) == 1:
        yield UnmodeledFeature(
            "expert_parallel",
            "AutoEP",
            "predictions are for experts that ZeRO shards like all weights: experts that stay on their ranks and "
            "all-to-alls of tokens are not included",
        )


def _block(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object under a key; empty if there is none."""
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _is_at(config: Mapping[str, Any], *stages: int) -> bool:
    """Whether a configuration, which may be refused, is of one of these stages."""
    with contextlib.suppress(ConfigFileError):
        return zero_stage_in(config) in stages
    return False


def _zero_block(config: Mapping[str, Any]) -> Mapping[str, Any]:
    zero = config.get("zero_optimization", {})
    if isinstance(zero, bool):
        return {"stage": int(zero)}
    return _mapping(zero, "zero_optimization")


def _offload_block(zero: Mapping[str, Any], key: str, deprecated: str) -> Mapping[str, Any]:
    block = zero.get(key)
    if block is None:
        return {"device": "cpu"} if _flag(zero, deprecated, default=False) else {}
    return _mapping(block, f"zero_optimization.{key}")


def _device(block: Mapping[str, Any], key: str) -> Offload:
    device = block.get("device", "none")
    if device in ("cpu", "nvme"):
        return "cpu" if device == "cpu" else "nvme"
    if device in ("none", "auto", None):
        return "none"
    raise _invalid_value(f"zero_optimization.{key}.device", device, '"none", "cpu" or "nvme"')


def _batch(
    config: Mapping[str, Any], ranks: int, micro_argument: int | None, accumulation_argument: int | None
) -> tuple[int, int]:
    """(micro batch, accumulation). Missing values are derived as in `DeepSpeedConfig._set_batch_related_parameters`."""
    micro = _in_both(config, "train_micro_batch_size_per_gpu", micro_argument, _TRAINER_MICRO_BATCH)
    accumulation = _in_both(config, "gradient_accumulation_steps", accumulation_argument, _TRAINER_ACCUMULATION)
    total = _number(config, "train_batch_size", default=0, lowest=1, where="")
    if not micro and not total:
        raise ConfigFileError(
            "train_micro_batch_size_per_gpu is missing",
            why="no other key implies it",
            fix='set it to a number, or to "auto" for the Trainer',
        )
    micro = micro or total // ranks // (accumulation or 1)
    accumulation = accumulation or (total // micro // ranks if total and micro else 1)
    if total and micro * accumulation * ranks != total:
        raise ConfigFileError(
            f"train_batch_size is {total}, but {micro} samples x {accumulation} accumulation steps x {ranks} GPUs "
            f"are {micro * accumulation * ranks}",
            why="DeepSpeed refuses the contradiction",
            fix="remove train_batch_size: it follows from the others",
        )
    return micro, accumulation


def batch_numbers_in(config: Mapping[str, Any]) -> dict[str, int]:
    """The batch sizes and accumulation steps that a configuration sets to a number, by key; without "auto" and values
    that DeepSpeed refuses."""
    numbers = {}
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        with contextlib.suppress(ConfigFileError):
            numbers[key] = _number(config, key, default=0, auto=0, lowest=1, where="")
    return {key: number for key, number in numbers.items() if number}


def _in_both(config: Mapping[str, Any], key: str, argument: int | None, trainer_default: int) -> int:
    """The value of a key that is also a field of TrainingArguments; 0 if neither has a value."""
    value = _number(config, key, default=argument or 0, auto=argument or trainer_default, lowest=1, where="")
    if argument and value != argument:
        raise ConfigFileError(
            f"{key} is {value}, but TrainingArguments has {argument}",
            why="the Trainer refuses the contradiction",
            fix=f'set {key} to "auto"',
        )
    return value


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise _invalid_value(key, value, "an object")


def _flag(block: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = block.get(key, default)
    if value is None or value == "auto":
        return default
    try:
        return as_truth(value)
    except ValueError:
        raise _invalid_value(key, value, "true or false") from None


def _number(
    block: Mapping[str, Any],
    key: str,
    *,
    default: int,
    auto: int | None = None,
    lowest: int = 0,
    highest: int = _HIGHEST,
    where: str = "zero_optimization.",
) -> int:
    """A whole number. DeepSpeed also accepts JSON's 5e8, which is a float."""
    value = block.get(key)
    if value is None:
        return default
    if value == "auto":
        return default if auto is None else auto
    with contextlib.suppress(ValueError):
        is_text = where in _WITHOUT_CLASS and isinstance(value, str | bool)
        if not is_text and lowest <= (number := as_integer(value)) <= highest:
            return number
    bounds = f"a whole number from {lowest}" + ("" if highest == _HIGHEST else f" to {highest}")
    raise _invalid_value(where + key, value, bounds)


def _invalid_value(key: str, value: Any, wanted: str) -> ConfigFileError:
    return ConfigFileError(f"{key} is {value!r}", why="DeepSpeed refuses it", fix=f"set it to {wanted}")
