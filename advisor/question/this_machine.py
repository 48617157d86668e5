"""This machine as a cluster: its CPU, and the speeds measured by `ds-advise bench`.

The estimators multiply a data sheet's figure by the share of it that training reaches. A measured rate is therefore
divided by that share. Rates of matrix products, CPU Adam and NVMe are used without this division.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ...estimators.hardware import AttentionSpeed, Cluster, Gpu
from ...estimators.json_form import from_json
from ...estimators.time.collective_time import LINK_SHARE, link_share
from ...estimators.time.offload_time import PINNED_SHARE
from ...estimators.time.roofline import BEST_OF_PEAK, FP32_BEST_OF_PEAK
from ...probes.machine import chosen_threads, cpu_cores, cpu_model, host_memory_bytes, most_cpu_ranks, mount_point
from ...probes.store_path import store_exists
from ..text.units import age

if TYPE_CHECKING:
    from ...probes.benchmark_result import BenchResult
    from ...probes.store import Record

STREAM_SHARE = 0.9
"""Share of a GPU's data sheet memory bandwidth that a sum of long vectors reaches. The estimators' own share is lower,
because a model's operations are shorter. Assumed."""

HOST_STREAM_SHARE = 0.6
"""The same share for host memory with all cores. torch's stores read a line before they write it, which adds a fourth
transfer to three counted ones, and at most 0.8 of the data sheet is reached. Assumed."""

CORE_FLOPS_PER_S = 20e9
"""Rate of matrix products on one core if not measured: half of the 40 GFLOP/s that large products reach with AVX2 at
2.5 GHz. It also holds for bf16, because a CPU without bf16 units is no faster in it. Assumed."""

MEMORY_BYTES_PER_S = 20e9
"""Memory bandwidth of the host if not measured: one channel of DDR4-3200 (25.6 GB/s) less a fifth. Assumed."""

GLOO_BYTES_PER_S = 0.5e9
"""Rate between the ranks if not measured: through the loopback interface with one addition per transfer. Assumed."""

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHardware:
    """A benchmark of this machine, and the benchmark's age."""

    result: BenchResult
    age_s: float
    number: int | None
    """Number of its record."""

    def phrase(self, names: Sequence[str]) -> str:
        """The benchmark as a phrase: `here 3 days ago (bench): matrix products, PCIe`."""
        if not names:
            return ""
        return f"here {age(self.age_s)} (bench): {', '.join(names)}"


def measured_hardware(device: Literal["cuda", "cpu"], ranks: int) -> MeasuredHardware | None:
    """The newest benchmark of this machine; None without one. One of as many ranks takes precedence, then one that
    other processes did not disturb. An unusable store is reported on stderr and counts as empty."""
    if not store_exists():
        return None
    # Imported here: without records an answer needs no database.
    from ...probes.benchmark_result import BENCH_VERSION, BenchResult
    from ...probes.machine import this_machine
    from ...probes.store import try_store

    machine = this_machine()
    nothing: list[Record] = []
    known = [
        MeasuredHardware(result=from_json(BenchResult, record.result), age_s=record.age_s, number=record.id)
        for record in try_store(lambda store: store.find(kind="bench", machine=machine), nothing)
        if record.result.get("version") == BENCH_VERSION and record.result.get("device") == device
    ]
    most = most_cpu_ranks() if device == "cpu" else None
    usable = [each for each in known if most is None or each.result.ranks <= most]
    return min(usable, key=lambda each: (each.result.ranks != ranks, each.result.is_noisy), default=None)


def measured_cluster(cluster: Cluster, known: MeasuredHardware) -> Cluster:
    """The cluster with the speeds of a benchmark."""
    gpu, names = _measured_gpu(cluster.gpu, known.result)
    changes, more = _measured_node(cluster, known.result)
    are_known = known.result.links_bytes_per_s is not None
    return replace(cluster, gpu=gpu, links_are_known=are_known, measured=known.phrase([*names, *more]), **changes)


def _measured_gpu(gpu: Gpu, known: BenchResult) -> tuple[Gpu, list[str]]:
    bf16, fp16, fp32 = (known.best("matrix_product", how=how) for how in ("bf16", "fp16", "fp32"))
    memory, pcie, links = known.memory_bytes_per_s, known.pcie_bytes_per_s, known.links_bytes_per_s
    attention = _attention_speeds(known)
    changes, names = _known(
        ("matrix products", bf16 or fp16, {"gemm_bf16_flops_per_s": bf16, "gemm_fp16_flops_per_s": fp16}),
        ("attention", attention, {"attention": attention}),
        ("device memory", memory, {"memory_bytes_per_s": (memory or 0) / STREAM_SHARE}),
        ("PCIe", pcie, {"pcie_bytes_per_s": (pcie or 0) / PINNED_SHARE}),
        ("collectives", links, {"peer_bytes_per_s": (links or 0) / link_share(gpu)}),
    )
    # A card of unknown speed: the measured rates replace the assumed data sheet as well.
    if gpu.assumed and fp16 and memory:
        changes |= {
            "bf16_flops_per_s": bf16 / BEST_OF_PEAK if bf16 else None,
            "fp16_flops_per_s": fp16 / BEST_OF_PEAK,
            "fp32_flops_per_s": fp32 / FP32_BEST_OF_PEAK if fp32 else gpu.fp32_flops_per_s,
            "assumed": False,
        }
    return replace(gpu, **changes), names


