"""`ds-advise explain MODEL --gpus SPEC`: every figure's formula, the numbers put in, and the source."""

from __future__ import annotations

from typing import Any

import click

from ..text.output import Output
from .options import output_options, question_options


@click.command(short_help="Show each figure's formula, the numbers put in, and the source.")
@question_options
@click.option(
    "--rung",
    metavar="NAME",
    help="Explain this rung, such as zero2-offload, or plain PyTorch: fsdp or torch; by default the recommended one.",
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE,...",
    help="Set these apart from the rung's presets, such as reduce_bucket_size=2e8,overlap_comm=no.",
)
@click.option(
    "--component", metavar="NAME", help="Explain one component, such as gradients or matrix products; by default all."
)
@output_options
def explain(
    question: dict[str, Any], rung: str | None, settings: str | None, component: str | None, output: Output
) -> int:
    """Explain the memory and the time of one plan, component by component.

    \b
    ds-advise explain Qwen2.5-14B --gpus 2x32GB
    ds-advise explain Qwen2.5-14B --gpus 2x32GB --rung zero2-offload --component gradients
    ds-advise explain Qwen2.5-14B --gpus 2x80GB --rung fsdp --micro-batch 1

    Exit code: 0, or 2 where the question could not be answered.
    """
    from ..advise import advise
    from ..answer.explanation import explain as explain_answer
    from ..answer.explanation import explain_plan
    from ..ask import ask
    from ..estimate import plan_of
    from ..render.explain import render_explanation

    if settings is not None and rung is None:
        raise click.UsageError("--set goes with --rung: name the plan that is to be changed")
    if settings is not None or rung in ("fsdp", "torch"):
        asked = ask(**question, say=output.say)
        explanation = explain_plan(plan_of(asked, rung or "", settings), component=component)
    else:
        explanation = explain_answer(
            advise(**question, deepspeed_estimate=False, say=output.say), rung=rung, component=component
        )
    output.show(explanation.to_json, lambda console: render_explanation(explanation, console))
    return 0
