"""The typed line. What is proposed in its place keeps what was right of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from shutil import which
from typing import NamedTuple

import click

from ...ds_configs.files import CONFIG_NAME
from ...ds_configs.launch_commands import COUNTS, PROGRAMS, Launcher
from ...probes.command.words import is_training
from ...probes.command_line import command_line
from ..question.gpu_text import meant_gpus
from .commands import command_named
from .model_argument import is_model, positional_places

STARTERS = ("torchrun", "python", "python3", "deepspeed", "accelerate", "bash")
"""Words that begin a command that trains."""

GPUS = "2x24GB"
"""GPUs of a proposal for a line that names none."""


def line(words: Sequence[str]) -> str:
    """Return the arguments of `ds-advise` as a shell reads them."""
    return shlex.join(["ds-advise", *words])


def typed_words() -> list[str]:
    """Return the arguments of this process."""
    return shlex.split(command_line())[1:]


_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_QUOTES = "\"'`\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb"


def plain_words(args: Sequence[str]) -> list[str]:
    """Return the words of a pasted line as one types them: `--gpus` for one that begins with a typeset dash, without
    typeset quotes, commas at the end and what stands in front of the line. Words of the user's command stay."""
    end = args.index("--") if "--" in args else len(args)
    words = [part for word in args[:end] for part in (word.split() if re.search(r"\s--|\xa0", word) else [word])]
    while words and words[0] in ("$", "ds-advise"):
        del words[0]
    return [*map(_plain_word, words), *args[end:]]


def _plain_word(word: str) -> str:
    word = re.sub(rf"[{_DASHES}]", "-", re.sub(rf"^[-{_DASHES}]*[{_DASHES}][-{_DASHES}]*(?=[a-z]{{2}})", "--", word))
    word = word.strip(_QUOTES).rstrip(",;") or word
    return re.sub(rf"^(--[\w-]+)(?::$|=[{_QUOTES}])", lambda found: found[1] + "=" * ("=" in found[0]), word)


def value_of(option: str, args: Sequence[str]) -> str:
    """Return the value that an option was given; "" if none is."""
    for word, after in zip(args, [*args[1:], "-"], strict=False):
        if word == option:
            return "" if re.match(r"-\D", after) or after == "-" else after
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


def without(options: Container[str], args: Sequence[str], command: click.Command) -> list[str]:
    """Return the words of a command without some options and their values. An option that the command does not have
    takes what follows it, unless that is another option or a model."""
    known = {name: getattr(each, "is_flag", False) for each in command.params for name in each.opts}
    kept, is_value = list[str](), False
    for at, word in enumerate(args):
        name, equals, _ = word.partition("=")
        if word.startswith("-") and name in options:
            value = "" if equals else value_of(name, args[at : at + 2])
            is_value = bool(value) and not known.get(name, is_model(value))
        elif is_value:
            is_value = False
        else:
            kept.append(word)
    return kept


def divided_words(args: Sequence[str]) -> list[str]:
    """Return the words with `--` before the command that trains, if there is one without it. A launcher's numbers of
    nodes and ranks are part of that command."""
    starts = (at for at, word in enumerate(args) if word.endswith(".py") or word in STARTERS)
    at = None if "--" in args else next(starts, None)
    if at is None:
        return [*args]
    own, counts, trains = list[str](), list[str](), list(args[at:])
    launcher: Launcher | None = None
    words = iter(args[:at])
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        option = name.replace("-", "_")
        if word.startswith("--") and option in _LAUNCHERS:
            launcher = _LAUNCHERS[option]
            counts += [f"--{option}", value if equals else next(words, "")]
        else:
            own.append(word)
    call = list(PROGRAMS[launcher]) if launcher else []
    script = trains[len(call) if trains[: len(call)] == call else trains[0].startswith("python") :]
    if launcher and script[:1] and script[0].endswith(".py"):
        trains = [*call, *counts, *script]
    return gpus_in_front([*own, "--", *trains])  # a script of a shell has its own counts


_LAUNCHERS = {name: launcher for launcher, counts in COUNTS.items() for name in (counts.nodes, counts.ranks)}
"""Option with a number of nodes or ranks -> its launcher."""


