"""Parts of the machines that an answer assumes: which of them decide its speed, and what else they may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ...estimators.hardware import (
    DESKTOP_GPUS,
    DRIVE_PHRASE,
    Cluster,
    assumed_host_name,
    assumes_drive,
    assumes_pcie,
    desktop_holds,
    host_phrase,
    network_bytes_per_s,
    pcie_phrase,
)
from ...estimators.machine_parts import bridge_of
from ...estimators.time.step_time import estimate_time
from ..question.machine_parts import drive_rates, with_host, with_links
from ..question.question import Question
from ..search.candidate import Candidate

WORTH_LISTING = 1.15
"""Least factor on the speed of a change that is shown, or of an assumed part that is named; smaller ones are within the
time model's error. A change to a smaller host may be slower by this factor."""

SLOWER_NETWORKS = (100, 10)
"""Networks in Gb/s that are shown where a faster one is assumed: one adapter of a usual cloud node, and Ethernet."""

OTHER_DRIVES = ("sata", "4xpcie4")
"""Drives that are shown where one is assumed: the slowest kind, and an array of usual ones."""

_OLDER_SERVER = "6xDDR4-2933"
"""Memory of one socket of the servers before those that are assumed (Intel Xeon Scalable of the second generation)."""


class AssumedPart(NamedTuple):
    """A part of the machines that the user did not state."""

    phrase: str
    others: tuple[tuple[str, Cluster], ...]
    """Other parts that usual machines have: flags, and the cluster with the part."""
    is_named: bool = False
    """Whether it is named even if it does not decide: another plan may depend on it."""


def network_phrase(cluster: Cluster) -> str:
    """Return `3,200 Gb/s between nodes` if this network is assumed, else ""."""
    is_assumed = cluster.nodes > 1 and cluster.interconnect_bytes_per_s is None
    return f"{network_bytes_per_s(cluster) * 8 / 1e9:,g} Gb/s between nodes" if is_assumed else ""


def assumed_parts(cluster: Cluster, chosen: Candidate) -> Iterator[AssumedPart]:
    """Yield what is assumed of the machines of a plan besides their GPUs."""
    gpu, node = cluster.gpu, chosen.node(cluster)
    if phrase := network_phrase(cluster):
        assumed = network_bytes_per_s(cluster)
        slower = next((each for each in SLOWER_NETWORKS if each * 1e9 / 8 < assumed), SLOWER_NETWORKS[-1])
        network = replace(cluster, interconnect_bytes_per_s=slower * 1e9 / 8)
        yield AssumedPart(phrase, ((f"--interconnect {slower}Gb/s", network),), is_named=True)
    if gpu.is_cpu:
        return
    if cluster.nvme_bytes_per_node and assumes_drive(cluster):
        place = f"{cluster.nvme_path or 'PATH'}:{cluster.nvme_bytes_per_node / 1e9:g}GB"
        yield AssumedPart(
            DRIVE_PHRASE, tuple((f"--nvme {place}@{name}", _with_drive(cluster, name)) for name in OTHER_DRIVES)
        )
    if cluster.dram_bytes_per_s_per_node is None and (name := _other_host(node, chosen.ram_to_fit)):
        yield AssumedPart(host_phrase(node), ((f"--host {name}", with_host(cluster, name)),))
    if assumes_pcie(cluster):
        bridge, links, generation = bridge_of(gpu.name), list[str](), gpu.pcie_generation
        if bridge is not None and 1 < cluster.gpus_per_node <= bridge.joins:
            links.append(bridge.link.replace(" ", "-"))
        # The slots of a desktop share 16 lanes of its processor; a server may be older than its cards.
        is_desktop = assumed_host_name(node) == "desktop" or generation == 3
        links.append(f"pcie{generation}x8" if is_desktop else f"pcie{generation - 1}")
        yield AssumedPart(pcie_phrase(cluster), tuple((f"--link {link}", with_links(cluster, link)) for link in links))


def _other_host(cluster: Cluster, ram_bytes: int) -> str:
    """Another host than the assumed one that holds a plan, as `--host` takes it; "" for GPUs whose servers are
    alike."""
    assumed, are_few = assumed_host_name(cluster), cluster.gpus_per_node <= DESKTOP_GPUS
    if assumed not in ("desktop", "server"):
        return ""
    if cluster.cpu_cores_per_node is None and (assumed == "desktop" or (are_few and desktop_holds(ram_bytes))):
        return "server" if assumed == "desktop" else "desktop"
    return "8xDDR4-3200" if assumed == "desktop" else _OLDER_SERVER


def _with_drive(cluster: Cluster, name: str) -> Cluster:
    read, write = drive_rates(name)
    return replace(cluster, nvme_read_bytes_per_s_per_node=read, nvme_write_bytes_per_s_per_node=write)


def deciding_parts(question: Question, chosen: Candidate) -> list[AssumedPart]:
    """Return the network between nodes, and the assumed parts of which another changes the plan's speed by a factor of
    `WORTH_LISTING`."""
    return [
        part
        for part in assumed_parts(question.cluster, chosen)
        if part.is_named
        or any(not 1 / WORTH_LISTING < _ratio(question, chosen, other) < WORTH_LISTING for _, other in part.others)
    ]


def _ratio(question: Question, chosen: Candidate, cluster: Cluster) -> float:
    """The speed of a plan on other machines over its speed on the question's."""
    model, workload = question.model, question.workload
    times = (estimate_time(model, workload, each, chosen.plan) for each in (cluster, question.cluster))
    other, own = (each.tokens_per_s for each in times)
    return other / own
