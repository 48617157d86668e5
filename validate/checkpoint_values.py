"""Values in files of tensors that are NaN or infinite, found without torch in the bytes of the numbers."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .checkpoint_pickles import operations, storage_kinds

_BLOCK_BYTES = 2**22


@dataclass(frozen=True, slots=True)
class _Float:
    """Where the exponent lies in a little-endian number: the numbers whose exponent bits are all 1 are NaN or, with a
    fraction of 0, infinite (IEEE 754; bfloat16 is the upper half of a float32)."""

    size: int
    """In bytes."""
    exponent: int
    """The exponent bits of the two highest bytes."""


_FLOATS = {
    "DoubleStorage": _Float(8, 0x7FF0),
    "FloatStorage": _Float(4, 0x7F80),
    "HalfStorage": _Float(2, 0x7C00),
    "BFloat16Storage": _Float(2, 0x7F80),
    "F64": _Float(8, 0x7FF0),
    "F32": _Float(4, 0x7F80),
    "F16": _Float(2, 0x7C00),
    "BF16": _Float(2, 0x7F80),
}
"""The numbers of torch's classes of storages, and of the types in safetensors."""

_INTEGERS = frozenset(
    (
        *("LongStorage", "IntStorage", "ShortStorage", "CharStorage", "ByteStorage", "BoolStorage"),
        *("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"),
    )
)
"""Types without NaN. Numbers of any other type are not examined."""


def archive_non_finite(archive: zipfile.ZipFile, saved_as: str, *, with_infinite: bool) -> int | None:
    """The number of values of an archive of torch that are NaN, or infinite where these count too; None if it holds
    numbers that are not examined. All of the archive is read. Raises zipfile.BadZipFile if a record does not match its
    checksum."""
    with archive.open(f"{saved_as}/data.pkl") as stream:
        kinds = storage_kinds(operations(stream))
    found = 0
    for name in archive.namelist():
        kind = _FLOATS.get(kinds.get(name.removeprefix(f"{saved_as}/data/"), ""))
        with archive.open(name) as stream:
            found += _non_finite(stream, None, kind, with_infinite=with_infinite)
    return found if _is_known(kinds.values()) else None


def _is_known(kinds: Iterable[str]) -> bool:
    return _INTEGERS | _FLOATS.keys() >= set(kinds)


def safetensors_non_finite(path: Path) -> int | None:
    """The number of values of an intact safetensors file that are NaN; None as for archives."""
    found, kinds = 0, set()
    with path.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        for name, tensor in json.loads(stream.read(header_bytes)).items():
            if name == "__metadata__":
                continue
            kinds.add(tensor["dtype"])
            if kind := _FLOATS.get(tensor["dtype"]):
                start, end = tensor["data_offsets"]
                stream.seek(8 + header_bytes + start)
                found += _non_finite(stream, end - start, kind, with_infinite=False)
    return found if _is_known(kinds) else None


def _non_finite(stream: IO[bytes], size: int | None, kind: _Float | None, *, with_infinite: bool) -> int:
    """The number of such values in the next bytes of a stream; size: None for all of it, which is then read."""
    found = 0
    while block := stream.read(_BLOCK_BYTES if size is None else min(_BLOCK_BYTES, size)):
        size = None if size is None else size - len(block)
        if kind is not None:
            found += _in_block(block, kind, with_infinite=with_infinite)
    return found


def _in_block(block: bytes, kind: _Float, *, with_infinite: bool) -> int:
    top, below = kind.exponent >> 8, kind.exponent & 0xFF
    parts = [block[at :: kind.size] for at in range(kind.size - 1, -1, -1)] if _may_hold(block, kind) else []
    if not parts:
        return 0  # nearly always: the exponent of weights is far from the largest
    found = _flags(parts[0], top, every=True) & _flags(parts[1], below, every=True)
    if not with_infinite:
        fraction = [0x7F & ~top, 0xFF & ~below, *(0xFF for _ in parts[2:])]
        some = 0
        for part, bits in zip(parts, fraction, strict=True):
            some |= _flags(part, bits, every=False)
        found &= some
    return found.bit_count()


def _may_hold(block: bytes, kind: _Float) -> bool:
    high, mask = block[kind.size - 1 :: kind.size], kind.exponent >> 8
    return len(high.translate(None, bytes(byte for byte in range(256) if byte & mask == mask))) < len(high)


def _flags(part: bytes, bits: int, *, every: bool) -> int:
    """A number with a byte of 1 for each byte that has every (or any) of these bits."""
    has = bytes(byte & bits == bits if every else byte & bits != 0 for byte in range(256))
    return int.from_bytes(part.translate(has), "little")
