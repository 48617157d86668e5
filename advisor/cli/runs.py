"""Commands that run a configuration or a training for some steps: `dry-run` and `probe`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...estimators.errors import ConfigFileError, WorkloadError
from ...estimators.optimizers import OPTIMIZERS
from ..question.options import CpuOptions, MachineOptions, names_in
from ..text.output import Output
from .options import (
    COUNT,
    FORCE,
    POSITIVE,
    CommandWithUsersCommand,
    OutputFile,
    Whole,
    model_option,
    output_options,
    question_options,
    report_options,
    typed_command,
    users_command,
    warn_ignored,
)
from .run_options import RANK, given_file, launch_command, machine_of, machine_options, refuse_described, run_options

if TYPE_CHECKING:
    from ...estimators.hardware import Cluster
    from ...probes.run import Run
    from ..answer.dry_run_answer import DryRunAnswer
    from ..document.blocks import Document
    from ..verification.probe import ProbeAnswer


_MODEL = model_option("Model name, folder or hub id; or FILE.py:FACTORY, a function that returns a module.")


class _Described(NamedTuple):
    """A run that is described by a configuration file or by the name of a model."""

    run: Run
    name: str
    """The name of its configuration."""
    others: Callable[[], str] = str
    """The command that finds the fastest plan for its training; "" if this is the plan of that command's answer, or the
    closed form does not know the model. Derived once DeepSpeed has taken the configuration."""


def _described(
    file: Path | None, given: dict[str, Any], output: Output, place: Callable[[Mapping[str, Any]], Cluster]
) -> _Described:
    """The run of a configuration file with its model, or of the plan that the answer for a model recommends.

    given: the options that the user passed. place: the machines that options describe.
    """
    if file is None:
        return _recommended(given, output, place)
    from ..question.file_question import question_words, read_file_question
    from ..question.rollouts import training_cluster
    from ..question.run import read_run
    from ..search.open_batch import filled_batch

    question = read_file_question(file, given)
    if question.model is None:
        command = click.get_current_context().info_name
        with_command = f"ds-advise {command} {file} {'' if command == 'probe' else '--gpus SPEC '}-- COMMAND"
        fix = f"name it with --model MODEL, or add your training command: {with_command}"
        raise ConfigFileError(f"{file} records no model", fix=fix)
    question.tell(output.say)
    cluster = training_cluster(question.options, place(question.options))
    run = read_run(question.config, question.model, cluster, **question.options)
    _warn_of_set_keys(run)
    has_default_batch = False
    if "micro_batch" not in question.batch and run.shape is not None and run.workload.optimizer in OPTIMIZERS:
        batch = {"gradient_checkpointing": "on"} | question.batch
        filled = filled_batch(run.config, run.shape, run.workload, cluster, **batch)
        if filled.words:
            output.say(filled.words)
            has_default_batch = True
            micro, steps = filled.micro_batch_size, filled.gradient_accumulation_steps or 1
            run = replace(run, micro_batch_size=micro, gradient_accumulation_steps=steps)

    def others() -> str:
        if run.shape is None:
            return ""
        plan = None if has_default_batch else run.plan()  # the default batch is that of the answer, too
        batch = {} if plan is None else {"global_batch": plan.samples_per_step(cluster.world_size)}
        return f"ds-advise {question_words(question.model, question.asked | batch)}"

    return _Described(run, Path(question.name).name, others)


def _recommended(given: dict[str, Any], output: Output, place: Callable[[Mapping[str, Any]], Cluster]) -> _Described:
    """The run of the plan that the answer for a model recommends, or of the closest one if nothing fits."""
    from ..advise import answer, build_question
    from ..question.run import build_run
    from ..text.labels import checkpointing_label, plan_title

    model = given.pop("model", None)
    if model is None:
        raise click.UsageError("name a model or a DS_CONFIG, or write -- and then your training command")
    if "accumulation" in given:
        raise click.UsageError("--accumulation needs a DS_CONFIG; pass --global-batch to ds-advise for the answer's")
    described = {name: value for name, value in given.items() if name not in names_in(MachineOptions, CpuOptions)}
    found = answer(build_question(model, **described, gpus=place(given), say=output.say))
    if found.shown is None:
        raise WorkloadError("no strategy can run this training", why=found.ladder[0].reason, fix="change the options")
    plan = found.shown.plan
    output.say(
        f"the recommended plan: {plan_title(plan)}, micro batch {plan.micro_batch_size}, checkpointing "
        f"{checkpointing_label(plan)}, {found.question.workload.loss} loss"
    )
    return _Described(build_run(found.question, plan, offline=given.get("offline", False)), "the recommended plan")


def _warn_of_set_keys(run: Run) -> None:
    """Warn about options that replace an `auto` if the file has a value instead."""
    for name, key in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("accumulation", "gradient_accumulation_steps"),
    ):
        if (value := run.config.get(key, "auto")) != "auto":
            warn_ignored(name, f"where the file has {key} {value}")


@click.command("dry-run", cls=CommandWithUsersCommand)
@run_options(_MODEL)
@question_options(("gpus", "device", "ranks", "ram", "host", "nvme", "link"), into="machine", only_passed=True)
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
@click.option(
    "--timeline",
    type=OutputFile("trace.json"),
    metavar="FILE.json",
    help="Write a trace of memory and one step for Perfetto.",
)
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

    The training is your own command behind `--`, unmodified, DS_CONFIG with a --model, or the recommended plan of a
    MODEL. It needs no GPU, weights or download: the tensors are fake, the code is real. Shows the bytes on GPU, host
    and NVMe by phase, and the tensors at the peak. With a command, DS_CONFIG is for one that names no DeepSpeed
    configuration.

    \b
    ds-advise dry-run --gpus 8xH100 -- torchrun --nproc_per_node 8 train.py --deepspeed ds_config.json --bf16
    ds-advise dry-run ds_config.json --gpus 8xA100-80GB -- accelerate launch train.py
    ds-advise dry-run Qwen2.5-14B --gpus 2x32GB
    ds-advise dry-run ds_config.json --model Qwen2.5-14B --gpus 2x32GB
    ds-advise dry-run ds_config.json --model train.py:build_model --input-shape 3,32,32 --gpus RTX4090

    Exit code: 0 if it fits, 1 if it does not or the command fails, 2 if the dry run cannot be made.
    """
    from ...ds_configs.files import write_config
    from ...probes.command.training_command import read_command
    from ...probes.command.words import check_script
    from ..answer.command_answer import CommandAnswer
    from ..document.blocks import Sentence
    from ..html_report.report import check_target
    from ..question.cluster import build_cluster
    from ..question.file_question import option_words, question_words
    from ..render.deliver import show_document
    from ..render.runs import START, next_command
    from ..text.units import ended
    from ..verification.dry_run import trace
    from ..verification.rejected_config import rejected_setting

    words = users_command()
    file = given_file(run, words, output)
    if timeline is not None:
        check_target(timeline, "--timeline", force=force)
    document: Callable[..., Document]
    cluster = None
    others: Callable[[], str] = str
    if words:
        refuse_described(run)
        check_script(words, Path.cwd())  # before the machine is looked for
        cluster = build_cluster(machine_of(file, machine))
        # The command that starts the ranks of the figures.
        ranks = read_command(words).replace_counts(cluster.nodes, cluster.gpus_per_node)
        following = next_command(START, launch_command(file, machine_options(machine), ranks))
    elif file is not None:
        following = next_command(START, launch_command(file, machine_options(machine), ("YOUR_SCRIPT.py",)))
    else:
        options = {name: value for name, value in (run | machine).items() if name != "model"}
        asked = f"ds-advise {question_words(run.get('model'), options)}"
        following = next_command("Write its configuration, and show how to start it:", asked)
    if cluster is not None:
        answer, document = _command_answer(file, words, cluster, output, **settings)
    else:
        subject = _described(file, run | machine, output, build_cluster)
        others = subject.others
        with rejected_setting(file):
            answer, document = _described_answer(subject, output, **settings)
    if timeline is not None:
        write_config(trace(answer), timeline, force=True)
    failure = answer.late_failure if isinstance(answer, CommandAnswer) else None
    if failure is not None:
        following = [Sentence(f"A training fails there too. Fix: {ended(failure.fix)}")]
    if not answer.fit.fits:
        if words:
            given = [] if file is None else [str(file)]  # its batch is that of the training
            asked = shlex.join(["ds-advise", *given, *option_words(machine_options(machine)), "--", *words])
        else:
            asked = others()
        following = next_command("Find the fastest plan that fits:", asked) if asked else []
    show_document(lambda: document(answer, explain=explain, following=following), output, html=html, plot=plot)
    return 0 if answer.fit.fits and failure is None else 1


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
    from ...ds_configs.files import CONFIG_NAME
    from ...probes.command.request import CommandRequest
    from ...probes.run_errors import NAME_A_CONFIG, CommandFailedError
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
    try:
        with output.progress("dry run") as on_progress:
            answer = command_answer(request, timeout_s=float(timeout_s), on_progress=on_progress)
    except CommandFailedError as error:
        error.fix = error.fix.replace(NAME_A_CONFIG, typed_command(first=[CONFIG_NAME]))
        raise
    return answer, command_document


