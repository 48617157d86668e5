"""`ds-advise launch DS_CONFIG -- SCRIPT ARGUMENTS`: the full training, watched."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .options import COUNT, CPU_RANKS, device, gpus, output_options, run_options, share_options

if TYPE_CHECKING:
    from ..launch.session import Check
    from ..text.output import Output

_PATH = click.Path(path_type=Path)
_CHECKS, _LAUNCHERS = click.Choice(["auto", "dry-run", "probe"]), click.Choice(["deepspeed", "torchrun", "accelerate"])


@click.command(short_help="Launch the training with your own script, and watch it.")
@partial(run_options, model_required=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- SCRIPT [ARGUMENTS]")
@click.option("-m", "--module", "is_module", is_flag=True, help="Take SCRIPT as the name of a module.")
@click.option(
    "--launcher", type=_LAUNCHERS, help="Start the ranks with this launcher; by default the one that the script needs."
)
@gpus("Use these GPUs of this machine, such as 2x24GB.")
@device("Train on GPUs, or small models on DeepSpeed's CPU accelerator.")
@CPU_RANKS
@click.option("--hostfile", type=_PATH, metavar="FILE", help="Start several nodes by ssh, with the deepspeed launcher.")
@click.option("--slurm", is_flag=True, help="Start the nodes of this Slurm allocation, with srun and torchrun.")
@click.option(
    "--master",
    metavar="ADDRESS[:PORT]",
    help="Name the address of the first of several nodes, on each of which this command runs.",
)
@click.option("--nodes", type=COUNT, help="Use so many nodes, with --master.")
@click.option(
    "--node-rank",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Say which of the nodes this is, from 0.",
)
@click.option(
    "--pass-config/--no-pass-config",
    default=None,
    help="Hand DS_CONFIG to the script, or not; by default unless it has one of its own or its arguments name it.",
)
@click.option("--dry", is_flag=True, help="Print what would run on each node, and start nothing.")
@click.option(
    "--check",
    type=_CHECKS,
    default="auto",
    show_default=True,
    help="Choose how to see first that it fits; auto probes where the whole job runs here (once for a plan), else it "
    "makes a dry run.",
)
@click.option("--no-check", is_flag=True, help="Start it at once.")
@click.option(
    "--fallback",
    is_flag=True,
    help="When memory runs out, go on with the next plan that fits, from the last checkpoint.",
)
@click.option(
    "--log-dir",
    type=_PATH,
    metavar="FOLDER",
    help="Write the ranks' output into this folder.  [default: ds-advise-launch/TIME]",
)
@click.option(
    "--stall",
    "stall_s",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="End it after so many seconds without a step and without a line from any rank.  [default: only tell it]",
)
@click.option("--verbose", is_flag=True, help="Show rank 0's output.")
@share_options()
@output_options
def launch(
    run: dict[str, Any],
    words: tuple[str, ...],
    dry: bool,
    check: Check,
    no_check: bool,
    fallback: bool,
    verbose: bool,
    html: Path | None,
    force: bool,
    output: Output,
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
    if not words:
        raise click.UsageError("no script; write -- and then the script with its arguments")
    if fallback and place["master"] is not None:
        raise click.UsageError("--fallback does not go with --master: the other nodes would not change their plan")
    if html:
        from ..html_report.output_files import check_targets

        check_targets(html, None, force=force)
    from ..launch.question import launch_question
    from ..launch.session import run_session
    from ..render.launch import json_form, render_session, show_dry

    source = click.get_current_context().get_parameter_source
    given = {name for name in run if source(name) is ParameterSource.COMMANDLINE}
    request, remarks = launch_question(run, words, given=given, starts=not dry, **place)
    for remark in remarks:
        output.say(remark)
    if dry:
        return show_dry(request, output)
    session = run_session(request, None if no_check else check, fallback=fallback, verbose=verbose, output=output)
    if html:
        from ..html_report.launch import write_launch_report

        write_launch_report(session, html, output.say)
    output.show(lambda: json_form(session), lambda console: render_session(session, console))
    return 0 if session.finished else 1
