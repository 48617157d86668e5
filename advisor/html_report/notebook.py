"""A document as part of a notebook: the rules of the report, confined to one element."""

from __future__ import annotations

from ..document import blocks as doc
from .canvas import Markup, element, joined
from .report import dark_sheet, draw_blocks, draw_section, text_file

_DARK = '[data-jp-theme-light="false"] &, .vscode-dark &, html[data-theme="dark"] &'
"""The element in dark pages of JupyterLab, VS Code, and sites made of notebooks."""

_LIGHT = '[data-jp-theme-light="true"] *, .vscode-light *, html[data-theme="light"] *'
"""Everything in their light pages."""


def notebook_html(document: doc.Document) -> str:
    """Return the document as an element that loads nothing and has no script. Its colours follow the notebook's, or
    the screen's where the notebook does not say. Its style sheet is nested (browsers since December 2023)."""
    dark = _confined(dark_sheet())
    rules = (
        _confined(text_file("report.css") + text_file("notebook.css")),
        f"@media screen and (prefers-color-scheme: dark) {{\n&:not({_LIGHT}) {{\n{dark}}}\n}}",
        f"{_DARK} {{\n{dark}}}",
    )
    style = "\n".join((".ds-advise {", *rules, "}"))
    (_, lead), *others = doc.sections(document.blocks)
    return element(
        "div",
        element("style", Markup(style)),
        element("p", document.subject, class_="note"),
        element("p", document.verdict, class_=f"verdict {document.tone or ''}"),
        draw_blocks(lead),
        joined(*(draw_section(heading, blocks) for heading, blocks in others)),
        class_="ds-advise",
    )


def _confined(rules: str) -> str:
    """Return rules of a page as rules nested in an element that takes the place of the page."""
    return rules.replace(":root", "&").replace("body {", "& {")
