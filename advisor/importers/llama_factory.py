"""LLaMA-Factory: its YAML or JSON, or the options of `llamafactory-cli train`."""

from __future__ import annotations

import re
from typing import Any

from ..launch.script_arguments import ScriptArguments
from .changes import batch_changes, deepspeed_change, fault_changes
from .command_line import with_counts
from .hf_arguments import attention_of, deepspeed_part, optimizer_of, precision_of, quantization_of, with_leftovers
from .imported_run import ImportedRun, Improvement, KeyPath, Value
from .source import Source

_WORDS = {"finetuning_type", "stage", "cutoff_len", "template", "quantization_bit", "dataset_dir"}

_SECOND_FORM = {"dist_config", "model_class"}
"""Words of its examples/v1."""

_SEQ_LEN, _MICRO_BATCH = 2048, 8
"""Defaults of cutoff_len (hparams/data_args.py) and of TrainingArguments."""

_HARMLESS = re.compile(
    r"template|media_dir|mix_strategy|interleave_probs|buffer_size|tool_format|default_system|enable_thinking|"
    r"preserve_thinking|tokenized_path|data_shared_file_system|packing|neat_packing|mask_history|max_length|val_size|"
    r"plot_loss|compute_accuracy|disable_shuffling|export_\w+|infer_\w+|offload_folder|adapter_folder|"
    r"additional_special_tokens|split_special_tokens|rope_scaling|moe_aux_loss_coef|ray_\w+|resources_per_worker|"
    r"placement_strategy|num_workers|use_rslora|loraplus_\w+|lora_alpha|create_new_adapter|image_\w+|video_\w+|"
    r"pissa_\w+|use_dft_loss|asft_alpha|use_eaft_loss|eaft_alpha|print_param_status|double_quantization|hub_\w+|"
    r"quantization_type|ddp_timeout|use_swanlab|master_addr|master_port|use_ray|do_\w+|trust_remote_code"
)

_NO_FIGURES = {
    "use_galore": "GaLore's projected states",
    "use_apollo": "APOLLO's projected states",
    "use_badam": "BAdam's blocks",
    "use_adam_mini": "Adam-mini's states",
    "use_llama_pro": "LLaMA Pro's added layers",
    "use_unsloth": "unsloth's own layers",
    "use_kt": "KTransformers",
    "use_mca": "Megatron's layers",
    "use_megatron_bridge": "Megatron's layers",
    "use_hyper_parallel": "its hyper-parallel mode",
    "mixture_of_depths": "mixture of depths",
    "shift_attn": "LongLoRA's shifted attention",
    "use_asft_loss": "a second, frozen pass of the model",
    "fp8": "training in fp8",
}
"""Switches of what no figure here has."""


def matches(source: Source) -> bool:
    """LLaMA-Factory's own words, or its command."""
    if source.line is not None:
        return source.line.program == "llama-factory"
    names = set(source.values)
    return ("model_name_or_path" in names and bool(_WORDS & names)) or bool(_SECOND_FORM & names)


def read(source: Source) -> ImportedRun:
    """The training. Raises ConfigFileError where the DeepSpeed configuration that it names cannot be read."""
    arguments = source.arguments
    part = deepspeed_part(arguments, source.path.parent)
    optimizer, remark, obstacle = optimizer_of("muon" if arguments.flag("use_muon") else arguments.text("optim"))
    remarks = [remark] if remark else []
    training: dict[str, Any] = {
        "optimizer": optimizer,
        "precision": "bf16" if arguments.flag("pure_bf16") else precision_of(arguments),
        "seq_len": arguments.number("cutoff_len") or _SEQ_LEN,
        "attention": attention_of(arguments, "flash_attn"),
        # hparams/model_args.py: use_reentrant_gc is on; model/adapter.py: without DeepSpeed, what trains is in fp32.
        "software": {
            "reentrant": arguments.flag("use_reentrant_gc") is not False,
            "autocast": not arguments.flag("pure_bf16"),
            "fp32-adapters": not arguments.flag("pure_bf16"),
        },
    }
    if arguments.flag("enable_liger_kernel"):
        training |= {"kernels": "liger", "loss": "fused"}
    method = arguments.text("finetuning_type") or "lora"
    if method == "lora":
        training |= {"method": "lora", **arguments.lora}
        if arguments.flag("resize_vocab") and "modules_to_save" not in training:
            training["modules_to_save"] = "embed_tokens,lm_head"  # model/adapter.py trains both then
        if "modules_to_save" in training and part is None and not arguments.flag("pure_bf16"):
            remarks.append(
                "the embeddings that it trains are counted in 16 bits; without DeepSpeed it has them in fp32"
            )
    bits = arguments.number("quantization_bit")
    if bits is not None and method == "lora":
        own = (arguments.text("quantization_method") or "bnb") in ("bnb", "bitsandbytes")
        quantized, remark = quantization_of(bits, bitsandbytes=own)
        training |= quantized
        remarks += [remark] * bool(remark)
    if arguments.flag("use_unsloth_gc"):
        remarks.append("unsloth's checkpointing is counted as ordinary: it keeps layers' inputs in host RAM")
    obstacle = obstacle or _obstacle(arguments, method)
    run = ImportedRun(
        tool="LLaMA-Factory",
        launcher="torchrun",
        expandable_segments=True,  # launcher.py, OPTIM_TORCH
        model=arguments.model,
        training={name: value for name, value in training.items() if value is not None},
        micro_batch_size=arguments.number("per_device_train_batch_size") or _MICRO_BATCH,
        gradient_accumulation_steps=arguments.number("gradient_accumulation_steps") or 1,
        gradient_checkpointing=not arguments.flag("disable_gradient_checkpointing"),
        sharding="zero" if part is not None else "fsdp" if arguments.text("fsdp") else "none",
        deepspeed=part,
        remarks=tuple(remarks),
        obstacle=obstacle,
    )
    run = with_leftovers(run, arguments, "llama-factory", _HARMLESS)
    return run if source.line is None else with_counts(run, source)


def changes(source: Source, run: ImportedRun, better: Improvement) -> dict[KeyPath, Value]:
    """The keys that make it the better run."""
    changed = batch_changes(run, better, micro="per_device_train_batch_size", checkpointing="")
    checkpointing = changed.pop(("",), None)
    if checkpointing is not None:
        changed[("disable_gradient_checkpointing",)] = None if checkpointing else True
    if run.sharding == "fsdp" and better.config_name is not None:
        changed |= {(name,): None for name in ("fsdp", "fsdp_config") if name in source.values}
    return changed | deepspeed_change(source, run, better) | fault_changes(run)


def _obstacle(arguments: ScriptArguments, method: str) -> str:
    """What of it no figure here has; "" for nothing."""
    stage = arguments.text("stage") or "sft"
    if arguments.text(*_SECOND_FORM) is not None:
        return "there are no figures here of the configurations of LLaMA-Factory's v1"
    given = [f"{what} ({name})" for name, what in _NO_FIGURES.items() if arguments.flag(name)]
    if stage not in ("sft", "pt"):
        return f"there are no figures here of stage {stage[:20]}, which has further models or passes"
    if not arguments.flag("do_train"):
        return "it does not train: do_train is not set"
    if method not in ("full", "lora"):
        return f"there are no figures here of finetuning_type {method[:20]}"
    return f"there are no figures here of {given[0]}" if given else ""
