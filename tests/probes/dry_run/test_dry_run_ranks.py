"""Which rank a dry run is, when the question names none: no other one peaks noticeably higher."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.workload import Method, Workload
from ds_advise.probes.dry_run.run import dry_run
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
    sample = (None, 0, RANKS // 2, RANKS - 1)
    results = ask_forks([partial(dry_run, run, rank=rank, iterations=2) for run in runs for rank in sample])
    found = []
    for index, (asked, method) in enumerate(cases):
        chosen, *others = results[len(sample) * index : len(sample) * (index + 1)]
        peaks = {each.rank: each.peak.allocated_bytes_per_gpu for each in others}
        if chosen.peak.allocated_bytes_per_gpu < 0.98 * max(peaks.values()):
            found.append(f"{method}, {asked['zero_optimization']}: {chosen.rank}, not of {peaks}")
    return found


@pytest.mark.slow
def test_no_other_rank_peaks_higher() -> None:
    """With the optimizer in host memory, and with adapters at stage 2."""
    assert not too_low([(config(2, "cpu"), "full"), (config(2), "lora")])


def test_the_first_of_the_ranks_that_split_layers_has_the_fullest_partition() -> None:
    """The third of four partitions, which pairs of ranks have."""
    split = config(2) | {"tensor_parallel": {"autotp_size": 2}}
    run = Run(config=split, model=MODEL, workload=Workload(seq_len=32), cluster=h100s(RANKS))
    assert ask_forks([partial(dry_run, run, iterations=2)])[0].rank == 4


def test_a_large_head_makes_its_ranks_the_fullest_while_layers_run_backward() -> None:
    """Rank 1 touches the most elements; rank 6 the head and a layer, whose gradients come first."""
    deep = MODEL | {"num_hidden_layers": 8, "vocab_size": 6656, "max_position_embeddings": 1024}
    workload, shape = Workload(seq_len=1024, loss="fused"), shape_from_config(deep, name="deep")
    run = Run(config=config(2), model=deep, shape=shape, cluster=h100s(RANKS), workload=workload)
    most, chosen = ask_forks([partial(dry_run, run, rank=rank, iterations=2) for rank in (1, None)])
    assert chosen.rank == 6
    assert chosen.peak.allocated_bytes_per_gpu > 1.03 * most.peak.allocated_bytes_per_gpu
    (short,) = ask_forks([partial(dry_run, replace(run, workload=replace(workload, seq_len=32)), iterations=2)])
    assert short.rank == 1
