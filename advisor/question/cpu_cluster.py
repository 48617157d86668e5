"""This machine's CPU as the device that trains: its cores, memory and gloo in place of GPUs and their links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...estimators.hardware.cluster import AttentionSpeed, Cluster, Gpu
from ...estimators.phrase import Phrase, phrase
from ...estimators.time.collective_time import LINK_SHARE
from ...estimators.time.offload_time import PINNED_SHARE
from ...estimators.time.roofline import BEST_OF_PEAK, FP32_BEST_OF_PEAK
from ...probes.machine import cpu_model
from ...probes.this_machine import chosen_threads, cpu_cores, host_memory_bytes
from .measured_hardware import STREAM_SHARE, attention_speeds, measured_hardware, node_figures

if TYPE_CHECKING:
    from ...probes.bench.result import BenchResult

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
