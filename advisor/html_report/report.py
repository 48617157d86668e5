"""A document as one HTML file with inline style and script and no external resources, and its chart as SVG or PNG.

The paths of report and chart are checked before the long computations. Existing files are overwritten only with
--force.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from ... import __version__
from ...ds_configs.files import replace_file
from ...estimators.errors import ConfigFileError
from ...estimators.json_form import to_json
from ...probes.command_line import command_line
from ..document import blocks as doc
from ..text.language import translate
from ..text.units import capitalised, glued
from .canvas import NARROW, WIDE, Markup, dark_rules, element, escaped, joined, standing_alone
from .charts import draw

_ZOOM = 2
"""Pixels of a PNG per pixel of the SVG, for high-resolution screens."""

_CLASSES: Mapping[doc.Style, str] = {
    "": "lead",
    "bold": "lead strong",
    "yellow": "lead unsure",
    "dim": "note",
    **{tone: f"lead strong {tone}" for tone in ("good", "unsure", "bad")},
    "advice": "lead strong",
    "unknown": "lead strong",
}

_SEVERITIES = ("good", "unsure", "bad", "advice", "unknown")
"""Styles of marks that are a badge."""

SCRIPTS = ("copy.js", "hints.js")
"""Scripts of a report that the page has, too."""

_WORDS = {
    "sections_title": "Sections",
    "copy": "Copy",
    "copied": "Copied",
    "failed": "Not copied",
    "save": "Save",
    "made_by": f"Made by ds-advise {__version__}.",
    "loads_nothing": (
        "This file loads nothing from elsewhere; its figures are those of --json and stand in it as data."
    ),
}
"""Texts of the template."""

_HINT = re.compile(r"<title>[^<]*</title>")


def render_html(document: doc.Document, *, date: str = "", command: str = "") -> str:
    """Return the file's text. Its content security policy forbids the browser to load anything. date: the day of the
    answer; "" leaves out the line with it. command: the line that asked, "" in a process of Python."""
    (_, lead), *others = doc.sections(document.blocks)
    drawn = [(heading, section) for heading, blocks in others if (section := draw_section(heading, blocks))]
    data = json.dumps(to_json(document.form()), separators=(",", ":"))
    return Template(text_file("report.html")).substitute(
        **{name: escaped(translate(text, document.language)) for name, text in _WORDS.items()},
        language=document.language,
        version=__version__,
        subject=escaped(document.subject),
        verdict=escaped(document.verdict),
        tone=document.tone or "",
        lead=draw_blocks(lead),
        asked=element("p", element("time", date), " ", element("code", command), class_="asked") if date else "",
        links=joined(*(element("a", heading.title, href=f"#{heading.name}") for heading, _ in drawn)),
        sections=joined(*(section for _, section in drawn)),
        style=f"{text_file('report.css')}\n@media screen and (prefers-color-scheme: dark) {{\n{dark_sheet()}}}",
        script="".join(map(text_file, (*SCRIPTS, "report.js"))),
        data=data.replace("<", "\\u003c").replace("&", "\\u0026"),  # keeps browsers from parsing it as markup
    )


def text_file(name: str) -> str:
    """Return the text of a file of this folder."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def dark_sheet() -> str:
    """Return the rules for dark screens, of the page and of its charts."""
    return f"{text_file('dark.css')}{dark_rules()}\n"


def draw_section(heading: doc.Heading, blocks: Iterable[doc.Block]) -> Markup:
    """Return the HTML of a section; empty without blocks to draw."""
    body = draw_blocks(blocks)
    return element("section", element("h2", heading.title), body, id=heading.name) if body else body


def draw_blocks(blocks: Iterable[doc.Block]) -> Markup:
    """Return the HTML of blocks."""
    return joined(*map(_block, blocks))


