"""The command `why`: the cause of a failed training, by its log."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...ds_configs.files import CONFIG_NAME, nearest_file
from ...ds_configs.launch_commands import shell_line
from ...estimators.errors import ClusterError, ConfigFileError, DsAdviseError, UnknownModelError
from ...probes.failures.log_folder import rank_logs, rank_of
from ..question.options import MachineOptions, names_in
from ..text.output import Output
from ..text.units import alternatives
from .config_files import file_options
from .mistaken_files import is_there, other_command
from .options import (
    ACCUMULATION,
    FORCE,
    PATH,
    CommandWithUsersCommand,
    complete_file,
    model_option,
    output_options,
    users_command,
    warn_ignored,
)
from .typed_line import divided_words, line, without

if TYPE_CHECKING:
    from ...probes.failures.diagnosis import Diagnosis
    from ..answer.memory_change import MemoryForecast
    from ..command.advice import CommandAdvice
    from ..document.blocks import Document


_SUFFIXES = (".log", ".out", ".err", ".txt", ".gz")
"""Of logs."""


@click.command(cls=CommandWithUsersCommand)
@click.argument("logs", metavar="LOG...", nargs=-1, shell_complete=complete_file)
@click.option(
    "--config", type=PATH, metavar="FILE", help="The training's ds_config.json, to name the change that fits."
)
@click.option("--list", "listed", is_flag=True, help="List the known messages.")
@file_options(extra=[model_option("The training's model, if FILE does not record it."), ACCUMULATION])
@FORCE
@output_options
def why(
    logs: tuple[str, ...], config: Path | None, listed: bool, force: bool, question: dict[str, Any], output: Output
) -> int:
    """Name the cause of a failed training and its fix, by the log of any launcher.

    LOG is a file (also compressed by gzip), or - for standard input, which Ctrl-C ends. It is read once, whatever its
    size, with all ranks in it. Several files are one training's, such as one per rank; a folder is one of torchrun
    --log-dir, or of files that are named by rank. If memory ran out, the training command behind `--` is run on a
    simulated GPU, as it is and as it would fit, and the configuration that fits is written: as ds_config.json, or with
    a number if there is another one, which --force replaces.

    \b
    ds-advise why train.log
    ds-advise why logs/
    ds-advise why slurm-1234.out --config ds_config.json
    ds-advise why train.log --config ds_config.json --model Qwen2.5-7B --gpus 4x48GB
    ds-advise why train.log --gpus 4x48GB -- torchrun train.py --bf16
    kubectl logs my-job | ds-advise why -

    Exit code: 0 if the cause is known or the training ended normally, 1 if the cause is not known, 2 if the log cannot
    be read or a prediction fails.
    """
    from ..question.file_question import is_ds_config
    from ..render.deliver import show_document
    from ..render.why import known_messages, message_list, why_document

    if listed:
        from ..document.terminal import print_blocks

        output.show(known_messages, lambda console: print_blocks(message_list(), console))
        return 0
    typed = click.get_current_context().obj
    if not logs:
        if config is not None and config.suffix in _SUFFIXES:
            meant = line(["why", *without(("--config",), typed, why), str(config)])
            raise click.UsageError(f"--config took {str(config)[:80]}, and no LOG is left; write {meant}")
        raise click.UsageError("missing argument 'LOG'")
    words = users_command()
    if (divided := divided_words(logs)) != [*logs] and divided[0] != "--":
        # A command without options, whose words Click takes for logs.
        word = divided[divided.index("--") + 1]
        meant = line(["why", *divided_words(typed)])
        raise click.UsageError(f"{word[:80]} begins a command that trains; write {meant}")
    if not words and force:
        warn_ignored("force", "without the training command behind --")
    if words and (described := sorted(question.keys() - {*names_in(MachineOptions), "offline"})):
        raise click.UsageError(f"--{described[0].replace('_', '-')} has no effect on a command")
    files = _files(logs)
    _check_logs(files, config)
    found = _diagnosed(files)
    _check_machine(question, found)
    if config is not None and not is_there(config):
        near = _named_config(found) or nearest_file(config)
        fix = f"write --config {near}" if near else "name the training's configuration"
        raise ConfigFileError(f"{str(config)[:200]} cannot be read", why="there is no such file", fix=fix)
    other = "" if config is None else _other_stage(config, found)
    if other:
        config = None  # of another training: neither predicted nor named in the next command
    found = _with_given(found, words, config)
    name = "the input" if files == ["-"] else Path(logs[0]).name or logs[0] if len(logs) == 1 else f"{len(files)} logs"
    forecast = advice = None
    note, problem = other, None
    try:
        if found.ran_out_of_memory and words:
            advice, problem = _command_advice(words, config, found, question, output, force=force)
        elif found.ran_out_of_memory and config is not None:
            forecast = _forecast(config, found, question, output)
            lacking = [f"--{name}" for name in ("model", "gpus") if name not in question]
            note = "" if forecast is not None else f"{config} is not predicted: pass its {' and '.join(lacking)}."
        elif other:
            pass  # the note says what it is
        elif found.message is not None and found.message.is_lack and question:
            note = "No configuration is predicted: pass --config FILE, or the training command behind --."
        elif not found.ran_out_of_memory and (given := _given(config, words, question)):
            effect = "have" if len(given) > 1 else "has"
            note = f"{' and '.join(given)} {effect} no effect: memory did not run out."
    except DsAdviseError as error:  # the cause is shown first
        problem = error
        if config is not None and not is_ds_config(config):
            problem, config = _not_a_config(config, found) or error, None  # it does not belong into the next command
    is_log = found.first or found.ended or found.steps or Path(files[0]).suffix in _SUFFIXES or len(files) > 1
    reader = "" if is_log else other_command(files[0])

    def document() -> Document:
        return why_document(
            name,
            found,
            forecast,
            advice,
            logs=logs,
            config=str(config or ""),
            given=question,
            note=note,
            reader=reader,
            has_command=bool(words),
        )

    show_document(document, output)
    if problem is not None:
        problem.exit_code = DsAdviseError.exit_code  # of a prediction, also where the user's script failed
        raise problem
    return 0 if found.message is not None or (found.first is None and found.ended) else 1


def _given(config: Path | None, words: Sequence[str], question: Mapping[str, Any]) -> list[str]:
    """What was typed for a prediction."""
    options = [f"--{name.replace('_', '-')}" for name in question if name != "offline"]
    return [*["--config"] * (config is not None), *options, *["the command behind --"] * bool(words)]


def _files(logs: Sequence[str]) -> list[str]:
    """The files of the logs: of a folder those of its ranks. Raises ConfigFileError for a folder whose files are of no
    rank: they may be of several trainings."""
    files = list[str]()
    for log in logs:
        path = Path(log)
        if log == "-" or not _is_folder(path):
            files.append(log)
            continue
        ranks = rank_logs(path)
        files += map(str, ranks)
        if not ranks:
            others = [file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file()]
            newest = max(others, key=lambda file: file.stat().st_mtime, default=None)
            fix = "name a file in it"
            if newest is not None:
                fix += f", such as {newest}, or all that are of one training: ds-advise why {path}/*{newest.suffix}"
            why = "it is a folder, and no name in it is of a rank"
            raise ConfigFileError(f"{log[:200]} cannot be read", why=why, fix=fix)
    return files


def _check_logs(files: Sequence[str], config: Path | None) -> None:
    """Raise UsageError for a DeepSpeed configuration among the logs."""
    from ..question.file_question import is_ds_config

    configs = [file for file in files if file != "-" and is_ds_config(Path(file))]
    others = [file for file in files if file not in configs]
    if configs and others and config is None:
        fix = line(["why", *others, "--config", configs[0]])
        raise click.UsageError(f"{configs[0][:200]} is a DeepSpeed configuration, not a log; write {fix}")


def _named_config(found: Diagnosis) -> str:
    """The DeepSpeed configuration that the log's command names; "" if it is not here."""
    from ..command.failed_training import logged_config

    return str(logged_config(found) or "")


