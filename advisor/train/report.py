"""The output of `ds-advise train`: data and plan before the start, the result at the end. Lines have 80 columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ...ds_configs.files import config_text
from ...ds_configs.read import saves_model
from ...ds_configs.training_script import python_source
from ...estimators.json_form import SCHEMA_VERSION, from_attributes
from ..answer.advice import PlanFigures, plan_figures
from ..answer.facts import plan_facts
from ..answer.verdict import what_lacks
from ..data.formats import ROW_FORMATS
from ..document import blocks as doc
from ..document.terminal import print_blocks
from ..launch.command import dry_lines
from ..launch.request import Attempt, LaunchOutcome, LaunchRequest
from ..launch.session import Session
from ..question.this_machine import measured_hardware
from ..render.history import slow_bf16
from ..render.launch import end_sentence, ranks_output, render_failure, render_figures
from ..render.runs import next_command
from ..text.labels import cluster_title, method_title, plan_title
from ..text.lines import blank, commands, copyable, sentence
from ..text.units import (
    capitalised,
    counted_noun,
    ended,
    loss_figure,
    percent,
    seconds,
    whole_seconds,
)
from ..verification.prediction import is_timed
from .folder import TrainingFolder

if TYPE_CHECKING:
    from ..data.prepare import DataFile
    from .proposal import Proposal  # imports datasets, which `ds-advise schema` does not need


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A training after its last launch."""

    session: Session
    folder: TrainingFolder
    merged: bool = False

    @property
    def attempt(self) -> Attempt:
        """The last launch."""
        return self.session.attempts[-1]

    @property
    def finished(self) -> bool:
        """Whether all steps were made and the model is saved; otherwise the training can be resumed."""
        return self.folder.state.exists()

    @property
    def is_whole(self) -> bool:
        """Whether the saved weights are whole; otherwise they are ZeRO's shards in the last checkpoint."""
        return saves_model(self.attempt.request.run.config)

    @property
    def base(self) -> Path:
        """The folder of the model that was trained."""
        return Path(self.attempt.request.options.model or "")


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The data of a training."""

    rows: int
    train_samples: int
    evaluation_samples: int
    seq_len: int
    """Sequence length: tokens of the longest sample."""
    tokens: int
    """Tokens of all training samples, for one epoch."""


@dataclass(frozen=True, kw_only=True)
class TrainingProposal:
    """A training before its start."""

    data: TrainingData
    plan: PlanFigures | None
    """The plan in the form of a candidate of `advise --json`; null if nothing fits, or nothing passed the check."""
    steps: int
    """Optimizer steps of the whole training."""
    learning_rate: float
    duration_s: float | None
    """Predicted seconds of all steps, with the padding of samples that the ranks apply."""


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """A training from the data to the saved model."""

    schema_version: int
    proposal: TrainingProposal | None
    """The proposal; null for a resumed training."""
    launched: LaunchOutcome | None
    """The last launch, in the form of an attempt of `launch --json`; null if nothing was started."""
    finished: bool
    """Whether all steps were made and the model was saved."""
    evaluations: tuple[tuple[int, float], ...]
    """(step, loss) on the evaluation rows."""
    model: str | None
    """The folder of the model, or of the adapters, with the tokenizer; null unless the training has finished."""
    merged: str | None
    """The folder of the model with the adapters merged into its weights; null without --merge."""
    checkpoint: str | None
    """The last checkpoint, from which --resume continues if it is whole; null if there is none."""


def training_report(proposed: Proposal | None, trained: Trained | None) -> TrainingReport:
    """The JSON of a training. proposed: None for a resumed training. trained: None if the training was not started."""
    proposal = None
    if proposed is not None:
        plan = proposed.answer.recommended
        proposal = TrainingProposal(
            data=from_attributes(TrainingData, proposed.samples, proposed.data),
            plan=None if plan is None else plan_figures(plan),
            steps=proposed.steps,
            learning_rate=proposed.learning_rate,
            duration_s=None if plan is None else proposed.training_s,
        )
    checkpoint = trained.folder.newest_checkpoint() if trained is not None else None
    return TrainingReport(
        schema_version=SCHEMA_VERSION,
        proposal=proposal,
        launched=None if trained is None else trained.attempt.outcome,
        finished=trained is not None and trained.finished,
        evaluations=() if trained is None else trained.folder.logged("eval_loss"),
        model=str(trained.folder.path) if trained is not None and trained.finished else None,
        merged=str(trained.folder.merged) if trained is not None and trained.merged else None,
        checkpoint=None if checkpoint is None else str(checkpoint),
    )


def render_proposal(proposed: Proposal, console: Console) -> None:
    """Print the recommended plan (or the one nearest to fitting), the predicted duration, and the data."""
    print_blocks([*_plan(proposed, _data(proposed)), doc.Gap()], console)


def _data(proposed: Proposal) -> list[doc.Fact]:
    data, samples, cuts = proposed.data, proposed.samples, proposed.samples.cuts
    title = ROW_FORMATS[data.row_format].title
    packed = f" packed, {percent(samples.fill)} full" if samples.packing else ""
    held_out = f", {samples.evaluation_samples:,} for evaluation" if samples.evaluation_samples else ""
    facts = [
        doc.Fact(
            "data",
            f"{data.rows:,}",
            f"{'row' if data.rows == 1 else 'rows'} of {title} in {data.name}: {samples.train_samples:,} samples for "
            f"training{packed}{held_out}",
        ),
        *(
            doc.Fact("data", "", _left_out(each))
            for each in (data, proposed.evaluation)
            if each is not None and each.empty_rows
        ),
    ]
    cut = f"rows cut: {cuts.truncated:,}, left without an answer: {cuts.dropped:,}"
    uncut = "longer text is continued" if data.divisible else "no row is cut"
    lengths = f"tokens (95th percentile {data.typical:,}, longest {data.longest:,})"
    facts.append(
        doc.Fact("sequence", f"{samples.seq_len:,}", f"{lengths}; {cut if cuts.truncated or cuts.dropped else uncut}")
    )
    template = "the tokenizer's own chat template" if data.has_own_template else "the default chat template"
    plain = data.row_format in ("text", "prompt-completion")
    counted = "all of the text" if data.divisible else "the answers" if plain else f"the answers in {template}"
    facts.append(doc.Fact("loss", percent(data.trained_tokens / data.tokens), f"of the tokens, {counted}"))
    if data.untrained_turns:
        turns = counted_noun(data.untrained_turns, "earlier answer")
        facts.append(doc.Fact("loss", "", f"not trained, because the template changes them later: {turns}"))
    return facts


def _left_out(data: DataFile) -> str:
    """Return `left out of chats.jsonl, empty or without answer: 2 (rows 7, 12)`."""
    named, rest = ", ".join(map(str, data.first_empty)), ", ..." * (data.empty_rows > len(data.first_empty))
    rows = f"row{'s' * (data.empty_rows > 1)} {named}{rest}"
    return f"left out of {data.name}, empty or without answer: {data.empty_rows:,} ({rows})"


def _plan(proposed: Proposal, data: Sequence[doc.Fact] = ()) -> Iterator[doc.Block]:
    question, chosen, every = proposed.answer.question, proposed.answer.recommended, proposed.settings.save_steps
    if chosen is None:
        yield doc.Sentence("Nothing fits.", "bad")
        if near := proposed.answer.closest:
            yield doc.Sentence(what_lacks(question, near))
        ask = f"ds-advise {question.model.name} --seq-len {question.workload.seq_len}"
        yield doc.Sentence(f"{ask} shows what would help.")
        yield doc.Facts(data)
        return
    method, machines = capitalised(method_title(question.workload)), cluster_title(question.cluster)
    takes = f", {_duration(proposed)} without the start" if _is_timed(proposed) else ""
    saves = f", a checkpoint every {every}" if every else ""
    epochs = proposed.epochs
    words = f"({epochs:.3g} epoch{'' if epochs == 1 else 's'}) at a learning rate of {proposed.learning_rate:g}"
    facts = plan_facts(question, chosen)[0 if _is_timed(proposed) else 1 :]
    yield doc.Sentence(f"{method} in {question.workload.precision} on {machines}: {plan_title(chosen.plan)}.", "bold")
    yield doc.Facts([*facts, doc.Fact("steps", f"{proposed.steps:,}", f"{words}{takes}{saves}"), *data])
    cluster = question.cluster
    is_bf16 = cluster.gpu.is_cpu and question.workload.precision == "bf16"
    if is_bf16 and (known := measured_hardware("cpu", cluster.gpus_per_node)) is not None:
        yield from slow_bf16(known.result, style="yellow")


def _is_timed(proposed: Proposal) -> bool:
    """Whether the plan's speed is known well enough to be printed."""
    return is_timed(proposed.answer.question.cluster, proposed.chosen.estimate.evidence)


