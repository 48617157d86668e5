"""MODEL in front and `--model MODEL` are the same in every command that takes a model."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path

import click

from .commands import COMMANDS


def with_model(command: click.Command, args: Sequence[str]) -> list[str]:
    """The arguments of a command with the model where the command declares it.

    A command with an argument MODEL takes it from `--model`, unless it has MODEL as well. A command with the option
    `--model` takes it from the one argument that is a model: a folder with a config.json, or a name of the catalogue.
    Raises UsageError for two models.
    """
    end = args.index("--") if "--" in args else len(args)
    users = list(args[end:])
    own = [part for word in args[:end] for part in (word.split("=", 1) if word.startswith("--model=") else [word])]
    places = list(positional_places(command, own))
    if any(each.name == "model" and isinstance(each, click.Argument) for each in command.params):
        place = own.index("--model") if "--model" in own else None
        others = [own[each] for each in places if place is None or each != place + 1]
        if place is not None and not others:
            own[: place + 2] = [*own[place + 1 : place + 2], *own[:place]]
        elif place is not None and (not _has_option(command) or _is_only_model(others[0])):
            if others[0] in COMMANDS:
                rest = [word for word in args if word != others[0]]
                raise click.UsageError(
                    f"a command is the first word; write {shlex.join(['ds-advise', others[0], *rest])}"
                )
            model = " ".join(own[place : place + 2])
            raise click.UsageError(f"two models: {others[0]} and {model}; leave one out")
        elif place is None and len(others) > 1 and _has_option(command) and not is_model(others[0]):
            # A key or a file, and its model.
            own = _as_option(own, [each for each in places if is_model(own[each])])
    elif _has_option(command) and "--model" not in own:
        own = _as_option(own, [place for place in places if is_model(own[place])])
    return own + users


def option_without_value(command: click.Command, args: Sequence[str]) -> str:
    """Return the first option that needs a value and is followed by another option of the command, which Click would
    take for the value: `--output` of `--output --offline`; "" if there is none."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    names = {name for each in options for name in (*each.opts, *each.secondary_opts)}
    valued = {name for each in options if not each.is_flag for name in each.opts}
    own = takewhile(lambda word: word != "--", args)
    return next((word for word, after in pairwise(own) if word in valued and after.partition("=")[0] in names), "")


def words_behind_settings(command: click.Command, args: Sequence[str]) -> list[str]:
    """Return the words NAME=VALUE that go on with the value of an option of such words without a comma: `b=2` of
    `--set a=1 b=2`."""
    lists = {name for each in command.params if "=VALUE" in str(each.metavar) for name in each.opts}
    at = next((at for at, word in enumerate(args[:-2]) if word in lists), None)
    return [] if at is None else [*takewhile(re.compile(r"\w[\w.]*=").match, args[at + 2 :])]


def _is_only_model(word: str) -> bool:
    """Whether a word is a model, also a hub id that is not in the catalogue, and no file."""
    is_id = re.fullmatch(r"[\w.-]+/[\w.-]+", word) is not None
    return is_model(word) or (is_id and not Path(word).suffix and not Path(word).exists())


def _as_option(args: list[str], models: Sequence[int]) -> list[str]:
    """Return the arguments with the only model behind --model."""
    if len(models) != 1:
        return args
    (place,) = models
    return [*args[:place], *args[place + 1 :], "--model", args[place]]


def _has_option(command: click.Command) -> bool:
    return any("--model" in each.opts for each in command.params)


def positional_places(command: click.Command, args: Sequence[str]) -> Iterator[int]:
    """Places of the words that are no options and no values of options."""
    options = [each for each in command.params if isinstance(each, click.Option) and not each.is_flag]
    valued = {name for each in options for name in each.opts}
    for place, word in enumerate(args):
        is_value = place > 0 and args[place - 1] in valued
        if not is_value and (word == "-" or not word.startswith("-")):
            yield place


def is_model(word: str) -> bool:
    try:
        path = Path(word).expanduser()
        if path.exists():
            return (path / "config.json").is_file()
    except (OSError, RuntimeError, ValueError):  # too long, the home of an unknown user, a null byte
        return False
    # Imported here: most words are files or strategies of a command that needs no model.
    from ...estimators.errors import UnknownModelError
    from ...estimators.models import catalogue

    try:
        catalogue.find(word)
    except UnknownModelError:
        return False
    return True
