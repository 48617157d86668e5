"""The static page in a real browser: Python in a worker answers as the command line does, offline too."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
from collections.abc import Iterator
from html import unescape
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.page.answers import answer
from ds_advise.advisor.page.build import MEMORY
from ds_advise.advisor.page.options import state_command

from tests.advisor.page.browser import FIRST_ANSWER, WHOLE_ANSWER, served

pytestmark = pytest.mark.slow

JSON = "#files .copy:has([data-save='answer.json']) code"

QUESTIONS: tuple[dict[str, str], ...] = (
    {"model": "Qwen2.5-14B", "gpus": "2x32GB"},
    {"model": "Llama-3.1-8B", "gpus": "1xRTX-4090", "ram": "64GB", "method": "lora", "lora-rank": "64"},
    {"model": "gpt2-xl", "gpus": "8xA100-80GB", "ram": "1TB", "method": "qlora", "micro-batch": "2"},
    {"model": "Mixtral-8x7B", "gpus": "4x8xH100", "interconnect": "400Gb/s", "gradient-checkpointing": "off"},
    {"model": "gemma-2-9b", "gpus": "4x24GB", "nvme": "/nvme:2TB", "ram": "256GB", "risk": "bold"},
    {"model": "bert-large-uncased", "gpus": "2x32GB", "precision": "fp16", "framework": "deepspeed"},
    {"model": "t5-large", "gpus": "1xRTX-4090", "seq-len": "512", "software": "transformers=4.45,reentrant"},
    {"model": "Qwen2.5-14B", "gpus": "8xA100-80GB", "optimizer": "adamw_8bit", "global-batch": "256"},
)


@pytest.fixture(scope="module")
def tab(chromium: Any, static_page: Path) -> Iterator[Any]:
    """A tab with the page loaded, for the questions that follow one another."""
    with served(static_page) as address, contextlib.closing(chromium.new_context()) as context:
        context.set_default_timeout(300_000)
        opened = context.new_page()
        opened.goto(address)
        opened.wait_for_selector(FIRST_ANSWER)
        yield opened


def ask(tab: Any, state: dict[str, str]) -> None:
    """Ask by the address, and wait for the whole answer."""
    tab.evaluate(
        """(state) => {
          document.getElementById("answer").setAttribute("aria-busy", "true");
          location.hash = new URLSearchParams(state);
        }""",
        state,
    )
    tab.wait_for_selector(WHOLE_ANSWER)


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run([*shlex.split(command)[1:], "--json", "--no-write", "--no-deepspeed-estimate", "--offline"])
    out, err = capsys.readouterr()
    return code, out, err


def assert_same(shown: Any, expected: Any, place: str = "") -> None:
    """Equal, floats to nine digits: the browser's mathematical functions round the last ones their own way."""
    if isinstance(expected, dict | list):
        keys = list(expected) if isinstance(expected, dict) else range(len(expected))
        assert len(shown) == len(expected) and (isinstance(expected, list) or list(shown) == keys), place
        for key in keys:
            assert_same(shown[key], expected[key], f"{place}.{key}")
    elif isinstance(expected, float):
        assert math.isclose(shown, expected, rel_tol=1e-9, abs_tol=1e-12), (place, shown, expected)
    else:
        assert shown == expected, place


def assert_shown(tab: Any, state: dict[str, str]) -> None:
    """Every text on the page is that of the answer, which is computed here without a browser."""
    request = json.dumps({"state": state})
    parts = {part["part"]: part for part in map(json.loads, answer(request))}
    expected = parts["answer"]
    assert tab.text_content("#verdict h2") == expected["verdict"]
    for name in ("lead", "sections"):
        shown = re.sub(r'<(\w+)[^>]* data-flag="([^"]*)".*?</\1>', r"\2", tab.inner_html(f"#{name}"), flags=re.DOTALL)
        shown = re.sub(r"<button.*?</button>", "", shown, flags=re.DOTALL)
        assert words(shown) == words(expected[name]), name
    changes = tab.locator("#changes td button").all_text_contents()
    assert len(changes) == len(parts["whole"]["options"])
    for change, options in zip(changes, parts["whole"]["options"].values(), strict=True):
        assert all(value in change for value in options.values()), change


