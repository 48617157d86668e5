"""The command line: `ds-advise MODEL --gpus SPEC`, one line for every error, exit codes 0, 1 and 2.

`advise` is the command that runs when none is named, so that the shortest line answers the main question.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ... import __version__
from ...estimators.errors import DsAdviseError
from ..gc_pause import collector_paused
from .completion import complete_model

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "advise": "advise:advise",
    "explain": "explain:explain",
    "dry-run": "dry_run:dry_run",
    "probe": "probe:probe",
    "launch": "launch:launch",
    "train": "train:train",
    "doctor": "doctor:doctor",
    "lint": "lint:lint",
    "compare": "compare:compare",
    "check": "check:check",
    "rent": "rent:rent",
    "bench": "bench:bench",
    "history": "history:history",
    "schema": "schema:schema",
    "page": "page:page",
    "from": "from_file:read_from",
}
"""Command name -> module of this folder and function. A module is imported when its command is used."""

_LONGEST_TEXT = 300
"""Characters of a problem, which may quote what was typed."""

YES, NO, UNANSWERED = 0, 1, 2
"""Exit codes: the answer is yes; the answer is no (nothing fits); it could not be answered."""


class AdviseByDefault(click.Group):
    """A group of lazily imported commands, in which anything but a command's name is a question to `advise`."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        target = COMMANDS.get(name)
        if target is None:
            return None
        module, function = target.split(":")
        with collector_paused():
            command: click.Command = getattr(import_module(f".{module}", __package__), function)
        return command

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, and the models of the question that needs no command."""
        from click.shell_completion import CompletionItem

        found = super().shell_complete(context, incomplete)
        if not incomplete.startswith("-"):
            found += [CompletionItem(name) for name in complete_model(context, context.command.params[0], incomplete)]
        return found

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in COMMANDS and args[0] not in ("--help", "-h", "--version"):
            args = ["advise", *args]
        return super().parse_args(context, args or ["--help"])

    def format_help(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The help of the main command is the help of the program; other commands are listed after it."""
        main_command = self.get_command(context, "advise")
        assert main_command is not None
        # Named after the program, not "ds-advise advise", and without the program's own context before it.
        with click.Context(main_command, info_name=context.info_name) as inner:
            main_command.format_help(inner, formatter)
        others = [name for name in COMMANDS if name != "advise"]
        if others:
            with formatter.section("Other commands"):
                formatter.write_dl([(name, self._summary(context, name)) for name in others])

    def _summary(self, context: click.Context, name: str) -> str:
        command = self.get_command(context, name)
        assert command is not None
        return command.get_short_help_str()


@click.group(cls=AdviseByDefault, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ds-advise")
def program() -> None:
    """Which DeepSpeed configuration fits, how fast it runs, and the fastest that fits."""


def main() -> None:
    """Entry point of `ds-advise` and `python -m ds_advise`: run, print an error as one line, exit."""
    # Python has None for a stream that the caller closed (`>&-`), and the next file opened would take its number.
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  open until the process ends
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    code = run(sys.argv[1:])
    gc.freeze()  # or Python looks for cycles in all that was imported before it ends, for up to 50 ms
    sys.exit(code)


def run(args: list[str]) -> int:
    """Run the command line and return its exit code; only `--debug` lets a traceback through."""
    try:
        try:
            code = program.main(args=args, prog_name="ds-advise", standalone_mode=False)
            sys.stdout.flush()
            return int(code or YES)
        except Exception:
            if "--debug" in args:
                traceback.print_exc()
            raise
    except DsAdviseError as error:
        _report(error.what, error.why, error.fix)
    except click.NoSuchOption as error:
        near = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
        command = error.ctx.command if error.ctx is not None else None
        if "--" not in args and any(
            parameter.type is click.UNPROCESSED for parameter in getattr(command, "params", ())
        ):
            near += "; write -- before the script and its arguments"
        _report(f"no such option {error.option_name}{near}", "", "see ds-advise --help")
    except click.UsageError as error:
        message = error.format_message().rstrip(".")
        _report(message[:1].lower() + message[1:], "", "see ds-advise --help")
    except click.Abort:
        _report("interrupted", "", "")
    except (BrokenPipeError, SystemExit):
        # The reader has gone (`| head`), which Click and rich make a SystemExit: what it asked for was delivered.
        _discard_output()
        return YES
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:  # not of a file by name: of stdout
            _discard_output()
            _report("the answer cannot be written", error.strerror or str(error), "")
            return UNANSWERED
        _report(
            f"this is an error of ds-advise itself ({type(error).__name__}: {error})",
            "",
            "run it again with --debug and report what it shows",
        )
    return UNANSWERED


def _discard_output() -> None:
    """Send what stdout still holds nowhere; Python would try to write it once more at exit, and complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(what: str, why: str, fix: str) -> None:
    """One line on stderr: what was wrong, why it matters, what to do."""
    what = what if len(what) <= _LONGEST_TEXT else what[:_LONGEST_TEXT] + "..."
    reason = f"{what}: {why}" if why else what
    line = f"{reason}; {fix}" if fix else reason
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    with contextlib.suppress(OSError):  # nobody can be told that stderr is full
        click.echo(f"ds-advise: {printable}", err=True)
