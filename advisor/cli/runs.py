"""Commands that run a configuration or a training: `dry-run`, `probe`, `launch` and `train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...ds_configs.files import CONFIG_NAME
from ...estimators.optimizers import OPTIMIZERS
from ..question.file_question import FileQuestion, has_record, read_file_question
from ..question.options import (
    OPTIONS,
    CpuOptions,
    MachineOptions,
    MethodOptions,
    ModuleOptions,
    TrainingOptions,
    names_in,
)
from ..text.output import Output
from ..train.settings import TRAINING_OPTIONS
from .options import (
    ACCUMULATION,
    COUNT,
    EMIT,
    FALLBACK,
    FORCE,
    OBJECTIVE,
    PATH,
    ROLLOUTS,
    TRAINING,
    CommandWithUsersCommand,
    Decorator,
    model_option,
    output_options,
    passed_options,
    question_options,
    report_options,
    users_command,
    warn_ignored,
)

if TYPE_CHECKING:
    from ...ds_configs.job import JobKind
    from ...estimators.hardware import Cluster
    from ...probes.run import Run
    from ..answer.dry_run_answer import DryRunAnswer
    from ..document.blocks import Document
    from ..launch.check import Check
    from ..verification.probe import ProbeAnswer

_POSITIVE = click.IntRange(min=1)
_RANK = click.IntRange(min=0)


def _run_options(model: Decorator, *, needs_file: bool = True) -> Decorator:
    """Decorator that gives a command the options of a run, and passes their values as `run`: the arguments of
    `read_run` except the cluster."""
    metavar = "DS_CONFIG" if needs_file else "[DS_CONFIG]"
    file = click.argument("config_file", metavar=metavar, type=PATH, required=needs_file)
    return question_options(
        (
            *(*TRAINING, *ROLLOUTS, "micro_batch", "precision"),
            *(*names_in(ModuleOptions), "framework", "software", "offline"),
        ),
        into="run",
        extra=[file, model, ACCUMULATION],
        only_passed=True,
        micro_batch={
            "help": "Value for an `auto` micro batch.",
            "default_text": "1; for dry-run the recommended value",
        },
        method={"help": "Train all weights, or LoRA adapters (peft).", "choices": ("full", "lora")},
        precision={"help": "Value for an `auto` in bf16 or fp16."},
        gradient_checkpointing={"choices": ("on", "off", "offload"), "default": "on"},
    )


def _warn_of_set_keys(run: Run) -> None:
    """Warn about options that replace an `auto` if the file has a value instead."""
    for name, key in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("accumulation", "gradient_accumulation_steps"),
    ):
        if (value := run.config.get(key, "auto")) != "auto":
            warn_ignored(name, f"where the file has {key} {value}")


_MODEL = model_option("Model name, folder or hub id; or FILE.py:FACTORY, a function that returns a module.")


def _given_file(run: dict[str, Any], words: tuple[str, ...], output: Output) -> Path | None:
    """The configuration that the user names, else the one in this folder that records its question; None for a command
    that names one itself."""
    if "config_file" in run:
        return Path(run.pop("config_file"))
    names_one = any("deepspeed" in word or ".json" in word or "config_file" in word for word in words)
    if names_one or not has_record(Path(CONFIG_NAME)):
        return None
    output.say(f"with {CONFIG_NAME} of this folder")
    return Path(CONFIG_NAME)


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
    question = read_file_question(file, given)
    if question.model is None:
        raise click.UsageError("missing MODEL, or the training command behind --")
    question.tell(output.say)
    return question


@click.command("dry-run", cls=CommandWithUsersCommand)
@_run_options(_MODEL, needs_file=False)
@question_options(("gpus", "device", "ranks", "ram", "nvme"), into="machine", only_passed=True)
@click.option("--rank", type=_RANK, help="Rank to simulate.  [default: the rank with the most memory]")
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
@click.option("--timeout", "timeout_s", type=_POSITIVE, default=1800, metavar="SECONDS", help="Time limit.")
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
    file = _given_file(run, words, output)
    if timeline is not None:
        check_target(timeline, "--timeline", force=force)
    document: Callable[..., Document]
    if words:
        _refuse_described(run)
        answer, document = _command_answer(file, words, build_cluster(_machine_of(file, machine)), output, **settings)
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
@_run_options(_MODEL, needs_file=False)
@question_options(("gpus", *names_in(CpuOptions)), into="machine", only_passed=True)
@click.option("--solo", is_flag=True, help="Run one rank of the job alone on one device; --gpus describes the job.")
@click.option("--rank", type=_RANK, default=0, help="Rank to run with --solo.")
@click.option("--steps", type=click.IntRange(min=4, max=1000), default=4, help="Number of optimizer steps.")
@click.option("--timeout", "timeout_s", type=_POSITIVE, default=1800, metavar="SECONDS", help="Time limit.")
@click.option("--stall", "stall_s", type=_POSITIVE, default=300, metavar="SECONDS", help="Time limit without progress.")
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
    file = _given_file(run, words, output)
    if words:
        _refuse_described(run)
        machine = _machine_of(file, machine)
        answer = _probed_command(file, words, machine, output, offline=run.get("offline", False), **settings)
        show_document(lambda: probe_document(answer, "the engine's configuration"), output, html=html)
        return 0 if answer.result.failure is None else 1
    question = _described_run(file, run | machine, output)
    machine = _machine_options(question.asked)
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


@click.command(cls=CommandWithUsersCommand)
@_run_options(
    model_option("Model of the command, for --check quick and for the plans of --fallback."), needs_file=False
)
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
@click.option("--node-rank", type=_RANK, default=0, help="Rank of this node, with --master.")
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
@click.option(
    "--stall",
    "stall_s",
    type=_POSITIVE,
    metavar="SECONDS",
    help="End after this time without a step or a line of output.  [default: only warn]",
)
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
    started here. DS_CONFIG is for a command that names no DeepSpeed configuration. Ctrl-C saves and stops; a second
    Ctrl-C ends at once.

    \b
    ds-advise launch -- torchrun --nproc_per_node 8 train.py --deepspeed ds_config.json --output_dir out
    ds-advise launch ds_config.json -- train.py --model_name_or_path Qwen/Qwen2.5-7B --output_dir out
    ds-advise launch ds_config.json --master node-0 --nodes 2 --node-rank 1 -- train.py --output_dir out
    ds-advise launch ds_config.json --gpus 2x8xH100 --emit slurm -- train.py --output_dir out

    Exit code: 0 if it finished, 1 if it failed, stopped or did not start (with the reason), 2 if it cannot be launched.
    """
    words = users_command()
    if not words:
        raise click.UsageError("no command; write -- and then the command that trains")
    if fallback and place["master"] is not None:
        raise click.UsageError("--fallback and --master contradict each other: other nodes would keep their plan")
    if emit and (place["hostfile"] or place["master"] or dry):
        raise click.UsageError("--emit starts nothing and takes the nodes from --gpus; leave the other option out")
    file = _given_file(run, words, output)
    if "model" not in run:
        _refuse_described(run)
    elif file is None:
        raise click.UsageError("--model needs a DS_CONFIG, which it completes")
    from ..launch.question import launch_request
    from ..launch.session import check_session, run_session
    from ..render.deliver import show_document
    from ..render.launch import emit_jobs, session_document, show_dry

    if emit:
        place |= {"slurm": True, "launcher": "torchrun"}
    starts = not dry and not emit
    question = None if file is None else read_file_question(file, run | machine)
    # The ranks of a training that starts have the GPUs of this machine, which the check is about.
    options = _machine_options(machine if starts or question is None else question.asked)
    place |= {name: options[name] for name in ("gpus", "device", "ranks")}
    if question is not None and "model" not in run and not no_check and check != "quick":
        question = replace(question, model=None)  # the check sees what the command trains
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
        session = run_session(request, fallback=fallback, verbose=verbose, output=output)
    ended = session
    show_document(lambda: session_document(ended), output, html=html)
    return 0 if session.finished else 1


