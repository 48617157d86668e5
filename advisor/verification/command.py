"""A dry run of the user's command on a cluster."""

from __future__ import annotations

from contextlib import suppress
from math import prod

from ...estimators.errors import ClusterError
from ...estimators.schedule.simulate import SimulatedStep, simulate
from ...estimators.workload import Workload
from ...probes.command.observed import CommandResult
from ...probes.command.request import CommandRequest
from ...probes.command.run import dry_run_command
from ...probes.run import Run
from ...probes.worker_process import OnProgress
from ..answer.command_answer import CommandAnswer
from ..question.run import read_ds_config
from .dry_run import no_such_rank
from .past_results import keep_command

_TOKENS = ("input_ids", "decoder_input_ids", "labels")
"""Tensors of a batch whose elements are tokens; the first that exists counts."""


def command_answer(request: CommandRequest, *, timeout_s: float, on_progress: OnProgress) -> CommandAnswer:
    """Run the command, keep the result, and return what it needs. Raises CommandFailedError, DryRunError,
    ConfigFileError for a configuration that cannot be read, and WorkloadError for a rank that does not exist."""
    if request.config_file is not None and str(request.config_file) not in request.files:
        read_ds_config(request.config_file)
    if request.rank is not None and request.rank >= request.cluster.world_size:
        raise no_such_rank(request.rank, request.cluster.world_size)
    found = dry_run_command(request, timeout_s=timeout_s, on_progress=on_progress)
    engine = found.observed.engines[0]
    run = Run(
        config=engine.config,
        model={},
        cluster=request.cluster,
        workload=Workload(),
        model_name=engine.model,
        micro_batch_size=engine.micro_batch_size,
        gradient_accumulation_steps=engine.gradient_accumulation_steps,
    )
    answer = CommandAnswer(
        run=run,
        result=found.result,
        analytic=None,
        step=_simulated(found, request),
        observed=found.observed,
        training=found.training,
        arguments=found.arguments,
        words=request.words,
    )
    keep_command(answer)
    return answer


def tokens_per_step(found: CommandResult) -> int:
    """Tokens of all ranks in an optimizer step; samples where the batch has no tokens."""
    engine, shapes = found.observed.engines[0], found.observed.batch_shapes
    micro_steps = engine.recorded_micro_batches * engine.data_parallel_size
    whole = engine.micro_batch_size * max(1, found.training.seq_len)  # of batches that come from no loader
    return next((prod(shapes[name]) for name in _TOKENS if len(shapes.get(name, ())) == 2), whole) * micro_steps


def _simulated(found: CommandResult, request: CommandRequest) -> SimulatedStep | None:
    schedule = found.result.schedule
    if schedule is None or not schedule.entries:
        return None
    with suppress(ClusterError):  # memory is known even if the GPU's speed is not
        return simulate(schedule, request.cluster, tokens_per_step=tokens_per_step(found))
    return None
