"""The report as one HTML file: sections, tables and figures, with inline style and script and no external resources.

The paths of report and chart are checked before the long computations. Existing files are overwritten only with
--force.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any, NamedTuple, TypeVar

from rich.console import Console

from ... import __version__
from ...ds_configs.config_keys import meaning
from ...ds_configs.files import config_text, replace_file
from ...estimators.errors import ConfigFileError
from ...estimators.estimate import MemoryTerm, TimeTerm
from ...estimators.json_form import to_json
from ...estimators.phrase import phrase
from ..answer.explanation import in_words, with_numbers
from ..answer.verdict import Tone
from ..search.candidate import Candidate
from ..text.labels import component_title
from ..text.lines import glued
from ..text.units import gib, rate, seconds
from .canvas import NARROW, WIDE, Markup, dark_style, element, escaped, joined, standing_alone

_ZOOM = 2
"""Pixels of a PNG per pixel of the SVG, for high-resolution screens."""


def check_targets(html: Path | None, plot: Path | None, *, force: bool) -> None:
    """Check that the report and the chart can be written.

    Raises ConfigFileError for a path that is not a file in an existing writable folder, for an existing file unless
    `force`, for a chart with a suffix other than .svg and .png, and for .png without the renderer.
    """
    if html is not None:
        check_target(html, "--html", force=force)
    if plot is None:
        return
    if plot.suffix.lower() not in (".svg", ".png"):
        raise ConfigFileError(
            phrase("{plot} is no picture that can be drawn", plot=plot),
            why="--plot draws SVG and PNG",
            fix="name it .svg or .png",
        )
    if plot.suffix.lower() == ".png" and find_spec("resvg_py") is None:
        raise ConfigFileError(
            "PNG cannot be drawn",
            why="the renderer resvg-py is not installed",
            fix='pip install "ds-advise[png]", or name the file .svg',
        )
    check_target(plot, "--plot", force=force)


def check_target(path: Path, option: str, *, force: bool) -> None:
    """Raise ConfigFileError if the file that an option names cannot be written, or exists and `force` is not set."""
    what, why = phrase("{path} cannot be written", path=path), ""
    fix: str = f"pass another file to {option}"
    if path.exists() and not path.is_file():
        what = phrase("{path} is not a regular file", path=path)
        why = "it cannot be replaced"
    elif not path.parent.is_dir():
        why = "its folder does not exist"
    elif path.exists() and not force:
        what = phrase("{path} exists", path=path)
        why = "it would be lost"
        fix = phrase("pass --force, or another file to {option}", option=option)
    else:
        try:
            with tempfile.TemporaryFile(dir=path.parent):
                return
        except OSError as error:
            why = (error.strerror or "the folder refuses it").lower()
    raise ConfigFileError(what, why=why, fix=fix)


def write_file(content: bytes, path: Path, option: str) -> None:
    """Write the file atomically. Raises ConfigFileError if it cannot be written."""
    try:
        replace_file(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise ConfigFileError(
            phrase("{path} cannot be written", path=path),
            why=(error.strerror or "").lower(),
            fix=phrase("pass another file to {option}", option=option),
        ) from error


def write_picture(picture: Markup, heading: str, path: Path) -> None:
    """Write a chart with a heading, as SVG or PNG by the path's suffix; a PNG has light colours."""
    text = standing_alone(picture, heading)
    content = text.encode()
    if path.suffix.lower() == ".png":
        import resvg_py

        content = bytes(resvg_py.svg_to_bytes(svg_string=text, zoom=_ZOOM))
    write_file(content, path, "--plot")


Chart = TypeVar("Chart")


