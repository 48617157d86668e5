"""Commands about configuration files: `check`, `compare` and `from`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...estimators.errors import ConfigFileError, DsAdviseError
from ...estimators.json_form import SCHEMA_VERSION
from ..question.options import IMPORT_OPTIONS
from ..text.output import Output
from .help import GroupedCommand
from .options import (
    ACCUMULATION,
    FORCE,
    NUMBER,
    PATH,
    ROLLOUTS,
    TRAINING,
    CommandWithItsWords,
    Decorator,
    OutputFile,
    complete_file,
    model_option,
    output_options,
    question_options,
    report_options,
    typed_command,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...probes.run import Run
    from ..answer.comparison import ComparisonContext
    from ..answer.dry_run_answer import DryRunAnswer
    from ..answer.requirements import CheckResult
    from ..document.blocks import Document, Style

IMPORT_FORMATS = (
    "accelerate",
    "axolotl",
    "llama-factory",
    "ms-swift",
    "trl",
    "training-arguments",
)
"""The formats of `advisor.importers`, in the order in which they are tried."""


_file_question = partial(
    question_options,
    only_passed=True,
    gpus={"default": None, "default_text": "auto"},
    micro_batch={"help": "Value for an `auto` micro batch.", "default_text": "the recommended value"},
    precision={"help": "Value for `auto`."},
    optimizer={"help": "Optimizer of a file without one."},
    gradient_checkpointing={
        "choices": ("on", "off", "offload"),
        "default": None,
        "default_text": "on, or the recommended value if the micro batch is",
    },
    framework={"default": None, "default_text": 'hf for a file with an "auto"'},
)
"""The options of a question about files. Those that are not passed come from the record of a file."""

_FILE = (
    *("gpus", "device", "ranks", "ram", "nvme", "interconnect"),
    *(*TRAINING, "micro_batch", "precision", "optimizer"),
    *("framework", "software", "offline"),
)


def file_options(*, extra: Sequence[Decorator] = (), default_gpus: str = "auto") -> Decorator:
    """The options of a question about a file, for `lint` and `why`."""
    return _file_question(_FILE, extra=extra, gpus={"default": None, "default_text": default_gpus})


_JOB = ("data", "samples", "tokens", "epochs", "packing", "eval_split", "price")


_compared = _file_question(
    (*_FILE, *ROLLOUTS, *_JOB),
    extra=[model_option("Model, to also predict memory and speed."), ACCUMULATION],
    precision={"help": "Value for `auto`, and precision of strategies."},
    optimizer={"help": "Optimizer of strategies, and of files without one."},
)
"""The options of the files and strategies that are compared."""


@click.command(cls=GroupedCommand)
@click.argument("config_files", metavar="DS_CONFIG...", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--max-memory", metavar="SIZE", help="Maximum memory per GPU, such as 30GiB; GB counts as GiB.")
@click.option("--max-ram", metavar="SIZE", help="Maximum host RAM per node, such as 200GiB; GB counts as GiB.")
@click.option("--min-tokens-per-second", type=NUMBER, metavar="N", help="Minimum predicted speed of all GPUs.")
@click.option("--max-duration", metavar="TIME", help="Maximum duration of the job: 24h, 90m or 3d.")
@click.option("--max-cost", metavar="AMOUNT", help="Maximum cost of the job, by --price, such as 500 or 1.5k.")
@_compared
@output_options
def check(config_files: tuple[str, ...], question: dict[str, Any], output: Output, **limits: Any) -> int:
    """Check DeepSpeed configurations against requirements, one line each.

    Lint must find no errors. With --model the plan must also fit the GPUs and keep the limits. A file that cannot be
    read does not stop the others. A file of a training tool, as of `from`, is checked with its own model, batch and
    sequence.

    \b
    ds-advise check ds_config.json
    ds-advise check axolotl.yaml --gpus 8xA100-80GB
    ds-advise check ds_config.json --model Qwen2.5-7B --gpus 8xA100-80GB --min-tokens-per-second 20000
    ds-advise check ds_config.json --model Qwen2.5-7B --gpus 8xA100-80GB --tokens 1B --max-duration 24h
    ds-advise check ds_config.json --model Qwen2.5-7B --gpus 8xA100-80GB --tokens 1B --price 2.49/h --max-cost 500

    Exit code: 0 if all are met, 1 if one is not, 2 if a file cannot be read or the question cannot be answered.
    """
    from ..advise import files_context
    from ..answer.lint_file import UnreadFigures
    from ..answer.requirements import CheckResult, Requirement, check_file, parse_limits
    from ..command.tool_check import check_tool_file, is_tool_file, read_tool_file
    from ..importers.answer import ImportAnswer
    from ..question.file_question import FileQuestion, read_file_question
    from ..question.job import check_job, has_amount, parse_price
    from ..render.deliver import show_document
    from ..text.units import listed

    files, unread = dict[str, FileQuestion | ImportAnswer](), dict[str, DsAdviseError]()
    for name in config_files:
        try:
            if is_tool_file(Path(name)):
                files[name] = read_tool_file(Path(name), question)
            else:
                of_deepspeed = read_file_question(Path(name), question, as_meant=True)
                files[of_deepspeed.name] = of_deepspeed
        except DsAdviseError as error:
            if len(config_files) == 1:
                raise
            unread[name] = error
    if not files:
        raise next(iter(unread.values()))
    found: list[Requirement] = []
    without_model: list[str] = []
    for name, file in files.items():  # each by its own record: another file's question is not its own
        asked = file.asked if isinstance(file, FileQuestion) else question
        model = file.model if isinstance(file, FileQuestion) else file.run.model
        try:
            check_job(asked)
            if model is None and (has_amount(question) or any(value is not None for value in limits.values())):
                says = "records" if isinstance(file, FileQuestion) else "names"
                raise click.UsageError(f"limits of memory, speed, time and cost need --model; {name} {says} none")
            if (limits["max_duration"] or limits["max_cost"]) and not has_amount(asked):
                raise click.UsageError("--max-duration and --max-cost need --data, --samples or --tokens")
            if limits["max_cost"] and asked.get("price") is None:
                raise click.UsageError("--max-cost needs --price")
            currency = parse_price(asked["price"]).currency if limits["max_cost"] else ""
            parsed = parse_limits(**limits, currency=currency)
            if isinstance(file, ImportAnswer):
                for remark in file.run.remarks:
                    output.say(f"{name}: {remark}")
                found += check_tool_file(file, question, parsed)
            else:
                context = with_dry_runs(files_context([file], question, say=output.say), output)
                found += check_file(file, context, parsed)
        except DsAdviseError as error:
            if len(files) == 1:
                raise
            unread[name] = error
        without_model += [name] * (model is None)
    if not found:  # the question has no answer for any file
        raise next(iter(unread.values()))
    result = CheckResult(
        schema_version=SCHEMA_VERSION,
        met=all(each.met for each in found) and not unread,
        requirements=tuple(found),
        unread=tuple(UnreadFigures(file=name, problem=error.reason) for name, error in unread.items()),
    )
    sizes = [size for size in (limits["max_memory"], limits["max_ram"]) if size]
    notes = ["A GB of --max-memory and --max-ram is a GiB."] * any("i" not in size.lower() for size in sizes)
    if without_model:
        of = f" of {listed(without_model)}" if len(without_model) < len(files) else ""
        further = "--model also checks" if question.get("gpus") else "--model and --gpus also check"
        notes.append(f"Only lint was checked{of}; {further} memory and speed.")
    show_document(lambda: _check_document(result, notes), output)
    return max((int(not result.met), *(error.exit_code for error in unread.values())))


def with_dry_runs(context: ComparisonContext | None, output: Output) -> ComparisonContext | None:
    """The context, in which files with keys that are not predicted are dry run if torch is installed."""

    def ran(make: Callable[[], Run]) -> DryRunAnswer | None:
        from ..verification.dry_run import compared_dry_run  # imported here: few files have such keys

        try:
            with output.progress("dry run") as on_progress:
                return compared_dry_run(make(), on_progress=on_progress)
        except DsAdviseError as error:
            output.say(str(error))
            return None

    return context if context is None or find_spec("torch") is None else replace(context, dry_run=ran)


_LOOKS: Mapping[bool | None, tuple[str, Style]] = {
    True: ("ok    ", "good"),
    False: ("FAIL  ", "bad"),
    None: ("skip  ", "dim"),
}
"""The first word of a line, and its style, by whether the requirement is met."""

_WARNING: tuple[str, Style] = ("warn  ", "unsure")
"""The same of a requirement that is met if the host's RAM allows, and of a warning of lint."""


