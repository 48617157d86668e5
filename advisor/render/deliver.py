"""Output of an answer: the printed text, JSON or Markdown, the configuration file, and the exit code; and of another
command's document."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...ds_configs.files import config_text, write_config, write_text
from ...ds_configs.job import JobKind
from ...estimators.errors import DsAdviseError
from ..answer.recommendation import Recommendation, try_first_path
from ..answer.start import plan_config, recommended_config
from ..text.language import Language, in_language
from ..text.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..answer.advice import Advice
    from ..answer.view import AnswerView
    from ..document.blocks import Document

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&@])")

_ALIGNMENT = ("---", "---", "---:", "---:", "---:", "---")

Destination = Path | Literal["-"] | None
"""Destination of the configuration: a file, stdout, or none."""


def deliver(
    answer: Recommendation,
    destination: Destination,
    output: Output,
    *,
    force: bool,
    all_candidates: bool,
    details: bool = False,
    markdown: bool = False,
    emit: tuple[JobKind, ...] = (),
    language: Language = "en",
) -> int:
    """Write the recommended configuration, show the answer, and return the exit code. JSON, Markdown and files are
    English.

    emit: job files to write next to the configuration.

    If a file cannot be written, the answer is shown before the error is raised.
    """
    config, failure = recommended_config(answer), None
    if isinstance(destination, Path):
        answer, failure = _written(answer, destination, emit, force=force)
    if destination == "-" and config is not None:
        print(config_text(config), end="")

    def form() -> Advice:
        from ..answer.advice import build_advice  # imported here: only JSON needs it

        return build_advice(answer, all_candidates=all_candidates)

    def print_all(console: Console) -> None:
        path = str(destination) if isinstance(destination, Path) else "ds_config.json"
        if markdown:
            print(advice_markdown(answer, path), end="")
            return
        from .answer import print_answer  # imported here: JSON needs no terminal library

        with in_language(console, language):
            print_answer(answer, console, config_path=path, all_candidates=all_candidates, details=details)

    if destination == "-" and output.mode == "human":
        print_all(output.console(on_stderr=True))
    else:
        output.show(form, print_all)
    if failure is not None:
        raise failure
    return 0 if answer.recommended is not None else 1


def _written(
    answer: Recommendation, destination: Path, emit: tuple[JobKind, ...], *, force: bool
) -> tuple[Recommendation, DsAdviseError | None]:
    """Return the answer with the written files, and the error if one could not be written."""
    chosen = answer.recommended
    plans = ((chosen, destination), (answer.try_first, try_first_path(destination)))
    try:
        for plan, path in plans:
            if plan is not None:
                write_config(plan_config(answer, plan), path, force=force)
                answer = replace(answer, files=(*answer.files, str(path)))
        if emit:
            from ..answer.jobs import build_jobs  # imported here: few answers write them

            for job in build_jobs(answer, emit, str(destination)):
                write_text(job.text, job.path, force=force)
                answer = replace(answer, files=(*answer.files, str(job.path)), job_files=(*answer.job_files, job))
    except DsAdviseError as error:
        return answer, error
    return answer, None


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

    output.show(lambda: made().data, render)


def advice_markdown(answer: Recommendation, config_path: str) -> str:
    """Return the verdict, the ladder, what would change the answer, and, folded, configuration and commands."""
    from ..answer.view import AnswerView  # imported here: JSON needs no sentences

    view = AnswerView(answer, config_path, details=True)
    steps = (line for block in view.steps for line in (block.text, *(f"   {code}" for code in block.code)))
    parts = [
        f"**{_plain(view.verdict.headline)}** {_plain(' '.join(view.verdict.sentences))}",
        _plain(" · ".join(view.subject)),
        _ladder(view),
        f"{view.changes}:" if answer.changes else "",
        "\n".join(f"- `{change.flags}`: {_plain(change.outcome)}" for change in answer.changes),
        _folded("Configuration", "json", "" if view.config is None else config_text(view.config).rstrip()),
        _folded("Script and commands", "text", "\n".join(steps)),
        _folded("Assumed", "", "\n".join(f"- {_plain(text)}" for text in answer.assumptions)),
        _plain(view.evidence[0]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ladder(view: AnswerView) -> str:
    names = ("gpu_gib", "ram_gib", "tokens_per_s")
    table = [(view.columns["strategy"], "shape", *(view.columns[name] for name in names), "verdict"), _ALIGNMENT]
    for row in view.ladder:
        if row.candidate is not None:
            speed = row.tokens_per_s if row.fits else ""
            cells = (row.strategy, row.shape, row.gpu_gib, row.ram_gib, speed, _plain(row.verdict))
            table.append(tuple(f"**{cell}**" if row.is_chosen and cell else cell for cell in cells))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table)


def _folded(title: str, language: str, text: str) -> str:
    """Return a part that a click opens. With a language, the text stands in a fence that is longer than any fence in
    it."""
    if not text:
        return ""
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    body = f"{fence}{language}\n{text}\n{fence}" if language else text
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _plain(text: str) -> str:
    """Return text with markup and mentions escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
