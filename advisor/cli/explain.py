"""The command `explain`: formulas, values and sources of a plan's figures, or a key of a DeepSpeed configuration."""

from __future__ import annotations

from typing import Any, get_args

import click

from ...estimators.plan import PlainPyTorch
from ..question.options import OPTIONS, CpuOptions, names_in
from ..text.output import Output
from .options import MODEL_ARGUMENT, output_options, question_options


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
@question_options([name for name in OPTIONS if name not in names_in(CpuOptions)], searches=True)
@click.option(
    "--strategy",
    metavar="NAME",
    help="Strategy, or plain PyTorch as fsdp2, fsdp or torch.  [default: the recommended plan's]",
)
@click.option(
    "--set", "settings", metavar="NAME=VALUE,...", help="Settings of the plan: reduce_bucket_size=2e8,overlap_comm=no."
)
@click.option("--model", "costs_of", metavar="MODEL", help="If MODEL is a key: the model for which its cost is shown.")
@output_options
def explain(
    model: str,
    question: dict[str, Any],
    strategy: str | None,
    settings: str | None,
    costs_of: str | None,
    output: Output,
) -> int:
    """Show how the memory and time of a plan are calculated: formulas, values and sources by component.

    MODEL may also be a key of a DeepSpeed configuration: its meaning, default, scope and cost.

    \b
    ds-advise explain Qwen2.5-14B --gpus 2x32GB
    ds-advise explain Qwen2.5-14B --gpus 2x32GB --strategy zero2-offload
    ds-advise explain Qwen2.5-14B --gpus 2x80GB --strategy fsdp --micro-batch 1
    ds-advise explain overlap_comm --model Qwen2.5-14B --gpus 2x80GB

    Exit code: 0, or 2 if the question cannot be answered.
    """
    from ..answer.explained_key import is_key

    if costs_of is not None or is_key(model):
        return show_key(model, costs_of, question, output)
    from ..advise import answer as answer_question
    from ..advise import build_question, strategy_candidate
    from ..answer.explanation import explain as explain_answer
    from ..answer.explanation import explain_plan
    from ..document.terminal import print_blocks
    from ..render.explanation import explanation_blocks

    if settings is not None and strategy is None:
        raise click.UsageError("--set needs --strategy: name the plan to change")
    built = build_question(model, **question, say=output.say)
    if settings is not None or strategy in get_args(PlainPyTorch):
        explanation = explain_plan(strategy_candidate(built, strategy or "", settings))
    else:
        explanation = explain_answer(answer_question(built), strategy=strategy)
    output.show(explanation.figures, lambda console: print_blocks(explanation_blocks(explanation), console))
    return 0
