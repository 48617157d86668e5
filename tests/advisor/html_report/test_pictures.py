"""Pictures are drawn from plain data: every figure is in them, in its place, and no text can leave its element."""

from __future__ import annotations

import colorsys
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from ds_advise import advise
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.answer.scaling import build_scaling
from ds_advise.advisor.document.blocks import Chart, Figure, Sentence
from ds_advise.advisor.document.charts import Bar, Limit, Lines, Panel, Part, Point, Points, StackedBars, Unit
from ds_advise.advisor.document.terminal_charts import _INKS
from ds_advise.advisor.html_report.canvas import (
    INKS,
    NARROW,
    SMALL,
    WIDE,
    round_steps,
    standing_alone,
    text_width,
)
from ds_advise.advisor.html_report.charts import draw
from ds_advise.advisor.render.answer_charts import chart_blocks, scaling_blocks
from ds_advise.advisor.render.plans import (
    best_plans,
    host_bars,
    memory_bars,
    pareto_optimal,
    series_chart,
    speed_against_memory,
    time_bars,
)
from ds_advise.advisor.text.units import gib, rate

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def answer() -> Recommendation:
    return advise("Qwen2.5-14B", gpus="2x32GB", deepspeed_estimate=False)


def _bars(**changes: Any) -> StackedBars:
    bars = (
        Bar(
            label="one",
            parts=(Part(name="a", value=30, ink="weights"), Part(name="b", value=10, ink="loss")),
            note="40",
        ),
        Bar(label="two", parts=(Part(name="a", value=300, ink="weights"),), note="300", chosen=True),
    )
    return StackedBars(**{"title": "t", "bars": bars, "unit": Unit("", 1), **changes})


def _rows(picture: str) -> list[ET.Element]:
    return [group for group in ET.fromstring(picture).iter(f"{SVG}g") if group.get("class") == "row"]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_parts_are_as_wide_as_their_shares_and_fill_their_bar(width: int) -> None:
    first, second = _rows(draw(_bars(), width))
    parts = [[float(box.get("width", 0)) for box in row.findall(f"{SVG}g/{SVG}rect")] for row in (first, second)]
    assert parts[0][0] / parts[0][1] == pytest.approx(3, rel=0.06)
    assert parts[1][0] / sum(parts[0]) == pytest.approx(7.5, rel=0.06)


def test_a_figure_without_room_beside_its_label_stands_below_it() -> None:
    """In a narrow chart, for every bar, so that the rows are alike."""
    long = Bar(
        label="AWS p5en.48xlarge 4 x 8 x H200-SXM", parts=(Part(name="a", value=3, ink="loss"),), note="$37.85 in 9 min"
    )
    bars = (long, *_bars().bars)
    for row in _rows(draw(_bars(bars=bars), NARROW)):
        label, note = row.findall(f"{SVG}text")
        assert float(note.get("y", 0)) - float(label.get("y", 0)) > 12 and note.get("text-anchor") is None
        assert float(row.findall(f"{SVG}g/{SVG}rect")[0].get("y", 0)) > float(note.get("y", 0))
    label, note = _rows(draw(_bars(), NARROW))[0].findall(f"{SVG}text")
    assert label.get("y") == note.get("y")


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_letters_of_points_do_not_overlap(width: int) -> None:
    points = [
        Point(3600 * x, y, mark) for x, y, mark in ((1, 10, "a"), (1.01, 10.1, "b"), (1.02, 10, "c"), (50, 90, ""))
    ]
    chart = Points(title="t", points=points, x_unit=Unit("h", 3600), y_unit=Unit("", 1))
    picture = ET.fromstring(draw(chart, width))
    assert len(picture.findall(f"{SVG}circle")) == len(points)
    places = {
        text.text: (float(text.get("x", 0)), float(text.get("y", 0)))
        for text in picture.findall(f"{SVG}text")
        if text.text in ("a", "b", "c")
    }
    assert len(places) == 3
    for (x, y), (other, level) in pairwise([*places.values(), *places.values()]):
        assert abs(x - other) >= 9 or abs(y - level) >= 9 or (x, y) == (other, level)
    assert {"1 h", "50 h"} <= {text.text for text in picture.findall(f"{SVG}text")}


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_letter_lies_on_no_other_point(width: int) -> None:
    """Where a place is free; the points without a letter have an entry in the legend, but only if there are some."""
    named = [Point(3600.0, 10.0, "a"), Point(3600 * 50.0, 90.0, "b")]
    crowd = [Point(3600 * (1 + 0.03 * step), 10.0) for step in range(1, 4)]
    chart = Points(title="t", points=[*named, *crowd], x_unit=Unit("h", 3600), y_unit=Unit("", 1))
    picture = ET.fromstring(draw(chart, width))
    (letter,) = (text for text in picture.findall(f"{SVG}text") if text.text == "a")
    for circle in picture.findall(f"{SVG}circle"):
        apart = [abs(float(letter.get(axis, 0)) - float(circle.get(f"c{axis}", 0))) for axis in "xy"]
        assert max(apart) > 4
    assert "not in the table" in draw(chart, width)
    assert "not in the table" not in draw(replace(chart, points=named), width)