def _check_document(result: CheckResult, notes: Sequence[str]) -> Document:
    """Return, below each file, one line per requirement and per error and warning of lint, because logs of a pipeline
    are searched by line; then their number, and the notes."""
    from ..document import blocks as doc
    from ..text.units import counted_noun, printable

    lines, counts = list[doc.Line](), dict.fromkeys(_LOOKS, 0)
    for file, found in groupby(result.requirements, key=attrgetter("file")):
        lines.append(doc.Line(printable(file), "bold"))
        for each in found:
            mark, style = _WARNING if each.is_conditional else _LOOKS[each.met]
            counts[each.met] += 1
            for line in each.detail.splitlines():
                lines.append(doc.Line(f"{each.name}: {line}", "dim" if each.met is None else "", mark, style))
            lines += [doc.Line(f"{each.name}: {warning}", "", *_WARNING) for warning in each.warnings]
    total = f"{counted_noun(len(result.requirements), 'requirement')}: {counts[True]} met"
    if conditional := sum(each.is_conditional for each in result.requirements):
        total += f" ({conditional} if the host's RAM allows)"
    total += f", {counts[False]} failed"
    total += f", {counts[None]} skipped" * bool(counts[None])
    if result.unread:
        problems = [
            each.problem if each.file in each.problem else f"{each.file}: {each.problem}" for each in result.unread
        ]
        lines += [doc.Line(printable(problem), "", *_LOOKS[False]) for problem in problems]
        total += f"; {counted_noun(len(result.unread), 'file')} not read"
    total += "."
    blocks: list[doc.Block] = [*lines, doc.Line(total, "bold"), *(doc.Line(note, "dim") for note in notes)]
    return doc.Document(subject="Requirements", verdict="", tone=None, blocks=blocks, data=result)


