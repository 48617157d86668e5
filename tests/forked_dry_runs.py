"""Dry runs for tests of what is made of them: the same answers as `ask` gives, without its imports for each call."""

from __future__ import annotations

from collections.abc import Sequence

from ds_advise.probes.dry_run import DryRunResult
from ds_advise.probes.recording.request import Request

from benchmarks.dry_run.forked_dry_runs import answers
from tests.training_scripts.forked_ranks import start_server


def ask_forks(requests: Sequence[Request], _timeout_s: float = 0.0) -> list[DryRunResult]:
    """In place of `probes.dry_run.ask.ask`. An error of a run fails the test."""
    start_server()
    results = []
    for answer in answers(requests):
        assert isinstance(answer, DryRunResult), answer
        results.append(answer)
    return results
