"""The rank that the dry run of a command simulates is the one that the dry run of the model's name chooses."""

from __future__ import annotations

import pytest
import torch
from ds_advise.estimators.memory.trainable import tensor_set
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.workload import Workload
from ds_advise.probes.command.fullest_rank import fullest_rank
from ds_advise.probes.dry_run import run as by_name
from ds_advise.probes.run import Run

from tests.helpers import h100s, zero_config

MODELS = (
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen2-VL-72B-Instruct",
    "HuggingFaceTB/SmolLM-360M",
    "meta-llama/Meta-Llama-3-70B",
    "google/gemma-3-4b-pt",
    "internlm/internlm2-20b",
    "openlm-research/open_llama_13b",
)


def parameters(*numels: int, trained: bool = True) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.empty(numel, device="meta"), requires_grad=trained) for numel in numels]


@pytest.mark.parametrize(("offload", "chosen"), [("none", {0, 1, 2, 3}), ("cpu", {0, 1, 7})])
def test_shipped_models_have_the_rank_of_their_name(offload: str, chosen: set[int]) -> None:
    found = set()
    for name in MODELS:
        group = parameters(*tensor_set(catalogue.find(name), Workload()).trainable)
        for ranks in (2, 8):
            config = zero_config(2, offload_optimizer={"device": offload})
            run = Run(config=config, model=catalogue.config(name), cluster=h100s(ranks))
            fullest = fullest_rank([group], ranks, offloads=offload != "none")
            assert fullest == by_name.fullest_rank(run), (name, ranks)
            found.add(fullest)
    assert found == chosen


def test_each_group_of_the_optimizer_is_cut_by_itself() -> None:
    """In one group of 16 elements the large tensor fills the piece of rank 1; cut in two groups, both ranks touch it,
    and rank 0 the small ones of its group too."""
    whole = fullest_rank([parameters(2, 2, 1, 1, 2, 8)], 2, offloads=False)
    apart = fullest_rank([parameters(2, 2), parameters(1, 1, 2, 8)], 2, offloads=False)
    assert (whole, apart) == (1, 0)


def test_frozen_parameters_do_not_count() -> None:
    trained, frozen = parameters(4, 6, 2), parameters(1000, trained=False)
    assert fullest_rank([trained], 2, offloads=False) == fullest_rank([frozen + trained], 2, offloads=False) == 0
    assert fullest_rank([parameters(10, trained=False)], 2, offloads=False) == 0


def test_the_first_rank_is_the_fullest_where_all_gradients_are_reduced_at_the_end() -> None:
    """It has its buffer of 8 elements when 12 are alive, the second rank when 4 are. In one bucket both are alike."""
    group = parameters(4, 4, 4, 4)
    found = [fullest_rank([group], 2, offloads=False, bucket_size=size) for size in (4, 16, None)]
    assert found == [0, 1, 1]
    assert fullest_rank([group], 2, offloads=True, bucket_size=4) == 1
