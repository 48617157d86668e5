"""Lint against the real engine: what it refuses was called an error, and nothing that runs is called one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ds_advise.validate.lint import RULES

from benchmarks.lint.against_engine import Comparison, compare, errors
from benchmarks.lint.engine import outcomes
from benchmarks.lint.random_configs import random_configs, with_junk
from tests.validate.lint.lint_cases import MORE_BAD, facts


def _disagreements(found: list[Comparison]) -> list[str]:
    return [
        f"{json.dumps(case.config)}: engine {case.refused or 'runs'}; lint {case.errors}"
        for case in found
        if not case.agrees
    ]


@pytest.mark.usefixtures("engine_in_a_fork")
def test_lint_and_the_engine_agree_on_random_configurations() -> None:
    """`deepspeed.initialize` and one step on the simulated GPU."""
    found = compare(12, 11, facts())
    assert not _disagreements(found)
    assert 2 <= sum(bool(case.refused) for case in found) <= 10


def test_configurations_that_deepspeeds_reader_refuses_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """`DeepSpeedConfig` with two ranks, over random configurations with anything anywhere."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime import config as reader

    monkeypatch.setattr(reader.dist, "get_rank", lambda *_arguments: 0)
    monkeypatch.setattr(reader.dist, "get_world_size", lambda *_arguments: 2)
    refused = 0
    for config in with_junk(random_configs(600, 5, facts()), 9, facts()):
        try:
            reader.DeepSpeedConfig(copy.deepcopy(config))
        except Exception as error:
            refused += 1
            assert errors(config, facts()), (config, error)
    assert refused > 120


NOT_SEEN = {"DS102", "DS151"}
"""The dry run fills missing batch sizes and `auto`."""


@pytest.mark.slow
@pytest.mark.usefixtures("engine_in_a_fork")
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_engine_refuses_what_the_error_rules_show_as_bad(ranks: int) -> None:
    """Each rule's own example, on the GPUs that it speaks of."""
    found: dict[str, dict[str, Any]] = {}
    for rule in RULES:
        bad, _, options = rule.example
        can_run = options.get("framework") != "hf" and "model" not in options
        on_these = ("4x" in str(options.get("gpus"))) == (ranks == 4)
        is_refused = rule.severity == "error" and rule.holds_for(facts()) and rule.code not in NOT_SEEN
        if is_refused and can_run and on_these and not isinstance(bad, str):
            found[rule.code] = dict(bad)
            more = enumerate(keys for code, keys, _ in MORE_BAD if code == rule.code)
            found |= {f"{rule.code} {number}": {**bad, **keys} for number, keys in more}
    refusals = outcomes(list(found.values()), world_size=ranks)
    assert not [code for code, outcome in zip(found, refusals, strict=True) if not outcome]
    assert len(found) >= {2: 30, 4: 2}[ranks]
