"""The page on this machine: answered by the installed package, to this machine's browser alone."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ds_advise import advise
from ds_advise.advisor.cli.machine import page as page_command
from ds_advise.advisor.document.blocks import Document, Figure, Heading, Row, Table
from ds_advise.advisor.html_report.report import render_html, write_report
from ds_advise.advisor.page import serve
from ds_advise.advisor.page.serve import page_server
from ds_advise.advisor.render.answer import answer_document
from ds_advise.estimators.errors import DsAdviseError

ASKED = json.dumps({"state": {"model": "Qwen2.5-7B", "gpus": "2x24GB"}})


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


def test_a_question_that_the_browser_left_is_not_computed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dragged slider asks one for each position, and only the last is waited for."""
    computed = list[str]()

    def answered(request: str) -> Iterator[str]:
        computed.append(json.loads(request)["state"])
        yield "{}"

    monkeypatch.setattr(serve, "REQUESTS", {"answer": answered})
    with serve._Handler.turn:
        for number in range(3):
            left = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            left.request("POST", "/ask/answer", json.dumps({"state": number}))
            left.getresponse().close()
            left.close()
    assert asked(port, "POST", "/ask/answer", json.dumps({"state": "last"})) == (200, "{}\n")
    assert computed == ["last"]


def test_a_port_in_use_is_an_error(port: int) -> None:
    with pytest.raises(DsAdviseError, match=f"port {port} cannot be used"):
        page_server(port)


