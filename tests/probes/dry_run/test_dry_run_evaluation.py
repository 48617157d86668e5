"""Closed form and dry run of an evaluation count the bytes that transformers' own Trainer allocates on two ranks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.question.model_source import model_shape
from ds_advise.probes.run import Run

from .test_dry_run_truth import Case, answer, run_of, steps_of

CASES: list[tuple[Case, dict[str, int]]] = [
    (Case("zero2"), {}),
    (Case("zero3", model="llama", checkpointing=False), {"eval_logits": 4}),
]


def evaluated_run(case: Case, evaluation: dict[str, int], folder: Path) -> Run:
    plain = run_of(case, folder)
    workload = replace(plain.workload, eval_batch=8, **evaluation)  # type: ignore[arg-type]
    return replace(plain, workload=workload, shape=model_shape(plain.description or {}, name=case.model))


def _evaluation(phases: list[dict[str, Any]], figure: str) -> int:
    return next(phase[figure] for phase in phases if phase["phase"] == "evaluation")


@pytest.mark.slow
@pytest.mark.parametrize(("case", "evaluation"), CASES, ids=str)
def test_an_evaluation_holds_what_is_predicted(case: Case, evaluation: dict[str, int], tmp_path: Path) -> None:
    """The closed form within 3 % of the Trainer's evaluation, the dry run within 1 %."""
    run = evaluated_run(case, evaluation, tmp_path)
    found = answer(run, tmp_path / "job", steps_of(case))
    assert "error" not in found, found["error"]
    # Logits that go to the host are copies in the dry run; on a CPU they are the same memory.
    real = _evaluation(found["real"]["phases"], "total_peak_bytes")
    dry = _evaluation(found["dry"]["phases"], "gpu_peak_bytes")
    estimate = run.estimate()
    assert estimate is not None
    phase = next(phase for phase in estimate.memory.phases if phase.name == "evaluation")
    ours = sum(term.size_bytes for term in phase.terms if term.name != "library_workspace")
    assert abs(dry / real - 1) < 0.01
    assert abs(ours / real - 1) < 0.03
