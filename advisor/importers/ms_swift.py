"""ms-swift: the options of `swift sft`, or its YAML or JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..launch.script_arguments import ScriptArguments
from .changes import batch_changes, deepspeed_change, fault_changes
from .command_line import with_counts
from .hf_arguments import (
    attention_of,
    checkpointing_of,
    deepspeed_part,
    optimizer_of,
    precision_of,
    quantization_of,
    with_leftovers,
)
from .imported_run import DeepSpeedPart, ImportedRun, Improvement, KeyPath, Value
from .source import Source

_WORDS = {"tuner_type", "train_type", "sft_type", "torch_dtype", "attn_impl", "quant_bits", "split_dataset_ratio"}

_RANK, _DROPOUT = 8, 0.05
_LEAST_BATCH = 16
"""Samples per optimizer step that it accumulates up to where gradient_accumulation_steps is not given
(swift/trainers/arguments.py)."""

_BOTH = {
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
}
_BUCKETS = {"overlap_comm": False, "allgather_bucket_size": 2e8, "reduce_bucket_size": 2e8}
_STAGE_3 = {
    "overlap_comm": False,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}
_ON_CPU = {"device": "cpu", "pin_memory": True}
_BUILT_IN: Mapping[str, dict[str, Any]] = {
    "zero0": {"stage": 0, **_BUCKETS},
    "zero1": {"stage": 1, **_BUCKETS},
    "zero2": {"stage": 2, **_BUCKETS},
    "zero2_offload": {"stage": 2, "offload_optimizer": _ON_CPU, **_BUCKETS},
    "zero3": {"stage": 3, **_STAGE_3},
    "zero3_offload": {"stage": 3, "offload_optimizer": _ON_CPU, "offload_param": _ON_CPU, **_STAGE_3},
}
"""What decides memory and speed in the configurations that it brings by name (modelscope/ms-swift 3602360,
swift/config/*.json)."""

_HARMLESS = re.compile(
    r"model_type|model_name|model_author|model_kwargs|template\w*|system|agent_template|use_hf|external_plugins|"
    r"truncation_strategy|loss_scale|columns|shuffle\w*|interleave_prob|stopping_strategy|download_mode|norm_bbox|"
    r"load_\w+|custom_\w+|packing|packing_\w+|padding_free|padding_side|lazy_tokenize|max_new_tokens|temperature|"
    r"top_[kp]|split_dataset_ratio|cached_\w+|val_dataset\w*|response_prefix|add_\w+|use_chat_template|max_epochs|"
    r"safe_serialization|max_shard_size|create_checkpoint_symlink|check_model|use_ray|device_groups|ray_exp_name|"
    r"use_rslora|lorap_lr_ratio|lora_bias|lora_dtype|vit_lr|aligner_lr|optim_args|acc_strategy|callbacks|"
    r"enable_thinking|preserve_thinking|enable_dft_loss|enable_channel_loss|average_tokens_across_devices|tuner_backend|"
    r"task_type|bnb_4bit_\w+|init_weights|strict|is_binary_loss_scale|disable_\w+|use_flash_ckpt|target_regex|"
    r"use_logits_to_keep|ignore_args_error|merge_lora|resume_only_model|router_aux_loss_coef|num_labels|problem_type"
)

_NO_FIGURES = {
    "use_galore": "GaLore's projected states",
    "lisa_activated_layers": "LISA",
    "freeze_parameters": "a part of the weights trained",
    "freeze_parameters_ratio": "a part of the weights trained",
    "freeze_parameters_regex": "a part of the weights trained",
    "trainable_parameters": "a part of the weights trained",
    "target_parameters": "adapters on parameters that are no module",
    "optimizer": "an optimizer of ms-swift's own",
    "rlhf_type": "preference training",
    "sequence_parallel_size": "samples shared over GPUs by ms-swift's own attention",
}
"""What no figure here has, where its value is neither false nor 1."""


def matches(source: Source) -> bool:
    """ms-swift's own words, or its command."""
    if source.line is not None:
        return source.line.program == "ms-swift"
    return "model" in source.values and bool(_WORDS & set(source.values))


def read(source: Source) -> ImportedRun:
    """The training. Raises ConfigFileError where the DeepSpeed configuration that it names cannot be read."""
    arguments = source.arguments
    part = _part(arguments, source.path.parent)
    optimizer, remark, obstacle = optimizer_of(arguments.text("optim"))
    checkpointing, software = checkpointing_of(arguments, unset=True)
    remarks = [remark] if remark else []
    seq_len = arguments.number("max_length")
    if seq_len is None:
        remarks.append("max_length is not given, so samples may be as long as the model allows: pass --seq-len")
    training: dict[str, Any] = {
        "optimizer": optimizer,
        "precision": precision_of(arguments, unset="auto"),
        "seq_len": seq_len,
        "attention": attention_of(arguments, "attn_impl"),
        "software": {"fp32-adapters": True, **software},
    }
    if arguments.flag("use_liger_kernel"):
        training |= {"kernels": "liger", "loss": "fused"}
    kind = arguments.text("tuner_type", "train_type", "sft_type") or "lora"
    if kind == "lora":
        training |= {"method": "lora", "lora_rank": _RANK, "lora_dropout": _DROPOUT, **arguments.lora}
        bits = arguments.number("quant_bits")
        method = arguments.text("quant_method")
        if bits is not None:
            quantized, remark = quantization_of(bits, bitsandbytes=method in (None, "bnb"))
            training |= quantized
            remarks += [remark] * bool(remark)
    if arguments.text("target_regex"):
        remarks.append("the pattern of target_regex is counted as all linear layers")
    given = [what for name, what in _NO_FIGURES.items() if arguments.text(name) not in (None, "false", "0", "1", "0.0")]
    if source.line is not None and source.line.target == "rlhf":
        given = ["preference training", *given]
    if kind not in ("lora", "full"):
        given = [f"tuner_type {kind[:20]}", *given]
    run = ImportedRun(
        tool="ms-swift",
        launcher="torchrun",
        model=arguments.text("model", "model_id_or_path"),
        training={name: value for name, value in training.items() if value is not None},
        micro_batch_size=arguments.number("per_device_train_batch_size") or 1,
        gradient_accumulation_steps=arguments.number("gradient_accumulation_steps"),
        least_global_batch=_LEAST_BATCH,
        gradient_checkpointing=checkpointing,
        sharding="zero" if part is not None else "fsdp" if arguments.text("fsdp") else "none",
        deepspeed=part,
        remarks=tuple(remarks),
        obstacle=obstacle or (f"there are no figures here of {given[0]}" if given else ""),
    )
    run = with_leftovers(run, arguments, "ms-swift", _HARMLESS)
    return run if source.line is None else with_counts(run, source)


def changes(source: Source, run: ImportedRun, better: Improvement) -> dict[KeyPath, Value]:
    """The options that make it the better run."""
    changed = batch_changes(run, better, micro="per_device_train_batch_size", checkpointing="gradient_checkpointing")
    if run.sharding == "fsdp" and better.config_name is not None:
        changed[("fsdp",)] = None
    for name in ("zero_hpz_partition_size", "deepspeed_autotp_size"):
        if source.arguments.text(name) is not None:  # the new configuration says it
            changed[(name,)] = None
    return changed | deepspeed_change(source, run, better) | fault_changes(run)


def _part(arguments: ScriptArguments, folder: Path) -> DeepSpeedPart | None:
    """The configuration with what the further options put into it (swift/arguments/sft_args.py `_init_deepspeed`)."""
    name = arguments.text("deepspeed")
    if name is not None and name in _BUILT_IN:
        part: DeepSpeedPart | None = DeepSpeedPart(
            name=name, config={**_BOTH, "zero_optimization": dict(_BUILT_IN[name])}
        )
    else:
        part = deepspeed_part(arguments, folder)
    hpz, autotp = arguments.number("zero_hpz_partition_size"), arguments.number("deepspeed_autotp_size")
    if part is None or part.config is None or not (hpz or autotp):
        return part
    config = dict(part.config)
    if hpz:
        config["zero_optimization"] = {**config.get("zero_optimization", {}), "zero_hpz_partition_size": hpz}
    if autotp:
        config["tensor_parallel"] = {**config.get("tensor_parallel", {}), "autotp_size": autotp}
    return replace(part, config=config)