def _not_a_config(asked: Path, found: Diagnosis) -> ConfigFileError | None:
    """The error of a file that is no DeepSpeed configuration, with what to type by the log; None if nobody knows."""
    from ..command.failed_training import logged_machines

    what, named = f"{str(asked)[:80]} is not a DeepSpeed configuration", _named_config(found)
    if named:
        return ConfigFileError(what, why=f"the log names {named}", fix=f"write --config {named}")
    try:
        reader = other_command(str(asked), logged_machines(found))
    except ConfigFileError as in_yaml:  # a DeepSpeed configuration in YAML
        return in_yaml
    if reader.startswith("ds-advise why "):  # a second log
        return ConfigFileError(what, why="it is read as a log", fix="name the training's JSON, such as ds_config.json")
    return ConfigFileError(what, fix=f"write {reader}") if reader else None


def _check_machine(question: dict[str, Any], found: Diagnosis) -> None:
    """Raise ClusterError for GPUs and their options that are none: they are also written into the next command. The log
    may show the GPUs."""
    from ..command.failed_training import logged_machines
    from ..question.cluster import build_cluster, is_this_machine

    if is_this_machine(str(question.get("gpus", "auto"))):
        return
    try:
        build_cluster({name: value for name, value in question.items() if name in names_in(MachineOptions)})
    except ClusterError as error:
        if logged := logged_machines(found):
            fix = f"leave --gpus out: the log shows {logged}"
            raise ClusterError(error.what, why=error.why, fix=fix) from None
        raise


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # no name of a file
        return False


