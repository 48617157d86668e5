"""A document on a terminal, as HTML and as Markdown: every block, and text that stays text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from ds_advise.advisor.document import blocks as doc
from ds_advise.advisor.document.charts import Bar, Limit, Lines, Panel, Part, StackedBars
from ds_advise.advisor.document.markdown import markdown_text
from ds_advise.advisor.document.terminal import line_count
from ds_advise.advisor.document.timeline import stretch_names
from ds_advise.advisor.document.translation import translated
from ds_advise.advisor.html_report.canvas import escaped
from ds_advise.advisor.html_report.charts import draw
from ds_advise.advisor.html_report.report import render_html
from ds_advise.estimators.units import gib

from tests.advisor.html_report.report_page import Page
from tests.helpers import printed_document

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"

TABLE = doc.Table(
    ["machine", "hours", "plan"],
    [
        doc.Row(["one", doc.Figure("1.5", 1.5), "zero1"], "chosen", ["a remark on it"]),
        doc.Row(["a machine with a name that is rather long", doc.Figure("20.0", 20), "zero3"], "faded"),
        doc.Row(["two", "the last cell extends"]),
        doc.Row(["a group of rows"]),
    ],
)


def _document(text: str = "words", table: doc.Table = TABLE) -> doc.Document:
    bars = StackedBars(title=text, bars=(Bar(label=text, parts=(Part(name=text, value=1, ink="loss"),), note=text),))
    panel = Panel(title=text, layers={"weights": [1.0, 2.0]})
    two = [text, text]
    lines = Lines(title=text, x_title=text, xs=[0, 1], panels=[panel], labels=two, hints=two, spans=[(0, text)])
    return doc.Document(
        subject=text,
        verdict=f"It fits. {text}",
        tone="good",
        blocks=[
            doc.Sentence(text, "bold"),
            doc.Facts([doc.Fact(text, text, text, share=0.5), doc.Fact(text, "", text)]),
            doc.Heading(f"Hours {text}", "hours"),
            table,
            doc.Code([text]),
            doc.Chart(bars, table),
            doc.Chart(lines),
            doc.Heading("not printed", "more", printed=False),
            doc.Verbatim([text]),
            doc.Folded(f"more {text}", [doc.Sentence(text, "dim")]),
        ],
        data={"text": text},
    )


def _printed(document: doc.Document, width: int = 80) -> list[str]:
    return printed_document(document, width).splitlines()


def test_a_report_has_every_block_and_text_of_users_stays_text() -> None:
    row = doc.Row([EVIL, doc.Figure(EVIL, 1)], remarks=[EVIL])
    page = Page(render_html(_document(EVIL, doc.Table([EVIL, EVIL], [row]))))
    assert page.names.count("script") == 2 and "img" not in page.names
    assert "onerror" not in {name for name, _ in page.attributes}
    assert page.data == {"text": EVIL} and page.text.count(EVIL) > 20
    assert escaped("\x00\x1b") == "\N{REPLACEMENT CHARACTER}" * 2
    page = Page(render_html(_document()))
    assert set(page.sections) == {"hours", "more"} and ("colspan", "2") in page.attributes
    assert [row[1] for row in page.sections["hours"][1:3]] == [("1.5", 1.5), ("20.0", 20.0)]


def test_text_of_users_stays_text_in_markdown_and_a_fence_holds_any_code() -> None:
    evil = "a | b\n# c @me <b>`x`"
    document = _document(evil, doc.Table([evil, ""], [doc.Row([doc.Snippet("--a"), evil], "chosen"), doc.Row([evil])]))
    text = markdown_text(replace(document, blocks=[*document.blocks, doc.Heading("code", "c"), doc.Code(["```", "x"])]))
    outside = re.sub(r"(`{3,})\n.*?\n\1", "", text, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)[@#](?!##)|(?<!\\)<(?!/?(details|summary)>)", outside.replace("### ", ""))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3} and "| **`--a`** |" in text
    assert "````\n```\nx\n````" in text


def test_every_text_of_a_document_is_translated_and_nothing_else() -> None:
    """The catalogue's `weights` in each place that shows text; code, names and data stay."""
    document = _document("weights", doc.Table(["weights"], [doc.Row([doc.Snippet("weights")])]))
    chinese = translated(document, "zh")
    assert chinese.data == document.data and chinese.language == "zh"
    for drawn in (render_html(chinese), draw(chinese.blocks[5].drawing)):
        assert "\u6743\u91cd" in drawn
    kept = [block for block in chinese.blocks if isinstance(block, doc.Code | doc.Verbatim)]
    assert [block.lines for block in kept] == [["weights"]] * 2
    shown = re.sub(
        "<script.*?</script>|<code>.*?</code>|<pre.*?</pre>|<style>.*?</style>|(Hours|more) weights|[fs]-weights",
        "",
        render_html(chinese),
        flags=re.DOTALL,
    )
    assert "weights" not in shown
    assert translated(document, "en") is document


