"""This machine's own speeds in place of data sheets and assumptions, once `ds-advise bench` has measured them.

The estimators take a data sheet's figure and reach a share of it. So a measured rate goes in as the data sheet's figure
of which that share is the measured rate. Rates of matrix products, CPU Adam and NVMe go in as they are, for that is
what their fields hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ...estimators.hardware.cluster import AttentionSpeed, Cluster, Gpu
from ...estimators.phrase import Phrase, listed, phrase
from ...estimators.time.collective_time import LINK_SHARE, link_share
from ...estimators.time.offload_time import PINNED_SHARE
from ...estimators.time.roofline import BEST_OF_PEAK, FP32_BEST_OF_PEAK
from ...probes.machine import chosen_threads, cpu_cores, cpu_model, host_memory_bytes, mount_point
from ...probes.store_path import anything_kept
from ..text.units import age

if TYPE_CHECKING:
    from ...probes.benchmark_result import BenchResult
    from ...probes.store import Record

STREAM_SHARE = 0.9
"""Of a GPU's memory bandwidth by the data sheet that a sum of long vectors reaches. The estimators' own share is lower,
for a model's operations are shorter. Assumed."""

HOST_STREAM_SHARE = 0.6
"""The same of host memory by all cores: torch's stores read a line before they write it, a fourth transfer for the
three that are counted, and 0.8 of the data sheet is much. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHardware:
    """The newest benchmark of this machine, and its age."""

    result: BenchResult
    age_s: float

    def phrase(self, names: Sequence[Phrase]) -> str:
        """`here 3 days ago (bench): matrix products, PCIe`."""
        if not names:
            return ""
        return phrase("here {age} (bench): {figures}", age=age(self.age_s), figures=listed(names))


def measured_hardware(device: Literal["cuda", "cpu"]) -> MeasuredHardware | None:
    """What is known of this machine; None where nothing is. An unusable store says so on stderr and counts as
    nothing."""
    if not anything_kept():
        return None
    # Imported here: without results an answer needs no database.
    from ...probes.benchmark_result import BENCH_VERSION, bench_from_json
    from ...probes.machine import this_machine
    from ...probes.store import try_store

    machine = this_machine()
    nothing: list[Record] = []
    for record in try_store(lambda store: store.find(kind="bench", machine=machine), nothing):
        if record.result.get("version") == BENCH_VERSION and record.result.get("device") == device:
            return MeasuredHardware(result=bench_from_json(record.result), age_s=record.age_s)
    return None


def with_measured_hardware(cluster: Cluster) -> Cluster:
    """The cluster of this machine's GPUs with what was measured on it, and the phrase that says so."""
    known = measured_hardware("cuda")
    return cluster if known is None else as_measured(cluster, known)


def as_measured(cluster: Cluster, known: MeasuredHardware) -> Cluster:
    """The cluster with what a benchmark has measured of its kind of machine."""
    gpu, names = _gpu(cluster.gpu, known.result)
    changes, more = node_figures(cluster, known.result)
    return replace(cluster, gpu=gpu, measured=known.phrase([*names, *more]), **changes)


def _gpu(gpu: Gpu, known: BenchResult) -> tuple[Gpu, list[Phrase]]:
    bf16, fp16 = (known.best("matrix_product", how=how) for how in ("bf16", "fp16"))
    fp32 = known.best("matrix_product", how="fp32")
    memory = known.memory_bytes_per_s
    up, down = (known.best(kind, how="pinned") for kind in ("host_to_device", "device_to_host"))
    links = known.links_bytes_per_s
    changes: dict[str, Any] = {}
    names = list[Phrase]()
    if bf16 or fp16:
        changes |= {"gemm_bf16_flops_per_s": bf16, "gemm_fp16_flops_per_s": fp16}
        names.append(phrase("matrix products"))
    if attention := attention_speeds(known):
        changes["attention"] = attention
        names.append(phrase("attention"))
    if memory:
        changes["memory_bytes_per_s"] = memory / STREAM_SHARE
        names.append(phrase("device memory"))
    if up and down:
        changes["pcie_bytes_per_s"] = min(up, down) / PINNED_SHARE
        names.append(phrase("PCIe"))
    if links:
        changes["peer_bytes_per_s"] = links / link_share(gpu)
        names.append(phrase("collectives"))
    if gpu.assumed and fp16 and memory:
        changes |= {
            "bf16_flops_per_s": bf16 / BEST_OF_PEAK if bf16 else None,
            "fp16_flops_per_s": fp16 / BEST_OF_PEAK,
            "fp32_flops_per_s": fp32 / FP32_BEST_OF_PEAK if fp32 else gpu.fp32_flops_per_s,
            "assumed": False,
        }
    return replace(gpu, **changes), names


def attention_speeds(known: BenchResult, devices: float = 1.0) -> tuple[AttentionSpeed, ...]:
    """Rates of attention of one device, or of so many together, by type, pass and rising length."""
    return tuple(
        AttentionSpeed(precision=figure.how, backward=backward, keys=figure.size, flops_per_s=devices * figure.median)
        for backward, kind in ((False, "attention_forward"), (True, "attention_backward"))
        for figure in sorted((each for each in known.figures if each.kind == kind), key=lambda each: each.size)
    )


