"""`dry_run`: ask a subprocess of its own, and report its answer or its true error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.version import Version

from ...ds_configs.read import FIRST_WITHOUT_AUTOEP, autoep_size_in, autotp_size_in, unmodeled_features
from ...estimators.errors import DsAdviseError
from ...estimators.hardware.cluster import Cluster
from ...estimators.memory.device_overhead import library_workspace, outside_allocator
from ...estimators.memory.trainable import shard_tensors, tensor_set
from ...estimators.models.families import shape_from_config
from ...estimators.models.rank_part import split_layers, spread_experts
from ...estimators.schedule.simulate import PlayedStep, play
from ...estimators.workload import Workload
from ..recording.result import DryRunResult, Peak, Reserved
from ..run import Request, Run
from .ask import DryRunError, NeedsValuesError, ask
from .extrapolate import DepthNotLinearError, depth_series, extrapolated

_HOPPER = 9.0
"""Compute capability whose kernels are chosen for a GPU without one (AMD's, the CPU)."""


def dry_run(
    run: Run,
    *,
    rank: int | None = None,
    iterations: int = 4,
    expandable_segments: bool = False,
    fast: bool = False,
    timeout_s: float = 1800.0,
) -> DryRunResult:
    """Memory of one rank of a run under the installed DeepSpeed's real engine, on a simulated GPU.

    rank:    which rank to be; None: the one whose GPU is the fullest, as far as the model tells (`fullest_rank.py`), or
             with `fast` rank 0, whose piece of the parameters lies alike at every depth.
    iterations: optimizer steps at most; the run stops after one that repeats the one before it to the byte.
    fast:    three shallower models answer where memory is linear in depth (`extrapolate.py`), and the result says so
             (`extrapolated_from`); elsewhere the full depth is run, and the result says why (`not_extrapolated`).

    Raises DryRunError: DeepSpeed rejected the configuration, the model could not be built, or an operation needs real
    values; with the original message and the phase.
    """

    _refuse_what_needs_more(run)

    def request(as_rank: int | None) -> Request:
        return request_for(run, rank=as_rank, iterations=iterations, expandable_segments=expandable_segments)

    result = _extrapolated(request(rank or 0), timeout_s) if fast else ""
    if isinstance(result, str):
        (full,) = ask([request(rank)], timeout_s)
        result = replace(full, not_extrapolated=result)
    return replace(
        result,
        peak=_beside_tensors(result.peak, run.cluster),
        library_workspace_bytes=sum(term.size_bytes for term in library_workspace(run.cluster.gpu)),
    )


def _refuse_what_needs_more(run: Run) -> None:
    """Raises DryRunError for a feature that cannot run with the installed transformers, NeedsValuesError for one that
    no dry run knows."""
    installed, experts = version("transformers"), run.config.get("expert_parallel")
    spread = isinstance(experts, Mapping) and experts.get("enabled") is True
    if spread and Version(installed).release >= FIRST_WITHOUT_AUTOEP:
        raise DryRunError(
            f"AutoEP cannot be initialized with transformers {installed}",
            phase="initialize",
            why="DeepSpeed 0.19.8 asks transformers' registry of outputs in a way that it no longer answers",
            fix="install transformers 5.8, or take expert_parallel out",
        )
    for feature in unmodeled_features(run.config):
        if feature.not_dry_run:
            raise NeedsValuesError(
                f"a dry run does not know {feature.name}",
                phase="initialize",
                why=feature.not_dry_run,
                fix="probe it: ds-advise probe",
            )


def _extrapolated(request: Request, timeout_s: float) -> DryRunResult | str:
    """The answer of shallow runs, or why they do not answer."""
    try:
        steps = depth_series(request)
        return extrapolated(steps, ask(steps.requests, timeout_s))
    except DepthNotLinearError as reason:
        return str(reason)


def request_for(run: Run, *, rank: int | None = 0, iterations: int = 4, expandable_segments: bool = False) -> Request:
    """One rank of a run as the subprocess takes it; rank None: the one whose GPU is the fullest."""
    gpu, world_size = run.cluster.gpu, run.cluster.world_size
    config = dict(run.config)
    model = None if isinstance(run.model, str) else dict(run.model)
    return Request(
        config=config,
        model=model,
        factory=_factory(run.model) if isinstance(run.model, str) else None,
        input_shape=run.input_shape,
        workload=run.workload,
        micro_batch_size=run.micro_batch_size,
        gradient_accumulation_steps=run.gradient_accumulation_steps,
        gradient_checkpointing=run.gradient_checkpointing,
        cpu_checkpointing=run.cpu_checkpointing,
        world_size=world_size,
        gpus_per_node=run.cluster.gpus_per_node,
        rank=fullest_rank(config, model, run.workload, world_size) if rank is None else rank,
        compute_capability=round((gpu.compute_capability or _HOPPER) * 10),
        gpu_memory_bytes=gpu.memory_bytes,
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


def _factory(text: str) -> str:
    """FILE.py:FUNCTION with the file's whole path. Raises DryRunError where there is no such file."""
    file, _, function = text.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise DryRunError(
            f"{file}: no such file", phase="start", fix="give FILE.py:FUNCTION, a function that returns a module"
        )
    return f"{path}:{function}"


def fullest_rank(
    config: Mapping[str, Any], model: Mapping[str, Any] | None, workload: Workload, world_size: int
) -> int:
    """The rank whose peak is the highest of all, by what distinguishes ranks before anything runs.

    Stages 1 and 2 lay the trainable tensors end to end and cut equal pieces, so a tensor's gradient stays whole on
    every rank whose piece touches it: the rank that touches the most elements is the fullest. With the optimizer
    offloaded, gradients leave at once, by way of a buffer of the largest slice of a tensor inside the piece: there the
    rank with the largest slice is. Of equals the later one, whose gradients come earlier in the backward pass, beside
    more activations. Stages 0 and 3 treat all ranks alike, padding apart: rank 0.

    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py (`copy_grads_in_partition`,
        `temp_grad_buffer_for_gpu_offload`).
    Where ranks split layers (AutoTP), the first of a group answers for all of it.

    Not covered: `round_robin_gradients`, which deals the tensors out; a model whose tensors only building it shows (a
    module of the user's own, a family unknown to the estimators): rank 0.
    """
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping) or zero.get("stage") not in (1, 2) or model is None:
        return 0
    try:
        split_by = autotp_size_in(config)
        part = split_layers(shape_from_config(model, name="model"), split_by)
        part = spread_experts(part, autoep_size_in(config))
        loads = shard_tensors(tensor_set(part, workload), world_size // split_by).loads
    except DsAdviseError:
        return 0
    offload = zero.get("offload_optimizer")
    offloads = isinstance(offload, Mapping) and offload.get("device", "none") != "none"

    def fullness(rank: int) -> tuple[int, int, int]:
        load = loads[rank]
        return (load.slice, load.touched, rank) if offloads else (load.touched, load.slice, rank)

    return split_by * max(range(len(loads)), key=fullness)


def played_step(result: DryRunResult, cluster: Cluster, *, seq_len: int) -> PlayedStep | None:
    """One optimizer step on `cluster` in time, None for a run that recorded no schedule (an extrapolated one).

    Assumes that all ranks take as long as the one that was run. Raises ClusterError for a GPU without any published
    rate.
    """
    if result.schedule is None:
        return None
    config = result.config
    samples = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * result.world_size
    return play(result.schedule, cluster, tokens_per_step=samples * seq_len)
