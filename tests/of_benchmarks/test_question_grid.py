"""The grid of questions beyond ZeRO."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.search.question_grid import features, rows, table


def test_a_line_for_every_question_that_a_feature_wins() -> None:
    """Two GPUs and samples up to a million tokens: what wins has a feature, and what is without it has none."""
    found = list(islice(rows(), 20))
    won = [row for row in found if row.chosen is not None and features(row.chosen.plan)]
    assert won
    assert table(found).count("\n| Llama-3.1-8B |") == len(won)
    assert not [row for row in found if row.without is not None and features(row.without.plan)]