def _measured_node(cluster: Cluster, known: BenchResult) -> tuple[dict[str, Any], list[str]]:
    """(fields of a cluster except its GPUs, names of the measured speeds)."""
    score, memory, adam = known.host_score_s, known.best("host_memory"), known.best("cpu_adam")
    read, write = known.best("nvme_read"), known.best("nvme_write")
    same_drive = not cluster.nvme_path or mount_point(cluster.nvme_path) == known.nvme_mount
    drive = {"nvme_read_bytes_per_s_per_node": read, "nvme_write_bytes_per_s_per_node": write}
    changes, names = _known(
        ("a core's speed", score, {"host_score_s": score}),
        ("host memory", memory, {"dram_bytes_per_s_per_node": (memory or 0) / HOST_STREAM_SHARE}),
        ("CPU Adam", adam, {"cpu_adam_parameters_per_s_per_node": adam}),
        ("NVMe", read and write and same_drive, drive),
    )
    changes |= {
        "collective_call_s": known.collective_call_s,
        "all_reduce_bytes_per_s": known.best("all_reduce"),
    }
    return changes, names


def _known(*rows: tuple[str, Any, dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """(fields, names) of the measured rows. rows: (name, whether it was measured, fields)."""
    changes: dict[str, Any] = {}
    names: list[str] = []
    for name, measured, fields in rows:
        if measured:
            changes |= fields
            names.append(name)
    return changes, names


def _attention_speeds(known: BenchResult, devices: float = 1.0) -> tuple[AttentionSpeed, ...]:
    """Attention rates of one device, or of several together, by type, pass and ascending length."""
    return tuple(
        AttentionSpeed(precision=figure.how, backward=backward, keys=figure.size, flops_per_s=devices * figure.median)
        for backward, kind in ((False, "attention_forward"), (True, "attention_backward"))
        for figure in sorted((each for each in known.figures if each.kind == kind), key=lambda each: each.size)
    )


def cpu_cluster(ranks: int, memory_limit_bytes: int | None = None) -> Cluster:
    """`ranks` processes on this machine's CPU, each a "GPU" with its share of cores and memory bandwidth. The speeds
    are those of `measured_hardware`, else low assumed ones. memory_limit_bytes: memory of one rank; by default its
    share of the RAM available to a process."""
    cores, ram = cpu_cores(), host_memory_bytes()
    bf16 = fp32 = CORE_FLOPS_PER_S * cores
    memory, links = MEMORY_BYTES_PER_S, GLOO_BYTES_PER_S
    attention: tuple[AttentionSpeed, ...] = ()
    assumed = [
        f"{CORE_FLOPS_PER_S / 1e9:g} GFLOP/s per CPU core",
        f"{MEMORY_BYTES_PER_S / 1e9:g} GB/s of host memory bandwidth",
    ]
    names: list[str] = []
    known = measured_hardware("cpu", ranks)
    if known is not None:
        result = known.result

        def total_rate(rate: float | None, otherwise: float) -> float:
            return rate * result.ranks if rate else otherwise  # they were measured at the same time

        bf16 = total_rate(result.best("matrix_product", how="bf16"), bf16)
        fp32 = total_rate(result.best("matrix_product", how="fp32"), fp32)
        memory = total_rate(result.memory_bytes_per_s, memory)
        links = result.links_bytes_per_s or links
        attention = _attention_speeds(result, result.ranks / ranks)
        assumed = []
        names = ["matrix products", "memory", *(["attention"] if attention else [])]
    if known is not None and known.result.ranks > 1:
        names.append("collectives")
    elif ranks > 1:
        assumed.append(f"{GLOO_BYTES_PER_S / 1e9:g} GB/s between ranks")
    limit = ram // ranks if memory_limit_bytes is None else memory_limit_bytes
    gpu = Gpu(
        name=f"CPU ({cpu_model()})",
        vendor="",
        architecture="cpu",
        compute_capability=None,
        memory_bytes=limit,
        nominal_gb=max(1, round(limit / _GIB)),
        fp16_flops_per_s=None,
        bf16_flops_per_s=bf16 / ranks / BEST_OF_PEAK,
        tf32_flops_per_s=None,
        fp32_flops_per_s=fp32 / ranks / FP32_BEST_OF_PEAK,
        gemm_bf16_flops_per_s=bf16 / ranks,
        gemm_fp16_flops_per_s=None,
        memory_bytes_per_s=memory / ranks / STREAM_SHARE,
        # A copy "to the host" stays in the same memory, which reads and writes every byte.
        pcie_bytes_per_s=memory / ranks / 2 / PINNED_SHARE,
        peer_bytes_per_s=links / LINK_SHARE["pcie"],
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
        assumptions=tuple(assumed),
    )
    if known is None:
        return cluster
    changes, more = _measured_node(cluster, known.result)
    changes["new_memory_bytes_per_s"] = known.result.best("new_memory")
    return replace(cluster, measured=known.phrase([*names, *more]), **changes)
