"""The end of a launch, as a document and as JSON."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ...ds_configs.files import write_text
from ...ds_configs.job import JobKind
from ...ds_configs.job_files import job_files
from ...estimators.estimate import Evidence
from ...probes.failures.diagnosis import Diagnosis, diagnose
from ..document import blocks as doc
from ..document.blocks import Tone
from ..document.charts import Lines, Panel
from ..document.terminal import print_blocks
from ..launch.check import Objection
from ..launch.command import dry_lines, launch_job, lost_config
from ..launch.request import (
    FAILURE_TITLES,
    Attempt,
    FailureKind,
    LaunchOutcome,
    LaunchRequest,
    LaunchStatus,
    TrainingFailure,
)
from ..launch.session import Session
from ..text.labels import cluster_title
from ..text.lines import copyable, row, sentence
from ..text.output import Output
from ..text.units import capitalised, ended, gib, loss_figure, rate, seconds, shown_path, shown_paths
from ..verification.prediction import UNTIMED, PhaseFigures, Prediction
from .configuration import configuration
from .error_place import error_place
from .runs import next_command

_PHASE_TITLES = {"step": "optimizer step"}
"""Titles of phases, if they differ from the names."""

_LEAST_REST = 0.05
"""Least part of a step outside its phases that is printed: medians and means of the same steps differ by less."""

_SAYS_WHEN: tuple[FailureKind, ...] = ("nan_loss", "ended_early")
"""Failures whose message has the rank and the steps: it is the verdict."""

_TONES: Mapping[LaunchStatus, Tone] = {"finished": "good", "stopped": "unsure", "failed": "bad"}

_PREDICTED_BY: dict[Evidence, str] = {
    "analytic": "by the closed form",
    "dry-run": "by a dry run",
    "solo-probe": "by a probe of one rank",
    "probe": "by a probe",
    "training": "by an earlier training",
}


@dataclass(frozen=True, kw_only=True)
class NextLaunch:
    """The next step after memory ran out."""

    what: str
    command: str | None


@dataclass(frozen=True, kw_only=True)
class LaunchReport:
    """A launch, from the check to its end."""

    started: bool
    objections: tuple[Objection, ...]
    attempts: tuple[LaunchOutcome, ...]
    next: NextLaunch | None


def launch_report(session: Session) -> LaunchReport:
    """Return a launch as data for JSON."""
    following = session.following
    return LaunchReport(
        started=not session.objections,
        objections=session.objections,
        attempts=tuple(attempt.outcome for attempt in session.attempts),
        next=None if following is None else NextLaunch(what=following.description, command=following.command),
    )


def show_dry(request: LaunchRequest, output: Output) -> int:
    """Print what would run on each node, and return the exit code."""
    lines = dry_lines(request)

    def render(console: Console) -> None:
        for where, line in lines:
            row(console, Text(f"# {where}"))
            row(console, Text(line))

    if lost := lost_config(request, "the line itself"):
        output.warn(lost)
    output.show(lambda: [{"where": where, "command": line} for where, line in lines], render)
    return 0


def emit_jobs(request: LaunchRequest, kinds: tuple[JobKind, ...], output: Output, *, force: bool) -> int:
    """Write the job files next to the configuration, print how to start them, and return the exit code."""
    folder = request.config_path.parent if request.config_path else Path.cwd()
    files = job_files(launch_job(request), kinds, folder)
    for file in files:
        write_text(file.text, file.path, force=force)

    def render(console: Console) -> None:
        for file in files:
            sentence(console, f"Wrote {file.path}. Start it:")
            copyable(console, file.start)

    if lost := lost_config(request, "the job file"):
        output.warn(lost)
    output.show(lambda: [{"file": str(file.path), "start": file.start} for file in files], render)
    return 0


def session_document(session: Session) -> doc.Document:
    """Return the end of a launch: its figures, the loss, the next step, and every attempt."""
    if session.objections:
        blocks: list[doc.Block] = []
        for objection in session.objections:
            blocks.append(doc.Sentence(ended(capitalised(objection.what)), "bold"))
            blocks.append(doc.Sentence(ended(capitalised(objection.fix))))
        blocks.append(doc.Sentence("Use --no-check to start anyway."))
        return doc.Document(
            subject="Launch", verdict="It was not started.", tone="bad", blocks=blocks, data=launch_report(session)
        )
    request, outcome = session.attempts[-1].request, session.attempts[-1].outcome
    config_name = request.config_path.name if request.config_path else "its configuration"
    return doc.Document(
        subject=f"Training by {request.target} · {request.run.model_name or 'a model of its own'}",
        verdict=end_sentence(outcome),
        tone=_TONES[outcome.status],
        blocks=[
            doc.Sentence(_where(request, outcome)),
            *_end(session),
            *_next(session),
            *_loss(outcome),
            *configuration(request.run.config, config_name),
        ],
        data=launch_report(session),
    )


def _where(request: LaunchRequest, outcome: LaunchOutcome) -> str:
    """Return `2 ranks on the CPU (AMD EPYC), predicted by a dry run.`"""
    by = "" if outcome.predicted is None else f", predicted {_PREDICTED_BY[outcome.predicted.evidence]}"
    return f"{cluster_title(request.run.cluster)}{by}."


def _end(session: Session) -> Iterator[doc.Block]:
    attempt = session.attempts[-1]
    outcome = attempt.outcome
    failure, checkpoint = outcome.failure, outcome.checkpoint
    found = None
    if failure is not None:
        log, found = _error_in_log(failure, outcome.folder)
        yield from _failure(failure, log, found)
    is_early = failure is not None or outcome.status == "stopped"
    if outcome.status == "stopped" and outcome.made_all_steps:
        yield doc.Sentence(f"All {outcome.total_steps} steps were trained; the stop came while the script saved.")
    if outcome.status == "finished" and outcome.stop_requested:
        yield doc.Sentence("The stop came after the last step: the script saved and ended by itself.")
    if checkpoint is not None and is_early:
        resume = "" if failure is not None else f"; {_resuming(attempt.request)} continues from it"
        yield doc.Sentence(f"The last checkpoint is {shown_path(checkpoint)}{resume}.")
    elif is_early and (outcome.last_step or outcome.plain):
        dry_run = attempt.request.dry_run
        uses_trainer = dry_run is not None and bool(dry_run.arguments.trainer)
        yield doc.Sentence(
            "The Trainer saved no checkpoint." if uses_trainer else "What the script itself saved is not known here."
        )
    if outcome.last_step:
        yield doc.Heading("Measured and predicted", "figures", printed=False)
        yield from _figures(attempt)
    elif outcome.status == "finished":
        why = f"it trains by torch's {outcome.plain}" if outcome.plain else "does the script use the configuration?"
        yield doc.Sentence(f"No step of DeepSpeed's engine was seen: {ended(why)}")
    for warning in outcome.warnings:
        yield doc.Sentence(f"Warned: {warning}.")
    if found is None or found.first is None:  # the place of an error names its log
        yield from ranks_output(outcome)


def _resuming(request: LaunchRequest) -> str:
    """Return what resumes a Trainer: the script's own option if it was seen to have it."""
    option, dry_run = "--resume_from_checkpoint", request.dry_run
    has_option = dry_run is not None and any(option in each.flags for each in dry_run.arguments.options)
    return f"{option}, if the script passes it on," if has_option else "trainer.train(resume_from_checkpoint=True)"


