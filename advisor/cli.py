"""The command line: `ds-advise MODEL --gpus SPEC`, one line for every error, exit codes 0, 1 and 2.

`advise` is the command that runs when none is named, so that the shortest line answers the main question.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from .. import __version__
from ..estimators.errors import DsAdviseError

COMMANDS = {"advise": "advise_command:advise", "dry-run": "dry_run_command:dry_run"}
"""Command name -> module and function, imported when the command is used."""

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
        command: click.Command = getattr(import_module(f".commands.{module}", __package__), function)
        return command

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in COMMANDS and args[0] not in ("--help", "-h", "--version"):
            args = ["advise", *args]
        return super().parse_args(context, args or ["--help"])

    def format_help(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The help of the main command is the help of the program; other commands are listed after it."""
        main_command = self.get_command(context, "advise")
        assert main_command is not None
        with click.Context(main_command, info_name="", parent=context) as inner:
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
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run the command line and return its exit code; only `--debug` lets a traceback through."""
    try:
        code = program.main(args=args, prog_name="ds-advise", standalone_mode=False)
        sys.stdout.flush()
        return int(code or YES)
    except DsAdviseError as error:
        if "--debug" in args:
            raise
        _report(error.what, error.why, error.fix)
    except click.UsageError as error:
        _report(error.format_message().rstrip("."), "", "see ds-advise --help")
    except click.Abort:
        _report("interrupted", "", "")
    except BrokenPipeError:
        # The reader has gone (`| head`): what it asked for was delivered. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return YES
    return UNANSWERED


def _report(what: str, why: str, fix: str) -> None:
    """One line on stderr: what was wrong, why it matters, what to do."""
    reason = f"{what}: {why}" if why else what
    line = f"{reason}; {fix}" if fix else reason
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    click.echo(f"ds-advise: {printable}", err=True)
