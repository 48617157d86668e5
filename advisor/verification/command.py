"""A dry run of the user's command on a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path

from ...estimators.errors import ClusterError, ConfigFileError
from ...estimators.schedule.simulate import SimulatedStep, simulate
from ...estimators.workload import Workload
from ...probes.command.observed import CommandResult, ObservedArguments
from ...probes.command.request import CommandRequest
from ...probes.command.run import dry_run_command
from ...probes.run import Run
from ...probes.worker_process import OnProgress
from ...validate.lint.document_reader import read_document
from ...validate.lint.installed_facts import load_facts
from ...validate.lint.lint import lint
from ...validate.lint.rules_keys import IGNORED_KEYS
from ..answer.command_answer import CommandAnswer
from ..question.run import read_ds_config
from ..text.units import shown_path
from .dry_run import no_such_rank
from .past_results import keep_command

_TOKENS = ("input_ids", "decoder_input_ids", "labels")
"""Tensors of a batch whose elements are tokens; the first that exists counts."""


def command_answer(request: CommandRequest, *, timeout_s: float, on_progress: OnProgress) -> CommandAnswer:
    """Run the command, keep the result, and return what it needs. Raises CommandFailedError, DryRunError,
    ConfigFileError for a configuration that cannot be read or that the command does not train with, and WorkloadError
    for a rank that does not exist."""
    if request.config_file is not None and str(request.config_file) not in request.files:
        read_ds_config(request.config_file)
    if request.rank is not None and request.rank >= request.cluster.world_size:
        raise no_such_rank(request.rank, request.cluster.world_size)
    found = dry_run_command(request, timeout_s=timeout_s, on_progress=on_progress)
    if request.config_file is not None and not request.is_default_config:
        check_config(request.config_file, found.arguments)
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
        observed=replace(found.observed, remarks=(*_ignored_keys(found), *found.observed.remarks)),
        training=found.training,
        arguments=found.arguments,
        words=request.words,
    )
    keep_command(answer, None if request.is_default_config else request.config_file)
    return answer


def check_config(file: Path, seen: ObservedArguments) -> None:
    """Raise ConfigFileError if the script trained with another configuration than the one in front of `--`."""
    own = Path(seen.ds_config) if seen.ds_config else None
    if own is not None and (own == file or (own.is_file() and read_ds_config(own) == read_ds_config(file))):
        return
    raise ConfigFileError(
        f"the command trains with {shown_path(own) if own else 'a configuration of its own'}, not with {file.name}",
        why="a configuration in front of -- is for a command that names none",
        fix=f"leave {file.name} out, or leave its own out of the command",
    )


def _ignored_keys(found: CommandResult) -> Iterator[str]:
    """A sentence for each key of the engine's configuration that DeepSpeed ignores without a message. The figures are
    those of what the engine read."""
    file, name = Path(found.arguments.ds_config), Path(found.arguments.ds_config).name or "DeepSpeed's configuration"
    config = read_ds_config(file) if file.is_file() else found.observed.engines[0].config
    document = read_document(json.dumps(config).encode(), name=name)
    for finding in lint(document, facts=load_facts()).findings:
        if finding.code in IGNORED_KEYS:
            effect = "; the figures are those without it" if finding.judged else ", so it has no effect"
            yield f"{name}: {finding.what}{effect}: {finding.fix}"


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
