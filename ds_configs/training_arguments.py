"""The transformers.TrainingArguments that belong to a plan, and accelerate's configuration file."""

from __future__ import annotations

import json
from typing import Any

from ..estimators.hardware.cluster import Cluster
from ..estimators.optimizers import optimizer
from ..estimators.plan import Plan
from ..estimators.workload import Workload
from .launch_commands import PORT

ATTENTION = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
"""What transformers calls the attention kernels."""

_CLASSES = {"parallelism_config": "ParallelismConfig", "sp_handler": "DeepSpeedSequenceParallelConfig"}
"""Arguments that are objects of accelerate's classes, as Python writes them."""


def training_arguments(
    plan: Plan, workload: Workload, cluster: Cluster, *, config_path: str = "ds_config.json"
) -> dict[str, Any]:
    """Keyword arguments of TrainingArguments, in the order to print them. They fill every `auto` of the "hf" flavour.

    gradient_checkpointing_kwargs: unless asked for otherwise, the non-reentrant form, which PyTorch recommends and LoRA
    needs (behind frozen embeddings no input of a block requires a gradient, and the reentrant form then computes none).
    optim: only for optimizers that DeepSpeed does not create; with an `optimizer` block it has no effect.
    """
    arguments: dict[str, Any] = {
        "output_dir": "output",
        "per_device_train_batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "gradient_checkpointing": plan.gradient_checkpointing,
    }
    if plan.gradient_checkpointing:
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": workload.software.reentrant}
        if plan.cpu_checkpointing:
            arguments["gradient_checkpointing_kwargs"]["offload"] = True
    if workload.precision != "fp32":
        arguments[workload.precision] = True
    spec = optimizer(workload.optimizer)
    if not spec.block_type:
        arguments["optim"] = spec.trainer_names[0]
    if workload.loss == "fused" or workload.kernels == "liger":
        arguments["use_liger_kernel"] = True
    if workload.loss in ("standard", "tiled") and workload.kernels == "liger":
        arguments["liger_kernel_config"] = {"fused_linear_cross_entropy": False}
    if plan.sequence_parallel_size > 1:
        arguments["parallelism_config"] = parallelism_config(plan, workload, cluster)
    arguments["deepspeed"] = config_path
    return arguments


def parallelism_config(plan: Plan, workload: Workload, cluster: Cluster) -> dict[str, Any]:
    """Keyword arguments of accelerate's ParallelismConfig, and of its `sp_handler`, where GPUs share samples.

    dp_shard_size: the groups of GPUs; accelerate makes train_batch_size of it. The model must be loaded with the
    attention that is named here.
    """
    return {
        "sp_backend": "deepspeed",
        "sp_size": plan.sequence_parallel_size,
        "dp_shard_size": cluster.world_size // plan.sequence_parallel_size,
        "sp_handler": {"sp_seq_length_is_variable": True, "sp_attn_implementation": ATTENTION[workload.attention]},
    }


def training_arguments_snippet(arguments: dict[str, Any]) -> str:
    """Python source of the call, one argument a line."""
    source = "".join(f"\n{name}={_argument(name, value)},".replace("\n", "\n    ") for name, value in arguments.items())
    return f"TrainingArguments({source}\n)"


def accelerate_config(plan: Plan, cluster: Cluster, *, config_path: str = "ds_config.json") -> str:
    """YAML for `accelerate launch --config_file`, for scripts on accelerate without the Trainer.

    Precision and accumulation stay with the script, `Accelerator(mixed_precision="bf16",
    gradient_accumulation_steps=...)`: accelerate refuses a configuration that repeats what a DeepSpeed configuration
    can say. `Accelerator(parallelism_config=...)` stays there too: accelerate reads it from this file for FSDP only. On
    several nodes machine_rank and main_process_ip are the node's own to fill in.
    """
    lines = [
        "compute_environment: LOCAL_MACHINE",
        "distributed_type: DEEPSPEED",
        "deepspeed_config:",
        f"  deepspeed_config_file: {json.dumps(config_path)}",  # a JSON string is a YAML string
        f"  zero3_init_flag: {json.dumps(plan.zero_stage == 3)}",
        *(["  deepspeed_multinode_launcher: standard"] if cluster.nodes > 1 else []),
        f"num_machines: {cluster.nodes}",
        f"num_processes: {cluster.world_size}",
        "machine_rank: 0",
        *(["main_process_ip: node-0", f"main_process_port: {PORT}"] if cluster.nodes > 1 else []),
    ]
    return "\n".join(lines) + "\n"


def _argument(name: str, value: Any) -> str:
    """Source of an argument; objects of accelerate's go over several lines."""
    if name not in _CLASSES:
        return python_source(value)
    inner = "".join(f"\n{key}={_argument(key, item)},".replace("\n", "\n    ") for key, item in value.items())
    return f"{_CLASSES[name]}({inner}\n)"


def python_source(value: Any) -> str:
    """Source of a value, with the double quotes that formatters prefer."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python_source(key)}: {python_source(item)}" for key, item in value.items()) + "}"
    return repr(value)