def _block(block: doc.Block) -> Markup | None:
    match block:
        case doc.Sentence(text, style, mark=mark, mark_style=mark_style):
            is_badge = mark_style in _SEVERITIES and mark == mark.lstrip() != ""
            badge = element("span", mark, class_=_classes("badge", mark_style)) if is_badge else None
            words = glued((text if is_badge else f"{mark}{text}").strip(), "\N{NO-BREAK SPACE}")
            look = _classes(_CLASSES[style], "finding" * is_badge)
            return element("p", badge, " " if is_badge else None, _with_code(words), class_=look)
        case doc.Line(text, style, mark=mark):
            return element("p", f"{mark}{text}", class_=_CLASSES[style])
        case doc.Table():
            note = element("p", block.footnote, class_=_CLASSES["dim"]) if block.footnote else None
            return joined(_table(block.without_meters()), note)
        case doc.Code(lines) | doc.Commands(lines):
            file = block.file if isinstance(block, doc.Code) else ""
            button = element("button", type="button", data_copy=True)  # the script writes its text
            save = element("button", type="button", data_save=file) if file else None
            text = "\n".join(lines) if isinstance(block, doc.Code) else _with_breaks("\n".join(lines))
            code = element("pre", element("code", text), tabindex="0")
            return element("div", element("span", button, save, class_="buttons"), code, class_="copy")
        case doc.Verbatim(lines) if any(lines):
            return element("pre", "\n".join(lines), tabindex="0")
        case doc.Excerpt():
            return element("pre", "\n".join(block.texts(doc.EXCERPT_COLUMNS)), tabindex="0")
        case doc.Diff():
            return element("pre", "\n".join(block.lines()), tabindex="0")
        case doc.Chart():
            notes = (block.caption, _CLASSES["dim"]), (block.guide, _classes(_CLASSES["dim"], "screen"))
            return joined(*(element("p", line, class_=look) for line, look in notes if line), _figure(block))
        case doc.Facts(facts):
            tiles, others = (
                [_fact(fact) for fact in facts if bool(fact.figure) == is_tile and not fact.is_subject]
                for is_tile in (True, False)
            )
            return joined(
                element("dl", *tiles, class_="tiles") if tiles else None,
                element("dl", *others, class_="facts") if others else None,
            )
        case doc.Folded(title, inner):
            return element("details", element("summary", title), draw_blocks(inner)) if inner else None
        case doc.Beside(inner, beside):
            return draw_blocks((*inner, *beside))
    return None


_CODE = re.compile(r"`([^`\n]+)`")


def _with_code(text: str) -> Markup:
    """Return a text with what stands between backticks as code; a command with arguments can be copied."""
    return joined(*(_code(part) if at % 2 else _with_whole_flags(part) for at, part in enumerate(_CODE.split(text))))


def _code(text: str) -> Markup:
    code = element("code", text)
    if not re.search(r"\s", text):
        return code
    return element("span", code, " ", element("button", type="button", data_copy=True), class_="command")


_FLAG = re.compile(r"(--[a-z][a-z0-9-]*)")


def _with_whole_flags(text: str) -> Markup:
    """Return a text in which no line ends within a flag: browsers break at hyphens."""
    parts = _FLAG.split(text)
    return joined(*(element("span", part, class_="flag") if at % 2 else part for at, part in enumerate(parts)))


_LONG_SETTING = re.compile(r"(?<=\w=)(?=\S{20})")


def _with_breaks(commands: str) -> Markup:
    """Return commands that a phone may break after the `=` of a long setting, which else breaks within a word; what is
    copied stays the same."""
    first, *others = map(escaped, _LONG_SETTING.split(commands))
    return joined(first, *(joined(element("wbr"), other) for other in others))


def _fact(fact: doc.Fact) -> Markup:
    title = element("dt", capitalised(fact.title))
    if not fact.figure:
        return element("div", title, element("dd", fact.words))
    words = element("small", fact.words) if fact.words else None
    meter = None if fact.share is None else element("meter", value=fact.share, aria_hidden="true")
    return element("div", title, element("dd", fact.figure, meter, words))


def _figure(chart: doc.Chart) -> Markup:
    """Return the chart for screens and for phones, with its figures as a table below. The narrow chart has no hints,
    because touch screens do not hover and the table has the figures."""
    head, _, rest = draw(chart.drawing, NARROW).partition("</title>")
    narrow = Markup(f"{head}</title>{_HINT.sub('', rest)}")
    wide = element("div", draw(chart.drawing, WIDE), class_="wide")
    table = None if chart.table is None else _block(doc.Folded(chart.table_title, [chart.table]))
    return element("figure", wide, element("div", narrow, class_="narrow"), table)


def _table(table: doc.Table) -> Markup | None:
    """Return a table with right-aligned columns of figures; None without rows."""
    if not table.rows:
        return None
    titles = [
        element(
            "th" if title else "td",  # an empty header has no meaning for a screen reader
            title,
            scope="col" if title else None,
            class_=_classes("n" * table.is_numeric(column), "optional" * (column in table.optional)),
        )
        for column, title in enumerate(table.head)
    ]
    head = element("thead", element("tr", *titles)) if any(table.head) else None
    body = element("tbody", *(_row(row, table.head, table.optional) for row in table.rows))
    label = ", ".join(filter(None, table.head)) or None
    role = "group" if label else None
    look = _classes("scroll", "folds" * _folds(table))
    return element("div", element("table", head, body), class_=look, tabindex="0", role=role, aria_label=label)


