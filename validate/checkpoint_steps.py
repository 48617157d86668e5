"""The optimizer steps that the files of one checkpoint say: files of two steps, as after an interrupted copy, are each
intact and no training together. Nothing is unpickled, and torch is not imported."""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from .checkpoint_layout import MODEL_STATES, OPTIMIZER_STATES
from .checkpoint_pickles import Operation, readable_pickles, values

_STEP_TYPES = {"FloatStorage": "<f", "DoubleStorage": "<d", "IntStorage": "<i", "LongStorage": "<q"}
"""Formats of the numbers in which optimizers keep their step as a tensor (torch 2.13 optim/adam.py `_get_value`);
DeepSpeed's CPUAdam and FusedAdam keep an int."""

_NO_NUMBER = (
    *(OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError),
    *(ValueError, LookupError, StopIteration, OverflowError, struct.error),
)
"""What reading the number of a tensor raises: of its archive, and if it is no such tensor or its file is not there."""


def mixed_steps(folder: Path, names: Iterable[str], saved_step: int | None, pool: Executor) -> dict[str, str]:
    """The files of states whose step is not that of the other ranks -> how it differs. Every rank steps together.

    names: intact files.
    saved_step: the step that the checkpoint says; it decides which of two equally frequent steps is the other one.
    pool: what reads the files.
    """
    found: dict[str, str] = {}
    names = list(names)
    named = [name for name in names if OPTIMIZER_STATES.search(name)]
    models = [name for name in names if MODEL_STATES.match(Path(name).name)]
    for group, key, whose in ((named, "step", "optimizer"), (models, "global_steps", "model")):
        read = pool.map(partial(_step, key=key), [folder / name for name in group])
        steps = {name: step for name, step in zip(group, read, strict=True) if step is not None}
        if len(set(steps.values())) > 1:
            found |= _differing(steps, saved_step, whose)
    return found


def _differing(steps: Mapping[str, int], saved_step: int | None, whose: str) -> dict[str, str]:
    counts = Counter(steps.values())
    usual = max(counts, key=lambda step: (counts[step], step == saved_step, step))
    other = Path(next(name for name, step in steps.items() if step == usual)).name
    return {
        name: f"holds the {whose} of step {step}, and {other} that of step {usual}"
        for name, step in steps.items()
        if step != usual
    }


def _step(path: Path, key: str) -> int | None:
    """The number after the first text `key` in a file of states; None if the file does not say it."""
    for read in readable_pickles(path):
        if key in (said := values(read, (key,))):
            _, value = said[key]
            with contextlib.suppress(*_NO_NUMBER):
                return value if isinstance(value, int) else _number_of_tensor(path, read, key)
            return None
    return None


def _number_of_tensor(path: Path, read: list[Operation], key: str) -> int:
    """The number of the tensor after a key: torch stores the tuple ("storage", class, name, device, number of values),
    then the offset (torch 2.13 serialization.py `_save`, _utils.py `_rebuild_tensor_v2`)."""
    arguments = [argument for _, argument in read]
    after = arguments[arguments.index(key) :]
    start = after.index("storage")
    kind, name = str(after[start + 1]).rpartition(" ")[2], after[start + 2]
    offset = next(each for each in after[start + 5 :] if isinstance(each, int))
    form = _STEP_TYPES[kind]
    with zipfile.ZipFile(path) as archive:
        record = next(each for each in archive.namelist() if each.endswith(f"/data/{name}"))
        with archive.open(record) as stream:
            stream.seek(offset * struct.calcsize(form))
            return int(struct.unpack(form, stream.read(struct.calcsize(form)))[0])
