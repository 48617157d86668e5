"""hpZ: where a node's second copy of the weights wins, and where the search leaves it out."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.advisor.advise import advise
from ds_advise.advisor.estimate import estimate
from ds_advise.estimators.errors import WorkloadError


def ask(gpus: str, **question: Any) -> Any:
    return advise("Llama-3.1-8B", gpus=gpus, deepspeed_estimate=False, offline=True, **question)


def test_a_slow_network_between_nodes_makes_second_copies_worth_their_memory() -> None:
    """The answer says what they win; the plan without them is among the candidates, and slower."""
    answer = ask("4x8xH100", interconnect="100Gb/s")
    chosen = answer.recommended
    assert chosen.plan.zero_hpz_partition_size == 8
    assert any("second copy of the weights" in reason for reason in answer.reasons)
    without = max(
        candidate.tokens_per_s
        for candidate in answer.candidates
        if candidate.rung == "zero3" and candidate.plan.zero_hpz_partition_size == 1 and candidate.fit.fits
    )
    assert without < chosen.tokens_per_s


@pytest.mark.parametrize(("gpus", "question"), [("8xH100", {}), ("4x1xH100", {"interconnect": "100Gb/s"})])
def test_without_several_nodes_of_several_gpus_there_is_nothing_to_copy(gpus: str, question: dict[str, Any]) -> None:
    assert {candidate.plan.zero_hpz_partition_size for candidate in ask(gpus, **question).candidates} == {1}


def test_second_copies_take_a_nodes_share_of_the_weights() -> None:
    """At the end of the step every GPU holds w P / h of them; the gathers of the backward pass stay in the node."""
    question = {"gpus": "4x8xH100", "interconnect": "100Gb/s", "micro_batch": 1, "gradient_checkpointing": "on"}
    copied, once = (
        estimate("Llama-3.1-8B", rung="zero3", settings={"zero_hpz_partition_size": size}, **question)
        for size in (8, 1)
    )
    ends = [next(phase for phase in each.memory.phases if phase.name == "step") for each in (copied, once)]
    more = ends[0].allocated_bytes - ends[1].allocated_bytes
    assert more == pytest.approx(2 * 8.03e9 / 8, rel=0.01)
    links = {term.name: term.resource for term in copied.time.terms}
    assert links["weight gathering nearby"] == "gpu links" and links["weight gathering"] == "network"
    assert copied.time.components["weight gathering"] < once.time.components["weight gathering"]


@pytest.mark.parametrize(("rung", "size"), [("zero2", 8), ("zero3", 5), ("zero3-nvme", 8)])
def test_second_copies_that_cannot_be_are_refused(rung: str, size: int) -> None:
    with pytest.raises(WorkloadError, match="cannot run here"):
        estimate(
            "Llama-3.1-8B",
            gpus="4x8xH100",
            interconnect="100Gb/s",
            nvme="/tmp:10TB",
            rung=rung,
            settings={"zero_hpz_partition_size": size},
        )


def test_one_shape_of_a_rung_has_second_copies_only_where_the_settings_say_so() -> None:
    """What is estimated is the plan that was named, whatever would be faster."""
    named = {"gpus": "4x8xH100", "interconnect": "100Gb/s", "micro_batch": 1, "gradient_checkpointing": "on"}
    assert estimate("Llama-3.1-8B", rung="zero3", **named).plan.zero_hpz_partition_size == 1
    settings = {"reduce_bucket_size": 50_000_000}
    assert estimate("Llama-3.1-8B", rung="zero3", settings=settings, **named).plan.zero_hpz_partition_size == 1