def _duration(proposed: Proposal) -> str:
    return f"about {whole_seconds(proposed.training_s)}" if proposed.training_s >= 1 else "less than 1 s"


def render_checked(before: Proposal, after: Proposal, console: Console) -> None:
    """Print the plan that passed the check, if it differs from the one printed before; else its duration, if only the
    check shows it."""
    was, now = before.answer.recommended, after.answer.recommended
    if now is None and was is not None:
        sentence(console, "No plan that was predicted to fit passed the check.", style="bold red")
        sentence(console, "A shorter --seq-len, --method lora or --loss fused takes less memory.")
    elif now is not None and was is not None and now.plan != was.plan:
        print_blocks([*_plan(after), doc.Gap()], console)
    elif now is not None and was is not None and not _is_timed(before) and _is_timed(after):
        sentence(
            console, f"All {after.steps:,} steps: {_duration(after)} without the start, at the speed of the probe."
        )
        blank(console)


def render_start(request: LaunchRequest, console: Console) -> None:
    """Print the output of `--dry`: configuration, environment and command."""
    sentence(console, f"{request.config_path} would be:")
    copyable(console, config_text(request.run.config).splitlines())
    sentence(console, "It would be started with:")
    commands(console, [line for _, line in dry_lines(request)])


def render_trained(trained: Trained, console: Console) -> None:
    """Print the end of the training, measured and predicted figures, and the model's location, or what resumes it."""
    blank(console)
    outcome = trained.attempt.outcome
    if trained.finished:
        sentence(console, _ended(trained), style="bold green")
        blank(console)
    elif outcome.failure is not None:
        sentence(console, end_sentence(outcome), style="bold red")
        render_failure(outcome.failure, outcome.folder, console)
        blank(console)
    else:
        sentence(console, end_sentence(outcome), style="bold yellow")
        blank(console)
    if outcome.last_step:
        render_figures(trained.attempt, console)
    if trained.finished:
        blank(console)
        _where(trained, console)
    else:
        _resume_command(trained, console)


