"""What to type in place of words that a command does not take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from ..question.gpu_text import meant_gpus, near_gpus
from ..question.other_names import plan_of_stage
from .commands import COMMANDS, command_named
from .mistaken_files import with_gpus
from .mistakes import accepts, config_file, instead_of, needed_method
from .model_argument import is_model, positional_places
from .options import CommandWithUsersCommand
from .typed_line import divided_words, line, named_options, question_for, value_of, with_file, words_for


def divided_command(args: Sequence[str], command: click.Command) -> str:
    """Return the line with `--` before the command that trains; "" if there is no such command, or `--` before it."""
    divided = divided_words(args)
    if len(divided) == len(args) or not isinstance(command, CommandWithUsersCommand):
        return ""
    return f"write {line(divided)}"


def instead_of_word(words: Sequence[str], args: Sequence[str], command: click.Command) -> str:
    """Return what to type in place of words that a command does not take."""

    known, gpus, word = named_options(command), value_of("--gpus", args), words[0]
    own = list(args[1:] if args[:1] == [command.name] else args)
    typed = [own[place] for place in positional_places(command, own)]
    before = args[args.index(word) - 1] if word in args[1:] else ""
    if divided := divided_command(args, command):
        return divided
    if not any(isinstance(each, click.Argument) for each in command.params):  # of this machine, not of a training
        trains = divided_words(own)
        if "--" in trains:
            return f"write {line(['launch', '--dry', *trains[trains.index('--') :]])}, which checks a training"
        if Path(word).suffix == ".json":
            return f"write {line(['lint', word])}, which checks a configuration"
    if command.name == "compare" and len(typed) > 2 and all(Path(each).suffix == ".json" for each in typed):
        return f"write {line(['check', *args[1:]])}, which takes more than two"
    if word.lower() in ("yes", "true", "on", "1", "no", "false") and before in known and known[before].is_flag:
        return f"write {before} without {word}"
    if own == args and (named := next((each for each in typed if each in COMMANDS), "")):  # behind its options
        rest = words_for(command_named(named), args, command)
        return f"write {with_file(named, [each for each in rest if each != named])}"
    if joined := _joined(words, args, command):
        return joined
    if f"-{before}" in known:  # `-output FILE`, of which Click makes `-o utput`
        return f"write -{before} {word}"
    if dashless := [each for each in words if _is_without_dashes(each, words, known)]:
        return f"write {line([f'--{each}' if each in dashless else each for each in args])}"
    # `--gpus H100 80GB`, `--gpus 2 x A100`
    goes_on = (not gpus or before in (gpus, f"--gpus={gpus}")) and not re.match(r"\d+x", word)
    whole = re.sub(r" [xX*] ?", "x", " ".join((gpus, *words))) if goes_on else ""
    if len(words) > 1 and {*map(str.lower, words)} & _LINKING and (options := _as_options(words, args, command)):
        return f"write {line([*(each for each in args if each not in words), *options])}"
    if "--gpus" in known and (found := meant_gpus(whole) or meant_gpus(word) or ", ".join(near_gpus(word))):
        return f"write --gpus {found}"
    if linking := [each for each in typed if each.lower() in _LINKING and each not in words]:
        return f"write {line([each for each in args if each not in linking])}"
    models = [each for each in typed if is_model(each)]
    file = config_file(own, command)
    if file and own == args and len(models) == 1:
        return f"write {line(['explain', file, '--model', *question_for(command_named('explain'), args, command)])}"
    first = next(iter(typed), word)
    if first != word and is_model(word) and (plan := plan_of_stage(first)):
        asked = question_for(command_named("explain"), args, command)
        return f"write {line(['explain', *asked, '--strategy', plan])}"
    if is_model(whole := "-".join((first, *words))):  # `qwen 2.5 14b`
        return f"write {whole}"
    if len(models) > 1:
        return f"write one model: {' or '.join(models)}"
    if not is_model(word):
        return _named_option(word, args, command)
    if "--model" in known:
        return f"write --model {word}"
    if (found := meant_gpus(first)) and not gpus:
        return f"write {with_gpus(first, found)}"
    return f"write {line([each for each in args if each != first])}"


_LINKING = {"vs", "vs.", "versus", "and", "with", "on", "for", "using", "in", "at"}
"""Words between those of a sentence."""


def _as_options(words: Sequence[str], args: Sequence[str], command: click.Command) -> list[str]:
    """Return the options that the words of a sentence mean, `--method lora --gpus 8xH100` for `with lora on 8xH100`;
    none if one of the words means none."""
    found = list[str]()
    for word in words:
        if word.lower() in _LINKING:
            continue
        gpus = meant_gpus(word) if "--gpus" not in (*args, *found) else ""
        named = f"write --gpus {gpus}" if gpus else _named_option(word, args, command)
        if not named.startswith("write --") or named.split()[1] in args:
            return []
        found += named.split()[1:]
    return found


def _named_option(word: str, args: Sequence[str], command: click.Command) -> str:
    """Return what to write for the name or a choice of an option without dashes, `lora` or `bf16`; "" for any other
    word."""
    named = instead_of(f"--{word}", args, command) if re.fullmatch(r"[A-Za-z][\w-]*", word) else ""
    return named if named.startswith("leave") or _is_whole(named, named_options(command)) else ""


_BETWEEN: Mapping[str | None, str] = {
    **dict.fromkeys(("NAMES", "PARTS", "HOST", "LINK", "NAME[=VALUE],...", "NAME=VALUE,...", "KIND,..."), ","),
    "PATH:SIZE": ":",
    **dict.fromkeys(("SIZE", "RATE", "TIME", "N", None), ""),
}
"""Placeholder of an option, None for a count -> what joins the words of its value."""

_UNIT = re.compile(r"[kmgtpb]i?(?:b|bit)?(?:/s|ps)?|[smhd]|cores", re.IGNORECASE)
_UNIT_WORDS = {
    **dict.fromkeys(("hour", "hours", "hrs"), "h"),
    **dict.fromkeys(("min", "mins", "minutes"), "m"),
    **dict.fromkeys(("day", "days"), "d"),
    "thousand": "k",
    "million": "M",
    "billion": "B",
    "trillion": "T",
}


def _joined(words: Sequence[str], args: Sequence[str], command: click.Command) -> str:
    """Return the option whose value goes on in the next words, with all in one word: `--lora-targets q_proj,v_proj`; ""
    if the words are behind no such option. A word that is no unit behind a number is left out."""
    at = next((at for at in range(2, len(args)) if [*args[at : at + len(words)]] == [*words]), 0)
    option = named_options(command).get(args[at - 2]) if at else None
    if option is None or option.is_flag or args[at - 2] == "--gpus":
        return ""
    value, mark = args[at - 1].rstrip(","), _BETWEEN.get(option.metavar)
    ends = [_UNIT_WORDS.get(word.lower(), word.strip(",")) for word in words]
    if re.fullmatch(r"[\d.,]+", value):
        if len(words) > 1 or (not words[0].isalpha() and not _UNIT.fullmatch(ends[0])):
            return ""
        if mark is None or not _UNIT.fullmatch(ends[0]):
            needs_unit = option.metavar in ("SIZE", "RATE", "TIME", "HOST")
            is_sentence = words[0].isalpha() and accepts(option, value) and not needs_unit
            return f"leave {words[0]} out" if is_sentence else ""
        whole = value + ends[0]
    elif not mark:
        return ""
    else:
        whole = mark.join((value, *filter(None, ends)))
    return f"write {args[at - 2]} {whole}{needed_method(args[at - 2], args, named_options(command))}"


def _is_whole(advice: str, known: Mapping[str, click.Option]) -> bool:
    """Return whether an advice is to write an option with its value, if it takes one."""
    words = advice.split()
    option = known.get(words[1]) if words[:1] == ["write"] and len(words) > 1 else None
    return option is not None and (option.is_flag or (len(words) > 2 and words[2] != option.metavar))


def _is_without_dashes(word: str, words: Sequence[str], known: Mapping[str, click.Option]) -> bool:
    """Return whether a word is an option without its dashes: `seq-len=4k`, `gpus 8xH100`."""
    name, equals, value = word.partition("=")
    option = known.get(f"--{name}")
    after = value if equals else next(iter(words[words.index(word) + 1 :]), "")
    if option is None or option.is_flag or not (equals or re.search(r"\d", after)):
        return False
    return bool(after) and accepts(option, after)
