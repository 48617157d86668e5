"""Figures as people read them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.render.probe import where
from ds_advise.advisor.text.lines import ended
from ds_advise.advisor.text.units import count, counted_noun, gib, rate, seconds, whole_percents
from ds_advise.estimators.errors import DsAdviseError
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0.00"),
        (2**29, "0.50"),
        (2**30, "1.0"),
        (22 * 2**30 + 2**28, "22.2"),
        (1204 * 2**30, "1,204"),
        (999 * 2**30 + 2**29 - 1, "999.5"),
        (1000 * 2**30, "1,000"),
    ],
)
def test_gib(size_bytes: int, text: str) -> None:
    """Binary gigabytes, no more digits than the prediction is worth."""
    assert gib(size_bytes) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (315_722, "315,722"),
        (124_439_808, "124.4 M"),
        (14_770_033_664, "14.77 B"),
        (671_026_404_352, "671 B"),
        (1_557_611_200, "1.558 B"),
    ],
)
def test_count(number: int, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("per_s", "text"),
    [
        (0.4567, "0.46"),
        (46.2, "46"),
        (688.4, "688"),
        (1214.0, "1,210"),
        (29649, "29,600"),
        (9_994_999, "9,990,000"),
        (43_412_000, "43.4 M"),
        (1.2e9, "1,200 M"),
    ],
)
def test_rate(per_s: float, text: str) -> None:
    assert rate(per_s) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.0012, "1.2 ms"),
        (0.861, "861 ms"),
        (0.9951, "1.0 s"),
        (1.14, "1.1 s"),
        (14.2, "14 s"),
        (99.4, "99 s"),
        (119.7, "2 min 0 s"),
        (125.2, "2 min 5 s"),
    ],
)
def test_seconds(duration_s: float, text: str) -> None:
    """No exponent, no 60 seconds in a minute's remainder."""
    assert seconds(duration_s) == text


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12))
def test_whole_percents_add_up(parts: list[int]) -> None:
    """To a hundred, each within one of its share."""
    shares = [part / sum(parts) for part in parts]
    percents = whole_percents(shares)
    assert sum(percents) == 100
    assert all(abs(whole - 100 * share) < 1 for whole, share in zip(percents, shares, strict=True))


@pytest.mark.parametrize(("number", "words"), [(0, "0 rows"), (1, "1 row"), (1204, "1,204 rows")])
def test_one_is_no_plural(number: int, words: str) -> None:
    assert counted_noun(number, "row") == words


def test_a_sentence_ends_once() -> None:
    """Also with the words of a library, which are sentences themselves."""
    assert ended("the base must be unquantized") == ended("the base must be unquantized.")
    assert DsAdviseError("it must be unquantized.", fix="see ...").what == "it must be unquantized"


def test_ranks_on_the_cpu_are_named_once() -> None:
    """A probe's cluster is called "2 ranks on the CPU" already."""
    cpu = replace(parse_cluster("2x24GB"), gpu=replace(parse_cluster("24GB").gpu, architecture="cpu", name="CPU (x)"))
    for cluster, words in ((cpu, "2 ranks on the CPU (x)"), (parse_cluster("2xH100-SXM5"), "2 ranks on 2 x H100-SXM5")):
        answer: Any = SimpleNamespace(
            result=SimpleNamespace(solo=False, world_size=2), run=SimpleNamespace(cluster=cluster)
        )
        assert where(answer) == words
