"""The command `launch`: check that a training fits, start it, and monitor it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..text.output import Output
from .options import (
    COUNT,
    EMIT,
    FALLBACK,
    FORCE,
    PATH,
    STALL,
    CommandWithUsersCommand,
    model_option,
    output_options,
    passed_options,
    question_options,
    report_options,
    users_command,
)
from .run_options import RANK, given_file, machine_options, refuse_described, run_options

if TYPE_CHECKING:
    from ...ds_configs.job import JobKind
    from ..launch.check import Check


@click.command(cls=CommandWithUsersCommand)
@run_options(model_option("Model of the command, for --check quick and for the plans of --fallback."))
@question_options(("gpus", "device", "ranks"), into="machine", only_passed=True)
@click.option(
    "--launcher",
    type=click.Choice(["deepspeed", "torchrun", "accelerate"]),
    help="Launcher for a command without one.  [default: torchrun, or deepspeed for a script with --local_rank]",
)
@click.option("--hostfile", type=PATH, metavar="FILE", help="Start several nodes by ssh with the deepspeed launcher.")
@click.option("--slurm", is_flag=True, help="Start the nodes of this Slurm allocation with srun and torchrun.")
@click.option(
    "--master", metavar="ADDRESS[:PORT]", help="Address of the first node; run this command on each of the nodes."
)
@click.option("--nodes", type=COUNT, help="Number of nodes, with --master.")
@click.option("--node-rank", type=RANK, default=0, help="Rank of this node, with --master.")
@click.option("--dry", is_flag=True, help="Check, print the commands of each node, and start nothing.")
@EMIT
@click.option(
    "--check",
    type=click.Choice(["dry-run", "probe", "quick"]),
    default="dry-run",
    help="Check that it fits: run the command on a simulated GPU, run its first steps here, or by the closed form.",
)
@click.option("--no-check", is_flag=True, help="Start without a check.")
@FALLBACK
@click.option("--log-dir", type=PATH, metavar="FOLDER", help="Folder of the logs.  [default: ds-advise-launch/TIME]")
@STALL
@click.option("--verbose", is_flag=True, help="Show rank 0's output.")
@FORCE
@report_options(own_force=True)
@output_options
def launch(
    run: dict[str, Any],
    machine: dict[str, Any],
    dry: bool,
    emit: tuple[JobKind, ...],
    force: bool,
    check: Check,
    no_check: bool,
    fallback: bool,
    verbose: bool,
    html: Path | None,
    output: Output,
    **place: Any,
) -> int:
    """Check that a training fits, start your command, and monitor it.

    COMMAND is what you type to train, with a launcher in front, or the script with its arguments: then the ranks are
    started here. DS_CONFIG is for a command that names no DeepSpeed configuration. Ctrl-C stops, after the Trainer
    has saved; a second Ctrl-C ends at once.

    \b
    ds-advise launch -- torchrun --nproc_per_node 8 train.py --deepspeed ds_config.json --output_dir out
    ds-advise launch ds_config.json -- train.py --model_name_or_path Qwen/Qwen2.5-7B --output_dir out
    ds-advise launch ds_config.json --master node-0 --nodes 2 --node-rank 1 -- train.py --output_dir out
    ds-advise launch ds_config.json --gpus 2x8xH100 --emit slurm -- train.py --output_dir out

    Exit code: 0 if it finished, 1 if it failed, stopped or did not start (with the reason), 2 if it cannot be launched.
    """
    from ...probes.machine import busy

    words, was_busy = users_command(), busy()  # before a check, whose processes are no others
    if not words:
        raise click.UsageError("no command; write -- and then the command that trains")
    if fallback and place["master"] is not None:
        raise click.UsageError("--fallback and --master contradict each other: other nodes would keep their plan")
    if emit and (place["hostfile"] or place["master"] or dry):
        raise click.UsageError("--emit starts nothing and takes the nodes from --gpus; leave the other option out")
    file = given_file(run, words, output)
    if "model" not in run:
        refuse_described(run)
    elif file is None:
        raise click.UsageError("--model needs a DS_CONFIG, which it completes")
    from ..launch.question import launch_request
    from ..launch.session import check_session, run_session
    from ..question.file_question import read_file_question
    from ..render.deliver import show_document
    from ..render.launch import emit_jobs, session_document, show_dry

    if emit:
        place |= {"slurm": True, "launcher": "torchrun"}
    starts = not dry and not emit
    question = None if file is None else read_file_question(file, run | machine)
    # The ranks of a training that starts have the GPUs of this machine, whatever the question was about.
    is_asked = question is not None and (not starts or question.asked.get("device") == "cpu")
    options = machine_options(question.asked if question is not None and is_asked else machine)
    place |= {name: options[name] for name in ("gpus", "device", "ranks")}
    if question is not None and "model" not in run and (no_check or check != "quick"):
        question = replace(question, model=None)  # a check sees what the command trains; no check must stop nothing
    request = launch_request(
        words,
        question,
        config_file=file,
        is_config_given="config_file" in passed_options(),
        offline=run.get("offline", False),
        starts=starts,
        **place,
    )
    request, session = check_session(request, None if no_check else check, output)
    if session is None:
        if emit:
            return emit_jobs(request, emit, output, force=force)
        if dry:
            return show_dry(request, output)
        session = run_session(request, fallback=fallback, verbose=verbose, output=output, was_busy=was_busy)
        output.gap()
    ended = session
    show_document(lambda: session_document(ended), output, html=html)
    return 0 if session.finished else 1
