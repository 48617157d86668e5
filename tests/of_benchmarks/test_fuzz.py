"""Anything at all as a ds_config, a config.json or an argument: an answer or one line (at length:
benchmarks/fuzz.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_advise.advisor.question.own_module import inputs_of
from ds_advise.estimators.errors import WorkloadError

from benchmarks.fuzz import fuzz

from ..validate.lint.lint_cases import facts


def test_two_thousand_broken_inputs_break_nothing(tmp_path: Path) -> None:
    """The mutator of the benchmark, with a seed of its own."""
    tally = fuzz(2000, 42, tmp_path, facts())
    assert tally.broken == []
    assert min(tally.answered, tally.refused) > 200


@pytest.mark.parametrize("text", ["9" * 5000, "3,", "", "\u0663", "1e3", "0", "-1", "3, 0x2"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    """Also digits that Python would not read."""
    with pytest.raises(WorkloadError):
        inputs_of(text, None)
