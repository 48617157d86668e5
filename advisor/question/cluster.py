"""What the user says of the machines (`--gpus`, `--ram`, `--nvme`, `--interconnect`) as a `Cluster`."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Literal, NamedTuple

from ...estimators.errors import ClusterError
from ...estimators.hardware.cluster import KERNEL_MEMORY_SHARE, Cluster, Gpu
from ...estimators.hardware.gpus import assumes_sxm, find_gpu, gpu_of_memory

MOST_GPUS_PER_NODE, MOST_NODES = 16, 1024
"""Beyond these a typing error is likelier than such a machine (DGX-2 has the most GPUs in one host, 16)."""

_ASSUMED_GBIT_PER_S = {"Ampere": 400, "Hopper": 3200, "Blackwell": 3200}
"""Node to node where --interconnect is not given, by the architecture of GPUs joined by NVLink: AWS p4d (8 x A100,
400 Gb/s), p5 and p6-b200 (8 x H100 or B200, 3200 Gb/s), the widest-spread cloud machines of each (docs.aws.amazon.com,
EC2 accelerated computing instances). Any other node is given 100 Gb/s, as AWS p3dn (8 x V100) has and g5 (8 x A10G) at
most."""

_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15, "gib": 2**30, "tib": 2**40, "mib": 2**20}
_MEMORY_UNITS = {**_UNITS, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40, "pb": 2**50}
"""Memory is made and sold in powers of two, drives are not."""

_LONGEST_TEXT = 200

_SIZE_EXAMPLES = {
    "--ram": "256GB",
    "--nvme": "/mnt/nvme:2TB",
    "--memory": "2GB",
    "--max-memory": "30GiB",
    "--max-ram": "200GiB",
}

_NETWORKS_GBIT_PER_S = {
    "ib-qdr": 32,
    "ib-fdr": 56,
    "ib-edr": 100,
    "ib-hdr100": 100,
    "ib-hdr": 200,
    "ib-ndr200": 200,
    "ib-ndr": 400,
    "ib-xdr": 800,
}
"""InfiniBand generations, 4 lanes, data rate (QDR's 40 Gb/s of signal carry 32 of data)."""

_NAME_AND_SIZE = re.compile(
    r"((?:[a-z]|\d{4})[\w .-]*?\w)[\s_-]*(?<![\d.])(\d+(?:\.\d+)?)\s*gi?b", flags=re.IGNORECASE | re.ASCII
)
"""`RTX 3060-8GB`: a name, which is longer than the x between counts, and a size."""

_OTHER_ORDER = re.compile(
    r"(?P<kind>.*\d[a-z]*)\s*[x*:]\s*(?P<count>\d{1,4})|(?P<before>\d{1,4})\s*[*:]\s*(?P<behind>.+)", re.IGNORECASE
)
"""`H100x8`, `H100:8`, `8*H100`: a kind has a digit, so that the x in RTX9090 stands before no count."""

_GRAMMAR = "write [NODESx]GPUSxKIND, such as 2x32GB, 8xA100-80GB or 4x8xH100, or auto for this machine"


def parse_cluster(
    gpus: str, *, ram: str | None = None, nvme: str | None = None, interconnect: str | None = None
) -> Cluster:
    """The cluster that the four options describe.

    gpus: [nodes x] GPUs per node x kind. A kind is a GPU's name in any spelling, or a memory size (`32GB`); alone it
        means one GPU. `auto` asks the driver of this machine.
    ram: host memory per node: `256GB` or `0.5TB` as it is sold, `200GiB` as training may use it (`parse_ram`). Without
        it, this machine's when gpus is `auto` (the container's limit first), else unknown.
    nvme: `PATH:SIZE` or `SIZE`, per node. Without it, unknown.
    interconnect: node to node, per node: `200Gb/s`, `400gbps`, `25GB/s`, `10GbE`, `ib-hdr`, each with an optional `8x`.
        `GB/s` is bytes and everything else bits. Without it, several nodes get the assumption of `join_nodes`.

    Raises ClusterError for anything that is unknown, contradictory, not positive or beyond what machines have.
    """
    for option, text in (("--gpus", gpus), ("--ram", ram), ("--nvme", nvme), ("--interconnect", interconnect)):
        _check_text(option, text)
    cluster = _this_machine() if gpus.strip().lower() == "auto" else _described(gpus)
    if ram is not None:
        usable, reading = parse_ram(ram)
        cluster = replace(
            cluster,
            host_memory_bytes_per_node=usable,
            assumptions=(*cluster.assumptions, reading) if reading else cluster.assumptions,
        )
    if nvme is not None:
        path, _, size = nvme.rpartition(":")
        cluster = replace(
            cluster, nvme_path=path, nvme_bytes_per_node=parse_size("--nvme", size, least=10**9, most=10**15)
        )
    if cluster.is_this_machine:
        cluster = _measured(cluster)
    return _with_interconnect(cluster, interconnect)


def _measured(cluster: Cluster) -> Cluster:
    """This machine with its own speeds where they are known, and what is assumed of its GPUs otherwise."""
    from .this_machine import with_measured_hardware

    cluster = with_measured_hardware(cluster)
    if not cluster.gpu.assumed:
        return cluster
    return replace(
        cluster, assumptions=(*cluster.assumptions, f"{cluster.gpu.name} as fast as a known card of its size")
    )


def counts_in(gpus: str) -> tuple[int | None, int | None]:
    """(nodes, GPUs of each) that a text of `--gpus` states; None for what it leaves open."""
    first, second, _ = _parts(gpus)
    return (int(first), int(second)) if first and second else (None, int(first) if first else None)


def _parts(gpus: str) -> tuple[str, str, str]:
    """(first count, second count, kind); "" for a count that is not there."""
    match = re.fullmatch(r"(?:(-?\d+)\s*x\s*)?(?:(-?\d+)\s*x\s*)?(.*)", gpus.strip(), flags=re.IGNORECASE)
    assert match is not None
    first, second, kind = match.groups(default="")
    return first, second, kind


def _described(gpus: str) -> Cluster:
    first, second, kind = _parts(gpus)
    nodes, per_node = (int(first), int(second)) if second else (1, int(first or 1))
    if not kind:
        raise ClusterError(f"--gpus {gpus!r} names no kind of GPU", why="memory and speed depend on it", fix=_GRAMMAR)
    if nodes < 1 or per_node < 1:
        raise ClusterError(f"--gpus {gpus!r} has no GPU in it", why="a count below one trains nothing", fix=_GRAMMAR)
    if nodes > MOST_NODES:
        raise ClusterError(
            f"--gpus {gpus!r} asks for {nodes} nodes", why=f"at most {MOST_NODES} are accepted", fix=_GRAMMAR
        )
    if per_node > MOST_GPUS_PER_NODE:
        raise ClusterError(
            f"--gpus {gpus!r} puts {per_node} GPUs into one node",
            why=f"a node holds at most {MOST_GPUS_PER_NODE}, and GPUs of different nodes talk over the network",
            fix=f"write nodes x GPUs x kind, such as {min(MOST_NODES, -(-per_node // 8))}x8x{kind}",
        )
    gpu, assumptions = _gpu_of_kind(kind, gpus)
    return Cluster(nodes=nodes, gpus_per_node=per_node, gpu=gpu, assumptions=assumptions)


def _gpu_of_kind(kind: str, gpus: str) -> tuple[Gpu, tuple[str, ...]]:
    """The GPU, and what was assumed about it."""
    size = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*(gi?b?)?", kind.strip(), flags=re.IGNORECASE)
    if size and size[2]:
        gpu = gpu_of_memory(float(size[1]))
        return gpu, (f"GPUs of {gpu.nominal_gb} GB as fast as the {gpu.name}",)
    if size and len(size[1]) < 4:
        raise ClusterError(
            f"--gpus {gpus!r} ends in a number without a unit",
            why="it could be a count or a memory size",
            fix=f"for memory write {gpus.strip()}GB; {_GRAMMAR}",
        )
    try:
        gpu = find_gpu(kind)
    except ClusterError:
        named = _NAME_AND_SIZE.fullmatch(kind.strip())
        if named is None:
            _refuse_other_order(gpus)
            raise
        return _of_spelled_memory(named[1], float(named[2]))
    return gpu, ((f"{kind.strip()} means the {gpu.name}",) if assumes_sxm(kind, gpu) else ())


def _refuse_other_order(gpus: str) -> None:
    """Raises ClusterError where the count stands behind the kind, or beside another sign."""
    match = _OTHER_ORDER.fullmatch(gpus.strip())
    if match is not None:
        count, kind = match["count"] or match["before"], match["kind"] or match["behind"]
        raise ClusterError(f"--gpus {gpus!r} is not how a count is written", fix=f"write --gpus {count}x{kind.strip()}")


def _of_spelled_memory(name: str, gigabytes: float) -> tuple[Gpu, tuple[str, ...]]:
    """A card that is not known, or not with this memory: the memory is believed, the speed is that of the card of its
    name, else of one of its size."""
    gpu = gpu_of_memory(gigabytes)
    with suppress(ClusterError):
        gpu = replace(find_gpu(name), memory_bytes=gpu.memory_bytes, nominal_gb=gpu.nominal_gb, assumed=True)
    return gpu, (f"{name} of {gpu.nominal_gb} GB, which is not known, as fast as the {gpu.name}",)


def _this_machine() -> Cluster:
    from ...probes.this_machine import chosen_threads, cpu_cores, host_memory_bytes, visible_gpus

    found = visible_gpus()
    kinds = {gpu.name for gpu in found}
    if len(kinds) > 1:
        raise ClusterError(
            f"this machine's GPUs differ: {', '.join(sorted(kinds))}",
            why="all ranks hold the same share of the model and wait for the slowest",
            fix="choose equal ones with CUDA_VISIBLE_DEVICES=0,1 or describe them: --gpus 2x24GB",
        )
    gpu = min(found, key=lambda gpu: gpu.memory_bytes)
    return Cluster(
        nodes=1,
        gpus_per_node=len(found),
        gpu=gpu,
        host_memory_bytes_per_node=host_memory_bytes(),
        cpu_cores_per_node=cpu_cores(),
        threads_per_rank=chosen_threads(),
        is_this_machine=True,
    )


def _with_interconnect(cluster: Cluster, interconnect: str | None) -> Cluster:
    if interconnect is not None:
        rate = _rate(interconnect)
        if cluster.nodes == 1:
            return replace(cluster, assumptions=(*cluster.assumptions, "--interconnect has no effect on one node"))
        return replace(cluster, interconnect_bytes_per_s=rate)
    if cluster.nodes == 1:
        return cluster
    return join_nodes(cluster)


def join_nodes(cluster: Cluster) -> Cluster:
    """The cluster with the interconnect that its GPUs usually have and the phrase that says so, unless one is known."""
    if cluster.nodes == 1 or cluster.interconnect_bytes_per_s is not None:
        return cluster
    linked = cluster.gpu.peer_link == "nvlink"
    gbit_per_s = _ASSUMED_GBIT_PER_S.get(cluster.gpu.architecture, 100) if linked else 100
    return replace(
        cluster,
        interconnect_bytes_per_s=gbit_per_s * 1e9 / 8,
        assumptions=(*cluster.assumptions, f"{gbit_per_s} Gb/s between nodes (--interconnect)"),
    )


def _rate(text: str) -> float:
    """Bytes per second of a network's name or rate."""
    fix = "write it as 200Gb/s, 25GB/s, 100GbE or ib-hdr (8x200Gb/s for eight adapters per node)"
    match = re.fullmatch(r"(?:(\d{1,3})\s*x\s*)?(.+)", text.strip(), flags=re.IGNORECASE)
    adapters, link = (int(match[1] or 1), match[2].strip()) if match else (1, text)
    known = _NETWORKS_GBIT_PER_S.get(re.sub(r"^(ib|infiniband)[ _-]?", "ib-", link.lower()))
    if known is not None:
        rate = known * 1e9 / 8
    else:
        number = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([gm](?:b|bit|ib)(?:/s|ps|e)?)", link, flags=re.IGNORECASE)
        if number is None:
            raise ClusterError(
                f"--interconnect {text!r} is no rate or network that is known",
                why="the time of every collective depends on it",
                fix=fix,
            )
        in_bytes = re.fullmatch(r"[GM]i?B(/s|ps)", number[2]) is not None
        rate = float(number[1]) * (1e9 if number[2][0] in "gG" else 1e6) / (1 if in_bytes else 8)
    rate *= adapters
    if not 1e8 <= rate <= 2e12:
        raise ClusterError(
            f"--interconnect {text!r} is {rate / 1e9:g} GB/s per node",
            why="networks carry between 0.1 and 2000 GB/s",
            fix=fix,
        )
    return rate


def parse_ram(text: str) -> tuple[int, str]:
    """What training may use of a node's RAM, in bytes, and a phrase for the answer that says how the text was read.

    `256GB` and `0.5TB` are the modules as they are sold, in powers of two: usable = size * (1 - KERNEL_MEMORY_SHARE).
    `200GiB` is what may be used, exactly (the RAM that `free` shows, or a container's limit); its phrase is "".
    """
    size = parse_size("--ram", text, least=10**9, most=64 * 2**40)
    if "i" in text.lower():
        return size, ""
    usable = int(size * (1 - KERNEL_MEMORY_SHARE))
    read = f"{size / 2**30:,.4g} GiB, of which the kernel keeps {KERNEL_MEMORY_SHARE:.0%}".replace("%", " %")
    return usable, f"--ram {text.strip()} read as {read}"


def parse_size(option: str, text: str, *, least: int, most: int) -> int:
    """Bytes of `256GB` or `256GiB`; GB are powers of two of memory, as it is sold, and powers of ten of a drive."""
    fix = f"write it as {option} {_SIZE_EXAMPLES[option]}"
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]+)", text.strip(), flags=re.IGNORECASE)
    unit = match[2].lower() if match else ""
    scale = (_UNITS if option == "--nvme" else _MEMORY_UNITS).get(unit if unit.endswith("b") else unit + "b")
    if match is None or scale is None:
        raise ClusterError(f"{option} {text!r} is no size", why="a number and a unit are needed", fix=fix)
    size = int(float(match[1]) * scale)
    if not least <= size <= most:
        raise ClusterError(
            f"{option} {text!r} is out of range",
            why=f"from {least / 1e9:g} GB to {most / 1e12:g} TB are accepted",
            fix=fix,
        )
    return size


