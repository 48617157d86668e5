"""axolotl's YAML."""

from __future__ import annotations

import re
from typing import Any

from ..launch.script_arguments import ScriptArguments
from .changes import batch_changes, deepspeed_change
from .hf_arguments import attention_of, checkpointing_of, deepspeed_part, optimizer_of, precision_of, with_leftovers
from .imported_run import ImportedRun, Improvement, KeyPath, Value
from .source import Source

_SEQ_LEN = 512
"""Defaults of axolotl's schema (utils/schemas/config.py, training.py): sequence_len 512, micro_batch_size 1, bf16
"auto", optimizer adamw_torch_fused."""

_HARMLESS = re.compile(
    r"model_type|model_config|processor_type|processor_kwargs|strict|sample_packing\w*|pad_to_\w+|eot_tokens|tokens|"
    r"added_tokens_overrides|saves_per_epoch|evals_per_epoch|lora_model_dir|lora_fan_in_fan_out|gptq_\w+|torchdistx_path|"
    r"shuffle_\w+|min_sample_len|excess_length_strategy|pretraining_dataset|loss_watchdog_\w+|max_packed_sequence_len|"
    r"peft_use_rslora|loraplus_\w+|auto_resume_from_checkpoints|eta_min|cosine_\w+|resize_token_embeddings_to_32x|"
    r"use_otel_metrics|otel_\w+|profiler_\w+|gc_steps|gc_collect_steps|experimental_skip_move_to_device|use_ray|ray_\w+|"
    r"base_model_config|base_model_ignore_patterns|cls_model_config|bnb_config_kwargs|curriculum_sampling|debug|ddp|"
    r"is_\w+_derived_model|device_map|max_memory|use_tensorboard|use_wandb|roles_to_train|train_on_eos|field_\w+|"
    r"default_system_message|accelerator_config|eaft_\w+|use_eaft|revision_of_model|reinit_weights|merge_\w+|"
    r"attention_dropout|xformers_attention|total_num_tokens|gradient_accumulation_kwargs|liger_rms_norm_gated|"
    r"val_set_size|use_swanlab|use_pose|pose_\w+|noisy_embedding_alpha|torch_dtype|rope_\w+|overrides_of_model_\w+|mean_resizing_embeddings"
)

_NO_FIGURES = {
    "rl": "preference training",
    "reward_model": "a reward model",
    "process_reward_model": "a reward model",
    "unfrozen_parameters": "a part of the weights trained",
    "lisa_n_layers": "LISA",
    "relora": "ReLoRA",
    "qat": "quantization-aware training",
    "fp8": "training in fp8",
    "quantize_moe_experts": "quantized experts",
    "ebft": "EBFT",
    "diffusion": "diffusion training",
    "lora_target_parameters": "adapters on parameters that are no module",
    "tensor_parallel_size": "layers split over GPUs by PyTorch",
    "expert_parallel_size": "expert parallelism",
    "context_parallel_size": "samples shared over GPUs by ring attention",
    "sequence_parallel_degree": "samples shared over GPUs by ring attention",
}
"""What no figure here has, where its value is neither false nor 1."""

_NEAR = {
    "torch_compile": "it is counted as not compiled",
    "peft_use_dora": "DoRA is counted as LoRA",
    "lora_mlp_kernel": "adapters in fused kernels are counted as ordinary ones",
    "lora_qkv_kernel": "adapters in fused kernels are counted as ordinary ones",
    "lora_o_kernel": "adapters in fused kernels are counted as ordinary ones",
}


def matches(source: Source) -> bool:
    """A file that names a base_model."""
    if source.line is not None:
        return source.line.program == "axolotl"
    return "base_model" in source.values


