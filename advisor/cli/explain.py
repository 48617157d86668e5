"""The command `explain`: formulas, values and sources of a plan's figures, or a key of a DeepSpeed configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ...estimators.errors import UnknownModelError
from ...estimators.plan import PlainPyTorch
from ..question.options import OPTIONS
from ..text.output import Output
from .options import MODEL_ARGUMENT, output_options, question_options

if TYPE_CHECKING:
    from ..answer.explanation import Explanation


def show_key(name: str, model: str | None, question: dict[str, Any], output: Output) -> int:
    """Explain a key of a DeepSpeed configuration, with a model its cost too."""
    from ...validate.lint import load_facts
    from ..advise import answer as answer_question
    from ..advise import build_question
    from ..answer.explained_key import explain_key
    from ..document.terminal import print_blocks
    from ..render.explanation import key_blocks

    facts = load_facts()
    answer = None if model is None else answer_question(build_question(model, **question, say=output.say))
    explained = explain_key(name, facts=facts, answer=answer)
    output.show(lambda: explained, lambda console: print_blocks(key_blocks(explained), console))
    return 0


@click.command()
@MODEL_ARGUMENT
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
@click.option("--details", is_flag=True, help="Also the formulas of parts below 1 %, and the moments of a step.")
@output_options
def explain(
    model: str,
    question: dict[str, Any],
    strategy: str | None,
    settings: str | None,
    costs_of: str | None,
    details: bool,
    output: Output,
) -> int:
    """Show how the memory and time of a plan are calculated: formulas, values and sources by component.

    MODEL may also be a DeepSpeed configuration, whose plan is explained, or one of its keys: its meaning, default,
    scope and cost.

    \b
    ds-advise explain Qwen2.5-14B --gpus 2x32GB
    ds-advise explain ds_config.json
    ds-advise explain Qwen2.5-14B --gpus 2x32GB --strategy zero2-offload
    ds-advise explain Qwen2.5-14B --gpus 2x80GB --strategy fsdp --micro-batch 1
    ds-advise explain overlap_comm --model Qwen2.5-14B --gpus 2x80GB

    Exit code: 0, or 2 if the question cannot be answered.
    """
    from ..answer.explained_key import is_key
    from ..question.file_question import is_ds_config

    if is_ds_config(Path(model)):
        if strategy is not None or settings is not None:
            raise click.UsageError("--strategy and --set change the plan of a model, not of a file")
        return _explain_file(Path(model), question | ({"model": costs_of} if costs_of else {}), output, details=details)
    if costs_of is not None or is_key(model):
        return show_key(model, costs_of, question, output)
    from ...validate.lint import RULES
    from ..advise import answer as answer_question
    from ..advise import build_question, strategy_candidate
    from ..answer.explained_key import split_settings, without_effect
    from ..answer.explanation import explain as explain_answer
    from ..answer.explanation import explain_plan
    from ..question.workload import named_settings
    from .mistakes import refuse_unknown

    if settings is not None and strategy is None:
        raise click.UsageError("--set needs --strategy: name the plan to change")
    if any(rule.code == model.upper() for rule in RULES):
        raise UnknownModelError(f"{model} is a rule of lint", fix=f"write ds-advise lint --explain {model.upper()}")
    refuse_unknown(model, f"{model[:60]!r} is neither a model nor a key of a configuration")
    built = build_question(model, **question, say=output.say)
    if settings is not None or strategy in get_args(PlainPyTorch):
        kept, keys = split_settings(named_settings(settings or ""))
        candidate = strategy_candidate(built, strategy or "", kept)
        for line in without_effect(keys, candidate.plan):
            output.say(line)
        explanation = explain_plan(candidate, built.cluster, built.workload)
    else:
        explanation = explain_answer(answer_question(built), strategy=strategy)
    return _show(explanation, output, details=details)


def _explain_file(path: Path, given: dict[str, Any], output: Output, *, details: bool) -> int:
    """Explain the plan of a configuration file."""
    from ..advise import files_context
    from ..answer.comparison import build_side
    from ..answer.explanation import explain_plan
    from ..question.file_question import read_file_question

    file = read_file_question(path, given)
    context = files_context([file], given, say=output.say)
    if context is None:
        raise click.UsageError(f"{path} records no model; name it with --model")
    candidate = build_side(file, context).candidate
    assert candidate is not None, "the context is known"
    asked = context.question
    return _show(explain_plan(candidate, asked.cluster, asked.workload), output, details=details)


def _show(explanation: Explanation, output: Output, *, details: bool) -> int:
    from ..document.terminal import print_blocks
    from ..render.explanation import explanation_blocks

    blocks = explanation_blocks(explanation, details=details)
    output.show(explanation.figures, lambda console: print_blocks(blocks, console))
    return 0
