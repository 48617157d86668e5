"""Commands that run a configuration or a training for some steps: `dry-run` and `probe`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...estimators.optimizers import OPTIMIZERS
from ..question.options import (
    CpuOptions,
    names_in,
)
from ..text.output import Output
from .options import (
    COUNT,
    FORCE,
    PATH,
    CommandWithUsersCommand,
    model_option,
    output_options,
    question_options,
    report_options,
    users_command,
    warn_ignored,
)
from .run_options import POSITIVE, RANK, given_file, machine_of, machine_options, refuse_described, run_options

if TYPE_CHECKING:
    from ...estimators.hardware import Cluster
    from ...probes.run import Run
    from ..answer.dry_run_answer import DryRunAnswer
    from ..document.blocks import Document
    from ..question.file_question import FileQuestion
    from ..verification.probe import ProbeAnswer


def _warn_of_set_keys(run: Run) -> None:
    """Warn about options that replace an `auto` if the file has a value instead."""
    for name, key in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("accumulation", "gradient_accumulation_steps"),
    ):
        if (value := run.config.get(key, "auto")) != "auto":
            warn_ignored(name, f"where the file has {key} {value}")


_MODEL = model_option("Model name, folder or hub id; or FILE.py:FACTORY, a function that returns a module.")


def _described_run(file: Path | None, given: dict[str, Any], output: Output) -> FileQuestion:
    """The question of a configuration that is run with its model. given: the options that the user passed."""
    model = given.get("model")
    if file is None:
        if model is not None:
            raise click.UsageError(
                f"missing argument DS_CONFIG; ds-advise {model} writes one, and --verify or --probe runs what it "
                "recommends"
            )
        raise click.UsageError("name a DS_CONFIG with its MODEL, or write -- and then your training command")
    from ..question.file_question import read_file_question

    question = read_file_question(file, given)
    if question.model is None:
        raise click.UsageError("missing MODEL, or the training command behind --")
    question.tell(output.say)
    return question


@click.command("dry-run", cls=CommandWithUsersCommand)
@run_options(_MODEL, needs_file=False)
@question_options(("gpus", "device", "ranks", "ram", "nvme"), into="machine", only_passed=True)
@click.option("--rank", type=RANK, help="Rank to simulate.  [default: the rank with the most memory]")
@click.option(
    "--iterations",
    type=COUNT,
    help="Maximum number of optimizer steps; stops when a step repeats.  [default: 4; 8 for a command]",
)
@click.option(
    "--expandable-segments/--no-expandable-segments",
    default=True,
    help="Simulate PyTorch's allocator with expandable segments.",
)
@click.option("--longest", is_flag=True, help="With a command: train the longest batch of its data.")
@click.option("--rows", type=COUNT, help="With a command: rows of each data set.  [default: enough for some steps]")
@click.option("--timeout", "timeout_s", type=POSITIVE, default=1800, metavar="SECONDS", help="Time limit.")
@click.option("--timeline", type=PATH, metavar="FILE.json", help="Write a trace of memory and one step for Perfetto.")
@FORCE
@report_options("memory over the run", own_force=True)
@click.option("--explain", is_flag=True, help="List the largest modules and tensors at the peak.")
@output_options
def dry_run(
    run: dict[str, Any],
    machine: dict[str, Any],
    timeline: Path | None,
    force: bool,
    explain: bool,
    html: Path | None,
    plot: Path | None,
    output: Output,
    **settings: Any,
) -> int:
    """Run a training as one rank through the engine of the installed DeepSpeed, on a simulated GPU.

    The training is your own command behind `--`, unmodified, or DS_CONFIG with a --model. It needs no GPU, weights or
    download: the tensors are fake, the code is real. Shows the bytes on GPU, host and NVMe by phase, and the tensors at
    the peak.

    \b
    ds-advise dry-run --gpus 8xH100 -- torchrun --nproc_per_node 8 train.py --deepspeed ds_config.json --bf16
    ds-advise dry-run ds_config.json --gpus 8xA100-80GB -- accelerate launch train.py
    ds-advise dry-run ds_config.json --model Qwen2.5-14B --gpus 2x32GB
    ds-advise dry-run ds_config.json --model train.py:build_model --input-shape 3,32,32 --gpus RTX4090

    Exit code: 0 if it fits, 1 if it does not or the command fails, 2 if the dry run cannot be made.
    """
    from ...ds_configs.files import write_config
    from ..html_report.report import check_target
    from ..question.cluster import build_cluster
    from ..render.deliver import show_document
    from ..verification.dry_run import trace

    words = users_command()
    file = given_file(run, words, output)
    if timeline is not None:
        check_target(timeline, "--timeline", force=force)
    document: Callable[..., Document]
    if words:
        refuse_described(run)
        answer, document = _command_answer(file, words, build_cluster(machine_of(file, machine)), output, **settings)
    else:
        answer, document = _configuration_answer(_described_run(file, run | machine, output), output, **settings)
    if timeline is not None:
        write_config(trace(answer), timeline, force=True)
    show_document(lambda: document(answer, explain=explain), output, html=html, plot=plot)
    return 0 if answer.fit.fits else 1


def _command_answer(
    file: Path | None,
    words: tuple[str, ...],
    cluster: Cluster,
    output: Output,
    *,
    iterations: int | None,
    timeout_s: int,
    rank: int | None,
    offline: bool = False,
    **settings: Any,
) -> tuple[DryRunAnswer, Callable[..., Document]]:
    """The dry run of the user's command, and the function that describes it."""
    from ...probes.command.request import CommandRequest
    from ..render.command import command_document
    from ..verification.command import command_answer

    if iterations is not None:
        settings["iterations"] = iterations
    request = CommandRequest(
        words=words,
        folder=Path.cwd(),
        cluster=cluster,
        config_file=file and file.absolute(),
        rank=rank,
        offline=offline,
        **settings,
    )
    with output.progress("dry run") as on_progress:
        answer = command_answer(request, timeout_s=float(timeout_s), on_progress=on_progress)
    return answer, command_document


