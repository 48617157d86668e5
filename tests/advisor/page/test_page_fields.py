"""The fields of the page in a real browser: what they accept, and what is shown and copied where there is no answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

CALM = "#answer[aria-busy=false]"
NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
WITHOUT_COPYING = f"{NO_CLIPBOARD}; document.execCommand = () => false"


@pytest.fixture
def opened(port: int, page: Any) -> Any:
    """The page with a question, given as options; waits for its answer or its error."""

    def ask(script: str = "", **options: str) -> Any:
        if script:
            page.add_init_script(script)
        asked = {"model": "gpt2", "gpus": "2x24GB", **{name.replace("_", "-"): text for name, text in options.items()}}
        page.goto(f"http://127.0.0.1:{port}/#{urlencode(asked)}")
        page.wait_for_selector(CALM)
        return page

    return ask


def enter(page: Any, field: str, text: str) -> None:
    page.fill(field, text)
    page.press(field, "Enter")
    page.wait_for_selector(CALM)


def test_pictures_are_those_of_the_answer_above_them(opened: Any) -> None:
    """Also of one in which every plan needs far more memory than the chart of speed shows."""
    page = opened()
    assert page.locator("#tabs button").count() == 5
    page.wait_for_selector("#scaling svg", state="attached")
    enter(page, "#micro-batch-value", "16k")
    assert page.is_hidden("#error") and page.text_content("#verdict h2") == "Nothing fits."
    assert page.locator("#tabs button").all_text_contents() == ["Memory", "Host RAM", "Time of a step"]
    answer = "{part: 'answer', verdict: 'v', figures: '', used: {}, idle: []}"
    page.evaluate(f"show({answer}); showError({{sentence: 'An error.'}})")
    assert page.is_hidden("#pictures") and page.is_hidden("#older"), "the pictures were of another question"


def test_a_number_that_is_none_is_refused_at_its_field(opened: Any) -> None:
    page = opened()
    for field, text in (("count", "3.5"), ("count", "abc"), ("nodes", ""), ("nodes", "0")):
        enter(page, f"#{field}-value", text)
        assert f"'{text}' is not a number of" in page.text_content("#error")
        assert page.evaluate(f"document.getElementById('{field}-value').ariaInvalid") == "true"
        assert page.input_value("#kind") == "24GB"
    enter(page, "#ram-value", "64GB")
    assert "'0'" in page.text_content("#error"), "another field does not hide it"
    page.get_by_role("button", name="Copy command").click()
    page.wait_for_selector("button:has-text('Not copied')")
    for field in ("count", "nodes"):
        enter(page, f"#{field}-value", "2")
    page.wait_for_selector("#error", state="hidden")
    assert "--gpus 2x2x24GB" in page.text_content("#command")


def test_a_number_that_is_none_is_gone_with_other_gpus(opened: Any) -> None:
    """Those of a button or a whole text replace both counts."""
    page = opened()
    enter(page, "#count-value", "abc")
    enter(page, "#kind", "4x24GB")
    assert page.is_hidden("#error") and "--gpus 4x24GB" in page.text_content("#command")
    assert page.input_value("#count-value") == "4"
    page.wait_for_selector("#changes button", state="attached")
    page.evaluate(
        "showWhole({changes: '<table><td><code>x</code></td></table>', options: {x: {gpus: '2x80GB'}}, files: ''})"
    )
    enter(page, "#count-value", "abc")
    page.click("#changes td button")
    page.wait_for_selector("#command:has-text('--gpus 2x80GB')")
    assert page.is_hidden("#error") and page.input_value("#count-value") == "2"


def test_nodes_have_a_field_and_stay(opened: Any) -> None:
    page = opened(gpus="2x4xA100-80GB")
    assert [page.input_value(f"#{name}") for name in ("nodes-value", "count-value", "kind")] == ["2", "4", "A100-80GB"]
    enter(page, "#kind", "H100")
    assert "--gpus 2x4xH100" in page.text_content("#command")
    for key, count in (("ArrowRight", 5), ("ArrowLeft", 4)):
        page.get_by_role("slider", name="GPUs per node").press(key)
        page.wait_for_selector(f"#command:has-text('--gpus 2x{count}xH100')")
    page.wait_for_selector(CALM)


@pytest.mark.parametrize(
    "option, text, before, after",
    [("seq-len", "9k", "8192", "12288"), ("ram", "0.1TB", "64GB", "128GB"), ("seq-len", "7k", "6144", "8192")],
)
def test_a_slider_stands_where_the_command_reads_its_text(
    opened: Any, option: str, text: str, before: str, after: str
) -> None:
    page = opened(**{option: text})
    stops = page.evaluate(f"document.querySelector('[data-slider={option}]').stops")
    at = stops.index(text)
    assert stops[at - 1] == before and stops[at + 1] == after
    assert page.evaluate(f"+document.querySelector('[data-slider={option}] input[type=range]').value") == at


def test_a_value_that_an_option_does_not_have_is_named(opened: Any) -> None:
    page = opened(method="dora")
    assert page.text_content("#error") == "'dora' is not a value of \"Method\". Choose full, lora, qlora."


def test_the_command_is_copied_of_the_fields_and_only_said_to_be_if_it_is(opened: Any, port: int) -> None:
    page = opened()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    enter(page, "#model", "gpt-17")
    page.get_by_role("button", name="Copy command").click()
    page.wait_for_selector("#share-command:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == "ds-advise gpt-17 --gpus 2x24GB", "a terminal may know it"
    enter(page, "#seq-len-value", "bogus")
    page.get_by_role("button", name="Copy command").click()
    page.wait_for_selector("#share-command:has-text('Not copied')")
    for script, said in ((NO_CLIPBOARD, "Copied"), (WITHOUT_COPYING, "Not copied")):
        tab = page.context.new_page()
        tab.add_init_script(script)
        tab.goto(f"http://127.0.0.1:{port}/#model=gpt2&gpus=2x24GB")
        tab.wait_for_selector(CALM)
        for button in ("#share", "#share-command", "#command [data-copy]"):
            title = tab.text_content(button)
            tab.click(button)
            for words in (said, title):
                tab.wait_for_selector(f"{button}:text-is('{words}')")
        tab.close()


def test_an_error_on_a_telephone_has_its_buttons_on_top(opened: Any) -> None:
    page = opened(gpus="1x8GB", model="Qwen2.5-14B", ram="64GB")
    page.set_viewport_size({"width": 390, "height": 740})
    assert page.text_content("#summary span") == "zero3-nvme: needs 1.06 x VRAM", "what is short"
    assert page.locator("#ladder tr.closest td:visible").count() == 6, (
        "strategy and memory, below the others, the verdict"
    )
    below = page.locator("#ladder tr.closest td.optional")
    assert [box.get_attribute("data-title") for box in below.all()] == ["batch", "ckpt", "RAM GiB"]
    assert page.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('#ladder .scroll'))")
    enter(page, "#model", "mistral-7b")
    page.evaluate("scrollTo(0, 300)")
    box = page.locator("#error button").first.bounding_box()
    assert 0 <= box["y"] < 200 and page.is_hidden("#summary")
    page.locator("#error button").first.click()
    page.wait_for_selector("#error", state="hidden")
    page.wait_for_selector("#summary b")


def test_opened_options_are_in_sight(opened: Any) -> None:
    page = opened()
    page.locator("#more summary").click()
    page.wait_for_timeout(100)
    seen, edge = page.locator("#options fieldset").first.bounding_box(), page.locator("#share").bounding_box()
    assert seen["y"] + 100 < edge["y"]


@pytest.mark.parametrize(
    "sentence, shown",
    [
        ("Write --seq-len 2048, or max.", 'Write "Sequence": 2048, or max.'),
        ("Give --seq-len a number.", 'Give "Sequence" a number.'),
        ("GiB (--ram checks it)", 'GiB ("Host RAM per node" checks it)'),
        ("checkpointing on (--gradient-checkpointing)", "checkpointing on (change)"),
        ("Add --data FILE, --samples N or --tokens 1B.", 'Add --data FILE, "Samples": N or "Tokens": 1B.'),
        ("Pass --rollout generate or --nvme PATH:SIZE.", 'Pass "Generation": generate or "NVMe drive": PATH:SIZE.'),
        ("--ram '512' is not a size.", "\"Host RAM per node\" '512' is not a size."),
    ],
)
def test_names_of_options_in_sentences_are_those_of_their_fields(opened: Any, sentence: str, shown: str) -> None:
    page = opened()
    page.evaluate("(sentence) => showError({sentence})", sentence)
    assert page.text_content("#error") == shown


def test_a_warning_of_the_answer_is_a_note_with_a_link_to_its_field(opened: Any) -> None:
    page = opened(freeze="projector")
    assert page.text_content("#warnings") == (
        '"Frozen parts" projector has no effect: openai-community/gpt2 has no such part.'
    )
    page.locator("#warnings a").click()
    assert page.evaluate("document.activeElement.id") == "freeze-option"
    enter(page, "#freeze-option", "")
    page.wait_for_selector("#warnings", state="hidden")


def test_the_verdict_of_a_change_far_below_is_in_sight(opened: Any) -> None:
    """Beside the question too; it does not lie over the verdict itself."""
    page = opened(model="Qwen2.5-7B", gpus="2x24GB", ram="256GB")
    page.set_viewport_size({"width": 1440, "height": 800})
    assert page.is_hidden("#summary") and page.is_visible("#verdict")
    page.locator("#changes button").first.scroll_into_view_if_needed()
    page.evaluate("scrollTo(0, document.querySelector('#changes').offsetTop + 100)")
    page.wait_for_selector("#summary", state="visible")
    page.locator("#changes button").last.click()
    page.wait_for_selector(CALM)
    box = page.locator("#summary").bounding_box()
    assert page.text_content("#summary b") and 0 <= box["y"] < 100
    assert box["x"] > page.locator("#question").bounding_box()["x"] + 300, "over the answer alone"


@pytest.mark.parametrize("option", ["micro-batch", "seq-len"])
def test_auto_can_be_written(opened: Any, option: str) -> None:
    page = opened(**{option: "512"})
    enter(page, f"#{option}-value", "Auto")
    assert page.is_hidden("#error") and f"--{option}" not in page.text_content("#command")
    assert page.input_value(f"#{option}-value") == ""


def test_the_tab_key_stops_at_boxes_that_scroll(opened: Any) -> None:
    page = opened(model="Qwen2.5-14B", gpus="2x32GB")
    stops = """[...document.querySelectorAll('#result :is(pre, .scroll)')].filter((box) => box.checkVisibility()).map(
      (box) => [box.tabIndex === 0, box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight])"""
    page.wait_for_timeout(200)
    found = page.evaluate(stops)
    assert len(found) > 4 and all(is_stop == scrolls for is_stop, scrolls in found)
    page.set_viewport_size({"width": 700, "height": 800})
    page.wait_for_timeout(200)
    assert all(is_stop == scrolls for is_stop, scrolls in page.evaluate(stops))


def test_a_focused_bar_has_the_hint_that_a_pointer_gets(opened: Any) -> None:
    page = opened()
    page.focus("#tabs button")
    page.keyboard.press("Tab")
    assert page.is_visible("#tip") and page.text_content("#tip")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")
    page.locator("#charts [data-tip]").first.hover()
    assert "fp32" in page.text_content("#tip") or "GiB" in page.text_content("#tip")


def test_charts_name_fields_and_say_that_bars_are_cut(opened: Any) -> None:
    page = opened(model="Qwen2.5-14B", gpus="2x32GB")
    page.get_by_role("tab", name="Time of a step").click()
    chart = page.locator("#time")
    assert "longer bars are cut" in chart.text_content()
    assert "--" not in "".join(chart.locator("svg text").all_text_contents())
    assert "needs NVMe drive" in chart.text_content()


def test_hints_of_a_chart_name_fields(opened: Any) -> None:
    """Also the label that the keyboard shows, and a title, which becomes a label."""
    page = opened()
    page.evaluate(
        """fill("charts", '<svg class="picture"><g role="img" tabindex="0" aria-label="zero3: needs --ram"></g>'
          + '<g role="img"><title>needs --ram</title></g></svg>')"""
    )
    labels = page.locator("#charts [role=img]").evaluate_all("(all) => all.map((each) => each.ariaLabel)")
    assert labels == ["zero3: needs Host RAM per node", "needs Host RAM per node"]
    page.focus("#tabs button")
    page.keyboard.press("Tab")
    assert page.text_content("#tip") == labels[0]


def test_every_further_option_says_what_it_is(opened: Any) -> None:
    """Those that this model or objective cannot have are not offered."""
    page = opened()
    page.locator("#more summary").click()
    described = page.locator("#options div:has(> label)")
    assert described.count() > 20
    for box in described.all():
        assert len(box.get_attribute("title")) > 15
    page.focus("#eval-logits-option")
    assert page.is_visible("#eval-logits-option-help")
    for name in ("images-per-sample", "max-pixels", "experts", "freeze"):
        assert page.is_hidden(f"#{name}-option"), name
    losses = (
        "[...document.querySelectorAll('#loss-option option')].filter((one) => !one.hidden).map((one) => one.value)"
    )
    assert "value-head" not in page.evaluate(losses)
    enter(page, "#model", "Qwen2.5-VL-7B")
    for name in ("images-per-sample", "max-pixels", "freeze"):
        assert page.is_visible(f"#{name}-option"), name


def test_comments_are_removed_by_a_button(opened: Any) -> None:
    page = opened()
    page.fill("#lint-text", '// c\n{"zero_optimization":{"stage":2,},}')
    page.click("text=Check it")
    page.get_by_role("button", name="Remove the comments").click()
    page.wait_for_selector("#findings:not(:has-text('DS001'))")
    assert page.input_value("#lint-text") == '{"zero_optimization":{"stage":2}}'


def test_lint_on_the_page_corrects_what_does_not_change_the_training(opened: Any) -> None:
    page = opened()
    page.fill("#lint-text", '{"zero_optimization": {"stage": 2, "overlap_com": true}}')
    page.click("text=Check it")
    page.click("text=Correct them")
    page.wait_for_selector("#findings:not(:has-text('overlap_com\\''))")
    assert '"overlap_comm"' in page.input_value("#lint-text")


def test_a_correction_replaces_only_the_text_that_was_checked_and_can_be_undone(opened: Any) -> None:
    page, typed = opened(), '{"train_batch_size": "32"}'
    page.fill("#lint-text", typed)
    page.click("text=Check it")
    button = page.get_by_role("button", name="Correct them")
    button.wait_for()
    page.locator("#lint-text").press("End")
    page.keyboard.type(" ")
    assert button.is_disabled(), "it would replace the new text by the correction of the old one"
    page.keyboard.press("Backspace")
    button.click()
    page.wait_for_function("document.getElementById('lint-text').value === '{\"train_batch_size\": 32}'")
    page.locator("#lint-text").press("Control+z")
    assert page.input_value("#lint-text") == typed


def test_the_error_of_the_question_before_is_dimmed(opened: Any) -> None:
    """Until the next answer comes; a configuration of an unknown type takes seconds."""
    page = opened(model="gpt-17")
    assert page.evaluate("getComputedStyle(document.getElementById('error')).opacity") == "1"
    page.evaluate("request = () => {}")
    page.fill("#model", "gpt-18")
    page.press("#model", "Enter")
    assert float(page.evaluate("getComputedStyle(document.getElementById('error')).opacity")) < 1
    page.evaluate("showError({sentence: 'Another one.'})")
    assert page.evaluate("getComputedStyle(document.getElementById('error')).opacity") == "1"


def test_on_a_telephone_a_finger_hits_what_opens(chromium: Any, port: int) -> None:
    """At least 24 px high (WCAG 2.2, 2.5.8), and each figure below a row of the table stands beside its name."""
    context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{port}/#model=Qwen2.5-7B&gpus=2x24GB&ram=512GB")
    page.wait_for_selector(f"{CALM} #ladder")
    heights = page.locator("summary:visible, .check:visible, [type=range]:visible").evaluate_all(
        "(all) => all.map((each) => each.getBoundingClientRect().height)"
    )
    assert len(heights) > 6 and min(heights) >= 24
    below = page.locator("#ladder td.optional:visible").evaluate_all(
        "(all) => all.map((each) => [each.textContent, each.clientHeight])"
    )
    assert len(below) > 6 and max(height for _, height in below) < 30, below
    context.close()


def test_an_empty_field_shows_what_is_used_and_an_example_says_so(opened: Any) -> None:
    page = opened(method="lora")
    page.locator("#more summary").click()
    shown = dict(page.locator("#options input").evaluate_all("(all) => all.map((each) => [each.id, each.placeholder])"))
    examples = {name for name, text in shown.items() if text.startswith("e.g. ")}
    assert {name.removesuffix("-option") for name in examples} == {
        "host", "nvme", "link", "interconnect", "software", "price"
    }  # fmt: skip
    assert shown["global-batch-option"] == page.evaluate("used['global-batch']") != ""
    page.evaluate("showError({sentence: 'An error.', used: {'global-batch': '7'}})")
    assert page.get_attribute("#global-batch-option", "placeholder") == "7", "read by a question without an answer"


def test_an_answer_of_the_question_before_is_dimmed_until_the_next_comes(opened: Any) -> None:
    """On a telephone the summary too, and the status says why; the colours of a quick answer do not flicker."""
    page = opened()
    page.set_viewport_size({"width": 390, "height": 740})
    faded = (
        """() => ["#result", "#summary > *"].map((each) => getComputedStyle(document.querySelector(each)).opacity)"""
    )
    assert page.evaluate(faded) == ["1", "1"]
    page.evaluate("request = () => {}")
    page.fill("#count-value", "3")
    page.press("#count-value", "Enter")
    assert page.evaluate(faded) == ["1", "1"]
    page.wait_for_selector("#status:has-text('Calculating …')")
    assert all(float(opacity) < 1 for opacity in page.evaluate(faded))
    page.evaluate("show({part: 'answer', verdict: 'v', figures: 'f', short: 's', used: {}, idle: []})")
    assert page.evaluate(faded) == ["1", "1"]
    assert page.text_content("#status") == "Answered by ds-advise on this machine."


def test_a_count_that_is_typed_with_the_gpu_is_that_of_the_machine(opened: Any) -> None:
    page = opened(gpus="2x24GB")
    enter(page, "#kind", "8 H100")
    page.locator("#error button").click()
    page.wait_for_selector("#command:has-text('--gpus 8xH100')")
    assert page.input_value("#count-value") == "8"


def test_a_stop_of_a_slider_can_be_written_in_any_case(opened: Any) -> None:
    page = opened()
    enter(page, "#seq-len-value", " MAX ")
    assert page.is_hidden("#error") and page.input_value("#seq-len-value") == "max"
    enter(page, "#ram-value", "1tb")
    assert page.input_value("#ram-value") == "1TB"


def test_findings_for_another_machine_are_dimmed(opened: Any) -> None:
    page, old = opened(), "document.getElementById('findings').classList.contains('stale')"
    page.fill("#lint-text", '{"train_batch_size": 32}')
    page.click("text=Check it")
    page.wait_for_selector("#findings p")
    enter(page, "#kind", "80GB")
    assert not page.evaluate(old), "they are about no machine"
    page.check("#lint-with")
    assert page.evaluate(old)
    page.click("text=Check it")
    page.wait_for_selector("#findings:not(.stale)")
    enter(page, "#kind", "24GB")
    assert page.evaluate(old)
    enter(page, "#kind", "80GB")
    assert not page.evaluate(old)


def test_a_finding_has_a_badge_and_its_command_a_button(opened: Any) -> None:
    page = opened(NO_CLIPBOARD, model="Qwen2.5-7B")
    page.check("#lint-with")
    page.fill(
        "#lint-text",
        '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 4}',
    )
    page.click("text=Check it")
    finding = page.locator("#findings .finding:has-text('DS901')")
    assert finding.locator(".badge.bad").text_content() == "DS901 error"
    assert "`" not in page.text_content("#findings")
    page.locator("#findings .command button").first.click()
    page.wait_for_selector("#findings .command button:has-text('Copied')")