def read(source: Source) -> ImportedRun:
    """The training. Raises ConfigFileError where the DeepSpeed configuration that it names cannot be read."""
    arguments = source.arguments
    part = deepspeed_part(arguments, source.path.parent)
    optimizer, remark, obstacle = optimizer_of(arguments.text("optimizer"))
    adapter, method = _adapter(arguments)
    remarks = [remark] + [said for name, said in _NEAR.items() if arguments.flag(name)]
    kernels, remark = _kernels(arguments)
    remarks.append(remark)
    checkpointing, software = checkpointing_of(arguments)
    offloading = arguments.text("activation_offloading")
    if (arguments.text("gradient_checkpointing") or "").startswith("offload"):
        checkpointing = "offload"
    if checkpointing and offloading not in (None, "false"):
        checkpointing = "offload"
    if "disk" in (offloading or "", (arguments.text("gradient_checkpointing") or "").rpartition("_")[2]):
        remarks.append("activations on the disk are counted as in host RAM")
    pattern = arguments.text("lora_target_modules") or ""
    if re.search(r"[\\(|*]", pattern):
        remarks.append("the pattern of lora_target_modules is counted as all linear layers")
        method["lora_targets"] = None
    fsdp = any(source.values.get(name) for name in ("fsdp", "fsdp_config"))
    for name in ("fsdp", "fsdp_config", "fsdp_version", "dp_shard_size", "dp_replicate_size"):
        arguments.text(name)
    given = [what for name, what in _NO_FIGURES.items() if arguments.text(name) not in (None, "false", "1", "0")]
    obstacle = obstacle or adapter or (f"there are no figures here of {given[0]}" if given else "")
    training: dict[str, Any] = {
        "optimizer": optimizer,
        "precision": _precision(arguments),
        "seq_len": arguments.number("sequence_len") or _SEQ_LEN,
        "attention": _attention(arguments),
        "software": {"fp32-adapters": True, **software},
        "mlp": "tiled" if arguments.flag("tiled_mlp") else None,
        **method,
        **kernels,
    }
    run = ImportedRun(
        tool="axolotl",
        launcher="accelerate",
        expandable_segments=True,  # utils/__init__.py `set_pytorch_cuda_alloc_conf`
        model=arguments.text("base_model"),
        training={name: value for name, value in training.items() if value is not None},
        micro_batch_size=arguments.number("micro_batch_size") or 1,
        gradient_accumulation_steps=arguments.number("gradient_accumulation_steps") or 1,
        gradient_checkpointing=checkpointing,
        sharding="zero" if part is not None else "fsdp" if fsdp else "none",
        deepspeed=part,
        remarks=tuple(dict.fromkeys(remark for remark in remarks if remark)),
        obstacle=obstacle,
    )
    return with_leftovers(run, arguments, "axolotl", _HARMLESS)


def changes(source: Source, run: ImportedRun, better: Improvement) -> dict[KeyPath, Value]:
    """The keys that make it the better run."""
    changed = batch_changes(run, better, micro="micro_batch_size", checkpointing="gradient_checkpointing")
    if better.plan.cpu_checkpointing != (run.gradient_checkpointing == "offload"):
        changed[("gradient_checkpointing",)] = better.plan.gradient_checkpointing
        offloaded = True if better.plan.cpu_checkpointing else None
        if offloaded or "activation_offloading" in source.values:
            changed[("activation_offloading",)] = offloaded
    if run.sharding == "fsdp" and better.config_name is not None:
        changed |= {(name,): None for name in ("fsdp", "fsdp_config", "fsdp_version") if name in source.values}
    return changed | deepspeed_change(source, run, better)


def _adapter(arguments: ScriptArguments) -> tuple[str, dict[str, Any]]:
    """(an obstacle, what is said of the method)."""
    adapter = arguments.text("adapter")
    four_bits, gptq = arguments.flag("load_in_4bit"), arguments.flag("gptq")
    for name in ("lora_r", "lora_dropout", "lora_target_modules", "lora_target_linear", "lora_alpha"):
        arguments.text(name)
    if adapter is None:
        return "", {}
    if adapter not in ("lora", "qlora"):
        return f"there are no figures here of the adapter {adapter[:20]}", {}
    eight_bits = arguments.flag("load_in_8bit") and not four_bits
    method: dict[str, Any] = {"method": "qlora" if four_bits or eight_bits or gptq else "lora", **arguments.lora}
    if eight_bits:
        method["quantization"] = "int8"
    if gptq:
        method["quantization"] = "gptq"
    if arguments.flag("lora_target_linear"):
        method["lora_targets"] = None
    return "", method


def _precision(arguments: ScriptArguments) -> str:
    said = precision_of(arguments, unset="auto" if arguments.text("bf16", "fp16") is None else "fp32")
    if arguments.flag("bfloat16"):
        return "bf16"
    if arguments.flag("float16"):
        return "fp16"
    return "auto" if arguments.text("bf16") == "auto" else said


def _attention(arguments: ScriptArguments) -> str | None:
    switches = {"flash_attention": "flash", "sdp_attention": "sdpa", "eager_attention": "eager"}
    chosen = [kernel for name, kernel in switches.items() if arguments.flag(name)]
    return attention_of(arguments, "attn_implementation") or (chosen[0] if chosen else None)


def _kernels(arguments: ScriptArguments) -> tuple[dict[str, Any], str]:
    """(kernels and loss, a remark)."""
    plugins = " ".join(arguments.texts("plugins"))
    said: dict[str, Any] = {}
    names = ("liger_rms_norm", "liger_rope", "liger_layer_norm", "liger_glu_activation", "liger_swiglu")
    switched = [name for name in names if arguments.flag(name)]
    if switched and "Liger" in plugins:
        said["kernels"] = "liger"
    if arguments.flag("liger_fused_linear_cross_entropy") and "Liger" in plugins:
        said["loss"] = "fused"
    elif "CutCrossEntropy" in plugins:
        return said | {"loss": "fused"}, "cut cross entropy is counted as Liger's fused loss"
    elif arguments.flag("flash_attn_cross_entropy"):
        said["loss"] = "in-place"
    elif arguments.flag("chunked_cross_entropy"):
        said["loss"] = "chunked"
    return said, ""
