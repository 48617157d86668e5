"""Commands that answer a question: `ds-advise [advise] MODEL`, `explain` and `rent`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from ...ds_configs.job import JobKind
from ...estimators.phrase import phrase
from ...estimators.plan import PlainPyTorch
from ..question.options import (
    OPTIONS,
    AnswerOptions,
    CpuOptions,
    JobOptions,
    MethodOptions,
    SoftwareOptions,
    TrainingOptions,
    names_in,
)
from ..text.output import Output
from .options import (
    COUNT,
    EMIT,
    FORCE,
    MODEL_ARGUMENT,
    PATH,
    GroupedCommand,
    given_by_user,
    output_options,
    question_options,
    report_options,
    warn_ignored,
)


@click.command(cls=GroupedCommand)
@MODEL_ARGUMENT
@question_options(tuple(OPTIONS), searches=True)
@click.option(
    "-o", "--output", "destination", default="ds_config.json", metavar="FILE", help="Output file; - is stdout."
)
@click.option("--no-write", is_flag=True, help="Do not write the configuration.")
@EMIT
@FORCE
@click.option(
    "--sharding",
    type=click.Choice(["zero", "fsdp"]),
    default="zero",
    help="Sharding; fsdp: also predict PyTorch's FSDP2 for comparison (on one GPU plain PyTorch).",
)
@click.option("--all", "all_candidates", is_flag=True, help="Show every candidate, not only the best of each strategy.")
@click.option(
    "--details",
    is_flag=True,
    help="Show reasons, DeepSpeed's estimate, assumptions, script arguments and launchers too.",
)
@click.option("--markdown", is_flag=True, help="Print a summary in GitHub's Markdown instead.")
@click.option("--no-deepspeed-estimate", is_flag=True, help="Do not call DeepSpeed's estimator (saves seconds).")
@click.option(
    "--verify", is_flag=True, help="Dry-run the recommendation through DeepSpeed; if it fails, the next best."
)
@click.option("--probe", is_flag=True, help="Run the best candidates for a few steps on this machine.")
@click.option("--budget", metavar="TIME", default="30m", help="Time limit of --probe: 90s, 5m, 1h.")
@report_options("every plan's memory; scaling.svg of memory and speed against length, batch, GPUs", own_force=True)
@output_options
def advise(
    model: str,
    question: dict[str, Any],
    destination: str,
    no_write: bool,
    emit: tuple[JobKind, ...],
    force: bool,
    all_candidates: bool,
    details: bool,
    markdown: bool,
    no_deepspeed_estimate: bool,
    html: Path | None,
    plot: Path | None,
    output: Output,
    **proofs: Any,
) -> int:
    """Recommend the fastest DeepSpeed configuration that fits MODEL on the GPUs.

    MODEL is a name in any usual spelling (Qwen2.5-14B, llama3.1-8b, gpt2-xl), a folder or config.json, or a hub id.

    \b
    ds-advise Qwen2.5-14B --gpus 2x32GB
    ds-advise llama3.1-8b --gpus 8xA100-80GB --method lora --seq-len 8192
    ds-advise ./my-model --gpus 4x8xH100 --global-batch 512 --json

    Exit code: 0 a plan fits, 1 none does, 2 the question could not be answered.
    """
    # Imported here: `--help` needs none of it.
    from ..advise import answer_with_proofs
    from ..render.deliver import Destination, deliver

    if output.mode == "json" and destination == "-":
        raise click.UsageError("--json and -o - both write to stdout; leave one out")
    if no_write and "destination" in given_by_user():
        raise click.UsageError("--output and --no-write contradict each other; leave one out")
    if emit and (no_write or destination == "-"):
        raise click.UsageError("--emit writes files that name the configuration's; leave --no-write and -o - out")
    if not proofs["probe"]:
        warn_ignored("budget", "without --probe")
    if not destination:
        raise click.UsageError("--output is empty; name a file, or pass --no-write")
    if destination != "-" and not Path(destination).name:
        raise click.UsageError(
            phrase("--output {folder} is a folder; name a file in it, or pass --no-write", folder=destination)
        )
    if markdown and (output.mode != "human" or destination == "-" or details or all_candidates):
        raise click.UsageError("--markdown prints a summary; leave --json, --quiet, -o -, --details and --all out")
    shows_estimate = output.mode == "json" or details or html is not None
    answer = answer_with_proofs(
        model,
        deepspeed_estimate=shows_estimate and not no_deepspeed_estimate,
        say=output.say,
        **proofs,
        **question,
    )
    place: Destination = None if no_write else "-" if destination == "-" else Path(destination)
    if html or plot:
        from ..html_report.advice import advice_report
        from ..html_report.document import write_report

        path = str(place) if isinstance(place, Path) else "ds_config.json"
        picture = "" if plot is None else plot.stem
        write_report(advice_report(answer, path, picture), html, output.say, plot=plot)
    return deliver(
        answer,
        place,
        output,
        force=force,
        all_candidates=all_candidates,
        details=details,
        markdown=markdown,
        emit=emit,
    )


def show_key(name: str, model: str | None, question: dict[str, Any], output: Output) -> int:
    """Explain a key of a DeepSpeed configuration, with a model its cost too."""
    from ...validate.lint import load_facts
    from ..advise import advise
    from ..answer.explained_key import explain_key
    from ..render.explanation import render_key

    facts = load_facts()
    answer = None if model is None else advise(model, **question, deepspeed_estimate=False, say=output.say)
    explained = explain_key(name, facts=facts, answer=answer)
    output.show(lambda: explained, lambda console: render_key(explained, console))
    return 0


@click.command()
@MODEL_ARGUMENT
@question_options([name for name in OPTIONS if name not in names_in(CpuOptions)], searches=True)
@click.option(
    "--rung",
    metavar="NAME",
    help="Strategy, or plain PyTorch as fsdp2, fsdp or torch.  [default: of the recommended plan]",
)
@click.option(
    "--set", "settings", metavar="NAME=VALUE,...", help="Settings of the plan: reduce_bucket_size=2e8,overlap_comm=no."
)
@click.option("--component", metavar="NAME", help="Component, such as gradients or matrix products.  [default: all]")
@click.option(
    "--model", "costs_of", metavar="MODEL", help="Where MODEL is a key: the model that its cost is shown for."
)
@output_options
def explain(
    model: str,
    question: dict[str, Any],
    rung: str | None,
    settings: str | None,
    component: str | None,
    costs_of: str | None,
    output: Output,
) -> int:
    """Show how the memory and the time of a plan are calculated: formulas, values and sources by component.

    MODEL may also be a key of a DeepSpeed configuration: what it decides, its default, where it acts, what it costs.

    \b
    ds-advise explain Qwen2.5-14B --gpus 2x32GB
    ds-advise explain Qwen2.5-14B --gpus 2x32GB --rung zero2-offload --component gradients
    ds-advise explain Qwen2.5-14B --gpus 2x80GB --rung fsdp --micro-batch 1
    ds-advise explain overlap_comm --model Qwen2.5-14B --gpus 2x80GB

    Exit code: 0, or 2 where the question could not be answered.
    """
    from ..answer.explained_key import is_key

    if costs_of is not None or is_key(model):
        return show_key(model, costs_of, question, output)
    from ..advise import advise, ask, plan_of
    from ..answer.explanation import explain as explain_answer
    from ..answer.explanation import explain_plan
    from ..render.explanation import render_explanation

    if settings is not None and rung is None:
        raise click.UsageError("--set needs --rung: name the plan to change")
    if settings is not None or rung in get_args(PlainPyTorch):
        asked = ask(model, **question, say=output.say)
        explanation = explain_plan(plan_of(asked, rung or "", settings), component=component)
    else:
        answer = advise(model, **question, deepspeed_estimate=False, say=output.say)
        explanation = explain_answer(answer, rung=rung, component=component)
    output.show(explanation.figures, lambda console: render_explanation(explanation, console))
    return 0


@click.command()
@MODEL_ARGUMENT
@question_options(
    names_in(
        JobOptions, MethodOptions, TrainingOptions, SoftwareOptions, AnswerOptions, without=("price", "model_size")
    )
)
@click.option("--deadline", metavar="TIME", help="Find the cheapest machine that finishes in this time: 24h, 90m, 3d.")
@click.option("--budget", metavar="AMOUNT", help="Find the fastest machine for this amount, in the prices' currency.")
@click.option("--prices", type=PATH, metavar="FILE", help="Price table as CSV.  [default: a small built-in table]")
@click.option("--max-nodes", "most_nodes", type=COUNT, default=4, help="Maximum number of machines.")
@click.option("--all", "all_offers", is_flag=True, help="Show every machine, not only the Pareto-optimal ones.")
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
    """Find the machine to rent: cost and hours of a job on every machine of a price table, each with its best plan.

    \b
    ds-advise rent Qwen2.5-7B --method lora --samples 20000 --deadline 12h
    ds-advise rent llama3.1-8b --tokens 1B --budget 500 --prices prices.csv

    Exit code: 0 one is named, 1 none is in time or within the budget, 2 the question could not be answered.
    """
    from ..rent.rent import rent as rent_advice
    from ..rent.report import render

    advice = rent_advice(model, **question, **limits, say=output.say)
    if html is not None or plot is not None:
        from ..html_report.document import write_report
        from ..html_report.rent import rent_report

        write_report(rent_report(advice), html, output.say, plot=plot)
    output.show(
        lambda: advice.figures(all_offers=all_offers), lambda console: render(advice, console, all_offers=all_offers)
    )
    return 0 if advice.recommended is not None else 1
