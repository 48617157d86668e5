"""What to type in place of a usual mistake: options of other tools, files of another command, words without a place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from ...estimators.errors import ConfigFileError, DsAdviseError, UnknownModelError
from ..question.other_names import advice_for, meant_choice, other_name
from .model_argument import is_model
from .options import CommandWithUsersCommand


def instead_of(option: str, args: Sequence[str], known: Mapping[str, Sequence[str]]) -> str:
    """Return what to type in place of an unknown option; "" if nobody knows. known: the options of the command with
    their choices."""
    own = option.replace("_", "-").lower()
    name, value = own.lstrip("-").replace("-", "_"), _value(option, args)
    if own in known:
        return f"write {own} {value}".rstrip()
    written = other_name(name)
    if (target := written.partition(" ")[0]) in known:
        return f"write {_filled(written, value, known[target])}"
    if advice := advice_for(name):
        return advice
    near = get_close_matches(own, known, n=1, cutoff=0.75)
    return f"did you mean {near[0]}?" if near else ""


def _value(option: str, args: Sequence[str]) -> str:
    """Return the value that an option was given; "" if none is."""
    for word, after in zip(args, [*args[1:], "-"], strict=True):
        if word == option:
            return "" if after.startswith("-") else after
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


def _filled(written: str, value: str, choices: Sequence[str]) -> str:
    """Return the option with the given value, if it has one: `--micro-batch {N}` as `--micro-batch 4`; of an option
    with choices with the choice that is meant."""
    if choices and not (value := meant_choice(value, choices)):
        value = "|".join(choices)
    return re.sub(r"\{(.+)\}", lambda found: value[:60] or found[1], written)


_STARTERS = ("torchrun", "python", "python3", "deepspeed", "accelerate", "bash")


def divided_command(args: Sequence[str], command: click.Command) -> str:
    """Return the line with `--` before the command that trains; "" if there is no such command, or `--` before it."""
    starts = (at for at, word in enumerate(args) if word.endswith(".py") or word in _STARTERS)
    at = next(starts, None)
    if at is None or "--" in args or not isinstance(command, CommandWithUsersCommand):
        return ""
    return f"write ds-advise {' '.join(args[:at])} -- {' '.join(args[at:])}"


def instead_of_word(word: str, args: Sequence[str], command: click.Command) -> str:
    """Return what to type in place of a word that a command does not take."""
    known, gpus = options_of(command), _value("--gpus", args)
    if divided := divided_command(args, command):
        return divided
    if "--gpus" in known and gpus and _is_gpus(f"{gpus}-{word}"):  # `--gpus H100 80GB`
        return f"write --gpus {gpus}-{word}"
    if "--gpus" in known and _is_gpus(word):
        return f"write --gpus {word}"
    if is_model(word) and not is_model(args[0]):
        return f"write --model {word}" if "--model" in known else f"write ds-advise {word} --gpus 2x24GB"
    return ""


def _is_gpus(word: str) -> bool:
    from ..question.cluster import build_cluster  # imported here: only mistakes need it
    from ..question.options import fill_defaults

    try:
        build_cluster(fill_defaults({"gpus": word}))
    except DsAdviseError:
        return False
    return word != "auto"


def example_of(command: click.Command) -> str:
    """Return the first command line in the help of a command; "" without one."""
    lines = (line.strip() for line in (command.help or "").splitlines())
    return next((line.partition("  #")[0] for line in lines if line.startswith("ds-advise ")), "")


def no_option_value(name: str, command: click.Command) -> str:
    """Return how an option without its value is written: `write --gpus SPEC (GPUs: 2x32GB, 8xA100-80GB, ...)`."""
    for option in command.params:
        if isinstance(option, click.Option) and name in option.opts:
            metavar = option.metavar or "|".join(_choices(option)) or option.type.name.upper()
            text = (option.help or "").partition("  [")[0].rstrip(".")
            return f"write {name} {metavar}" + (f" ({text})" if text else "")
    return ""


def near_choice(error: click.BadParameter) -> str:
    """Return the choice that is meant by another spelling of a value; "" if none is."""
    found = re.search(r"'(.{1,40})' is not", error.message)
    option = error.param
    if found is None or option is None or not isinstance(option, click.Option):
        return ""
    value, choices = found[1].lower(), _choices(option)
    if near := meant_choice(value, choices):
        return f"write {option.opts[0]} {near}"
    return f"leave {option.opts[0]} out for the recommended value" if value == "auto" else ""


def other_command(name: str) -> str:
    """Return the command for a file that is no model; "" for a model or a name."""
    from ..question.file_question import is_ds_config  # imported here: names need none of it

    path = Path(name)
    if is_ds_config(path):
        return f"ds-advise explain {name} --model MODEL --gpus 2x24GB"
    if path.suffix.lower() == ".py":
        return f"ds-advise --gpus 2x24GB -- torchrun {name}"
    if not _is_there(path) or not path.is_file() or _begins_object(path):
        return ""
    by_suffix = {
        **dict.fromkeys((".yaml", ".yml", ".toml"), f"ds-advise from {name} --gpus 2x24GB"),
        **dict.fromkeys((".log", ".txt", ".out", ".err"), f"ds-advise why {name}"),
        **dict.fromkeys((".jsonl", ".csv", ".parquet"), f"ds-advise MODEL --gpus 2x24GB --data {name}"),
        **dict.fromkeys((".safetensors", ".bin", ".pt", ".pth", ".gguf"), "ds-advise FOLDER, with its config.json"),
    }
    return by_suffix.get(path.suffix.lower(), "")


def _begins_object(path: Path) -> bool:
    """Return whether a file may hold a JSON object, whatever its suffix."""
    try:
        with path.open("rb") as file:
            return file.read(100).lstrip().startswith(b"{")
    except OSError:  # the command that reads it reports it
        return True


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, a null byte
        return False


def other_reader(error: DsAdviseError) -> tuple[str, str] | None:
    """Return what is wrong and what to type if a file that should be JSON is one that another command reads."""
    name, colon, _ = error.what.partition(": not JSON")
    command = other_command(name) if isinstance(error, ConfigFileError) and colon else ""
    return (f"{name[:80]} is not a DeepSpeed configuration", f"write {command}") if command else None


def refuse_unknown(name: str, what: str = "") -> None:
    """Raise UnknownModelError for a word that is no model before the machine is looked for. what: the message."""
    from ...estimators.models import catalogue
    from ..question.model_source import is_user_module

    if command := "" if is_user_module(name) else other_command(name):
        raise UnknownModelError(f"{name[:80]} is not a model", fix=f"write {command}")
    if "/" in name or is_user_module(name) or _is_there(Path(name)):
        return
    try:
        catalogue.find(name)
    except UnknownModelError as error:
        raise UnknownModelError(what or error.what, why=error.why, fix=error.fix) from None


def options_of(command: click.Command) -> dict[str, tuple[str, ...]]:
    """Return the long options of a command with their choices."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    return {name: _choices(each) for each in options for name in each.opts if name.startswith("--")}


def _choices(option: click.Option) -> tuple[str, ...]:
    return tuple(map(str, getattr(option.type, "choices", ())))