def _machine_options(known: Mapping[str, Any]) -> dict[str, Any]:
    """The options that describe the machine, with defaults for those that are not known."""
    return {name: known.get(name, OPTIONS[name].default) for name in names_in(MachineOptions, CpuOptions)}


def _machine_of(file: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that describe the machine of a command: those that the user gave, else those of its file."""
    return _machine_options(given if file is None else read_file_question(file, given).asked)


def _refuse_described(run: Mapping[str, Any]) -> None:
    """Refuse the options that describe a training: a command describes itself."""
    decided = sorted(run.keys() - {"config_file", "offline"})
    if decided:
        option = f"--{decided[0].replace('_', '-')}"
        raise click.UsageError(f"{option} has no effect on a command; the command itself decides it")


_TRAINED = (
    *names_in(
        MachineOptions,
        MethodOptions,
        TrainingOptions,
        without=("threads", "quantization", "document_len", "images_per_sample", "max_pixels", "freeze", *OBJECTIVE),
    ),
    *("risk", "offline"),
)
"""Options of `advise` that also apply to a training."""


@click.command()
@question_options(
    (*_TRAINED, *names_in(CpuOptions), "data", "epochs", "packing", "eval_split", *TRAINING_OPTIONS),
    into="options",
    declared={**OPTIONS, **TRAINING_OPTIONS},
    extra=[
        model_option("Model: a folder with config.json, tokenizer and safetensors, or a hub id."),
        click.option("--seed", type=click.IntRange(min=0, max=2**31), default=42, help="Random seed."),
        click.option("--no-probe", is_flag=True, help="Check by a dry run instead of a probe."),
        click.option("--no-check", is_flag=True, help="Start without probe, dry run and disk check."),
    ],
    data={"help": "Training data: .jsonl, .json, .csv, .tsv or .parquet."},
    seq_len={"default_text": "the longest sample, within the model's limit"},
    global_batch={"help": "Samples per optimizer step.", "default_text": "32, less for few samples"},
)
@click.option("--output-dir", default="output", metavar="DIR", help="Folder of the model and its checkpoints.")
@click.option("--resume", is_flag=True, help="Continue the training in --output-dir with its options.")
@click.option("--force", is_flag=True, help="Use an --output-dir that is not empty, and remove its checkpoints.")
@FALLBACK
@click.option("--dry", is_flag=True, help="Show data, plan and command, and start nothing.")
@click.option("--verbose", is_flag=True, help="Show rank 0's output.")
@output_options
def train(
    options: dict[str, Any],
    output_dir: str,
    resume: bool,
    force: bool,
    fallback: bool,
    dry: bool,
    verbose: bool,
    output: Output,
) -> int:
    """Train a model on a data file: recommend a configuration, check that it fits, train, save.

    \b
    ds-advise train --model ./Qwen2.5-1.5B --data chats.jsonl
    ds-advise train --model ./Qwen2.5-14B --data train.json --method lora --merge
    ds-advise train --resume --output-dir output

    Exit code: 0 if it trained and saved, 1 if it stopped, failed or does not fit, 2 if it cannot be started.
    """
    if not resume:  # checked before the import, which needs the extra `train`
        from ..data.rows import check_file

        for name in ("model", "data"):
            if not options[name]:
                raise click.UsageError(f"--{name} is missing")
        check_file(Path(options["data"]).expanduser())
    from ..train.train import TrainingControls, resume_training, show, train_anew

    folder = Path(output_dir).expanduser().absolute()
    for name in ("model", "data", "eval_data"):  # absolute, so that --resume works from another directory
        if options[name] and Path(options[name]).expanduser().exists():
            options[name] = str(Path(options[name]).expanduser().absolute())
    controls = TrainingControls(output=output, fallback=fallback, verbose=verbose)
    if resume:
        return resume_training({name: options[name] for name in passed_options() & options.keys()}, folder, controls)
    advice = {name: options[name] for name in _TRAINED}
    if dry:
        return show(options, advice, folder, output)
    return train_anew(options, advice, folder, controls, force=force)
