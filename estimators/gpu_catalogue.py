"""The catalogue of GPUs: found by any spelling of their name, or by memory size."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from .errors import ClusterError
from .hardware import Gpu

_DATA = Path(__file__).parent / "data" / "gpus.csv"
_GIB = 2**30

UNMEASURED_MEMORY_SHARE = 0.98
"""Share of the nominal size, read as GiB, that CUDA offers if no figure is published.

"80 GB" of a data sheet are 80 GiB less the driver's share. Of the cards in `gpus.csv` with a measured figure and no
ECC carved out of GDDR6, the RTX 5090 offers the least: 31.36 of 32. (ECC takes another sixteenth: 22.03 of 24 on an
L4, 44.4 of 48 on an L40. All such cards have a measured figure.)
"""

SMALLEST_GB, LARGEST_GB = 4, 512
"""Range of accepted GPU memory sizes. Smaller GPUs cannot train a language model; larger ones do not exist."""


def find_gpu(name: str) -> Gpu:
    """Return the GPU called `name` in any spelling: `A100-80GB`, `a100 sxm 80`, `NVIDIA H100 80GB HBM3`, `rtx4090`.

    Letter case, spaces, hyphens, vendor and "GB" do not matter. A name without a form factor resolves to the SXM card
    (see `assumes_sxm`). A name without a memory size is an error if several sizes exist (`A100`, `RTX 3080`), because
    memory decides whether a plan fits.

    Source: `data/gpus.csv`, each row with its own source.

    Raises ClusterError, with the nearest names, for a name that fits no GPU or several.
    """
    candidates = gpus_named(name)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = [gpu.name for gpu in candidates]
        raise ClusterError(
            f"{name[:60]!r} matches several GPUs",
            why="they differ in memory or speed",
            fix=f"name one of them: {', '.join(names)}",
        )
    if _normal(name) == "cpu":
        raise ClusterError("--gpus takes GPUs only", fix="for training on this machine's CPU pass --device cpu")
    nearest = nearest_names(name)
    meant = f"nearest: {', '.join(nearest)}; or give" if nearest else "name one, such as --gpus 2xA100-80GB, or give"
    raise ClusterError(
        f"no GPU called {name[:60]!r} is known",
        why="its memory and speed are not known",
        fix=f"{meant} the memory alone, such as --gpus 2x24GB",
    )


def gpus_named(name: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a name fits, in the order of the table: one for the full name in any spelling of `find_gpu`,
    several for a name that leaves memory or form factor out."""
    if (found := _by_spelling().get(_normal(name))) is not None:
        return (found,)
    words = _words(name)
    return tuple(gpu for gpu in gpus() if words and words <= _words(gpu.name) | {str(gpu.nominal_gb)})


def assumes_sxm(name: str, gpu: Gpu) -> bool:
    """Return whether `name` has no form factor and was resolved to the SXM card (`H100` -> H100-SXM5).

    False for a driver's own name of an SXM card ("H100 80GB HBM3").
    """
    return "SXM" in gpu.name and not re.search("sxm|hbm", name.lower())


def gpu_of_memory(gigabytes: float) -> Gpu:
    """Return a GPU for which only the memory size is known.

    memory = gigabytes * 2^30 * UNMEASURED_MEMORY_SHARE. The speed is that of the reference card for the nearest size,
    and `assumed` is set. A reference card (`reference_for_gb` in `data/gpus.csv`, with the reason next to it) has that
    size; of four or more cards it is neither in the slowest nor in the fastest quarter.

    Raises ClusterError for a size that no GPU has.
    """
    if not SMALLEST_GB <= gigabytes <= LARGEST_GB:
        raise ClusterError(
            f"{gigabytes:g} GB is not the memory of a GPU",
            why=f"sizes from {SMALLEST_GB} to {LARGEST_GB} GB are accepted",
            fix="give the memory of one GPU, such as --gpus 2x24GB",
        )
    size = min(_references(), key=lambda known: (abs(known - gigabytes), known))
    usable = int(gigabytes * _GIB * UNMEASURED_MEMORY_SHARE)
    return replace(_references()[size], memory_bytes=usable, nominal_gb=round(gigabytes), assumed=True, same_size=size)


def same_size_gpus(gpu: Gpu) -> tuple[Gpu, ...]:
    """Return the cards that `gpu` may be if only its memory size was given (`gpu_of_memory`), with its memory; else
    none."""
    return tuple(replace(each, memory_bytes=gpu.memory_bytes) for each in gpus() if each.nominal_gb == gpu.same_size)


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    return tuple(_gpu(row) for row in _rows())


def nearest_names(name: str) -> list[str]:
    """Return up to three names of GPUs that are similar to a name (`_LEAST_LIKENESS`), the most similar first."""
    from difflib import SequenceMatcher

    def seen(text: str) -> str:
        return text.translate(_LOOK_ALIKE)

    # Aliases are compared too: a driver's own name of a card may be nearer to the given one than its usual name.
    wanted = seen(_normal(name)[:100])  # the comparison takes quadratic time
    likeness = {
        gpu.name: max(SequenceMatcher(None, wanted, seen(spelling)).ratio() for spelling in _spellings(row))
        for gpu, row in zip(gpus(), _rows(), strict=True)
    }
    return [
        known
        for known in sorted(likeness, key=lambda known: -likeness[known])[:3]
        if likeness[known] >= _LEAST_LIKENESS
    ]


_LEAST_LIKENESS = 0.65
"""Least share of equal characters of similar names, among which are a digit and the letter that looks like it."""

_LOOK_ALIKE = str.maketrans("oil", "011")


@lru_cache(maxsize=1)
def _rows() -> tuple[dict[str, str], ...]:
    with _DATA.open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


@lru_cache(maxsize=1)
def _references() -> dict[int, Gpu]:
    """Return, by memory size in GB, the reference card whose speed is assumed for cards of that size."""
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
    """Return the row's names, with and without a final memory size ("RTX 4090 24GB" and "RTX 4090")."""
    names = [row["name"], *filter(None, row["aliases"].split("|"))]
    size = row["nominal_gb"]
    return {_normal(name) for name in names} | {
        _normal(name + size) for name in names if not _normal(name).endswith(size)
    }


def _normal(name: str) -> str:
    """Return `name` without its optional parts: case, separators, vendor, "GeForce", "GB"."""
    return re.sub(r"[^a-z0-9]", "", _plain(name))


def _words(name: str) -> frozenset[str]:
    # "h100" stays one word: its digits are part of the name, not a memory size.
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
