"""AutoEP in the answer: where it is asked for and faster, and told where it would be."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.advisor.advise import advise
from ds_advise.advisor.text.labels import plan_title
from ds_advise.ds_configs.emit import ds_config
from ds_advise.ds_configs.read import plan_from_ds_config
from ds_advise.estimators.errors import WorkloadError


def ask(model: str = "Qwen3-30B-A3B", **question: Any) -> Any:
    return advise(model, gpus="8xH100", deepspeed_estimate=False, offline=True, **question)


def test_whole_experts_on_each_gpu_are_chosen_where_that_is_faster() -> None:
    """The answer says what it wins and which transformers it needs; the configuration is DeepSpeed's."""
    answer = ask(experts="autoep")
    chosen = answer.recommended
    assert (chosen.plan.zero_stage, chosen.plan.autoep_size) == (1, 8)
    assert "experts spread over 8" in plan_title(chosen.plan)
    assert any("tokens travel" in reason for reason in answer.reasons)
    assert any("transformers 5.0 to 5.22" in doubt for doubt in answer.doubts)
    block = {"enabled": True, "autoep_size": 8, "preset_model": "qwen3_moe"}
    question = answer.question
    written = ds_config(chosen.plan, question.model, question.workload, question.cluster, flavor="hf")
    assert written["expert_parallel"] == block
    assert plan_from_ds_config(written, question.model, question.cluster, micro_batch_size=1).autoep_size == 8
    assert "all-to-all of tokens" in chosen.time.components
    sharded = [each for each in answer.candidates if each.plan.autoep_size == 1 and each.fit.fits]
    assert sharded and max(each.tokens_per_s for each in sharded) < chosen.tokens_per_s


def test_stage_3_spreads_experts_too() -> None:
    """Without hpZ, which DeepSpeed refuses beside it; the file is read back as that plan."""
    answer = advise("Qwen3-235B-A22B", gpus="16x8xH100", interconnect="400Gb/s", experts="autoep", offline=True)
    spread = [each for each in answer.candidates if each.plan.zero_stage == 3 and each.plan.autoep_size > 1]
    assert spread and all(each.plan.zero_hpz_partition_size == 1 for each in spread)
    chosen, question = answer.recommended, answer.question
    assert chosen is not None and (chosen.plan.zero_stage, chosen.plan.autoep_size) == (3, 8)
    written = ds_config(chosen.plan, question.model, question.workload, question.cluster, flavor="hf")
    assert plan_from_ds_config(written, question.model, question.cluster, micro_batch_size=1).autoep_size == 8


def test_who_does_not_ask_is_told_what_it_would_win() -> None:
    answer = ask()
    assert {candidate.plan.autoep_size for candidate in answer.candidates} == {1}
    assert [change.outcome for change in answer.changes if change.flags == "--experts autoep"]
    assert not [change for change in ask("Qwen2.5-7B").changes if "autoep" in change.flags]


@pytest.mark.parametrize(
    ("model", "question"),
    [("Qwen2.5-7B", {}), ("Qwen3-30B-A3B", {"method": "lora"}), ("Qwen3-30B-A3B", {"states": "bf16"})],
)
def test_what_does_not_go_with_it_is_refused(model: str, question: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match="AutoEP is not possible here"):
        ask(model, experts="autoep", **question)