class Section(NamedTuple):
    """A section of the report with a heading; a section with an empty body is left out. name: its anchor."""

    name: str
    title: str
    body: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report, with its parts in reading order."""

    subject: str
    verdict: str
    tone: Tone
    lead: Sequence[str]
    """Sentences after the verdict."""
    tiles: Sequence[tuple[str, str, str]] = ()
    """Figures in boxes: title, figure, and a short text below."""
    sections: Sequence[Section]
    data: Any
    """The data that `--json` prints; dataclasses become objects."""
    chart: Callable[[], Markup] | None = None
    """Function that draws the chart of `--plot`."""


def html_of(report: Report) -> str:
    """Return the file's text. Its content security policy forbids the browser to load anything."""
    sections = [section for section in report.sections if section.body]
    tiles = [
        element("div", element("dt", title), element("dd", figure, element("small", words) if words else None))
        for title, figure, words in report.tiles
    ]
    lead = [element("p", glued(sentence, "\N{NO-BREAK SPACE}"), class_="lead") for sentence in report.lead]
    data = json.dumps(to_json(report.data), separators=(",", ":"))
    return Template(_text("report.html")).substitute(
        version=__version__,
        subject=escaped(report.subject),
        verdict=escaped(report.verdict),
        tone=report.tone,
        lead=joined(*lead, element("dl", *tiles, class_="tiles") if tiles else None),
        links=joined(*(element("a", section.title, href=f"#{section.name}") for section in sections)),
        sections=joined(*(element("section", element("h2", title), body, id=name) for name, title, body in sections)),
        style=f"{_text('report.css')}\n{dark_style('screen and (prefers-color-scheme: dark)')}",
        script=_text("report.js"),
        data=data.replace("<", "\\u003c").replace("&", "\\u0026"),  # keeps browsers from parsing it as markup
    )


def write_report(report: Report, html: Path | None, say: Callable[[str], None], *, plot: Path | None = None) -> None:
    """Write the report and its chart if they have a path. Raises ConfigFileError if a file cannot be written."""
    if html is not None:
        write_file(html_of(report).encode(), html, "--html")
        say(phrase("wrote {file}", file=html))
    if plot is not None and report.chart is not None:
        write_picture(report.chart(), report.subject, plot)
        say(phrase("wrote {file}", file=plot))


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def bullets(sentences: Sequence[str]) -> Markup:
    """Return a list; each sentence is capitalized unless it begins with the name of a rung. Empty without sentences."""
    capital = (each[:1].upper() + each[1:] if each.partition(" ")[0].isalpha() else each for each in sentences)
    return element("ul", *(element("li", sentence) for sentence in capital)) if sentences else Markup()


def note(text: str) -> Markup:
    """Return a sentence in a muted style; empty without text."""
    return element("p", text, class_="note") if text else Markup()


def copyable(text: str) -> Markup:
    """Return text in a fixed-width font with a copy button; empty without text."""
    if not text:
        return Markup()
    button = element("button", "Copy", type="button", data_copy=True)
    return element("div", button, element("pre", element("code", text), tabindex="0"), class_="copy")


def folded(title: str, body: Markup) -> Markup:
    """Return a part that a click opens, and that is open on paper; empty without a body."""
    return element("details", element("summary", title), body) if body else Markup()


def as_printed(render: Callable[[Console], object], title: str = "The answer as it is printed") -> Markup:
    """Return the text of an answer as printed on a terminal."""
    page = io.StringIO()
    render(Console(file=page, width=80, highlight=False, color_system=None))
    return folded(title, element("pre", page.getvalue().strip("\n"), tabindex="0"))


_HINT = re.compile(r"<title>[^<]*</title>")


def figure(chart: Chart, draw: Callable[[Chart, int], Markup], alternative: Markup | None = None) -> Markup:
    """Return the chart for screens and for phones, with its figures as a table below. The narrow chart has no hints,
    because touch screens do not hover and the table has the figures."""
    head, _, rest = draw(chart, NARROW).partition("</title>")
    narrow = Markup(f"{head}</title>{_HINT.sub('', rest)}")
    wide = element("div", draw(chart, WIDE), class_="wide")
    return element("figure", wide, element("div", narrow, class_="narrow"), alternative)


class Figure(NamedTuple):
    """A number as text, and its exact value."""

    text: str
    value: float | None


Cell = str | Figure

NOTHING = "\N{EN DASH}"
"""Placeholder for an unknown or zero figure."""


def figure_of(value: float | None, unit: Callable[[Any], str]) -> Figure:
    """Return a number in the format of its unit."""
    return Figure(NOTHING if value is None else unit(value), value)


def size(size_bytes: int | None) -> Figure:
    """Return a size in GiB."""
    return Figure(gib(size_bytes) if size_bytes else NOTHING, size_bytes)


