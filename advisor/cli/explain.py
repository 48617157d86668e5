"""The command `explain`: formulas, values and sources of a plan's figures, or a key of a DeepSpeed configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ...estimators.errors import ConfigFileError, UnknownModelError
from ...estimators.plan import PlainPyTorch
from ..question.options import OPTIONS
from ..text.output import Output
from ..text.units import alternatives
from .options import MODEL_ARGUMENT, CommandWithItsWords, output_options, question_options, typed_command
from .typed_line import GPUS, line, question_for, typed_words, value_of

if TYPE_CHECKING:
    from ..answer.comparison import Side
    from ..answer.explanation import Explanation
    from ..answer.key_costs import KeyContext
    from ..question.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A model or a configuration file whose plan is explained."""

    explanation: Explanation | None = None
    """Its plan; None for a file that records no model."""
    context: KeyContext | None = None
    """The plan for which keys have figures; None without a plan."""
    side: Side | None = None
    """The file."""


_IN_KEYS = "_./=:"
"""Characters of a key, or of what is typed in place of one."""


def _show_key(
    name: str, output: Output, find: Callable[[], _Subject] | None = None, *, with_parts: bool = False
) -> int:
    """Explain a key of a DeepSpeed configuration. find: returns the subject for which the key has figures. with_parts:
    whether the parts of the subject's plan with this name follow."""
    from ...validate.lint import load_facts
    from ..answer.explained_key import explain_key, find_key
    from ..document.terminal import print_blocks
    from ..render.explained_key import key_blocks
    from ..render.explained_part import parts_of_key

    facts = load_facts()
    find_key(name, facts)  # what is wrong with it is told before the machine is looked for
    found = _Subject() if find is None else find()
    key = explain_key(name, facts=facts, context=found.context, side=found.side)
    plan = found.explanation if with_parts else None
    parts = [] if plan is None else parts_of_key(plan, name)
    output.show(lambda: key, lambda console: print_blocks([*key_blocks(key), *parts], console))
    return 0


@click.command(cls=CommandWithItsWords)
@MODEL_ARGUMENT
@click.argument("part", metavar="[PART]", nargs=-1)
@question_options(
    tuple(OPTIONS),
    searches=True,
    only_passed=True,
    gradient_checkpointing={"default": None, "default_text": "auto; on for a file that has its micro batch"},
)
@click.option(
    "--strategy",
    metavar="NAME",
    help="Strategy, or plain PyTorch as fsdp2, fsdp or torch.  [default: the recommended plan's]",
)
@click.option(
    "--set", "settings", metavar="NAME=VALUE,...", help="Settings of the plan: reduce_bucket_size=2e8,overlap_comm=no."
)
@click.option(
    "--model",
    "costs_of",
    metavar="MODEL",
    help="With a key: show its cost for this model. With a file: its model.",
)
@click.option("--details", is_flag=True, help="Also the small parts, all formulas, and the moments of a step.")
@output_options
def explain(
    model: str,
    part: tuple[str, ...],
    question: dict[str, Any],
    strategy: str | None,
    settings: str | None,
    costs_of: str | None,
    details: bool,
    output: Output,
) -> int:
    """Show the parts of a plan's memory and time; with PART, how a part is calculated: formula, values and source.

    MODEL may also be a DeepSpeed configuration, whose plan is explained, or one of its keys: its meaning, default,
    scope and cost.

    \b
    ds-advise explain Qwen2.5-14B --gpus 2x32GB
    ds-advise explain Qwen2.5-14B --gpus 2x32GB "optimizer states"
    ds-advise explain Qwen2.5-14B --gpus 2x32GB time
    ds-advise explain ds_config.json --model Qwen2.5-14B --gpus 2x32GB
    ds-advise explain Qwen2.5-14B --gpus 2x80GB --strategy fsdp --micro-batch 1
    ds-advise explain overlap_comm --model Qwen2.5-14B --gpus 2x80GB

    Exit code: 0, or 2 if the question cannot be answered.
    """
    from ..answer.explained_key import is_exact_key, is_key, names_key
    from ..document.terminal import print_blocks
    from ..question.gpu_text import meant_gpus, near_gpus
    from ..render.explained_part import has_part, part_blocks, parts_meant
    from ..render.explanation import explanation_blocks
    from ..text.labels import component_title, is_component
    from .mistaken_keys import refuse_broken_file, refuse_file_behind, refuse_ignored_key, refuse_other_name

    title = " ".join(part)
    is_file = _is_file(model, has_model=costs_of is not None)
    is_subject = is_file or (costs_of is None and not is_key(model))
    refuse_broken_file(model)
    refuse_file_behind(model, part)
    if meant_gpus(title) or near_gpus(title) or (part and not is_subject):
        raise click.UsageError(f"unexpected extra argument ({title[:60]})")
    if not is_subject and not is_key(model):
        _refuse_unknown(model)
    subject = model if is_subject else costs_of
    asked = question | ({"model": costs_of} if is_file and costs_of else {})

    @functools.cache
    def find() -> _Subject:
        return _Subject() if subject is None else _subject(subject, asked, strategy, settings, output)

    word = part[0] if len(part) == 1 else ""
    key = model if not is_subject else word if word and names_key(word) else ""
    if not is_subject or ({*_IN_KEYS} & {*key} and not is_component(key)):  # most titles of parts have none of them
        return _show_key(key, output, find)
    if is_file and key and is_exact_key(key):  # a file has its keys first
        return _show_key(key, output, find, with_parts=True)
    found = find().explanation
    if part and (found is None or not has_part(found, title)):
        if is_file:
            refuse_ignored_key(Path(model), title)
        near = [] if found is None else parts_meant(found, title)
        if key and not near:
            return _show_key(key, output, find)
        if not near:
            refuse_other_name(title)
    if found is None:
        raise ConfigFileError(f"{model} records no model", fix=f"write {_with_model(model, part)}")
    if part:
        blocks = [*part_blocks(found, title, listing=typed_command(without=part))]
    else:
        largest = component_title(found.sections[0].parts()[0].name)
        example = typed_command(largest)
        blocks = [
            *explanation_blocks(found, example=example, details=details, way_out="" if is_file else _way_out(found))
        ]
    output.show(found.figures, lambda console: print_blocks(blocks, console))
    return 0


