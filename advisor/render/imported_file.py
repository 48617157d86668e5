"""The answer on a file of another tool as a document, and as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ds_configs.secrets import hide_secrets
from ...ds_configs.training_script import python_source, training_arguments
from ...estimators.hardware import network_assumption
from ...estimators.json_form import SCHEMA_VERSION, from_attributes
from ...estimators.objectives import LOSSES
from ...estimators.plan import Plan
from ...validate.lint import LintReport
from ..answer.advice import PlanFigures, plan_figures
from ..answer.facts import answer_subject, speed_assumptions
from ..answer.verdict import fit_tone
from ..command.advice import ProofFigures, TodayFigures
from ..command.tool_file import ToolRun
from ..document import blocks as doc
from ..importers.answer import ImportAnswer
from ..importers.figures import ImportFigures
from ..importers.imported_run import ImportedRun
from ..importers.own_keys import report_in_file
from ..importers.rewrite import changed_keys
from ..question.question import Question
from ..search.candidate import Candidate, fits_sentence
from ..text.labels import (
    batch_factors,
    batch_label,
    checkpointing_label,
    checkpointing_title,
    device_label,
    phase_title,
    plan_title,
)
from ..text.units import capitalised, ended, gib, listed, printable, rate, rough_rates, times
from .answer import MOST_LINES
from .command_advice import gain, today_and_advised
from .lint import FindingFigures, finding_blocks, finding_figures, finding_lines
from .plans import memory_bars

_MOST_KEYS = 12
"""Maximum number of keys listed per kind. The JSON has all."""

_LONGEST_KEY = 300
"""Characters of a changed key with its value."""

_STAGE_0 = "DeepSpeed, stage 0"

_GIVE_WAY = ("findings", "configuration")
"""Parts that are shortened, in this order, if the answer exceeds `MOST_LINES`: a lint finding that is no error to its
place, its problem and its fix, and the changed keys of the DeepSpeed configuration to a paragraph."""

_IN_SCRIPT = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "use_liger_kernel",
)
"""TrainingArguments that a file without them leaves to the script."""


def import_document(result: ToolRun, *, command: str) -> doc.Document:
    """Return whether the run of a file fits, the gain of a better plan, both plans, the changes, errors, and the
    differences: at most `MOST_LINES` lines, if leaving out details suffices.

    command: the command that writes the change.
    """
    from ..document.terminal import line_count  # imported here: JSON needs no terminal library

    name = printable(str(result.answer.source.path))
    verdict, tone = _verdict(result)
    report = _own_report(result.answer)
    data = import_json(result, report)
    for count in range(len(_GIVE_WAY) + 1):
        left_out = _GIVE_WAY[:count]
        faults, changes = _faults(result.answer, report, left_out), _changes(result.answer, left_out, command)
        refusals = [doc.Sentence(capitalised(ended(printable(fault))), "bad") for fault in result.answer.run.faults]
        blocks = [*_no_figures(result.answer), *refusals, *_plans(result), *_remarks(result), *faults, *changes]
        document = doc.Document(subject=name, verdict=f"{name}, {verdict}", tone=tone, blocks=blocks, data=data)
        if line_count(document) <= MOST_LINES:
            break
    return document


def _verdict(result: ToolRun) -> tuple[str, doc.Tone | None]:
    """Return (what the file is and whether its run fits, its tone)."""
    title, figures, advice = result.answer.form.title, result.answer.figures, result.advice
    if figures is None:
        return title, None
    by = result.answer.refused_by
    tone: doc.Tone | None = "bad" if by else None
    verb = "refuse" if len(by) > 1 else "refuses"
    refused = f"{' and '.join(by)} {verb} it. Apart from that, " if by else ""
    if advice is not None:
        return f"{title}: {refused}{fits_sentence('it', advice.today.fit)}", tone or fit_tone(advice.today.fit)
    if figures.as_is is None:
        return f"{title}: it cannot run, because {figures.refusal}.", "bad"
    fit = figures.as_is.fit
    return f"{title}: {refused}{fits_sentence(_plan_title(figures.as_is.plan), fit)}", tone or fit_tone(fit)


def _no_figures(answer: ImportAnswer) -> Iterator[doc.Block]:
    """Yield why there are no figures."""
    if answer.obstacle is not None:
        yield doc.Sentence(f"There are no figures: {ended(printable(str(answer.obstacle)))}", "bad")


def _plans(result: ToolRun) -> Iterator[doc.Block]:
    """Yield the gain of the better plan, both plans side by side, and their memory."""
    figures, advice = result.answer.figures, result.advice
    if figures is None:
        return
    if advice is not None:
        if advice.recommended is None:
            problem = advice.proofs[-1].problem if advice.proofs else "no plan fits with its global batch"
            yield doc.Sentence(f"No better plan was found: {ended(printable(problem))}")
        yield from gain(advice)
        yield doc.Gap()
        yield from today_and_advised(advice)
    else:
        yield from _gain(figures)
        yield from _side_by_side(figures)
    yield from _memory(figures)


def _remarks(result: ToolRun) -> Iterator[doc.Block]:
    """Yield the training, how the figures came about, and what they leave out."""
    answer, advice = result.answer, result.advice
    run, figures = answer.run, answer.figures
    yield doc.Gap()
    if figures is not None:
        yield from map(doc.Sentence, answer_subject(figures.own, answer.form.tool or "TRL"))
    if advice is None and figures is not None:  # without figures an error says why there are none
        yield doc.Sentence(f"Read, not run: {ended(printable(result.not_run))}")
    if advice is not None:
        yield doc.Sentence("Run on a simulated GPU:")
        yield doc.Commands([shlex.join(answer.command)])
    by_tool = advice is not None and figures is not None  # else the speeds name it
    if by_tool and figures is not None and (network := network_assumption(figures.question.cluster)):
        yield doc.Sentence(f"Assumed: {network}.")
    for remark in answer.remarks:
        yield doc.Sentence(capitalised(ended(printable(remark))))
    if run.uncounted and not run.obstacle:
        yield doc.Sentence(f"Options that the prediction does not use: {_listed(run.uncounted)}.")
    if run.unknown and not _stops_at_unknown(run):
        yield doc.Sentence(f"Unknown to {run.tool}: {_listed(run.unknown)}.")


def _stops_at_unknown(run: ImportedRun) -> bool:
    """Return whether the tool refuses the file for a key that it does not know."""
    return any(key in fault for key in run.unknown for fault in run.faults)


def _plan_title(plan: Plan) -> str:
    """Return the title of a plan; DDP is called the stage of DeepSpeed that it is, because the files of tools also name
    torch's own DDP."""
    return plan_title(plan).replace("DDP", _STAGE_0, 1)


