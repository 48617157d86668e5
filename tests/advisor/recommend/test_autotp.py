"""AutoTP in the answer: where the batch has fewer samples than there are GPUs, and nowhere else."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from ds_advise.advisor.advise import advise
from ds_advise.advisor.render.answer import print_answer
from rich.console import Console


def ask(**question: Any) -> Any:
    return advise("Llama-3.1-8B", gpus="8xH100", deepspeed_estimate=False, offline=True, **question)


def test_a_batch_smaller_than_the_gpus_is_worth_splitting_layers() -> None:
    """The answer says what it wins over samples that GPUs share, whose plans are among the candidates and slower."""
    answer = ask(global_batch=4, seq_len=4096)
    chosen = answer.recommended
    assert (chosen.plan.autotp_size, chosen.plan.sequence_parallel_size, chosen.plan.micro_batch_size) == (2, 1, 1)
    assert any("split each layer" in reason for reason in answer.reasons)
    shared = [each for each in answer.candidates if each.plan.sequence_parallel_size > 1 and each.fit.fits]
    assert shared and max(each.tokens_per_s for each in shared) < chosen.tokens_per_s


@pytest.mark.parametrize("question", [{}, {"global_batch": 8}, {"global_batch": 4, "sequence_parallel_size": 2}])
def test_no_layers_are_split_where_every_gpu_has_a_sample(question: dict[str, Any]) -> None:
    assert {candidate.plan.autotp_size for candidate in ask(**question).candidates} == {1}


def test_a_script_of_ones_own_is_told_to_give_a_group_the_same_samples() -> None:
    text = StringIO()
    answer = ask(global_batch=4, seq_len=4096, framework="deepspeed")
    print_answer(answer, Console(file=text, width=100), details=True)
    assert "get_world_size() // 2" in text.getvalue() and "get_rank() // 2" in text.getvalue()
