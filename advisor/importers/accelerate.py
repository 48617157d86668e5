"""accelerate's own configuration, for `accelerate launch --config_file`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...estimators.errors import ConfigFileError
from .hf_arguments import named_part
from .imported_run import DeepSpeedPart, ImportedRun, Improvement, KeyPath, Value
from .source import Source

_READ = {
    "compute_environment",
    "distributed_type",
    "deepspeed_config",
    "fsdp_config",
    "mixed_precision",
    "num_processes",
    "num_machines",
    "use_cpu",
}
_HARMLESS = {
    "debug",
    "downcast_bf16",
    "dynamo_config",
    "enable_cpu_affinity",
    "gpu_ids",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "main_training_function",
    "rdzv_backend",
    "same_network",
    "tpu_env",
    "tpu_name",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_vm",
    "tpu_zone",
    "command_file",
    "commands",
    "mpirun_config",
    "fp16",
    "dynamo_backend",
}
_OTHER = {"fp8_config", "parallelism_config", "megatron_lm_config"}
"""Blocks that decide memory or speed, and that no figure here has."""

_WITH_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)
"""Keys of `deepspeed_config` that accelerate stops at where a file is named too, as it does at `mixed_precision`
(1.15 utils/dataclasses.py `_deepspeed_config_checks`, commands/launch.py `launch_command`)."""

_BESIDE_FILE = ("deepspeed_config_file", "zero3_init_flag", "deepspeed_multinode_launcher", "deepspeed_hostfile")
_KEPT = (*_BESIDE_FILE, "deepspeed_exclusion_filter", "deepspeed_inclusion_filter", "deepspeed_moe_layer_cls_names")


def matches(source: Source) -> bool:
    """A file with a key that only accelerate has."""
    return bool({"distributed_type", "compute_environment"} & set(source.values)) and source.line is None


def read(source: Source) -> ImportedRun:
    """The launch. The script decides micro batch and checkpointing, so they are open.

    Raises ConfigFileError for values that are of another type than accelerate's.
    """
    values = source.values
    kind = str(values.get("distributed_type") or "NO").upper()  # YAML reads a bare NO as false
    block = _block(values, "deepspeed_config") if kind == "DEEPSPEED" else {}
    part: DeepSpeedPart | None = None
    faults: list[str] = []
    if kind == "DEEPSPEED":
        part, faults = _deepspeed(source, block)
    unknown = tuple(name for name in values if name not in _READ | _HARMLESS | _OTHER)
    if unknown:
        faults.append(f"accelerate stops at keys that it does not know: {', '.join(unknown)}")
    processes, machines = _count(values, "num_processes"), _count(values, "num_machines") or 1
    others = sorted(name for name in _OTHER if values.get(name))
    obstacle = ""
    if others or (kind not in ("DEEPSPEED", "FSDP", "NO") and not kind.startswith("MULTI_")):
        obstacle = f"there are no figures here of {', '.join(others) or kind}"
    accumulation = block.get("gradient_accumulation_steps")
    return ImportedRun(
        tool="accelerate",
        leaves_batch_to_script=True,
        launcher="accelerate",
        training=_precision(values),
        gradient_accumulation_steps=accumulation if isinstance(accumulation, int) and accumulation > 0 else 1,
        sharding="zero" if part is not None else "fsdp" if kind == "FSDP" else "none",
        deepspeed=part,
        nodes=machines,
        gpus_per_node=max(1, processes // machines) if processes else None,
        faults=tuple(faults),
        obstacle=obstacle,
        uncounted=tuple(f"deepspeed_config.{name}" for name in block if name not in (*_KEPT, *_WITH_FILE)),
        unknown=unknown,
    )


def _deepspeed(source: Source, block: Mapping[str, Any]) -> tuple[DeepSpeedPart, list[str]]:
    """(the configuration, what accelerate refuses)."""
    name = block.get("deepspeed_config_file")
    faults: list[str] = []
    precision = str(source.values.get("mixed_precision") or "no")
    if name is None:
        return DeepSpeedPart(name="deepspeed_config", config=_from_fields(block, precision)), []
    ambiguous = [key for key in _WITH_FILE if key in block] + ["mixed_precision"] * ("mixed_precision" in source.values)
    if ambiguous:
        faults.append(
            f"accelerate stops at {', '.join(ambiguous)} beside deepspeed_config_file: they belong into that file"
        )
    return named_part(str(name), source.path.parent), faults


def _from_fields(block: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """The configuration that accelerate makes of its own fields (1.15 utils/dataclasses.py `DeepSpeedPlugin`)."""
    zero: dict[str, Any] = {"stage": block.get("zero_stage", 2)}
    for what in ("optimizer", "param"):
        device = str(block.get(f"offload_{what}_device") or "none")
        offload = {"device": device}
        if device == "nvme":
            offload["nvme_path"] = str(block.get(f"offload_{what}_nvme_path") or "none")
        zero[f"offload_{what}"] = offload
    zero["stage3_gather_16bit_weights_on_model_save"] = bool(block.get("zero3_save_16bit_model", False))
    config: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": block.get("gradient_accumulation_steps", "auto"),
        "zero_optimization": zero,
    }
    if clipping := block.get("gradient_clipping", "auto"):
        config["gradient_clipping"] = clipping
    if precision in ("bf16", "fp16"):
        config[precision] = {"enabled": True}
    return config


def changes(source: Source, _run: ImportedRun, better: Improvement) -> dict[KeyPath, Value]:
    """The keys that hand the better DeepSpeed configuration over as a file: fields cannot say all of it."""
    block = _block(source.values, "deepspeed_config")
    if better.config_name is None:
        return {}
    changed: dict[KeyPath, Value] = {("deepspeed_config", "deepspeed_config_file"): better.config_name}
    init = better.plan.zero_stage == 3
    if block.get("zero3_init_flag") is not init:
        changed[("deepspeed_config", "zero3_init_flag")] = init
    changed |= {("deepspeed_config", key): None for key in _WITH_FILE if key in block}
    if "mixed_precision" in source.values:
        changed[("mixed_precision",)] = None
    if str(source.values.get("distributed_type")) != "DEEPSPEED":
        changed[("distributed_type",)] = "DEEPSPEED"
        changed |= {(name,): None for name in ("fsdp_config",) if name in source.values}
    return changed


def _precision(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing where the script decides it."""
    said = values.get("mixed_precision")
    return {"precision": said} if said in ("bf16", "fp16") else {}


def _block(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigFileError(f"{key} holds {value!r}", why="accelerate expects keys there", fix="write them below it")
    return value or {}


def _count(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigFileError(f"{key} is {value!r}", why="it counts", fix="write a whole number from 1")
    return value