def _listed(keys: Sequence[str]) -> str:
    names, more = ", ".join(printable(key)[:90] for key in keys[:_MOST_KEYS]), len(keys) - _MOST_KEYS
    return f"{names} and {more} more" if more > 0 else names


def _gain(figures: ImportFigures) -> Iterator[doc.Block]:
    """Yield the better plan with its advantage, or the command that shows what would help."""
    as_is, better = figures.as_is, figures.recommended
    if better is not None and figures.is_better:
        title, text = _plan_title(better.plan), ""
        is_same = as_is is not None and better.plan == as_is.plan
        if is_same and figures.variables:  # what the loss changes stands before the start
            title = f"the same plan with {listed(figures.variables)}"
        elif as_is is not None and title == _plan_title(as_is.plan):
            title = f"{title} with {_shape(better.plan)}"
        if as_is is not None and not (is_same and times(better.tokens_per_s / as_is.tokens_per_s) == times(1)):
            ratio = times(better.tokens_per_s / as_is.tokens_per_s)
            text = (
                f" It is {ratio} as fast." if as_is.fit.fits else f" It is {ratio} as fast as the file's plan would be."
            )
        yield doc.Sentence(f"Better: {fits_sentence(title, better.fit)}{text}", fit_tone(better.fit))
    elif better is not None:
        yield doc.Sentence("No plan with the same training and global batch is known to be faster.")
    elif figures.command:
        batch = figures.question.workload.global_batch_size
        yield doc.Sentence(f"No plan fits with its global batch of {batch} samples.")
        if figures.lacking is not None:
            yield doc.Sentence(figures.lacking)
        yield doc.Sentence("This command shows which changes help:")
        yield doc.Commands([figures.command])


def _shape(plan: Plan) -> str:
    """Return what tells a plan from another one of the same title."""
    return f"{batch_factors(plan)} and {checkpointing_title(plan)}"


