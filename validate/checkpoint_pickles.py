"""The pickles in files of `torch.save`, read as operations. Nothing is unpickled, and torch is not imported."""

from __future__ import annotations

import contextlib
import pickletools
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

PICKLE = b"\x80"
"""First byte of files that `torch.save` writes without a zip archive, as before torch 1.6 and DeepSpeed's fast writer
do (0.19.8 runtime/checkpoint_engine/fast_checkpoint_engine.py)."""

PICKLES = 5
"""Number of the pickles of such a file; the tensors follow (torch 2.13 serialization.py `_legacy_save`)."""

_PUT = frozenset(("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"))
_GET = frozenset(("BINGET", "LONG_BINGET", "GET"))

Operation = tuple[str, object]
"""Name and argument of an operation of a pickle."""


def readable_pickles(path: Path) -> Iterator[list[Operation]]:
    """The operations of each pickle of a file, up to the first unreadable one."""
    with contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):
        for stream in _object_pickles(path) if path.is_file() else ():  # a pipe may never end
            yield list(operations(stream))


def _object_pickles(path: Path) -> Iterator[IO[bytes]]:
    """The pickle of an archive; of a file that is none, its pickles one after another."""
    with path.open("rb") as stream:
        if stream.read(1) == PICKLE:
            stream.seek(0)
            for _ in range(PICKLES):
                yield stream
            return
    with zipfile.ZipFile(path) as archive:
        name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), "data.pkl")
        with archive.open(name) as stream:
            yield stream


def operations(stream: IO[bytes]) -> Iterator[Operation]:
    """The operations of a pickle, without those of its memo: a text or class from the memo stands as itself, another
    object as None."""
    memo: dict[object, object] = {}
    last: object = None
    for operation, argument, _ in pickletools.genops(stream):
        if operation.name in _PUT:
            memo[len(memo) if operation.name == "MEMOIZE" else argument] = last
            continue
        found = memo.get(argument) if operation.name in _GET else argument
        last = found if isinstance(found, str) else None
        yield operation.name, found


def values(read: Iterable[Operation], keys: tuple[str, ...]) -> dict[str, Operation]:
    """The value after the first text of each of the keys; of an object of one argument, such as a member of an
    enumeration, the argument."""
    found: dict[str, Operation] = {}
    before: object = None
    called = ""
    for operation, argument in read:
        if called:
            found[called], called = (operation, argument), ""
        elif isinstance(before, str) and before in keys and before not in found:
            found[before] = (operation, argument)
            called = before if operation == "GLOBAL" else ""
        before = argument
    return found


def named_shapes(read: Iterable[Operation], first: str, end: str) -> dict[str, tuple[int, ...]]:
    """The shapes (`torch.Size`) between two keys, by the name before each."""
    found: dict[str, tuple[int, ...]] = {}
    name = before = ""
    for _, argument in _between(read, first, end):
        if argument == "torch Size":
            name = before
            found[name] = ()
        elif isinstance(argument, str):
            name, before = "", argument
        elif isinstance(argument, int) and name:
            found[name] += (argument,)
    return found


def names_between(read: Iterable[Operation], first: str, end: str) -> frozenset[str]:
    """The texts between two keys, without the names of classes."""
    texts = (argument for _, argument in _between(read, first, end) if isinstance(argument, str))
    return frozenset(text for text in texts if " " not in text)


def _between(read: Iterable[Operation], first: str, end: str) -> Iterator[Operation]:
    is_inside = False
    for operation, argument in read:
        if argument == end and is_inside:
            return
        if is_inside:
            yield operation, argument
        is_inside = is_inside or argument == first


def storage_kinds(read: Iterable[Operation]) -> dict[str, str]:
    """The class of each storage of an archive (`FloatStorage`), by the name of its file below `data`: torch stores the
    tuple ("storage", class, name, device, number of values) (torch 2.13 serialization.py `_save`)."""
    found: dict[str, str] = {}
    before: tuple[object, object] = (None, None)
    for _, argument in read:
        first, kind = before
        if first == "storage" and isinstance(kind, str) and isinstance(argument, str):
            found[argument] = kind.rpartition(" ")[2]
        before = (kind, argument)
    return found
