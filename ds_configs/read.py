"""A DeepSpeed configuration as a plan: `auto` resolved as the Trainer does, what is missing as DeepSpeed does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from ..estimators.errors import ConfigFileError
from ..estimators.hardware.cluster import Cluster
from ..estimators.models.model_shape import ModelShape
from ..estimators.plan import Offload, Plan
from ..estimators.workload import Precision

_HIGHEST = 2**63 - 1
"""DeepSpeed's own "without end" (sys.maxsize). JSON's integers have no end either, but tensors' sizes do."""

_TRAINER_MICRO_BATCH, _TRAINER_ACCUMULATION = 8, 1
"""TrainingArguments' defaults for per_device_train_batch_size and gradient_accumulation_steps."""


def plan_from_ds_config(
    config: Mapping[str, Any],
    model: ModelShape,
    cluster: Cluster,
    *,
    micro_batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    gradient_checkpointing: bool = False,
    cpu_checkpointing: bool = False,
) -> Plan:
    """The plan that runs when this configuration is given to the Trainer or to `deepspeed.initialize` on this cluster.

    micro_batch_size, gradient_accumulation_steps: what TrainingArguments says. They fill `auto`; without them `auto` is
    TrainingArguments' own default. gradient_checkpointing and cpu_checkpointing are never part of a DeepSpeed
    configuration as the Trainer uses it.

    Filled by the model's hidden size H where they are `auto` (transformers, `trainer_config_finalize`):
    reduce_bucket_size H^2, stage3_prefetch_bucket_size 0.9 H^2, stage3_param_persistence_threshold 10 H. Any other
    `auto` is DeepSpeed's default, because its configuration classes drop it.

    Not judged: keys that a plan does not hold. What its stage ignores is ignored here too.

    Raises ConfigFileError, naming the key, for values that DeepSpeed refuses and for batch sizes in contradiction.
    """
    zero = _zero_block(config)
    stage = _number(zero, "stage", default=0, highest=3)
    shared_by = sequence_parallel_size_in(config)
    replicas = max(1, cluster.world_size // shared_by)
    micro, accumulation = _batch(config, replicas, micro_batch_size, gradient_accumulation_steps)
    optimizer = _offload_block(zero, "offload_optimizer", "cpu_offload") if stage else {}
    param = _offload_block(zero, "offload_param", "cpu_offload_param") if stage == 3 else {}
    offload_optimizer, offload_param = _device(optimizer, "offload_optimizer"), _device(param, "offload_param")
    if stage < 3 and offload_optimizer == "nvme":
        offload_optimizer = "cpu"  # stages 1 and 2 know one kind of offload, whatever the device is called
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
        overlap_comm=_flag(zero, "overlap_comm", default=stage == 3),
        bf16_master_weights_and_grads=_in_bf16(config, "bf16_master_weights_and_grads"),
        bf16_optimizer_states=has_bf16_states(config),
    )
    if stage == 0:
        return plan

    hidden = model.hidden_size
    sizes: dict[str, Any] = {
        "reduce_bucket_size": _number(
            zero, "reduce_bucket_size", default=plan.reduce_bucket_size, auto=hidden * hidden, lowest=1
        ),
        "allgather_bucket_size": _number(zero, "allgather_bucket_size", default=plan.allgather_bucket_size),
    }
    if stage == 3:
        # A group of more ranks than there are is one of all, and 0 is as 1 (utils/groups.py, runtime/engine.py).
        asked = _number(zero, "zero_hpz_partition_size", default=1, lowest=0)
        sizes["zero_hpz_partition_size"] = max(1, min(asked, cluster.world_size))
        for name in ("zero_quantized_weights", "zero_quantized_gradients"):
            sizes[name] = _flag(zero, name, default=False)
        sizes["sub_group_size"] = _number(zero, "sub_group_size", default=plan.sub_group_size)
        filled = {
            "prefetch_bucket_size": int(0.9 * hidden * hidden),
            "param_persistence_threshold": 10 * hidden,
            "max_live_parameters": None,
            "max_reuse_distance": None,
        }
        for name, auto in filled.items():
            key = f"stage3_{name}"  # DeepSpeed also accepts the name without its prefix
            sizes[key] = _number(zero, key if key in zero else name, default=getattr(plan, key), auto=auto)
    if offload_param == "nvme":
        for name in ("buffer_count", "buffer_size", "max_in_cpu"):
            key = f"param_{name}"
            sizes[key] = _number(param, name, default=getattr(plan, key), where="zero_optimization.offload_param.")
    if offload_optimizer != "none":
        sizes["offload_optimizer_ratio"] = _share(
            optimizer, "ratio", default=plan.offload_optimizer_ratio, where="zero_optimization.offload_optimizer."
        )
    if offload_optimizer == "nvme":
        sizes["optimizer_buffer_count"] = _number(
            optimizer, "buffer_count", default=plan.optimizer_buffer_count, where="zero_optimization.offload_optimizer."
        )
    pinned = [
        _flag(block, "pin_memory", default=True)
        for block, device in ((optimizer, offload_optimizer), (param, offload_param))
        if device != "none"
    ]
    return replace(plan, pin_memory=any(pinned) if pinned else True, **sizes)