def _configuration_answer(
    file: FileQuestion,
    output: Output,
    *,
    iterations: int | None,
    longest: bool,
    rows: int | None,
    **settings: Any,
) -> tuple[DryRunAnswer, Callable[..., Document]]:
    """The dry run of a configuration with a model, and the function that describes it."""
    from ..question.rollouts import training_cluster
    from ..question.run import read_run
    from ..render.runs import dry_run_document
    from ..search.open_batch import filled_batch
    from ..verification.dry_run import compared_dry_run

    for name, value in (("longest", longest), ("rows", rows)):
        if value:
            warn_ignored(name, "without a command behind --")
    subject = read_run(file.config, str(file.model), training_cluster(file.options), **file.options)
    _warn_of_set_keys(subject)
    if "micro_batch" not in file.batch and subject.shape is not None and subject.workload.optimizer in OPTIMIZERS:
        filled = filled_batch(
            subject.config,
            subject.shape,
            subject.workload,
            subject.cluster,
            accumulation=file.batch.get("accumulation"),
            gradient_checkpointing=file.batch.get("gradient_checkpointing", "on"),
        )
        if filled.words:
            output.say(filled.words)
            micro, steps = filled.micro_batch_size, filled.gradient_accumulation_steps or 1
            subject = replace(subject, micro_batch_size=micro, gradient_accumulation_steps=steps)
    with output.progress("dry run") as on_progress:
        answer = compared_dry_run(subject, iterations=iterations or 4, on_progress=on_progress, **settings)
    return answer, partial(dry_run_document, config_name=Path(file.name).name)


