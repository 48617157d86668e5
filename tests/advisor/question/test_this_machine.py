"""A benchmark of this machine in the answers about it, and its CPU as a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ds_advise import advise
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.question.this_machine import GLOO_BYTES_PER_S, HOST_STREAM_SHARE, STREAM_SHARE, cpu_cluster
from ds_advise.estimators.hardware import Cluster, nvme_read_bytes_per_s
from ds_advise.estimators.time.collective_time import LINK_SHARE, ring
from ds_advise.estimators.time.offload_time import cpu_step_bytes_per_s, host_link_s
from ds_advise.estimators.time.roofline import MEMORY_SHARE, attention_rate, memory_rate, product_rate
from ds_advise.probes.benchmark_result import BENCH_VERSION, BenchFigure, FigureKind, Unit
from ds_advise.probes.machine import cpu_cores, host_memory_bytes, mount_point, this_machine
from ds_advise.probes.store import Record, Store

from tests.helpers import bench_result

GIB = 2**30
Driver = Callable[..., None]
QUESTION = ["gpt2-xl", "--no-write", "--no-deepspeed-estimate"]
RTX3090 = ("NVIDIA GeForce RTX 3090", 24.0)


def _figure(kind: FigureKind, rate: float, how: str = "", unit: Unit = "B/s") -> BenchFigure:
    return BenchFigure(kind=kind, how=how, size=1, unit=unit, median=rate, lowest=rate, highest=rate, repeats=3)


GPU_FIGURES = (
    _figure("matrix_product", 70e12, "bf16", "flop/s"),
    _figure("matrix_product", 60e12, "bf16", "flop/s"),
    _figure("matrix_product", 72e12, "fp16", "flop/s"),
    _figure("matrix_product", 20e12, "fp32", "flop/s"),
    _figure("elementwise_sum", 800e9, "fp32"),
    _figure("memory_copy", 790e9, "fp32"),
    _figure("host_to_device", 25e9, "pinned"),
    _figure("device_to_host", 20e9, "pinned"),
    _figure("host_to_device", 5e9, "pageable"),
    _figure("all_reduce", 9e9, "nccl"),
    _figure("all_gather", 11e9, "nccl"),
    _figure("all_reduce", 30e-6, "nccl", "s"),
    _figure("host_memory", 30e9),
    _figure("cpu_adam", 1.5e9, "fp32", "parameters/s"),
    _figure("nvme_read", 3e9, "aio"),
    _figure("nvme_write", 1e9, "aio"),
)


def _keep(*figures: BenchFigure, days: float = 3, **changes: Any) -> None:
    """Keep a benchmark of two ranks."""
    made_at = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    result = bench_result(*figures, **{"nvme_mount": "/", **changes})
    Store().add(Record(kind="bench", machine=this_machine(), made_at=made_at, result=asdict(result)))


def test_the_estimators_reach_what_was_measured(driver: Driver) -> None:
    """Products, PCIe, links, CPU Adam, NVMe: the time of each follows from the measured rate."""
    driver(RTX3090, count=2)
    before = parse_cluster("auto")
    assert before.gpu.gemm_bf16_flops_per_s is not None
    _keep(*GPU_FIGURES)
    cluster = parse_cluster("auto")
    assert product_rate(cluster.gpu, "bf16") / product_rate(before.gpu, "bf16") == pytest.approx(
        70e12 / before.gpu.gemm_bf16_flops_per_s
    )
    assert product_rate(cluster.gpu, "fp16") / product_rate(cluster.gpu, "bf16") == pytest.approx(72 / 70)
    assert memory_rate(cluster.gpu) == pytest.approx(800e9 / STREAM_SHARE * MEMORY_SHARE)
    assert host_link_s(cluster, 20e9, pinned=True) == pytest.approx(1.0)
    assert ring(cluster).bytes_per_s == pytest.approx(11e9)
    assert ring(cluster).all_reduce_s(9e9, 0) == pytest.approx(1.0)
    assert ring(cluster).call_s == 30e-6
    assert nvme_read_bytes_per_s(cluster) == 3e9
    # The optimizer alone moves 28 bytes per parameter, the whole step more.
    assert 1.5e9 / cpu_step_bytes_per_s(cluster) == pytest.approx(1 / 28)
    assert cluster.dram_bytes_per_s_per_node == pytest.approx(30e9 / HOST_STREAM_SHARE)
    assert cluster.gpu.memory_bytes == before.gpu.memory_bytes


def test_the_answer_says_what_was_measured_and_when(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    """The "Assumed" line drops it."""
    driver(RTX3090, count=2)
    run([*QUESTION, "--gpus", "auto", "--details"])
    before = " ".join(capsys.readouterr().out.split())
    assert "Measured" not in before and "host memory bandwidth" in before
    _keep(*GPU_FIGURES)
    run([*QUESTION, "--gpus", "auto", "--details"])
    after = " ".join(capsys.readouterr().out.split())
    figures = "matrix products, device memory, PCIe, collectives, host memory, CPU Adam, NVMe."
    assert f"Measured here 3 days ago (bench): {figures}" in after
    assumed = after.partition("Assumed: ")[2]
    assert "host memory bandwidth" not in assumed and "NVMe" not in assumed


def test_a_card_of_unknown_speed_is_no_longer_assumed(driver: Driver) -> None:
    driver(("NVIDIA Future 9000", 60.0), count=2)
    assert parse_cluster("auto").gpu.assumed
    _keep(*GPU_FIGURES)
    cluster = parse_cluster("auto")
    assert not cluster.gpu.assumed and cluster.assumptions == ()
    assert product_rate(cluster.gpu, "fp32") < product_rate(cluster.gpu, "bf16")
    assert advise("gpt2-xl", gpus=cluster, deepspeed_estimate=False).recommended is not None


def test_only_what_was_measured_is_replaced(driver: Driver) -> None:
    driver(RTX3090, count=2)
    before = parse_cluster("auto")
    _keep(*GPU_FIGURES[:2])
    cluster = parse_cluster("auto")
    gpu = replace(before.gpu, gemm_bf16_flops_per_s=70e12, gemm_fp16_flops_per_s=None)
    assert cluster == replace(before, measured="here 3 days ago (bench): matrix products", gpu=gpu)


def test_figures_of_another_machine_or_version_are_not_used(driver: Driver) -> None:
    """Measured figures do not apply to described GPUs, either."""
    driver(RTX3090, count=2)
    before = parse_cluster("auto")
    _keep(*GPU_FIGURES, device="cpu")
    _keep(*GPU_FIGURES, version=BENCH_VERSION + 1)
    assert parse_cluster("auto") == before
    _keep(*GPU_FIGURES)
    assert parse_cluster("auto") != before
    assert not parse_cluster("2xRTX3090").measured
    driver(("NVIDIA L4", 24.0), count=2)
    assert not parse_cluster("auto").measured


def test_the_newest_benchmark_counts_alone(driver: Driver) -> None:
    driver(RTX3090, count=2)
    _keep(*GPU_FIGURES, days=9)
    _keep(_figure("matrix_product", 50e12, "bf16", "flop/s"), days=0)
    cluster = parse_cluster("auto")
    assert cluster.gpu.gemm_bf16_flops_per_s == 50e12
    assert cluster.cpu_adam_parameters_per_s_per_node is None
    assert "just now" in cluster.measured


def _rates(rate: float, spread: float = 1.0) -> BenchFigure:
    return replace(_figure("matrix_product", rate, "fp32", "flop/s"), highest=rate * spread)


def test_a_benchmark_of_as_many_ranks_counts_first() -> None:
    """Then an undisturbed one, then the newest; never one of more ranks than the machine has cores for."""
    _keep(_rates(9e9), device="cpu", ranks=2)
    _keep(_rates(1e9, 5.0), device="cpu", ranks=2)
    _keep(_rates(1e9), device="cpu", ranks=1)
    _keep(_rates(1e9), device="cpu", ranks=10_000)
    assert cpu_cluster(2).gpu.gemm_bf16_flops_per_s is not None
    assert product_rate(cpu_cluster(2).gpu, "fp32") == pytest.approx(9e9)
    assert product_rate(cpu_cluster(1).gpu, "fp32") == pytest.approx(1e9)
    assert product_rate(cpu_cluster(4).gpu, "fp32") == pytest.approx(1e9 / 4)  # the newest that is not disturbed
    _keep(_rates(7e9), device="cpu", ranks=2)
    assert product_rate(cpu_cluster(2).gpu, "fp32") == pytest.approx(7e9)


def test_a_drive_counts_for_the_folders_on_it(driver: Driver, tmp_path: Path) -> None:
    driver(RTX3090, count=2)
    _keep(*GPU_FIGURES, nvme_mount=mount_point(tmp_path))
    assert parse_cluster("auto", nvme=f"{tmp_path}:1TB").nvme_read_bytes_per_s_per_node == 3e9
    assert parse_cluster("auto", nvme="/proc:1TB").nvme_read_bytes_per_s_per_node is None


def test_the_cpu_is_a_cluster_of_ranks() -> None:
    """Ranks share cores, memory and RAM; speeds that are not measured are low and stated."""
    one, four = cpu_cluster(1), cpu_cluster(4)
    assert (four.world_size, four.is_this_machine, four.cpu_cores_per_node) == (4, True, cpu_cores())
    assert four.gpu.name.startswith("CPU (")
    assert one.gpu.memory_bytes == host_memory_bytes()
    assert four.gpu.memory_bytes == pytest.approx(host_memory_bytes() / 4, abs=1)
    assert product_rate(one.gpu, "fp32") == pytest.approx(4 * product_rate(four.gpu, "fp32"))
    assert any("GFLOP/s" in sentence for sentence in four.assumptions)
    assert not any("between ranks" in sentence for sentence in one.assumptions)
    assert cpu_cluster(2, 5 * GIB).gpu.memory_bytes == 5 * GIB


def _cpu() -> Cluster:
    _keep(
        _figure("matrix_product", 100e9, "fp32", "flop/s"),
        _figure("matrix_product", 150e9, "bf16", "flop/s"),
        _figure("attention_backward", 30e9, "fp32", "flop/s"),
        _figure("new_memory", 3e9),
        _figure("elementwise_sum", 10e9, "fp32"),
        _figure("all_gather", 2e9, "gloo"),
        _figure("all_reduce", 4e-4, "gloo", "s"),
        _figure("all_gather", 6e-4, "gloo", "s"),
        _figure("cpu_adam", 5e8, "fp32", "parameters/s"),
        device="cpu",
    )
    return cpu_cluster(4)


def test_the_cpus_own_speeds_are_shared_by_its_ranks() -> None:
    """Two ranks were measured together; four do as much together."""
    cluster = _cpu()
    assert cluster.gpu.gemm_bf16_flops_per_s == pytest.approx(75e9)
    assert product_rate(cluster.gpu, "fp32") / product_rate(cluster.gpu, "bf16") == pytest.approx(100 / 150)
    assert attention_rate(cluster.gpu, "fp32", "sdpa", 512, backward=True) == pytest.approx(15e9)
    assert cluster.new_memory_bytes_per_s == 3e9
    assert memory_rate(cluster.gpu) == pytest.approx(5e9 / STREAM_SHARE * MEMORY_SHARE)
    assert ring(cluster).bytes_per_s == pytest.approx(2e9)
    assert ring(cluster).call_s == pytest.approx(5e-4)
    assert cluster.gpu.peer_bytes_per_s != GLOO_BYTES_PER_S / LINK_SHARE["pcie"]
    assert cluster.assumptions == ()
    assert "matrix products, memory, attention, collectives, CPU Adam" in cluster.measured