def _sides(figures: ImportFigures) -> dict[str, tuple[Candidate, Question]]:
    """Return the file's plan and the better one with their questions, as far as there are both."""
    sides = {"as it is": (figures.as_is, figures.own)}
    if figures.is_better:
        sides["better"] = figures.recommended, figures.question
    return {title: (plan, question) for title, (plan, question) in sides.items() if plan is not None}


def _side_by_side(figures: ImportFigures) -> Iterator[doc.Block]:
    sides = _sides(figures)
    facts = {title: _facts(question, plan) for title, (plan, question) in sides.items()}
    if not facts:
        return
    yield doc.Heading("Both plans", "figures", printed=False)
    rows = [doc.Row([name, *(each[name] for each in facts.values())]) for name in next(iter(facts.values()))]
    yield doc.Table(["", *facts], rows)
    assumed = [text for plan, question in sides.values() for text in speed_assumptions(question, plan)]
    if assumed:
        yield doc.Sentence(f"Speeds are predicted, assuming {', '.join(dict.fromkeys(assumed))}.", "dim")


def _facts(question: Question, candidate: Candidate) -> dict[str, str]:
    """Return what a plan is and needs, and how fast it is, by name."""
    plan, cluster, between = candidate.plan, question.cluster, candidate.time.tokens_per_s_range
    have, host = cluster.host_memory_bytes_per_node, gib(candidate.memory.host_bytes_per_node)
    return {
        "strategy": candidate.strategy if candidate.strategy != "ddp" else _STAGE_0,
        "batch": f"{batch_label(plan)}, {plan.samples_per_step(cluster.world_size)} a step",
        "checkpointing": checkpointing_label(plan),
        f"{device_label(cluster)} GiB": f"{gib(candidate.device_bytes)} of {gib(cluster.gpu.memory_bytes)}",
        "RAM GiB": host if have is None else f"{host} of {gib(have)}",
        f"{question.model.unit}/s": rate(candidate.tokens_per_s),
        "  80 % of runs": "-".join(rough_rates(*between, candidate.tokens_per_s)) if between else doc.NOTHING,
    }


def _memory(figures: ImportFigures) -> Iterator[doc.Block]:
    """Yield what each plan holds on a GPU at its peak."""
    if figures.as_is is None:
        return
    device, moment = device_label(figures.own.cluster), phase_title(figures.as_is.memory.peak.name)
    yield doc.Heading(f"Predicted memory per {device}, GiB (peak as it is: {moment})", "memory")
    bars = memory_bars({title: plan for title, (plan, _) in _sides(figures).items()}, figures.own.cluster)
    yield doc.Chart(bars, printed=bars)


def _faults(answer: ImportAnswer, report: LintReport | None, left_out: Collection[str]) -> Iterator[doc.Block]:
    """Yield the lint findings of `_own_report`; without "findings" only the sentences of those that are no errors."""
    part = answer.run.deepspeed
    if report is None or part is None:
        return
    report = replace(report, prediction="")  # the table has the figures
    name = printable(str(part.path or answer.source.path))
    if not report.findings:
        yield doc.Sentence(f"Lint found nothing in {name if part.path is not None else printable(part.name)}.")
        return
    yield doc.Gap()
    if "findings" not in left_out:
        yield from finding_blocks(name, report)
        return
    errors = tuple(each for each in report.findings if each.severity == "error")
    if errors:
        yield from finding_blocks(name, replace(report, findings=errors))
    for finding in report.shown:
        if finding.severity != "error":
            yield from finding_lines(finding, name)


def _own_report(answer: ImportAnswer) -> LintReport | None:
    """The lint result, with the places in the tool's file if the configuration has no file of its own."""
    part, report = answer.run.deepspeed, answer.report
    if part is None or report is None or part.path is not None:
        return report
    return report_in_file(report, answer.form, answer.source, answer.run)