@click.command(cls=CommandWithUsersCommand)
@run_options(_MODEL, needs_file=False)
@question_options(("gpus", *names_in(CpuOptions)), into="machine", only_passed=True)
@click.option("--solo", is_flag=True, help="Run one rank of the job alone on one device; --gpus describes the job.")
@click.option("--rank", type=RANK, default=0, help="Rank to run with --solo.")
@click.option("--steps", type=click.IntRange(min=4, max=1000), default=4, help="Number of optimizer steps.")
@click.option("--timeout", "timeout_s", type=POSITIVE, default=1800, metavar="SECONDS", help="Time limit.")
@click.option("--stall", "stall_s", type=POSITIVE, default=300, metavar="SECONDS", help="Time limit without progress.")
@click.option("--dry-run/--no-dry-run", "dry", default=True, help="Make a dry run for comparison.")
@report_options()
@output_options
def probe(run: dict[str, Any], machine: dict[str, Any], html: Path | None, output: Output, **settings: Any) -> int:
    """Run the first optimizer steps of a training on this machine, and compare memory and time with the predictions.

    The training is your own command behind `--`, unmodified, or DS_CONFIG with a --model. Of a model without weights
    they are random. The batch of a DS_CONFIG has full sequences.

    \b
    ds-advise probe -- torchrun --nproc_per_node 8 train.py --deepspeed ds_config.json --bf16
    ds-advise probe --device cpu --ranks 2 -- train.py
    ds-advise probe ds_config.json --model Qwen2.5-1.5B
    ds-advise probe ds_config.json --model Qwen2.5-14B --gpus 8x8xH100 --solo
    ds-advise probe ds_config.json --model ./tiny --device cpu --ranks 2

    Exit code: 0 if it ran, 1 if it failed (with the reason), 2 if the probe cannot be made.
    """
    from ..question.cluster import cluster_here, memory_limit_bytes
    from ..question.run import read_run
    from ..render.deliver import show_document
    from ..render.runs import probe_document
    from ..verification.probe import compared_probe

    words = users_command()
    file = given_file(run, words, output)
    if words:
        refuse_described(run)
        machine = machine_of(file, machine)
        answer = _probed_command(file, words, machine, output, offline=run.get("offline", False), **settings)
        show_document(lambda: probe_document(answer, "the engine's configuration"), output, html=html)
        return 0 if answer.result.failure is None else 1
    question = _described_run(file, run | machine, output)
    machine = machine_options(question.asked)
    cluster = cluster_here(machine, devices=1 if settings["solo"] else None)
    subject = read_run(question.config, str(question.model), cluster, **question.options)
    _warn_of_set_keys(subject)
    if "micro_batch" not in question.batch and subject.config.get("train_micro_batch_size_per_gpu") == "auto":
        output.say("`auto` filled with micro batch 1 (--micro-batch sets another)")
    answer = compared_probe(
        subject,
        device=machine["device"],
        memory_limit_bytes=memory_limit_bytes(machine),
        on_progress=output.say,
        **settings,
    )
    show_document(lambda: probe_document(answer, Path(question.name).name), output, html=html)
    return 0 if answer.result.failure is None else 1


def _probed_command(
    file: Path | None,
    words: tuple[str, ...],
    machine: dict[str, Any],
    output: Output,
    *,
    offline: bool,
    solo: bool,
    rank: int,
    steps: int,
    **settings: Any,
) -> ProbeAnswer:
    """The probe of the user's command."""
    from ...probes.command.training_command import read_command
    from ...probes.real_run.command import CommandProbe
    from ...probes.real_run.environment import Solo
    from ..launch.place import command_cluster
    from ..question.cluster import memory_limit_bytes
    from ..verification.probe import compared_command_probe

    command = read_command(words)
    if solo and command.program is None:
        starter = command.launcher or command.words[0]
        raise click.UsageError(f"{starter} starts the ranks, --solo only one; write the script without it behind --")
    cluster = command_cluster(command, machine, here=True, solo=solo)
    if cluster.nodes > 1 and not solo:
        raise click.UsageError(f"{cluster.nodes} nodes are not available here; pass --solo to run one rank of the job")
    probe = CommandProbe(
        words=words,
        folder=Path.cwd(),
        ranks=cluster.gpus_per_node,
        device=machine["device"],
        steps=steps,
        memory_limit_bytes=memory_limit_bytes(machine),
        config_file=file and file.absolute(),
        solo=Solo(rank=rank, world_size=cluster.world_size, ranks_per_node=cluster.gpus_per_node) if solo else None,
    )
    return compared_command_probe(probe, cluster, offline=offline, on_progress=output.say, **settings)
