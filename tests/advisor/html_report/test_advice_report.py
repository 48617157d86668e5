"""The report of an advice: one file, the figures of `--json`, and nothing in it that a user could break."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.html_report import report

from tests.advisor.html_report.report_page import MOST_BYTES, Page
from tests.advisor.page.browser import browser, chromium_path

QUESTION = ["Qwen2.5-14B", "--gpus", "2x32GB", "--offline", "--no-deepspeed-estimate"]


def report_of(tmp_path: Path, *arguments: str) -> Page:
    path = tmp_path / "report.html"
    assert run([*arguments, "--no-write", "--quiet", "--html", str(path), "--force"]) in (0, 1)
    assert path.stat().st_size <= MOST_BYTES
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return report_of(tmp_path_factory.mktemp("report"), *QUESTION)


@pytest.fixture(scope="module")
def answer(page: Page) -> dict[str, Any]:
    """What `--json` prints, with the figures that the report carries checked against it."""
    done = subprocess.run(
        [sys.executable, "-m", "ds_advise", *QUESTION, "--json", "--no-write"],
        capture_output=True,
        text=True,
        check=True,
    )
    form: dict[str, Any] = json.loads(done.stdout)
    assert page.data == form
    return form


def test_every_character_of_the_report_can_be_read(page: Page) -> None:
    """A figure and its unit are held together by a no-break space, not by a sign for what cannot be shown."""
    assert "\N{NO-BREAK SPACE}tokens/s" in page.text
    assert "\N{REPLACEMENT CHARACTER}" not in page.text


def test_a_section_with_the_chart_of_memory_alone_is_called_so(page: Page) -> None:
    assert "Memory and time" not in page.text


def test_the_ladder_has_the_figures_of_json(page: Page, answer: dict[str, Any]) -> None:
    rows = [row for row in page.sections["ladder"] if len(row) > 1]
    assert [row[0][0] for row in rows] == [plan["strategy"] for plan in answer["candidates"]]
    for row, plan in zip(rows, answer["candidates"], strict=True):
        exact = [value for _, value in row if value is not None]
        assert exact[:2] == [plan["device_bytes_per_gpu"], plan["host_bytes_per_node"]]
        assert exact[2:] == ([] if plan["reason"].endswith("x VRAM") else [plan["tokens_per_second"]])


@pytest.mark.parametrize(("section", "field"), [("memory", "components"), ("time", "time_components")])
def test_the_tables_of_the_charts_have_the_figures_of_json(
    page: Page, answer: dict[str, Any], section: str, field: str
) -> None:
    """Every part of every plan; times are those of the chart, of 1,000 tokens."""
    rows = [row for row in page.sections[section] if row]
    for index, plan in enumerate(answer["candidates"], start=1):
        tokens = plan["step_seconds"] * plan["tokens_per_second"]
        scale = 1000 / tokens if field == "time_components" else 1
        shown = sorted(value for row in rows if (value := row[index][1]))
        assert shown == pytest.approx(sorted(scale * value for value in plan[field].values() if value), rel=1e-9)


def test_a_column_of_times_has_the_unit_of_its_chart(page: Page) -> None:
    figures = [text for row in page.sections["time"] if row for text, value in row if value is not None]
    assert "s per 1,000 tokens" in page.text and len(figures) > 20
    assert [text for text in figures if not re.fullmatch(r"<?[\d,.]+", text)] == []


def test_a_part_that_is_less_than_a_figure_is_not_shown_as_nothing(page: Page) -> None:
    figures = [text for name in ("memory", "ram") for row in page.sections[name] for text, value in row if value]
    assert "<0.01" in figures and "0.00" not in figures


def test_a_bar_of_time_is_described_with_its_parts(page: Page) -> None:
    (words,) = {
        value
        for name, value in page.attributes
        if name == "aria-label" and value.startswith("zero3, ") and "a step of" in value
    }
    assert re.search(r"x VRAM\. .*matrix products: \d+ s", words)


def test_every_part_shows_its_bytes_formula_and_source(page: Page, answer: dict[str, Any]) -> None:
    for size in answer["recommended"]["components"].values():
        if size > 2**27:  # as wide as a pixel
            assert f"({size:,} bytes)\n= " in page.text
    assert page.text.count("source: ") > 100


def test_the_report_needs_nothing_from_elsewhere(page: Page) -> None:
    """No address but SVG's namespace, nothing that loads, and a policy that forbids it."""
    for name, value in page.attributes:
        assert name != "src" and "url(" not in value
        assert "://" not in value or name == "xmlns", (name, value)
        assert name != "href" or value.startswith("#")
    assert ("http-equiv", "Content-Security-Policy") in page.attributes
    assert not {"link", "img", "iframe", "object"} & set(page.names)


def test_the_report_is_read_without_seeing_its_pictures(page: Page) -> None:
    """Each picture has a name and a table, and every link leads to a section."""
    pictures = page.names.count("svg")
    assert pictures == 2 * page.names.count("figure") == 14
    assert ("lang", "en") in page.attributes
    links = {value[1:] for name, value in page.attributes if name == "href"}
    assert links == set(page.sections)
    assert sum(name == "data-copy" for name, _ in page.attributes) >= 3


def test_commands_of_a_report_name_the_gpus_since_it_is_read_on_other_machines(page: Page) -> None:
    assert "ds-advise dry-run ds_config.json --gpus 2x32GB -- train.py" in page.text


