"""From the options that describe machines (`MachineOptions`, `--device cpu`) to a `Cluster`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...estimators.errors import ClusterError
from ...estimators.hardware import KERNEL_MEMORY_SHARE, Cluster
from ...estimators.machine_parts import bridge_of, pcie_bytes_per_s
from ..text.units import counted_noun
from .gpu_text import described_cluster
from .machine_parts import MOST_MEMORY_BYTES, NETWORK, drive_rates, parse_rate, parse_size, with_host, with_links
from .options import MachineOptions, names_in

MOST_CPU_RANKS = 1024
"""Larger counts of processes on one host are assumed to be typing errors: no host has more cores."""

DEFAULT_CPU_RANKS = 2
"""Default number of ranks on the CPU: the fewest that communicate."""

_SIZE_FIRST = re.compile(r"[\d.]+[KMGTP]i?B?:", re.IGNORECASE)


def build_cluster(options: Mapping[str, Any]) -> Cluster:
    """The machines that the options of a question describe. Raises ClusterError for unknown or contradictory
    options."""
    gpus, threads = options.get("gpus", "auto"), options.get("threads")
    ranks, memory = options.get("ranks"), options.get("memory")
    if options.get("device", "cuda") == "cpu":
        if gpus != "auto":
            raise ClusterError(
                "--gpus does not apply to --device cpu",
                why="its ranks are processes on the host",
                fix=f"pass --ranks {DEFAULT_CPU_RANKS} instead",
            )
        if ranks is not None and ranks > MOST_CPU_RANKS:
            raise ClusterError(
                f"--ranks {ranks} are too many for one host",
                why=f"at most {MOST_CPU_RANKS} are accepted",
                fix="pass the ranks that the training has on this machine",
            )
        from .this_machine import cpu_cluster  # imported here: few questions are about this machine

        cluster = cpu_cluster(ranks or DEFAULT_CPU_RANKS, memory_limit_bytes(options))
    elif ranks is not None or memory is not None:
        raise ClusterError(
            f"{'--ranks' if ranks is not None else '--memory'} needs --device cpu",
            why="a GPU is one rank and has its own memory",
            fix="pass --gpus, or add --device cpu",
        )
    elif isinstance(gpus, Cluster):
        cluster = gpus
    else:
        parts = {name: options.get(name) for name in names_in(MachineOptions, without=("gpus", "threads"))}
        cluster = parse_cluster(gpus, **parts)
    return cluster if threads is None else replace(cluster, threads_per_rank=threads)


def is_described(options: Mapping[str, Any]) -> bool:
    """Return whether the options describe GPUs other than those of this machine, or objects of Python."""
    gpus = options.get("gpus", "auto")
    return not (isinstance(gpus, str) and is_this_machine(gpus)) and options.get("device", "cuda") != "cpu"


def is_this_machine(gpus: str) -> bool:
    return gpus.strip().lower() == "auto"


def cluster_here(options: Mapping[str, Any], *, devices: int | None = None) -> Cluster:
    """The machines that the options of a question describe, for ranks on this machine.

    devices: number of ranks on this machine, by default one node's. Raises ClusterError, also if this machine lacks the
    GPUs.
    """
    if options.get("device") == "cpu" or options.get("ranks") is not None or options.get("memory") is not None:
        return build_cluster(options)
    from ...probes.machine import check_gpus

    check_gpus(devices or 1)  # before `build_cluster`, which advises to describe the GPUs
    cluster = build_cluster(options)
    check_gpus(devices or cluster.gpus_per_node)
    return cluster


def memory_limit_bytes(options: Mapping[str, Any]) -> int | None:
    """The memory limit of each rank on the CPU; None without a limit."""
    memory = options.get("memory")
    return None if memory is None else parse_size("--memory", memory, least=10 * 2**20, most=MOST_MEMORY_BYTES)


def parse_cluster(
    gpus: str,
    *,
    ram: str | None = None,
    host: str | None = None,
    nvme: str | None = None,
    link: str | None = None,
    interconnect: str | None = None,
) -> Cluster:
    """The cluster described by these texts.

    gpus: [nodes x] GPUs per node x kind. A kind is a GPU's name in any spelling, or a memory size (`32GB`); alone it
        means one GPU. `auto` asks the driver of this machine.
    ram: host memory per node: `256GB` or `0.5TB` as sold, `200GiB` as usable (`parse_ram`). By default this machine's
        if gpus is `auto` (the container's limit first), else unknown.
    host: cores and memory bandwidth of a node (`with_host`). By default this machine's, else those of `hosts.csv`.
    nvme: `PATH:SIZE` or `SIZE`, per node, and the drive's rates: `/nvme:2TB@7GB/s,5GB/s` reads 7 and writes 5 GB/s; a
        single rate is for both; `/nvme:2TB@pcie4` names a kind of drive. By default unknown; the rates are then
        measured or assumed ones.
    link: links of the GPUs in a node (`with_links`). By default those of `gpus.csv`, without bridges.
    interconnect: bandwidth between nodes, per node: `200Gb/s`, `400gbps`, `25GB/s`, `10GbE`, each with an
        optional `8x`. `GB/s` is bytes and everything else bits. By default `network_bytes_per_s`.

    Raises ClusterError for anything that is unknown, contradictory, not positive or beyond the size of real machines.
    """
    if is_this_machine(gpus):
        # What is wrong with the other texts is told before the machine is looked for.
        parse_cluster("2x8xH100", ram=ram, host=host, nvme=nvme, interconnect=interconnect)
        cluster = _this_machine()
    else:
        cluster = described_cluster(gpus)
    if ram is not None:
        usable, reading = parse_ram(ram)
        cluster = replace(cluster, host_memory_bytes_per_node=usable)
        cluster = _assuming(cluster, reading) if reading else cluster
    at = rates = ""
    if nvme is not None:
        place, at, rates = nvme.rpartition("@") if "@" in nvme.rpartition(":")[2] else (nvme, "", "")
        path, colon, size = place.rpartition(":")
        if "/" in size or (colon and not size):
            folder, drive = place.removesuffix(":"), "2TB"
            if _SIZE_FIRST.match(folder):
                drive, _, folder = folder.partition(":")
            raise ClusterError(f"--nvme {nvme[:40]} is not PATH:SIZE", fix=f"write --nvme {folder[:40]}:{drive}")
        cluster = replace(
            cluster, nvme_path=path, nvme_bytes_per_node=parse_size("--nvme", size, least=10**9, most=10**15)
        )
    if cluster.is_this_machine:
        from .this_machine import measured_cluster, measured_hardware

        known = measured_hardware("cuda", cluster.gpus_per_node)
        cluster = cluster if known is None else measured_cluster(cluster, known)
        if cluster.gpu.assumed:
            cluster = _assuming(cluster, f"{cluster.gpu.name} as fast as a known card of its size")
    if at:  # what is stated takes precedence over what was measured
        read, write = drive_rates(rates)
        cluster = replace(cluster, nvme_read_bytes_per_s_per_node=read, nvme_write_bytes_per_s_per_node=write)
    if link is not None:
        cluster = with_links(cluster, link)
    if host is not None:
        cluster = with_host(cluster, host)
    if interconnect is None:
        return cluster
    rate = parse_rate(interconnect, NETWORK)
    if cluster.nodes == 1:
        return _assuming(cluster, "--interconnect has no effect on one node")
    return replace(cluster, interconnect_bytes_per_s=rate)


def gpus_argument(cluster: Cluster) -> str:
    """Return the `--gpus` value that describes this cluster."""
    gpu = cluster.gpu
    kind = f"{gpu.nominal_gb}GB" if gpu.assumed else gpu.name.replace(" ", "-")
    counts = f"{cluster.gpus_per_node}x" if cluster.nodes == 1 else f"{cluster.nodes}x{cluster.gpus_per_node}x"
    return counts + kind


def machines_label(cluster: Cluster) -> str:
    """Return the machines in a word or two: `8xH100-SXM5`, `4x8x24GB`, `2 CPU ranks`."""
    return counted_noun(cluster.world_size, "CPU rank") if cluster.gpu.is_cpu else gpus_argument(cluster)


def advise_command(model: str, cluster: Cluster) -> str:
    """Return the command that finds a plan for a model on this cluster."""
    where = f"--device cpu --ranks {cluster.world_size}" if cluster.gpu.is_cpu else f"--gpus {gpus_argument(cluster)}"
    return f"ds-advise {model} {where}"


def machine_arguments(cluster: Cluster) -> dict[str, str]:
    """Return the options that describe this cluster, as far as it is known, by name."""
    found, gpu = {"gpus": gpus_argument(cluster)}, cluster.gpu
    cores, memory = cluster.cpu_cores_per_node, cluster.dram_bytes_per_s_per_node
    if cluster.host_memory_bytes_per_node is not None:
        found["ram"] = f"{f'{cluster.host_memory_bytes_per_node / 2**30:.6f}'.rstrip('0').rstrip('.')}GiB"
    if cores or memory:
        found["host"] = ",".join([*([f"{cores}cores"] * bool(cores)), *([_rate_text(memory)] if memory else [])])
    if cluster.nvme_bytes_per_node is not None:
        found["nvme"] = f"{cluster.nvme_path}:{cluster.nvme_bytes_per_node / 1e9:g}GB".removeprefix(":")
        read, write = cluster.nvme_read_bytes_per_s_per_node, cluster.nvme_write_bytes_per_s_per_node
        if read and write:
            found["nvme"] += f"@{_rate_text(read)},{_rate_text(write)}"
    if cluster.links_are_known and gpu.peer_bytes_per_s and gpu.pcie_bytes_per_s:
        links = [f"pcie:{_rate_text(gpu.pcie_bytes_per_s)}"]
        if gpu.peer_link != "pcie":
            rate = f":{_rate_text(gpu.peer_bytes_per_s)}" if gpu.peer_joins is None else ""
            links.append(f"{gpu.peer_link.replace(' ', '-')}{rate}")
        found["link"] = ",".join(links)
    if cluster.interconnect_bytes_per_s is not None:
        found["interconnect"] = f"{cluster.interconnect_bytes_per_s * 8 / 1e9:.6g}Gb/s"
    return found


def _rate_text(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.6g}GB/s"


def _assuming(cluster: Cluster, assumption: str) -> Cluster:
    return replace(cluster, assumptions=(*cluster.assumptions, assumption))


def _this_machine() -> Cluster:
    from ...probes.machine import chosen_threads, cpu_cores, gpu_links, host_memory_bytes, visible_gpus

    found = visible_gpus()
    kinds = {gpu.name for gpu in found}
    if len(kinds) > 1:
        raise ClusterError(
            f"this machine's GPUs differ: {', '.join(sorted(kinds))}",
            why="all ranks hold the same share of the model and wait for the slowest",
            fix="select equal ones with CUDA_VISIBLE_DEVICES=0,1 or describe them: --gpus 2x24GB",
        )
    cluster = Cluster(
        nodes=1,
        gpus_per_node=len(found),
        gpu=min(found, key=lambda gpu: gpu.memory_bytes),
        host_memory_bytes_per_node=host_memory_bytes(),
        cpu_cores_per_node=cpu_cores(),
        threads_per_rank=chosen_threads(),
        is_this_machine=True,
    )
    links, gpu = gpu_links(), cluster.gpu
    if bridge_of(gpu.name) is None:
        links = links.removesuffix(",nvlink")
    if not links or (gpu.pcie_bytes_per_s or 0) > pcie_bytes_per_s(6, 16):  # NVLink-C2C to a Grace processor
        return cluster
    return with_links(cluster, links)


def parse_ram(text: str) -> tuple[int, str]:
    """(usable bytes of a node's RAM, an assumption for the answer, "" if none was made).

    `256GB` and `0.5TB` are modules as sold, in powers of two: usable = size * (1 - KERNEL_MEMORY_SHARE).
    `200GiB` is exactly the usable size (the RAM that `free` shows, or a container's limit).
    """
    size = parse_size("--ram", text, least=2**30, most=MOST_MEMORY_BYTES)
    if "i" in text.lower():
        return size, ""
    usable = int(size * (1 - KERNEL_MEMORY_SHARE))
    return usable, (
        f"--ram {text.strip()} is taken as {size / 2**30:,.4g} GiB, minus {100 * KERNEL_MEMORY_SHARE:.0f} % for the "
        "kernel"
    )
