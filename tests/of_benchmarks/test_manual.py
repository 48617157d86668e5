"""The manual as a site, and the statements in it that a benchmark makes."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from ds_advise import advise

from benchmarks.document import DOCUMENTS
from benchmarks.search.choices_inside_strategies import GAIN, chosen_in, fastest, is_plain
from benchmarks.search.need_and_verdict import disagreements, questions

ROOT = Path(__file__).parents[2]


def test_the_manual_is_built_and_every_link_in_it_leads_somewhere(tmp_path: Path) -> None:
    """Strictly: a page that the navigation lacks or a link to nothing fails. Every page is named in the navigation."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    named = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in named, page.name
        assert (tmp_path / "site" / page.stem / "index.html").exists() or page.stem == "index"


def test_the_manual_shows_what_is_chosen_inside_a_strategy_today() -> None:
    """Every tenth line asked again; dry runs have found that each fits."""
    text = (DOCUMENTS / "question-grid.md").read_text(encoding="utf-8").partition("choices_inside_strategies.py -->")[2]
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and " --gpus " in line]
    assert len(lines) > 20 and {cells[-1] for cells in lines} == {"fits |"}
    for words, chosen, *_ in lines[::10]:
        model, _, method, _, gpus, _, length = words.removeprefix("| ").split()
        asked: dict[str, Any] = {"gpus": gpus, "method": method, "seq_len": int(length), "loss": "standard"}
        answer = advise(model, **asked, offline=True, deepspeed_estimate=False)
        best, plain = fastest(answer.candidates), fastest(filter(is_plain, answer.candidates))
        assert best is not None and chosen_in(best) == chosen
        assert plain is None or best.tokens_per_s >= GAIN * plain.tokens_per_s


@pytest.mark.parametrize("question", list(islice(questions(), 9, None, 41)), ids=" ".join)
def test_no_answer_contradicts_itself(question: list[str]) -> None:
    """Screen, Markdown, HTML, JSON and `explain` say one need, and none is more than the GPU where the plan may fit."""
    wrong, verdicts = disagreements(question)
    assert not wrong and verdicts.total() > 10