def _described_answer(
    subject: _Described,
    output: Output,
    *,
    iterations: int | None,
    longest: bool,
    rows: int | None,
    **settings: Any,
) -> tuple[DryRunAnswer, Callable[..., Document]]:
    """The dry run of a described run, and the function that describes it."""
    from ..render.dry_run import dry_run_document
    from ..verification.dry_run import compared_dry_run

    for name, value in (("longest", longest), ("rows", rows)):
        if value:
            warn_ignored(name, "without a command behind --")
    _tell_prediction(subject.run, output)
    with output.progress("dry run") as on_progress:
        answer = compared_dry_run(subject.run, iterations=iterations or 4, on_progress=on_progress, **settings)
    return answer, partial(dry_run_document, config_name=subject.name)


def _tell_prediction(run: Run, output: Output) -> None:
    """Say what the closed form predicts, before a dry run that may take minutes."""
    from ..search.candidate import fits_sentence, judge_fit
    from ..text.labels import device_label
    from ..text.units import gib

    estimate = run.estimate()
    if estimate is not None:
        memory, cluster = estimate.memory, run.cluster
        need = f"{gib(memory.device_bytes_per_gpu)} of {gib(cluster.gpu.memory_bytes)} GiB per {device_label(cluster)}"
        fits = fits_sentence("it", judge_fit(memory, cluster)).removesuffix(".")
        output.say(f"predicted without the run: {need}; {fits}")