def test_the_heading_of_a_picture_is_folded_and_not_cut() -> None:
    parts = ["Qwen/Qwen2.5-14B", "14.77 B parameters", "full fine-tuning", "bf16", "adamw", "sequence 2048", "2 x H100"]
    picture = ET.fromstring(standing_alone(draw(_bars()), " · ".join(parts)))
    lines = [text.text or "" for text in picture.findall(f"{SVG}text")]
    assert len(lines) > 1 and " · ".join(lines) == " · ".join(parts)
    assert max(text_width(line, 15) for line in lines) <= float(picture.get("width", 0))


def test_a_bar_beyond_the_scale_is_cut_and_its_figure_written() -> None:
    rows = _rows(draw(_bars(ends_at=60)))
    assert [len(row.findall(f"{SVG}path")) for row in rows] == [0, 2], "the chosen one is marked, too"
    assert "300" in [text.text for text in rows[1].findall(f"{SVG}text")]


def test_steps_of_an_axis_are_round_in_its_unit() -> None:
    assert round_steps(70 * 2**30, 7, 2**30) == [value * 10 * 2**30 for value in range(8)]
    assert round_steps(0.9, 4) == pytest.approx([0, 0.25, 0.5, 0.75])
    assert round_steps(0, 4) == [0]


def test_bars_hold_the_figures_of_the_plans(answer: Recommendation) -> None:
    """Bytes by component, and the time of as many tokens."""
    plans = best_plans(answer)
    memory, time = memory_bars(plans, answer.question.cluster, chosen=answer.recommended), time_bars(plans)
    for bar, timed, plan in zip(memory.bars, time.bars, plans.values(), strict=True):
        assert {part.name: part.value for part in bar.parts} == plan.memory.components
        assert (bar.value, bar.note) == (plan.device_bytes, gib(plan.device_bytes))
        assert timed.value == pytest.approx(1000 / plan.tokens_per_s)
        # A speed would invite to choose it. One that only lacks an option is not said to be too large.
        assert timed.note == (f"{rate(plan.tokens_per_s)} tokens/s" if plan.fit.fits else plan.fit.reason)
    assert time.bars[-1].note == "needs --nvme"
    assert [bar.label for bar in memory.bars if bar.chosen] == ["zero3-offload"]
    assert len(_rows(draw(memory))) == len(plans)
    hosts = host_bars(plans, answer.question.cluster).bars  # loading the model may take more than training
    assert [bar.value for bar in hosts] == [plan.memory.host_bytes_per_node for plan in plans.values()]
    assert any(part.name == "loading the model" for part in hosts[0].parts)


def test_speed_against_memory_holds_what_no_other_plan_beats_and_the_chosen_one(answer: Recommendation) -> None:
    cluster = answer.question.cluster
    chart = speed_against_memory(pareto_optimal(answer.candidates, cluster, None), cluster, None)
    (speeds,) = chart.panels[0].layers.values()
    assert list(chart.xs) == sorted(chart.xs) and list(speeds) == sorted(speeds) and len(speeds) > 1
    for plan in answer.candidates[0], answer.recommended:
        chart = speed_against_memory(pareto_optimal(answer.candidates, cluster, plan), cluster, plan)
        assert chart.own is not None and plan is not None and chart.xs[chart.own] == plan.device_bytes


def test_points_of_plans_that_lack_something_are_hollow_and_the_caption_says_what() -> None:
    """Where nothing fits, points left of the GPU's memory would seem possible, and no recommended one is spoken of."""
    answer = advise("Llama-3.1-70B", gpus="2xRTX3090", ram="64GB", deepspeed_estimate=False, offline=True)
    *_, note, chart = chart_blocks(answer)
    assert isinstance(note, Sentence) and isinstance(chart, Chart) and isinstance(chart.drawing, Lines)
    assert "No plan fits: hollow points left of the dashed line need more RAM." in note.text
    assert "recommended" not in note.text
    drawn, room = chart.drawing, answer.question.cluster.gpu.memory_bytes
    assert [*drawn.hollow] == [*range(len(drawn.xs))] and min(drawn.xs) < room
    circles = [*ET.fromstring(draw(drawn)).iter(f"{SVG}circle")]
    assert {circle.get("class", "").split()[0] for circle in circles} == {"f-paper"} and len(circles) == len(drawn.xs)
    *_, note, chart = chart_blocks(advise("Llama-3.1-8B", gpus="8xA100-80GB", deepspeed_estimate=False, offline=True))
    assert isinstance(note, Sentence) and "in green, the recommended one. Hollow ones lack memory." in note.text
    assert "A vertical line: another strategy." in note.text
    assert (
        isinstance(chart, Chart) and isinstance(chart.drawing, Lines) and chart.drawing.own not in chart.drawing.hollow
    )


