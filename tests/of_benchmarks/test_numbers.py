"""docs/numbers.json: where its figures come from, and that README and docs have no other figure of accuracy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ds_advise import advise
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.families import FAMILIES

from benchmarks import numbers
from benchmarks.accuracy.__main__ import figures
from benchmarks.accuracy.rows import runs
from benchmarks.accuracy.software import FILE, software_groups, software_of
from benchmarks.accuracy.timed_runs import read_runs
from benchmarks.dry_run import cases
from tests.estimators.memory import test_activation_measured as layers
from tests.probes.dry_run import test_dry_run_truth as truth

ROOT = Path(__file__).parents[2]

PERCENTAGE = re.compile(r"\d[\d.,]*(?: ?%|(?= (?:to|and) [-+]?[\d.]+ ?%))(?!<!--)")
COUNT = re.compile(
    r"\b\d[\d,]*(?= (?:more |published |dry |whole )?(?:runs|plans|trainings|speeds|rows|cases|types)\b)"
)
ACCURACY = re.compile(
    r"\b(error|median|mean|worst|percentile|within|on average|at most|at worst|differs?|differences?|agrees?"
    r"|accura\w+|above|below|too (fast|slow)|longer|predicted|closed form)\b"
)
NOT_ACCURACY = (
    "80 % interval",  # the share of runs that it holds
    "in 80 % of runs",
    "within 3 %",  # what the search counts as equal, or as worth a feature
    "except for 2 %, which is less than the error",
    "at least 5 % less memory",
    "costs at most 3 %",
    "above 3 %",
    "within 5 % of each other",
    "within 150 ms | 98 %",
    "allocated peak 3 % on average and 8 % at most, host memory 5 %, NVMe 2 %",  # targets
    "target is a\nmedian error of 20 %",
    "changes a step by 27 %",  # published
    "21 of the 22 dry runs of TRL",  # of the software that a test was run with
)
"""Figures near a word of accuracy that are no error of a prediction."""


def sentences(page: Path) -> Iterator[str]:
    """Prose of a page: its paragraphs, rows and items, without code and without what scripts write."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!-- \w+: written by .*?<!-- end of \w+ -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.split(r"\n\s*\n|\n(?=\s*[-|] ?)|(?<=[.;]) ", text)


def free_figures(page: Path) -> list[str]:
    """Sentences that say how true something is by a percentage, or a number of runs, without a name."""
    found = []
    for sentence in sentences(page):
        measured = sentence
        for phrase in NOT_ACCURACY:
            measured = measured.replace(phrase, "")
        if ACCURACY.search(measured) and (PERCENTAGE.search(measured) or COUNT.search(measured)):
            found.append(sentence.strip())
    return found


PAGES = [page for page in numbers.PAGES if page.name != "accuracy.md"]
"""docs/accuracy.md is written whole."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_figure_of_accuracy_is_written_by_hand(page: Path) -> None:
    assert free_figures(page) == []


def test_pages_have_the_figures_of_the_file() -> None:
    """And every group that is not computed is on a page."""
    known = numbers.read()
    for page in numbers.PAGES:
        text = page.read_text(encoding="utf-8")
        assert numbers.filled(text, known) == text, page.name
    named = {found["group"] for page in numbers.PAGES for found in numbers.MARKED.finditer(page.read_text("utf-8"))}
    assert named <= known.keys() <= named | figures().keys()


def test_computed_figures_are_current() -> None:
    """`python -m benchmarks.accuracy --write` brings them up to date."""
    known = numbers.read()
    for name, group in figures().items():
        assert known[name] == group, name


def test_every_figure_has_a_source() -> None:
    """The script or the test that a group is from."""
    for name, group in numbers.read().items():
        assert (ROOT / group[numbers.FROM]).exists(), name


def test_counts_are_those_of_the_cases() -> None:
    """Figures that no run of a benchmark brings up to date."""
    known = numbers.read()
    entries = catalogue._entries()
    by_row = sum(entry["config"]["model_type"] in FAMILIES for entry in entries)
    first = advise("Qwen2.5-14B", gpus="2x32GB", offline=True)
    assert first.recommended is not None and first.deepspeed_estimate is not None
    found = {
        "parameters.models": len(entries),
        "parameters.by_row": by_row,
        "parameters.recorded": len(entries) - by_row,
        "layers.kinds": len(layers.CASES),
        "layers.kinds_by_row": sum(case.config(2).model_type in FAMILIES for case in layers.CASES.values()),
        "layers.cases": len(list(layers.modes())),
        "executed.plans": len(truth.SMOKE) + len(truth.GRID),
        "executed.older": len(truth.OTHER),
        "grid.plans": f"{len(cases.GRID):,}",
        "grid.special": len(cases.SPECIAL),
        "recorded_plans.plans": len(cases.RECORDED_CASES),
        "first_answer.gib": f"{first.recommended.memory.device_bytes_per_gpu / 2**30:.1f}",
        "first_answer.deepspeed_gib": f"{first.deepspeed_estimate.gpu_bytes / 2**30:.1f}",
    }
    for name, count in found.items():
        group, _, figure = name.partition(".")
        assert known[group][figure] == str(count), name


def test_each_published_run_belongs_to_one_group_of_software() -> None:
    sources = {run.source for run in (*runs(), *read_runs())}
    assert {software_of(source) for source in sources} == set(software_groups().values())
    unused = [start for start in software_groups() if not any(source.startswith(start) for source in sources)]
    assert not unused, FILE.name
