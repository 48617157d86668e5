"""Files that start a training with a scheduler or a launcher: Slurm, Kubernetes, SkyPilot, Ray, accelerate, a hostfile.

They only start processes: every rank runs the user's script with the arguments and variables of the printed commands
(`launch_commands`). Requirements and tests of each: docs/job-files.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .job import Job, JobKind, yaml_text
from .launch_commands import PORT
from .schedulers import create_configmap, ray_script, skypilot_task, slurm_script, train_job


def accelerate_config(job: Job) -> str:
    """The configuration of `accelerate launch`, which refers to the DeepSpeed configuration."""
    deepspeed: dict[str, Any] = {"deepspeed_config_file": job.config_path}
    zero = job.config.get("zero_optimization")
    deepspeed["zero3_init_flag"] = isinstance(zero, Mapping) and zero.get("stage") == 3
    if job.cluster.nodes > 1:
        deepspeed["deepspeed_multinode_launcher"] = "standard"  # each node starts its own ranks; no ssh
    return _accelerate_config(job, {"distributed_type": "DEEPSPEED", "deepspeed_config": deepspeed})


def fsdp2_config(job: Job, precision: str, *comments: str) -> str:
    """The configuration of `accelerate launch` for FSDP2, with one unit per layer (accelerate 1.15 utils/dataclasses.py
    `FullyShardedDataParallelPlugin`). Only one rank of a node loads the model."""
    fsdp = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": True,
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    return _fsdp_config(job, fsdp, precision, *comments)


def fsdp_config(job: Job, precision: str, *comments: str) -> str:
    """The configuration of `accelerate launch` for FSDP 1 with adapters on NF4 weights, one unit per layer. The units
    keep no original parameters; transformers gives each trained tensor a unit of its own, and gathers in the storage's
    type (peft docs/source/accelerate/fsdp.md, transformers 5.24 distributed/fsdp.py `update_fsdp_plugin_peft`)."""
    fsdp = {
        "fsdp_version": 1,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_use_orig_params": False,
        "fsdp_sync_module_states": True,
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    return _fsdp_config(job, fsdp, precision, *comments)


def _fsdp_config(job: Job, fsdp: dict[str, Any], precision: str, *comments: str) -> str:
    mixed = "no" if precision == "fp32" else precision
    backend = {"distributed_type": "FSDP", "fsdp_config": fsdp, "mixed_precision": mixed}
    return _accelerate_config(job, backend, *comments)


def _accelerate_config(job: Job, backend: Mapping[str, Any], *comments: str) -> str:
    cluster, several = job.cluster, dict[str, Any]()
    if cluster.nodes > 1:
        several = {"machine_rank": 0, "main_process_port": PORT, "rdzv_backend": "static", "same_network": True}
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        **backend,
        "num_machines": cluster.nodes,
        "num_processes": cluster.world_size,
        **several,
        "use_cpu": cluster.gpu.is_cpu,
    }
    return yaml_text(values, f"{job.script} on {job.place}.", *comments)


def start_accelerate(job: Job, path: str) -> tuple[str, ...]:
    node = " --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR" if job.cluster.nodes > 1 else ""
    module = "--module " * job.is_module
    command = f"accelerate launch --config_file {path}{node} {module}{shlex.join([job.script, *job.arguments])}"
    return (*(f"export {setting}" for setting in job.settings), command)


def hostfile(job: Job) -> str:
    """The nodes for DeepSpeed's launcher, with placeholder names."""
    names = [f"node-{node}" for node in range(job.cluster.nodes)] if job.cluster.nodes > 1 else ["localhost"]
    lines = [f"{name} slots={job.cluster.gpus_per_node}" for name in names]
    return "\n".join(["# The names of the nodes, which ssh reaches without a password.", *lines, ""])


def start_hostfile(job: Job, path: str) -> tuple[str, ...]:
    """Start lines of a hostfile. ssh passes no variables on; DeepSpeed's launcher passes those in `.deepspeed_env`."""
    several = job.cluster.nodes > 1
    settings = [f"echo {each} >> .deepspeed_env" if several else f"export {each}" for each in job.settings]
    command = f"deepspeed --hostfile {path} {'--module ' * job.is_module}{shlex.join(job.target)}"
    return (*settings, command)


class JobFile(NamedTuple):
    title: str
    """The reader of the file."""
    path: Path
    text: str
    start: tuple[str, ...]
    """The shell lines that start it."""


class _Kind(NamedTuple):
    title: str
    file: str
    text: Callable[[Job], str]
    start: Callable[[Job, str], tuple[str, ...]]
    """The start lines, from the job and the file's path."""


_KINDS: Mapping[JobKind, _Kind] = {
    "slurm": _Kind("Slurm", "job.sbatch", slurm_script, lambda _, path: (f"sbatch {path}",)),
    "kubernetes": _Kind(
        "Kubernetes",
        "trainjob.yaml",
        train_job,
        lambda job, path: (create_configmap(job), f"kubectl create -f {path}"),
    ),
    "skypilot": _Kind("SkyPilot", "sky.yaml", skypilot_task, lambda _, path: (f"sky launch {path}",)),
    "ray": _Kind("Ray", "ray_train.py", ray_script, lambda _, path: (f"python {path}",)),
    "accelerate": _Kind("accelerate", "accelerate.yaml", accelerate_config, start_accelerate),
    "hostfile": _Kind("The hostfile of DeepSpeed", "hostfile", hostfile, start_hostfile),
}


def job_files(job: Job, kinds: tuple[JobKind, ...], folder: Path) -> tuple[JobFile, ...]:
    """The job files of these kinds, for a folder. They are started from the working folder. Raises ClusterError if a
    kind has no name for the GPU."""
    specs = [_KINDS[kind] for kind in dict.fromkeys(kinds)]
    paths = [folder / spec.file for spec in specs]
    return tuple(
        JobFile(title=spec.title, path=path, text=spec.text(job), start=spec.start(job, shlex.quote(str(path))))
        for spec, path in zip(specs, paths, strict=True)
    )
