"""What is known of each GPU, found by any spelling of its name or by its memory size."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ..errors import ClusterError
from ..phrase import phrase
from .cluster import Gpu

_DATA = Path(__file__).parents[1] / "data" / "gpus.csv"
_GIB = 2**30

UNMEASURED_MEMORY_SHARE = 0.98
"""Part of the nominal size, read as GiB, that CUDA offers where nobody has published the figure.

"80 GB" of a data sheet are 80 GiB less what the driver keeps. Of the cards in `gpus.csv` with a measured figure and no
ECC carved out of GDDR6, the RTX 5090 keeps the most: 31.36 of 32. (With that ECC a sixteenth is gone as well: 22.03 of
24 on an L4, 44.4 of 48 on an L40. All such cards have a measured figure.)
"""

SMALLEST_GB, LARGEST_GB = 4, 512
"""Sizes accepted as a GPU's memory: below, no training of a language model; above, no GPU."""


def find_gpu(name: str) -> Gpu:
    """The GPU that `name` means, in any spelling: `A100-80GB`, `a100 sxm 80`, `NVIDIA H100 80GB HBM3`, `rtx4090`.

    Letter case, spaces, hyphens, vendor and "GB" do not matter. A name that leaves the form factor open takes the SXM
    card (`assumes_sxm` tells); one that leaves the memory size open (`A100`, `RTX 3080`) is refused, because memory is
    what the answer is about.

    Source: `data/gpus.csv`, whose every row names its own.

    Raises ClusterError for a name that fits no GPU or several, with the nearest ones.
    """
    wanted = _normal(name)
    found = _by_spelling().get(wanted)
    if found is not None:
        return found
    words = _words(name)
    candidates = [gpu for gpu in gpus() if words and words <= _words(gpu.name) | {str(gpu.nominal_gb)}]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = [gpu.name for gpu in candidates]
        raise ClusterError(
            phrase("{name!r} could be any of {names}", name=name, names=", ".join(names)),
            why=phrase("they differ in memory or speed"),
            fix=phrase("name one of them, such as {example}", example=f"--gpus {names[-1].replace(' ', '-')}"),
        )
    near = nearest_names(name)
    if wanted == "cpu":
        raise ClusterError(
            phrase("--gpus names GPUs"), fix=phrase("for training on this machine's CPU pass --device cpu")
        )
    raise ClusterError(
        phrase("no GPU called {name!r} is known", name=name),
        why=phrase("its memory and speed cannot be guessed"),
        fix=phrase("nearest: {names}; or give the memory alone, such as --gpus 2x24GB", names=", ".join(near)),
    )


def assumes_sxm(name: str, gpu: Gpu) -> bool:
    """Whether `name` left the form factor open and the SXM card was taken for it (`H100` -> H100-SXM5).

    A driver's own name for an SXM card ("H100 80GB HBM3") leaves nothing open.
    """
    return "SXM" in gpu.name and not re.search("sxm|hbm", name.lower())


def gpu_of_memory(gigabytes: float) -> Gpu:
    """A GPU of which only the memory is known.

    memory = gigabytes * 2^30 * UNMEASURED_MEMORY_SHARE. The speed is that of the reference card for the nearest size
    (`reference_for_gb` in `data/gpus.csv`, with the reason beside it), and `assumed` is set.

    Raises ClusterError for a size that no GPU has.
    """
    if not SMALLEST_GB <= gigabytes <= LARGEST_GB:
        raise ClusterError(
            phrase("{gigabytes:g} GB is no GPU's memory", gigabytes=gigabytes),
            why=phrase("sizes from {least} to {most} GB are accepted", least=SMALLEST_GB, most=LARGEST_GB),
            fix="give the memory of one GPU, such as --gpus 2x24GB",
        )
    size = min(_references(), key=lambda size: (abs(size - gigabytes), size))
    usable = int(gigabytes * _GIB * UNMEASURED_MEMORY_SHARE)
    return replace(_references()[size], memory_bytes=usable, nominal_gb=round(gigabytes), assumed=True)


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    """Every GPU of the data file."""
    return tuple(_gpu(row) for row in _rows())


def nearest_names(name: str, count: int = 3) -> list[str]:
    """The names most like `name`."""
    from difflib import SequenceMatcher

    wanted = _normal(name)
    likeness = {
        gpu.name: max(SequenceMatcher(None, wanted, spelling).ratio() for spelling in _spellings(row))
        for gpu, row in zip(gpus(), _rows(), strict=True)
    }
    return sorted(likeness, key=lambda known: -likeness[known])[:count]


@lru_cache(maxsize=1)
def _rows() -> tuple[dict[str, str], ...]:
    with _DATA.open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


@lru_cache(maxsize=1)
def _references() -> dict[int, Gpu]:
    """The card whose speed stands for every card of a size in GB."""
    return {
        int(size): gpu
        for gpu, row in zip(gpus(), _rows(), strict=True)
        for size in row["reference_for_gb"].split(";")
        if size
    }


@lru_cache(maxsize=1)
def _by_spelling() -> dict[str, Gpu]:
    return {spelling: gpu for gpu, row in zip(gpus(), _rows(), strict=True) for spelling in _spellings(row)}


def _spellings(row: dict[str, str]) -> set[str]:
    """The row's names, each also without the size that they end in ("RTX 4090 24GB" is "RTX 4090")."""
    names = [row["name"], *filter(None, row["aliases"].split("|"))]
    size = row["nominal_gb"]
    return {_normal(name) for name in names} | {
        _normal(name + size) for name in names if not _normal(name).endswith(size)
    }


def _normal(name: str) -> str:
    """`name` without what people leave out or add: case, separators, vendor, "GeForce", "GB"."""
    return re.sub(r"[^a-z0-9]", "", _plain(name))


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+\d*[a-z]*|\d+", _plain(name)))


def _plain(name: str) -> str:
    # "80G" is a size only after a separator: the G of "A10G" belongs to the name.
    text = re.sub(r"nvidia|geforce|tesla|amd|instinct|hbm\d?e?", " ", name.lower())
    return re.sub(r"sxm\d", "sxm", re.sub(r"(?<=\d)\s*gi?b\b|(?<=[ _-]\d\d)g\b", " ", text))


def _gpu(row: dict[str, str]) -> Gpu:
    def number(column: str, scale: float = 1.0) -> float | None:
        return float(row[column]) * scale if row[column] else None

    nominal = int(row["nominal_gb"])
    usable = number("usable_gib") or nominal * UNMEASURED_MEMORY_SHARE
    return Gpu(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        compute_capability=number("compute_capability"),
        memory_bytes=int(usable * _GIB),
        nominal_gb=nominal,
        fp16_flops_per_s=number("fp16_tflops", 1e12),
        bf16_flops_per_s=number("bf16_tflops", 1e12),
        tf32_flops_per_s=number("tf32_tflops", 1e12),
        fp32_flops_per_s=number("fp32_tflops", 1e12),
        gemm_bf16_flops_per_s=number("gemm_bf16_tflops", 1e12),
        gemm_fp16_flops_per_s=number("gemm_fp16_tflops", 1e12),
        memory_bytes_per_s=number("memory_gb_per_s", 1e9),
        pcie_bytes_per_s=number("pcie_gb_per_s", 1e9),
        peer_bytes_per_s=number("peer_gb_per_s", 1e9),
        peer_link=row["peer_link"],
        source=row["source"],
    )
