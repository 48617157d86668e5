"""Numbers of tensors on the simulated GPU: known ones stay exact, others are invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def ids() -> torch.Tensor:
    return torch.tensor([[5, 0, 7], [0, 0, 9]]).to("cuda")


def unknown(*shape: int) -> torch.Tensor:
    """As weights compute it."""
    weight = torch.nn.Parameter(torch.randn(*shape, device="cuda"))
    return weight * 2


def case_numbers_of_a_batch_are_exact(_: Any) -> None:
    batch = ids()
    assert batch.device.type != "cpu"
    assert batch.tolist() == [[5, 0, 7], [0, 0, 9]]
    assert batch.sum().item() == 21 and int(batch.max()) == 9
    assert (batch + 1).cpu().numpy().tolist() == [[6, 1, 8], [1, 1, 10]]
    assert (batch == 0).any(dim=1).tolist() == [True, True]
    assert batch.float().mean().item() == 3.5
    assert f"{batch.sum()}" == "21" and f"{batch.float().mean():.2f}" == "3.50"


def case_a_known_mask_selects_its_places(mode: Any) -> None:
    batch, before = ids(), mode.unknown_masks
    mask = batch != 0
    assert batch[mask].tolist() == [5, 7, 9]
    assert mask.nonzero().tolist() == [[0, 0], [0, 2], [1, 2]]
    assert [each.tolist() for each in torch.where(mask)] == [[0, 0, 1], [0, 2, 2]]
    assert batch.masked_select(mask).shape == (3,)
    assert batch.unique().tolist() == [0, 5, 7, 9]
    assert unknown(2, 3, 4)[mask].shape == (3, 4), "the numbers are unknown, not the places"
    assert unknown(2, 3)[:, mask[0]].shape == (2, 2)
    assert mode.unknown_masks == before


def case_an_unknown_mask_selects_all(mode: Any) -> None:
    logits, before = unknown(2, 3), mode.unknown_masks
    assert logits[logits > 0].shape == (6,)
    assert (logits > 0).nonzero().shape == (6, 2)
    assert torch.masked_select(ids(), logits > 0).shape == (6,)
    assert mode.unknown_masks == before + 3


def case_a_write_into_a_view_is_seen_in_the_whole(_: Any) -> None:
    batch = ids()
    row = batch[0]
    row.add_(1)
    assert batch.tolist() == [[6, 1, 8], [0, 0, 9]]
    batch[:, 1] = 4
    assert row.tolist() == [6, 4, 8]
    batch.masked_fill_(batch == 4, -100)
    assert batch.tolist() == [[6, -100, 8], [0, -100, 9]]


def case_an_unknown_write_makes_all_views_unknown(mode: Any) -> None:
    numbers = torch.zeros(4, device="cuda")
    part, whole = numbers[:2], numbers.view(2, 2)
    assert mode.shadow(part) is not None
    part.copy_(unknown(2))
    assert [mode.shadow(each) for each in (numbers, part, whole)] == [None, None, None]
    other = torch.zeros(4, device="cuda")
    assert other.tolist() == [0, 0, 0, 0], "no other tensor"
    other.copy_(torch.arange(4.0))
    assert other.tolist() == [0, 1, 2, 3]


def case_a_number_of_weights_is_invented(mode: Any) -> None:
    loss = unknown(3).mean()
    number = loss.item()
    line = number_line("number = loss.item()")
    assert number == 1 and mode.invented[__file__, line] == 1
    above = unknown(3) > 2
    if above.any():
        raise AssertionError("an unknown condition is false")
    line = number_line("if above.any():")
    assert mode.invented[__file__, line] is False
    assert not torch.isnan(loss) and bool(torch.isfinite(loss))


def number_line(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def case_large_gradients_are_finite(_: Any) -> None:
    gradient = unknown(3000, 3000)
    assert not torch.isinf(gradient).any().item()
    assert not (torch.isinf(gradient) | torch.isnan(gradient)).any()
    assert (torch.isinf(gradient) | torch.isnan(gradient)).float().max().item() == 0, "DeepSpeed's flag of an overflow"


def case_the_known_part_of_a_mask_decides(mode: Any) -> None:
    """A text has not ended where the maximum is not reached, whatever token was drawn."""
    token = unknown(2, 8).argmax(-1)
    ended = torch.tensor([False, True], device="cuda") | (token == 3)
    assert ended.tolist() == [False, True]
    kept = torch.tensor([False, True], device="cuda") & (token == 3)
    assert kept.tolist() == [False, True]
    assert mode.shadow(token == 3) is None


def case_large_floats_have_no_numbers(mode: Any) -> None:
    assert mode.shadow(torch.ones(5000, device="cuda")) is None
    assert mode.shadow(torch.ones(5000, device="cuda", dtype=torch.int64)) is not None
    assert mode.shadow(torch.rand(3, device="cuda")) is None


def case_collectives_repeat_this_ranks_numbers(mode: Any) -> None:
    lengths = torch.tensor([3, 4], device="cuda")
    gathered = [torch.zeros_like(lengths) for _ in range(4)]
    dist.all_gather(gathered, lengths)
    assert [each.tolist() for each in gathered] == [[3, 4]] * 4
    flat = torch.zeros(8, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(flat, lengths)
    assert flat.tolist() == [3, 4] * 4
    piece = torch.zeros(2, dtype=torch.int64, device="cuda")
    dist.reduce_scatter_tensor(piece, flat)
    assert mode.shadow(piece) is None, "a sum with numbers of other ranks"
    objects: list[Any] = [None] * 4
    dist.all_gather_object(objects, {"rank": 0})
    assert objects == [{"rank": 0}] * 4


def case_tensors_of_the_host_are_real(_: Any) -> None:
    row = torch.arange(6).reshape(2, 3)
    assert type(row) is torch.Tensor and row.numpy().sum() == 15
    moved = row.to("cuda")
    assert moved.tolist() == row.tolist() and moved.is_cuda
    assert moved.cpu().tolist() == row.tolist()


def case_an_unknown_sum_over_one_rank_is_not_a_known_number(mode: Any) -> None:
    """A tensor of weights copied to the host stays unknown."""
    copied = unknown(4).detach().cpu()
    assert mode.shadow(copied) is None and copied.shape == (4,)
    assert len(copied.tolist()) == 4
