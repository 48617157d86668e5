"""Dry runs of the configurations that were really run, made without a GPU, and kept with the records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.estimators.errors import ClusterError
from ds_advise.estimators.hardware import Cluster, find_gpu
from ds_advise.estimators.memory.device_overhead import outside_allocator
from ds_advise.probes.dry_run.run import DryRunError, dry_run, simulated_step

from .configuration import Configuration, from_arguments
from .machine.place import cluster_of
from .records import Record

FILE = "dry_runs.json"


def cluster(record: Record, world_size: int) -> Cluster:
    """The machines of the job that a record's configuration is one rank of, as the measuring machine was."""
    if record.device == "cpu":
        return cpu_cluster(world_size, None)
    return gpu_cluster(record.machine["gpus"][0], record.machine["gpu_memory_bytes"][0], world_size)


def gpu_cluster(gpu: str, memory_bytes: int, world_size: int) -> Cluster:
    """The same by the GPU's name and memory, with a drive for what swaps to one."""
    found = cluster_of(replace(find_gpu(gpu), memory_bytes=memory_bytes), world_size)
    return replace(found, nvme_path="/nvme", nvme_bytes_per_node=10**12)


def dry_runs(records: Iterable[Record], folder: Path, *, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """By name of a record: {"allocated_bytes", "reserved_bytes", "device_bytes", "step_s"} as a dry run says, or
    {"error"}. Those that are kept in the folder are not made again under the same versions."""
    file = folder / FILE
    kept: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    versions = {name: version(name) for name in ("torch", "deepspeed", "transformers")}
    for record in records:
        if kept.get(record.name, {}).get("versions") != versions:
            say(f"dry run: {record.name}")
            found = _dry_run(from_arguments(dict(record.arguments)), record)
            kept[record.name] = {**found, "versions": versions}
            file.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    return kept


def _dry_run(configuration: Configuration, record: Record) -> dict[str, Any]:
    machines = cluster(record, configuration.world_size)
    try:
        result = dry_run(configuration.run(machines), expandable_segments=configuration.expandable_segments)
    except DryRunError as error:
        return {"error": str(error)}
    reserved = result.peak.reserved_bytes_per_gpu
    try:
        played = simulated_step(result, machines, seq_len=configuration.seq_len)
    except ClusterError:
        played = None
    return {
        "allocated_bytes": result.peak.allocated_bytes_per_gpu,
        "reserved_bytes": reserved,
        "device_bytes": reserved + alone_outside_allocator(machines),
        "step_s": None if played is None else played.time.step_s,
    }


def alone_outside_allocator(machines: Cluster) -> int:
    """What a rank that runs alone holds outside its allocator: no NCCL, whatever job it belongs to."""
    one = replace(machines, nodes=1, gpus_per_node=1)
    return sum(term.size_bytes for term in outside_allocator(one))
