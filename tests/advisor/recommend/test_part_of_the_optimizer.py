"""A part of an offloaded optimizer that the GPU has room for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from ds_advise import advise
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.cli.main import program
from ds_advise.advisor.search.candidate import predict
from ds_advise.advisor.search.choice import SAME_SPEED
from ds_advise.advisor.search.search import fastest

ROOMY: dict[str, Any] = {"model": "Qwen2.5-32B", "gpus": "8x40GB", "seq_len": 8192}
"""One sample leaves a quarter of the GPU, and a second one does not fit."""


def ask(**question: Any) -> Recommendation:
    return advise(**question, offline=True, deepspeed_estimate=False)


def test_what_the_gpu_has_room_for_steps_there() -> None:
    """Faster than the plan that offloads all of it, surely fitting, found by the quick search too, and explained."""
    answer = ask(**ROOMY)
    chosen, question = answer.recommended, answer.question
    assert chosen is not None and chosen.fit.fits and 0 < chosen.plan.offload_optimizer_ratio < 1
    whole = replace(chosen.plan, offload_optimizer_ratio=1.0)
    other = predict(question.model, question.workload, question.cluster, whole)
    assert chosen.tokens_per_s > other.tokens_per_s * (1 + SAME_SPEED)
    quick = fastest(question)
    assert quick is not None and quick.plan == chosen.plan
    assert any("offload_optimizer.ratio" in reason for reason in answer.reasons)


def test_a_larger_batch_is_the_better_use_of_the_room() -> None:
    """Where samples fill the GPU there is none, and a batch that the user fixes leaves the optimizer where it is."""
    for question in ({"model": "Qwen2.5-14B", "gpus": "2x32GB"}, {**ROOMY, "micro_batch": 1}):
        recommended = ask(**question).recommended
        assert recommended is not None and recommended.plan.offload_optimizer_ratio == 1


def test_the_configuration_says_it_and_lint_finds_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    words = ["Qwen2.5-32B", "--gpus", "8x40GB", "--seq-len", "8192", "--offline", "-o", str(path)]
    done = CliRunner().invoke(program, ["advise", *words])
    assert done.exit_code == 0, done.output
    offload = json.loads(path.read_text(encoding="utf-8"))["zero_optimization"]["offload_optimizer"]
    assert 0 < offload["ratio"] < 1
    found = CliRunner().invoke(program, ["lint", str(path)])
    assert found.exit_code == 0, found.output