def _ended(trained: Trained) -> str:
    losses, evaluations = trained.folder.logged("loss"), trained.folder.logged("eval_loss")
    before, last = trained.attempt.request.resumes_after, losses[-1][0]
    made = f"steps {before + 1:,} to {last:,}" if before else f"{last:,} steps"
    if before < last:
        losses = tuple(pair for pair in losses if pair[0] > before)
    else:
        made = f"all {last:,} steps had been made; saved"
    text = f"Finished: {made} in {seconds(trained.attempt.outcome.seconds)}, "
    lost = [step for step, loss in trained.attempt.outcome.losses if loss is None]
    # Its mean of a NaN and later losses stays NaN, so the Trainer logs nothing else from there on.
    finite = next((loss for _, loss in reversed(trained.attempt.outcome.losses) if loss is not None), losses[-1][1])
    text += f"loss {loss_figure(losses[0][1])} to {loss_figure(finite if lost else losses[-1][1])}"
    text += f" (NaN in {counted_noun(len(lost), 'step')}, first in step {lost[0]:,})" if lost else ""
    return text + (f", evaluation {loss_figure(evaluations[-1][1])}." if evaluations else ".")


def _resume_command(trained: Trained, console: Console) -> None:
    checkpoint, failure = trained.folder.newest_checkpoint(), trained.attempt.outcome.failure
    print_blocks(ranks_output(trained.attempt.outcome), console)
    if trained.session.following is not None:
        sentence(console, ended(trained.session.following_sentence.removesuffix(":")))
    if checkpoint is None:
        sentence(console, "There is no checkpoint yet.")
        return
    less = ["--fallback"] if failure is not None and failure.is_out_of_memory else []
    resume = shlex.join(["ds-advise", "train", "--resume", *less, "--output-dir", str(trained.folder.path)])
    print_blocks(next_command(f"Resume from {checkpoint.name}:", resume), console)


def _where(trained: Trained, console: Console) -> None:
    path, merged = trained.folder.path, trained.folder.merged
    is_full = trained.attempt.request.run.workload.method == "full"
    if not trained.is_whole:
        last = trained.folder.newest_checkpoint()
        sentence(
            console,
            f"The host's RAM does not hold all weights at once, so ZeRO's shards are saved in {last}. Merge them on a "
            "machine with enough RAM:",
        )
        words = ["python", f"{last}/zero_to_fp32.py", str(last), str(path), "--safe_serialization"]
        copyable(console, [shlex.join(words)])
        return
    model = f"{'The model' if is_full else 'The adapter'} and its tokenizer are in {path}"
    sentence(console, model + (f", merged with the model in {merged}." if trained.merged else "."))
    if is_full or trained.merged:
        lines = [f"AutoModelForCausalLM.from_pretrained({python_source(str(merged if trained.merged else path))})"]
    else:
        lines = [
            f"model = AutoModelForCausalLM.from_pretrained({python_source(str(trained.base))})",
            f"model = PeftModel.from_pretrained(model, {python_source(str(path))})",
        ]
    copyable(console, lines)
