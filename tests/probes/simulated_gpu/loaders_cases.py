"""Data loaders of a script. They are patched in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from ds_advise.probes.simulated_gpu.loaders import Loaders
from torch.utils.data import DataLoader, Dataset, IterableDataset

_state = SimpleNamespace(trains=True, finished=False, longest=False, refused=0, generates=False, loaders=None)


def loaders(*, longest: bool = False) -> Any:
    """New ones, with everything as at the beginning; a process is patched once."""
    _state.trains, _state.finished, _state.refused = True, False, 0
    if _state.loaders is None:
        _state.loaders = Loaders(
            is_training=lambda: _state.trains,
            is_finished=lambda: _state.finished,
            on_refusal=lambda: setattr(_state, "refused", _state.refused + 1),
            has_generated=lambda: _state.generates,
            longest=False,
        )
        _state.loaders.install()
    made = _state.loaders
    made.shapes, made.searched, made.cut_evaluation, made._longest = [], [], False, longest
    return made


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths
        self.processes: set[int] = set()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.processes.add(os.getpid())
        return {"input_ids": torch.full((self.lengths[index],), index)}


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(10**9):
            yield torch.tensor([number])


def case_batches_are_real_and_from_this_process(_: Any) -> None:
    found, rows = loaders(), Rows(*[3] * 8)
    made = DataLoader(rows, 4, num_workers=2, pin_memory=True, prefetch_factor=3, persistent_workers=True, timeout=9)
    batches = list(made)
    assert [batch["input_ids"][:, 0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert type(batches[0]["input_ids"]) is torch.Tensor and rows.processes == {os.getpid()}
    assert found.shapes == [{"input_ids": (4, 3)}] * 2 and not found.has_varying_shapes


def case_training_ends_once_it_was_seen(_: Any) -> None:
    loaders()
    iterator = iter(DataLoader(Rows(*[3] * 8), batch_size=1))
    next(iterator)
    _state.finished = True
    assert list(iterator) == [] and _state.refused == 1
    assert list(DataLoader(Rows(3, 3), batch_size=1)) == [] and _state.refused == 2


def case_an_evaluation_is_cut(_: Any) -> None:
    found = loaders()
    _state.trains = False
    assert len(list(DataLoader(Rows(3, 3), batch_size=1))) == 2 and not found.cut_evaluation
    for data in (Rows(*[3] * 100), Stream()):
        found.cut_evaluation = False
        assert len(list(DataLoader(data, batch_size=2))) == 3 == 3
        assert found.cut_evaluation
    _state.finished = True
    assert len(list(DataLoader(Rows(3, 3), batch_size=1))) == 2, "a script evaluates at its end"
    _state.generates = True
    assert len(list(DataLoader(Rows(3, 3), batch_size=1))) == 1, "each batch takes long"
    _state.generates = False
    assert found.shapes == [] and _state.refused == 0


def case_the_longest_batch_again_and_again(_: Any) -> None:
    found = loaders(longest=True)
    made = DataLoader(Rows(4, 4, 9, 9, 2, 2, 8, 8), batch_size=2)
    iterator = iter(made)
    assert [next(iterator)["input_ids"].tolist() for _ in range(5)] == [[[2] * 9, [3] * 9]] * 5
    assert len(found.searched) == 4
    assert next(iter(made))["input_ids"].shape == (2, 9) and len(found.searched) == 4, "in a second epoch too"
    assert not found.has_varying_shapes and found.shapes == [{"input_ids": (2, 9)}] * 6
    _state.finished = True
    assert next(iterator, None) is None


def case_an_evaluation_has_all_lengths(_: Any) -> None:
    loaders(longest=True)
    _state.trains = False
    assert [batch["input_ids"].shape[1] for batch in DataLoader(Rows(4, 9, 2), batch_size=1)] == [4, 9, 2]


def case_shapes_that_vary(_: Any) -> None:
    found = loaders()
    list(DataLoader(Rows(4, 4, 5), batch_size=1))
    assert found.has_varying_shapes


def case_names_of_nested_tensors(_: Any) -> None:
    found = loaders()
    rows = [{"image": {"pixels": torch.ones(2)}, "pair": (torch.ones(3), "text"), "label": 1}]
    list(DataLoader(rows, batch_size=1))  # type: ignore[arg-type]
    assert found.shapes == [{"image.pixels": (1, 2), "pair.0": (1, 3), "label": (1,)}]
