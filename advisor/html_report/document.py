"""The one HTML file: styles and script within, nothing from elsewhere, and the figures as data at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from ... import __version__
from ..text.lines import glued
from .markup import Markup, element, joined
from .palette import dark_rules

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
    data: Mapping[str, Any]
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


def _as_data(data: Mapping[str, Any]) -> str:
    """JSON that no browser reads as markup: a `<` is written as JSON's escape of it."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


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
