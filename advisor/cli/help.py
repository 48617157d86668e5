"""The help of the program and of its commands: as wide as the terminal, options in groups, names in colour."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping

import click

from ..question.options import GROUPS, names_in

_FILES = ("destination", "no_write", "script", "emit", "force", "html", "plot", "markdown")
_OUTPUT = (*_FILES, "language", "as_json", "quiet", "debug", "help", "help_all")

COMMON = {
    "Machine": ("gpus", "ram", "nvme"),
    "Training": ("method", "seq_len", "global_batch", "micro_batch", "precision", "optimizer", "data"),
    "Answer": ("details", "verify", "probe", "destination"),
}
"""The options of `advise` that most questions need, by their title in the help of the program. The help of a command
has them too; those of a training only where the command chooses the batch: elsewhere a configuration has them."""

_RARE = frozenset(
    {
        *("all_candidates", "sharding", "no_deepspeed_estimate", "budget", "script", "markdown", "language"),
        *("no_write", "quiet", "debug", "stall_s", "timeout_s", "no_check", "no_probe", "verbose", "node_rank"),
        *("format", "system", "max_steps", "save_steps", "report_to", "seed", "rank", "lora_alpha"),
        "expandable_segments",
    }
)
"""Options of a command itself and of the output that only its whole help has, unless its examples have them."""


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


def _has_few(records: Mapping[str, object]) -> bool:
    """Whether a command has so few options that its help has all of them, in no groups."""
    return len(records.keys() - {*_OUTPUT}) <= 4


class HelpContext(click.Context):
    formatter_class = HelpFormatter


_ALL = f"{__name__}.all"
"""Key of a context whose help has all options."""


def _show_all(context: click.Context, _option: click.Parameter, is_passed: bool) -> None:
    if is_passed and not context.resilient_parsing:  # the shell completes behind it
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options and exit.",
)
"""The option of every command that shows all of its options."""


class GroupedCommand(click.Command):
    """A command whose help has its options by group: its own, those of `GROUPS` if it has more than a few, and those of
    the output."""

    context_class = HelpContext
    own_title = "Options"
    """The group of the options that no other command shares."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), _HELP_ALL]

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: those that most questions need, or with --help-all all of them."""
        assert isinstance(formatter, HelpFormatter)
        records = help_records(self, context)
        groups = self._groups(records)
        has_few = _has_few(records)
        if has_few and _ALL not in context.meta:
            groups["Output"].remove("help_all")
        if has_few or _ALL in context.meta:
            write_options(formatter, {title: [records[name] for name in names] for title, names in groups.items()})
            return
        short = self._short_groups(records, groups)
        shown = {name for names in short.values() for name in names}
        name, text = records["help_all"]
        if others := [title for title, names in groups.items() if names and shown.isdisjoint(names)]:
            records["help_all"] = (name, f"{text[:-1]}: also {', '.join(others)}.")
        rows = {title: [_usual(records, name) for name in names] for title, names in short.items()}
        write_options(formatter, rows, column=_SHORT_COLUMN)

    def _groups(self, records: Mapping[str, object]) -> dict[str, list[str]]:
        """The names of all options by the title of their group."""
        groups = {"Options": (), **({} if _has_few(records) else _SHARED), "Output": _OUTPUT}
        grouped = {name for names in groups.values() for name in names}
        groups[self.own_title] += tuple(name for name in records if name not in grouped)
        return {title: [name for name in names if name in records] for title, names in groups.items()}

    def _short_groups(
        self, records: Mapping[str, tuple[str, str]], all_groups: Mapping[str, Iterable[str]]
    ) -> dict[str, list[str]]:
        """The names of the options in the short help by title: the command's own, those of its examples, and those that
        most questions need."""
        _, _, examples = (self.help or "").partition("\b\n")
        flags = {*re.findall(r" (--[\w-]+)", examples.partition("\n\n")[0])}
        titles = [*COMMON] if "global_batch" in records else ["Machine"]
        needed = {name for title in titles for name in COMMON[title]}
        needed |= {name for name, (text, _) in records.items() if flags & {*text.split()}}
        groups: dict[str, list[str]] = {"Options": [], "Machine": [], "Training": [], self.own_title: [], "Output": []}
        for name in (name for names in all_groups.values() for name in names):
            is_own = name not in _IS_SHARED
            if name in needed or (is_own and name not in _RARE):
                own = "Output" if name in _OUTPUT else self.own_title
                groups[own if is_own else "Machine" if name in _SHARED["Machine"] else "Training"].append(name)
        return groups


_SHARED = {title: names_in(group) for title, group in GROUPS.items()}
_SHARED["Training"] += ("accumulation",)
_IS_SHARED = frozenset(name for names in _SHARED.values() for name in names)


def write_common(formatter: HelpFormatter, command: click.Command, context: click.Context) -> None:
    """Write the options of `COMMON`, by title."""
    records = help_records(command, context)
    rows = {f"{title} options": [_usual(records, name) for name in names] for title, names in COMMON.items()}
    write_options(formatter, rows, column=_SHORT_COLUMN)


def _usual(records: Mapping[str, tuple[str, str]], name: str) -> tuple[str, str]:
    """The option and its help; of the defaults of a shared one only the usual, without those of special trainings."""
    option, text = records[name]
    is_shared = name in _IS_SHARED or name in _OUTPUT
    return option, re.sub(r"(\[default: [^;]*);.*", r"\1]", text) if is_shared else text


def write_options(formatter: HelpFormatter, rows: Mapping[str, list[tuple[str, str]]], *, column: int = 0) -> None:
    """Write options and their help by title. column: the width of the options; 0 for that of the longest."""
    names = [name for group in rows.values() for name, _ in group]
    formatter.least_column = column or max(map(len, names))
    for title, group in rows.items():
        if group:
            with formatter.section(title):
                formatter.write_dl(group, **{"col_max": column} if column else {})


_SHORT_COLUMN = 20
"""Width of the options in a short help."""


def help_records(command: click.Command, context: click.Context) -> dict[str, tuple[str, str]]:
    """The options of a command and their help, by parameter name."""
    own = (each for each in command.get_params(context) if isinstance(each, click.Option))
    # Click's name of its help option differs by version.
    shown = (("help" if "--help" in each.opts else each.name or "", each.get_help_record(context)) for each in own)
    return {name: record for name, record in shown if record is not None}
