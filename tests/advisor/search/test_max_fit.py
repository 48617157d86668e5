"""The largest size found fits, the next larger does not, and more memory never allows less."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from ds_advise.advisor.advise import build_question, estimate, predicted
from ds_advise.advisor.answer.advice import build_advice
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.question.question import Largest
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.json_form import to_json

from tests.helpers import printed


def found(model: str, gpus: str | Cluster, **options: Any) -> Largest:
    result = build_question(model, gpus=gpus, **options).largest
    assert result is not None
    return result


def fits(model: str, gpus: str, **options: Any) -> bool:
    return predicted(build_question(model, gpus=gpus, **options)).recommended is not None


@pytest.mark.parametrize(
    ("model", "gpus", "options"),
    [
        ("Qwen2.5-0.5B", "1x16GB", {}),
        ("Qwen2.5-7B", "4x24GB", {"method": "lora"}),
        ("Llama-3.1-8B", "2xA100-80GB", {"ram": "256GB", "gradient_checkpointing": "on"}),
    ],
)
def test_the_largest_micro_batch_fits_and_the_next_does_not(model: str, gpus: str, options: dict[str, Any]) -> None:
    most = found(model, gpus, micro_batch="max", **options)
    assert fits(model, gpus, micro_batch=most.value, **options)
    assert not fits(model, gpus, micro_batch=most.too_large, **options)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("Qwen2.5-0.5B", {"seq_len": "max"}),
    ("Qwen2.5-0.5B", {"seq_len": "max", "ram": "32GB"}),
    ("Qwen2.5-1.5B", {"micro_batch": "max", "method": "lora"}),
]


@pytest.mark.parametrize(("model", "options"), OPTIONS, ids=str)
def test_more_memory_never_allows_less(model: str, options: dict[str, Any]) -> None:
    options = dict(options)
    one = parse_cluster("2xA100-80GB", ram=options.pop("ram", None))
    values = []
    for gigabytes in (3, 6, 12, 40, 79):
        cluster = replace(one, gpu=replace(one.gpu, memory_bytes=gigabytes * 2**30))
        question = build_question(model, gpus=cluster, **options)
        assert question.largest is not None
        values.append(question.largest.value or 0)
    assert all(less <= more for less, more in pairwise(values)), values
    assert values[0] < values[-1]


def test_a_sequence_shorter_than_a_thousand_is_found_where_no_longer_fits() -> None:
    cluster = parse_cluster("1xRTX3060-8GB")
    small = replace(cluster, gpu=replace(cluster.gpu, memory_bytes=int(2.9 * 2**30)))
    most = found("Qwen2.5-0.5B", small, seq_len="max", loss="standard")
    assert most.value is not None and 128 <= most.value < 1024 and most.too_large == most.value + 128


def test_the_longest_sequence_of_five_gpus_is_shared_by_all() -> None:
    alone, shared = (found("llama-2-13b", gpus, seq_len="max").value for gpus in ("1x40GB", "5x40GB"))
    assert alone is not None and shared is not None and shared > 2 * alone and shared % 5 == 0


def test_a_model_whose_positions_are_learned_has_no_longer_sequence() -> None:
    assert found("gpt2", "1xA100-80GB", seq_len="max") == Largest(option="seq_len", value=1024, too_large=None)


def test_packed_documents_may_be_longer_than_the_first_length_tried() -> None:
    most = found("Qwen2.5-0.5B", "1x24GB", seq_len="max", document_len=3000, attention="flash")
    assert most.value is not None and most.value > 3000


@pytest.mark.parametrize("options", [{"micro_batch": "max"}, {"data": "rows.jsonl"}])
def test_impossible_searches_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DsAdviseError, match="contradict each other"):
        build_question("gpt2", gpus="1x24GB", seq_len="max", **options)


@pytest.mark.parametrize(
    ("model", "gpus", "options", "sentence"),
    [
        ("gpt2", "1x24GB", {"seq_len": "max"}, "A sequence of 1,024 tokens is the largest that fits."),
        ("Qwen2.5-14B", "2x32GB", {"micro_batch": "max"}, "that fits if the host has the RAM"),
        ("Llama-3.1-70B", "1x8GB", {"micro_batch": "max"}, "Micro batch 1, the smallest, does not fit."),
    ],
)
def test_the_answer_says_what_was_found(model: str, gpus: str, options: dict[str, Any], sentence: str) -> None:
    answer = predicted(build_question(model, gpus=gpus, **options))
    assert sentence in " ".join(printed(answer, width=200).split())
    option = next(name for name, value in options.items() if value == "max")
    assert to_json(build_advice(answer))["largest"]["option"] == option


@pytest.mark.parametrize("options", [{"seq_len": "max"}, {"micro_batch": "max"}])
@pytest.mark.parametrize("strategy", ["zero3", "fsdp2"])
def test_the_largest_of_a_strategy_is_one_that_it_fits(strategy: str, options: dict[str, Any]) -> None:
    """Not one that only another strategy does."""
    plan = estimate("llama3.1-8b", gpus="8xH100", strategy=strategy, **options)
    assert plan.fits and plan.strategy == strategy
    largest = plan.question.largest
    assert largest is not None and largest.too_large is not None
    own = {**options, next(iter(options)): largest.too_large}
    assert not estimate("llama3.1-8b", gpus="8xH100", strategy=strategy, **own).fits
