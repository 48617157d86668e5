"""The help of the program and of its commands: as wide as the terminal, options in groups, names in colour."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable

import click

from ..question.options import GROUPS, names_in

_FILES = ("destination", "no_write", "script", "emit", "force", "html", "plot", "markdown")
_OUTPUT = (*_FILES, "language", "as_json", "quiet", "debug", "help")


class HelpFormatter(click.HelpFormatter):
    """Text of 40 to 100 columns. A paragraph behind `\\b` consists of commands; a longer one continues after a
    backslash.

    least_column: the least width of the column of names.
    """

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(width=min(max(shutil.get_terminal_size().columns, 40), 100) - 1)
        self.least_column = 0
        self._has_colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def styled(self, text: str, **style: str | bool) -> str:
        """The text in a style. Click removes styles where stdout is not a terminal."""
        return click.style(text, **style) if self._has_colours else text  # type: ignore[arg-type]

    def _named(self, found: re.Match[str]) -> str:
        return self.styled(found[0], fg="cyan", bold=True)

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, prefix)
        self.buffer[-2] = re.sub("^Usage:", lambda found: self.styled(found[0], bold=True), self.buffer[-2])

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':{self.current_indent}}{self.styled(f'{heading}:', bold=True)}\n")

    def write_text(self, text: str) -> None:
        for number, paragraph in enumerate(text.split("\n\n")):
            if number:
                self.write_paragraph()
            if paragraph.startswith("\b\n"):
                lines = paragraph.splitlines()[1:]
                has_room = all(self.current_indent + len(line) <= self.width + 1 for line in lines)
                for place, line in enumerate(lines):
                    if place and not has_room and line[:1].isupper():  # a label, which has its own line
                        self.write_paragraph()
                    self._write_command(line, has_room=has_room)
            else:
                super().write_text(paragraph)

    def _write_command(self, line: str, *, has_room: bool) -> None:
        """Write a command, behind its label if every line of the paragraph has room for both, else below it."""
        label, command = re.fullmatch(r"([A-Z][a-z ]+  +| *)(.*)", line).groups()  # type: ignore[union-attr]
        indent, lines = " " * self.current_indent, [command]
        if not has_room:
            from ..text.lines import continued  # imported here: wide terminals need no terminal library

            if label.strip():
                self.write(f"{indent}{label.rstrip()}\n")
            indent, label = f"{indent}{'  ' * bool(label)}", ""
            room = self.width + 4 - len(indent)
            if ", " not in command:
                lines = [part[3:] for part in continued(command, room)]
            else:  # a list, which no shell reads
                kept = command.replace(" ", _NO_SPACE).replace(f",{_NO_SPACE}", ", ")
                lines = _wrapped(kept, self.width - len(indent), "", "").replace(_NO_SPACE, " ").splitlines()
        for part in lines:
            self.write(f"{indent}{label}{self.styled(part, fg='cyan')}\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 26, col_spacing: int = 2) -> None:
        """Write names and their texts. Names have at most a third of the width; the text of a longer one is below."""
        rows = list(rows)
        longest = max(len(name) for name, _ in rows)
        column = min(max(longest, self.least_column), col_max, self.width // 3) + col_spacing
        indent = " " * self.current_indent
        for name, text in rows:
            lines = _wrapped(name.replace("|", "| "), self.width, indent, f"{indent}    ").replace("| ", "|")
            shown = re.sub(
                r"(?<= )--?\w[\w-]*|(?<=^  )\w[\w-]*$", lambda found: self.styled(found[0], fg="cyan", bold=True), lines
            )
            hang = indent + " " * column
            gap = " " * (column - len(name)) if len(name) <= column - col_spacing else f"\n{hang}"
            wrapped = _wrapped(text, self.width, hang, hang).lstrip()
            wrapped = re.sub(r"\[default: [^]]*\]", lambda found: self._dimmed(found[0]), wrapped)
            self.write(f"{shown}{gap}{wrapped}\n")

    def _dimmed(self, text: str) -> str:
        return "\n".join(
            line[: (start := len(line) - len(line.lstrip()))] + self.styled(line[start:], dim=True)
            for line in text.splitlines()
        )


def _wrapped(text: str, *form: int | str) -> str:
    """The text in lines, without a break at a hyphen."""
    return click.wrap_text(text.replace("-", _NO_BREAK), *form).replace(_NO_BREAK, "-")  # type: ignore[arg-type]


_NO_BREAK, _NO_SPACE = "\N{NON-BREAKING HYPHEN}", "\N{NO-BREAK SPACE}"


_FEW = 4
"""Options that need no groups."""


class HelpContext(click.Context):
    formatter_class = HelpFormatter


class GroupedCommand(click.Command):
    """A command whose help has its options by group: its own, those of `GROUPS` if it has more than a few, and those of
    the output."""

    context_class = HelpContext
    own_title = "Options"
    """The group of the options that no other command shares."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        records = help_records(self, context)
        is_short = len(records.keys() - {*_OUTPUT}) <= _FEW
        shared = {} if is_short else {title: names_in(group) for title, group in GROUPS.items()}
        groups = {"Options": (), **shared, "Output": _OUTPUT}
        grouped = {name for names in groups.values() for name in names}
        groups[self.own_title] += tuple(name for name in records if name not in grouped)
        assert isinstance(formatter, HelpFormatter)
        formatter.least_column = max(len(name) for name, _ in records.values())
        for title, names in groups.items():
            if shown := [records[name] for name in names if name in records]:
                with formatter.section(title):
                    formatter.write_dl(shown)


def help_records(command: click.Command, context: click.Context) -> dict[str, tuple[str, str]]:
    """The options of a command and their help, by parameter name."""
    own = (each for each in command.get_params(context) if isinstance(each, click.Option))
    # Click's name of its help option differs by version.
    shown = (("help" if "--help" in each.opts else each.name or "", each.get_help_record(context)) for each in own)
    return {name: record for name, record in shown if record is not None}
