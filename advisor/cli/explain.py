"""The command `explain`: formulas, values and sources of a plan's figures, or a key of a DeepSpeed configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ...estimators.plan import PlainPyTorch
from ..question.options import OPTIONS
from ..text.output import Output
from ..text.units import alternatives
from .options import MODEL_ARGUMENT, CommandWithItsWords, output_options, question_options, typed_command

if TYPE_CHECKING:
    from ..answer.comparison import Side
    from ..answer.explained_key import KeyExplanation
    from ..answer.explanation import Explanation
    from ..question.question import Question


def show_key(name: str, model: str | None, question: dict[str, Any], output: Output) -> int:
    """Explain a key of a DeepSpeed configuration. model: a model, or a file that has a configuration, for which the key
    has figures."""
    from ...validate.lint import load_facts
    from ..advise import answer as answer_question
    from ..advise import build_question
    from ..answer.explained_key import explain_key, find_key
    from ..answer.key_costs import KeyContext
    from ..question.file_question import is_ds_config

    facts = load_facts()
    find_key(name, facts)  # what is wrong with it is told before the machine is looked for
    context, side = None, None
    if model is not None and is_ds_config(Path(model)):
        side, asked = _file_side(Path(model), question, output)
        context = None if asked is None else KeyContext.of_file(side, asked.model)
    elif model is not None:
        context = KeyContext.of_answer(answer_question(build_question(model, **question, say=output.say)))
    return _show(explain_key(name, facts=facts, context=context, side=side), output)


def _show(key: KeyExplanation, output: Output) -> int:
    from ..document.terminal import print_blocks
    from ..render.explained_key import key_blocks

    output.show(lambda: key, lambda console: print_blocks(key_blocks(key), console))
    return 0


@click.command(cls=CommandWithItsWords)
@MODEL_ARGUMENT
@click.argument("part", metavar="[PART]", nargs=-1)
@question_options(tuple(OPTIONS), searches=True, only_passed=True)
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
    ds-advise explain ds_config.json
    ds-advise explain Qwen2.5-14B --gpus 2x80GB --strategy fsdp --micro-batch 1
    ds-advise explain overlap_comm --model Qwen2.5-14B --gpus 2x80GB

    Exit code: 0, or 2 if the question cannot be answered.
    """
    from ...validate.lint import load_facts
    from ..answer.explained_key import explain_key, find_key, is_key
    from ..answer.key_costs import KeyContext
    from ..document.terminal import print_blocks
    from ..question.file_question import is_ds_config
    from ..question.gpu_text import meant_gpus
    from ..render.explained_part import has_part, part_blocks
    from ..render.explanation import explanation_blocks
    from ..text.labels import component_title

    if meant_gpus(" ".join(part)):  # no part of a plan
        raise click.UsageError(f"unexpected extra argument ({' '.join(part)[:60]})")
    path, of_file = Path(model), question | ({"model": costs_of} if costs_of else {})
    is_file = is_ds_config(path) or (costs_of is not None and path.suffix.lower() == ".json")
    key = part[0] if len(part) == 1 and is_key(part[0]) else ""
    is_no_part = bool({*"_."} & {*key})  # titles of parts have neither
    if is_no_part:
        find_key(key, load_facts())  # what is wrong with it is told before the machine is looked for
    side = None
    if is_file:
        if strategy is not None or settings is not None:
            raise click.UsageError("--strategy and --set change the plan of a model, not of a file")
        side, asked = _file_side(path, of_file, output)
        if asked is None and key:
            return _show(explain_key(key, facts=load_facts(), side=side), output)
        if asked is None:
            raise click.UsageError(f"{path} records no model; name it with --model")
        found, context = _of_side(side, asked), KeyContext.of_file(side, asked.model)
    elif costs_of is not None or is_key(model):
        if part:
            raise click.UsageError(f"unexpected extra argument ({' '.join(part)[:60]})")
        if not is_key(model):
            _refuse_unknown(model)
        return show_key(model, costs_of, question, output)
    else:
        found = _of_question(model, question, strategy, settings, output)
        assert found.question is not None, "it is the question that the plan answers"
        context = KeyContext.of_plan(found.candidate.plan, found.question, is_recommended=found.role == "recommended")
    if is_no_part or (key and not has_part(found, key)):
        return _show(explain_key(key, facts=load_facts(), context=context), output)
    if part:
        blocks = [*part_blocks(found, " ".join(part), listing=typed_command(without=part))]
    else:
        largest = component_title(found.sections[0].parts()[0].name)
        example = typed_command(largest)
        blocks = [*explanation_blocks(found, example=example, details=details)]
    output.show(found.figures, lambda console: print_blocks(blocks, console))
    return 0


def _refuse_unknown(name: str) -> None:
    """Raise UnknownModelError for a word that is neither a model nor a key."""
    from ..answer.explained_key import keys_meant
    from .mistaken_files import refuse_unknown

    near = alternatives(keys_meant(name))
    what = f"{name[:60]!r} is neither a model nor a key of a configuration"
    refuse_unknown(name, what, f"did you mean {near}?" if near else "")


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
        known_plan(strategy)
    _refuse_unknown(model)
    built = build_question(model, **question, say=output.say)
    if settings is None and strategy not in get_args(PlainPyTorch):
        return explain_answer(answer_question(built), strategy=strategy)
    kept, keys = split_settings(named_settings(settings or ""))
    changed = strategy or shown_candidate(answer_question(built)).plan.strategy
    candidate = strategy_candidate(built, changed, kept)
    for line in without_costs(keys, candidate.plan):
        output.say(line)
    return explain_plan(candidate, built)


def _of_side(side: Side, asked: Question) -> Explanation:
    """Explain the plan of a configuration file."""
    from ..answer.explanation import explain_plan

    assert side.candidate is not None, "the context is known"
    workload = side.settings.workload or asked.workload
    return explain_plan(side.candidate, replace(asked, workload=workload))


def _file_side(path: Path, given: dict[str, Any], output: Output) -> tuple[Side, Question | None]:
    """Return a configuration file with its plan, and the question about its model and machines; without a known model
    neither plan nor question."""
    from ..advise import files_context
    from ..answer.comparison import build_side
    from ..question.file_question import read_file_question

    file = read_file_question(path, given)
    context = files_context([file], given, say=output.say)
    return build_side(file, context), None if context is None else context.question
