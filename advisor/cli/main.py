"""The command line: `ds-advise MODEL --gpus SPEC`, one line for every error, exit codes 0, 1, 2 and 130.

`advise` is the default command, so that the shortest line answers the main question.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ... import __version__
from ...estimators.errors import DsAdviseError
from ...probes.command_line import set_command_line
from ...probes.gc_pause import gc_paused
from ..text.output import discard, error_to_stderr, ignore_closed_pipe
from .commands import COMMANDS, GROUPS, command_named, command_of, named_command
from .help import HelpContext, HelpFormatter, write_common
from .model_argument import is_model, option_without_value, with_model, words_behind_settings
from .options import complete_model

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PREDICTING = ("advise", "explain", "rent", "compare", "check", "lint", "from")
"""Commands whose process ends with their prediction. They make about a hundred thousand objects and no reference
cycles."""

_LONGEST_TEXT = 300
"""Maximum number of characters of an error message, which may quote the arguments."""

YES, NO, UNANSWERED, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: the answer is yes; the answer is no (nothing fits); there is no answer; Ctrl-C, as in a shell."""


class AdviseByDefault(click.Group):
    """A group of lazily imported commands. Arguments without a command name are passed to `advise`."""

    context_class = HelpContext

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        # `main` pauses the collector; commands that train or serve run long and need it.
        if name not in PREDICTING:
            gc.enable()
        return command_named(name)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completions: commands, and models for `advise`."""
        from click.shell_completion import CompletionItem

        found = super().shell_complete(context, incomplete)
        if not incomplete.startswith("-"):
            found += [CompletionItem(name) for name in complete_model(context, context.command.params[0], incomplete)]
        return found

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["--help-all"]:
            args = [named_command(args[1:]) or "advise", "--help-all"]
        elif args[:1] in (["--help"], ["-h"]) and (name := named_command(args[1:])):
            args = [name, "--help"]
        elif args[:1] == ["help"] and not Path("help").exists():
            args = [*(name for name in args[1:2] if name in COMMANDS), "--help"]
        elif args and args[0] not in COMMANDS and args[0] not in ("--help", "-h", "--version"):
            if args[0] in _WORDS or args[0].isidentifier() or args[1:]:
                from .mistakes import other_tools_command  # imported here: an answer does not need it

                if advice := other_tools_command(args):
                    raise click.UsageError(f"no command or model {args[0][:40]!r}; {advice}")
            if meant := _misspelled_command(context, args):
                line = shlex.join(["ds-advise", meant, *args[1:]])
                raise click.UsageError(f"no command or model {args[0][:40]!r}; write {line}")
            if args[0] in _WORDS:
                raise click.UsageError(f"no command or model {args[0]!r}; write ds-advise {_WORDS[args[0]]}")
            if {"--help", "-h"} & {*args[1:]} and args[0].isidentifier() and not is_model(args[0]):
                raise click.UsageError(f"no command or model {args[0][:40]!r}; write ds-advise --help")
            args = ["advise", *args]
        elif args[1:] == ["help"] and not Path("help").exists():
            raise click.UsageError(f"the help of {args[0]} is an option; write ds-advise {args[0]} --help")
        return super().parse_args(context, args or ["--help"])

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(context, args)
        if command is None:
            return name, command, rest
        if lacking := option_without_value(command, rest):
            raise click.BadOptionUsage(lacking, f"option {lacking!r} requires an argument")
        if settings := words_behind_settings(command, rest):
            # Words of PART would take them.
            raise click.UsageError(f"got unexpected extra argument{'s'[: len(settings) > 1]} ({' '.join(settings)})")
        return name, command, with_model(command, rest)

    def format_help(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what `advise` does with its examples, all commands, and the options that most questions need."""
        assert isinstance(formatter, HelpFormatter)
        main_command = self.get_command(context, "advise")
        assert main_command is not None
        # Without the program's context the usage is that of "ds-advise", not of "ds-advise advise".
        with HelpContext(main_command, info_name=context.info_name, show_default=True) as inner:
            main_command.format_usage(inner, formatter)
            formatter.write_usage(inner.command_path, "SUBCOMMAND [OPTIONS] ...", prefix="       ")
        formatter.write_paragraph()
        claim, _, examples, *_ = inspect.cleandoc(main_command.help or "").split("\n\n")
        with formatter.indentation():
            formatter.write_text(f"{claim}\n\n{examples}\n{_OTHER_EXAMPLES}")
        formatter.least_column = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])
        write_common(formatter, main_command, inner)
        formatter.write_paragraph()
        formatter.write_text(
            "\b\n"
            "Objectives    --objective dpo, kto, reward, grpo, ppo, embedding, ...\n"
            "Files         --no-write, --force, --script FILE.py, --emit KIND\n"
            "To share it   --html FILE, --plot FILE.svg, --markdown, --json, --lang\n"
            "All options   ds-advise --help-all, ds-advise SUBCOMMAND --help-all\n"
            'Completion    eval "$(_DS_ADVISE_COMPLETE=bash_source ds-advise)"'
        )


