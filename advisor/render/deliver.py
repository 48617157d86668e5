"""Output of an answer: the printed text, JSON or Markdown, the configuration file, and the exit code; and of another
command's document."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...ds_configs.files import CONFIG_NAME, check_write, config_text, differs, numbered, write_text
from ...ds_configs.job import JobKind
from ...estimators.errors import DsAdviseError
from ..answer.recommendation import Recommendation, try_first_path
from ..answer.start import written_config
from ..text.language import SAMPLES, Language, can_encode, language_of_environment
from ..text.lines import encodable
from ..text.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..answer.advice import Advice
    from ..document.blocks import Document

Destination = Path | Literal["-"] | None
"""Destination of the configuration: a file, stdout, or none."""

_FURTHER = "trying changes and DeepSpeed's own estimate"
"""What details take seconds for."""


def deliver(
    answer: Recommendation,
    destination: Destination,
    output: Output,
    *,
    force: bool,
    numbered: bool = False,
    all_candidates: bool,
    details: bool = False,
    markdown: bool = False,
    emit: tuple[JobKind, ...] = (),
    script: Path | None = None,
    html: Path | None = None,
    plot: Path | None = None,
    language: Language = "en",
) -> int:
    """Write the recommended configuration, show the answer, and return the exit code. JSON and files are English.

    numbered: write to ds_config-2.json, ds_config-3.json and so on if `destination` is another configuration.
    emit: job files to write next to the configuration. script: path of the training script.
    html, plot: paths of the report and of its chart.

    Raises ConfigFileError as `check_write` does, after the answer is shown: a file that cannot be written leaves the
    others unwritten, too, if that is known before. The commands of the answer then name a free file: the other
    configuration is not theirs.
    """
    files, failure, named = list[tuple[Path, str]](), None, destination
    if isinstance(destination, Path):
        if numbered and not force:
            answer, destination = _free(answer, destination)
        answer, files = _files(answer, destination, emit, script)
        named = destination
        try:
            for file, text in files:
                check_write(text, file, force=force)
        except DsAdviseError as error:
            failure, files = error, []
            own = dict(_configs(answer, destination)).get(destination)
            if not force and own is not None and _is_other(own, destination):
                answer, named = _free(answer, destination)
    path = str(named) if isinstance(named, Path) else CONFIG_NAME
    if html is not None or plot is not None:
        _write_report(answer, path, output, html=html, plot=plot, language=language)
    try:
        for file, text in files:
            write_text(text, file, force=force)
            answer = replace(answer, files=(*answer.files, str(file)))
    except DsAdviseError as error:
        failure = error
    if failure is not None:
        written = tuple(job for job in answer.job_files if str(job.path) in answer.files)
        answer = replace(answer, script=None, job_files=written)
    if destination == "-" and answer.recommended is not None:
        print(config_text(written_config(answer, answer.recommended)), end="")

    def form() -> Advice:
        from ..answer.advice import build_advice  # imported here: only JSON needs it

        return build_advice(answer, all_candidates=all_candidates)

    def render(console: Console) -> None:
        # Imported here: JSON needs no sentences and no terminal library.
        from ..document.terminal import print_document
        from ..document.translation import translated
        from .answer import answer_document

        with output.waiting(_FURTHER) if details or markdown else nullcontext():
            document = answer_document(
                answer,
                path,
                details=details or markdown,
                all_candidates=all_candidates,
                is_written=isinstance(destination, Path) and failure is None,
                columns=console.width,
            )
        document = translated(document, language if can_encode(console, SAMPLES[language]) else "en")
        if markdown:
            from ..document.markdown import markdown_text  # imported here: few answers are Markdown

            print(encodable(markdown_text(document), console), end="")
        else:
            print_document(document, console)

    if destination == "-" and output.mode == "human":
        render(output.console(on_stderr=True))
    else:
        output.show(form, render)
    if failure is not None:
        raise failure
    if answer.recommended is None:
        kinds = ",".join(kind for kind in emit if kind != "accelerate" or not answer.job_files)
        for option in filter(None, (f"--emit {kinds}" if kinds else "", f"--script {script}" if script else "")):
            output.say(f"{option} writes nothing: no DeepSpeed plan fits")
    return 0 if answer.fits else 1


def printed_text(document: Document) -> str:
    """Return the document as `ds-advise` prints it on this terminal, in the user's language, without colours."""
    from rich.console import Console  # imported here: JSON needs no terminal library

    from ..document.terminal import print_document
    from ..document.translation import translated

    console = Console(width=Output("human").console().width, highlight=False, color_system=None, force_jupyter=False)
    language = language_of_environment()
    with console.capture() as printed:
        print_document(translated(document, language if can_encode(console, SAMPLES[language]) else "en"), console)
    return printed.get().rstrip("\n")


def _write_report(
    answer: Recommendation, path: str, output: Output, *, html: Path | None, plot: Path | None, language: Language
) -> None:
    # Imported here: few answers have a report.
    from ..document.translation import translated
    from ..html_report.report import write_report
    from .answer import answer_document
    from .answer_charts import answer_picture

    with output.waiting(_FURTHER):
        document = answer_document(answer, path, details=True, charts=html is not None)
        if plot is not None:
            document = replace(document, picture=answer_picture(answer, plot.stem))
    write_report(translated(document, language), html, output.say, plot=plot)


def _configs(answer: Recommendation, destination: Path) -> list[tuple[Path, str]]:
    """Return the paths and texts of the configurations: of the recommended plan, and of the one to try first."""
    plans = ((answer.recommended, destination), (answer.try_first, try_first_path(destination)))
    return [(path, config_text(written_config(answer, plan))) for plan, path in plans if plan is not None]


def _is_other(text: str, file: Path) -> bool:
    """Whether a file has other content; False if it cannot be read, since `check_write` then has the error."""
    with suppress(DsAdviseError):
        return differs(text, file)
    return False


def _free(answer: Recommendation, destination: Path) -> tuple[Recommendation, Path]:
    """Return the answer and the first path, `destination` or a numbered one, that has no other configuration."""
    paths = numbered(destination)
    path = next(path for path in paths if not any(_is_other(text, file) for file, text in _configs(answer, path)))
    return replace(answer, kept_config="" if path == destination else str(destination)), path


def _files(
    answer: Recommendation, destination: Path, emit: tuple[JobKind, ...], script: Path | None
) -> tuple[Recommendation, list[tuple[Path, str]]]:
    """Return the answer with its script and job files, and the paths and texts of all files."""
    files = _configs(answer, destination)
    if script is not None and answer.recommended is not None:
        from ..answer.default_script import script_files  # imported here: few answers write one

        more, own = script_files(answer, script, str(destination))
        answer = replace(answer, script=own)
        files += more
    if emit:
        from ..answer.jobs import build_jobs  # imported here: few answers write them

        answer = replace(answer, job_files=build_jobs(answer, emit, str(destination)))
        files += [(job.path, job.text) for job in answer.job_files]
    return answer, files


def show_document(
    make: Callable[[], Document], output: Output, *, html: Path | None = None, plot: Path | None = None
) -> None:
    """Write the report and its chart if they have a path, and print the document, or its data as JSON. The document is
    made once, when one of them needs it."""
    made = cache(make)
    if html is not None or plot is not None:
        from ..html_report.report import write_report  # imported here: few answers have one

        write_report(made(), html, output.say, plot=plot)

    def render(console: Console) -> None:
        from ..document.terminal import print_document  # imported here: JSON needs no terminal library

        print_document(made(), console)

    output.show(lambda: made().form(), render)
