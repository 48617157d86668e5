"""Options and words that the commands share that run a training: `dry-run`, `probe` and `launch`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..question.options import OPTIONS, CpuOptions, MachineOptions, ModuleOptions, names_in
from ..text.output import Output
from .options import ACCUMULATION, PATH, ROLLOUTS, TRAINING, Decorator, Whole, question_options

RANK = Whole(0)


def run_options(model: Decorator) -> Decorator:
    """Decorator that gives a command the options of a run, and passes those that the user passed as `run`: arguments of
    `read_run` except the cluster."""
    file = click.argument("config_file", metavar="[DS_CONFIG]", type=PATH, required=False)
    return question_options(
        (
            *(*TRAINING, *ROLLOUTS, "micro_batch", "precision"),
            *(*names_in(ModuleOptions), "framework", "software", "offline"),
        ),
        into="run",
        extra=[file, model, ACCUMULATION],
        only_passed=True,
        micro_batch={"help": "Value for an `auto` micro batch.", "default_text": "the recommended value, else 1"},
        precision={"help": "Value for an `auto` in bf16 or fp16."},
        gradient_checkpointing={"choices": ("on", "off", "offload"), "default": "on"},
    )


def given_file(run: dict[str, Any], words: tuple[str, ...], output: Output) -> Path | None:
    """The configuration that the user names, else the newest in this folder (`newest_file`); None for a command that
    names one itself, and for a model."""
    if "config_file" in run:
        file = Path(run.pop("config_file"))
        _refuse_misspelled_model(file)
        return file
    # `--deepspeed`, `--use_deepspeed`; the word `deepspeed` alone is the launcher.
    flags = any(word.startswith("-") and "deepspeed" in word for word in words)
    names_one = flags or any(".json" in word or "config_file" in word for word in words)
    return None if names_one or "model" in run else newest_file(output)


def _refuse_misspelled_model(file: Path) -> None:
    """Raise NoSuchModelError if what was read as a file is nearly the name of a model, or of its folder."""
    from ...estimators.errors import NoSuchModelError, UnknownModelError
    from ..question.model_source import listed_model

    if file.exists() or file.suffix == ".json":
        return
    try:
        listed_model(str(file))
    except NoSuchModelError as error:
        if error.meant and Path(error.meant).is_dir():
            raise NoSuchModelError(f"no model or file {str(file)[:80]!r}", fix=error.fix) from None
        if error.meant:
            raise
    except UnknownModelError:
        return  # the name of several models


def newest_file(output: Output) -> Path | None:
    """The newest configuration that ds-advise has written into this folder, after it and the others are named; None if
    there is none."""
    from ..question.file_question import recorded_files  # imported here: `--help` needs none of it

    found = recorded_files(Path())
    if not found:
        return None
    others = ", ".join(map(str, found[1:]))
    output.say(f"with {found[0]}, the newest here (not {others})" if others else f"with {found[0]} of this folder")
    return found[0]


def launch_command(file: Path | None, machine: Mapping[str, Any], words: tuple[str, ...]) -> str:
    """The command line that trains what was run. machine: the options that describe where."""
    on_cpu = ["--device", "cpu", "--ranks", str(machine["ranks"] or 2)] if machine.get("device") == "cpu" else []
    return shlex.join(["ds-advise", "launch", *([] if file is None else [str(file)]), *on_cpu, "--", *words])


def machine_options(known: Mapping[str, Any]) -> dict[str, Any]:
    """The options that describe the machine, with defaults for those that are not known."""
    return {name: known.get(name, OPTIONS[name].default) for name in names_in(MachineOptions, CpuOptions)}


def machine_of(file: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that describe the machine of a command: those that the user gave, else those of its file."""
    if file is None:
        return machine_options(given)
    from ..question.file_question import read_file_question

    return machine_options(read_file_question(file, given).asked)


def refuse_described(run: Mapping[str, Any]) -> None:
    """Refuse the options that describe a training: a command describes itself."""
    decided = sorted(run.keys() - {"config_file", "offline"})
    if decided:
        option = f"--{decided[0].replace('_', '-')}"
        raise click.UsageError(f"{option} has no effect on a command; the command itself decides it")
