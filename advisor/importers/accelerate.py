"""accelerate's own configuration, for `accelerate launch --config_file`, also as other tools' files name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from ...estimators.errors import ConfigFileError
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from .imported_run import (
    TWO_CHECKPOINTINGS,
    DeepSpeedPart,
    ImportedRun,
    Value,
    names_of,
    nearest_names,
    parse_fsdp,
    read_as_meant,
    read_fsdp,
    with_nearest,
)
from .script_arguments import FP8_RESTS_IN
from .shipped_configs import TRL_ACCELERATE
from .source import Source, find_file, named_part, read_source

WITH_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)
"""Keys of `deepspeed_config` that accelerate refuses if a configuration file is also named; it then refuses
`mixed_precision` too (1.15 utils/dataclasses.py `_deepspeed_config_checks`, commands/launch.py `launch_command`)."""

_BLOCK = "deepspeed_config"
FIELDS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("gradient_accumulation_steps",): (_BLOCK, "gradient_accumulation_steps"),
    ("gradient_clipping",): (_BLOCK, "gradient_clipping"),
    ("zero_optimization",): (_BLOCK, "zero_stage"),
    ("zero_optimization", "stage"): (_BLOCK, "zero_stage"),
    ("zero_optimization", "offload_optimizer"): (_BLOCK, "offload_optimizer_device"),
    ("zero_optimization", "offload_optimizer", "device"): (_BLOCK, "offload_optimizer_device"),
    ("zero_optimization", "offload_optimizer", "nvme_path"): (_BLOCK, "offload_optimizer_nvme_path"),
    ("zero_optimization", "offload_param"): (_BLOCK, "offload_param_device"),
    ("zero_optimization", "offload_param", "device"): (_BLOCK, "offload_param_device"),
    ("zero_optimization", "offload_param", "nvme_path"): (_BLOCK, "offload_param_nvme_path"),
    ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"): (_BLOCK, "zero3_save_16bit_model"),
    ("bf16",): ("mixed_precision",),
    ("bf16", "enabled"): ("mixed_precision",),
    ("fp16",): ("mixed_precision",),
    ("fp16", "enabled"): ("mixed_precision",),
}
"""The fields that `_deepspeed` makes DeepSpeed's keys from."""

CONFIG_OPTIONS = ("accelerate_config", "config_file")
"""TRL's options that name a configuration of accelerate (1.16 cli/accelerate_config.py)."""

_CHECKPOINTING_BY_FSDP = "fsdp_activation_checkpointing"
"""The key of FSDP's own checkpointing, with which the key of its offload begins."""

_PREFIX = "parallelism_config_"
"""Of all keys in accelerate's `parallelism_config`."""


