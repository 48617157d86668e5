"""From the options that describe the parts of a machine besides its GPUs (`--nvme`, `--link`, `--host`) to rates and
sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ...estimators.errors import ClusterError
from ...estimators.hardware import Cluster, Gpu
from ...estimators.machine_parts import (
    Host,
    bridge_of,
    drive_names,
    host_names,
    named_drive,
    named_host,
    pcie_bytes_per_s,
)

MOST_CORES = 1024
"""Larger numbers of cores of a host are assumed to be typing errors."""


class Rated(NamedTuple):
    """What a rate is of, for errors."""

    option: str
    why: str
    fix: str


NETWORK = Rated(
    "--interconnect",
    "the time of every collective depends on it",
    "write it as 200Gb/s, 25GB/s or 100GbE (8x200Gb/s for eight adapters per node)",
)
_DRIVE = Rated(
    "--nvme",
    "the time of every swap depends on it",
    "write it as /nvme:2TB@7GB/s, with another rate of writing as /nvme:2TB@7GB/s,5GB/s, or by a kind of drive: "
    f"{', '.join(drive_names())}, 4xpcie4",
)


def parse_rate(text: str, rated: Rated) -> float:
    """Bytes per second of a node's adapters, drives or memory, or of a GPU's link."""
    number = re.fullmatch(
        r"(?:(\d{1,3})\s*x\s*)?(\d{1,9}(?:\.\d{1,9})?)\s*([gm](?:b|bit|ib)(?:/s|ps|e)?)",
        text.strip(),
        flags=re.IGNORECASE,
    )
    if number is None:
        raise ClusterError(
            f"{rated.option} {text[:40]!r} is not a rate",
            why=rated.why,
            fix=rated.fix,
        )
    in_bytes = re.fullmatch(r"[GM]i?B(/s|ps)?", number[3]) is not None  # also 25GB, which is never 25 gigabit
    rate = float(number[2]) * (1e9 if number[3][0] in "gG" else 1e6) / (1 if in_bytes else 8) * int(number[1] or 1)
    if not 1e8 <= rate <= 2e12:
        raise ClusterError(
            f"{rated.option} {text!r} is {rate / 1e9:g} GB/s",
            why="values from 0.1 to 2000 GB/s are accepted",
            fix=rated.fix,
        )
    return rate


_LINK = Rated(
    "--link",
    "the time of every collective and of every copy to the host depends on it",
    "write it as nvlink, infinity-fabric, pcie4, pcie4x8 or nvlink,pcie4x8; with the rate of a GPU, one way, as "
    "nvlink:50GB/s",
)
_HOST = Rated(
    "--host",
    "the optimizer's step on the host depends on its cores and memory",
    "write it as 72cores,500GB/s, two sockets as 2x64cores,2x204.8GB/s, two channels as 16cores,2xDDR5-5600, or as one "
    f"of {', '.join(host_names())}",
)
_LINK_WORD = re.compile(
    r"(nvlink|infinity[ _-]?fabric|xgmi|pcie)(?:([3-6])(?:\.0)?)?(?:x(1|2|4|8|16))?(?::(.+))?", re.IGNORECASE
)
_CORES = re.compile(r"(?:(\d{1,2})x)?(\d{1,5})\s*cores?", re.IGNORECASE)
_CHANNELS = re.compile(r"(?:([1-9]\d?)x)?([1-9]\d?)x(?:lp)?ddr[345]x?-?(\d{4,5})", re.IGNORECASE)
_SOCKETS = re.compile(r"(?:([1-9])x)?([\d.]+ ?[gm]i?b(?:/s|ps))", re.IGNORECASE)


def drive_rates(text: str) -> tuple[float, float]:
    """The rates at which a drive reads and writes, in bytes per second, from `7GB/s`, `7GB/s,5GB/s`, `pcie4` or
    `4xpcie4` (four drives as one). Raises ClusterError for anything else."""
    count, _, name = text.strip().lower().rpartition("x")
    if (known := named_drive(name)) is not None and (not count or (count.isascii() and count.isdigit())):
        drives = int(count[:3] or 1)
        if not 1 <= drives <= 32:
            raise ClusterError(f"--nvme has {drives} drives", why="from 1 to 32 are accepted", fix=_DRIVE.fix)
        return known[0] * drives, known[1] * drives
    read, *others = (parse_rate(each, _DRIVE) for each in text.split(",", 1))
    return read, others[0] if others else read


def with_links(cluster: Cluster, text: str) -> Cluster:
    """The cluster whose GPUs have these links: `nvlink`, `infinity-fabric`, `pcie4x8`, or several with commas.

    PCIe is a GPU's link to the host, and joins the GPUs of a node where nothing else does. A bridge is that of
    `estimators/data/bridges.csv` if no rate is given; a given rate is that of all GPUs of the node.

    Raises ClusterError for a link that is not understood, or that the GPU does not have.
    """
    gpu, assumptions = cluster.gpu, list[str]()
    for word in text.split(","):
        found = _LINK_WORD.fullmatch(word.strip())
        name = found[1].lower() if found is not None else ""
        if found is None or (name != "pcie" and (found[2] or found[3])):
            raise ClusterError(f"--link {word[:40]!r} is not a link", why=_LINK.why, fix=_LINK.fix)
        rate = parse_rate(found[4], _LINK) if found[4] else None
        if name == "pcie":
            gpu = replace(gpu, pcie_bytes_per_s=rate or _slot(gpu, found[2], found[3]))
            continue
        kind = "nvlink" if name == "nvlink" else "infinity fabric"
        if gpu.peer_link == kind:
            gpu = replace(gpu, peer_bytes_per_s=rate or gpu.peer_bytes_per_s)
            continue
        bridge = bridge_of(gpu.name)
        if rate is None and (bridge is None or bridge.link != kind):
            card = f"{gpu.nominal_gb} GB names no card" if gpu.assumed else f"no such link of the {gpu.name} is known"
            to_name = "name the card in --gpus, or " if gpu.assumed else ""
            raise ClusterError(
                f"--link {word[:40]}: {card}",
                why="the rate of the link is that of the card",
                fix=f"{to_name}write --link {kind.replace(' ', '-')}:50GB/s with the rate of a GPU, one way",
            )
        joins = None
        if rate is None and bridge is not None:
            rate, joins = bridge.bytes_per_s, bridge.joins
            if cluster.gpus_per_node > joins:
                assumptions.append(f"bridges join {joins} cards, and PCIe the others of a node")
        gpu = replace(gpu, peer_link=kind, peer_bytes_per_s=rate, peer_joins=joins)
    if gpu.peer_link == "pcie":
        gpu = replace(gpu, peer_bytes_per_s=gpu.pcie_bytes_per_s)
    return replace(
        cluster,
        gpu=gpu,
        links_are_known=True,
        all_reduce_bytes_per_s=None,
        assumptions=(*cluster.assumptions, *assumptions),
    )


def _slot(gpu: Gpu, generation: str | None, lanes: str | None) -> float:
    """The rate of a GPU in a slot, which is no higher than its own."""
    own = gpu.pcie_bytes_per_s
    if generation is None:
        raise ClusterError("--link pcie has no generation", why=_LINK.why, fix=_LINK.fix)
    rate = pcie_bytes_per_s(int(generation), int(lanes or 16))
    return min(rate, own or rate)


def with_host(cluster: Cluster, text: str) -> Cluster:
    """The cluster with this host in each node: `72cores,500GB/s`, `2x64cores,2x204.8GB/s` (sockets),
    `16cores,2xDDR5-5600` (channels), or a name of `estimators/data/hosts.csv`. What is left out stays as it is. Raises
    ClusterError for anything else."""
    cores, memory = cluster.cpu_cores_per_node, cluster.dram_bytes_per_s_per_node
    for word in map(str.strip, text.split(",")):
        if (named := named_host(word.lower(), cluster.gpus_per_node)) is not None:
            cores, memory = named.cores, named.memory_bytes_per_s
        elif (found := _CORES.fullmatch(word)) is not None:
            cores = int(found[1] or 1) * int(found[2])
            if not 1 <= cores <= MOST_CORES:
                why = f"from 1 to {MOST_CORES} are accepted"
                raise ClusterError(f"--host has {cores} cores per node", why=why, fix=_HOST.fix)
        elif (found := _CHANNELS.fullmatch(word)) is not None:  # 8 bytes a transfer
            sockets = int(found[1] or 1)
            memory = Host.of_sockets(sockets, 0, sockets * int(found[2]) * int(found[3]) * 8e6).memory_bytes_per_s
        elif (found := _SOCKETS.fullmatch(word)) is not None:
            sockets = int(found[1] or 1)
            memory = Host.of_sockets(sockets, 0, sockets * parse_rate(found[2], _HOST)).memory_bytes_per_s
        else:
            raise ClusterError(f"--host {word[:40]!r} is not a part of a host", why=_HOST.why, fix=_HOST.fix)
    # The step that was measured is that of another host.
    return replace(
        cluster, cpu_cores_per_node=cores, dram_bytes_per_s_per_node=memory, cpu_adam_parameters_per_s_per_node=None
    )


_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_MEMORY_UNITS = {**_UNITS, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40, "pb": 2**50}
"""Units of memory, which is sold in powers of two; drives are sold in powers of ten."""

MOST_MEMORY_BYTES = 64 * 2**40
"""Largest memory that an option takes."""


def _meant_size(text: str, least: int, most: int) -> str:
    """The size of memory that a text in another form means: `256GB` for `256`, `256GBs` and `256 gigabytes`, and for
    `256MB` where that is out of range; "" for any other text."""
    found = re.match(r"(\d{1,9}(?:\.\d{1,9})?)\s*([kmgtp]?)", text.strip().replace(",", ""), re.IGNORECASE | re.ASCII)
    if found is None:
        return ""
    units = (f"{found[2] or 'g'}b".lower(), "gb")
    sizes = {unit: float(found[1]) * _MEMORY_UNITS[unit] for unit in units}
    return next((f"{found[1]}{unit.upper()}" for unit, size in sizes.items() if least <= size <= most), "")


def _in_units(size: int, scales: Mapping[str, int]) -> str:
    """The size in the largest of the units `MB`, `GB`, `TB` that is not above it."""
    unit = max((each for each in ("mb", "gb", "tb") if scales[each] <= size), key=scales.__getitem__)
    return f"{size / scales[unit]:g} {unit.upper()}"


def parse_size(option: str, text: str, *, least: int, most: int) -> int:
    """Bytes of `256GB` or `256GiB`. A GB of memory is 2**30 bytes, a GB of a drive 10**9 bytes."""
    example = "/mnt/nvme:2TB" if option == "--nvme" else _meant_size(text, least, most) or "200GiB"
    fix = f"write it as {option} {example}"
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]+)", text.strip(), flags=re.IGNORECASE | re.ASCII)
    unit = match[2].lower() if match else ""
    scales = _UNITS if option == "--nvme" else _MEMORY_UNITS
    scale = scales.get(unit if unit.endswith("b") else unit + "b")
    if match is None or scale is None:
        what = f"{option} {text[:40]!r} is not a size"
        raise ClusterError(what, why="a number and a unit are needed", fix=fix)
    size = int(float(match[1]) * scale)
    if not least <= size <= most:
        raise ClusterError(
            f"{option} {text!r} is out of range",
            why=f"from {_in_units(least, scales)} to {_in_units(most, scales)} are accepted",
            fix=fix,
        )
    return size