def ranks_output(outcome: LaunchOutcome) -> list[doc.Block]:
    """Return where the output of the ranks is kept."""
    return [doc.Sentence("Output of the ranks:"), doc.Commands([f"{shown_path(outcome.folder)}/rank*.log"])]


def _next(session: Session) -> Iterator[doc.Block]:
    if session.following is not None:
        yield doc.Heading("To continue", "next", printed=False)
        yield doc.Sentence(session.following_sentence)
        if session.following.command is not None:
            yield doc.Commands([shown_paths(session.following.command)])
    elif (saved := session.attempts[-1].outcome.checkpoint) is not None:
        command = shlex.join(["ds-advise", "checkpoint", shown_path(saved)])
        yield from next_command("Check the checkpoint, and export its weights:", command)


def _loss(outcome: LaunchOutcome) -> Iterator[doc.Block]:
    points = _finite(outcome)
    if len(points) < 2:
        return
    steps, losses = zip(*points, strict=True)
    rows = []
    for step, loss in points[-20:]:
        rows.append(doc.Row([doc.Figure(f"{step}", step), doc.make_figure(loss, loss_figure)]))
    panel = Panel(title="loss", layers={"weights": losses})
    chart = Lines(title="Loss by step", x_title="step", xs=steps, panels=[panel])
    yield doc.Heading("Loss", "loss", printed=False)
    yield doc.Chart(chart, doc.Table(["step", "loss"], rows))


