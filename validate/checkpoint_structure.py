"""The damage of one file of a checkpoint, by its format: archives of torch, safetensors and JSON. Nothing is unpickled,
and torch is not imported."""

from __future__ import annotations

import json
import pickletools
import re
import zipfile
import zlib
from pathlib import Path

from .checkpoint_layout import OPTIMIZER_STATES
from .checkpoint_pickles import PICKLE, PICKLES
from .checkpoint_trainer import DISTRIBUTED_METADATA, distributed_damage
from .checkpoint_values import archive_non_finite, safetensors_non_finite

_ARCHIVES = (".pt", ".pth", ".bin")
"""Endings of the files that `torch.save` writes."""

TENSOR_FILES = (*_ARCHIVES, ".safetensors", ".distcp")

_ARCHIVE = b"PK"
"""First bytes of a zip archive, in which `torch.save` writes."""

_PICKLE_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of a file that is no archive (torch 2.13 serialization.py `_legacy_save`)."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""Beginning of the text that stands for a file in a repository (git-lfs docs/spec.md)."""

_LFS_PROBLEM = "is a Git LFS pointer instead of the file: git lfs pull"

_PAGE = re.compile(rb"\s*<(!doctype\s+html|html)\b", re.IGNORECASE)
"""Beginning of a web page, which a server sends in place of a file, such as for a login."""

_PAGE_PROBLEM = "is a web page instead of the file"


def structural_damage(path: Path) -> tuple[str, int | None]:
    """(the damage of a file according to its format; "" for an intact file and for other formats, the number of its
    values that are NaN or infinite, as in `CheckpointFile`)."""
    if problem := stand_in(path):
        return problem, None
    if path.suffix in _ARCHIVES:
        return _archive(path)
    if path.name == DISTRIBUTED_METADATA:
        try:
            return distributed_damage(path), None
        except ValueError:
            return "is cut off", None
    try:
        if path.suffix == ".safetensors":
            damage = _safetensors(path)
            return damage, None if damage else safetensors_non_finite(path)
        content = json.loads(path.read_bytes()) if path.suffix == ".json" else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        damage = "is not JSON" if path.suffix == ".json" else "is cut off"
        return damage if path.stat().st_size else "is empty", None
    weights = content.get("weight_map", {}) if isinstance(content, dict) else None
    if path.name.endswith(".index.json") and isinstance(weights, dict):
        parts = sorted({str(part) for part in weights.values()})
        absent = [part for part in parts if not (path.parent / part).exists()]
        return "".join(f"names {part}, which is missing" for part in absent[:1]), None
    return "", None


def stand_in(path: Path) -> str:
    """What lies there in place of the file, as a problem; "" if it may be the file. A pointer may stand for any file; a
    file of no known format may be a page."""
    with path.open("rb") as stream:
        first = stream.read(256)
    if first.startswith(_LFS_POINTER):
        return _LFS_PROBLEM
    has_format = path.suffix in (*TENSOR_FILES, ".json")
    return _PAGE_PROBLEM if has_format and _PAGE.match(first) else ""


def _archive(path: Path) -> tuple[str, int | None]:
    """(the damage of a torch archive, or "", the number of its values that are NaN or infinite)."""
    with path.open("rb") as stream:
        first = stream.read(len(_ARCHIVE))
    if first.startswith(PICKLE):
        return _pickles(path), None
    is_optimizer = OPTIMIZER_STATES.search(path.name) is not None
    try:
        with zipfile.ZipFile(path) as archive:
            saved_as = next((name.removesuffix("/data.pkl") for name in archive.namelist() if "/data.pkl" in name), "")
            if not saved_as:
                return "holds nothing that torch saved", None
            if saved_as != path.stem and OPTIMIZER_STATES.search(f"{saved_as}{path.suffix}"):
                return f"is a copy of {saved_as}{path.suffix}", None
            try:
                # A model may keep infinite numbers of its own, such as a mask of attention.
                return "", archive_non_finite(archive, saved_as, with_infinite=is_optimizer)
            except (zipfile.BadZipFile, ValueError, zlib.error):
                return "has changed bytes", None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError):
        if first and not _ARCHIVE.startswith(first):
            return "is no file that torch saved", None
        return "is cut off" if first else "is empty", None


def _pickles(path: Path) -> str:
    """The damage of a torch file that is no archive, or "". The pickles are read, not executed."""
    with path.open("rb") as stream:
        try:
            for number in range(PICKLES):
                values = [value for _, value, _ in pickletools.genops(stream)]
                if number == 0 and _PICKLE_MAGIC not in values:
                    return "is a pickle that torch did not save"
        except ValueError:
            return "is cut off"
    return ""


def _safetensors(path: Path) -> str:
    """The damage of a safetensors file (8 bytes with the size of the header, the header, the tensors), or ""."""
    with path.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        if (first := stream.read(1)) and first != b"{":
            return "is no file of safetensors"
        stream.seek(8)
        header = json.loads(stream.read(min(header_bytes, 2**30)))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return "" if path.stat().st_size == 8 + header_bytes + max(ends, default=0) else "is cut off"
