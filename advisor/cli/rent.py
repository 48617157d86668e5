"""`ds-advise rent MODEL`: which machine to rent for a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..text.output import Output
from .options import COUNT, output_options, rent_options


@click.command(short_help="Find the machine to rent: cost and hours of a job on every machine of a price table.")
@rent_options
@click.option("--deadline", metavar="TIME", help="Name the cheapest that ends within this time: 24h, 90m, 3d.")
@click.option("--budget", metavar="AMOUNT", help="Name the fastest that this pays, in the currency of the prices.")
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take the machines and prices of this CSV file; by default a small table that is told with its dates.",
)
@click.option(
    "--max-nodes",
    "most_nodes",
    type=COUNT,
    default=4,
    metavar="N",
    show_default=True,
    help="Join at most so many machines.",
)
@click.option("--all", "all_offers", is_flag=True, help="Show every machine, not only those that none beats.")
@output_options
def rent(question: dict[str, Any], all_offers: bool, output: Output, **limits: Any) -> int:
    """Find the machine to rent: every machine of a price table, in every number, with its best plan.

    \b
    ds-advise rent Qwen2.5-7B --method lora --samples 20000 --deadline 12h
    ds-advise rent llama3.1-8b --tokens 1B --budget 500 --prices prices.csv

    Exit code: 0 one is named, 1 none is in time or within the budget, 2 the question could not be answered.
    """
    from ..rent.rent import rent as rent_advice
    from ..rent.report import render

    advice = rent_advice(question.pop("model"), **question, **limits, say=output.say)
    output.show(advice.figures, lambda console: render(advice, console, all_offers=all_offers))
    return 0 if advice.recommended is not None else 1
