"""Files of other tools against the advice about the same training (`benchmarks/imported_files.py`)."""

from __future__ import annotations

import pytest

from benchmarks.imported_files import MOST_LOST, Training, cases, speeds

CASES = [*cases()]


def test_forty_files_of_six_formats_are_compared() -> None:
    assert len(CASES) == 40 and len({name for name, _ in CASES}) == 6


@pytest.mark.parametrize(("name", "training"), CASES[::3])
def test_the_plan_for_a_file_is_as_fast_as_the_advice(name: str, training: Training) -> None:
    by_from, by_advise = speeds(name, training)
    assert by_from >= (1 - MOST_LOST) * by_advise > 0
