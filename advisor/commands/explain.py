"""`ds-advise explain MODEL --gpus SPEC`: every figure's formula, the numbers put in, and the source."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from .options import question_options


@click.command(short_help="Show each figure's formula, the numbers put in, and the source.")
@question_options
@click.option("--rung", metavar="NAME", help="The rung to explain, such as zero2-offload; unset: the recommended one.")
@click.option("--component", metavar="NAME", help="One component, such as gradients or matrix products; unset: all.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def explain(question: dict[str, Any], rung: str | None, component: str | None, as_json: bool, debug: bool) -> int:
    """Explain the memory and the time of one plan, component by component.

    \b
    ds-advise explain Qwen2.5-14B --gpus 2x32GB
    ds-advise explain Qwen2.5-14B --gpus 2x32GB --rung zero2-offload --component gradients

    Exit code: 0, or 2 where the question could not be answered.
    """
    del debug  # read from the arguments by the program's error handler
    from ..advise import advise
    from ..reports.explanation import explain as taken_apart

    explanation = taken_apart(advise(**question, deepspeed_estimate=False), rung=rung, component=component)
    if as_json:
        print(json.dumps(explanation.to_json(), indent=1))
        return 0
    from rich.console import Console

    from ..reports.explain import render_explanation

    render_explanation(explanation, Console(file=sys.stdout, highlight=False))
    return 0
