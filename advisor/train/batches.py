"""Samples as the Trainer takes them: a dataset over the mapped tokens, and how several become one batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from ...estimators.time.job import PADDED_TO
from ..data.prepare import Index, open_tokens

IGNORED = -100
"""The label that transformers' losses leave out."""

TensorSample = dict[str, torch.Tensor]


class TokenDataset(Dataset[TensorSample]):
    """The samples of an index. `position_ids` begin anew with every piece of a packed sample."""

    def __init__(self, folder: Path, index: Path) -> None:
        self._tokens, self._index = open_tokens(folder), Index.load(index)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, number: int) -> TensorSample:
        ids, labels, positions = [], [], []
        for piece in self._index.pieces(number):
            numbers = self._tokens.ids[piece].astype(np.int64)
            labelled = np.where(self._tokens.is_trained[piece], numbers, IGNORED)
            labelled[0] = IGNORED  # it would be predicted from the piece before
            ids.append(numbers)
            labels.append(labelled)
            positions.append(np.arange(len(numbers)))
        return {
            name: torch.from_numpy(np.concatenate(parts))
            for name, parts in (("input_ids", ids), ("labels", labels), ("position_ids", positions))
        }


class Collator:
    """Pads on the right to the longest sample of a batch, rounded up to `PADDED_TO` within `seq_len`.

    packing: the batch has `position_ids` and no attention mask; transformers then keeps attention within each piece,
             padding being pieces of its own. Otherwise it has the mask, and the model counts positions itself.
    shared_by: ranks that share each sample. The length is then a multiple of them, and the batch has `position_ids` and
             no mask, which Ulysses drops: padding comes last, so no token attends to it.
    """

    def __init__(self, *, pad_id: int, seq_len: int, packing: bool, shared_by: int = 1) -> None:
        self._pad_id, self._seq_len, self._packing, self._shared_by = pad_id, seq_len, packing, shared_by

    def __call__(self, samples: Sequence[TensorSample]) -> TensorSample:
        longest = max(len(sample["input_ids"]) for sample in samples)
        multiple = math.lcm(PADDED_TO, self._shared_by)
        length = min(-(-longest // multiple) * multiple, self._seq_len)
        batch = {
            "input_ids": _padded(samples, "input_ids", length, self._pad_id),
            "labels": _padded(samples, "labels", length, IGNORED),
        }
        if self._packing:
            batch["position_ids"] = _padded(samples, "position_ids", length, 0)
        elif self._shared_by > 1:
            batch["position_ids"] = torch.arange(length).repeat(len(samples), 1)
        else:
            batch["attention_mask"] = torch.stack(
                [(torch.arange(length) < len(sample["input_ids"])).long() for sample in samples]
            )
        return batch


def _padded(samples: Sequence[TensorSample], name: str, length: int, value: int) -> torch.Tensor:
    return torch.stack(
        [torch.nn.functional.pad(sample[name], (0, length - len(sample[name])), value=value) for sample in samples]
    )
