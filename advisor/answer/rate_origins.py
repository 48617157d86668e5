"""Origin of the rates in the formulas of a step's time: the share of a known rate, and where that rate is from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...estimators.estimate import TimeTerm
from ...estimators.hardware import (
    Cluster,
    assumed_host_name,
    assumes_drive,
    assumes_pcie,
    dram_bytes_per_s,
    network_bytes_per_s,
)
from ...estimators.workload import Workload
from ..text.labels import resource_title
from ..text.units import amount, percent, times

_UNITS = {"bytes per second": "B/s", "operations per second": "FLOP/s"}
"""Start of the meaning of a rate's symbol -> its unit."""


class RateOrigin(NamedTuple):
    """A rate of the formulas. meaning: its name there."""

    symbol: str
    meaning: str
    value: float
    unit: str
    origin: str
    """What the rate is a share of, and where that is from."""


class _Base(NamedTuple):
    """The rate of which a formula's rate is a share. name: what it is the rate of; known: where it is from."""

    value: float | None
    name: str
    known: str


def rate_origins(terms: Iterable[TimeTerm], cluster: Cluster, workload: Workload) -> tuple[RateOrigin, ...]:
    """Return the rates in the formulas of a step, each once, in the order of the terms."""
    rates: dict[tuple[str, float], RateOrigin] = {}
    for term, symbol, value in ((each, *known) for each in terms for known in each.inputs):
        meaning = term.symbols.get(symbol, "")
        unit = next((unit for words, unit in _UNITS.items() if meaning.startswith(words)), "")
        if unit and (symbol, value) not in rates:
            origin = _origin(value, _base(symbol, term, cluster, workload), unit)
            rates[symbol, value] = RateOrigin(symbol, _meaning(symbol, term, meaning), value, unit, origin)
    return tuple(rates.values())


def _meaning(symbol: str, term: TimeTerm, meaning: str) -> str:
    """Return what a rate is of; a step may have collectives of all ranks, and others of a node's."""
    if symbol != "link":
        return meaning
    return f"bytes per second between the {'nodes' if term.resource == 'network' else 'GPUs of a node'}"


def _origin(value: float, base: _Base, unit: str) -> str:
    if not base.value:
        return base.known
    ratio = value / base.value
    share = f"{percent(ratio)} of" if ratio <= 1 else times(ratio)
    return f"{share} {base.name}, {amount(base.value, unit)} ({base.known})"


def _base(symbol: str, term: TimeTerm, cluster: Cluster, workload: Workload) -> _Base:
    gpu = cluster.gpu
    match symbol:
        case "R" | "rate" | "backward":
            peaks = {"bf16": gpu.bf16_flops_per_s, "fp16": gpu.fp16_flops_per_s, "tf32": gpu.tf32_flops_per_s}
            precision = workload.matmul_precision
            peak = peaks.get(precision) or gpu.fp32_flops_per_s
            clock = " at the data sheet's clock, which GeForce cards exceed" * gpu.is_half_rate
            keys = "" if symbol == "R" else " with this many keys"
            return _Base(peak, f"the peak in {precision}{clock}{keys}", _known(cluster, "matrix products"))
        case "W":
            return _Base(gpu.memory_bytes_per_s, "the memory's bandwidth", _known(cluster, "device memory"))
        case "PCIe":
            return _Base(gpu.pcie_bytes_per_s, "the link to the host", _link_known(cluster, "PCIe"))
        case "link" if term.resource == "network":
            stated = "assumed" if cluster.interconnect_bytes_per_s is None else "given"
            return _Base(network_bytes_per_s(cluster), "a node's network", stated)
        case "link" | "intra_node_link":
            rate = gpu.peer_bytes_per_s if gpu.peer_joins is None else None
            link = "the exchange" if gpu.is_cpu else f"a card's {resource_title(gpu.peer_link)}"
            return _Base(rate, link, _link_known(cluster, "collectives"))
        case "host" if "CPU Adam" in cluster.measured:
            return _Base(None, "", "DeepSpeedCPUAdam, measured on this machine")
        case "host" | "DRAM":
            host = (
                f"assumed for a {assumed_host_name(cluster)}" if cluster.dram_bytes_per_s_per_node is None else "given"
            )
            known = "measured on this machine" if "host memory" in cluster.measured else host
            return _Base(dram_bytes_per_s(cluster), "a node's memory bandwidth", known)
        case "read" | "write":
            return _Base(None, "", "an assumed drive" if assumes_drive(cluster) else "given or measured")
    return _Base(None, "", f"a constant of {term.source.partition(' ')[0]}")


def _known(cluster: Cluster, measured: str) -> str:
    """Return where a rate of the GPU is from. measured: its name in the phrase of a benchmark."""
    gpu = cluster.gpu
    if measured in cluster.measured:
        return "measured on this machine"
    if gpu.is_cpu:
        return "assumed"
    return f"data sheet of the {gpu.name}" + (f", assumed for {gpu.nominal_gb} GB" if gpu.assumed else "")


def _link_known(cluster: Cluster, measured: str) -> str:
    if assumes_pcie(cluster):
        return f"assumed: PCIe {cluster.gpu.pcie_generation} x16"
    return "given" if cluster.links_are_known and measured not in cluster.measured else _known(cluster, measured)
