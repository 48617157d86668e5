"""`ds-advise [advise] MODEL --gpus SPEC`: the recommendation, its configuration file, and the command that starts
it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import COUNT, question_options

_DEFAULT_OUTPUT = "ds_config.json"


@click.command(short_help="Recommend the fastest DeepSpeed configuration that fits.")
@question_options
@click.option(
    "-o",
    "--output",
    default=_DEFAULT_OUTPUT,
    metavar="FILE",
    show_default=True,
    help="Where the configuration is written; - for stdout.",
)
@click.option("--no-write", is_flag=True, help="Write no file.")
@click.option("--force", is_flag=True, help="Overwrite a file that differs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--all", "all_candidates", is_flag=True, help="Every candidate, not only each rung's best.")
@click.option(
    "--no-deepspeed-estimate", is_flag=True, help="Do not call DeepSpeed's own estimator (saves a second or two)."
)
@click.option(
    "--verify",
    "verified",
    is_flag=True,
    help="Dry-run the recommendation through the real DeepSpeed engine, and the next best if it fails.",
)
@click.option(
    "--probe",
    "probed",
    is_flag=True,
    help="Settle it by a few real runs on this machine; needs --gpus auto, or --device cpu.",
)
@click.option("--budget", metavar="TIME", default="30m", show_default=True, help="Bounds the probes: 90s, 5m, 1h.")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="cpu: the ranks are processes on this machine's CPU, in place of GPUs.",
)
@click.option("--ranks", type=COUNT, help="Ranks with --device cpu.  [default: 2]")
@click.option(
    "--memory", metavar="SIZE", help="What each rank may take with --device cpu, such as 2GB; unset: no limit."
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def advise(
    question: dict[str, Any],
    output: str,
    no_write: bool,
    force: bool,
    as_json: bool,
    all_candidates: bool,
    no_deepspeed_estimate: bool,
    verified: bool,
    probed: bool,
    budget: str,
    device: str,
    ranks: int | None,
    memory: str | None,
    debug: bool,
) -> int:
    """Recommend the fastest DeepSpeed configuration that fits MODEL on the GPUs.

    MODEL is a name in any usual spelling (Qwen2.5-14B, llama3.1-8b, gpt2-xl), a folder or config.json, or a hub id.

    \b
    ds-advise Qwen2.5-14B --gpus 2x32GB
    ds-advise llama3.1-8b --gpus 8xA100-80GB --method lora --seq-len 8192
    ds-advise ./my-model --gpus 4x8xH100 --global-batch 512 --json

    Exit code: 0 a plan fits, 1 none does, 2 the question could not be answered.
    """
    del debug  # read from the arguments by the program's error handler
    from ..advise import advise as ask
    from ..advise import with_deepspeed_estimate
    from ..recommend.deliver import Destination, deliver

    if as_json and output == "-":
        raise click.UsageError("--json and -o - both want stdout; leave one out")
    if not output:
        raise click.UsageError("--output is empty; name a file, or pass --no-write")
    limit = None
    if device == "cpu" or ranks is not None or memory is not None:
        from ..question.cpu_question import cpu_question

        question["gpus"], limit = cpu_question(question["gpus"], device=device, ranks=ranks, memory=memory)
    answer = ask(**question, deepspeed_estimate=False)
    if verified:
        from ..prove.verify import verify

        answer = verify(
            answer,
            offline=question["offline"],
            on_start=lambda candidate: click.echo(f"ds-advise: dry run of {candidate.rung} ...", err=True),
        )
    if probed:
        from ..prove.settle import settle

        answer = settle(
            answer,
            device=device,
            memory_limit_bytes=limit,
            budget=budget,
            offline=question["offline"],
            say=lambda text: click.echo(f"ds-advise: {text}", err=True),
        )
    if not no_deepspeed_estimate:  # last: of the plan that dry runs and probes have left
        answer = with_deepspeed_estimate(answer)
    destination: Destination = None if no_write else "-" if output == "-" else Path(output)
    return deliver(answer, destination, force=force, as_json=as_json, all_candidates=all_candidates)