def precision_in(config: Mapping[str, Any]) -> Precision | Literal["auto"]:
    """The precision that a configuration sets; "auto" where the Trainer fills it, fp32 where nothing is enabled.

    Source: deepspeed 0.19.8 runtime/precision_config.py (`get_bfloat16_config`, `get_float16_config`; pydantic reads 1
    and "true" as true); runtime/config.py refuses a file that enables both.
    """
    bf16 = config.get("bf16")
    blocks = {"bf16": config.get("bfloat16") if bf16 is None else bf16, "fp16": config.get("fp16")}
    enabled = {name: block.get("enabled") for name, block in blocks.items() if isinstance(block, Mapping)}
    for name, value in enabled.items():
        if is_true(value):
            return "bf16" if name == "bf16" else "fp16"
    return "auto" if "auto" in enabled.values() else "fp32"


def has_bf16_states(config: Mapping[str, Any]) -> bool:
    """Whether a configuration keeps optimizer states in bf16."""
    return _in_bf16(config, "bf16_optimizer_states")


def _in_bf16(config: Mapping[str, Any], key: str) -> bool:
    """Whether a key of the bf16 block is on; the block is read whether it is enabled or not."""
    block = config.get("bf16")
    block = config.get("bfloat16") if block is None else block
    return isinstance(block, Mapping) and is_true(block.get(key))


def quantizes_collectives(config: Mapping[str, Any]) -> bool:
    """Whether a configuration sends weights or gradients in fewer bits (ZeRO++)."""
    zero = _zero_block(config)
    return any(_flag(zero, name, default=False) for name in ("zero_quantized_weights", "zero_quantized_gradients"))


def needs_quantizer(config: Mapping[str, Any]) -> bool:
    """Whether DeepSpeed loads its quantization kernels, which stage 3 alone does (deepspeed 0.19.8
    runtime/zero/partition_parameters.py `Init`, runtime/comm/coalesced_collectives.py `all_to_all_quant_reduce`)."""
    zero = _zero_block(config)
    names = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")
    return _number(zero, "stage", default=0, highest=3) == 3 and any(_flag(zero, name, default=False) for name in names)


def sequence_parallel_size_in(config: Mapping[str, Any]) -> int:
    """The ranks that share a sample. Raises ConfigFileError for what is no whole number from 1."""
    return _number(config, "sequence_parallel_size", default=1, auto=1, lowest=1, where="")


def autotp_size_in(config: Mapping[str, Any]) -> int:
    """The ranks that split each layer. Raises ConfigFileError for what is no whole number."""
    block = _mapping(config.get("tensor_parallel") or {}, "tensor_parallel")
    return max(1, _number(block, "autotp_size", default=1, where="tensor_parallel."))