def speed(tokens_per_s: float | None) -> Figure:
    return figure_of(tokens_per_s, rate)


def duration(taken_s: float | None) -> Figure:
    return Figure(seconds(taken_s) if taken_s else NOTHING, taken_s)


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], *, classes: Sequence[str] = ()) -> Markup:
    """Return a table with right-aligned columns of figures; empty without rows. classes: CSS classes of the rows."""
    if not rows:
        return Markup()
    numeric = [any(isinstance(row[column], Figure) for row in rows) for column in range(len(head))]
    titles = [
        element("th", title, scope="col", class_="n" if right else None)
        for title, right in zip(head, numeric, strict=True)
    ]
    body = [
        element("tr", *(_cell(cell) for cell in row), class_=name or None)
        for row, name in zip(rows, classes or [""] * len(rows), strict=True)
    ]
    return element(
        "div",
        element("table", element("thead", element("tr", *titles)), element("tbody", *body)),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=", ".join(title for title in head if title),
    )


def _cell(cell: Cell) -> Markup:
    """Return a cell; a figure has its exact value as an attribute for programs."""
    if isinstance(cell, Figure):
        return element("td", cell.text, class_="n", data_value=None if cell.value is None else repr(cell.value))
    return element("td", cell)


def figures_table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Markup:
    """Return a table of a chart's figures."""
    return folded("Figures as a table", table(head, rows))


def parts_table(bars: Sequence[tuple[str, Mapping[str, float]]], unit: Callable[[Any], Figure], what: str) -> Markup:
    """Return a table of a bar chart's figures: components in rows, the largest first, and bars in columns."""
    most: dict[str, float] = {}
    for _, parts in bars:
        for name, value in parts.items():
            most[name] = max(most.get(name, 0), value)
    rows: list[list[Cell]] = [
        [component_title(name), *(unit(parts.get(name, 0)) for _, parts in bars)]
        for name in sorted(most, key=lambda name: -most[name])
    ]
    return figures_table([what, *(label for label, _ in bars)], rows)


def plan_tables(plans: Mapping[str, Candidate]) -> tuple[Markup, Markup]:
    """Return (bytes by component, seconds of a step by component) of every plan."""
    memory = [(name, plan.memory.components) for name, plan in plans.items()]
    time = [(name, plan.time.components) for name, plan in plans.items()]
    return parts_table(memory, size, "GiB"), parts_table(time, duration, "of one step")


def terms_table(terms: Sequence[MemoryTerm | TimeTerm]) -> Markup:
    """Return terms with formula, numbers and source, the largest first."""
    rows: list[tuple[str, Figure, Markup]] = []
    for term in terms:
        numbers = with_numbers(term)
        how = joined(
            in_words(term),
            element("div", f"= {numbers}") if numbers else None,
            element("div", f"source: {term.source}", class_="soft"),
            element("div", f"not covered: {term.not_covered}", class_="soft") if term.not_covered else None,
        )
        figure = size(term.size_bytes) if isinstance(term, MemoryTerm) else duration(term.seconds)
        rows.append((component_title(term.name), figure, how))
    rows.sort(key=lambda row: -(row[1].value or 0))
    return table(["what", "GiB" if isinstance(terms[0], MemoryTerm) else "time", "how it is computed"], rows)


def configuration(config: Mapping[str, Any] | None, name: str, title: str = "The configuration") -> Section:
    """Return a ds_config to copy, and what each key decides; an empty section for None."""
    if not config:
        return Section("configuration", title, Markup())
    known = [(path, value, meaning(path)) for path, value in _flat(config)]
    rows = [[key_and_meaning(path, words), value_words(value)] for path, value, words in known if words]
    body = joined(
        element("p", "Save as ", element("code", name), ".", class_="note"),
        copyable(config_text(config).rstrip()),
        folded("What the keys decide", table(["key, and what it decides", "value"], rows)),
    )
    return Section("configuration", title, body)


def key_and_meaning(path: str, words: str) -> Markup:
    """Return a key with its meaning below."""
    return joined(element("code", path), element("div", words, class_="soft") if words else None)


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        path = f"{prefix}{key}"
        found += _flat(value, f"{path}.") if isinstance(value, Mapping) else [(path, value)]
    return found


def value_words(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)
