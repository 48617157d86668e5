"""The command `rent`: the best machine of a price table for a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..question.options import AnswerOptions, JobOptions, MethodOptions, SoftwareOptions, TrainingOptions, names_in
from ..text.output import Output
from .help import GroupedCommand
from .options import COUNT, MODEL_ARGUMENT, PATH, output_options, question_options, report_options


@click.command(cls=GroupedCommand)
@MODEL_ARGUMENT
@question_options(
    names_in(JobOptions, MethodOptions, TrainingOptions, SoftwareOptions, AnswerOptions, without=("price",))
)
@click.option("--deadline", metavar="TIME", help="Find the best value that ends in this time: 24h, 90m, 3d.")
@click.option(
    "--budget",
    metavar="AMOUNT",
    help="Find the fastest machine within this budget (prices' currency); with --deadline the best value.",
)
@click.option("--prices", type=PATH, metavar="FILE", help="Price table as CSV.  [default: a small built-in table]")
@click.option("--max-nodes", "most_nodes", type=COUNT, default=4, help="Maximum number of machines.")
@click.option(
    "--all",
    "all_offers",
    is_flag=True,
    help="Show every machine, also those that another one beats in cost and time.",
)
@report_options("cost against hours")
@output_options
def rent(
    model: str,
    question: dict[str, Any],
    all_offers: bool,
    output: Output,
    html: Path | None,
    plot: Path | None,
    **limits: Any,
) -> int:
    """Compare the machines of a price table by cost and hours of a job, each with its best plan.

    The prediction does not tell costs apart that lie within the interval of the cheapest. Of these machines, the best
    value has the least cost times hours.

    \b
    ds-advise rent Qwen2.5-7B --method lora --samples 20000 --deadline 12h
    ds-advise rent llama3.1-8b --tokens 1B --budget 500 --prices prices.csv

    Exit code: 0 if a machine meets the limits, 1 if none does, 2 if the question cannot be answered.
    """
    from ..render.deliver import show_document
    from ..render.rent import rent_document
    from ..rent import rent as rent_advice
    from .mistaken_files import refuse_unknown

    refuse_unknown(model)
    advice = rent_advice(model, **question, **limits, say=output.say)
    show_document(lambda: rent_document(advice, all_offers=all_offers), output, html=html, plot=plot)
    return 0 if advice.recommended is not None else 1
