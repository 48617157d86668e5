"""The command `lint`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ...estimators.errors import ConfigFileError
from ..text.output import Output, ignore_closed_pipe
from .config_files import file_options
from .help import GroupedCommand
from .options import ACCUMULATION, complete_file, model_option, output_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...validate.lint import Rule
    from ..answer.lint_file import Correction, LintAnswer, UnreadFile
    from ..render.lint_formats import LintFormat

LINT_FORMATS = ("text", "concise", "github", "sarif")


def _codes(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """The codes of the rules that a list of codes and of their beginnings names."""
    found = list[str]()
    for word in (part.strip() for part in (text or "").split(",") if part.strip()):
        named = _named_rules(word)
        if not named:
            raise click.BadParameter(f"there is no rule {word.upper()[:20]!r}; --list shows them", context, option)
        found += [rule.code for rule in named]
    return (*found,)


def _named_rules(word: str) -> list[Rule]:
    """The rules whose codes begin with a word."""
    from ...validate.lint import RULES  # imported here: it is slow

    return [rule for rule in RULES if rule.code.startswith(word.upper())]


@click.command(cls=GroupedCommand)
@click.argument("config_files", metavar="DS_CONFIG...", nargs=-1, shell_complete=complete_file)
@file_options(
    extra=[model_option("Model, to also check memory and speed."), ACCUMULATION],
    default_gpus="none",
)
@click.option("--fix", is_flag=True, help="Correct everything that does not change the training; keep DS_CONFIG.bak.")
@click.option("--diff", is_flag=True, help="Show what --fix would correct; write nothing.")
@click.option(
    "--output-format", "form", type=click.Choice(LINT_FORMATS), help="Format of the findings.  [default: text]"
)
@click.option("--ignore", "ignored", metavar="CODES", callback=_codes, help="Rules to leave out: DS203,DS9.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option("--list", "listed", is_flag=True, help="List the rules.")
@click.option("--explain", "explained", metavar="CODE", help="Explain a rule, such as DS101, or list those of DS1.")
@output_options
def lint(
    config_files: tuple[str, ...],
    question: dict[str, Any],
    fix: bool,
    diff: bool,
    listed: bool,
    explained: str | None,
    form: LintFormat | Literal["text"] | None,
    ignored: tuple[str, ...],
    strict: bool,
    output: Output,
) -> int:
    """Check DeepSpeed configuration files.

    \b
    ds-advise lint ds_config.json
    ds-advise lint configs/*.json
    ds-advise lint ds_config.json --model Qwen2.5-14B --gpus 8xA100-80GB
    ds-advise lint ds_config.json --fix
    ds-advise lint configs/*.json --output-format github --strict --ignore DS203
    python make_config.py | ds-advise lint -

    Exit code: 0 without errors, 1 with errors (with --strict also with warnings; for --diff also if it would correct
    something), 2 if a file cannot be read.
    """
    if listed or explained:
        return _show_rules(explained, output)
    if not config_files:
        raise click.UsageError("missing argument 'DS_CONFIG'")
    from ..answer.lint_file import LintAnswer, lint_file, lint_files
    from ..render.deliver import show_document
    from ..render.lint import lint_document, lint_files_document

    form = None if form == "text" else form
    if form is not None and (diff or output.mode == "json"):
        raise click.UsageError(f"{'--diff' if diff else '--json'} has a format of its own; leave --output-format out")
    correction: Correction = "diff" if diff else "fix" if fix else "none"
    options: dict[str, Any] = {
        "correction": correction,
        "ignored": ignored,
        "is_strict": strict,
        "say": output.say,
        **question,
    }
    if len(config_files) == 1 and form is None:
        answer = lint_file(Path(config_files[0]), **options)
        show_document(lambda: lint_document(answer), output)
        return answer.exit_code
    answers = [_with_other_reader(each) for each in lint_files([*map(Path, config_files)], **options)]
    if form is None:
        show_document(lambda: lint_files_document(answers), output)
    else:
        _print_as(form, answers, output)
    return max(each.exit_code if isinstance(each, LintAnswer) else each.error.exit_code for each in answers)


def _print_as(form: LintFormat, answers: Sequence[LintAnswer | UnreadFile], output: Output) -> None:
    from ..render.lint_formats import format_findings
    from ..text.lines import encodable

    if output.mode == "human":
        with ignore_closed_pipe(sys.stdout):
            print(encodable(format_findings(answers, form), output.console()), end="")


def _with_other_reader(answer: LintAnswer | UnreadFile) -> LintAnswer | UnreadFile:
    """The answer; for a file of another tool with the command that reads it."""
    from ..answer.lint_file import UnreadFile
    from .mistaken_files import other_reader

    found = other_reader(answer.error, ["lint", str(answer.path)]) if isinstance(answer, UnreadFile) else None
    return answer if found is None else UnreadFile(path=answer.path, error=ConfigFileError(found[0], fix=found[1]))


def _show_rules(code: str | None, output: Output) -> int:
    from ...validate.lint import RULES
    from ..document.terminal import print_blocks
    from ..render.lint import rule_blocks, rule_list

    if code is None:
        print_blocks(rule_list(RULES), output.console())
        return 0
    named = _named_rules(code)
    if not named:
        from ..answer.explained_key import is_key

        if is_key(code):
            raise click.UsageError(f"{code} is a key, not a rule; write ds-advise explain {code}")
        raise click.UsageError(f"there is no rule {code[:20]!r}; --list shows them")
    print_blocks(rule_blocks(*named) if len(named) == 1 else rule_list(named), output.console())
    return 0