@click.command(cls=CommandWithUsersCommand)
@run_options(_MODEL)
@question_options(("gpus", *names_in(CpuOptions)), into="machine", only_passed=True)
@click.option("--solo", is_flag=True, help="Run one rank of the job alone on one device; --gpus describes the job.")
@click.option("--rank", type=RANK, default=0, help="Rank to run with --solo.")
@click.option("--steps", type=Whole(4, 1000), default=4, help="Number of optimizer steps, at least 4.")
@click.option("--timeout", "timeout_s", type=POSITIVE, default=1800, metavar="SECONDS", help="Time limit.")
@click.option("--stall", "stall_s", type=POSITIVE, default=300, metavar="SECONDS", help="Time limit without progress.")
@click.option("--dry-run/--no-dry-run", "dry", default=True, help="Make a dry run for comparison.")
@report_options()
@output_options
def probe(run: dict[str, Any], machine: dict[str, Any], html: Path | None, output: Output, **settings: Any) -> int:
    """Run the first optimizer steps of a training on this machine, and compare memory and time with the predictions.

    The training is your own command behind `--`, unmodified, DS_CONFIG with a --model, or the recommended plan of a
    MODEL. Of a model without weights they are random. The batch of a DS_CONFIG has full sequences.

    \b
    ds-advise probe -- torchrun --nproc_per_node 8 train.py --deepspeed ds_config.json --bf16
    ds-advise probe --device cpu --ranks 2 -- train.py
    ds-advise probe Qwen2.5-1.5B
    ds-advise probe ds_config.json --model Qwen2.5-1.5B
    ds-advise probe ds_config.json --model Qwen2.5-14B --gpus 8x8xH100 --solo
    ds-advise probe ds_config.json --model ./tiny --device cpu --ranks 2

    Exit code: 0 if it ran, 1 if it failed (with the reason), 2 if the probe cannot be made.
    """
    from ...probes.machine import busy
    from ..question.cluster import cluster_here, memory_limit_bytes
    from ..render.deliver import show_document
    from ..render.runs import probe_document
    from ..verification.probe import compared_probe

    words, was_busy = users_command(), busy()
    file = given_file(run, words, output)
    if words:
        refuse_described(run)
        machine = machine_of(file, machine)
        answer = _probed_command(file, words, machine, output, offline=run.get("offline", False), **settings)
        name, following = "the engine's configuration", launch_command(file, machine, words)
        show_document(lambda: probe_document(answer, name, warning=was_busy, following=following), output, html=html)
        return 0 if answer.result.failure is None else 1
    chosen: dict[str, Any] = {}

    def place(options: Mapping[str, Any]) -> Cluster:
        chosen.update(machine_options(options))
        return cluster_here(chosen, devices=1 if settings["solo"] else None)

    subject = _described(file, run | machine, output, place)
    answer = compared_probe(
        subject.run,
        device=chosen["device"],
        memory_limit_bytes=memory_limit_bytes(chosen),
        output=output,
        **settings,
    )
    following = "" if file is None else launch_command(file, chosen, ("YOUR_SCRIPT.py",))
    document = partial(probe_document, answer, subject.name, warning=was_busy, following=following)
    show_document(document, output, html=html)
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
    return compared_command_probe(probe, cluster, offline=offline, output=output, **settings)
