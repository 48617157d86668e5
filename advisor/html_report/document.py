"""Pictures in a report: drawn twice, for a screen and for a telephone, with their figures as a table beneath."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypeVar

from ... import __version__
from ...ds_configs.config_keys import meaning
from ...ds_configs.write import config_text
from ...estimators.json_form import to_json
from ..text.labels import component_title
from ..text.lines import glued
from ..text.units import gib, rate, seconds
from .canvas import NARROW, WIDE, Markup, element, joined
from .palette import dark_rules

Chart = TypeVar("Chart")

_HINT = re.compile(r"<title>[^<]*</title>")


def figure(chart: Chart, draw: Callable[[Chart, int], Markup], alternative: Markup | None = None) -> Markup:
    """The picture in both widths. The narrow one has no hints: a finger does not hover, and the table has them."""
    wide, narrow = draw(chart, WIDE), draw(chart, NARROW)
    head, _, rest = narrow.partition("</title>")
    bare = Markup(f"{head}</title>{_HINT.sub('', rest)}")
    return element("figure", element("div", wide, class_="wide"), element("div", bare, class_="narrow"), alternative)


Tone = Literal["good", "warn", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the report with a heading."""

    name: str
    """What a link to it is called, in letters and hyphens."""
    title: str
    body: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a report says, in the order in which it is read."""

    subject: str
    """What was asked about."""
    verdict: str
    tone: Tone
    lead: Sequence[str]
    """Sentences after the verdict."""
    tiles: Markup | None
    sections: Sequence[Section | None]
    """None is left out."""
    data: object
    """What `--json` prints."""


def html_of(report: Report) -> str:
    """The file's text. A policy in it forbids the browser to load anything."""
    sections = [section for section in report.sections if section is not None]
    style = f"{_text('report.css')}\n@media screen and (prefers-color-scheme: dark) {{\n{dark_rules()}\n}}\n"
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        "<!doctype html>\n"
        + element(
            "html",
            element(
                "head",
                element("meta", charset="utf-8"),
                element("meta", http_equiv="Content-Security-Policy", content=policy),
                element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                element("meta", name="generator", content=f"ds-advise {__version__}"),
                element("title", f"{report.verdict} {report.subject}"),
                element("style", Markup(style)),
            ),
            element(
                "body",
                element(
                    "header",
                    element("h1", report.subject),
                    element("p", report.verdict, class_=f"verdict {report.tone}"),
                    *(element("p", glued(sentence, "\N{NO-BREAK SPACE}"), class_="lead") for sentence in report.lead),
                    report.tiles,
                    element(
                        "nav",
                        *(element("a", section.title, href=f"#{section.name}") for section in sections),
                        aria_label="Sections",
                    ),
                ),
                element(
                    "main",
                    *(
                        element("section", element("h2", section.title), section.body, id=section.name)
                        for section in sections
                    ),
                ),
                element(
                    "footer",
                    f"Made by ds-advise {__version__}. This file loads nothing from elsewhere; its figures are those "
                    "of --json and stand in it as data.",
                ),
                Markup(f'<script type="application/json" id="figures">{_as_data(report.data)}</script>'),
                Markup(f"<script>\n{_text('report.js')}</script>"),
            ),
            lang="en",
        )
        + "\n"
    )


def _as_data(data: object) -> str:
    """JSON that no browser reads as markup: a `<` is written as JSON's escape of it."""
    return json.dumps(to_json(data), separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def paragraphs(sentences: Sequence[str]) -> Markup:
    """A paragraph for each sentence."""
    return joined(*(element("p", sentence, class_="lead") for sentence in sentences))


def bullets(sentences: Sequence[str]) -> Markup:
    """A list; each begins with a capital letter."""
    return element("ul", *(element("li", sentence[:1].upper() + sentence[1:]) for sentence in sentences))


def note(text: str) -> Markup:
    """A sentence in a softer tone."""
    return element("p", text, class_="note")


def tiles(figures: Sequence[tuple[str, str, str]]) -> Markup:
    """Figures in boxes: what it is, the figure, and a few words under it."""
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", title),
                element("dd", figure, element("small", words) if words else None),
            )
            for title, figure, words in figures
        ),
        class_="tiles",
    )


def copyable(text: str) -> Markup:
    """Text in a fixed font with a button that copies it."""
    return element(
        "div",
        element("button", "Copy", type="button", data_copy=True),
        element("pre", element("code", text)),
        class_="copy",
    )


