"""Click options: those of a question, derived from `advisor.question.options`, and those shared by several commands."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ...ds_configs.job import JOB_KINDS
from ..question.option import Option, parse_count
from ..question.options import OPTIONS, MethodOptions, names_in
from ..question.rollout_options import RolloutOptions
from ..text.output import Output, OutputMode, to_stderr
from .help import GroupedCommand

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Command = Callable[..., int]
Decorator = Callable[[Any], Any]


PATH = click.Path(path_type=Path)


class OutputFile(click.Path):
    """Click type of a file to write; - is stdout. A folder is refused, also one that does not exist: `Path` drops the
    slash at its end, and the file would have the name of the folder. So is a file whose folder does not exist.
    usual_name: that of the file in the message."""

    def __init__(self, usual_name: str) -> None:
        super().__init__(path_type=Path)
        self._usual_name = usual_name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a folder. A default is a Path, and was not typed."""
        if isinstance(value, Path):
            return value
        flag, path = param.opts[-1] if param else "", Path(value)
        in_folder = f"{flag} {path / self._usual_name}"
        if not value:
            raise click.UsageError(f"{flag} is empty; write {in_folder}")
        if os.path.isdir(value) or not path.name:  # noqa: PTH112  a name that is too long is none
            raise click.UsageError(f"{flag} {value} is a folder; write {in_folder}")
        if value.endswith(("/", os.sep)):
            raise click.UsageError(f"{flag} {value}: there is no folder {path}; create it, and write {in_folder}")
        if not os.path.isdir(path.parent):  # noqa: PTH112  before an answer that takes minutes
            raise click.UsageError(
                f"{flag} {value}: there is no folder {path.parent}; write {flag} {path.name}, or create it"
            )
        return super().convert(value, param, ctx)


_MOST_COMPLETIONS = 200


