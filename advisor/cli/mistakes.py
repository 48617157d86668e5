"""What to type in place of a usual mistake: options of other tools, files of another command, words without a place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from ...estimators.errors import ConfigFileError, DsAdviseError, UnknownModelError
from ...estimators.plan import PLANS, STRATEGIES
from ..question.gpu_text import meant_gpus
from ..question.other_names import advice_for, meant_choice, other_name
from .model_argument import is_model
from .options import CommandWithUsersCommand


def instead_of(option: str, args: Sequence[str], command: click.Command) -> str:
    """Return what to type in place of an unknown option; "" if nobody knows."""
    known = options_of(command)
    own = option.replace("_", "-").lower()
    name, value = own.lstrip("-").replace("-", "_"), _value(option, args)
    if own in known:
        return f"write {own} {value}".rstrip()
    written = other_name(name)
    target = written.partition(" ")[0]
    if target in known or (target == "--model" and "--gpus" in known):  # in place of the argument MODEL
        if "{N}" in written and value and not re.fullmatch(r"[1-9]\d*[kKmM]?", value):
            value = _example_number(next(each for each in command.params if target in each.opts))
        return f"write {_filled(written, value, known.get(target, ()))}"
    strategy = next((each for each in STRATEGIES if own.lstrip("-") in (each, each.replace("-", ""))), "")
    if advice := advice_for("strategy" if strategy else name):
        model = args[0] if args and is_model(args[0]) else "MODEL"
        meant = strategy or next((each for each in STRATEGIES if value in (each, each.removeprefix("zero"))), "zero3")
        return advice.replace("MODEL", model).replace("zero3", meant)
    near = get_close_matches(own, [*known, *_HELP], n=1, cutoff=0.75)
    if own in _HELP:
        return f"write ds-advise {own}"
    return f"did you mean {near[0]}?" if near else ""


_HELP = ("--help", "--help-all", "--version")


def _value(option: str, args: Sequence[str]) -> str:
    """Return the value that an option was given; "" if none is."""
    for word, after in zip(args, [*args[1:], "-"], strict=True):
        if word == option:
            return "" if re.match(r"-\D", after) or after == "-" else after
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
    divided = divided_words(args)
    if len(divided) == len(args) or not isinstance(command, CommandWithUsersCommand):
        return ""
    return f"write ds-advise {' '.join(divided)}"


def divided_words(args: Sequence[str]) -> list[str]:
    """Return the words with `--` before the command that trains, if there is one without it."""
    starts = (at for at, word in enumerate(args) if word.endswith(".py") or word in _STARTERS)
    at = None if "--" in args else next(starts, None)
    return [*args] if at is None else [*args[:at], "--", *args[at:]]


def instead_of_word(words: Sequence[str], args: Sequence[str], command: click.Command) -> str:
    """Return what to type in place of words that a command does not take."""
    known, gpus, word = options_of(command), _value("--gpus", args), words[0]
    before = args[args.index(word) - 1] if args.index(word) else ""
    flags = [each for each in command.params if isinstance(each, click.Option) and each.is_flag]
    if divided := divided_command(args, command):
        return divided
    if word.lower() in ("yes", "true", "on", "1", "no", "false") and any(before in each.opts for each in flags):
        return f"write {before} without {word}"
    if "--gpus" in known and gpus and not re.match(r"\d+x", word):  # `--gpus H100 80GB`, `--gpus 2 x A100`
        whole = re.sub(r" [xX*] ?", "x", " ".join((gpus, *words)))
        if found := meant_gpus(whole):
            return f"write --gpus {found}"
    if "--gpus" in known and (found := meant_gpus(word)):
        return f"write --gpus {found}"
    if is_model(whole := "-".join((args[0], *words))):  # `qwen 2.5 14b`
        return f"write {whole}"
    if is_model(word) and not is_model(args[0]):
        return f"write --model {word}" if "--model" in known else f"write ds-advise {word} --gpus 2x24GB"
    return ""


COMMANDS_OF_OTHERS: Mapping[str, str] = {
    "": "estimate estimate-memory recommend predict fit tune autotune plan memory mem ask",
    "--html report.html": "report html",
    "--plot memory.svg": "plot chart",
    "launch": "run start torchrun",
    "train": "finetune sft pretrain",
    "lint": "validate verify",
    "why": "debug diagnose logs",
    "doctor": "ds_report env status info nvidia-smi",
    "checkpoint": "ckpt zero_to_fp32 zero_to_fp32.py merge export",
    "bench": "benchmark perf",
    "page": "serve ui web gui",
    "explain": "show describe formula",
    "compare": "diff",
    "from": "import convert",
    "rent": "cost price cloud",
}
"""Command -> names of other tools' commands; "" for `advise`, and an option for `advise` with it."""