class AccelerateFormat:
    """accelerate's format. Micro batch and checkpointing are left open, because the script decides them."""

    name = "accelerate"
    title = "an accelerate configuration"
    tool = ""
    offload = None

    def words(self, *_: object) -> tuple[str, ...]:
        """None, because the file names no script."""
        return ()

    def matches(self, source: Source) -> bool:
        return bool({"distributed_type", "compute_environment"} & set(source.values))

    def read(self, source: Source) -> ImportedRun:
        """The run that the file describes. Raises ConfigFileError for values of a wrong type."""
        names, values = names_of(self.name), source.values
        wrong = [key for key in values if key not in names]
        unknown = with_nearest(wrong, names, {})
        meant = {name: near for name, near in nearest_names(wrong, names).items() if near not in values}
        values = {meant.get(key, key): value for key, value in values.items()}
        source = replace(source, values=values)
        kind = str(values.get("distributed_type") or "NO").upper()  # YAML parses a bare NO as false
        block = _block(values, "deepspeed_config") if kind == "DEEPSPEED" else {}
        part = _deepspeed(source, block) if kind == "DEEPSPEED" else None
        faults = []
        refused = [key for key in WITH_FILE if key in block] + ["mixed_precision"] * ("mixed_precision" in values)
        if refused and block.get("deepspeed_config_file") is not None:
            faults.append(
                f"accelerate refuses {', '.join(refused)} together with deepspeed_config_file: set them there"
            )
        if unknown:
            faults.append(f"accelerate stops at keys that it does not know: {', '.join(unknown)}")
        missing = [name for name in ("fp8_config", "megatron_lm_config") if values.get(name)]
        is_known = kind in ("DEEPSPEED", "FSDP", "NO") or kind.startswith("MULTI_")
        processes, machines = _count(values, "num_processes"), _count(values, "num_machines") or 1
        accumulation, precision = block.get("gradient_accumulation_steps"), _precision(values)
        remarks = []
        if accumulation == "auto":
            # `accelerate launch` exports it, and `Accelerator.__init__` calls int() on it (1.15 accelerator.py). The
            # Trainer passes its own number instead.
            remarks.append(
                "gradient_accumulation_steps: auto stops a script with a plain Accelerator() (ValueError: invalid "
                "literal for int()): write a number, or remove the key, unless the script uses the Trainer"
            )
        fsdp = _block(values, "fsdp_config") if kind == "FSDP" else {}
        run = ImportedRun(
            tool="accelerate",
            leaves_batch_to_script=True,
            loads_fp32=True,
            assumes_fp32=True,
            launcher="accelerate",
            training={"precision": precision} if precision in ("bf16", "fp16") else {},
            gradient_accumulation_steps=accumulation if isinstance(accumulation, int) and accumulation > 0 else 1,
            sharding="zero" if part is not None else parse_fsdp(fsdp.get("fsdp_version")) if kind == "FSDP" else "none",
            deepspeed=part,
            nodes=machines,
            gpus_per_node=max(1, processes // machines) if processes else None,
            faults=tuple(faults),
            remarks=remarks,
            obstacle="" if is_known and not missing else f"not predicted: {', '.join(missing) or kind}",
            unknown=unknown,
        )
        read_as_meant(run, meant)
        read_fsdp(run, fsdp)
        _read_groups(run, values, processes)
        return run

    def changes(
        self,
        source: Source,
        run: ImportedRun,
        plan: Plan,
        part: DeepSpeedPart | None,
        _workload: Workload | None = None,
    ) -> dict[str, Value]:
        """The keys that name the better DeepSpeed configuration, and the numbers of processes, machines and groups."""
        if part is None:
            fsdp = _block(source.values, "fsdp_config")
            kept = {name: value for name, value in fsdp.items() if not name.startswith(_CHECKPOINTING_BY_FSDP)}
            return {} if plan.gradient_checkpointing or kept == fsdp else {"fsdp_config": kept}
        values, changed = source.values, config_named(source.values, part.name, stage=plan.zero_stage)
        changed |= changed_counts(values, run.processes, run.nodes)
        sizes, processes = _sizes(values), run.processes
        if processes is not None and plan.sequence_parallel_size > 1 and prod(sizes.values()) != processes:
            groups = {f"{_PREFIX}dp_shard_size": processes // plan.sequence_parallel_size}
            replicas = {f"{_PREFIX}dp_replicate_size": 1} if sizes["dp_replicate"] > 1 else {}
            changed["parallelism_config"] = {**_block(values, "parallelism_config"), **groups, **replicas}
        return changed


ACCELERATE = AccelerateFormat()


def config_named(values: Mapping[str, Any], file: str, *, stage: int) -> dict[str, Value]:
    """The changes of accelerate's configuration that name a file with DeepSpeed's, because accelerate's fields cannot
    express all of it."""
    kept = {name: value for name, value in _block(values, "deepspeed_config").items() if name not in WITH_FILE}
    changed: dict[str, Value] = {
        "deepspeed_config": kept | {"deepspeed_config_file": file, "zero3_init_flag": stage == 3}
    }
    removed = ["mixed_precision"]
    if str(values.get("distributed_type")) != "DEEPSPEED":
        changed["distributed_type"] = "DEEPSPEED"
        removed += ["fsdp_config", "parallelism_config"]
    return changed | {name: None for name in removed if name in values}


def changed_counts(values: Mapping[str, Any], processes: int | None, machines: int | None) -> dict[str, Value]:
    """The changes of a file's numbers of processes and machines to these; {} if that of processes is not known."""
    if processes is None:
        return {}
    counts = {"num_processes": processes, "num_machines": machines or 1}
    least = {"num_machines": 1}  # accelerate's default
    return {name: count for name, count in counts.items() if count != values.get(name, least.get(name))}


def _sizes(values: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the groups of GPUs by kind (accelerate 1.15 parallelism_config.py `ParallelismConfig`)."""
    block = _block(values, "parallelism_config")
    return {
        name: _count(block, f"{_PREFIX}{name}_size") or 1 for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }


def _read_groups(run: ImportedRun, values: Mapping[str, Any], processes: int | None) -> None:
    """Put the groups of GPUs into the run: those that share samples under DeepSpeed's Ulysses, which decides the
    kernel of attention and may fix the length of samples, and those of FSDP2's hybrid sharding."""
    sizes, block, part = _sizes(values), _block(values, "parallelism_config"), run.deepspeed
    if part is not None and sizes["sp"] > 1:
        attention = str(block.get(f"{_PREFIX}sp_attn_implementation"))
        run.training["attention"] = "flash" if attention.startswith("flash") else "sdpa"
        if block.get(f"{_PREFIX}sp_seq_length_is_variable") is False:
            run.training["seq_len"] = _count(block, f"{_PREFIX}sp_seq_length")
        config = None if part.config is None else {**part.config, "sequence_parallel_size": sizes["sp"]}
        run.deepspeed = replace(part, config=config)
    if run.sharding == "fsdp2" and sizes["dp_replicate"] > 1:
        run.hybrid_shard_size = sizes["dp_shard"]
    predicted = {"dp_shard", "sp" if part is not None else "", "dp_replicate" if run.sharding != "fsdp" else ""}
    for name in sizes:
        if sizes[name] > 1 and name not in predicted:
            run.lacks(f"{_PREFIX}{name}_size: {sizes[name]}")
    total = prod(sizes.values())
    if total > 1 and processes not in (None, total):
        text = f"the sizes of parallelism_config multiply to {total}, not to the {processes} of num_processes"
        run.faults += (f"{text}: set {_PREFIX}dp_shard_size",)


def _deepspeed(source: Source, block: Mapping[str, Any]) -> DeepSpeedPart:
    """The configuration file that the block names, or the configuration that accelerate makes from its own fields (1.15
    utils/dataclasses.py `DeepSpeedPlugin`)."""
    file = block.get("deepspeed_config_file")
    if file is not None:
        return named_part(str(file), source.path.parent)
    zero: dict[str, Any] = {"stage": block.get("zero_stage", 2)}
    for what in ("optimizer", "param"):
        device = str(block.get(f"offload_{what}_device") or "none")
        zero[f"offload_{what}"] = {"device": device}
        if device == "nvme":
            zero[f"offload_{what}"]["nvme_path"] = str(block.get(f"offload_{what}_nvme_path") or "none")
    zero["stage3_gather_16bit_weights_on_model_save"] = bool(block.get("zero3_save_16bit_model", False))
    config: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": block.get("gradient_accumulation_steps", "auto"),
        "zero_optimization": zero,
    }
    if clipping := block.get("gradient_clipping", "auto"):
        config["gradient_clipping"] = clipping
    precision = _precision(source.values)
    if precision in ("bf16", "fp16"):
        config[precision] = {"enabled": True}
    paths = (("zero_optimization", name) for name in zero if name != "stage")
    implied = tuple(path for path in paths if FIELDS[path][-1] not in block)
    return DeepSpeedPart(name="deepspeed_config", config=config, implied=implied)


def _precision(values: Mapping[str, Any]) -> str:
    named = str(values.get("mixed_precision"))
    return FP8_RESTS_IN if named == "fp8" else named


def _block(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigFileError(
            f"{key} contains {value!r}", why="accelerate expects keys there", fix="write them below it"
        )
    return value or {}


def _count(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigFileError(f"{key} is {value!r}", why="it is a number", fix="write a whole number from 1")
    return value


def add_accelerate_file(run: ImportedRun, name: str, folder: Path) -> None:
    """Add the settings of accelerate's configuration to the run of a file in this folder that names it: a path, or one
    of those that TRL ships."""
    path = find_file(name, folder)
    if path is not None:
        source = read_source(path)
    elif name in TRL_ACCELERATE:
        source = Source(path=folder / name, text="", kind="yaml", values=TRL_ACCELERATE[name])
        run.remarks.append(f"accelerate_config {name} is TRL 1.16's own, trl/accelerate_configs/{name}.yaml")
    else:
        run.sharding, run.deepspeed = "zero", DeepSpeedPart(name=name, config=None)
        return
    launch, run.accelerate_file = ACCELERATE.read(source), name
    if run.training.get("precision") == "fp32":
        run.training |= launch.training
    run.sharding, run.deepspeed = launch.sharding, launch.deepspeed
    run.hybrid_shard_size = launch.hybrid_shard_size
    if run.gradient_checkpointing and launch.gradient_checkpointing:
        run.faults += (TWO_CHECKPOINTINGS,)
    run.gradient_checkpointing = run.gradient_checkpointing or launch.gradient_checkpointing
    run.nodes, run.gpus_per_node = launch.nodes, launch.gpus_per_node
    run.faults += launch.faults
    run.add_obstacle(launch.obstacle)
