"""Parts of a machine besides its GPUs: hosts, bridges between GPUs, PCIe, drives. Each row of `data/hosts.csv`,
`data/bridges.csv` and `data/drives.csv` has its source."""

from __future__ import annotations

import csv
from functools import cache
from math import inf
from pathlib import Path
from typing import NamedTuple

_DATA = Path(__file__).parent / "data"

SEVERAL_SOCKETS_BYTES_PER_S = 200e9
"""Memory bandwidth that counts for a host of several sockets. Theirs together is two to three times as much (DGX A100 2
x 204.8 GB/s, DGX H100 2 x 307), but no published optimizer step on such a host is faster than with 200
(`time.offload_time.DRAM_SHARE`)."""

ASSUMED_DRIVE = (2.5e9, 1.25e9)
"""Bytes per second that an NVMe drive of unknown rates reads and writes: one PCIe 4 drive under DeepNVMe; four reach 10
and 5 GB/s (DeepSpeed blogs/deepnvme, 06-2025)."""

SLOWEST_DRIVE, FASTEST_DRIVE = 0.3e9, 20e9
"""Bytes per second that nearly all swap drives read: a desktop's that the system shares, and an array. By DeepSpeed's
aio a SATA drive reads 0.5 GB/s (DeepSpeed #998), four PCIe 4 drives 10 and four PCIe 5 drives 27 (blogs/deepnvme)."""

_LANE_BYTES_PER_S = 8e9 / 8 * 128 / 130
"""PCIe 3, one lane and way: 8 GT/s, of which 128 of 130 bits are data. Each later generation doubles it (PCI-SIG)."""


class Host(NamedTuple):
    """The processors of a node."""

    cores: int
    memory_bytes_per_s: float
    """Bandwidth that an optimizer step may use a share of (`SEVERAL_SOCKETS_BYTES_PER_S`)."""
    most_ram_bytes: float = inf
    """Largest RAM of the node; infinity if the table does not limit it."""

    @classmethod
    def of_sockets(cls, sockets: int, cores: int, memory_bytes_per_s: float) -> Host:
        """Return the host with these totals."""
        most = SEVERAL_SOCKETS_BYTES_PER_S if sockets > 1 else memory_bytes_per_s
        return cls(cores, min(memory_bytes_per_s, most))


class Bridge(NamedTuple):
    """A link between cards that are also joined by PCIe."""

    link: str
    bytes_per_s: float
    """One way, of a card to all others that the bridges join."""
    joins: int
    """Largest number of cards that bridges join."""


def host_names() -> tuple[str, ...]:
    return tuple(row["name"] for row in _rows("hosts"))


@cache
def named_host(name: str, gpus: int) -> Host | None:
    """Return the host with a name, of a node with a number of GPUs; None for an unknown name."""
    row = _row("hosts", "name", name)
    if row is None:
        return None
    hosts = -(-gpus // int(row["gpus_per_host"] or gpus))
    cores, rate = int(row["cores"]), float(row["memory_gb_per_s"]) * 1e9
    most = int(row["most_ram_gb"]) * 2**30 if row["most_ram_gb"] else inf
    return Host.of_sockets(int(row["sockets"]), hosts * cores, hosts * rate)._replace(most_ram_bytes=hosts * most)


@cache
def assumed_host(gpu: str) -> str:
    """Return the name of the host that is assumed for a GPU, or for the architecture of a server's GPUs; "" if there is
    none."""
    return next((row["name"] for row in _rows("hosts") if gpu in row["assumed_for"].split("|")), "")


def drive_names() -> tuple[str, ...]:
    return tuple(row["name"] for row in _rows("drives"))


def named_drive(name: str) -> tuple[float, float] | None:
    """Return the rates at which a kind of drive reads and writes, in bytes per second; None for an unknown name."""
    row = _row("drives", "name", name)
    return None if row is None else (float(row["read_gb_per_s"]) * 1e9, float(row["write_gb_per_s"]) * 1e9)


@cache
def bridge_of(gpu: str) -> Bridge | None:
    """Return the bridge of a card; None if it has none."""
    row = _row("bridges", "gpu", gpu)
    return None if row is None else Bridge(row["link"], float(row["gb_per_s"]) * 1e9, int(row["joins"]))


def pcie_bytes_per_s(generation: int, lanes: int) -> float:
    """Return the theoretical rate of PCIe, one way: 15.75 GB/s for 16 lanes of PCIe 3."""
    return _LANE_BYTES_PER_S * 2.0 ** (generation - 3) * lanes


def _row(file: str, column: str, value: str) -> dict[str, str] | None:
    return next((row for row in _rows(file) if row[column] == value), None)


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    with (_DATA / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))