def test_a_terminal_shows_a_table_in_columns() -> None:
    lines = _printed(_document())
    assert len(lines) == line_count(_document())
    assert lines[:7] == [
        " It fits. words",
        " words",
        " words  words words",
        "        words",
        "",
        " Hours words",
        "  machine                                    hours  plan",
    ]
    assert "> one                                          1.5  zero1" in lines
    assert f"  two{' ' * 40}the last cell extends" in lines and "     a remark on it" in lines
    assert "  a group of rows" in lines and "not printed" not in " ".join(lines)


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_shows_long_names_above_their_figures(width: int) -> None:
    lines = _printed(_document(), width)
    assert max(map(len, lines)) <= width
    at = next(number for number, line in enumerate(lines) if "20.0" in line)
    assert ("rather long" in lines[at]) == (width == 60) and lines[at].endswith("20.0  zero3")


def test_a_table_wider_than_the_terminal_is_printed_as_sentences() -> None:
    wide = doc.Table(["id", "first", "second"], [doc.Row(["7", "x" * 30, doc.Figure("9" * 12)])])
    assert _printed(_document(table=wide), 40)[6:8] == [f" 7: {'x' * 30},", f"     second {'9' * 12}"]


CHART = StackedBars(
    title="memory",
    bars=(Bar(label="", parts=(Part(name="a", value=6 * 2**30, ink="loss"),), note="6.0"),),
    limit=Limit(8 * 2**30, "8.0 GiB per GPU"),
    families={"loss": "logits and loss"},
)


def _of(*blocks: doc.Block) -> doc.Document:
    return doc.Document(subject="", verdict="", tone=None, blocks=blocks, data={})


@pytest.mark.parametrize(("size", "filled"), [(6, 0.75), (8, 1.0), (16, 1.0)])
def test_a_bar_is_marked_at_its_limit(size: int, filled: float) -> None:
    """At its share of the scale, which is the limit or a longer bar; the limit's figure is at the end or below it."""
    part = Part(name="a", value=size * 2**30, ink="loss")
    bars = replace(CHART, bars=(Bar(label="", parts=(part,), note=""),))
    drawn, *below, legend = _printed(_of(doc.Chart(bars, printed=bars)))
    assert legend.strip() == f"▒ logits and loss {gib(size * 2**30)}"
    bar, _, rest = drawn.removeprefix(" ").partition("│")
    if size > 8:
        assert len(bar) == pytest.approx(rest.count("▒"), abs=1) and bar == "▒" * len(bar)
        assert below == ["8.0 GiB │".rjust(len(bar) + 2)]
    else:
        assert not below and drawn.endswith("│ 8.0 GiB")
        assert bar.count("▒") == pytest.approx(filled * len(bar), abs=1) and rest == " 8.0 GiB"


def test_blocks_stand_beside_each_other_on_a_wide_terminal_alone() -> None:
    """Elsewhere, they stand below the first ones; a report draws the charts of both."""
    beside = doc.Beside(
        [doc.Sentence("left"), doc.Chart(CHART, printed=CHART)],
        [doc.Sentence("right"), doc.Chart(CHART, printed=CHART)],
    )
    wide, narrow = _printed(_of(beside), 120), _printed(_of(beside), 119)
    assert [line.split() for line in wide[:1]] == [["left", "right"]] and len(wide) == 3
    assert wide[1].count("│ 8.0 GiB") == 2 and max(map(len, wide)) <= 120
    assert [line.strip() for line in narrow if "▒" not in line] == ["left", "right"]
    assert markdown_text(_of(beside)).split("\n\n")[-1].strip() == "logits and loss 6.0"
    assert [*doc.charts([beside])] == [beside.blocks[1], beside.beside[1]]


