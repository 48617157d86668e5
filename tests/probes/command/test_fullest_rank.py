"""The rank that is simulated where none is named: the fullest by the partitions of the engine's optimizer."""

from __future__ import annotations

import torch
from ds_advise.probes.command.fullest_rank import fullest_rank


def parameters(*numels: int, trained: bool = True) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.empty(numel, device="meta"), requires_grad=trained) for numel in numels]


def test_the_piece_decides() -> None:
    """The embedding alone fills the first rank's piece; the second's touches its rest and layers."""
    group = parameters(62, *[6] * 8, 50)
    assert [fullest_rank([group], 4, offloads=offloads) for offloads in (False, True)] == [1, 0]


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
