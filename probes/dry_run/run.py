"""`dry_run`: ask a subprocess of its own, and report its answer or its true error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...estimators.hardware.cluster import Cluster
from ...estimators.memory.device_overhead import library_workspace, outside_allocator
from ...estimators.workload import Workload
from .ask import DryRunError, ask
from .extrapolate import DepthNotLinearError, depth_series, extrapolated
from .fullest_rank import fullest_rank
from .request import Request
from .result import DryRunResult, Peak, Reserved


def dry_run(
    config: Mapping[str, Any] | str | Path,
    model: Mapping[str, Any] | str | Path,
    *,
    cluster: Cluster | None = None,
    world_size: int | None = None,
    gpus_per_node: int | None = None,
    rank: int | None = None,
    workload: Workload | None = None,
    micro_batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    gradient_checkpointing: bool = True,
    iterations: int = 4,
    input_shape: Sequence[int] | None = None,
    expandable_segments: bool = False,
    fast: bool = False,
    timeout_s: float = 1800.0,
) -> DryRunResult:
    """Memory of one rank under the installed DeepSpeed's real engine, on a simulated GPU.

    config:  a ds_config as a dict or a file; `auto` is filled as the Trainer fills it.
    model:   a transformers config as a dict, a `config.json` or its folder, or "FILE.py:FUNCTION" that returns a
        module.
    cluster: the GPUs: how many, of which generation (it decides the attention kernels), and what beside tensors they
             hold. Without it `world_size` (and `gpus_per_node`, by default all) ranks of an unnamed Hopper GPU, tensors
             only.
    rank:    which rank to be; None: the one whose GPU is the fullest, as far as the model tells (`fullest_rank.py`), or
             with `fast` rank 0, whose piece of the parameters lies alike at every depth.
    micro_batch_size, gradient_accumulation_steps: used where the configuration says `auto` or nothing; without them 1,
             or what DeepSpeed derives from the configuration's train_batch_size.
    iterations: optimizer steps; Adam's states appear in the first, ZeRO-3 prefetches from the third.
    fast:    three shallower models answer where memory is linear in depth (`extrapolate.py`), and the result says so
             (`extrapolated_from`); elsewhere the full depth is run, and the result says why (`not_extrapolated`).

    Raises DryRunError: DeepSpeed rejected the configuration, the model could not be built, or an operation needs real
    values; with the original message and the phase.
    """
    if cluster is None and world_size is None:
        raise TypeError("dry_run needs a cluster or a world_size")

    def request(as_rank: int | None) -> Request:
        return request_for(
            config,
            model,
            cluster=cluster,
            world_size=world_size,
            gpus_per_node=gpus_per_node,
            rank=as_rank,
            workload=workload,
            micro_batch_size=micro_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            gradient_checkpointing=gradient_checkpointing,
            iterations=iterations,
            input_shape=input_shape,
            expandable_segments=expandable_segments,
        )

    result = _extrapolated(request(rank or 0), timeout_s) if fast else ""
    if isinstance(result, str):
        (full,) = ask([request(rank)], timeout_s)
        result = replace(full, not_extrapolated=result)
    return result if cluster is None else replace(result, peak=_beside_tensors(result.peak, cluster))


def _extrapolated(request: Request, timeout_s: float) -> DryRunResult | str:
    """The answer of shallow runs, or why they do not answer."""
    try:
        steps = depth_series(request)
        return extrapolated(steps, ask(steps.requests, timeout_s))
    except DepthNotLinearError as reason:
        return str(reason)


def request_for(
    config: Mapping[str, Any] | str | Path,
    model: Mapping[str, Any] | str | Path,
    *,
    cluster: Cluster | None,
    world_size: int | None = None,
    gpus_per_node: int | None = None,
    rank: int | None = 0,
    workload: Workload | None = None,
    micro_batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    gradient_checkpointing: bool = True,
    iterations: int = 4,
    input_shape: Sequence[int] | None = None,
    expandable_segments: bool = False,
) -> Request:
    """The request that `dry_run`'s arguments mean; the world's size is the cluster's where one is given."""
    workload = workload or Workload()
    description, factory = _model(model)
    if cluster is not None:
        world_size, gpus_per_node = cluster.world_size, cluster.gpus_per_node
    assert world_size is not None, "somebody knows how many ranks there are"
    capability = cluster.gpu.compute_capability if cluster is not None else None
    config = _config(config)
    if rank is None:
        rank = fullest_rank(config, description, workload, world_size)
    return Request(
        config=config,
        model=description,
        factory=factory,
        input_shape=tuple(input_shape) if input_shape is not None else None,
        world_size=world_size,
        gpus_per_node=gpus_per_node or world_size,
        rank=rank,
        method=workload.method,
        lora_rank=workload.lora_rank,
        lora_targets=workload.lora_targets,
        lora_dropout=workload.lora_dropout,
        seq_len=workload.seq_len,
        precision=workload.precision,
        optimizer=workload.optimizer,
        attention=workload.attention,
        framework=workload.framework,
        micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        gradient_checkpointing=gradient_checkpointing,
        compute_capability=round((capability or 9.0) * 10),
        gpu_memory_bytes=cluster.gpu.memory_bytes if cluster is not None else 80 << 30,
        iterations=iterations,
        expandable_segments=expandable_segments,
    )


def _beside_tensors(peak: Peak, cluster: Cluster) -> Peak:
    """The peak with what no tensor shows: library workspaces, which the allocator holds, and what lies outside it."""
    inside = library_workspace(cluster.gpu)
    workspace = sum(term.size_bytes for term in inside)
    reserved = peak.reserved_bytes_per_gpu + workspace

    def beside(held: Reserved) -> Reserved:
        return Reserved(
            reserved_bytes_per_gpu=held.reserved_bytes_per_gpu + workspace,
            required_bytes_per_gpu=held.required_bytes_per_gpu + workspace,
        )

    return replace(
        peak,
        allocated_bytes_per_gpu=peak.allocated_bytes_per_gpu + workspace,
        reserved_bytes_per_gpu=reserved,
        required_bytes_per_gpu=peak.required_bytes_per_gpu + workspace,
        with_expandable_segments=beside(peak.with_expandable_segments),
        without_expandable_segments=beside(peak.without_expandable_segments),
        device_bytes_per_gpu=reserved + sum(term.size_bytes for term in outside_allocator(cluster)),
        by_category={**peak.by_category, "library workspace": workspace},
        by_module={**peak.by_module, "library workspace": workspace} if peak.by_module else {},
    )


def _config(config: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    return dict(json.loads(Path(config).read_text()))


def _model(model: Mapping[str, Any] | str | Path) -> tuple[dict[str, Any] | None, str | None]:
    if isinstance(model, Mapping):
        return dict(model), None
    text = str(model)
    if ".py:" in text:
        file, _, function = text.rpartition(":")
        path = Path(file).expanduser().resolve()
        if not path.is_file():
            raise DryRunError(
                f"{file}: no such file", phase="start", fix="give FILE.py:FUNCTION, a function that returns a module"
            )
        return None, f"{path}:{function}"
    path = Path(model)
    return dict(json.loads((path / "config.json" if path.is_dir() else path).read_text())), None
