"""A tool's file run by the tool on a simulated GPU: `ds-advise from` where the tool is installed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...ds_configs.read import plan_from_ds_config
from ...estimators.errors import DsAdviseError
from ...probes.command.words import inner
from ...probes.machine import search_path
from ...probes.worker_process import OnProgress
from ..importers.answer import ImportAnswer, complete_answer
from ..importers.figures import ImportFigures
from ..importers.imported_run import DeepSpeedPart, ImportedRun
from ..importers.rewrite import better_config, plan_files
from ..search.candidate import Candidate, predict
from ..search.choice import is_as_fast
from .advice import CommandAdvice
from .advise import advise_command
from .changes import ChangedCommand
from .question import observed_options

_KEPT = ("ram", "host", "nvme", "link", "interconnect", "risk", "offline")
"""Options of `import_file` that are no part of the training."""


@dataclass(frozen=True, kw_only=True)
class ToolRun:
    """The answer on a tool's file, and the dry runs of the tool's command."""

    answer: ImportAnswer
    advice: CommandAdvice | None
    """None if the file was only read."""
    not_run: str
    """Why the file was only read."""


def run_by_tool(
    read: ImportAnswer,
    options: Mapping[str, Any],
    *,
    destination: Path | None,
    not_run: str = "",
    say: Callable[[str], None],
    on_progress: OnProgress,
    on_task: Callable[[str], None] = lambda _title: None,
    timeout_s: float = 1800.0,
) -> ToolRun:
    """The answer by dry runs of the tool's command with the file, as it is and changed. If the tool cannot be run here,
    the answer is that of the reader.

    read: the answer of the reader. options: those of `import_file`. not_run: why it is not to be run.
    """
    if why := not_run or _obstacle(read, options):
        return ToolRun(answer=read, advice=None, not_run=why)
    folder = _folder(read.run.deepspeed)
    words = read.command
    if folder != Path.cwd():
        words = tuple(word.replace(str(read.source.path), str(read.source.path.absolute())) for word in words)
    given = {name: options[name] for name in _KEPT if options.get(name) is not None} | {"gpus": read.gpus}
    try:
        advice = advise_command(
            words,
            given,
            folder=folder,
            change=lambda found, candidate: _changed(read, found, candidate, words, destination),
            offloads_checkpoints=read.form.offload is not None,
            timeout_s=timeout_s,
            expandable_segments=read.run.expandable_segments,
            say=say,
            on_progress=on_progress,
            on_task=on_task,
        )
    except DsAdviseError as error:
        return ToolRun(answer=read, advice=None, not_run=f"{shlex.join(words)}: {error.reason}")
    answer = replace(read, run=_observed(read.run, advice), figures=_figures(advice), obstacle=None, command=words)
    return ToolRun(answer=complete_answer(answer, destination), advice=advice, not_run="")


def _obstacle(read: ImportAnswer, options: Mapping[str, Any]) -> str:
    """Why the file is not run; "" if it is."""
    if not read.gpus:
        return "the GPUs are not known"
    if not read.command:
        return "the file names no script; ds-advise --gpus SPEC -- COMMAND runs the command that reads it"
    kept = {*_KEPT, "gpus", "format"}
    if replaced := [name for name, value in options.items() if value is not None and name not in kept]:
        return f"--{replaced[0].replace('_', '-')} replaces the file's value"
    program = inner(read.command)[0]
    return "" if shutil.which(program, path=search_path()) else f"{program} is not installed here"


def _folder(part: DeepSpeedPart | None) -> Path:
    """The folder from which the tool finds the DeepSpeed configuration that its file names."""
    path = "" if part is None or part.path is None else str(part.path.absolute())
    return Path(path.removesuffix(part.name)) if part is not None and path.endswith(f"/{part.name}") else Path.cwd()


def _observed(run: ImportedRun, advice: CommandAdvice) -> ImportedRun:
    """The run with what the dry run has shown. The tool itself has read the file: nothing is approximated."""
    today = advice.today
    checkpoints = today.observed.recomputes
    training = observed_options(today.found, advice.question.model)
    return replace(
        run,
        objective=training.pop("objective"),
        training={name: value for name, value in training.items() if value is not None and name != "global_batch"},
        micro_batch_size=today.engine.micro_batch_size,
        gradient_accumulation_steps=today.engine.gradient_accumulation_steps,
        gradient_checkpointing=run.gradient_checkpointing
        if bool(run.gradient_checkpointing) == checkpoints
        else checkpoints,
        remarks=[],
        faults=tuple(fault for fault in run.faults if not any(key in fault for key in run.unknown)),
        unknown=(),  # the tool took them
        uncounted=(),
        obstacle="",
    )


def _figures(advice: CommandAdvice) -> ImportFigures:
    """The figures of the answer, with the verdicts of the dry runs."""
    today, question, recommended = advice.today, advice.question, advice.recommended
    model, cluster = question.model, question.cluster
    plan = plan_from_ds_config(
        today.engine.config,
        model,
        cluster,
        micro_batch_size=today.engine.micro_batch_size,
        gradient_accumulation_steps=today.engine.gradient_accumulation_steps,
        gradient_checkpointing=today.observed.recomputes,
        software=question.workload.software,
    )
    as_is = replace(predict(model, question.workload, cluster, plan), fit=today.fit)
    is_faster = recommended is not None and not is_as_fast(as_is, recommended) and (advice.speedup or 2.0) > 1.0
    return ImportFigures(
        question=question,
        own=question,
        plan=plan,
        as_is=as_is,
        refusal="",
        recommended=recommended,
        is_better=recommended is not None and (is_faster or not today.fit.fits),
        command=shlex.join(["ds-advise", "--gpus", cluster.gpu.name, "--", *advice.words]),
    )


def _changed(
    read: ImportAnswer, found: CommandAdvice, candidate: Candidate, words: tuple[str, ...], destination: Path | None
) -> ChangedCommand:
    """The tool's command with the changed file."""
    run, source, plan = _observed(read.run, found), read.source, candidate.plan
    config = better_config(run, plan, found.question, accelerate=False)
    files = plan_files(source, read.form, run, plan, config, destination=destination)
    new = files[0].new_path
    texts = {str(new.absolute()): files[0].new_text} | {str(file.new_path): file.new_text for file in files[1:]}
    return ChangedCommand(
        words=tuple(str(new.absolute()) if Path(word).absolute() == source.path.absolute() else word for word in words),
        files=texts,
        lines=(),
    )
