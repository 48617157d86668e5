"""`dry_run`: run one rank of a run's default script, on a simulated GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec

from packaging.requirements import Requirement
from packaging.version import Version

from ...ds_configs.read import FIRST_WITHOUT_AUTOEP, unmodeled_features
from ...ds_configs.training_script import trl_requirement
from ...estimators.errors import check_kind
from ...estimators.hardware import Cluster
from ...estimators.memory.trainable import shard_plan
from ...estimators.schedule.simulate import SimulatedStep, simulate
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
from .supported import unknown_kernels


def dry_run(
    run: Run,
    *,
    rank: int | None = None,
    iterations: int = 4,
    expandable_segments: bool = False,
    timeout_s: float = 1800.0,
    on_progress: OnProgress | None = None,
) -> DryRunResult:
    """Memory of one rank of a run under the installed DeepSpeed's real engine, on a simulated GPU.

    rank: None for the rank with the fullest GPU.
    iterations: maximum number of optimizer steps; the run stops after one that repeats the one before it exactly.
    on_progress: called with the running phase, several times a second; None for silence.

    Raises DryRunError, with the original message and the phase, if DeepSpeed rejects the configuration, the model
    cannot be built, or an operation needs real values.
    """
    check_kind(run, Run, "run", "pass what read_run returns")
    if isinstance(run.model, str):
        run = replace(run, model=absolute_factory(run.model))
    _refuse_unknown_features(run)
    with scratch("run") as folder:
        write_folder(run, folder)
        command = CommandRequest(
            words=command_words(run),
            folder=folder,
            cluster=run.cluster,
            rank=rank_in_layers(run) if rank is None else rank,
            iterations=max(iterations, steps_of_generation(run) + 1),
            expandable_segments=expandable_segments,
            offline=True,
            evaluated_batches=run.workload.eval_logits or 1,
            is_default_script=True,
        )
        found = dry_run_command(
            command, timeout_s=timeout_s, on_progress=on_progress or (lambda _: None), error=worker_error
        )
        return replace(found.result, iterations=iterations)


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
    if unknown := unknown_kernels(run.workload):
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


def rank_in_layers(run: Run) -> int | None:
    """The rank that is the fullest at stages 1 and 2 if the closed form peaks while layers run backward: of the ranks
    whose piece touches the last tensor, whose gradients come first, the one that touches the most elements.

    None if it peaks later, or is not known: then all gradients of a rank are alive, and the engine's partitions show
    which has the most (`command.fullest_rank`).
    """
    estimate = run.estimate()
    if estimate is None or run.shape is None or estimate.plan.zero_stage not in (1, 2):
        return None
    if estimate.plan.offload_optimizer != "none":  # gradients leave at once
        return None
    sharded = shard_plan(run.shape, run.workload, run.cluster, estimate.plan)
    last = max(sharded.last_load.tensors)
    touched, rank = max((load.touched, rank) for rank, load in enumerate(sharded.loads) if last in load.tensors)
    more_bytes = run.workload.weight_bytes * (touched - sharded.last_load.touched)
    phases = {phase.name: phase.allocated_bytes for phase in estimate.memory.phases}
    in_layers = max((size for name, size in phases.items() if "layer" in name or "reduction" in name), default=0)
    is_peak = in_layers + more_bytes > max(phases.get("backward_end", 0), phases["step"])
    return estimate.plan.autotp_size * rank if is_peak else None


def simulated_step(result: DryRunResult, cluster: Cluster, *, seq_len: int) -> SimulatedStep | None:
    """The simulated time of one optimizer step on `cluster`; None for a result without a schedule.

    Assumes equal times of all ranks. Raises ClusterError for a GPU without published rates.
    """
    if result.schedule is None:
        return None
    config = result.config
    samples = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * result.world_size
    return simulate(result.schedule, cluster, tokens_per_step=samples * seq_len)