def _is_file(name: str, *, has_model: bool) -> bool:
    """Whether a word is a configuration file; one that is wrong too, if its model is named."""
    from ..question.file_question import is_ds_config

    return is_ds_config(Path(name)) or (has_model and Path(name).suffix.lower() == ".json")


def _way_out(found: Explanation) -> str:
    """Return what fits in place of the plan of a question that does not; "" if it fits."""
    from ..answer.lint_file import what_fits
    from .commands import command_named

    question = found.question
    if question is None or found.candidate.fit.verdict != "does not fit":
        return ""
    words = question_for(command_named("advise"), typed_words(), command_named("explain"))
    return what_fits(lambda: question, line(words))


def _with_model(file: str, part: tuple[str, ...]) -> str:
    """Return the line that explains a file for a model."""
    return line(["explain", file, *part, "--model", "MODEL", "--gpus", value_of("--gpus", typed_words()) or GPUS])


def _refuse_unknown(name: str) -> None:
    """Raise UnknownModelError for a word that is neither a model nor a key."""
    from ..answer.explained_key import keys_meant
    from ..render.explained_part import is_section
    from .mistaken_files import refuse_unknown
    from .mistaken_keys import refuse_missing_file, refuse_other_name
    from .model_argument import is_model

    refuse_missing_file(name)
    if not (is_model(name) or Path(name).exists() or is_section(name)):
        refuse_other_name(name)
    near = "" if name.upper() == "MODEL" else alternatives(keys_meant(name))
    what = f"{name[:60]!r} is neither a model nor a key of a configuration"
    fix = f"did you mean {near}?" if near else ""
    if near and "/" in name and not Path(name).exists():  # else it would be looked for on the hub
        raise UnknownModelError(what, fix=fix)
    refuse_unknown(name, what, fix)


def _subject(
    name: str, question: dict[str, Any], strategy: str | None, settings: str | None, output: Output
) -> _Subject:
    """Return the plan of a configuration file or of a model."""
    from ..answer.key_costs import KeyContext

    if not _is_file(name, has_model="model" in question):
        found = _of_question(name, question, strategy, settings, output)
        assert found.question is not None, "it is the question that the plan answers"
        is_recommended = found.role == "recommended"
        context = KeyContext.of_plan(found.candidate.plan, found.question, is_recommended=is_recommended)
        return _Subject(explanation=found, context=context)
    if strategy is not None or settings is not None:
        raise click.UsageError("--strategy and --set change the plan of a model, not of a file")
    side, asked = _file_side(Path(name), question, output)
    if asked is None:
        return _Subject(side=side)
    return _Subject(explanation=_of_side(side, asked), context=KeyContext.of_file(side, asked.model), side=side)


def _of_question(
    model: str, question: dict[str, Any], strategy: str | None, settings: str | None, output: Output
) -> Explanation:
    """Explain the recommended plan of a question, or the one that the options name."""
    from ..advise import answer as answer_question
    from ..advise import build_question, strategy_candidate
    from ..answer.explained_key import split_settings
    from ..answer.explanation import explain as explain_answer
    from ..answer.explanation import explain_plan, shown_candidate
    from ..answer.key_costs import without_costs
    from ..question.other_names import known_plan
    from ..question.workload import named_settings

    if strategy is not None:
        strategy = known_plan(strategy)  # told before the model and the machine are looked for
    _refuse_unknown(model)
    built = build_question(model, **question, say=output.say, strategy=strategy or "")
    if settings is None and strategy not in get_args(PlainPyTorch):
        return explain_answer(answer_question(built), strategy=strategy)
    kept, keys = split_settings(named_settings(settings or ""))
    changed = strategy or shown_candidate(answer_question(built)).plan.strategy
    candidate = strategy_candidate(built, changed, kept)
    for words in without_costs(keys, candidate.plan):
        output.say(words)
    return explain_plan(candidate, built)


def _of_side(side: Side, asked: Question) -> Explanation:
    """Explain the plan of a configuration file."""
    from ..answer.explanation import explain_plan

    assert side.candidate is not None, "the context is known"
    workload = side.settings.workload or asked.workload
    found = explain_plan(side.candidate, replace(asked, workload=workload))
    return replace(found, assumed=side.all_assumed, unpredicted=side.unpredicted)


def _file_side(path: Path, given: dict[str, Any], output: Output) -> tuple[Side, Question | None]:
    """Return a configuration file with its plan, and the question about its model and machines; without a known model
    neither plan nor question."""
    from ..advise import files_context
    from ..answer.comparison import build_side
    from ..question.file_question import read_file_question
    from .mistaken_keys import refuse_file_of_tool

    refuse_file_of_tool(path)
    file = read_file_question(path, given)
    context = files_context([file], given, say=output.say)
    return build_side(file, context), None if context is None else context.question