def test_no_stretch_stays_without_its_name_and_no_line_crosses_one() -> None:
    """It would seem to belong to the one before: where names have no room, numbers stand for them, with a key."""
    names = ["zero1", "zero3-offload", "zero2", "zero1", "zero3-offload-param", "zero2"]
    xs = [10.0, 14, 18, 22, 26, 96]
    chart = Lines(
        title="t",
        x_title="x",
        xs=[*xs, 100.0],
        panels=[Panel(title="y", layers={"weights": [1.0] * 7})],
        x_limit=Limit(98, "98 per GPU"),
        spans=[*zip(xs, names, strict=True)],
    )
    for width in (WIDE, NARROW):
        picture = ET.fromstring(draw(chart, width))
        words = [(node.text or "", node) for node in picture.iter(f"{SVG}text")]
        above = [node for text, node in words if node.get("class") == "f-text" and text in ("1", "2", "3", "4", *names)]
        assert len(above) == len(names)
        if width == NARROW:
            assert [text for text, _ in words[:4]] == [
                "1 zero1", "2 zero3-offload", "3 zero2", "4 zero3-offload-param"
            ]  # fmt: skip
            assert [node.text for node in above] == ["1", "2", "3", "1", "4", "3"]
        limits = [node for node in picture.iter(f"{SVG}line") if node.get("class") == "s-limit"]
        for name in above:
            x, y, end = float(name.get("x", 0)), float(name.get("y", 0)), text_width(name.text or "", SMALL)
            for line in limits:
                at, first, last = (float(line.get(key, 0)) for key in ("x1", "y1", "y2"))
                assert not (x < at < x + end and first < y < last)


def test_areas_add_up_to_their_sum() -> None:
    """The highest edge is at the total, the limit at its value, and each stretch has its name."""
    layers = {"weights": [2.0, 2.0, 2.0], "gradients": [0.0, 6.0, 6.0]}
    panel = Panel(title="GiB", layers=layers, limit=Limit(9, "9 per GPU"), areas=True)
    spans = [(0, "forward"), (1, "step")]
    text = draw(Lines(title="t", x_title="x", xs=[0, 1, 2], panels=[panel], labels=(), spans=spans))
    picture = ET.fromstring(text)
    paths = [node.get("d", "") for node in picture.iter(f"{SVG}path")]
    assert ">8<" in text, "the peak has its figure"
    low, limit = (float(picture.findall(f"{SVG}line")[at].get("y1", 0)) for at in (0, -1))
    top = min(float(y) for path in paths for _, y in re.findall(r"([\d.]+),([\d.]+)", path))
    assert (low - top) / (low - limit) == pytest.approx(8 / 9, abs=0.01)
    assert len(paths) == 3 and ">forward<" in text and ">step<" in text


