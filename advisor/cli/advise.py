"""The default command: `ds-advise [advise] MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...ds_configs.files import CONFIG_NAME
from ...ds_configs.job import JobKind
from ..question.options import OPTIONS
from ..text.language import Language, language_of_environment
from ..text.output import Output
from .options import (
    EMIT,
    FORCE,
    LANG,
    CommandWithUsersCommand,
    OutputFile,
    complete_model,
    output_options,
    passed_options,
    question_options,
    report_options,
    users_command,
    warn_ignored,
)

_OF_COMMANDS = frozenset(
    {*OPTIONS, "model", "destination", "no_write", "force", "details", "as_json", "quiet", "verify"}
)
"""Parameters that also apply to the advice for a command."""


class _Advise(CommandWithUsersCommand):
    own_title = "Answer"


@click.command(cls=_Advise)
@click.argument("model", metavar="MODEL", required=False, shell_complete=complete_model)
@question_options(tuple(OPTIONS), searches=True)
@click.option(
    "-o",
    "--output",
    "destination",
    type=OutputFile(CONFIG_NAME),
    default=Path(CONFIG_NAME),
    show_default=False,
    metavar="FILE",
    help=f"Output file; - is stdout.  [default: {CONFIG_NAME}; if that is another configuration, ds_config-2.json ...]",
)
@click.option("--no-write", is_flag=True, help="Do not write the configuration.")
@click.option(
    "--script", type=OutputFile("train.py"), metavar="FILE.py", help="Also write a script that trains the plan."
)
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
    help="Also show reasons, assumptions and all launchers.",
)
@click.option("--markdown", is_flag=True, help="Print a summary in GitHub's Markdown instead.")
@click.option("--no-deepspeed-estimate", is_flag=True, help="Do not call DeepSpeed's estimator (saves seconds).")
@click.option(
    "--verify", is_flag=True, help="Dry-run the recommended plan through DeepSpeed; if it fails, the next best plan."
)
@click.option("--probe", is_flag=True, help="Run the best candidates a few steps on this machine.")
@click.option("--budget", metavar="TIME", default="30m", help="Time limit of --probe: 90s, 5m, 1h.")
@report_options("the memory of all plans; scaling.svg: memory and speed against length, batch, GPUs", own_force=True)
@LANG
@output_options
def advise(
    model: str | None,
    question: dict[str, Any],
    destination: Path,
    no_write: bool,
    script: Path | None,
    emit: tuple[JobKind, ...],
    force: bool,
    all_candidates: bool,
    details: bool,
    markdown: bool,
    no_deepspeed_estimate: bool,
    html: Path | None,
    plot: Path | None,
    language: Language | None,
    output: Output,
    **checks: Any,
) -> int:
    """Recommend the fastest DeepSpeed configuration that fits MODEL, or your own training command, on the GPUs.

    MODEL is a name in any usual spelling, a folder or config.json, or a hub id. The command behind `--` is run
    unmodified on a simulated GPU, as it is and as advised; a DS_CONFIG in place of MODEL is for a command that names
    none.

    \b
    With a model   ds-advise Qwen2.5-14B --gpus 2x32GB
                   ds-advise llama3.1-8b --gpus 4x8xH100 --seq-len max
    With a script  ds-advise --gpus 8xH100 -- torchrun --nproc_per_node 8 train.py

    Exit code: 0 if a plan fits (with --sharding fsdp also PyTorch's), 1 if none fits, 2 if the question cannot be
    answered or its file not be written.
    """
    # Imported here: `--help` needs none of it.
    from ..advise import checked_answer
    from ..render.deliver import Destination, deliver
    from .mistaken_files import refuse_unknown

    if words := users_command():
        return _command_advice(
            words, model, question, destination, output, no_write=no_write, force=force, details=details
        )
    if model is None:
        raise click.UsageError("missing argument MODEL, or the training command behind --")
    on_stdout = destination == Path("-")
    if output.mode == "json" and on_stdout:
        raise click.UsageError("--json and -o - both write to stdout; leave one out")
    if no_write and "destination" in passed_options():
        raise click.UsageError("--output and --no-write contradict each other; leave one out")
    if (emit or script) and (no_write or on_stdout):
        raise click.UsageError(
            f"--{'emit' if emit else 'script'} writes files that refer to the configuration file; "
            "leave --no-write and -o - out"
        )
    if not checks["probe"]:
        warn_ignored("budget", "without --probe")
    if markdown and (output.mode != "human" or on_stdout or details or all_candidates):
        raise click.UsageError("--markdown prints a summary; leave --json, --quiet, -o -, --details and --all out")
    refuse_unknown(model)
    shows_estimate = output.mode == "json" or details or html is not None
    answer = checked_answer(
        model, deepspeed_estimate=shows_estimate and not no_deepspeed_estimate, output=output, **checks, **question
    )
    place: Destination = None if no_write else "-" if on_stdout else destination
    return deliver(
        answer,
        place,
        output,
        force=force,
        numbered="destination" not in passed_options(),
        all_candidates=all_candidates,
        details=details,
        markdown=markdown,
        emit=emit,
        script=script,
        html=html,
        plot=plot,
        language=language or language_of_environment(),
    )


def _command_advice(
    words: tuple[str, ...],
    config_file: str | None,
    question: dict[str, Any],
    destination: Path,
    output: Output,
    *,
    no_write: bool,
    force: bool,
    details: bool,
) -> int:
    """The advice for a command of the user's."""
    # Imported here: few answers are about a command.
    from ..command.advise import advise_command
    from ..render.command_advice import deliver_command_advice
    from .model_argument import is_model

    passed = passed_options()
    if others := sorted(passed - _OF_COMMANDS):
        raise click.UsageError(f"--{others[0].replace('_', '-')} does not apply to a command")
    if config_file is not None and is_model(config_file):
        raise click.UsageError(f"the command behind -- has its own model; leave {config_file} out")
    if destination == Path("-"):
        raise click.UsageError("--output - is no file; name one, or pass --no-write")
    given = {name: value for name, value in question.items() if name in passed or name == "gpus"}
    with output.progress("dry run") as on_progress:
        answer = advise_command(
            words,
            given,
            config_file=None if config_file is None else Path(config_file),
            destination=str(destination) if "destination" in passed or force else "",
            say=output.say,
            on_progress=on_progress,
            on_task=on_progress.begin,
        )
    return deliver_command_advice(answer, Path.cwd(), output, writes=not no_write, force=force, details=details)