class _Count(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer versions of Click
    """Click type of an integer of at least 1 (`4096`, `4k`), or one of `words`. kilo: the value of `k`. check: raises
    DsAdviseError for a word that is refused with a reason of its own."""

    def __init__(
        self, *, kilo: int = 1000, words: Sequence[str] = (), check: Callable[[Any], None] = lambda _: None
    ) -> None:
        self.name = "|".join(["N", *words])
        self._kilo, self._words, self._check = kilo, words, check

    def get_metavar(self, *_: Any, **__: Any) -> str:
        """The words as one types them; Click writes names of types in capitals."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int) or value in self._words:
            return value
        self._check(value)
        try:
            return parse_count(str(value), kilo=self._kilo)
        except ValueError as error:
            self.fail(f"{', or '.join([error.args[0], *self._words])}", param, ctx)


class Whole(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # as above
    """Click type of an integer from `least` to `most`; None: without a limit. Click's own has another placeholder than
    the other numbers, and prints its range behind the default."""

    name = "N"

    def __init__(self, least: int, most: int | None = None) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse anything else."""
        is_whole = isinstance(value, int) or bool(re.fullmatch(r"-?\d{1,15}", value.strip(), re.ASCII))
        if is_whole and self.least <= int(value) <= (inf if self.most is None else self.most):
            return int(value)
        limits = f"of at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
        self.fail(f"{str(value)[:40]!r} is not a whole number {limits}", param, ctx)
        return None  # never reached: `fail` raises


class _Number(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # as above
    """Click type of a number: `0.05`, `9e3`, and what `parse_count` reads: `30k`, `20,000`."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return float(value)
        except ValueError:
            with suppress(ValueError):
                return float(parse_count(value))
            self.fail(f"{value[:40]!r} is not a number", param, ctx)


COUNT = _Count()
NUMBER = _Number()
POSITIVE = Whole(1)


def _type(option: Option) -> Any:
    if option.kind == "choice":
        return click.Choice(option.choices, case_sensitive=False)
    if option.kind.startswith("count"):
        return _Count(kilo=option.kilo, words=option.choices, check=option.check_former)
    return NUMBER if option.kind == "number" else str


OBJECTIVE = ("objective", "precompute_ref_log_probs")
ROLLOUTS = names_in(RolloutOptions)
LORA = names_in(MethodOptions, without=("method", "quantization", *OBJECTIVE))
TRAINING = (
    *(*OBJECTIVE, "method", *LORA),
    *("seq_len", "gradient_checkpointing", "attention", "loss", "mlp"),
    *("eval_batch", "eval_logits", "eval_samples", "eval_new_tokens"),
)
"""Training options that a configuration does not describe."""


def complete_model(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Catalogue names with this prefix, without their owner unless the prefix includes one; empty for a path."""
    from ...estimators.models import catalogue

    if incomplete.startswith((".", "~", "/")):
        return []
    names = catalogue.names() if "/" in incomplete else [name.rpartition("/")[2] for name in catalogue.names()]
    return _matching_names(names, incomplete)


def complete_gpus(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """GPU kinds after the typed counts: `8xA1` becomes `8xA100-SXM4-80GB`."""
    from ...estimators.gpu_catalogue import gpus

    *counts, kind = incomplete.split("x")
    numbers = next((index for index, count in enumerate(counts) if not count.isdigit()), len(counts))
    typed = "".join(f"{count}x" for count in counts[:numbers])
    names = [gpu.name.replace(" ", "-") for gpu in gpus()]
    found = _matching_names(names if typed else ["auto", *names], "x".join([*counts[numbers:], kind]))
    return [typed + name for name in found]


def complete_host(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from ...estimators.machine_parts import host_names

    return _matching_names(host_names(), incomplete)


def complete_link(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """A link after others: `nvlink,pc` becomes `nvlink,pcie4x8`."""
    others, comma, link = incomplete.rpartition(",")
    slots = [f"pcie{generation}{lanes}" for generation in (3, 4, 5) for lanes in ("", "x8")]
    return [others + comma + name for name in _matching_names(["nvlink", "infinity-fabric", *slots], link)]


def complete_optimizer(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from ...estimators.optimizers import OPTIMIZERS

    return _matching_names([*OPTIMIZERS], incomplete)


def complete_file(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Leave the completion to the shell, which knows the files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


_COMPLETIONS = {
    "gpus": complete_gpus,
    "host": complete_host,
    "link": complete_link,
    "optimizer": complete_optimizer,
    "data": complete_file,
}


def _matching_names(names: Sequence[str], prefix: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.lower().startswith(prefix.lower())][:_MOST_COMPLETIONS]


def question_option(option: Option, *, searches: bool = False, **changes: Any) -> Decorator:
    """The Click option of a declared option.

    searches: whether the command accepts the words of counts ("max", "no-accumulation").
    changes: fields of the declaration that differ for the command.
    """
    if option.kind == "count or word" and not searches:
        text = option.help.partition(f"; {option.choices[0]}:")[0]
        option = option._replace(kind="count", choices=(), former={}, help=f"{text}.")
    option = option._replace(**changes)
    text = f"{option.help}  [default: {option.default_text}]" if option.default_text else option.help
    if option.kind == "switch":
        return click.option(option.flag, is_flag=True, help=text)
    return click.option(
        option.flag,
        type=_type(option),
        default=option.default,
        metavar=option.metavar or None,
        help=text,
        shell_complete=_COMPLETIONS.get(option.name),
    )


def question_options(
    names: Sequence[str],
    *,
    into: str = "question",
    searches: bool = False,
    declared: Mapping[str, Option] = OPTIONS,
    extra: Sequence[Decorator] = (),
    only_passed: bool = False,
    **changes: Mapping[str, Any],
) -> Decorator:
    """Decorator that gives a command the declared options with these names, and passes their values as one dictionary.

    into: the parameter that receives the dictionary.
    declared: the declarations.
    extra: further options for the dictionary.
    only_passed: whether the dictionary has only the options that the user passed. Others come from the record of a
        configuration file (`question.file_question`).
    changes: fields of the declarations that differ for the command, by name.
    """
    own = [question_option(declared[name], searches=searches, **changes.get(name, {})) for name in names]
    options = [*own, *extra]
    # Click derives the parameters' names, so they are read from a command that does nothing.
    bare: Any = _decorated(lambda: 0, options)
    parameters = [parameter.name for parameter in bare.__click_params__]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def grouped(**values: Any) -> int:
            group = {name: values.pop(name) for name in parameters}
            method = group.get("method")
            if method is not None:
                from ..question.effective import warnings_of_method  # imported here: `--help` needs none of it

                passed = passed_options()
                given = (option for name, option in declared.items() if name in group and name in passed)
                for warning in warnings_of_method(given, method):
                    to_stderr(warning)
            model = values.get("model") or group.get("model")
            if isinstance(model, str) and (
                shapes := [name for name in ("input_shape", "input_dtype") if group.get(name)]
            ):
                from ..question.model_source import is_user_module  # imported here: `--help` needs none of it

                for name in shapes:
                    if not is_user_module(model):
                        warn_ignored(name, "without a module of your own, FILE.py:FUNCTION")
            if only_passed:
                passed = passed_options()
                group = {name: value for name, value in group.items() if name in passed}
            return command(**{into: group}, **values)

        return _decorated(grouped, options)

    return decorate


def warn_ignored(name: str, where: str) -> None:
    """Warn on stderr that an option has no effect, if the user passed it."""
    if name in passed_options():
        to_stderr(f"--{name.replace('_', '-')} has no effect {where}")


def passed_options() -> set[str]:
    """The parameters of the current command that the user passed."""
    context = click.get_current_context()
    return {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def model_option(text: str) -> Decorator:
    return click.option("--model", metavar="MODEL", shell_complete=complete_model, help=text)


class CommandWithItsWords(GroupedCommand):
    """A command that keeps what was typed, for `typed_command`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        context.obj = tuple(args)
        return super().parse_args(context, args)


def typed_command(*further: str, first: Sequence[str] = (), without: Sequence[str] = ()) -> str:
    """The present command as it was typed, without some words, each where it is last, and with others in front and
    behind."""
    context = click.get_current_context()
    typed = list(context.obj)
    for word in without:
        del typed[len(typed) - 1 - typed[::-1].index(word)]
    return shlex.join(["ds-advise", context.info_name or "", *first, *typed, *further])


class CommandWithUsersCommand(GroupedCommand):
    """A command that may be followed by `--` and a command of the user, which `users_command` returns."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = tuple(args)
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_USERS_COMMAND] = tuple(args[end + 1 :])
        return super().parse_args(ctx, args[:end])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND]"]


_USERS_COMMAND = f"{__name__}.users_command"


def users_command() -> tuple[str, ...]:
    """The words behind `--`."""
    words: tuple[str, ...] = click.get_current_context().meta[_USERS_COMMAND]
    return words


MODEL_ARGUMENT = click.argument("model", metavar="MODEL", shell_complete=complete_model)

DEBUG = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
"""The option --debug. `main.run` reads its value from the arguments."""

LANG = click.option("--lang", "language", type=click.Choice(["en", "zh"]), help="Language.  [default: from the locale]")

FORCE = click.option("--force", is_flag=True, help="Overwrite existing files.")

ACCUMULATION = click.option(
    "--accumulation",
    type=COUNT,
    help="Value for an `auto` gradient_accumulation_steps.  [default: the recommended value]",
)

FALLBACK = click.option("--fallback", is_flag=True, help="When memory runs out, continue with the next plan that fits.")

STALL = click.option(
    "--stall",
    "stall_s",
    type=POSITIVE,
    metavar="SECONDS",
    help="End after this time without a step or a line of output.  [default: only warn]",
)


def _job_kinds(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    kinds = tuple(kind.strip() for value in values for kind in value.split(","))
    for kind in kinds:
        if kind not in JOB_KINDS:
            raise click.BadParameter(f"{kind[:40]!r} is not one of {', '.join(map(repr, JOB_KINDS))}.")
    return kinds


EMIT = click.option(
    "--emit",
    multiple=True,
    callback=_job_kinds,
    metavar="KIND,...",
    help=f"Also write job files: {', '.join(JOB_KINDS)}.",
)


def report_options(picture: str = "", *, own_force: bool = False) -> Decorator:
    """Decorator that gives a command --html, --plot and --force, and checks their files before the command runs.

    picture: the content of --plot; "" for no --plot.
    own_force: whether the command itself has --force.
    """
    options = [
        click.option("--html", type=OutputFile("report.html"), metavar="FILE", help="Write a report as one HTML file.")
    ]
    if picture:
        options.append(
            click.option(
                "--plot", type=OutputFile("plot.svg"), metavar="FILE.svg|png", help=f"Write a plot of {picture}."
            )
        )
    if not own_force:
        options.append(FORCE)

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def checked(**values: Any) -> int:
            force = values["force"] if own_force else values.pop("force")
            if values["html"] or values.get("plot"):
                from ..html_report.report import check_targets

                check_targets(values["html"], values.get("plot"), force=force)
            return command(**values)

        return _decorated(checked, options)

    return decorate


def output_options(command: Command) -> Command:
    """Decorator that gives a command --json, --quiet and --debug, and passes their `Output` as `output`."""

    @functools.wraps(command)
    def run_with_output(as_json: bool, quiet: bool, **values: Any) -> int:
        if as_json and quiet:
            raise click.UsageError("--json and --quiet contradict each other; leave one out")
        mode: OutputMode = "json" if as_json else "quiet" if quiet else "human"
        return command(output=Output(mode), **values)

    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    quiet = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
    return _decorated(run_with_output, [as_json, quiet, DEBUG])


def _decorated(command: Command, options: Sequence[Decorator]) -> Command:
    for decorate in reversed(options):
        command = decorate(command)
    return command