def other_tools_command(args: Sequence[str]) -> str:
    """Return the line for a command of another tool, unless it is a model or a file."""
    word = args[0]
    name = next((name for name, words in COMMANDS_OF_OTHERS.items() if word.lower() in words.split()), None)
    if name is None or is_model(word) or _is_there(Path(word)):
        return ""
    rest = divided_words(args[1:]) if name == "launch" else [*args[1:]]
    if name and not name.startswith("-"):
        return " ".join(("ds-advise", name, *rest))
    rest = [word for word in rest if word not in ("--help", "-h")]
    model = [] if any(is_model(each) for each in rest) else ["MODEL"]
    gpus = [] if "--gpus" in rest else ["--gpus", "2x24GB"]
    return " ".join(filter(None, ("ds-advise", *model, *rest, *gpus, name)))


def example_of(command: click.Command) -> str:
    """Return the first command line in the help of a command; "" without one."""
    lines = (line.strip() for line in (command.help or "").splitlines())
    return next((line.partition("  #")[0] for line in lines if line.startswith("ds-advise ")), "")


def no_option_value(name: str, command: click.Command) -> str:
    """Return how an option without its value is written: `write --gpus SPEC (GPUs: 2x32GB, 8xA100-80GB, ...)`."""
    for option in command.params:
        if isinstance(option, click.Option) and name in option.opts:
            own = option.type.name  # of a count with words N|max
            metavar = option.metavar or "|".join(_choices(option)) or (own if "|" in own else own.upper())
            text = (option.help or "").partition("  [")[0].rstrip(".")
            return f"write {name} {metavar}" + (f" ({text})" if text else "")
    return ""


def near_choice(error: click.BadParameter, command: click.Command) -> str:
    """Return how a value is written that an option does not take: the choice that is meant, or an example."""
    found = re.search(r"'(.{1,40})' is not", error.message)
    option = error.param
    if found is None or not isinstance(option, click.Option):
        return ""
    name, value, choices = option.opts[0], found[1].lower(), _choices(option)
    if value == "auto":
        return f"leave {name} out for the recommended value"
    if near := meant_choice(value, choices):
        return f"write {name} {near}"
    others = [flag for flag, words in options_of(command).items() if value in words and flag != "--quantization"]
    if others:
        return f"write {others[0]} {value}"
    if written := other_name(value):
        return f"write {_filled(written, '', ())}"
    if choices:
        return f"write {name} {'|'.join(choices)}"
    return f"write {name} {_example_number(option)}"


def _example_number(option: click.Parameter) -> str:
    """Return the default of an option that takes a number, or 8."""
    found = re.search(r"\[default: (?:about )?([\d.]+)", f"{getattr(option, 'help', '')} [default: {option.default}]")
    return found[1] if found else "8"


def other_command(name: str) -> str:
    """Return the command for a file that is no model; "" for a model or a name."""
    from ..question.file_question import is_ds_config, records_question  # imported here: names need none of it

    path = Path(name)
    if is_ds_config(path):
        return f"ds-advise explain {name}" + ("" if records_question(path) else " --model MODEL --gpus 2x24GB")
    if path.suffix.lower() == ".py":
        return f"ds-advise --gpus 2x24GB -- torchrun {name}"
    if not _is_there(path) or not path.is_file() or _begins_object(path):
        return ""
    return _READERS.get(path.suffix.lower(), "").format(name=name)