def words(html: str) -> list[str]:
    """The words of a piece of a page."""
    return unescape(re.sub("<.*?>", " ", re.sub("</?span.*?>", "", html))).split()


def test_every_figure_is_that_of_the_command_line(tab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no answer, both say why."""
    refused = 0
    for state in QUESTIONS:
        ask(tab, state)
        code, out, err = printed(state_command(state), capsys)
        if code == 2:
            refused += 1
            what = err.removeprefix("ds-advise: ").split(":")[0].strip()
            assert what.lower() in tab.text_content("#error").lower(), state
            continue
        assert tab.is_hidden("#error"), state
        assert_same(
            json.loads(tab.text_content(JSON)),
            json.loads(out),
            state_command(state),
        )
        assert_shown(tab, state)
    assert refused <= 2


def test_the_page_works_offline_after_the_first_load(page: Any, static_page: Path) -> None:
    with served(static_page) as address:
        page.goto(address)
        page.wait_for_selector(WHOLE_ANSWER)
        page.wait_for_selector("#status:has-text('offline')")
        title = page.text_content("#verdict h2")
    # The server is gone; what follows comes from the browser's cache.
    page.context.set_offline(True)
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(WHOLE_ANSWER)
    assert page.text_content("#verdict h2") == title
    page.fill("#lint-text", '{"zero_optimizatoin": {"stage": 2}}')
    page.click("text=Check it")
    page.wait_for_selector("#findings pre")
    page.fill("#lint-text", "no JSON")
    page.click("text=Check it")
    page.wait_for_selector("#findings .error:has-text('not JSON')")


@pytest.mark.parametrize("has_memory", [True, False])
def test_a_visit_goes_on_from_the_memory_that_the_build_left_or_imports(
    page: Any, static_page: Path, static_address: str, has_memory: bool
) -> None:
    assert (static_page / MEMORY).is_file()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    if not has_memory:
        page.context.route(f"**/{MEMORY}", lambda route: route.abort())
    page.goto(static_address)
    page.wait_for_selector(WHOLE_ANSWER)
    assert page.is_hidden("#error")
    assert any("imported again" in text for text in messages) == (not has_memory)


def test_positions_of_a_dragged_slider_have_the_answers_of_their_questions(tab: Any) -> None:
    """From the second move on they may have been computed ahead."""
    state = {"model": "Qwen2.5-7B", "gpus": "4x24GB"}
    ask(tab, state)
    for step, length in ((1, "3072"), (1, "4096"), (-1, "3072")):
        tab.evaluate(
            """(step) => {
              document.getElementById("answer").setAttribute("aria-busy", "true");
              const range = document.querySelector("[data-slider=seq-len] input[type=range]");
              range.value = +range.value + step;
              range.dispatchEvent(new Event("input"));
            }""",
            step,
        )
        tab.wait_for_selector(WHOLE_ANSWER)
        assert_shown(tab, {**state, "seq-len": length})


def test_the_first_load_without_a_network_is_explained_beside_the_answer_of_the_build(
    page: Any, static_address: str
) -> None:
    page.context.route("**/pyodide*", lambda route: route.abort())
    page.goto(static_address)
    page.wait_for_selector("#error:not([hidden])")
    assert "could not be loaded" in page.text_content("#error")
    state = {"model": "Qwen2.5-14B", "gpus": "2x32GB"}
    expected, charts = (json.loads(part) for part in islice(answer(json.dumps({"state": state})), 2))
    assert page.text_content("#verdict h2") == expected["verdict"]
    assert page.get_attribute("#charts [data-tip]", "data-tip") in charts["charts"]
    assert page.input_value("#model") == state["model"]


def test_a_page_opened_as_a_file_explains_how_to_serve_it(page: Any, static_page: Path) -> None:
    page.goto((static_page / "index.html").as_uri())
    page.wait_for_selector("#error:not([hidden])")
    assert f'python3 -m http.server --directory "{static_page}"' in page.text_content("#error")


def test_a_browser_without_webassembly_gets_an_error(page: Any, static_address: str) -> None:
    page.add_init_script("delete globalThis.WebAssembly")
    page.goto(static_address)
    page.wait_for_selector("#error:not([hidden])")
    assert "no WebAssembly" in page.text_content("#error")