def autoep_size_in(config: Mapping[str, Any]) -> int:
    """The ranks that experts are spread over, where predictions know of it: at ZeRO stages 1 to 3 without offload; 1
    elsewhere. Raises ConfigFileError for what is no whole number."""
    block, zero = _mapping(config.get("expert_parallel") or {}, "expert_parallel"), config.get("zero_optimization")
    offloads = isinstance(zero, Mapping) and any(zero.get(name) for name in ("offload_optimizer", "offload_param"))
    known = isinstance(zero, Mapping) and zero.get("stage") in (1, 2, 3) and not offloads
    if not (is_true(block.get("enabled")) and known):
        return 1
    return max(1, _number(block, "autoep_size", default=1, where="expert_parallel."))


def ranks_per_sample_in(config: Mapping[str, Any]) -> int:
    """The ranks that work on one sample, sharing its sequence or splitting its layers. Raises ConfigFileError."""
    return sequence_parallel_size_in(config) * autotp_size_in(config)


def optimizer_in(config: Mapping[str, Any]) -> str | None:
    """The name of the optimizer in a configuration, in lower case; None where it leaves it to the training script."""
    block = config.get("optimizer")
    name = block.get("type") if isinstance(block, Mapping) else None
    return str(name).lower() if name else None


def is_true(value: Any) -> bool:
    """Whether DeepSpeed's pydantic classes read a value as true."""
    if isinstance(value, str):
        return value.lower() in ("true", "yes", "on", "1", "t", "y")
    return isinstance(value, bool | int | float) and value == 1


def has_auto(value: Any) -> bool:
    """Whether a configuration leaves any of its values to the Trainer or to accelerate."""
    return any(map(has_auto, value.values())) if isinstance(value, Mapping) else bool(value == "auto")


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
    raise _refused(f"zero_optimization.{key}.device", device, '"none", "cpu" or "nvme"')


def _batch(
    config: Mapping[str, Any], ranks: int, given_micro: int | None, given_accumulation: int | None
) -> tuple[int, int]:
    """(micro batch, accumulation), as `DeepSpeedConfig._set_batch_related_parameters` derives what is missing."""
    micro = _in_both(config, "train_micro_batch_size_per_gpu", given_micro, _TRAINER_MICRO_BATCH)
    accumulation = _in_both(config, "gradient_accumulation_steps", given_accumulation, _TRAINER_ACCUMULATION)
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
            why="DeepSpeed stops at the contradiction",
            fix="remove train_batch_size: it follows from the others",
        )
    return micro, accumulation


def _in_both(config: Mapping[str, Any], key: str, given: int | None, trainer_default: int) -> int:
    """The value of a key that TrainingArguments has too; 0 where neither says one."""
    value = _number(config, key, default=given or 0, auto=given or trainer_default, lowest=1, where="")
    if given and value != given:
        raise ConfigFileError(
            f"{key} is {value}, but TrainingArguments says {given}",
            why="the Trainer stops at the contradiction",
            fix=f'set {key} to "auto"',
        )
    return value


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise _refused(key, value, "an object")


def _flag(block: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = block.get(key, default)
    if value is None or value == "auto":
        return default
    if isinstance(value, bool):
        return value
    raise _refused(key, value, "true or false")


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
    """A whole number. JSON's 5e8 is a float, which DeepSpeed accepts."""
    value = block.get(key)
    if value is None:
        return default
    if value == "auto":
        return default if auto is None else auto
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value % 1 or not lowest <= value <= highest:
        bounds = f"a whole number from {lowest}" + ("" if highest == _HIGHEST else f" to {highest}")
        raise _refused(where + key, value, bounds)
    return int(value)


def _share(block: Mapping[str, Any], key: str, *, default: float, where: str) -> float:
    """A number from 0 to 1."""
    value = block.get(key)
    if value is None or value == "auto":
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _refused(where + key, value, "a number from 0 to 1")
    return float(value)


def _refused(key: str, value: Any, wanted: str) -> ConfigFileError:
    return ConfigFileError(f"{key} is {value!r}", why="DeepSpeed refuses it", fix=f"set it to {wanted}")