def _finite(outcome: LaunchOutcome) -> list[tuple[int, float]]:
    return [(step, loss) for step, loss in outcome.losses if loss is not None]


def end_sentence(outcome: LaunchOutcome) -> str:
    """Return `Finished after step 9, 12 s; loss 6.27 to 2.31.`, or the failure with its rank and step."""
    if outcome.failure is not None:
        failure = outcome.failure
        where = "" if failure.rank is None else f", first on rank {failure.rank}"
        if failure.kind in _SAYS_WHEN:
            return f"{capitalised(failure.message)}, {seconds(outcome.seconds)}."
        return f"{FAILURE_TITLES[failure.kind]}{where}{_when(outcome, failure.step, ', ')}, {seconds(outcome.seconds)}."
    how, losses = "Finished" if outcome.status == "finished" else "Stopped on request", _finite(outcome)
    loss = f"; loss {loss_figure(losses[0][1])} to {loss_figure(losses[-1][1])}" if len(losses) > 1 else ""
    return f"{how}{_when(outcome, outcome.last_step, ' ')}, {seconds(outcome.seconds)}{loss}."


def _when(outcome: LaunchOutcome, step: int, before: str) -> str:
    """Return when it ended, by the steps of the engine; "" of a training whose steps are not seen."""
    if not step and (outcome.plain or outcome.status == "finished"):
        return ""
    return before + (f"after step {step}" if step else "before the first step")


def _failure(failure: TrainingFailure, log: Path, found: Diagnosis) -> Iterator[doc.Block]:
    is_exception = bool(re.match(r"[\w.]+: ", failure.message))
    if failure.kind not in _SAYS_WHEN:  # else the message is the verdict
        yield doc.Sentence(failure.message if is_exception else ended(capitalised(failure.message)))
    raised = f"{failure.message.partition(':')[0]} on rank {failure.rank}"
    for evidence in (each for each in failure.evidence if each != raised):
        yield doc.Sentence(f"Evidence: {evidence}.")
    if failure.cause:
        yield doc.Sentence(f"{'Cause' if failure.is_cause_certain else 'Usual causes'}: {ended(failure.cause)}")
    if failure.fix:
        yield doc.Sentence(f"Fix: {failure.fix}.")
    if found.first is not None:
        yield from error_place(found, shown_path(log), says_when=False)
        yield from next_command("More about it:", shlex.join(["ds-advise", "why", shown_path(log)]))


def _error_in_log(failure: TrainingFailure, folder: Path) -> tuple[Path, Diagnosis]:
    """Return the log of the rank that failed, or of the launcher, and what is wrong in it. Of a loss that is NaN it is
    that of rank 0, which prints the losses."""
    is_nan, found = failure.kind == "nan_loss", diagnose(io.BytesIO())
    rank = 0 if is_nan else failure.rank
    log = folder / ("launcher.log" if rank is None else f"rank{rank}.log")
    with suppress(OSError), log.open("rb") as stream:
        seen = diagnose(stream)
        if not is_nan or (seen.message is not None and seen.message.id.startswith("nan-")):
            found = seen
    return log, found


def render_failure(failure: TrainingFailure, folder: Path, console: Console) -> None:
    """Print the failure's message, its evidence, its fix, and its place in the log of the rank in the folder."""
    print_blocks(_failure(failure, *_error_in_log(failure, folder)), console)


def render_figures(attempt: Attempt, console: Console) -> None:
    """Print measured and predicted figures."""
    print_blocks(_figures(attempt), console)