def test_configuration_and_commands_are_in_the_report(page: Page, answer: dict[str, Any]) -> None:
    for words in (
        '"stage": 3',
        "per_device_train_batch_size=16",
        "accelerate launch",
        "what the ranks shard: 1 optimizer states, 2 also gradients, 3 also weights",
        *answer["assumptions"][1:],
        *answer["reasons"],
    ):
        assert words in page.text, words


@pytest.mark.parametrize(
    "question",
    [
        "Qwen2.5-72B --gpus 2x24GB --ram 100GB",
        "gpt2 --gpus 8xA100-80GB --sharding fsdp",
        "gpt2 --gpus 1x8GB --micro-batch 1024",  # every plan needs more memory than the chart of speed shows
    ],
)
def test_other_answers_make_whole_reports_too(tmp_path: Path, question: str) -> None:
    """Where nothing fits, and with a baseline of plain PyTorch."""
    page = report_of(tmp_path, *question.split(), "--offline", "--no-deepspeed-estimate")
    assert page.data["recommended"] is None or page.data["pytorch_baseline"] is not None
    assert ("configuration" in page.sections) == (page.data["recommended"] is not None)


@pytest.mark.parametrize(
    ("option", "where", "words"),
    [
        ("--html", "mine.html", "--force"),
        ("--html", "-", "name it .html"),
        ("--html", "report.pdf", "name it .html"),
        ("--plot", "mine.svg", "--force"),
        ("--html", "missing/report.html", "--html"),
        ("--html", "mine.svg/report.html", "--html"),
        ("--plot", "memory.png", "ds-advise[png]"),
        ("--plot", "memory.pdf", "SVG and PNG"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_sentence(
    option: str,
    where: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is computed: a file that exists, a folder that is missing, closed or none, another format."""
    monkeypatch.setattr(report, "find_spec", lambda _name: None)
    for name in ("mine.svg", "mine.html"):
        Path(name).write_text("mine")
    assert run([*QUESTION, "--no-write", option, where]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and words in error
    assert Path("mine.svg").read_text() == Path("mine.html").read_text() == "mine"
    assert not Path(where).exists() or where.startswith("mine")


def test_a_picture_stands_alone(tmp_path: Path) -> None:
    """SVG with every strategy, its heading, and dark colours where the screen is dark."""
    path = tmp_path / "memory.svg"
    assert run([*QUESTION, "--no-write", "--quiet", "--plot", str(path)]) == 0
    root = ET.parse(path).getroot()
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"zero3-offload", "28.1", "31.4 GiB per GPU"} <= set(texts)
    assert "Qwen2.5-14B" in (texts[0] or "")
    assert "prefers-color-scheme: dark" in path.read_text()


COVERED = """() => [...document.querySelectorAll(".copy")].filter(each => each.checkVisibility()).map(each => {
  const [code, buttons] = ["pre", ".buttons"].map(name => each.querySelector(name).getBoundingClientRect());
  return code.left < buttons.right && buttons.left < code.right
    && code.top < buttons.bottom && buttons.top < code.bottom;
})"""
"""Script: for each visible code with buttons, whether they overlap."""


def in_browser(folder: Path, look: Callable[[Any], Any]) -> Any:
    """What `look` finds in a tab of a browser that shows the report."""
    pytest.importorskip("playwright")
    path = folder / "report.html"
    assert run([*QUESTION, "--no-write", "--quiet", "--html", str(path)]) == 0

    def looked() -> Any:
        with browser() as opened:
            tab = opened.new_page(viewport={"width": 1000, "height": 900})
            tab.goto(path.as_uri())
            return look(tab)

    # In a thread of its own: Playwright keeps a loop running in the thread of the tests of the page.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(looked).result()


@pytest.mark.skipif(chromium_path() is None, reason="there is no Chromium")
def test_the_buttons_do_not_cover_the_code(tmp_path: Path) -> None:
    """A command that is longer than its box scrolls beside the buttons, or below them on a narrow screen."""

    def covered(tab: Any) -> list[bool]:
        found = []
        for width in (1200, 800, 400):
            tab.set_viewport_size({"width": width, "height": 900})
            found += tab.evaluate(COVERED)
        return found

    overlaps = in_browser(tmp_path, covered)
    assert overlaps and not any(overlaps)


@pytest.mark.skipif(chromium_path() is None, reason="there is no Chromium")
def test_paper_has_what_is_open_and_a_focused_bar_leaves_the_others_in_sight(tmp_path: Path) -> None:
    """Without what one does on a screen."""

    def shown(tab: Any) -> tuple[list[bool], bool]:
        tab.locator("#time .wide .row").first.scroll_into_view_if_needed()
        tab.locator("#time .wide .row").first.focus()
        tab.keyboard.press("Tab")
        tip, chart = (tab.locator(each).bounding_box() for each in ("#tip", "#time .wide svg"))
        tab.locator("#time summary").click()
        tab.emulate_media(media="print")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        places = ("#time table", "#memory table", "#memory .screen", "#figures table")
        is_apart = tip["y"] >= chart["y"] + chart["height"] or tip["y"] + tip["height"] <= chart["y"]
        return [tab.locator(place).first.is_visible() for place in places], is_apart

    visible, is_apart = in_browser(tmp_path, shown)
    assert visible == [True, False, False, False] and is_apart
