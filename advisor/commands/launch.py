"""`ds-advise launch DS_CONFIG -- SCRIPT ARGUMENTS`: the full training, watched."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .options import COUNT, run_options


@click.command(short_help="Launch the training with your own script, and watch it.")
@partial(run_options, model_required=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- SCRIPT [ARGUMENTS]")
@click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.option(
    "--launcher",
    type=click.Choice(["deepspeed", "torchrun", "accelerate"]),
    help="What starts the ranks; unset: what the script needs.",
)
@click.option("--gpus", default="auto", metavar="SPEC", show_default=True, help="GPUs of this machine, such as 2x24GB.")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="cpu: DeepSpeed's CPU accelerator, for small models.",
)
@click.option("--ranks", type=COUNT, help="Run so many ranks with --device cpu.  [default: 2]")
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Several nodes by ssh, with the deepspeed launcher.",
)
@click.option("--slurm", is_flag=True, help="The nodes of this Slurm allocation, with srun and torchrun.")
@click.option(
    "--master", metavar="ADDRESS[:PORT]", help="Several nodes, on each of which this is run: the first one's address."
)
@click.option("--nodes", type=COUNT, help="How many, with --master.")
@click.option("--node-rank", type=click.IntRange(min=0), default=0, show_default=True, help="Which of them this is.")
@click.option(
    "--pass-config/--no-pass-config",
    default=True,
    show_default=True,
    help="Hand DS_CONFIG to the script, unless its arguments name one.",
)
@click.option("--dry", is_flag=True, help="Print what would run on each node, and start nothing.")
@click.option(
    "--check",
    type=click.Choice(["auto", "dry-run", "probe"]),
    default="auto",
    show_default=True,
    help="How to see first that it fits; auto: a probe where the whole job runs here, else a dry run.",
)
@click.option("--no-check", is_flag=True, help="Start it at once.")
@click.option(
    "--fallback", is_flag=True, help="Out of memory: go on with the next plan that fits, from the last checkpoint."
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where the ranks' output goes.  [default: ds-advise-launch/TIME]",
)
@click.option("--verbose", is_flag=True, help="Show rank 0's output.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def launch(
    run: dict[str, Any],
    words: tuple[str, ...],
    dry: bool,
    check: Any,
    no_check: bool,
    fallback: bool,
    verbose: bool,
    as_json: bool,
    debug: bool,
    **place: Any,
) -> int:
    """Start the training that DS_CONFIG is for with a script of yours: on the Hugging Face Trainer, on accelerate, or
    on deepspeed.initialize. First it must be seen to fit. Ctrl-C saves and stops, twice ends at once.

    \b
    ds-advise launch ds_config.json -- train.py --model_name_or_path Qwen/Qwen2.5-7B --output_dir out
    ds-advise launch ds_config.json --launcher deepspeed --model ./model -- train.py --epochs 3
    ds-advise launch ds_config.json --master node-0 --nodes 2 --node-rank 1 -- train.py --output_dir out

    Exit code: 0 it finished, 1 it failed, was stopped or not started (and why), 2 it cannot be launched.
    """
    del debug  # read from the arguments by the program's error handler
    if not words:
        raise click.UsageError("no script; write -- and then the script with its arguments")
    if fallback and place["master"] is not None:
        raise click.UsageError("--fallback does not go with --master: the other nodes would not change their plan")
    from rich.console import Console

    from ..launch.question.question import launch_question
    from ..launch.report import dry_lines, json_form, render_session
    from ..launch.run import environment_of
    from ..launch.session import run_session

    source = click.get_current_context().get_parameter_source
    given = {name for name in run if source(name) is ParameterSource.COMMANDLINE}
    question = launch_question(run.pop("config_file"), words, run, given=given, **place)

    def say(text: str) -> None:
        click.echo(f"ds-advise: {text}", err=True)

    for sentence in question.said:
        say(sentence)
    if dry:
        lines = dry_lines(question.request)
        if as_json:
            print(json.dumps([{"where": where, "command": line} for where, line in lines], indent=1))
        for where, line in () if as_json else lines:
            print(f"# {where}\n{line}")
        return 0
    variables = environment_of(question.request)
    if variables:
        say("sets " + " ".join(f"{name}={value}" for name, value in variables.items()))
    console = Console(stderr=True, highlight=False)
    session = run_session(
        question, check=None if no_check else check, fallback=fallback, verbose=verbose, console=console, say=say
    )
    if as_json:
        print(json.dumps(json_form(session), indent=1))
    else:
        render_session(session, Console(file=sys.stdout, highlight=False))
    return 0 if session.attempts and session.attempts[-1][1].status == "finished" else 1
