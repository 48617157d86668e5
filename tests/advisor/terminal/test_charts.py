"""Charts on a terminal."""

from __future__ import annotations

import io

import pytest
from ds_advise.advisor.document.charts import Bar, Limit, Part, StackedBars, Unit
from ds_advise.advisor.document.terminal_charts import _INKS, draw
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

_FAMILIES = {ink: f"about {ink}" for ink in ("weights", "gradients", "optimizer", "loss", "activations", "runtime")}


def _drawn(bars: list[list[float]], width: int) -> tuple[set[str], set[str]]:
    """(patterns in the bars, patterns in the legend)."""
    chart = StackedBars(
        title="t",
        bars=tuple(
            Bar(
                label=f"b{at}",
                note="",
                parts=tuple(Part(name=i, value=v, ink=i) for i, v in zip(_FAMILIES, sizes, strict=True)),
            )
            for at, sizes in enumerate(bars)
        ),
        unit=Unit("", 1),
        families=_FAMILIES,
        limit=Limit(value=100.0, words="limit"),
    )
    file = io.StringIO()
    draw(chart, Console(file=file, width=width, force_terminal=True, color_system=None))
    lines = file.getvalue().splitlines()
    at = next(number for number, text in enumerate(lines) if "about" in text)
    patterns = {pattern for pattern, _ in _INKS.values()}
    return {*"".join(lines[:at])} & patterns, {*"".join(lines[at:])} & patterns


@pytest.mark.parametrize("width", [64, 80, 120])
@given(bars=st.lists(st.lists(st.floats(0, 20), min_size=6, max_size=6), min_size=2, max_size=3))
def test_the_legend_has_every_part_that_is_drawn_and_no_other(width: int, bars: list[list[float]]) -> None:
    """Also a part of less than half a column, which may fall on the end of one."""
    bars[0][0] = max(bars[0][0], 10.0)
    in_bars, in_legend = _drawn(bars, width)
    assert in_bars == in_legend


def test_a_part_on_the_end_of_a_column_has_its_title() -> None:
    """The first 10.4 columns leave 10, and 0.4 more are the eleventh."""
    columns = 80 - 4 - 2 - 4
    share = 100 / columns
    in_bars, in_legend = _drawn([[10.3 * share, 0, 0, 0.4 * share, 0, 0], [10 * share, 0, 0, 0, 0, 0]], 80)
    assert in_bars == in_legend == {"█", "▒"}
