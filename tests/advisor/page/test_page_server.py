"""The page on this machine: answered by the installed package, to this machine's browser alone."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ds_advise import advise
from ds_advise.advisor.html_report.report import write_report
from ds_advise.advisor.page.serve import page_server
from ds_advise.advisor.render.answer import answer_document
from ds_advise.estimators.errors import DsAdviseError

ASKED = json.dumps({"state": {"model": "Qwen2.5-7B", "gpus": "2x24GB"}})


@pytest.fixture
def port() -> Iterator[int]:
    with page_server(0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def asked(port: int, method: str, path: str, body: str | bytes | None = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def test_answers_come_part_by_part(port: int) -> None:
    status, text = asked(port, "POST", "/ask/answer", ASKED)
    assert status == 200
    assert [json.loads(line)["part"] for line in text.splitlines() if "pause" not in line] == [
        "answer",
        "charts",
        "whole",
    ]


def test_the_pages_files_are_served_and_no_others(port: int) -> None:
    status, text = asked(port, "GET", "/")
    assert status == 200 and 'data-answers="server"' in text
    assert asked(port, "GET", "/page.js")[0] == 200
    for path in ("/../../etc/passwd", "/answers.py", "/ask/answer"):
        assert asked(port, "GET", path)[0] == 404


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_other_sites_get_no_answer(port: int, headers: dict[str, str]) -> None:
    assert asked(port, "POST", "/ask/answer", ASKED, **headers)[0] == 400


def test_a_bad_request_is_an_error_and_the_next_is_answered(port: int) -> None:
    for body in ("no JSON", b"\xff", "{}", "[]", "[" * 100_000):
        assert asked(port, "POST", "/ask/answer", body)[0] == 400
    assert "error of ds-advise itself" in asked(port, "POST", "/ask/answer", '{"state": 1}')[1]
    assert asked(port, "POST", "/ask/nothing", "{}")[0] == 400
    assert asked(port, "POST", "/ask/choices", "{}")[0] == 200


def test_a_port_in_use_is_an_error(port: int) -> None:
    with pytest.raises(DsAdviseError, match=f"port {port} cannot be used"):
        page_server(port)


def test_a_report_on_a_telephone_hides_nothing(page: Any, tmp_path: Path) -> None:
    """Commands and changes are folded, and no button stands on them."""
    answer = advise("gpt2", gpus="2x24GB", offline=True, deepspeed_estimate=False)
    write_report(answer_document(answer, details=True, charts=True), tmp_path / "report.html", print)
    page.set_viewport_size({"width": 390, "height": 740})
    page.goto((tmp_path / "report.html").as_uri())
    cut = "[...document.querySelectorAll('#start pre, #changes .scroll')].filter(b => b.scrollWidth > b.clientWidth)"
    assert page.evaluate(f"{cut}.map(b => b.textContent)") == []
    assert page.evaluate("getComputedStyle(document.querySelector('#start .buttons')).position") == "static"


def test_the_page_opens_and_follows_the_question(port: int, page: Any) -> None:
    """In a real browser: the answer, a slider by the keyboard, a change that is asked, the address, a telephone."""
    page.goto(f"http://127.0.0.1:{port}/#model=Qwen2.5-7B&gpus=2x24GB&method=lora")
    page.wait_for_selector("#answer[aria-busy=false]")
    assert page.text_content("#verdict h2").endswith("fits.")
    page.get_by_role("slider", name="Sequence").press("ArrowRight")
    page.wait_for_selector("#command:has-text('--seq-len 3072')")
    page.wait_for_selector("#answer[aria-busy=false]")
    page.wait_for_url(lambda url: "seq-len=3072" in url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy command").click()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command.startswith("ds-advise Qwen2.5-7B --gpus 2x24GB") and "--seq-len 3072" in command
    rows = page.evaluate("new Set([...document.querySelectorAll('.tiles > div')].map(t => t.offsetTop)).size")
    assert rows == 1, "every figure of the first card stands in one row"
    first = page.locator("#changes button").first
    change = first.text_content()
    first.click()
    page.wait_for_selector(f"#command:has-text('{change.split()[-1]}')")
    assert "--" not in page.inner_text("#lead"), "sentences name fields, not flags"
    page.goto(f"http://127.0.0.1:{port}/#model=Qwen2.5-7B&gpus=2x24GB&micro-batch=3&global-batch=32")
    page.wait_for_selector("#error:not([hidden])")
    page.locator("#error .link").last.click()
    assert page.evaluate("document.activeElement.id") == "global-batch-option"
    assert page.evaluate("document.activeElement.ariaInvalid") == "true"
    page.keyboard.type("24")
    page.keyboard.press("Enter")
    page.wait_for_selector("#error", state="hidden")
    page.get_by_label("Name").fill("no such model")
    page.get_by_label("Name").press("Enter")
    page.wait_for_selector("#error:not([hidden])")
    assert "in the catalogue" in page.text_content("#error")
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.evaluate("scrollTo(0, 0)")
    place = page.locator("#summary").bounding_box()
    assert place["y"] + place["height"] <= page.locator("#question").bounding_box()["y"], "the verdict is on top"