def _diagnosed(files: Sequence[str]) -> Diagnosis:
    """The cause that the logs of one training show. Raises ConfigFileError if one cannot be read."""
    from ...probes.failures.diagnosis import diagnose_logs
    from ...probes.failures.log_file import read_log
    from ...probes.failures.scan import LogOfRank

    last = ""

    def opened() -> Iterator[LogOfRank]:
        nonlocal last
        for last in files:
            name, rank = (last, rank_of(Path(last))) if len(files) > 1 else ("", None)
            with nullcontext(sys.stdin.buffer) if last == "-" else Path(last).open("rb") as stream:
                yield LogOfRank(read_log(stream), name, rank)

    try:
        return diagnose_logs(opened())
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _unreadable(last, getattr(error, "strerror", None) or str(error)) from error


def _other_stage(config: Path, found: Diagnosis) -> str:
    """What contradicts that a training ran with a configuration: the ZeRO stage that its log shows; "" without such."""
    stages = {"zero3": (3,), "zero12": (1, 2)}
    shown = next((sign for sign in stages if sign in found.signs), None)
    stage = _stage(config)
    if shown is None or stage is None or stage in stages[shown]:
        return ""
    named = _named_config(found)
    example = f", such as {named}" if named and Path(named) != config else ""
    return (
        f"{config} is not the configuration of this training: its ZeRO stage is {stage}, and the log shows "
        f"{alternatives([*map(str, stages[shown])])}. Pass the one of the training{example}."
    )


def _stage(config: Path) -> int | None:
    """The ZeRO stage of a configuration; None if it cannot be read, which is refused after the cause."""
    from ...ds_configs.read import zero_stage_in
    from ..question.run import read_ds_config

    with suppress(DsAdviseError):
        return zero_stage_in(read_ds_config(config))
    return None


def _with_given(found: Diagnosis, words: Sequence[str], config: Path | None) -> Diagnosis:
    """The diagnosis with what the training's command and DeepSpeed configuration show of its engine."""
    from ...probes.failures.signs import Sign, signs_in

    given = signs_in(shell_line(words))
    if config is not None:
        given |= frozenset[Sign](("deepspeed", "zero3") if _stage(config) == 3 else ("deepspeed",))
    return replace(found, signs=found.signs | given)


