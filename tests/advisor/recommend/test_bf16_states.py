"""Master weights and optimizer states in bf16: asked for, offered where they help, refused where DeepSpeed has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.advise import advise
from ds_advise.advisor.estimate import estimate
from ds_advise.estimators.errors import WorkloadError

PUBLISHED = Path(__file__).parents[3] / "benchmarks/data/models/GPT-6.9B-bf16_master_weight.json"
MODEL, GPUS = "Qwen2.5-7B", "4x24GB"


def ask(**question: Any) -> Any:
    return advise(MODEL, gpus=GPUS, deepspeed_estimate=False, offline=True, **question)


def test_states_in_bf16_take_half_the_memory_and_say_what_they_cost() -> None:
    """Stage 2 keeps 2 bytes for a master and 4 for Adam's states, where fp32 takes 12."""
    rounded, exact = ask(optimizer_dtype="bf16"), ask()
    for name, share in (("master_weights", 0.5), ("optimizer_states", 0.5)):
        halves = [
            next(step.candidate for step in answer.ladder if step.rung == "zero2").memory.components[name]
            for answer in (rounded, exact)
        ]
        assert halves[0] == pytest.approx(share * halves[1], rel=1e-6)
    assert rounded.recommended.plan.bf16_optimizer_states
    assert any("rounded away" in doubt for doubt in rounded.doubts)
    assert rounded.recommended.tokens_per_s > exact.recommended.tokens_per_s


def test_no_answer_has_states_in_bf16_unless_asked_for() -> None:
    """They are named among what would change the answer, where they do."""
    answer = ask()
    assert not any(candidate.plan.bf16_master_weights_and_grads for candidate in answer.candidates)
    assert [change.outcome for change in answer.changes if change.flags == "--optimizer-dtype bf16"]
    assert not [change for change in ask(optimizer_dtype="bf16").changes if change.flags == "--optimizer-dtype bf16"]


def test_where_deepspeed_keeps_no_states_in_bf16_it_is_told() -> None:
    """Stage 0 and NVMe are obstacles of their rungs; another optimizer or precision is refused."""
    reasons = {step.rung: step.reason for step in ask(optimizer_dtype="bf16").ladder if step.candidate is None}
    assert set(reasons) == {"ddp", "zero3-nvme"}
    for question in ({"optimizer": "lion"}, {"precision": "fp16"}):
        with pytest.raises(WorkloadError, match="states in bf16"):
            ask(optimizer_dtype="bf16", **question)


@pytest.mark.parametrize(("in_bf16", "peak_gib"), [(False, 31.38), (True, 18.93)])
def test_published_peaks_with_and_without_states_in_bf16_are_met(in_bf16: bool, peak_gib: float) -> None:
    """A GPT of 6.86 B parameters under ZeRO-3 on four H100 (DeepSpeedExamples training/bf16_master_weight@45b4b71,
    DeepSpeed's default sizes): peaks of allocated memory within 1 %."""
    sizes = {"sub_group_size": 10**9, "stage3_prefetch_bucket_size": 5 * 10**7, "reduce_bucket_size": 5 * 10**7}
    found = estimate(
        str(PUBLISHED),
        gpus="4xH100-80GB",
        rung="zero3",
        micro_batch=1,
        gradient_checkpointing="on",
        seq_len=512,
        attention="eager",
        settings=sizes
        | {"stage3_param_persistence_threshold": 0}
        | dict.fromkeys(("bf16_master_weights_and_grads", "bf16_optimizer_states"), in_bf16),
    )
    assert found.memory.allocated_bytes_per_gpu / 2**30 == pytest.approx(peak_gib, rel=0.01)
