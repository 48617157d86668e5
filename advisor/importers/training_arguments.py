"""TrainingArguments as a JSON file, as the options of a script such as run_clm.py, and of TRL's scripts."""

from __future__ import annotations

import re
from typing import Any

from ...estimators.plan import Sharding
from ..launch.script_arguments import ScriptArguments
from .changes import batch_changes, deepspeed_change, fault_changes
from .hf_arguments import (
    attention_of,
    checkpointing_of,
    deepspeed_part,
    optimizer_of,
    precision_of,
    quantization_of,
    with_leftovers,
)
from .imported_run import ImportedRun, Improvement, KeyPath, Value
from .source import Source

_MICRO_BATCH = 8
"""TrainingArguments' default (transformers 5.23 training_args.py)."""

_HARMLESS = re.compile(r"packing|packing_strategy|padding_free|lora_task_type|text_column|use_peft|task|lora_modules")

_PREFERENCE = ("dpo", "kto", "ppo", "grpo", "orpo", "rloo", "gkd", "reward")


def matches(source: Source) -> bool:
    """A JSON or YAML file with TrainingArguments in it, and no tool's own words."""
    names = set(source.values)
    return source.line is None and source.arguments.are_training_arguments and not names & {"finetuning_type", "stage"}


def read(source: Source) -> ImportedRun:
    """The training. Raises ConfigFileError where the DeepSpeed configuration that it names cannot be read."""
    return read_arguments(source.arguments, source, tool="the Trainer")


def read_arguments(arguments: ScriptArguments, source: Source, *, tool: str) -> ImportedRun:
    """The training that TrainingArguments, and what the field's scripts have beside them, describe."""
    part = deepspeed_part(arguments, source.path.parent)
    optimizer, remark, obstacle = optimizer_of(arguments.text("optim"))
    checkpointing, software = checkpointing_of(arguments)
    training: dict[str, Any] = {
        "optimizer": optimizer,
        "precision": precision_of(arguments),
        "seq_len": arguments.seq_len,
        "attention": _attention(arguments),
        **({"software": software} if software else {}),
    }
    remarks = [remark] if remark else []
    if arguments.flag("use_liger_kernel") or arguments.flag("use_liger"):
        training |= {"kernels": "liger", "loss": "fused"}
    if arguments.adapts:
        training |= {"method": "qlora" if arguments.loads_in_4_bits else "lora", **arguments.lora}
        if arguments.flag("load_in_8bit") and not arguments.loads_in_4_bits:
            training |= quantization_of(8, bitsandbytes=True)[0]
    sharding: Sharding = (
        "zero" if part is not None else "fsdp" if arguments.text("fsdp") not in (None, "[]") else "none"
    )
    script = source.line.target if source.line is not None else ""
    if any(re.search(rf"(^|[/_.]){kind}([/_.]|$)", script) for kind in _PREFERENCE):
        obstacle = obstacle or f"there are no figures here of {script}, which has further models or passes"
    micro = arguments.number("per_device_train_batch_size", "per_gpu_train_batch_size")
    if micro is None and arguments.are_training_arguments:
        micro = _MICRO_BATCH
    plain = micro is None and arguments.text("deepspeed_config") is not None
    if plain:
        obstacle = obstacle or (
            f"there are no figures here of a script that hands DeepSpeed its --deepspeed_config itself: pass "
            f"{part.name[:80] if part is not None else 'it'} to ds-advise check, compare or dry-run, with --model and "
            f"--gpus"
        )
    run = ImportedRun(
        tool=tool,
        framework="deepspeed" if plain else "hf",
        model=arguments.model,
        training={name: value for name, value in training.items() if value is not None},
        micro_batch_size=micro,
        gradient_accumulation_steps=arguments.number("gradient_accumulation_steps") or 1,
        gradient_checkpointing=checkpointing,
        sharding=sharding,
        deepspeed=part,
        remarks=tuple(remarks),
        obstacle=obstacle,
    )
    return with_leftovers(run, arguments, None, _HARMLESS)


def changes(source: Source, run: ImportedRun, better: Improvement) -> dict[KeyPath, Value]:
    """The arguments that make it the better run."""
    # transformers 5.23 calls it activation_checkpointing, and takes the older name where that is not given.
    newer = source.arguments.flag("activation_checkpointing") is not None
    checkpointing = "activation_checkpointing" if newer else "gradient_checkpointing"
    changed = batch_changes(run, better, micro="per_device_train_batch_size", checkpointing=checkpointing)
    if better.plan.cpu_checkpointing and run.gradient_checkpointing != "offload":
        kept = {"use_reentrant": False, "offload": True}
        changed[(f"{checkpointing}_kwargs",)] = kept
    elif run.gradient_checkpointing == "offload" and not better.plan.cpu_checkpointing:
        changed[(f"{checkpointing}_kwargs",)] = None
    if run.sharding == "fsdp" and better.config_name is not None:
        changed |= {(name,): None for name in ("fsdp", "fsdp_config") if name in source.values}
    return changed | deepspeed_change(source, run, better) | fault_changes(run)


def _attention(arguments: ScriptArguments) -> str | None:
    if arguments.flag("use_flash_attn") or arguments.flag("use_flash_attention_2"):
        return "flash"
    return attention_of(arguments, "attn_implementation", "attn_impl")
