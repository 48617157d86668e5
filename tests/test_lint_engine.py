"""Lint against the real engine: what it refuses was called an error, and nothing that runs is called one."""

from __future__ import annotations

import json

import pytest

from benchmarks.lint_against_engine import Comparison, compare
from benchmarks.lint_random import random_configs

from .lint_cases import facts


def _disagreements(found: list[Comparison]) -> list[str]:
    return [f"{json.dumps(case.config)}: engine {case.refused or 'runs'}; lint {case.errors}" for case in found
            if not case.agrees]


def test_the_same_seed_gives_the_same_configurations() -> None:
    """A disagreement can be looked at again."""
    assert random_configs(20, 7, facts()) == random_configs(20, 7, facts())
    assert random_configs(20, 7, facts()) != random_configs(20, 8, facts())


def test_lint_and_the_engine_agree_on_random_configurations() -> None:
    """`deepspeed.initialize` and one step on the simulated GPU."""
    found = compare(24, 11, facts())
    assert not _disagreements(found)
    assert 3 <= sum(bool(case.refused) for case in found) <= 21


@pytest.mark.slow
def test_lint_and_the_engine_agree_on_300_random_configurations() -> None:
    """The same, at length."""
    assert not _disagreements(compare(300, 2, facts()))
