"""`dry_run`: run one rank of a run's default script, on a simulated GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec

from packaging.requirements import Requirement
from packaging.version import Version

from ...ds_configs.read import (
    FIRST_WITHOUT_AUTOEP,
    autoep_size_in,
    autotp_size_in,
    offload_device_in,
    unmodeled_features,
)
from ...ds_configs.training_script import trl_requirement
from ...estimators.errors import DsAdviseError
from ...estimators.hardware import Cluster
from ...estimators.memory.trainable import shard_tensors, tensor_set
from ...estimators.models.families import shape_from_config
from ...estimators.models.rank_part import split_layers, spread_experts
from ...estimators.models.vision_parts import freeze_parts
from ...estimators.schedule.simulate import SimulatedStep, simulate
from ...estimators.workload import Workload
from ..command.request import CommandRequest
from ..command.run import dry_run_command
from ..default_script.folder import write_folder
from ..default_script.words import command_words, script_of, steps_of_generation
from ..recording.result import DryRunResult
from ..run import Run, absolute_factory
from ..run_errors import DryRunError as DryRunError
from ..run_errors import NeedsValuesError as NeedsValuesError
from ..run_errors import worker_error
from ..scratch import scratch
from ..worker_process import OnProgress


def dry_run(
    run: Run,
    *,
    rank: int | None = None,
    iterations: int = 4,
    expandable_segments: bool = False,
    timeout_s: float = 1800.0,
    on_progress: OnProgress = lambda _phase: None,
) -> DryRunResult:
    """Memory of one rank of a run under the installed DeepSpeed's real engine, on a simulated GPU.

    rank: None for the rank with the fullest GPU.
    iterations: maximum number of optimizer steps; the run stops after one that repeats the one before it exactly.
    on_progress: called with the running phase, several times a second.

    Raises DryRunError, with the original message and the phase, if DeepSpeed rejects the configuration, the model
    cannot be built, or an operation needs real values.
    """
    if isinstance(run.model, str):
        run = replace(run, model=absolute_factory(run.model))
    _refuse_unknown_features(run)
    with scratch("run") as folder:
        write_folder(run, folder)
        command = CommandRequest(
            words=command_words(run),
            folder=folder,
            cluster=run.cluster,
            rank=fullest_rank(run) if rank is None else rank,
            iterations=max(iterations, steps_of_generation(run) + 1),
            expandable_segments=expandable_segments,
            offline=True,
            evaluated_batches=run.workload.eval_logits or 1,
            generates=False,
        )
        found = dry_run_command(command, timeout_s=timeout_s, on_progress=on_progress, error=worker_error)
        return replace(found.result, iterations=iterations)


def _unknown_kernels(workload: Workload) -> str:
    """Description of the kernels that fake tensors cannot run; "" if they can run all."""
    if workload.method == "qlora":
        return "the kernels of quantized weights"
    if workload.loss in ("in-place", "chunked", "value-head"):
        return f"the {workload.loss} loss"
    if workload.kernels != "torch":
        return f"{workload.kernels}'s kernels"
    return "the Triton kernel of 2023" if workload.attention == "triton" else ""


def _require(requirement: str) -> None:
    """Raises DryRunError for a package that is missing, or has another version."""
    needed = Requirement(requirement)
    found = version(needed.name) if find_spec(needed.name) else ""
    if not found or not needed.specifier.contains(found, prereleases=True):
        raise DryRunError(
            f"the dry run needs {requirement}",
            phase="load",
            why=f"{needed.name} {found} is installed" if found else "it is not installed",
            fix=f"pip install {requirement!r}",
        )


def _refuse_unknown_features(run: Run) -> None:
    """Raises DryRunError for a feature that fails with the installed transformers, NeedsValuesError for a feature that
    no dry run supports."""
    if unknown := _unknown_kernels(run.workload):
        raise DryRunError(
            f"a dry run does not support {unknown}", phase="load", fix="probe it on a GPU, or use the closed form"
        )
    if script_of(run).name == "objective.py":
        _require(trl_requirement(run.workload))
        if run.sequence_parallel_size > 1 or run.workload.mlp != "whole":
            raise DryRunError(
                "a dry run of TRL's trainers does not support sequence parallelism or tiles",
                phase="load",
                fix="use --framework hf, or the closed form",
            )
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


def fullest_rank(run: Run) -> int:
    """The rank with the highest peak, from differences between ranks that are known before a run.

    Stages 1 and 2 lay the trainable tensors end to end and cut equal pieces, so a tensor's gradient stays whole on
    every rank whose piece touches it: the rank that touches the most elements is the fullest. If the closed form peaks
    while layers run backward, it is the fullest of the ranks that touch the last tensor, whose gradients come first.
    With the optimizer offloaded, gradients leave at once, through a buffer of the largest slice of a tensor inside the
    piece: the rank with the largest slice is the fullest. Among equal ranks the last one is taken. Stages 0 and 3 treat
    all ranks alike except for padding: rank 0. With AutoTP the first rank of a group represents the group.

    Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py (`copy_grads_in_partition`,
        `temp_grad_buffer_for_gpu_offload`).

    Not covered: `round_robin_gradients`, which deals the tensors out; a model without a closed form (a user's own
    module, an unknown family): rank 0.
    """
    zero = run.config.get("zero_optimization")
    shape, description = run.shape, run.description
    if not isinstance(zero, Mapping) or zero.get("stage") not in (1, 2) or (shape is None and description is None):
        return 0
    try:
        tensor_parallel_size = autotp_size_in(run.config)
        whole = freeze_parts(shape or shape_from_config(description or {}, name="model"), run.workload.freeze)
        part = split_layers(whole, tensor_parallel_size)
        part = spread_experts(part, autoep_size_in(run.config))
        sharded = shard_tensors(tensor_set(part, run.workload), run.cluster.world_size // tensor_parallel_size)
    except DsAdviseError:
        return 0
    loads, offloads = sharded.loads, offload_device_in(run.config) != "none"

    def fullness(rank: int) -> tuple[int, int, int]:
        load = loads[rank]
        return (load.slice, load.touched, rank) if offloads else (load.touched, load.slice, rank)

    fullest = max(range(len(loads)), key=fullness)
    estimate = None if offloads else replace(run, shape=whole).estimate()
    if estimate is not None:
        last = max(sharded.last_load.tensors)
        first = max((rank for rank, load in enumerate(loads) if last in load.tensors), key=fullness)
        more_bytes = run.workload.weight_bytes * (loads[first].touched - sharded.last_load.touched)
        phases = {phase.name: phase.allocated_bytes for phase in estimate.memory.phases}
        in_layers = max((size for name, size in phases.items() if "layer" in name or "reduction" in name), default=0)
        if in_layers + more_bytes > max(phases.get("backward_end", 0), phases["step"]):
            fullest = first
    return tensor_parallel_size * fullest


def simulated_step(result: DryRunResult, cluster: Cluster, *, seq_len: int) -> SimulatedStep | None:
    """The simulated time of one optimizer step on `cluster`; None for a result without a schedule.

    Assumes equal times of all ranks. Raises ClusterError for a GPU without published rates.
    """
    if result.schedule is None:
        return None
    config = result.config
    samples = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * result.world_size
    return simulate(result.schedule, cluster, tokens_per_step=samples * seq_len)