def _unreadable(log: str, why: str) -> ConfigFileError:
    near = "" if log == "-" or is_there(Path(log)) else nearest_file(Path(log))
    fix = "name the file with the output of the training, or pipe it: COMMAND 2>&1 | ds-advise why -"
    return ConfigFileError(f"{log[:200]} cannot be read", why=why, fix=f"write {near}" if near else fix)


def _command_advice(
    words: tuple[str, ...],
    config: Path | None,
    found: Diagnosis,
    question: dict[str, Any],
    output: Output,
    *,
    force: bool,
) -> tuple[CommandAdvice, DsAdviseError | None]:
    """The dry runs of the command whose memory ran out, as it is and as advised, whose files are written; and the error
    if writing failed. GPUs that neither the user nor the file names are those of the log, else this machine's."""
    from ..command.advise import advise_command
    from ..question.file_question import read_file_question
    from ..render.command_advice import with_files

    recorded = {} if config is None else read_file_question(config, question).asked
    machine = {name: value for name, value in recorded.items() if name in names_in(MachineOptions)}
    _take_logged_gpus(found, {**machine, **question}, question, output)
    with output.progress("dry run") as on_progress:
        given = {"gpus": "auto", **machine, **question}
        advice = advise_command(
            words,
            given,
            config_file=config,
            destination=CONFIG_NAME if force else "",
            say=output.say,
            on_progress=on_progress,
            on_task=on_progress.begin,
        )
    return with_files(advice, Path.cwd(), force=force)


def _take_logged_gpus(found: Diagnosis, known: Mapping[str, Any], question: dict[str, Any], output: Output) -> None:
    """Put the GPUs of the log into the question if neither the user nor the file, by `known`, names any."""
    from ..command.failed_training import logged_machines

    logged = "" if "gpus" in known else logged_machines(found)
    if logged:
        output.say(f"--gpus {logged}, by the log")
        question["gpus"] = logged


def _forecast(config: Path, found: Diagnosis, question: dict[str, Any], output: Output) -> MemoryForecast | None:
    """The prediction for the configuration of a training whose memory ran out; None if its model is not known. What
    neither the user nor the file names is that of the log. The question then has it, without the batch, which the next
    plan may change."""
    from ..advise import files_context
    from ..answer.comparison import build_side
    from ..answer.memory_change import memory_forecast
    from ..command.failed_training import logged_length, logged_options
    from ..question.file_question import option_words, read_file_question, split_batch

    file = read_file_question(config, question)
    _take_logged_gpus(found, file.asked, question, output)
    logged = {} if file.recorded is not None else logged_options(found)
    of_log = {name: value for name, value in logged.items() if name not in question}
    known = of_log | question
    file = read_file_question(config, known)
    try:
        context = files_context([file], known, say=output.say)
    except UnknownModelError:  # the log's may be a folder of another machine
        if "model" not in of_log:
            raise
        return None
    if context is None:
        return None
    if "seq_len" not in file.options and (side := build_side(file, context).candidate) is not None:
        model, micro_batch = context.question.model, side.plan.micro_batch_size
        if length := logged_length(found, model.vocab_size, micro_batch):
            tokens = f"the request that did not fit is {micro_batch * length:,} tokens of fp32 logits"
            output.say(f"--seq-len {length}, by the log: {tokens}")
            question["seq_len"] = known["seq_len"] = length
            file = read_file_question(config, known)
            context = files_context([file], known, say=output.say)
            assert context is not None, "the model is known"
    if of_log:
        output.say(f"{shell_line(option_words(of_log))}, by the log")
        question |= split_batch(of_log)[0]
    needed = None if found.memory is None else found.memory.needed_bytes
    phase = None if found.phase is None else found.phase.name
    return memory_forecast(file, context, "gpu" if found.kind == "gpu_out_of_memory" else "host", phase, needed)
