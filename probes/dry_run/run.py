"""`dry_run`: one rank of a run in a subprocess, on a simulated GPU."""

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
from ...estimators.schedule.simulate import SimulatedStep, simulate
from ...estimators.workload import Workload
from ..recording.result import DryRunResult, Peak, Reserved
from ..run import Request, Run
from .ask import DryRunError, NeedsValuesError, ask


def dry_run(
    run: Run,
    *,
    rank: int | None = None,
    iterations: int = 4,
    expandable_segments: bool = False,
    timeout_s: float = 1800.0,
) -> DryRunResult:
    """Memory of one rank of a run under the installed DeepSpeed's real engine, on a simulated GPU.

    rank:    None for the rank with the fullest GPU (`fullest_rank`).
    iterations: maximum number of optimizer steps; the run stops after one that repeats the one before it exactly.

    Raises DryRunError, with the original message and the phase, where DeepSpeed rejects the configuration, the model
    cannot be built, or an operation needs real values.
    """
    _refuse_unknown_features(run)
    request = request_for(run, rank=rank, iterations=iterations, expandable_segments=expandable_segments)
    (result,) = ask([request], timeout_s)
    return replace(
        result,
        peak=_with_overhead(result.peak, run.cluster),
        library_workspace_bytes=sum(term.size_bytes for term in library_workspace(run.cluster.gpu)),
    )


def _refuse_unknown_features(run: Run) -> None:
    """Raises DryRunError for a feature that fails with the installed transformers, NeedsValuesError for one that no dry
    run supports."""
    installed = version("transformers")
    experts = run.config.get("expert_parallel")
    has_autoep = isinstance(experts, Mapping) and experts.get("enabled") is True
    if has_autoep and Version(installed).release >= FIRST_WITHOUT_AUTOEP:
        raise DryRunError(
            f"AutoEP cannot be initialized with transformers {installed}",
            phase="initialize",
            why="DeepSpeed 0.19.8 uses an interface of transformers' output registry that no longer exists",
            fix="install transformers 5.8, or remove expert_parallel",
        )
    for feature in unmodeled_features(run.config):
        if feature.not_dry_run:
            raise NeedsValuesError(
                f"a dry run does not support {feature.name}",
                phase="initialize",
                why=feature.not_dry_run,
                fix="probe it: ds-advise probe",
            )


def request_for(run: Run, *, rank: int | None = 0, iterations: int = 4, expandable_segments: bool = False) -> Request:
    """One rank of a run for the subprocess; rank None: the one with the fullest GPU."""
    if isinstance(run.model, str):
        run = replace(run, model=_factory(run.model))
    return Request(
        run=run,
        rank=fullest_rank(run.config, run.description, run.workload, run.cluster.world_size) if rank is None else rank,
        iterations=iterations,
        expandable_segments=expandable_segments,
    )


def _factory(text: str) -> str:
    """FILE.py:FUNCTION with the absolute path of the file. Raises DryRunError for a missing file."""
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
    """The rank with the highest peak, by the differences between ranks that are known before a run.

    Stages 1 and 2 lay the trainable tensors end to end and cut equal pieces, so a tensor's gradient stays whole on
    every rank whose piece touches it: the rank that touches the most elements is the fullest. With the optimizer
    offloaded, gradients leave at once, through a buffer of the largest slice of a tensor inside the piece: the rank
    with the largest slice is the fullest. Of equals the last one, whose gradients come earliest in the backward pass,
    when most activations are held. Stages 0 and 3 treat all ranks alike except for padding: rank 0. With AutoTP the
    first rank of a group represents the group.

    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py (`copy_grads_in_partition`,
        `temp_grad_buffer_for_gpu_offload`).

    Not covered: `round_robin_gradients`, which deals the tensors out; a model without a closed form (a user's own
    module, an unknown family): rank 0.
    """
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping) or zero.get("stage") not in (1, 2) or model is None:
        return 0
    try:
        tensor_parallel_size = autotp_size_in(config)
        part = split_layers(shape_from_config(model, name="model"), tensor_parallel_size)
        part = spread_experts(part, autoep_size_in(config))
        loads = shard_tensors(tensor_set(part, workload), world_size // tensor_parallel_size).loads
    except DsAdviseError:
        return 0
    offload = zero.get("offload_optimizer")
    offloads = isinstance(offload, Mapping) and offload.get("device", "none") != "none"

    def fullness(rank: int) -> tuple[int, int, int]:
        load = loads[rank]
        return (load.slice, load.touched, rank) if offloads else (load.touched, load.slice, rank)

    return tensor_parallel_size * max(range(len(loads)), key=fullness)


def _with_overhead(peak: Peak, cluster: Cluster) -> Peak:
    """The peak with memory that is in no tensor: library workspaces in the allocator, and memory outside it."""
    workspace = sum(term.size_bytes for term in library_workspace(cluster.gpu))
    outside = sum(term.size_bytes for term in outside_allocator(cluster))

    def with_workspace(held: Reserved) -> Reserved:
        return Reserved(
            reserved_bytes_per_gpu=held.reserved_bytes_per_gpu + workspace,
            required_bytes_per_gpu=held.required_bytes_per_gpu + workspace,
        )

    return replace(
        peak,
        allocated_bytes_per_gpu=peak.allocated_bytes_per_gpu + workspace,
        reserved_bytes_per_gpu=peak.reserved_bytes_per_gpu + workspace,
        required_bytes_per_gpu=peak.required_bytes_per_gpu + workspace,
        with_expandable_segments=with_workspace(peak.with_expandable_segments),
        without_expandable_segments=with_workspace(peak.without_expandable_segments),
        device_bytes_per_gpu=peak.reserved_bytes_per_gpu + workspace + outside,
        by_category={**peak.by_category, "library workspace": workspace},
        by_module={**peak.by_module, "library workspace": workspace},
    )


def simulated_step(result: DryRunResult, cluster: Cluster, *, seq_len: int) -> SimulatedStep | None:
    """One optimizer step on `cluster` in time, None for a result without a schedule.

    Assumes that all ranks take equally long. Raises ClusterError for a GPU without any published rate.
    """
    if result.schedule is None:
        return None
    config = result.config
    samples = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * result.world_size
    return simulate(result.schedule, cluster, tokens_per_step=samples * seq_len)