def _changes(answer: ImportAnswer, left_out: Collection[str], command: str) -> Iterator[doc.Block]:
    """Yield the differences of the files, what only the script and the start can set, and the command that writes."""
    name = printable(str(answer.source.path))
    if answer.unwritable is not None:
        yield doc.Gap()
        yield doc.Sentence(f"The change cannot be written into {name}: {ended(printable(answer.unwritable.what))}")
        yield doc.Sentence(capitalised(ended(printable(answer.unwritable.fix))))
    if answer.files:
        yield doc.Heading(f"Change in {name}", "change")
    for file, part in zip(answer.files, ("file", "configuration"), strict=False):
        old, new = printable(file.old_name), printable(str(file.new_path))
        if not file.old_name:
            yield doc.Sentence(f"A new file, {new}:")
            yield from (doc.Sentence(f"  {line}", hang=4) for line in _json_lines(file.new_text, part in left_out))
            continue
        title = f"Change in {old}, written to {new}:"
        keys = [printable(hide_secrets(key))[:_LONGEST_KEY] for key in changed_keys(answer.source, file)]
        if part in left_out:
            yield doc.Sentence(f"{title} {in_blocks(keys)}.", hang=2)
            continue
        if part == "configuration":
            yield doc.Sentence(title)
        yield from (doc.Sentence(f"  {key}", hang=4) for key in keys[:_MOST_KEYS])
        if len(keys) > _MOST_KEYS:
            yield doc.Sentence(f"  and {len(keys) - _MOST_KEYS} more (--json has them)")
    yield from _beside_the_file(answer)
    if answer.files and answer.run.kept_unknown and _stops_at_unknown(answer.run):
        yield doc.Sentence(f"The changed file keeps {_listed(answer.run.kept_unknown)}: correct it by hand.", "bold")
    if answer.written:
        yield doc.Sentence(f"Wrote {', '.join(printable(str(path)) for path in answer.written)}.", "good")
    elif answer.files:
        yield doc.Sentence("Write it (-o FILE --force replaces an existing file):")
        yield doc.Commands([command])


def _json_lines(text: str, is_short: bool) -> Iterator[str]:
    """Yield a new configuration as JSON, with a line for each block and for the keys between blocks. is_short: as one
    line."""
    lines = list[tuple[bool, str]]()  # (whether it is a block, its text)
    for key, value in json.loads(text).items():
        is_block, item = isinstance(value, Mapping), f"{json.dumps(key)}: {json.dumps(value)}"
        if lines and (is_short or not (is_block or lines[-1][0])):
            lines[-1] = is_block, f"{lines[-1][1]}, {item}"
        else:
            lines.append((is_block, item))
    for place, (_, line) in enumerate(lines):
        end = "}" if place == len(lines) - 1 else ","
        yield f"{' ' if place else '{'}{printable(hide_secrets(line))}{end}"


def in_blocks(keys: Sequence[str]) -> str:
    """The keys of `changed_keys` as one text, in which each block is named once."""
    found = list[str]()
    of = ""
    for key in keys:
        name = key.removeprefix("no ").partition(":")[0]
        block = name.rpartition(".")[0]
        text = key.replace(f"{block}.", "", 1) if block else key
        found.append(text if block == of else f"in {block}: {text}" if block else f"at the top: {text}")
        of = block
    return "; ".join(found)


