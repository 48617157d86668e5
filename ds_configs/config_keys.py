"""The keys of a ds_config that are explained, compared or checked: those of a plan and others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..estimators.plan import PLAN_FIELDS, ConfigKey, key_stages


def _key(path: str, meaning: str = "", **properties: Any) -> ConfigKey:
    stages = key_stages(path, nvme_only=properties.get("nvme_only", False))
    return ConfigKey(**{"path": path, "meaning": meaning, "stages": stages, **properties})


_ORDER: tuple[ConfigKey | str, ...] = (
    _key(
        "train_batch_size",
        "samples of all GPUs in one optimizer step",
        fill="match",
        filled_with="per_device_train_batch_size x gradient_accumulation_steps of TrainingArguments x the ranks",
        option="global_batch",
    ),
    "micro_batch_size",
    "gradient_accumulation_steps",
    _key(
        "gradient_clipping",
        "maximum norm of the gradient; 0: no clipping",
        fill="match",
        argument="max_grad_norm",
    ),
    _key(
        "bf16.enabled",
        "weights and gradients of 2 bytes, the range of fp32; needs Ampere or newer",
        fill="match",
        filled_with="bf16 or bf16_full_eval of TrainingArguments",
        option="precision",
    ),
    _key(
        "fp16.enabled",
        "weights and gradients of 2 bytes, with loss scaling",
        fill="match",
        filled_with="fp16 or fp16_full_eval of TrainingArguments",
        option="precision",
    ),
    # runtime/bf16_optimizer.py, runtime/pipe/engine.py; runtime/engine.py _do_optimizer_sanity_check (0.19.8)
    _key(
        "bf16.immediate_grad_update",
        condition="in DeepSpeed's BF16_Optimizer: at stage 1 with data_types.grad_accum_dtype fp32 and no offload, or "
        "under pipeline parallelism without ZeRO",
    ),
    # examples: the documentation of Apex's amp (loss_scale=128.0); BLOOM's configuration (initial_scale_power 12)
    _key("fp16.loss_scale", "0: dynamic loss scaling; else the constant scale of the loss", example=128),
    _key("fp16.initial_scale_power", "dynamic loss scaling begins at 2 to this power", example=12),
    # runtime/fp16/loss_scaler.py DynamicLossScaler.update_scale (0.19.8) counts down to 1, and lowers the scale there
    _key("fp16.hysteresis", "which overflow lowers the dynamic scale of the loss: 2: the second one"),
    _key(
        "optimizer.type",
        "determines the states per parameter, and whether they can be in host RAM",
        option="optimizer",
    ),
    _key("optimizer.params.lr", "learning rate", fill="match", argument="learning_rate"),
    _key(
        "optimizer.params.betas",
        "decay rates of the averages of gradients and of squared gradients",
        fill="match",
        filled_with="[adam_beta1, adam_beta2] of TrainingArguments",
        example=[0.9, 0.95],
    ),
    _key("optimizer.params.eps", "added to the denominator of the update", fill="match", argument="adam_epsilon"),
    _key(
        "optimizer.params.weight_decay",
        "coefficient of the weight decay",
        fill="match",
        argument="weight_decay",
    ),
    _key("optimizer.params.torch_adam", "torch's Adam or AdamW in place of DeepSpeed's"),
    _key("optimizer.params.adam_w_mode", "true: weight decay as in AdamW, also for the type Adam"),
    _key("optimizer.params.freeze_step", "steps of plain Adam before a 1-bit optimizer compresses"),
    _key("scheduler.type", "learning rate schedule"),
    _key(
        "scheduler.params.warmup_min_lr", "learning rate at the first step of the warm-up", fill="only", filled_with="0"
    ),
    _key(
        "scheduler.params.warmup_max_lr",
        "learning rate at the end of the warm-up",
        fill="match",
        argument="learning_rate",
    ),
    _key(
        "scheduler.params.warmup_num_steps",
        "steps of the warm-up",
        fill="match",
        filled_with="warmup_steps of TrainingArguments, at least 1; a value below 1 is a share of all steps",
    ),
    _key(
        "scheduler.params.total_num_steps",
        "steps of the whole schedule",
        fill="match",
        filled_with="the number of optimizer steps of the training",
    ),
    "zero_stage",
    "offload_optimizer",
    "offload_param",
    _key("zero_optimization.offload_optimizer.nvme_path", "location of the states between steps", nvme_only=True),
    _key("zero_optimization.offload_param.nvme_path", "location of the weights between uses", nvme_only=True),
    "pin_memory",
    _key("zero_optimization.offload_param.pin_memory", PLAN_FIELDS["pin_memory"].meaning),
    "optimizer_buffer_count",
    "param_buffer_count",
    "param_buffer_size",
    "param_max_in_cpu",
    "offload_optimizer_ratio",
    _key("zero_optimization.offload_optimizer.super_offload", stages=(3,)),  # runtime/engine.py (0.19.8): the class of
    _key("zero_optimization.offload_optimizer.cpuadam_cores_perc", stages=(3,)),  # stage 3's optimizer, its argument
    _key("zero_optimization.offload_optimizer.pipeline_read", nvme_only=True),
    _key("zero_optimization.offload_optimizer.pipeline_write", nvme_only=True),
    _key("zero_optimization.offload_optimizer.fast_init", nvme_only=True),
    "overlap_comm",
    "reduce_bucket_size",
    _key(
        "zero_optimization.allgather_bucket_size",
        "elements gathered at a time; current torch gathers all in place",
        stages=(),  # runtime/utils.py all_gather_dp_groups gathers in place (0.19.8)
    ),
    "contiguous_gradients",
    # runtime/zero/stage3.py __reduce_and_partition_ipg_grads, stage_1_and_2.py average_tensor (0.19.8)
    _key(
        "zero_optimization.reduce_scatter",
        "at stage 3 each rank receives only its own partition of the gradients; stages 1 and 2 all-reduce with it too, "
        "unless use_multi_rank_bucket_allreduce is false",
    ),
    _key(
        "zero_optimization.round_robin_gradients", "distributes the copies to host RAM among the ranks", stages=(1, 2)
    ),
    _key("zero_optimization.parameter_alignment", stages=(1, 2)),
    # runtime/zero/config.py compute_grad_norm_valid (0.19.8)
    _key("zero_optimization.compute_grad_norm", stages=(1, 2), refused_elsewhere=True),
    _key(
        "zero_optimization.allgather_partitions",
        "no effect: nothing reads it after the file",
        stages=(),  # runtime/engine.py zero_allgather_partitions has no caller (0.19.8)
    ),
    # runtime/zero/stage_1_and_2.py complete_grad_norm_calculation_for_cpu_offload; stage3.py has no such argument
    _key(
        "zero_optimization.ignore_unused_parameters",
        "with false DeepSpeed stops at a trained parameter that got no gradient",
        stages=(1, 2),
        condition="with the optimizer in host RAM",
    ),
    # runtime/engine.py _configure_zero_optimizer (0.19.8)
    _key("zero_optimization.legacy_stage1", "the first ZeRO-1, which DeepSpeed no longer has", stages=()),
    # only partition_parameters.py Init, parameter_offload.py, partitioned_param_coordinator.py and stage3.py (0.19.8)
    _key("zero_optimization.override_module_apply", stages=(3,)),
    _key("zero_optimization.log_trace_cache_warnings", stages=(3,)),
    _key("zero_optimization.enable_sanity_checks", stages=(3,)),
    _key("zero_optimization.save_muon_momentum_buffer_in_memory", stages=(3,)),
    # only runtime/zero/parameter_offload.py and stage3.py ask whether a module is a leaf (utils/z3_leaf_module.py)
    _key("zero_optimization.leaf_module", "modules that are gathered whole", stages=(3,)),
    _key(
        "zero_optimization.cpu_offload_use_pin_memory",
        "no effect: pin_memory in offload_optimizer and offload_param pins their memory in its place",
        stages=(),
    ),
    _key("zero_optimization.use_multi_rank_bucket_allreduce", stages=(1, 2)),
    "sub_group_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    _key(
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        "saves a whole model, not only shards; rank 0 gathers it",
    ),
    _key("zero_optimization.stage3_model_persistence_threshold", example=100_000_000),
    _key("zero_optimization.stage3_module_granularity_threshold"),
    _key("zero_optimization.stage3_use_all_reduce_for_fetch_params"),
    _key("zero_optimization.stage3_allgather_sequential"),
    _key("zero_optimization.memory_efficient_linear", stages=(3,)),
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_gradients",
    _key("zero_optimization.zero_quantized_nontrainable_weights", stages=(3,)),
    _key("aio.block_size", "bytes of a request to the drive"),
    _key("aio.queue_depth", "requests in flight per thread"),
    _key("aio.intra_op_parallelism", "threads that read and write one tensor"),
    _key("aio.single_submit", "requests submitted one by one"),
    _key("aio.overlap_events", "requests submitted while others finish"),
    _key("zero_allow_untested_optimizer", "allows an optimizer that ZeRO was not tested with"),
    # runtime/config.py get_disable_allgather, WeightQuantConfig.enabled: nothing else names them (0.19.8)
    _key("disable_allgather", "no effect: nothing reads it after the file", stages=()),
    _key("weight_quantization.enabled", "no effect in training", stages=()),
    _key("wall_clock_breakdown", "times every part of a step, and synchronizes with the GPU for it"),
    _key(
        "steps_per_print",
        "steps between two lines of the log; without the key there is no line",
        fill="always",
        filled_with="infinity, which prints no line",
    ),
)
"""Keys in descending order of effect; a string is a field of `Plan`. Other fields have no rank."""


def _keys() -> Iterator[ConfigKey]:
    rest = dict(PLAN_FIELDS)
    for entry in _ORDER:
        yield rest.pop(entry) if isinstance(entry, str) else entry
    yield from (known for known in rest.values() if known.path)


CONFIG_KEYS: Mapping[str, ConfigKey] = {known.path: known for known in _keys()}
"""Path -> key."""

_RANKED = tuple(path for path, known in list(CONFIG_KEYS.items())[: len(_ORDER)] if known.meaning)
_BLOCKS = tuple(dict.fromkeys(path.partition(".")[0] for path in _RANKED))


def meaning(path: str) -> str:
    """The effect of a key; "" if only DeepSpeed's class describes it."""
    known = CONFIG_KEYS.get(path)
    block, _, name = path.rpartition(".")
    return (known.meaning if known is not None else "") or _other_meanings().get(block, {}).get(name, "")


@cache
def _other_meanings() -> dict[str, dict[str, str]]:
    """Block -> meanings of keys that no plan has and DeepSpeed's classes do not describe (from the code of 0.19.8)."""
    found: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("key_meanings.json").read_text("utf-8"))
    return found


def stages_of(path: str) -> tuple[int, ...]:
    """The ZeRO stages at which DeepSpeed uses a key: without stages of its own those of a block around it."""
    around = path
    while around:
        if around in CONFIG_KEYS:
            return CONFIG_KEYS[around].stages
        around = around.rpartition(".")[0]
    return key_stages(path)


def acts_at(path: str, stage: int) -> bool:
    """Whether DeepSpeed uses the key at a ZeRO stage."""
    return stage in stages_of(path)


def rank(path: str) -> tuple[int, str, int, str]:
    """Sort key of keys by effect: first the blocks, then the keys of a block."""
    block = path.partition(".")[0]
    first = _BLOCKS.index(block) if block in _BLOCKS else len(_BLOCKS)
    return first, block, _RANKED.index(path) if path in _RANKED else len(_RANKED), path
