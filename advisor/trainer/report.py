"""What `ds-advise train` says: the data and the plan before the start, what came of it at the end. 80 columns."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from ...ds_configs.write import to_json
from ..launch.report import KINDS, dry_lines, render_figures
from ..recommend.recommendation import closest
from ..terminal.lines import blank, copyable, sentence
from ..terminal.units import gib, percent, rate, seconds
from ..terminal.words import cluster_title, device_word, method_title, plan_title
from .checkpoints import newest_whole
from .data.shapes import SHAPES
from .output import Output
from .proposal import Proposal, config_of
from .train import Trained, request_of


def render_proposal(proposed: Proposal, console: Console) -> None:
    """The data, the plan that is recommended for them (or what is nearest to fitting), and how long it will take."""
    for line in _data(proposed):
        sentence(console, line)
    blank(console)
    for styled in _plan(proposed):
        sentence(console, styled)
    blank(console)


def _data(proposed: Proposal) -> list[str]:
    data, samples = proposed.data, proposed.samples
    cuts, lines = samples.cuts, []
    lines.append(
        f"{data.name}: {data.rows:,} rows of {SHAPES[data.shape].title}; sequence 95th percentile "
        f"{data.typical:,} tokens, longest {data.longest:,}."
    )
    template = "the tokenizer's own chat template" if data.has_own_template else "the default chat template"
    plain = data.shape in ("text", "prompt-completion")
    lines.append(
        f"The loss counts {percent(data.trained_tokens / data.tokens)} of the tokens"
        + (", all of the text." if data.divisible else ", the answers." if plain else f", the answers in {template}.")
    )
    if data.untrained_turns:
        lines.append(
            f"The template changes {data.untrained_turns:,} earlier answers once the conversation goes on; these are "
            "not trained."
        )
    length = f"Sequence length {samples.seq_len:,}"
    if data.divisible:
        lines.append(f"{length}; longer text goes on in the next sample.")
    elif cuts.truncated:
        lost = f"; {cuts.dropped:,} of them keep no answer and are left out" if cuts.dropped else ""
        lines.append(f"{length}: {cuts.truncated:,} rows are longer and lose their end{lost}.")
    else:
        lines.append(f"{length}; no row is cut.")
    filled = f", {percent(samples.fill)} full" if samples.packing else ""
    lines.append(
        f"{samples.train_samples:,} {'packed ' * samples.packing}samples are trained{filled}"
        + (f", {samples.evaluation_samples:,} evaluated." if samples.evaluation else ".")
    )
    return lines


def _plan(proposed: Proposal) -> list[str | Text]:
    question, chosen = proposed.answer.question, proposed.answer.recommended
    device, cluster = device_word(question.cluster), question.cluster
    if chosen is None:
        near = closest(proposed.answer.ladder)
        nearest = [f"{plan_title(near.estimate.plan)} comes nearest: {near.fit.reason}."] if near else []
        ask = f"ds-advise {question.model.name} --seq-len {question.workload.seq_len}"
        return [Text("Nothing fits.", style="bold red"), *nearest, f"What would help is told by {ask}"]
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
        + f", global batch {question.workload.global_batch_size}; gradient checkpointing "
        f"{'on' if plan.gradient_checkpointing else 'off'}; {question.workload.precision}.",
        f"{gib(chosen.device_bytes)} of {gib(cluster.gpu.memory_bytes)} GiB per {device}, "
        f"{gib(memory.host_bytes_per_node)} GiB of RAM; {rate(chosen.tokens_per_s)} tokens/s.",
        f"{proposed.steps:,} steps ({epochs:.3g} epochs) at a learning rate of {proposed.learning_rate:g}: about "
        f"{seconds(proposed.seconds)}" + (f"; a checkpoint every {every} steps." if every else "."),
    ]


def render_proven(before: Proposal, after: Proposal, console: Console) -> None:
    """What the check made of the plan that was shown; nothing where that stands."""
    was, now = before.answer.recommended, after.answer.recommended
    if now is None and was is not None:
        sentence(console, Text("No plan that was predicted to fit stood the check.", style="bold red"))
        sentence(console, "A shorter --seq-len, --method lora or --loss fused takes less memory.")
    elif now is not None and was is not None and now.estimate.plan != was.estimate.plan:
        for line in _plan(after):
            sentence(console, line)
        blank(console)


def render_start(proposed: Proposal, output: Output, console: Console) -> None:
    """What `--dry` shows: configuration, environment and command; nothing of it is written or started."""
    recommended, question = proposed.answer.recommended, proposed.answer.question
    assert recommended is not None
    config = config_of(proposed)
    request = request_of(
        output, question, recommended.estimate, config, device=proposed.settings.device, steps=proposed.steps
    )
    sentence(console, f"{output.ds_config} would be:")
    copyable(console, to_json(config).splitlines())
    sentence(console, "It would be started with:")
    copyable(console, [line for _, line in dry_lines(request)])


def render_trained(trained: Trained, console: Console) -> None:
    """How it ended, measured beside predicted, and where the model lies."""
    blank(console)
    outcome, result = trained.outcome, trained.result
    if outcome.failure is not None:
        failure = outcome.failure
        where = f", first on rank {failure.rank}" if failure.rank is not None else ""
        sentence(console, Text(f"{KINDS[failure.kind]}{where}, after step {failure.step}.", style="bold red"))
        sentence(console, failure.message)
        for evidence in failure.evidence:
            sentence(console, f"Evidence: {evidence}.")
        _go_on(trained, console)
    elif result is None or not result.finished:
        sentence(console, Text(f"Stopped after step {outcome.last_step}.", style="bold"))
        _go_on(trained, console)
    else:
        sentence(console, Text(_ended(trained), style="bold green"))
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
    checkpoint = newest_whole(trained.output.path)
    if checkpoint is None:
        sentence(console, f"There is no checkpoint yet. The ranks' output: {trained.outcome.folder}.")
        return
    sentence(console, f"The last checkpoint is {checkpoint.name}; go on with:")
    failure = trained.outcome.failure
    less = " --fallback" if failure is not None and failure.kind.endswith("out_of_memory") else ""
    copyable(console, [f"ds-advise train --resume{less} --output-dir {trained.output.path}"])
    sentence(console, f"The ranks' output: {trained.outcome.folder}.")


def _where(trained: Trained, console: Console) -> None:
    output, result = trained.output, trained.result
    assert result is not None
    if not result.whole:
        last = newest_whole(output.path)
        sentence(
            console,
            "The host has no room for all weights at once, so they lie as ZeRO's shards in "
            f"{last or output.path}. On a machine with the room:",
        )
        copyable(console, [f"python {last}/zero_to_fp32.py {last} {output.path} --safe_serialization"])
        return
    kind = "The model" if trained.job.workload.method == "full" else "The adapter"
    sentence(
        console,
        f"{kind} and its tokenizer are in {output.path}"
        + (f", merged with the model in {output.merged}." if trained.merged else "."),
    )
    copyable(console, _loading(output.path, Path(trained.job.model), trained))


def _loading(path: Path, base: Path, trained: Trained) -> list[str]:
    if trained.job.workload.method == "full" or trained.merged:
        folder = trained.output.merged if trained.merged else path
        return [f'AutoModelForCausalLM.from_pretrained("{folder}")']
    return [
        f'model = AutoModelForCausalLM.from_pretrained("{base}")',
        f'model = PeftModel.from_pretrained(model, "{path}")',
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