def test_a_run_has_its_peaks_its_iterations_and_no_numbers_in_place_of_phases() -> None:
    """Of thousands of positions the highest of each column is drawn, with the same names as on a terminal."""
    words, spans, sizes = ("forward", "backward", "step"), list[tuple[float, str]](), list[float]()
    for number in (1, 2, 3):
        for turn in range(8):
            for word in words[: 3 if turn == 7 else 2]:
                spans.append((len(sizes), f"{word} {number}"))
                sizes += [2.0] * 20 + [19.6 if word == "backward" else 3.0] + [2.0] * 120
    panel = Panel(title="GiB", layers={"loss": sizes}, unit=Unit("GiB", 1), areas=True)
    chart = Lines(title="t", x_title="x", xs=range(len(sizes)), panels=[panel], labels=(), spans=spans)
    for width in (WIDE, NARROW):
        picture = ET.fromstring(draw(chart, width))
        written = [text.text or "" for text in picture.iter(f"{SVG}text")]
        assert "19.6 GiB" in written and [text for text in written if text.startswith("iteration")] == [
            "iteration 1", "iteration 2", "iteration 3"
        ]  # fmt: skip
        area = next(picture.iter(f"{SVG}path")).get("d", "")
        points = [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", area)]
        top = min(y for _, y in points)
        runs = [after - before for (before, y), (after, end) in pairwise(points) if y == end == top]
        assert len(runs) == 24 and min(runs) >= 1.9, "every peak is wide enough to be seen"
        lines = [each for each in picture.iter(f"{SVG}line") if each.get("class") == "s-soft"]
        assert len(lines) == 2, "the phases have none, which would hide the peaks"


def test_the_picture_of_scaling_has_the_questions_own_plan_and_where_the_strategy_changes() -> None:
    """A longer sequence, a larger micro batch, more GPUs: the question's value is the recommended plan, the last micro
    batch exceeds the card, and every strategy is named."""
    answer = advise("Qwen2.5-1.5B", gpus="1x24GB", deepspeed_estimate=False, offline=True)
    assert answer.recommended is not None
    _, legend, *_ = scaling_blocks(answer)
    assert isinstance(legend, Sentence)
    assert legend.text.endswith("Green: this question. Hollow: does not fit. A vertical line: another strategy.")
    series = {one.title: one for one in build_scaling(answer.question, answer.recommended)}
    assert not series["sequence length"].mixes_batches
    assert list(series) == ["sequence length", "micro batch", "GPUs"]
    for one in series.values():
        own = one.plans[one.own]
        assert own is not None and own.device_bytes == answer.recommended.device_bytes
        picture = draw(series_chart(one, answer.question.cluster))
        assert {plan.strategy for plan in one.plans if plan is not None} <= set(
            re.findall(r">([a-z0-9-]+)</text>", picture)
        )
    last = series["micro batch"].plans[-1]
    assert last is not None and last.device_bytes > answer.question.cluster.gpu.memory_bytes
    sizes = series_chart(series["micro batch"], answer.question.cluster)
    assert [*sizes.hollow][-1] == len(sizes.xs) - 1 and sizes.own not in sizes.hollow
    assert len({plan.strategy for plan in series["GPUs"].plans if plan is not None}) > 1


def test_speeds_of_different_batches_are_not_compared_silently() -> None:
    """The default batch grows with the GPUs, and a larger one is faster per token."""
    answer = advise("Llama-3.1-8B", gpus="8xA100-80GB", deepspeed_estimate=False, offline=True)
    _, _, note, *charts = scaling_blocks(answer)
    assert isinstance(note, Sentence) and "a larger one is faster per token" in note.text
    chart = charts[-1]
    assert isinstance(chart, Chart) and isinstance(chart.drawing, Lines) and chart.table is not None
    assert chart.drawing.panels[0].title == "tokens/s, by GPUs (global batch 32 to 64)"
    column = chart.table.head.index("global batch")
    batches = {
        row.cells[0]: row.cells[column].text for row in chart.table.rows if isinstance(row.cells[column], Figure)
    }
    assert batches["32"] == "32" and batches["64"] == "64" and chart.drawing.hints[-1].endswith("global batch 64")
    given = advise("Llama-3.1-8B", gpus="8xA100-80GB", global_batch=64, deepspeed_estimate=False, offline=True)
    assert not [block for block in scaling_blocks(given) if isinstance(block, Sentence) and "per token" in block.text]


HUES = {
    "blue": (195, 235),
    "green": (90, 150),
    "yellow": (25, 60),
    "color(99)": (250, 290),
    "bright_magenta": (290, 330),
    "cyan": (165, 195),
    "color(168)": (330, 360),
}
"""Degrees of each colour of a terminal; grey has none."""


def test_a_family_has_the_hue_of_its_colour_in_a_terminal() -> None:
    for family, (_, colour) in _INKS.items():
        for shade in INKS[family]:
            hue, _, saturation = colorsys.rgb_to_hls(*(int(shade[at : at + 2], 16) / 255 for at in (1, 3, 5)))
            name = colour if colour in HUES else colour.removeprefix("bright_")
            if name in ("", "black"):
                assert saturation < 0.15, family
            else:
                assert HUES[name][0] <= 360 * hue <= HUES[name][1], (family, shade, 360 * hue)


def test_labels_of_an_axis_do_not_overlap() -> None:
    """The label of the own value is always there."""
    labels = tuple(str(2**power) for power in range(9, 18))
    panel = Panel(title="p", layers={"weights": [1.0] * 9})
    chart = Lines(title="t", x_title="x", xs=range(9), panels=[panel], labels=labels, own=7)
    for width in (NARROW, WIDE):
        found = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="middle"[^>]*>(\d+)<', draw(chart, width))
        assert "65536" in {words for _, words in found}
        spans = sorted((float(x) - text_width(words, SMALL) / 2, text_width(words, SMALL)) for x, words in found)
        assert all(after[0] >= before[0] + before[1] for before, after in pairwise(spans))
        assert len(found) == 9 or width == NARROW


@pytest.mark.parametrize("highest", [1.0, 1.65, 1650, 2.2e5, 0.37, 9.9, 5.5, 24])
def test_an_axis_has_at_least_three_values(highest: float) -> None:
    """A scale to 1,650 in thirds had 0 and 1,000."""
    for count in (3, 4, 7):
        steps = round_steps(highest, count)
        assert 3 <= len(steps) <= 2 * count and steps[-1] <= highest
