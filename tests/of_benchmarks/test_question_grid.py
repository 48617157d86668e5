"""The grid of questions beyond ZeRO."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ds_advise import advise

from benchmarks.document import DOCUMENTS
from benchmarks.search.choices_inside_rungs import GAIN, chosen_in, fastest, is_plain
from benchmarks.search.question_grid import features, rows, table


def test_a_line_for_every_question_that_a_feature_wins() -> None:
    """Two GPUs and samples up to a million tokens: what wins has a feature, and what is without it has none."""
    found = list(islice(rows(), 20))
    won = [row for row in found if row.chosen is not None and features(row.chosen.plan)]
    assert won
    assert table(found).count("\n| Llama-3.1-8B |") == len(won)
    assert not [row for row in found if row.without is not None and features(row.without.plan)]


def test_the_manual_shows_what_is_chosen_inside_a_rung_today() -> None:
    """Every tenth line asked again; dry runs have found that each fits."""
    text = (DOCUMENTS / "question-grid.md").read_text(encoding="utf-8").partition("choices_inside_rungs.py -->")[2]
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and " --gpus " in line]
    assert len(lines) > 20 and {cells[-1] for cells in lines} == {"fits |"}
    for words, chosen, *_ in lines[::10]:
        model, _, method, _, gpus, _, length = words.removeprefix("| ").split()
        asked: dict[str, Any] = {"gpus": gpus, "method": method, "seq_len": int(length)}
        answer = advise(model, **asked, offline=True, deepspeed_estimate=False)
        best, plain = fastest(answer.candidates), fastest(filter(is_plain, answer.candidates))
        assert best is not None and chosen_in(best) == chosen
        assert plain is None or best.tokens_per_s >= GAIN * plain.tokens_per_s
