"""The closed form against the dry run, on cases of the benchmark's grid that are always the same."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from ds_advise.probes.run_errors import DryRunError

from benchmarks.dry_run.analytic_vs_dry_run import missed
from benchmarks.dry_run.cases import DORA, GRID, SPECIAL, WITHOUT_VOCABULARY, Case, spread
from benchmarks.dry_run.compare import Comparison, Measured, Setting, relative_error
from benchmarks.dry_run.forked_dry_runs import answers
from tests.training_scripts.forked_ranks import start_server


def comparisons(cases: list[Case]) -> list[Comparison]:
    """The cases both ways; an error of a dry run fails the test."""
    start_server()
    settings = [Setting.of(case) for case in cases]
    rows = []
    for setting, answer in zip(settings, answers([setting.dry_run for setting in settings]), strict=True):
        assert not isinstance(answer, DryRunError), f"{setting.case.name}: {answer}"
        rows.append(setting.compare(Measured.of(answer)))
    return rows


def below(rows: list[Comparison]) -> list[str]:
    """Cases whose reserved memory the closed form puts too low, by more than its rounding."""
    return [row.case.name for row in rows if row.reserved[0] < 0.98 * row.reserved[1]]


@pytest.mark.slow
def test_the_cache_is_what_the_replayed_allocator_holds() -> None:
    """With expandable segments and ample room the allocator holds more than it must: every stream its own peak, the
    logits' gap, and at stages 1 and 2 the step's copies. Long samples of a model with a large vocabulary are within
    12 %, and each needs the cache for it."""
    found = [case for case in GRID if (case.model, case.method, case.seq_len) == ("qwen2", "full", 8192)]
    chosen = [next(case for case in found if case.strategy == strategy) for strategy in ("zero2", "zero3")]
    for row in comparisons(chosen):
        assert abs(relative_error(row.held)) < 0.12, (row.case.name, row.held)
        assert row.reserved[0] < 0.97 * row.held[1], row.case.name


def test_closed_form_is_that_of_the_dry_run() -> None:
    """Allocated, host and NVMe bytes within the targets, reserved memory not below what the allocator must hold."""
    rows = comparisons(spread(GRID, 6))
    assert not missed(rows)
    assert not below(rows)
    assert sum(bool(row.host[1]) for row in rows) >= 3, "cases with offload are among them"


def test_closed_form_is_that_of_the_dry_run_for_losses_of_other_libraries() -> None:
    """Their code is the library's (Liger's is written down), their kernels allocate nothing."""
    losses = {"chunked-softmax", "fused"} | ({"chunked-head"} if find_spec("trl") else set())
    special = [case for case in SPECIAL if (case.model, case.strategy, case.world_size) == ("llama", "zero2", 8)]
    rows = comparisons([case for case in special if case.loss in losses])
    assert len(rows) == 2 * len(losses)
    assert not missed(rows)


WITHIN = 0.02
"""Largest error of the allocated bytes without a vocabulary, and with DoRA. Where a bucket is most of a small model, it
may be reduced at a moment with fewer activations than assumed: up to 3 % too much at stages 1 and 2."""


@pytest.mark.parametrize("count", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_closed_form_is_that_of_the_dry_run_without_a_vocabulary(count: int) -> None:
    """Classification and embeddings by the Trainer's own classes, of a decoder and of encoders."""
    for row in comparisons(spread(WITHOUT_VOCABULARY, count)):
        at_bucket = 0.015 if row.case.strategy in ("zero1", "zero2") else 0.0
        assert -WITHIN < relative_error(row.allocated) < WITHIN + at_bucket, row.case.name


@pytest.mark.slow
def test_closed_form_is_that_of_the_dry_run_with_dora() -> None:
    for row in comparisons(spread(DORA, 6)):
        assert abs(relative_error(row.allocated)) < 0.025, row.case.name


@pytest.mark.slow
def test_closed_form_is_that_of_the_dry_run_for_special_settings() -> None:
    """Shared samples, copies of modules that are trained beside adapters, an encoder; of models of two layers."""
    rows = comparisons(spread([case for case in SPECIAL if case.model not in ("0.5B", "7B/8")], 3))
    assert not missed(rows)
    assert not below(rows)
