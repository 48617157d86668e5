"""AutoTP: what each rank holds of a model, what it needs and takes, and what cannot be split."""

from __future__ import annotations

import pytest
from ds_advise.advisor.estimate import estimate
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.models.rank_part import split_layers

LLAMA = find("Llama-3.1-8B")
QUESTION = {"gpus": "8xH100", "micro_batch": 1, "gradient_checkpointing": "on", "seq_len": 4096}


def test_the_ranks_parts_add_up_to_the_layers_and_repeat_norms_and_embedding() -> None:
    """Of Llama-3.1-8B two ranks hold one model, and the embedding and 65 norms once more."""
    whole = 128_256 * 4096 + (2 * 32 + 1) * 4096
    assert 2 * split_layers(LLAMA, 2).parameters == LLAMA.parameters + whole
    assert split_layers(LLAMA, 1) is LLAMA


def test_split_layers_are_all_reduced_in_every_pass() -> None:
    """Forward two a layer, recomputed one, backward five, and one for the head; nothing hides them."""
    split = estimate("Llama-3.1-8B", rung="zero1", settings={"autotp_size": 2}, **QUESTION)
    term = next(term for term in split.time.terms if term.name == "all-reduces of split layers")
    assert dict(term.inputs)["calls"] == 32 * (2 + 1 + 5) + 1
    assert dict(term.inputs)["hidden"] == 2 * 4096 * 4096
    assert not term.hidden_s and split.time.tokens_per_step == 4 * 4096


@pytest.mark.parametrize(
    ("model", "settings", "question", "why"),
    [
        ("Llama-3.1-8B", {"autotp_size": 3}, {}, "8 GPUs of a node"),
        ("Qwen2.5-7B", {"autotp_size": 8}, {}, "28 heads"),
        ("gpt2", {"autotp_size": 2}, {"seq_len": 1024}, "not known"),
        ("Llama-3.1-8B", {"autotp_size": 2}, {"method": "lora"}, "adapters"),
        ("Llama-3.1-8B", {"autotp_size": 2, "sequence_parallel_size": 2}, {}, "Ulysses"),
    ],
)
def test_what_cannot_be_split_is_told(
    model: str, settings: dict[str, int], question: dict[str, object], why: str
) -> None:
    with pytest.raises(WorkloadError) as refused:
        estimate(model, rung="zero2", settings=settings, **{**QUESTION, **question})
    assert why in str(refused.value)
