"""The quick search finds the plan that the ladder recommends."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.advisor.ask import ask
from ds_advise.advisor.recommend.search.choice import fastest_that_fits
from ds_advise.advisor.recommend.search.fastest import fastest
from ds_advise.advisor.recommend.search.ladder import predict_all

QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("Llama-3.1-8B", {"gpus": "8xH100"}),
    ("Llama-3.1-8B", {"gpus": "4xA100-80GB", "seq_len": 65536}),
    ("Qwen2.5-7B", {"gpus": "1xRTX4090", "ram": "128GB"}),
    ("Qwen2.5-7B", {"gpus": "2xRTX4090", "ram": "64GB"}),
    ("Qwen2.5-7B", {"gpus": "4x24GB", "method": "lora"}),
    ("Qwen2.5-14B", {"gpus": "8xH200", "global_batch": 64}),
    ("Qwen2.5-7B", {"gpus": "4xL4", "risk": "bold", "nvme": "/nvme:2TB"}),
    ("Qwen3-30B-A3B", {"gpus": "8xA100-80GB", "method": "lora"}),
    ("Llama-3.1-70B", {"gpus": "2x8xH100"}),
    ("gpt2", {"gpus": "1xT4"}),
    ("Mistral-7B-v0.1", {"gpus": "2x8xA100-80GB", "micro_batch": 2, "gradient_checkpointing": "on"}),
    ("Qwen2.5-7B", {"gpus": "8xL40S", "global_batch": 4, "seq_len": 8192}),
]


@pytest.mark.parametrize(("model", "said"), QUESTIONS, ids=str)
def test_the_quick_search_finds_the_plan_of_the_ladder(model: str, said: dict[str, Any]) -> None:
    question = ask(model, **said)
    quick, whole = fastest(question), fastest_that_fits(predict_all(question)[0])
    assert (quick and (quick.plan, quick.fit, quick.tokens_per_s)) == (
        whole and (whole.plan, whole.fit, whole.tokens_per_s)
    )
