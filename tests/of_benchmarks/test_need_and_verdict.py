"""What is printed as a plan's need, and its verdict."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.search.need_and_verdict import disagreements, questions


@pytest.mark.parametrize("question", list(islice(questions(), 9, None, 36)), ids=" ".join)
def test_no_answer_contradicts_itself(question: list[str]) -> None:
    """Screen, Markdown, HTML, JSON and `explain` say one need, and none is more than the GPU where the plan may fit."""
    wrong, verdicts = disagreements(question)
    assert not wrong and verdicts.total() > 10
