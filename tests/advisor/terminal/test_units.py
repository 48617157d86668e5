"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.text.units import (
    count,
    counted_noun,
    gib,
    rate,
    seconds,
    shown_paths,
    whole_percents,
    whole_seconds,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("write", "values"),
    [
        (gib, {0: "0.00", 2**29: "0.50", 2**30: "1.0", 22 * 2**30 + 2**28: "22.2", 1204 * 2**30: "1,204"}),
        (gib, {999 * 2**30 + 2**29 - 1: "999.5", 1000 * 2**30: "1,000"}),
        (count, {315_722: "315,722", 124_439_808: "124.4 M", 14_770_033_664: "14.77 B", 671_026_404_352: "671 B"}),
        (count, {1_557_611_200: "1.558 B"}),
        (rate, {0.4567: "0.46", 46.2: "46", 688.4: "688", 1214.0: "1,210", 29649: "29,600"}),
        (rate, {9_994_999: "9,990,000", 43_412_000: "43,400,000", 1.2e9: "1,200 M"}),
        (seconds, {0.0012: "1.2 ms", 0.861: "861 ms", 0.9951: "1.0 s", 1.14: "1.1 s", 14.2: "14 s"}),
        (seconds, {99.4: "99 s", 119.7: "2 min 0 s", 125.2: "2 min 5 s"}),
        (whole_seconds, {3.2: "3 s", 59.4: "59 s", 59.5: "1 min 0 s", 96: "1 min 36 s", 99.6: "1 min 40 s"}),
        (lambda number: counted_noun(number, "row"), {0: "0 rows", 1: "1 row", 1204: "1,204 rows"}),
    ],
)
def test_figures_have_no_more_digits_than_the_prediction_is_worth(
    write: Callable[[Any], str], values: dict[float, str]
) -> None:
    """No exponents, and no remainder of 60 seconds."""
    assert {value: write(value) for value in values} == values


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12))
def test_whole_percents_add_up(parts: list[int]) -> None:
    """To a hundred, each within one of its share."""
    shares = [part / sum(parts) for part in parts]
    percents = whole_percents(shares)
    assert sum(percents) == 100
    assert all(abs(whole - 100 * share) < 1 for whole, share in zip(percents, shares, strict=True))


def test_paths_in_a_text_are_cut_only_where_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer path may hold that of the current folder."""
    monkeypatch.setattr(Path, "cwd", lambda: Path("/data"))
    others = "/mnt/data/t.py ~/data/a.json ${HOME}/data/b /data2/c file:///data/d"
    assert shown_paths(f"python /data/t.py --x=/data/x.json '/data/my y' {others}") == (
        f"python t.py --x=x.json 'my y' {others}"
    )
