"""The search works out what the choice needs, and leaves the process as it was."""

from __future__ import annotations

import gc

import pytest
from ds_advise.advisor.ask import ask
from ds_advise.advisor.gc_pause import gc_paused
from ds_advise.advisor.search.search import predict_all


def test_the_time_of_a_plan_that_does_not_fit_is_worked_out_when_it_is_asked_for() -> None:
    question = ask("Llama-3.1-8B", gpus="8xH100", seq_len=131_072, ram="2TB", offline=True)
    _, candidates = predict_all(question)
    failing = [each for each in candidates if each.fit.limit == "gpu" and not each.fit.gpu_likely_suffices]
    timed = [each for each in failing if "estimate" in vars(each)]
    assert len(failing) > 40 and len(timed) < len(failing) / 4
    assert all(each.tokens_per_s > 0 for each in failing)


def test_a_search_leaves_the_collector_as_it_was() -> None:
    question = ask("Qwen2.5-0.5B", gpus="1xH100", offline=True)
    predict_all(question)
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), gc_paused():
        assert not gc.isenabled()
        1 / 0  # noqa: B018
    assert gc.isenabled()
    gc.disable()
    try:
        predict_all(question)
        assert not gc.isenabled()
    finally:
        gc.enable()