def folded(title: str, body: Markup) -> Markup:
    """What is opened by a click, and on paper."""
    return element("details", element("summary", title), body)


class Figure(NamedTuple):
    """A number as text, and exactly."""

    text: str
    value: float | None


Cell = str | Figure

NOTHING = "\N{EN DASH}"
"""What stands where a figure is not known, or nothing is needed."""


def size(size_bytes: int | None) -> Figure:
    """GiB; a dash where nothing is known or needed."""
    return Figure(gib(size_bytes) if size_bytes else NOTHING, size_bytes)


def speed(tokens_per_s: float | None) -> Figure:
    return Figure(NOTHING if tokens_per_s is None else rate(tokens_per_s), tokens_per_s)


def duration(taken_s: float | None) -> Figure:
    return Figure(NOTHING if not taken_s else seconds(taken_s), taken_s)


def table(
    head: Sequence[str], rows: Sequence[Sequence[Cell]], *, classes: Sequence[str] = (), caption: str = ""
) -> Markup:
    """A table whose columns of figures stand at the right; classes: of the rows."""
    numeric = [any(isinstance(row[column], Figure) for row in rows) for column in range(len(head))]
    shown = classes or [""] * len(rows)
    return element(
        "div",
        element(
            "table",
            element("caption", caption, class_="soft") if caption else None,
            element(
                "thead",
                element(
                    "tr",
                    *(
                        element("th", title, scope="col", class_="n" if right else None)
                        for title, right in zip(head, numeric, strict=True)
                    ),
                ),
            ),
            element(
                "tbody",
                *(
                    element("tr", *(_cell(cell) for cell in row), class_=name or None)
                    for row, name in zip(rows, shown, strict=True)
                ),
            ),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption or ", ".join(title for title in head if title),
    )


def _cell(cell: Cell) -> Markup:
    if isinstance(cell, Figure):
        exact = None if cell.value is None else repr(cell.value)
        return element("td", cell.text, class_="n", data_value=exact)
    return element("td", cell)


def parts_table(plans: Sequence[Mapping[str, Any]], field: str, unit: Callable[[Any], Figure], what: str) -> Markup:
    """Components down, plans across: the figures of a chart of bars."""
    most: dict[str, float] = {}
    for plan in plans:
        for name, value in plan[field].items():
            most[name] = max(most.get(name, 0), value)
    names = sorted(most, key=lambda name: -most[name])
    rows: list[list[Cell]] = [
        [component_title(name), *(unit(plan[field].get(name, 0)) for plan in plans)] for name in names
    ]
    return folded("Figures as a table", table([what, *(plan["rung"] for plan in plans)], rows))


def terms_table(terms: Sequence[Mapping[str, Any]]) -> Markup:
    """Terms of `explain --json` with formula, numbers and source, the largest first."""
    is_memory = any("size_bytes" in term for term in terms)
    key = "size_bytes" if is_memory else "seconds"
    rows: list[list[Cell]] = [
        [component_title(term["name"]), size(term[key]) if is_memory else duration(term[key]), _how(term)]
        for term in sorted(terms, key=lambda term: -term[key])
    ]
    return table(["what", "GiB" if is_memory else "time", "how it is computed"], rows)


def _how(term: Mapping[str, Any]) -> Markup:
    """Formula, numbers and source, one under the other."""
    numbers = term["formula_with_numbers"]
    return joined(
        term["formula_in_words"],
        element("div", f"= {numbers}") if numbers else None,
        element("div", f"source: {term['source']}", class_="soft"),
        element("div", f"not covered: {term['not_covered']}", class_="soft") if term["not_covered"] else None,
    )


def configuration(config: Mapping[str, Any], name: str) -> Markup:
    """A ds_config to copy, and what each of its keys decides."""
    known = [(path, value, meaning(path)) for path, value in _flat(config)]
    rows = [[key_and_meaning(path, words), value_words(value)] for path, value, words in known if words]
    return joined(
        element("p", "Save as ", element("code", name), ".", class_="note"),
        copyable(config_text(config).rstrip()),
        folded("What the keys decide", table(["key, and what it decides", "value"], rows)),
    )


def key_and_meaning(path: str, words: str) -> Markup:
    """A key, and under it what it decides."""
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