def test_a_narrow_terminal_leaves_out_optional_columns_and_reports_have_no_bars_in_tables() -> None:
    head = ["strategy", "batch", "memory", "", "verdict"]
    fits = doc.Row(
        ["zero3-offload", doc.Figure("16"), doc.Figure("28.1"), doc.Meter(0.5, limited=True), "fits"], "chosen"
    )
    large = doc.Row(
        ["ddp", doc.Figure("1x16"), doc.Figure("334.3"), doc.Meter(11, limited=True), "needs 11 x the memory"]
    )
    table = doc.Table(head, [fits, large, doc.Row(["zero1", "the same"])], optional=(3, 1))
    wide, narrow = _printed(_of(table)), _printed(_of(table), 40)
    assert wide[1] == f"> zero3-offload     16    28.1  {'━' * 10}{' ' * 10}│   fits"
    assert wide[2] == f"  ddp             1x16   334.3  {'━' * 20}│»  needs 11 x the memory"
    assert [line.split() for line in narrow[:3]] == [["strategy", "memory"], [">", "zero3-offload", "28.1"], ["fits"]]
    assert max(map(len, narrow)) <= 40 and "━" not in "".join(narrow)
    assert "meter" not in Page(render_html(_of(doc.Heading("", "x"), table))).names
    assert markdown_text(_of(table)).splitlines()[2].count("|") == 5


def test_a_narrow_terminal_names_the_columns_that_a_table_leaves_out() -> None:
    """The notes on them are left out, too."""
    head, cells = ["strategy", "batch", ""], ["zero3-offload-param", doc.Figure("1x16"), "needs 11 x the memory"]
    notes = [("batch", "batch: micro x accum"), ("strategy", "%: a probability")]
    table = doc.Table(head, [doc.Row(cells)], [40, 5, 0], optional=(1,), notes=notes, hidden=doc.HIDDEN)
    assert _printed(_of(table), 80)[-1].strip() == "batch: micro x accum; %: a probability"
    assert [line.strip() for line in _printed(_of(table), 40)[-2:]] == [
        "%: a probability",
        "Not shown at this width: batch.",
    ]
    assert "Not shown" not in " ".join(_printed(_of(table._replace(hidden="")), 40))


def test_areas_are_as_high_as_the_terminal_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each column has the highest position of its interval, with its layers from the bottom."""
    layers = {"weights": [1.0, 1.0, 1.0, 1.0], "loss": [0.0, 1.0, 0.0, 1.0]}
    panel = Panel(title="", layers=layers, areas=True)
    spans = [(0, "forward 1"), (2, "backward 1")]
    lines = Lines(
        title="", x_title="", xs=[0, 1, 2, 3], panels=[panel], families=dict.fromkeys(layers, "x"), spans=spans
    )
    for height, rows in ((10, 6), (24, 10), (90, 16)):
        monkeypatch.setenv("LINES", str(height))
        chart = _printed(_of(doc.Chart(lines, printed=lines)))
        drawn = [line.partition("│")[2] for line in chart if "│" in line]
        assert len(drawn) == rows and sum("▒" in line for line in drawn) == rows // 2
        assert drawn[-1] == "█" * len(drawn[-1]) and chart[rows].split() == ["forward", "backward"]
        assert chart[rows + 1].split() == ["iteration", "1"]


def test_a_stretch_without_room_for_a_name_is_in_the_legend() -> None:
    """On a telephone the first phases of a run are narrower than a letter."""
    names = stretch_names([(0, "load"), (1, "forward 1"), (2, "backward 1"), (60, "forward 2"), (61, "")], 90)
    assert [word for word, _ in names.words] == ["backward"]
    assert names.unnamed == ("load", "forward")
