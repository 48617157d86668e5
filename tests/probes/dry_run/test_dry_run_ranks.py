"""Which rank a dry run is, when the question names none: no other one peaks noticeably higher."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from ds_advise.estimators.workload import Method, Workload
from ds_advise.probes.dry_run.run import dry_run, fullest_rank
from ds_advise.probes.run import Run

from tests.helpers import SMALL_LLAMA, ask_forks, h100s, zero_config

RANKS = 8
MODEL = SMALL_LLAMA | {"intermediate_size": 704, "num_hidden_layers": 4, "vocab_size": 2048}


def config(stage: int, offload: str = "none", accumulation: int = 1) -> dict[str, Any]:
    return zero_config(stage, 1, accumulation, reduce_bucket_size=65_536, offload_optimizer={"device": offload})


def too_low(cases: Sequence[tuple[dict[str, Any], Method]]) -> list[str]:
    """Cases in which the chosen one of eight ranks peaks more than 2 % below the first, the last or one in the middle,
    where others may be a quarter below; all of them are forks of one process."""
    runs = [
        Run(config=asked, model=MODEL, workload=Workload(seq_len=32, method=method), cluster=h100s(RANKS))
        for asked, method in cases
    ]
    chosen = [fullest_rank(run) for run in runs]
    sample = [sorted({0, best, RANKS // 2, RANKS - 1}) for best in chosen]
    dry_runs = [
        partial(dry_run, run, rank=rank, iterations=2)
        for run, ranks in zip(runs, sample, strict=True)
        for rank in ranks
    ]
    results = iter(ask_forks(dry_runs))
    found = []
    for (asked, method), best, ranks in zip(cases, chosen, sample, strict=True):
        peaks = {rank: next(results).peak.allocated_bytes_per_gpu for rank in ranks}
        if peaks[best] < 0.98 * max(peaks.values()):
            found.append(f"{method}, {asked['zero_optimization']}: {best} of {peaks}")
    return found


@pytest.mark.slow
def test_no_other_rank_peaks_higher() -> None:
    """With the optimizer in host memory, and with adapters at stage 2."""
    assert not too_low([(config(2, "cpu"), "full"), (config(2), "lora")])


@pytest.mark.slow
def test_a_large_head_makes_its_ranks_the_fullest_while_layers_run_backward() -> None:
    """Rank 1 touches the most elements; rank 6 the head and a layer, whose gradients come first."""
    deep = MODEL | {"num_hidden_layers": 8, "vocab_size": 6656, "max_position_embeddings": 1024}
    workload = Workload(seq_len=1024, loss="fused")
    run = Run(config=config(2), model=deep, cluster=h100s(RANKS), workload=workload)
    most, chosen = ask_forks([partial(dry_run, run, rank=rank, iterations=2) for rank in (1, fullest_rank(run))])
    assert chosen.rank == 6
    assert chosen.peak.allocated_bytes_per_gpu > 1.03 * most.peak.allocated_bytes_per_gpu


def test_the_piece_decides() -> None:
    """The embedding alone fills the first rank's piece; the second's touches its rest and a layer; the last has the
    head."""
    in_memory = Run(config=config(2), model=MODEL, cluster=h100s(RANKS), workload=Workload(seq_len=32))
    offloaded = replace(in_memory, config=config(2, "cpu"))
    assert (fullest_rank(in_memory), fullest_rank(offloaded)) == (1, RANKS - 1)


@pytest.mark.parametrize(
    ("asked", "model"),
    [
        (config(0), MODEL),
        (config(3), MODEL),
        (config(2), "own.py:model"),
        (config(2), {"model_type": "unheard-of"}),
        ({}, MODEL),
    ],
)
def test_rank_0_where_all_ranks_are_equal(asked: dict[str, Any], model: Any) -> None:
    """Stages that treat all ranks alike, and models with unknown tensors."""
    assert fullest_rank(Run(config=asked, model=model, cluster=h100s(RANKS))) == 0
