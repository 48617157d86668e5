"""`ds-advise explain MODEL --gpus SPEC`: every figure's formula, the numbers put in, and the source."""

from __future__ import annotations

from typing import Any

import click

from ..terminal.output import Output
from .options import output_options, question_options


@click.command(short_help="Show each figure's formula, the numbers put in, and the source.")
@question_options
@click.option(
    "--rung", metavar="NAME", help="Explain this rung, such as zero2-offload; by default the recommended one."
)
@click.option(
    "--component", metavar="NAME", help="Explain one component, such as gradients or matrix products; by default all."
)
@output_options
def explain(question: dict[str, Any], rung: str | None, component: str | None, output: Output) -> int:
    """Explain the memory and the time of one plan, component by component.

    \b
    ds-advise explain Qwen2.5-14B --gpus 2x32GB
    ds-advise explain Qwen2.5-14B --gpus 2x32GB --rung zero2-offload --component gradients

    Exit code: 0, or 2 where the question could not be answered.
    """
    from ..advise import advise
    from ..reports.explain import render_explanation
    from ..reports.explanation import explain as explain_plan

    explanation = explain_plan(advise(**question, deepspeed_estimate=False), rung=rung, component=component)
    output.show(explanation.to_json, lambda console: render_explanation(explanation, console))
    return 0