_READERS: Mapping[str, str] = {
    **dict.fromkeys((".yaml", ".yml", ".toml"), "ds-advise from {name} --gpus 2x24GB"),
    **dict.fromkeys((".log", ".txt", ".out", ".err"), "ds-advise why {name}"),
    **dict.fromkeys((".jsonl", ".csv", ".parquet"), "ds-advise MODEL --gpus 2x24GB --data {name}"),
    **dict.fromkeys((".safetensors", ".bin", ".pt", ".pth", ".gguf"), "ds-advise FOLDER, with its config.json"),
}
"""Suffix of a file -> the command that reads it."""


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


def other_reader(error: DsAdviseError, args: Sequence[str]) -> tuple[str, str] | None:
    """Return what is wrong and what to type if a file that should be JSON is one that another command reads. args: the
    command line."""
    name, colon, _ = error.what.partition(": not JSON")
    command = other_command(name) if isinstance(error, ConfigFileError) and colon else ""
    if command and args[0] in _RUNNING and name.endswith(".py"):
        own, _, users = " ".join(divided_words(args)).partition(" -- ")
        gpus = " --gpus 2x24GB" if args[0] == "dry-run" and "--gpus" not in args else ""
        starter = "" if users.split()[0] in _STARTERS else "torchrun "
        return f"{name[:80]} is not a DeepSpeed configuration", f"write ds-advise {own}{gpus} -- {starter}{users}"
    return (f"{name[:80]} is not a DeepSpeed configuration", f"write {command}") if command else None


_RUNNING = ("dry-run", "probe", "launch")
"""Commands that run the user's command."""


def refuse_unknown(name: str, what: str = "", fix: str = "") -> None:
    """Raise UnknownModelError for a word that is no model before the machine is looked for. what: the message. fix:
    what to write, in place of the nearest models."""
    from ...estimators.models import catalogue
    from ..question.model_source import is_user_module

    path = Path(name)
    if command := "" if is_user_module(name) else other_command(name):
        raise UnknownModelError(f"{name[:80]} is not a model", fix=f"write {command}")
    if path.suffix.lower() in (".json", *_READERS) and not _is_there(path):
        raise UnknownModelError(f"{name[:80]}: no such file", fix="name a model, such as Qwen2.5-14B, or its folder")
    if hub := re.fullmatch(r"https?://[\w.-]+/([\w.-]+/[\w.-]+?)(?:/tree/\w+)?/?", name):
        raise UnknownModelError(f"{name[:80]} is the address of a model, not its name", fix=f"write {hub[1]}")
    is_folder = _is_there(path) and path.is_dir()
    if "/" in name or is_user_module(name) or (_is_there(path) and not is_folder) or _is_there(path / "config.json"):
        return
    try:
        catalogue.find(name)
    except UnknownModelError as error:
        if is_folder:
            fix = "name the folder that has the model's config.json"
            raise UnknownModelError(f"the folder {name[:80]} has no config.json", fix=fix) from None
        if gpus := meant_gpus(name):
            fix = f"write ds-advise MODEL --gpus {gpus}"
            raise UnknownModelError(f"{name!r} describes GPUs, not a model", fix=fix) from None
        raise UnknownModelError(what or error.what, why=error.why * (not fix), fix=fix or error.fix) from None


def refuse_unknown_side(name: str) -> None:
    """Raise ConfigFileError for a side of a comparison that is neither a strategy nor like the name of a file."""
    if name in PLANS or _is_there(Path(name)) or not re.fullmatch(r"\w[\w-]*", name):
        return
    near = get_close_matches(name, PLANS, n=1, cutoff=0.85)
    fix = f"write {near[0]}" if near else f"write one of {', '.join(PLANS)}, or the path of a file"
    raise ConfigFileError(f"no strategy or file {name[:40]!r}", fix=fix)


def options_of(command: click.Command) -> dict[str, tuple[str, ...]]:
    """Return the long options of a command with their choices."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    return {name: _choices(each) for each in options for name in each.opts if name.startswith("--")}


def _choices(option: click.Option) -> tuple[str, ...]:
    return tuple(map(str, getattr(option.type, "choices", ())))