def _figures(attempt: Attempt) -> Iterator[doc.Block]:
    """Yield measured and predicted figures. The predicted step time is scaled to the measured number of tokens per
    step."""
    outcome, seen = attempt.outcome, attempt.request.dry_run
    prediction = None if outcome.differences else outcome.predicted
    is_dry = prediction is not None and prediction.evidence == "dry-run"
    unit = "tokens" if seen is None or not is_dry else seen.unit
    yield _figures_table(outcome, prediction, unit)
    sentences = list[doc.Block]()
    if attempt.was_busy:
        sentences.append(doc.Sentence(attempt.was_busy, "yellow"))
    if attempt.request.device == "cpu" and prediction is not None and prediction.step_s is None:
        sentences.append(doc.Sentence(UNTIMED, "dim"))
    predicted_bytes = prediction.host_bytes if prediction is not None and prediction.evidence == "probe" else None
    if predicted_bytes is not None and gib(max(predicted_bytes, outcome.peaks.host_bytes)) != gib(predicted_bytes):
        text = "The predicted memory is the peak of a probe's first steps; saving, which comes later, is not in it."
        sentences.append(doc.Sentence(text, "dim"))
    if outcome.tokens_per_step is not None:
        padding = "" if seen is not None and not seen.training.has_padding_mask else ", padding included"
        is_scaled = prediction is not None and prediction.step_s and unit == "tokens"
        as_many = "; times are predicted for as many" if is_scaled else ""
        sentences.append(doc.Sentence(f"{outcome.tokens_per_step:,.0f} tokens in a step{padding}{as_many}."))
    if sentences:
        yield from (doc.Gap(), *sentences)


def _figures_table(outcome: LaunchOutcome, predicted: Prediction | None, unit: str) -> doc.Table:
    """Return the measured figures with the predicted ones, of the whole step and of its phases; figures without a
    counter on the device are left out, and memory of phases without one. What remains of the step's time is a phase of
    its own, because the data and the Trainer may take more than the computation. unit: what the predicted rate counts,
    "tokens" or "samples"."""
    peaks, measured, step_s = outcome.peaks, [*outcome.phases], outcome.step_s
    rates: tuple[float | None, ...] = (None, None)
    memory: tuple[float | None, ...] = (None,) * 4
    if predicted is not None:
        scaled_s = predicted.step_s
        if scaled_s and predicted.tokens_per_step and outcome.tokens_per_step and unit == "tokens":
            scaled_s *= outcome.tokens_per_step / predicted.tokens_per_step
        rates = predicted.tokens_per_s, scaled_s
        memory = predicted.device_bytes, predicted.reserved_bytes, predicted.allocated_bytes, predicted.host_bytes
    if step_s and (rest_s := step_s - sum(phase.seconds or 0.0 for phase in measured)) > _LEAST_REST * step_s:
        measured.append(PhaseFigures(name="between steps", seconds=rest_s, peak_bytes=None))
    by_name = {phase.name: phase for phase in (predicted.phases if predicted else ())}
    has_gpu = any(phase.peak_bytes for phase in measured)
    rows = list[doc.Row]()

    def add(name: str, figures: Sequence[float | None], write: Callable[[Any], str], peaks: Sequence[Any] = ()) -> None:
        if figures[0] is not None:
            cells = [doc.make_figure(value, write) for value in figures]
            rows.append(doc.Row([name, *cells, *(doc.make_figure(peak, gib) for peak in peaks)]))

    add("tokens/s", (outcome.tokens_per_s, rates[0] if unit == "tokens" else None), rate)
    if outcome.tokens_per_s is None and outcome.samples_per_step and step_s:
        add("samples/s", (outcome.samples_per_step / step_s, rates[0] if unit == "samples" else None), rate)
    add("step", (step_s, rates[1]), seconds)
    for phase in measured:
        pair = (phase, by_name.get(phase.name, PhaseFigures(name="", seconds=None, peak_bytes=None)))
        peak_bytes = [each.peak_bytes for each in pair] if has_gpu else ()
        add(f"  {_PHASE_TITLES.get(phase.name, phase.name)}", [each.seconds for each in pair], seconds, peak_bytes)
    titles = ("GPU GiB, device", "GPU GiB, reserved", "GPU GiB, allocated", "host GiB per node")
    sizes = (peaks.device_bytes, peaks.reserved_bytes, peaks.allocated_bytes, peaks.host_bytes)
    for title, size, other in zip(titles, sizes, memory, strict=True):
        add(title, (size, other), gib)
    table = doc.Table(["", "measured", "predicted", *["GPU GiB", "predicted"] * has_gpu], rows)
    return table.without({2, 4}) if predicted is None else table