_OTHER_EXAMPLES = """\
With a log     ds-advise why train.log
With a file    ds-advise lint ds_config.json"""
"""Examples of other commands than `advise`."""


def _misspelled_command(context: click.Context, args: Sequence[str]) -> str | None:
    """The command that the first word is close to, if it is no model or file: no path, no name with a suffix, and no
    beginning of a name of the catalogue unless a second word follows, which only commands take."""
    from ..question.gpu_text import meant_gpus  # imported here: most first words are commands or models

    word = args[0].lower()
    close = get_close_matches(word, COMMANDS, n=1, cutoff=_SIMILAR)
    if not close or "." in word or Path(args[0]).exists():
        return None
    follows = args[1:] and not args[1].startswith("-") and not meant_gpus(args[1])
    begins_model = not follows and complete_model(context, context.command.params[0], args[0])
    return None if begins_model else close[0]


_SIMILAR = 0.66
"""Share of equal characters from which a word is taken for a misspelled command: two of the three of `why`."""

_WORDS = {"help": "--help", "version": "--version"}
"""Words that other programs take as commands -> the option."""

_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "show_default": True,
}


@click.group(cls=AdviseByDefault, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="ds-advise")
def program() -> None:
    """Predict which DeepSpeed configurations fit and how fast they run; recommend the fastest."""


def main() -> None:
    """Run the command line of this process, print an error, and exit."""
    # A stream that the caller closed (`>&-`) is None in Python, and the next opened file would take its descriptor.
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  open until the process ends
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    with gc_paused():
        code = run(sys.argv[1:])
        gc.freeze()  # saves the last search for cycles, which takes up to 50 ms
    sys.exit(code)


def run(args: list[str]) -> int:
    """Run the command line and return its exit code. Only `--debug` shows a traceback."""
    set_command_line(args)
    try:
        try:
            code = program.main(args=args, prog_name="ds-advise", standalone_mode=False)
            with ignore_closed_pipe(sys.stdout):
                pass  # what was printed is still in its buffer
            return int(code or YES)
        except Exception as error:
            if "--debug" in takewhile(lambda word: word != "--", args):  # later words are the script's
                import traceback  # imported here: it takes milliseconds that an answer does not need

                print(getattr(error, "details", ""), file=sys.stderr)  # of a process: its output and traceback
                traceback.print_exc()
            raise
    except DsAdviseError as error:
        from .mistaken_files import other_reader  # imported here: an answer does not need it

        what, fix = other_reader(error, args) or (error.what, _pasted_line(args) or error.fix)
        why = error.why if what == error.what else ""
        fix = "" if fix.removeprefix("write ") in args else fix  # such as the other side of a comparison
        if raised := getattr(error, "script_traceback", ""):
            from ..render.script_error import fix_of, print_script_error  # as above

            if sys.stderr.isatty():
                print_script_error(raised)
                why = ""
            else:
                fix = fix or fix_of(raised)
        _report(what, why, fix)
        if what == error.what and hasattr(error, "place_in_text"):
            _show_place(error)
        return error.exit_code
    except click.UsageError as error:
        what, why, fix = _usage_error(error, args)
        plain = _pasted_line(args)
        _report(*((what.partition("; ")[0], "", plain) if plain else (what, why, fix)))
    except (click.Abort, KeyboardInterrupt):
        _report("interrupted")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader closed the pipe (`| head`), which Click and rich turn into a SystemExit.
        discard(sys.stdout)
        return YES
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:  # an error of stdout, which has no file name
            discard(sys.stdout)
            _report("the answer cannot be written", error.strerror or str(error))
            return UNANSWERED
        module = ((isinstance(error, ModuleNotFoundError) and error.name) or "ds_advise").partition(".")[0]
        if module != "ds_advise":
            extra = _extra_with(module)
            package = f'"ds-advise[{extra}]"' if extra else _PACKAGES.get(module, module)
            size = " (about 3 GB with CUDA, unless torch is there)" if extra == "engine" else ""
            _report(f"this needs {module}", "it is not installed", f"pip install {package}{size}")
            return UNANSWERED
        if isinstance(error, MemoryError) or "failed to map segment" in str(error):
            import resource  # not everywhere

            limit, _ = resource.getrlimit(resource.RLIMIT_AS)
            limited = "" if limit == resource.RLIM_INFINITY else f", which ulimit -v limits to {limit / 2**30:.1f} GiB"
            why = f"Python and its libraries did not get the address space that they need{limited}"
            _report("the memory of this process ran out", why, "ulimit -v unlimited, or free memory")
            return UNANSWERED
        fault = f"this is an error of ds-advise itself ({type(error).__name__}: {error})"
        _report(fault, fix="run it again with --debug and report the output")
    return UNANSWERED