def gpus_in_front(args: Sequence[str]) -> list[str]:
    """Return the words with the GPUs that are typed behind `--`, where they would be the command's, in front of it."""
    end = args.index("--") if "--" in args else len(args)
    users = list(args[end:])
    gpus = value_of("--gpus", users)
    if not (found := meant_gpus(gpus)):
        return [*args]
    at = next(at for at, word in enumerate(users) if word in ("--gpus", f"--gpus={gpus}"))
    return [*args[:end], "--gpus", found, *users[:at], *users[at + 1 + (users[at] == "--gpus") :]]


def training_behind(words: Sequence[str]) -> list[str]:
    """Return the words of a line that runs the command which stands in the place of a file, as one word or as several;
    [] if they are no command that trains."""
    try:
        users = [part for word in words for part in shlex.split(word)]
    except ValueError:  # a quote without its pair
        return []
    if not users or not is_training(users):
        return []
    found = gpus_in_front(["--", *users])
    return found if found[0] == "--gpus" else ["--gpus", GPUS, *found]


def piped_line(args: Sequence[str]) -> str:
    """Return the line that pipes a command of the shell, `tail -f train.log`, which stands in the place of the log of
    `why`, into it; "" if there is none, or it trains. The options of `why` stay its own."""
    known = named_options(command_named("why"))
    users = [*takewhile(lambda word: word != "--" and word.partition("=")[0] not in known, args[1:])]
    is_command = users[1:] and not users[0].startswith("-") and not Path(users[0]).exists() and which(users[0])
    if not is_command or divided_words(users) != users:
        return ""
    return f"{shlex.join(users)} | {line(['why', '-', *args[1 + len(users) :]])}"


def words_for(command: click.Command, args: Sequence[str], typed: click.Command) -> list[str]:
    """Return the words of a line for `typed` without its name and the options that another command does not have."""
    own = list(args[: args.index("--")] if "--" in args else args)
    own = own[1:] if own[:1] == [typed.name] else own
    known = {name for each in command.params for name in each.opts}
    return without({word.partition("=")[0] for word in own if word.startswith("-")} - known, own, typed)


class NeededFile(NamedTuple):
    """What a command reads, or each of several: a usual name, and what it is."""

    name: str
    kind: str


_NEEDED_FILES: Mapping[str, NeededFile] = {
    "config_files": NeededFile(CONFIG_NAME, "a configuration"),
    "logs": NeededFile("train.log", "a log"),
    "first": NeededFile("zero2", "configurations or strategies"),
    "second": NeededFile("zero3", "configurations or strategies"),
    "file": NeededFile("FILE", "a configuration of another tool"),
}
"""Argument of a command that reads files -> what it reads."""


def needed_files(command: click.Command) -> list[NeededFile]:
    """Return the files, or strategies, that a command needs which also takes `--model`; none for any other command."""
    needed = [_NEEDED_FILES[each.name] for each in command.params if each.name in _NEEDED_FILES]
    return needed if "--model" in named_options(command) else []


def with_file(name: str, words: Sequence[str]) -> str:
    """Return the line of a command that reads files, with usual names in place of those that it lacks if the words have
    a model."""
    command = command_named(name)
    places, usual = [*positional_places(command, words)], [each.name for each in needed_files(command)]
    models = [at for at in places if is_model(words[at])]
    files = [words[at] for at in places if at not in models]
    if not models or len(files) >= len(usual):
        return line([name, *words])
    files += [each for each in usual if each not in files][: len(usual) - len(files)]
    others = [word for at, word in enumerate(words) if at not in places]
    return line([name, *files, *(part for at in models for part in ("--model", words[at])), *others])


def question_for(command: click.Command, args: Sequence[str], typed: click.Command) -> list[str]:
    """Return the model of a line for `typed`, or MODEL, and those of its options that another command takes too."""
    rest = words_for(command, args, typed)
    places = {*positional_places(typed, rest)} & {*positional_places(command, rest)}
    model = next((rest[at] for at in sorted(places) if is_model(rest[at])), value_of("--model", rest) or "MODEL")
    return [model, *without(("--model",), [word for at, word in enumerate(rest) if at not in places], typed)]


def options_of(command: click.Command) -> dict[str, tuple[str, ...]]:
    """Return the long options of a command with their choices."""
    return {name: choices_of(each) for name, each in named_options(command).items()}


def named_options(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by their long names."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    return {name: each for each in options for name in each.opts if name.startswith("--")}


def choices_of(option: click.Option) -> tuple[str, ...]:
    return tuple(map(str, getattr(option.type, "choices", ())))
