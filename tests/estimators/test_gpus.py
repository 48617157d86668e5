"""GPU facts: any spelling finds the card, no card is guessed, and the data file is sound."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from ds_advise.estimators.errors import ClusterError
from ds_advise.estimators.gpu_catalogue import (
    UNMEASURED_MEMORY_SHARE,
    assumes_sxm,
    find_gpu,
    gpu_of_memory,
    gpus,
    nearest_names,
    same_size_gpus,
)
from ds_advise.estimators.time.roofline import memory_rate, product_rate

DATA = Path(__file__).parents[2] / "estimators" / "data" / "gpus.csv"
GIB = 2**30


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("A100-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("H100", "H100-SXM5"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5"),
        ("RTX 4090 24GB", "RTX 4090"),
        ("RTX3080-20GB", "RTX 3080 20GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("RTX4060Ti-16GB", "RTX 4060 Ti 16GB"),
        ("1080ti", "GTX 1080 Ti"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("7900 XTX", "RX 7900 XTX"),
    ],
)
def test_any_usual_spelling_finds_the_card(spelling: str, name: str) -> None:
    """Case, separators, vendor, series and the size's unit do not matter."""
    assert find_gpu(spelling).name == name


@pytest.mark.parametrize(
    ("spelling", "candidates"),
    [
        ("A100", ("A100-SXM4-40GB", "A100-SXM4-80GB")),
        ("RTX 3080", ("RTX 3080 10GB", "RTX 3080 20GB")),
    ],
)
def test_a_name_that_leaves_the_memory_open_is_refused(spelling: str, candidates: tuple[str, ...]) -> None:
    """Memory is what the answer is about, so it is never chosen silently; the candidates are named."""
    with pytest.raises(ClusterError) as error:
        find_gpu(spelling)
    assert all(candidate in error.value.fix for candidate in candidates)


@pytest.mark.parametrize("name", ["RTX 4099", "H1000", "A", "100"])
def test_an_unknown_name_gets_the_similar_ones(name: str) -> None:
    """Nothing is guessed; the error names similar GPUs, or those that a name fits."""
    with pytest.raises(ClusterError) as error:
        find_gpu(name)
    near = nearest_names(name)
    assert near and all(each in error.value.fix for each in near)


def test_a_name_without_a_form_factor_says_that_sxm_is_assumed() -> None:
    """`H100` is taken to be the SXM card, and that is an assumption; a full name and a driver's name assume nothing."""
    h100 = find_gpu("H100")
    assert assumes_sxm("H100", h100)
    assert not assumes_sxm("H100-SXM5", h100)
    assert not assumes_sxm("NVIDIA H100 80GB HBM3", h100)
    assert not assumes_sxm("RTX 4090", find_gpu("RTX 4090"))


@pytest.mark.parametrize("gigabytes", [8, 16, 22, 24, 32, 40, 48, 80, 96, 141, 192, 288])
def test_a_bare_size_has_exact_memory_and_borrowed_speed(gigabytes: int) -> None:
    """Memory follows from the size alone; the speed is a named card's, and is marked as assumed."""
    gpu = gpu_of_memory(gigabytes)
    assert gpu.memory_bytes == int(gigabytes * GIB * UNMEASURED_MEMORY_SHARE)
    assert gpu.assumed and gpu.nominal_gb == gigabytes
    assert gpu.name in {known.name for known in gpus()}
    assert product_rate(gpu, "fp16") == product_rate(find_gpu(gpu.name), "fp16")


@pytest.mark.parametrize("gigabytes", [14.1, 14.5, 22.1, 36.5, 44.4, 44.6])
def test_the_borrowed_speed_is_that_of_a_card_that_may_be_meant(gigabytes: float) -> None:
    """Also where the nearest size to the rounded one is another."""
    gpu = gpu_of_memory(gigabytes)
    assert gpu.name in {card.name for card in same_size_gpus(gpu)}


@pytest.mark.parametrize("gigabytes", [0, -32, 1.5, 3.9, 513, 1e12, float("inf")])
def test_a_size_that_no_gpu_has_is_refused(gigabytes: float) -> None:
    """Zero, negative and absurd sizes are errors, not clamped."""
    with pytest.raises(ClusterError):
        gpu_of_memory(gigabytes)


def test_usable_memory_lies_between_the_allowance_and_nominal() -> None:
    """Usable memory is a little less than the nominal GiB; only GDDR6 with ECC loses more than the stated allowance."""
    with_ecc = {"T4", "A10", "A10G", "A40", "L4", "L40", "L40S", "RTX 6000 Ada"}
    for gpu in gpus():
        share = gpu.memory_bytes / (gpu.nominal_gb * GIB)
        assert share <= 1, gpu.name
        assert share > (0.9 if gpu.name in with_ecc else UNMEASURED_MEMORY_SHARE - 0.001), gpu.name


def test_every_row_has_a_source_and_believable_figures() -> None:
    """No sparse peaks, no totals of both directions, and enough figures to predict a time with."""
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({row["name"] for row in rows}) == len(rows) == len(gpus())
    lending = [size for row in rows for size in row["reference_for_gb"].split(";") if size]
    assert len(set(lending)) == len(lending), "the answer would depend on the order of the rows"
    for row, gpu in zip(rows, gpus(), strict=True):
        assert row["source"], gpu.name
        assert bool(row["reference_for_gb"]) == bool(row["reference_because"]), gpu.name
        assert product_rate(gpu, "fp16") > 0
        assert memory_rate(gpu) > 0
        for measured, peak in (
            (gpu.gemm_bf16_flops_per_s, gpu.bf16_flops_per_s),
            (gpu.gemm_fp16_flops_per_s, gpu.fp16_flops_per_s),
        ):
            if measured is not None and peak is not None:
                # A sparse peak would be twice what dense products reach; the MI300X is known to reach half, and the L4,
                # which 72 W slow down, less.
                assert 0.44 < measured / peak < 1.15, gpu.name
        if gpu.peer_link == "pcie":
            assert gpu.peer_bytes_per_s == gpu.pcie_bytes_per_s, gpu.name
        if gpu.compute_capability is not None and gpu.compute_capability < 8:
            assert not gpu.has_bf16, gpu.name


@pytest.mark.parametrize("name", ["two", "foo", "", "🚀"])
def test_a_word_that_is_like_no_gpu_gets_no_near_one(name: str) -> None:
    with pytest.raises(ClusterError) as raised:
        find_gpu(name)
    assert raised.value.fix == "name one, such as --gpus 2xA100-80GB, or give the memory alone, such as --gpus 2x24GB"