def _check_text(option: str, text: str | None) -> None:
    if text is None:
        return
    if not text.strip():
        raise ClusterError(
            f"{option} is empty", why="nothing can be read from it", fix=f"leave {option} out or give a value"
        )
    # A path may be in any script; sizes, counts and names are ASCII, and full-width digits there are typing errors.
    ascii_part = text.rpartition(":")[2] if option == "--nvme" else text
    if len(text) > _LONGEST_TEXT or not ascii_part.isascii() or not text.isprintable():
        shown = text if len(text) <= 40 else text[:40] + "..."
        raise ClusterError(
            f"{option} {shown!r} cannot be read",
            why="it is too long or holds other than plain letters, digits and signs",
            fix=_GRAMMAR if option == "--gpus" else f"give {option} as the help shows it",
        )


DEFAULT_CPU_RANKS = 2
"""The fewest ranks that communicate."""


class ClusterOptions(NamedTuple):
    """`device` decides which of the others count: those of `parse_cluster`, or ranks and memory on the CPU."""

    gpus: str = "auto"
    ram: str | None = None
    nvme: str | None = None
    interconnect: str | None = None
    device: Literal["cuda", "cpu"] = "cuda"
    ranks: int | None = None
    memory: str | None = None
    """What each rank on the CPU may take; None: its share of the RAM."""

    def cluster(self) -> Cluster:
        """The machines. Raises ClusterError for what is unknown or contradictory."""
        if self.device == "cuda" and self.ranks is None and self.memory is None:
            return parse_cluster(self.gpus, ram=self.ram, nvme=self.nvme, interconnect=self.interconnect)
        if self.device != "cpu":
            raise ClusterError(
                f"{'--ranks' if self.ranks is not None else '--memory'} goes with --device cpu",
                why="a GPU is one rank and has its own memory",
                fix="pass --gpus, or add --device cpu",
            )
        if self.gpus != "auto":
            raise ClusterError(
                "--gpus says nothing about --device cpu",
                why="its ranks are processes on the host",
                fix=f"pass --ranks {DEFAULT_CPU_RANKS} in its place",
            )
        from .this_machine import cpu_cluster  # imported here: what knows this machine is of no use to most questions

        return cpu_cluster(self.ranks or DEFAULT_CPU_RANKS, self.memory_limit_bytes)

    def cluster_here(self, *, devices: int | None = None) -> Cluster:
        """The machines as `cluster` has them, whose ranks are to run on this one.

        devices: how many of the ranks do, where it is not a whole node's.

        Raises ClusterError also where this machine lacks the GPUs, before anything is started on them.
        """
        if self.device == "cpu" or self.ranks is not None or self.memory is not None:
            return self.cluster()
        from ...probes.this_machine import check_gpus

        check_gpus(devices or 1)  # first: `cluster` would advise to describe GPUs, which does not make them
        cluster = self.cluster()
        check_gpus(devices or cluster.gpus_per_node)
        return cluster

    @property
    def memory_limit_bytes(self) -> int | None:
        """What each rank on the CPU may take, None without a limit."""
        return None if self.memory is None else parse_size("--memory", self.memory, least=10**7, most=10**15)
