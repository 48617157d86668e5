"""What `ds-advise train` prints: the data and the plan before the start, what came of it at the end. 80 columns."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from ...ds_configs.write import config_text
from ...estimators.json_form import SCHEMA_VERSION
from ..answer.advice import PlanFigures, plan_figures
from ..answer.recommendation import closest
from ..data.prepare import DataFile
from ..data.shapes import ROW_SHAPES
from ..launch.command import dry_lines
from ..render.launch import LaunchAttemptJson, attempt_json, render_failure, render_figures
from ..text.labels import checkpointing_title, cluster_title, device_label, method_title, plan_title
from ..text.lines import blank, copyable, sentence
from ..text.units import counted_noun, gib, percent, rate, seconds
from .folder import TrainingFolder, newest_whole
from .proposal import Proposal
from .train import Trained, request_of


class TrainingDataJson(TypedDict):
    """What is trained on."""

    rows: int
    train_samples: int
    evaluation_samples: int
    seq_len: int
    """Tokens of the longest sample."""
    tokens: int
    """Tokens of all training samples, those of one epoch."""


class TrainingProposalJson(TypedDict):
    """What is to be trained, and how."""

    data: TrainingDataJson
    plan: PlanFigures | None
    """In the form of a candidate of `advise --json`; null where nothing fits, or nothing passed the check."""
    steps: int
    """Optimizer steps in all."""
    learning_rate: float
    duration_s: float | None
    """Predicted, of all steps, with samples padded as the ranks pad them."""


class TrainingJson(TypedDict):
    """A training from the data to the saved model."""

    schema_version: int
    proposal: TrainingProposalJson | None
    """Null for a training that is resumed."""
    launched: LaunchAttemptJson | None
    """The last launch, in the form of an attempt of `launch --json`; null where nothing was started."""
    finished: bool
    """Whether all steps were made and the model was saved."""
    evaluations: list[tuple[int, float]]
    """(step, loss) on the rows that were held out."""
    model: str | None
    """The folder of the model, or of the adapters, and their tokenizer; null unless it has finished."""
    merged: str | None
    """The folder of the model with the adapters in its weights; null without --merge."""
    checkpoint: str | None
    """The last whole checkpoint, from which --resume goes on; null where there is none."""


def json_form(proposed: Proposal | None, trained: Trained | None) -> TrainingJson:
    """What was proposed, where it was now, and what came of it, where it was started."""
    checkpoint = newest_whole(trained.folder.path) if trained is not None else None
    done = trained is not None and trained.finished
    return {
        "schema_version": SCHEMA_VERSION,
        "proposal": None if proposed is None else _proposal_json(proposed),
        "launched": None if trained is None else attempt_json(trained.request, trained.outcome),
        "finished": done,
        "evaluations": list(trained.result.evaluations) if trained is not None and trained.result is not None else [],
        "model": str(trained.folder.path) if trained is not None and done else None,
        "merged": str(trained.folder.merged) if trained is not None and trained.merged else None,
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }


def _proposal_json(proposed: Proposal) -> TrainingProposalJson:
    samples, plan = proposed.samples, proposed.answer.recommended
    return {
        "data": {
            "rows": proposed.data.rows,
            "train_samples": samples.train_samples,
            "evaluation_samples": samples.evaluation_samples,
            "seq_len": samples.seq_len,
            "tokens": samples.tokens,
        },
        "plan": None if plan is None else plan_figures(plan),
        "steps": proposed.steps,
        "learning_rate": proposed.learning_rate,
        "duration_s": None if plan is None else proposed.training_s,
    }


def render_proposal(proposed: Proposal, console: Console) -> None:
    """The data, the plan that is recommended for them (or what is nearest to fitting), and how long it will take."""
    for line in _data(proposed):
        sentence(console, line)
    blank(console)
    for styled in _plan(proposed):
        sentence(console, styled)
    blank(console)


def _data(proposed: Proposal) -> list[str]:
    data, samples, cuts = proposed.data, proposed.samples, proposed.samples.cuts
    template = "the tokenizer's own chat template" if data.has_own_template else "the default chat template"
    plain = data.shape in ("text", "prompt-completion")
    counted = "all of the text" if data.divisible else "the answers" if plain else f"the answers in {template}"
    lines = [
        f"{data.name}: {counted_noun(data.rows, 'row')} of {ROW_SHAPES[data.shape].title}; sequence 95th percentile "
        f"{data.typical:,} tokens, longest {data.longest:,}.",
        *map(left_out, (each for each in (data, proposed.evaluation) if each is not None and each.empty_rows)),
        f"The loss counts {percent(data.trained_tokens / data.tokens)} of the tokens, {counted}.",
    ]
    if data.untrained_turns:
        lines.append(
            f"The template changes {counted_noun(data.untrained_turns, 'earlier answer')} once the conversation goes "
            "on; what it changes is not trained."
        )
    length = f"Sequence length {samples.seq_len:,}"
    if data.divisible:
        lines.append(f"{length}; longer text goes on in the next sample.")
    elif cuts.truncated:
        keeps = "keeps no answer and is" if cuts.dropped == 1 else "keep no answer and are"
        lost = f"; {cuts.dropped:,} of them {keeps} left out" if cuts.dropped else ""
        loses = "is longer and loses its end" if cuts.truncated == 1 else "are longer and lose their end"
        lines.append(f"{length}: {counted_noun(cuts.truncated, 'row')} {loses}{lost}.")
    else:
        lines.append(f"{length}; no row is cut.")
    filled = f", {percent(samples.fill)} full" if samples.packing else ""
    lines.append(
        f"{counted_noun(samples.train_samples, 'packed ' * samples.packing + 'sample')} "
        f"{'is' if samples.train_samples == 1 else 'are'} trained{filled}"
        + (f", {samples.evaluation_samples:,} evaluated." if samples.evaluation else ".")
    )
    return lines


def left_out(data: DataFile) -> str:
    """How many rows are empty, and where the first of them stand."""
    first, *others = data.empty_places
    places = ", ".join([first, *(place.rpartition(" ")[2] for place in others)])
    more = f" and {data.empty_rows - 1 - len(others):,} more" if data.empty_rows > 1 + len(others) else ""
    one = data.empty_rows == 1
    return (
        f"Left out: {counted_noun(data.empty_rows, 'row')} that {'is' if one else 'are'} empty or "
        f"{'has' if one else 'have'} an empty answer ({places}{more})."
    )


def _plan(proposed: Proposal) -> list[str | Text]:
    question, chosen = proposed.answer.question, proposed.answer.recommended
    device, cluster = device_label(question.cluster), question.cluster
    if chosen is None:
        near = closest(proposed.answer.ladder)
        nearest = [f"{plan_title(near.estimate.plan)} comes nearest: {near.fit.reason}."] if near else []
        ask = f"ds-advise {question.model.name} --seq-len {question.workload.seq_len}"
        return [Text("Nothing fits.", style="bold red"), *nearest, f"{ask} tells what would help."]
    plan, memory = chosen.estimate.plan, chosen.estimate.memory
    accumulation = plan.gradient_accumulation_steps
    every = proposed.settings.save_steps
    epochs = proposed.steps * (question.workload.global_batch_size or 1) / proposed.samples.train_samples
    return [
        Text(
            f"{_capital(method_title(question.workload))} on {cluster_title(cluster)}: {plan_title(plan)}.",
            style="bold",
        ),
        f"Micro batch {plan.micro_batch_size}"
        + (f" x {accumulation} accumulation steps" if accumulation > 1 else "")
        + f", global batch {question.workload.global_batch_size}; {checkpointing_title(plan)}; "
        f"{question.workload.precision}.",
        f"{gib(chosen.device_bytes)} of {gib(cluster.gpu.memory_bytes)} GiB per {device}, "
        f"{gib(memory.host_bytes_per_node)} GiB of RAM; {rate(chosen.tokens_per_s)} tokens/s.",
        f"{proposed.steps:,} steps ({epochs:.3g} epoch{'' if epochs == 1 else 's'}) at a learning rate of "
        f"{proposed.learning_rate:g}: about {seconds(proposed.training_s)}"
        + (f"; a checkpoint every {every} steps." if every else "."),
    ]


def render_proven(before: Proposal, after: Proposal, console: Console) -> None:
    """What the check made of the plan that was shown; nothing where that stands."""
    was, now = before.answer.recommended, after.answer.recommended
    if now is None and was is not None:
        sentence(console, "No plan that was predicted to fit passed the check.", style="bold red")
        sentence(console, "A shorter --seq-len, --method lora or --loss fused takes less memory.")
    elif now is not None and was is not None and now.estimate.plan != was.estimate.plan:
        for line in _plan(after):
            sentence(console, line)
        blank(console)


def render_start(proposed: Proposal, folder: TrainingFolder, console: Console) -> None:
    """What `--dry` shows: configuration, environment and command; nothing of it is written or started."""
    recommended, run = proposed.answer.recommended, proposed.run
    assert recommended is not None
    request = request_of(run, recommended.estimate, folder, device=proposed.settings.device, steps=proposed.steps)
    sentence(console, f"{folder.ds_config} would be:")
    copyable(console, config_text(run.config).splitlines())
    sentence(console, "It would be started with:")
    copyable(console, [line for _, line in dry_lines(request)])


def render_trained(trained: Trained, console: Console) -> None:
    """How it ended, measured beside predicted, and where the model lies."""
    blank(console)
    outcome, result = trained.outcome, trained.result
    if outcome.failure is not None:
        render_failure(outcome.failure, console, style="bold red")
        _go_on(trained, console)
    elif result is None or not result.finished:
        sentence(console, f"Stopped after step {outcome.last_step}.", style="bold")
        _go_on(trained, console)
    else:
        sentence(console, _ended(trained), style="bold green")
    if outcome.last_step:
        render_figures(trained.request, outcome, console)
    if trained.finished:
        _where(trained, console)


def _ended(trained: Trained) -> str:
    result = trained.result
    assert result is not None
    text = f"Finished: {result.step - trained.request.resumes_after:,} steps in {seconds(trained.outcome.seconds)}"
    if result.losses:
        text += f", loss {result.losses[0][1]:.3g} to {result.losses[-1][1]:.3g}"
    if result.evaluations:
        text += f", evaluation {result.evaluations[-1][1]:.3g}"
    return text + "."


def _go_on(trained: Trained, console: Console) -> None:
    checkpoint, failure = newest_whole(trained.folder.path), trained.outcome.failure
    logs = f"The ranks' output: {trained.outcome.folder}."
    if checkpoint is None:
        sentence(console, f"There is no checkpoint yet. {logs}")
        return
    sentence(console, f"The last checkpoint is {checkpoint.name}; go on with:")
    less = " --fallback" if failure is not None and failure.is_out_of_memory else ""
    copyable(console, [f"ds-advise train --resume{less} --output-dir {trained.folder.path}"])
    sentence(console, logs)


def _where(trained: Trained, console: Console) -> None:
    path, merged, result = trained.folder.path, trained.folder.merged, trained.result
    is_full = trained.job.workload.method == "full"
    if result is not None and not result.whole:
        last = newest_whole(path)
        sentence(
            console,
            "The host has no room for all weights at once, so they lie as ZeRO's shards in "
            f"{last or path}. On a machine with the room:",
        )
        copyable(console, [f"python {last}/zero_to_fp32.py {last} {path} --safe_serialization"])
        return
    model = f"{'The model' if is_full else 'The adapter'} and its tokenizer are in {path}"
    sentence(console, model + (f", merged with the model in {merged}." if trained.merged else "."))
    if is_full or trained.merged:
        lines = [f'AutoModelForCausalLM.from_pretrained("{merged if trained.merged else path}")']
    else:
        lines = [
            f'model = AutoModelForCausalLM.from_pretrained("{Path(trained.job.model)}")',
            f'model = PeftModel.from_pretrained(model, "{path}")',
        ]
    copyable(console, lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
