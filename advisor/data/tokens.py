"""All token sequences of a data file, in three flat files that every rank maps instead of reading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .tokenizing import Tokenized

_IDS, _TRAINED, _STARTS = "ids.bin", "is_trained.bin", "starts.npy"
_ID, _FLAG = np.dtype("<i4"), np.dtype(np.bool_)

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Sequence i is `ids[starts[i]:starts[i + 1]]`; of these tokens those with `is_trained` count in the loss."""

    ids: npt.NDArray[np.int32]
    is_trained: npt.NDArray[np.bool_]
    starts: Integers

    @property
    def lengths(self) -> Integers:
        return np.diff(self.starts)


class TokenWriter:
    """Appends sequences to the files in `folder`, which it makes; memory does not grow with the tokens."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ids: BinaryIO = (folder / _IDS).open("wb")
        self._is_trained: BinaryIO = (folder / _TRAINED).open("wb")
        self._starts = [0]

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, *_: Any) -> None:
        self._ids.close()
        self._is_trained.close()
        np.save(self._folder / _STARTS, np.asarray(self._starts, dtype=np.int64))

    def add(self, sequence: Tokenized) -> None:
        self._ids.write(np.asarray(sequence.ids, dtype=_ID).tobytes())
        self._is_trained.write(np.asarray(sequence.is_trained, dtype=_FLAG).tobytes())
        self._starts.append(self._starts[-1] + len(sequence.ids))


def open_tokens(folder: Path) -> Tokens:
    """The sequences in `folder`, mapped into memory."""
    starts: Integers = np.load(folder / _STARTS)
    if not starts[-1]:  # an empty file cannot be mapped
        return Tokens(ids=np.empty(0, np.int32), is_trained=np.empty(0, np.bool_), starts=starts)
    return Tokens(
        ids=np.memmap(folder / _IDS, dtype=_ID, mode="r"),
        starts=starts,
        is_trained=np.memmap(folder / _TRAINED, dtype=_FLAG, mode="r"),
    )