def test_a_copied_link_has_the_same_port_after_the_next_start(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another program has it."""
    shown = CliRunner().invoke(page_command, ["--help"]).output
    assert f"[default: {serve.PORT} if it is free]" in " ".join(shown.split())
    monkeypatch.setattr(serve, "PORT", port)
    with page_server(None) as other:
        free = other.server_address[1]
    assert free != port
    monkeypatch.setattr(serve, "PORT", free)
    for _ in range(2):
        with page_server(None) as server:
            assert server.server_address[1] == free


def test_a_browser_that_leaves_prints_nothing(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(*_: object, **__: object) -> bytes:
        raise BrokenPipeError

    monkeypatch.setattr(serve, "page_file", leave)
    with pytest.raises(http.client.RemoteDisconnected):
        asked(port, "GET", "/")
    assert capsys.readouterr().err == ""


def test_a_report_on_a_telephone_hides_nothing(page: Any, tmp_path: Path) -> None:
    """Commands and changes are folded, and no button stands on them."""
    answer = advise("gpt2", gpus="2x24GB", offline=True, deepspeed_estimate=False)
    write_report(answer_document(answer, details=True, charts=True), tmp_path / "report.html", print)
    page.set_viewport_size({"width": 390, "height": 740})
    page.goto((tmp_path / "report.html").as_uri())
    boxes = page.locator(".copy pre:visible, #changes .scroll, #ladder .scroll")
    cut = boxes.evaluate_all("(all) => all.filter(b => b.scrollWidth > b.clientWidth).map(b => b.textContent)")
    assert boxes.count() > 2 and cut == []
    assert page.evaluate("getComputedStyle(document.querySelector('#start .buttons')).position") == "static"
    painted = "(row) => [row, document.body].map((each) => getComputedStyle(each).backgroundColor)"
    band, paper = page.locator("#ladder tr.chosen").evaluate(painted)
    assert band not in (paper, "rgba(0, 0, 0, 0)"), "the row, also between its cells"
    command = page.locator("code:has-text('expandable_segments')").first
    assert (
        command.evaluate(
            """(code) => {
          const range = document.createRange(), at = code.lastChild.data.indexOf("expandable_segments:True");
          range.setStart(code.lastChild, at);
          range.setEnd(code.lastChild, at + "expandable_segments:True".length);
          return range.getClientRects().length;
        }"""
        )
        == 1
    ), "a setting breaks after its ="
    row = page.locator("#ladder tr.chosen td:visible").all_text_contents()
    assert [row[0], row[-1]] == ["ddp", "fits"] and len(row) == 7, "memory and speed beside, batch, ckpt and RAM below"
    flags = page.locator(".flag:visible")
    assert flags.count() > 2
    assert flags.evaluate_all("(all) => all.every((flag) => flag.getClientRects().length === 1)"), "no flag is broken"


def test_a_table_of_many_figures_has_room_on_a_telephone(page: Any, tmp_path: Path) -> None:
    """Such as the phases of a dry run; words of a last column stand below their row."""
    sizes = [Figure(f"{number:,}", number) for number in (12_345, 10_234, 45_123, 210)]
    figures = Table(
        ["iteration", "phase (MiB)", "GPU peak", "GPU live", "host live", "pinned"],
        [Row([Figure("1"), "optimizer step", *sizes])],
        optional=(5, 4, 3),
    )
    words = Table(["machine", "time", "cost", "RAM", "plan"], [Row(["A" * 20, *sizes[:3], "zero3"])], optional=(3, 4))
    blocks = [Heading("figures", "figures"), figures, Heading("words", "words"), words]
    document = Document(subject="s", verdict="v", tone="good", blocks=blocks, data={})
    (tmp_path / "report.html").write_text(render_html(document))
    page.set_viewport_size({"width": 390, "height": 740})
    page.goto((tmp_path / "report.html").as_uri())
    assert page.locator(".scroll").evaluate_all("(all) => all.every(b => b.scrollWidth <= b.clientWidth)")
    row, last = (
        page.locator("#words tbody td").first.bounding_box(),
        page.locator("#words tbody td").last.bounding_box(),
    )
    assert last["y"] >= row["y"] + row["height"] and last["x"] == row["x"]
    assert page.locator("#figures td:visible").count() == 6


def test_more_options_are_those_that_have_an_effect(port: int, page: Any) -> None:
    """In groups, above buttons that stay in sight."""
    page.goto(f"http://127.0.0.1:{port}/#model=gpt2&gpus=2x24GB")
    page.wait_for_selector("#answer[aria-busy=false]")
    page.locator("#more summary").click()

    def shown() -> tuple[list[str], list[str]]:
        groups, labels = page.locator("#options legend:visible"), page.locator("#options label:visible")
        return groups.all_inner_texts(), labels.all_inner_texts()

    groups, labels = shown()
    assert groups == ["Machine", "Method", "Training", "Software", "Amount of training", "Answer"]
    assert "ZeRO++" in labels and not {"DoRA", "Quantization", "Precomputed reference", "vLLM sleep mode"} & {*labels}
    for size in ((1280, 700), (390, 740)):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.get_by_role("textbox", name="Global batch").scroll_into_view_if_needed()
        box = page.get_by_role("button", name="Reset").bounding_box()
        assert box["y"] > 0 and box["y"] + box["height"] <= size[1], size
    page.get_by_label("Objective").select_option("grpo")
    page.locator("[name=method][value=qlora]").check()
    groups, labels = shown()
    assert "Reinforcement learning" in groups and {"DoRA", "Quantization", "vLLM sleep mode"} <= {*labels}
    page.wait_for_selector("#answer[aria-busy=false]")


def test_a_place_in_the_page_is_no_question_and_an_unknown_key_is_left_out(port: int, page: Any) -> None:
    """The verdict bar and the skip link take the focus to the answer; the question stays."""
    page.set_viewport_size({"width": 390, "height": 740})
    page.goto(f"http://127.0.0.1:{port}/#model=Qwen2.5-7B&gpus=8xA100-80GB&foo=1&__proto__=2")
    page.wait_for_selector("#answer[aria-busy=false]")
    assert page.is_hidden("#error") and page.inner_text("#dropped").endswith(": foo, __proto__")
    address = page.url
    for link in ("#summary", ".skip"):
        page.locator(link).press("Enter")
        assert page.evaluate("document.activeElement.id") == "answer" and page.url == address
        assert page.evaluate("Math.abs(document.getElementById('answer').getBoundingClientRect().top)") < 200
        page.evaluate("document.activeElement.blur()")
    page.evaluate("location.hash = '#lint'")
    page.wait_for_url(lambda url: "model=Qwen2.5-7B" in url)
    assert page.input_value("#model") == "Qwen2.5-7B" and "Qwen2.5-7B" in page.inner_text("#verdict .subject")
    page.locator("#changes button").first.press("Enter")
    assert page.evaluate("document.activeElement.id") == "answer", "the focus is not lost with the button"
    page.wait_for_selector("#answer[aria-busy=false]")
    assert page.is_hidden("#dropped")
    page.locator("#count-value").fill("1000000")
    page.locator("#count-value").press("Enter")
    assert page.inner_text("#error").endswith("Write a whole number from 1 to 16.")


def test_on_a_telephone_code_is_whole_and_findings_stand_apart(port: int, page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 740})
    page.goto(f"http://127.0.0.1:{port}/#model=Llama-3.1-70B&gpus=1x24GB&ram=32GB")
    page.wait_for_selector("#answer[aria-busy=false]")
    bar = page.inner_text("#summary")
    assert "NVMe drive" in bar and "--" not in bar
    page.goto(f"http://127.0.0.1:{port}/#model=gpt2&gpus=2x24GB")
    page.wait_for_selector("#answer[aria-busy=false] #sections .copy")
    cut = "(all) => all.filter(b => b.scrollWidth > b.clientWidth).map(b => b.textContent)"
    assert page.locator(".copy pre:visible").count() > 2
    assert page.locator(".copy pre:visible").evaluate_all(cut) == []
    page.fill("#lint-text", '{"zero_optimization": {"stage": 2, "overlap_com": true}, "train_batch": 3}')
    page.click("text=Check it")
    page.wait_for_selector("#findings .finding")
    lines = "(all) => all.map((each) => getComputedStyle(each).borderTopWidth)"
    assert {*page.locator("#findings .finding").evaluate_all(lines)} == {"1px"}


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
    page.get_by_label("Name").fill("mistral-7b")
    page.get_by_label("Name").press("Enter")
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error").startswith("Model: 'mistral-7b' is ambiguous")
    assert page.is_visible("#older"), "the answer below is not of this question"
    page.locator("#error button").last.click()
    page.wait_for_selector("#error", state="hidden")
    assert page.input_value("#model") == "mistralai/Mistral-7B-v0.3"
    page.get_by_label("GPU", exact=True).fill("H1000")
    page.get_by_label("GPU", exact=True).press("Enter")
    page.wait_for_selector("#error:not([hidden])")
    assert "Write H100-SXM5, " in page.inner_text("#error"), "the number has a field of its own"
    page.locator("#error button").first.click()
    page.wait_for_selector("#error", state="hidden")
    assert (page.input_value("#kind"), page.input_value("#count-value")) == ("H100-SXM5", "2")
    page.locator("#ram-value").fill("512")
    page.locator("#ram-value").press("Enter")
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error").startswith("\"Host RAM per node\" '512'")
    assert page.inner_text("#error").endswith("Write it as 512GB.")
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.evaluate("scrollTo(0, 0)")
    place = page.locator("#error").bounding_box()
    assert place["y"] + place["height"] <= page.locator("#question").bounding_box()["y"], "the error is on top"