@click.command(cls=GroupedCommand)
@click.argument("first", metavar="A", shell_complete=complete_file)
@click.argument("second", metavar="B", shell_complete=complete_file)
@_compared
@report_options("the memory of both configurations")
@output_options
def compare(
    first: str, second: str, question: dict[str, Any], html: Path | None, plot: Path | None, output: Output
) -> int:
    """Compare two configurations: ds_config.json files, or strategies such as zero2-offload.

    Missing keys have DeepSpeed's defaults, and with --model `auto` is filled, so that only real differences are shown.

    \b
    ds-advise compare old.json new.json
    ds-advise compare old.json zero3 --model Qwen2.5-14B --gpus 4xA100-80GB --ram 512GB
    ds-advise compare zero2-offload zero3 --model Qwen2.5-7B --gpus 2x48GB --micro-batch 4

    Exit code: 0, or 2 if a configuration cannot be read or, with --model, cannot run.
    """
    from ..advise import files_context
    from ..answer.comparison import compare as compare_sides
    from ..answer.comparison import is_strategy
    from ..question.file_question import FileQuestion, read_file_question
    from ..question.job import check_job, has_amount
    from ..render.comparison import comparison_document
    from ..render.deliver import show_document
    from .mistaken_files import refuse_unknown_side

    for name in (first, second):
        refuse_unknown_side(name)
    sides = [name if is_strategy(name) else read_file_question(Path(name), question) for name in (first, second)]
    files = [side for side in sides if isinstance(side, FileQuestion)]
    check_job({name: value for each in (question, *(file.asked for file in files)) for name, value in each.items()})
    context = with_dry_runs(files_context(files, question, say=output.say), output)
    if context is None:
        for option, is_given in (
            ("the duration of a job", has_amount(question)),
            ("--gpus", "gpus" in question),
            ("--plot", plot is not None),
        ):
            if is_given:
                raise click.UsageError(f"{option} needs --model")
    comparison = compare_sides(sides[0], sides[1], context)
    show_document(lambda: comparison_document(comparison), output, html=html, plot=plot)
    return 0