def _pasted_line(args: Sequence[str]) -> str:
    """What to type in place of a pasted line; "" for a typed one."""
    from .typed_line import line, piped_line, plain_words, training_behind  # imported here: an answer does not need it

    plain = plain_words(args)
    if args[:1] == ["from"] and (divided := training_behind(plain[1:])):
        return f"write {line(divided)}"
    if args[:1] == ["why"] and (piped := piped_line(args)):
        return f"write {piped}"
    return "" if plain == [*args] else f"write {line(plain)}"


def _usage_error(error: click.UsageError, args: Sequence[str]) -> tuple[str, str, str]:
    """What is wrong, why, and what to type, or where it is listed."""
    from . import mistaken_files, mistaken_words, mistakes  # imported here: an answer does not need it

    command = command_of(args)
    message, fix = error.format_message().rstrip("."), ""
    match error:
        case click.NoSuchOption():
            option = mistakes.typed_option(error.option_name, args)
            message = f"no such option {option}"
            if not (fix := mistaken_words.divided_command(args, command)):
                fix = mistakes.instead_of(option, args, command)
            if not fix and (owners := mistakes.owners_of(option)):
                shown = ", ".join(owners if len(owners) < 5 else [*owners[:3], "..."])
                return message, f"it is one of ds-advise {shown}", mistakes.of_others(option, owners, args, command)
        case _ if message.lower().startswith("missing ") and (found := mistaken_files.models_instead(args)):
            message, fix = found
        case _ if message.lower().startswith("missing ") or message.endswith("is missing"):
            fix = f"for example: {example}" if (example := mistakes.example_of(command)) else ""
        case click.BadOptionUsage():
            if " requires an argument" in message:
                message = f"{error.option_name} needs its value"
            fix = mistakes.no_option_value(error.option_name, command)
        case click.BadParameter():
            fix = mistakes.near_choice(error, args, command)
            if " is not one of " in message and fix.startswith("write") and " or " in fix:  # it has the choices
                message = message.partition(" is not one of ")[0] + " is not possible"
        case _ if lacking := re.search(r"\bneeds? (--[\w-]+)", message):
            fix = mistakes.with_lacking(lacking[1], args, command)
        case _ if extra := re.search(r"unexpected extra arguments? \((.+)\)", message):
            fix = mistaken_words.instead_of_word(extra[1].split(), args, command)
        case _ if message.startswith("no command; write --"):
            has_file = any(word.endswith(".json") for word in args)
            words = [word for word in args if word != "--" and (has_file or not is_model(word))]
            fix = mistaken_words.divided_command(args, command) or f"write ds-advise {shlex.join(words)} -- train.py"
            message = "no command that trains"
    message = message[:1].lower() + message[1:]
    if fix.endswith("?"):
        return f"{message}; {fix}", "", _help_hint(args)
    hint = _help_hint(args, "--help" if message.startswith("missing ") else "--help-all")
    is_exact = fix.startswith(("write", "leave")) or re.search("; (?:write|leave) ", message)
    return message, "", fix if is_exact else "; ".join(filter(None, (fix, hint)))


def _help_hint(args: Sequence[str], option: str = "--help-all") -> str:
    """The command that shows the help of the command: all of its options, or with --help its usage first."""
    return f"see ds-advise {' '.join(filter(None, (named_command(args), option)))}"


_PACKAGES = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py"}
"""Packages whose modules have other names."""


def _extra_with(module: str) -> str | None:
    """The extra of the installed package that provides a module; None if no extra does."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        declared = [Requirement(each) for each in requires("ds-advise") or ()]
    except PackageNotFoundError:  # a checkout that is not installed
        return None
    extras = (str(each.marker) for each in declared if each.marker and each.name == module)
    return next((extra.partition("extra == ")[2].strip("\"'") for extra in extras), None)


def _show_place(error: DsAdviseError) -> None:
    """Print the place of an error in a file on a terminal; elsewhere an error is one line."""
    if not sys.stderr.isatty():
        return
    # Imported here: only an error needs them.
    from ..document.terminal import print_blocks
    from ..render.lint import error_excerpt
    from ..text.output import Output

    with ignore_closed_pipe(sys.stderr, OSError):
        print_blocks(error_excerpt(error), Output("human").console(on_stderr=True))


def _report(what: str, why: str = "", fix: str = "") -> None:
    line = what if len(what) <= _LONGEST_TEXT else what[:_LONGEST_TEXT] + "..."
    with contextlib.suppress(OSError):  # stderr is full
        error_to_stderr(line, why, fix)