def _folds(table: doc.Table) -> bool:
    """Whether a table on a phone has the words of its last column below each row: with the other optional columns
    below too, a name and at most two figures are side by side. `report.css` and the page's `page.css` draw it."""
    last = len(table.head) - 1
    beside = [at for at in range(last) if at not in table.optional]
    return bool(table.optional) and len(beside) in (2, 3) and not table.is_numeric(last)


def _classes(*names: str) -> str | None:
    return " ".join(filter(None, names)) or None


def _row(row: doc.Row, head: Sequence[str], optional: Collection[int]) -> Markup:
    """Return a row; remarks stand below the first cell. Cells of optional columns have a class and their title, with
    which a style sheet for phones puts them below the others."""
    remarks = (remark if isinstance(remark, str) else remark.text for remark in row.remarks)
    below = [element("div", remark, class_="soft") for remark in remarks]
    cells, last = list[Markup](), len(row.cells) - 1
    for column, cell in enumerate(row.cells):
        span = str(len(head) - last) if column == last < len(head) - 1 else None
        look = "optional" * (column in optional and span is None)
        title = (head[column] or None) if look else None
        if isinstance(cell, doc.Figure):  # with its exact value as an attribute for programs
            exact = None if cell.value is None else repr(cell.value)
            names = _classes("n", cell.style, look)
            cells.append(element("td", cell.text, class_=names, data_value=exact, data_title=title, colspan=span))
        elif not isinstance(cell, doc.Meter):
            text = (
                element("code", _with_whole_flags(cell.text.strip())) if isinstance(cell, doc.Snippet) else cell.strip()
            )
            words = [text, *([] if column else below)]
            cells.append(element("td", *words, class_=_classes(look), data_title=title, colspan=span))
    return element("tr", *cells, class_=row.look or None)


def write_report(
    document: doc.Document, html: Path | None, say: Callable[[str], None], *, plot: Path | None = None
) -> None:
    """Write the report and its chart if they have a path. Raises ConfigFileError if a file cannot be
    written."""
    if html is not None:
        text = render_html(document, date=time.strftime("%Y-%m-%d"), command=command_line())
        write_file(text.encode(), html, "--html")
        say(f"wrote {html}")
    picture = document.picture or next((chart.drawing for chart in doc.charts(document.blocks)), None)
    if plot is not None and picture is not None:
        write_picture(draw(picture), document.subject, plot)
        say(f"wrote {plot}")


def check_targets(html: Path | None, plot: Path | None, *, force: bool) -> None:
    """Check that the report and the chart can be written.

    Raises ConfigFileError for a path that is not a file in an existing writable folder, for an existing file unless
    `force`, for a report with a suffix other than .html and .htm, for a chart with one other than .svg and .png, and
    for .png without the renderer.
    """
    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise ConfigFileError(
            f"{html} is not the name of an HTML file", why="--html writes one HTML file", fix="name it .html"
        )
    if html is not None:
        check_target(html, "--html", force=force)
    if plot is None:
        return
    if plot.suffix.lower() not in (".svg", ".png"):
        raise ConfigFileError(
            f"{plot} has no supported picture format",
            why="--plot writes SVG and PNG",
            fix="name it .svg or .png",
        )
    if plot.suffix.lower() == ".png" and find_spec("resvg_py") is None:
        raise ConfigFileError(
            "PNG cannot be written",
            why="the renderer resvg-py is not installed",
            fix='pip install "ds-advise[png]", or name the file .svg',
        )
    check_target(plot, "--plot", force=force)


def check_target(path: Path, option: str, *, force: bool) -> None:
    """Raise ConfigFileError if the file that an option names cannot be written, or exists and `force` is not set."""
    what, why = f"{path} cannot be written", ""
    fix: str = f"pass another file to {option}"
    if path.exists() and not path.is_file():
        what = f"{path} is not a regular file"
        why = "it cannot be replaced"
    elif not path.parent.is_dir():
        why = "its folder does not exist"
    elif path.exists() and not force:
        what = f"{path} exists"
        why = "it would be overwritten"
        fix = f"pass --force, or another file to {option}"
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
            f"{path} cannot be written",
            why=(error.strerror or "").lower(),
            fix=f"pass another file to {option}",
        ) from error


def write_picture(picture: Markup, heading: str, path: Path) -> None:
    """Write a chart with a heading, as SVG or PNG by the path's suffix; a PNG has light colours."""
    text = standing_alone(picture, heading)
    content = text.encode()
    if path.suffix.lower() == ".png":
        import resvg_py

        content = bytes(resvg_py.svg_to_bytes(svg_string=text, zoom=_ZOOM))
    write_file(content, path, "--plot")