_UNSET = {"default": None, "default_text": "from the file"}


@click.command(name="from", cls=CommandWithItsWords)
@click.argument("file", metavar="FILE", type=PATH)
@question_options(
    IMPORT_OPTIONS,
    extra=[
        click.option("--format", type=click.Choice(IMPORT_FORMATS), help="Format of FILE.  [default: detected]"),
        model_option("Model.  [default: from the file]"),
        click.option(
            "--ds-config", type=PATH, metavar="FILE", help="DeepSpeed configuration, instead of the one in FILE."
        ),
    ],
    gpus={"default": None, "default_text": "auto; counts from the file"},
    method=_UNSET,
    lora_rank=_UNSET,
    seq_len=_UNSET,
    loss=_UNSET,
    micro_batch=_UNSET,
    gradient_checkpointing={**_UNSET, "choices": ("on", "off", "offload")},
)
@click.option(
    "-o",
    "--output",
    "destination",
    type=OutputFile("better.yaml"),
    metavar="FILE",
    help="Write the changed configuration, and the DeepSpeed configuration next to it.  [default: show the changes]",
)
@FORCE
@click.option("--no-write", is_flag=True, help="Write nothing, as without -o.")
@click.option("--no-run", is_flag=True, help="Only read FILE, also if its tool is installed.")
@output_options
def from_file(
    file: Path,
    question: dict[str, Any],
    destination: Path | None,
    force: bool,
    no_write: bool,
    no_run: bool,
    output: Output,
) -> int:
    """Check a configuration of another training tool, and write a better one in its format.

    Where the tool is installed, it trains with FILE on a simulated GPU, as it is and changed; else FILE is only read.

    FILE is a configuration of accelerate, axolotl, LLaMA-Factory, ms-swift or TRL, or TrainingArguments as JSON.

    \b
    ds-advise from qwen3_lora_sft.yaml --gpus 4xA100-80GB
    ds-advise from accelerate.yaml --model Qwen2.5-7B --gpus 80GB -o better.yaml

    Exit code: 0 if it fits and is accepted, 1 if it does not fit or is refused, 2 if there is no answer.
    """
    from ..command.tool_file import run_by_tool
    from ..importers.answer import import_file
    from ..importers.rewrite import write_files
    from ..render.deliver import show_document
    from ..render.imported_file import import_document

    if no_write and destination is not None:
        raise click.UsageError("--output and --no-write contradict each other; leave one out")
    answer, failure = import_file(file, destination=destination, **question), None
    with output.progress("dry run") as on_progress:
        result = run_by_tool(
            answer,
            question,
            destination=destination,
            not_run="--no-run is given" * no_run,
            say=output.say,
            on_progress=on_progress,
            on_task=on_progress.begin,
        )
    answer = result.answer
    if destination is not None and answer.files:
        try:
            answer = replace(answer, written=write_files(answer.files, force=force))
        except ConfigFileError as error:
            failure = error
    elif destination is not None and answer.unwritable is None and answer.obstacle is None:
        output.say(f"{destination} is not written: there is no change to write")
    further = ("-o", f"better{file.suffix}") if destination is None else ("--force",)
    writes = typed_command(*further, without=["--no-write"] * no_write)
    show_document(lambda: import_document(replace(result, answer=answer), command=writes), output)
    problem = failure or answer.obstacle or (answer.unwritable if destination is not None else None)
    if problem is not None and problem is answer.obstacle and output.shares_screen:
        return problem.exit_code  # the answer says why there are no figures
    if problem is not None:
        raise problem
    return 0 if answer.is_fine else 1