def _beside_the_file(answer: ImportAnswer) -> Iterator[doc.Block]:
    """Yield what the better plan needs in the script, and before the start."""
    figures = answer.figures
    if figures is None or not figures.is_better or figures.recommended is None:
        return
    plan, loss = figures.recommended.plan, figures.question.workload.loss
    is_fused = loss != figures.own.workload.loss
    if answer.run.leaves_batch_to_script:
        names = ("micro_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "cpu_checkpointing")
        # The settings of FSDP, which may checkpoint, are gone from a file with DeepSpeed.
        loses_fsdp = answer.run.is_fsdp and plan.sharding == "zero"
        if is_fused or loses_fsdp or any(getattr(plan, name) != getattr(figures.plan, name) for name in names):
            arguments = training_arguments(plan, figures.question.workload, figures.question.cluster)
            named = [*_IN_SCRIPT, *(["gradient_checkpointing_kwargs"] if plan.cpu_checkpointing else [])]
            chosen = [f"{name}={python_source(arguments[name])}" for name in named if name in arguments]
            yield doc.Sentence(f"In the script, which has settings that this file lacks: {', '.join(chosen)}.", "bold")
    before = [f"export {' '.join(figures.variables)}"] if figures.variables else []
    before += [LOSSES[loss].switch] if is_fused else []
    if before:
        yield doc.Sentence(f"Before the start: {'; '.join(before)}.", "bold")


@dataclass(frozen=True, kw_only=True)
class ImportedRunJson:
    """The run that the file describes, with the options of the command line."""

    model: str | None
    objective: str
    """The training objective: next-token, dpo, kto, orpo, grpo, ppo, reward and others."""
    training: Mapping[str, Any]
    """Training options, by the names of the question's options. An absent option has its default."""
    micro_batch_size: int | None
    """Samples per GPU; null if the script decides it."""
    gradient_accumulation_steps: int | None
    """Accumulation steps; null if they follow from the tool's least global batch."""
    gradient_checkpointing: bool | str
    sharding: str
    """Training backend: zero (DeepSpeed), fsdp2, fsdp or none."""
    nodes: int | None
    gpus_per_node: int | None
    deepspeed_config: Mapping[str, Any] | None
    deepspeed_config_name: str | None
    """The configuration's path or key in the file."""


@dataclass(frozen=True, kw_only=True)
class ChangedFileJson:
    old: str
    """Text before the change; "" for a new file."""
    new: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ImportJson:
    """A run of another tool, with its figures and a better plan."""

    schema_version: int
    file: str
    format: str
    tool: str
    run: ImportedRunJson
    command: tuple[str, ...]
    """The tool's command that trains with the file; empty for a file that a script reads."""
    not_run: str
    """Why the file was only read; "" if the command was run on a simulated GPU."""
    today: TodayFigures | None
    """The dry run of the command; null if the file was only read."""
    proofs: tuple[ProofFigures, ...]
    """The dry runs of the command with the changed file, in their order."""
    remarks: tuple[str, ...]
    """Approximations, as sentences."""
    faults: tuple[str, ...]
    """Settings that the tool itself refuses, as sentences."""
    uncounted: tuple[str, ...]
    """Keys that may decide memory or speed and that the figures ignore."""
    unknown: tuple[str, ...]
    """Keys that the tool does not have, with the nearest key that it has."""
    obstacle: str | None
    """Why there are no figures."""
    refusal: str
    """Why the plan cannot run as it is; "" if it can."""
    as_is: PlanFigures | None
    recommended: PlanFigures | None
    """The fastest plan that fits with the same training and global batch; null if none does."""
    is_better: bool
    """Whether the recommended plan fits when the run does not, or is faster."""
    loss: str | None
    """The kernel of the recommended plan's loss; null without figures."""
    variables: tuple[str, ...]
    """Environment variables of the recommended plan that the run does not have, as NAME=VALUE."""
    findings: tuple[FindingFigures, ...]
    """Lint findings in the DeepSpeed configuration."""
    changes: tuple[ChangedFileJson, ...]
    files: tuple[str, ...]
    """The written files."""


def import_json(result: ToolRun, report: LintReport | None) -> ImportJson:
    """The JSON object of `from`, described in docs/json.md. report: that of `_own_report`."""
    answer, advice = result.answer, result.advice
    run, figures, part = answer.run, answer.figures, answer.run.deepspeed
    as_is, recommended = (figures.as_is, figures.recommended) if figures is not None else (None, None)
    return from_attributes(
        ImportJson,
        run,
        schema_version=SCHEMA_VERSION,
        file=str(answer.source.path),
        format=answer.form.name,
        run=from_attributes(
            ImportedRunJson,
            run,
            deepspeed_config=None if part is None else part.config,
            deepspeed_config_name=None if part is None else part.name,
        ),
        command=answer.command,
        not_run=result.not_run,
        today=None if advice is None else advice.figures().today,
        proofs=() if advice is None else advice.figures().proofs,
        remarks=answer.remarks,
        obstacle=None if answer.obstacle is None else str(answer.obstacle),
        refusal="" if figures is None else figures.refusal,
        as_is=None if as_is is None else plan_figures(as_is),
        recommended=None if recommended is None else plan_figures(recommended),
        is_better=figures is not None and figures.is_better,
        loss=None if figures is None else figures.question.workload.loss,
        variables=() if figures is None else figures.variables,
        findings=() if report is None else tuple(map(finding_figures, report.shown)),
        changes=tuple(
            ChangedFileJson(old=file.old_name, new=str(file.new_path), text=file.new_text) for file in answer.files
        ),
        files=tuple(str(path) for path in answer.written),
    )