def node_figures(cluster: Cluster, known: BenchResult) -> tuple[dict[str, Any], list[Phrase]]:
    """Fields of a cluster beside its GPUs, and what they are called; collectives are named with the links."""
    changes: dict[str, Any] = {
        "collective_call_s": known.collective_call_s,
        "all_reduce_bytes_per_s": known.best("all_reduce"),
    }
    names = list[Phrase]()
    if known.host_score_s:
        changes["host_score_s"] = known.host_score_s
        names.append(phrase("a core's speed"))
    memory, adam = known.best("host_memory"), known.best("cpu_adam")
    if memory:
        changes["dram_bytes_per_s_per_node"] = memory / HOST_STREAM_SHARE
        names.append(phrase("host memory"))
    if adam:
        changes["cpu_adam_parameters_per_s_per_node"] = adam
        names.append(phrase("CPU Adam"))
    read, write = known.best("nvme_read"), known.best("nvme_write")
    if read and write and (not cluster.nvme_path or mount_point(cluster.nvme_path) == known.nvme_mount):
        changes |= {"nvme_read_bytes_per_s_per_node": read, "nvme_write_bytes_per_s_per_node": write}
        names.append(phrase("NVMe"))
    return changes, names


if TYPE_CHECKING:
    from ...probes.benchmark_result import BenchResult

CORE_FLOPS_PER_S = 20e9
"""Products on one core until they are measured: half of what AVX2 does at 2.5 GHz in the half of its peak (80 GFLOP/s)
that large products reach. Taken for bf16 as well, which a CPU without bf16 units does no faster. Assumed."""

MEMORY_BYTES_PER_S = 20e9
"""Of the whole host until it is measured: one channel of DDR4-3200 (25.6 GB/s) and a fifth less. Assumed."""

GLOO_BYTES_PER_S = 0.5e9
"""Between the ranks until it is measured: through the loopback interface with an addition in between. Assumed."""

_GIB = 2**30


def cpu_cluster(ranks: int, memory_limit_bytes: int | None = None) -> Cluster:
    """`ranks` processes on this machine's CPU, each of them a "GPU" with its share of cores and memory bandwidth.

    memory_limit_bytes: what one rank may allocate; None: its share of the RAM that a process here may use. Speeds are
        those of
    the newest `ds-advise bench --device cpu` on this machine; without one, low ones that are named as assumed.
    """
    cores, ram = cpu_cores(), host_memory_bytes()
    limit = ram // ranks if memory_limit_bytes is None else memory_limit_bytes
    known = measured_hardware("cpu")
    found = _Host(
        bf16=CORE_FLOPS_PER_S * cores, fp32=CORE_FLOPS_PER_S * cores, memory=MEMORY_BYTES_PER_S, links=GLOO_BYTES_PER_S
    )
    assumed: tuple[str, ...] = (
        f"{CORE_FLOPS_PER_S / 1e9:g} GFLOP/s per CPU core",
        f"{MEMORY_BYTES_PER_S / 1e9:g} GB/s of host memory bandwidth",
    )
    names: tuple[Phrase, ...] = ()
    attention: tuple[AttentionSpeed, ...] = ()
    if known is not None:
        found, assumed, names = _measured(known.result, found), (), (phrase("matrix products"), phrase("memory"))
        if attention := attention_speeds(known.result, known.result.ranks / ranks):
            names += (phrase("attention"),)
    if known is not None and known.result.ranks > 1:
        names += (phrase("collectives"),)
    elif ranks > 1:
        assumed += (f"{GLOO_BYTES_PER_S / 1e9:g} GB/s between ranks",)
    bf16, fp32, memory = found.bf16 / ranks, found.fp32 / ranks, found.memory / ranks
    gpu = Gpu(
        name=f"CPU ({cpu_model()})",
        vendor="",
        architecture="cpu",
        compute_capability=None,
        memory_bytes=limit,
        nominal_gb=max(1, round(limit / _GIB)),
        fp16_flops_per_s=None,
        bf16_flops_per_s=bf16 / BEST_OF_PEAK,
        tf32_flops_per_s=None,
        fp32_flops_per_s=fp32 / FP32_BEST_OF_PEAK,
        gemm_bf16_flops_per_s=bf16,
        gemm_fp16_flops_per_s=None,
        memory_bytes_per_s=memory / STREAM_SHARE,
        # "To the host" is a copy in the same memory, which reads and writes every byte.
        pcie_bytes_per_s=memory / 2 / PINNED_SHARE,
        peer_bytes_per_s=found.links / LINK_SHARE["pcie"],
        peer_link="gloo",
        source="this machine",
        attention=attention,
    )
    cluster = Cluster(
        nodes=1,
        gpus_per_node=ranks,
        gpu=gpu,
        host_memory_bytes_per_node=ram,
        cpu_cores_per_node=cores,
        threads_per_rank=chosen_threads(),
        dram_bytes_per_s_per_node=MEMORY_BYTES_PER_S,
        is_this_machine=True,
        assumptions=assumed,
    )
    if known is None:
        return cluster
    changes, more = node_figures(cluster, known.result)
    changes["new_memory_bytes_per_s"] = known.result.best("new_memory")
    return replace(cluster, measured=known.phrase([*names, *more]), **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    """All ranks together: FLOP/s of products by type, bytes per second of memory; links between two of them."""

    bf16: float
    fp32: float
    memory: float
    links: float


def _measured(result: BenchResult, otherwise: _Host) -> _Host:
    """What the ranks of a benchmark did at the same time."""
    bf16, fp32 = (result.best("matrix_product", how=how) for how in ("bf16", "fp32"))
    memory = result.memory_bytes_per_s
    return _Host(
        bf16=bf16 * result.ranks if bf16 else otherwise.bf16,
        fp32=fp32 * result.ranks if fp32 else otherwise.fp32,
        memory=memory * result.ranks if memory else otherwise.memory,
        links=result.links_bytes_per_s or otherwise.links,
    )
