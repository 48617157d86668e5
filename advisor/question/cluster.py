"""From the options that describe machines (`MachineOptions`, `--device cpu`) to a `Cluster`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from ...estimators.errors import ClusterError
from ...estimators.hardware import (
    KERNEL_MEMORY_SHARE,
    Cluster,
    Gpu,
    assumes_sxm,
    find_gpu,
    gpu_of_memory,
    nearest_names,
)
from ...estimators.machine_parts import bridge_of, pcie_bytes_per_s
from ..text.units import counted_noun
from .machine_parts import NETWORK, drive_rates, parse_rate, with_host, with_links
from .options import MachineOptions, names_in

MOST_GPUS_PER_NODE, MOST_NODES = 16, 1024
"""Larger counts are assumed to be typing errors (DGX-2 has the most GPUs in one host, 16)."""

MOST_CPU_RANKS = 1024
"""Larger counts of processes on one host are assumed to be typing errors: no host has more cores."""

DEFAULT_CPU_RANKS = 2
"""Default number of ranks on the CPU: the fewest that communicate."""

_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_MEMORY_UNITS = {**_UNITS, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40, "pb": 2**50}
"""Units of memory, which is sold in powers of two; drives are sold in powers of ten."""

_NAME_AND_SIZE = re.compile(
    r"((?:[a-z]|\d{4}(?![\d.]|x(?!tx?[\W_])))[\w .-]*?\w)[\s_-]*(?<![\d.])(\d+(?:\.\d+)?)\s*gi?b",
    flags=re.IGNORECASE | re.ASCII,
)
"""Name and memory size, such as `RTX 3060-8GB`. The name has at least two characters; otherwise it could be the x
between counts. A longer number, or one before an x (not that of 7900XT), is no name but a wrong count."""

_OTHER_ORDER = re.compile(
    r"(?P<kind>.*\d[a-z]*)\s*[x*:]\s*(?P<count>\d{1,4})|(?P<count_first>\d{1,4})(?:\s*[*:]\s*|\s+)(?P<kind_last>.+)",
    re.IGNORECASE,
)
"""Other orders of kind and count: `H100x8`, `H100:8`, `8*H100`, `8 H100`. The kind has a digit, so that the x in
RTX9090 is not parsed as a separator."""

_SIZE = re.compile(r"(-?\d+(?:\.\d+)?)\s*(gi?b?)?", re.IGNORECASE | re.ASCII)

_SIZE_FIRST = re.compile(r"[\d.]+[KMGTP]i?B?:", re.IGNORECASE)

_THIS_MACHINE = ("all", "any", "cuda", "cuda:0", "gpu", "local", "default", "here")
"""Words that other tools have for the GPUs of this machine."""

_GRAMMAR = "write [NODESx]GPUSxKIND, such as 2x32GB, 8xA100-80GB or 4x8xH100, or auto for this machine"


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
    return None if memory is None else parse_size("--memory", memory, least=10**7, most=10**15)


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
    cluster = _this_machine() if gpus.strip().lower() == "auto" else _described(gpus)
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

        known = measured_hardware("cuda")
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


def counts_in(gpus: str) -> tuple[int | None, int | None]:
    """(nodes, GPUs per node) in a text of `--gpus`; None for a count that the text does not give."""
    first, second, _ = _parts(gpus)
    return (_count(first), _count(second)) if first and second else (None, _count(first) if first else None)


def _parts(gpus: str) -> tuple[str, str, str]:
    """(first count, second count, kind) of a text of `--gpus`; "" for a missing count."""
    text = gpus.strip()
    counts = re.match(r"(?:(-?\d+)\s*x\s*)?(?:(-?\d+)\s*x\s*)?", text, flags=re.IGNORECASE | re.ASCII)
    assert counts is not None
    return counts[1] or "", counts[2] or "", text[counts.end() :]


def _count(digits: str) -> int:
    """The count, or for a longer one a number beyond any that is accepted: `int` refuses thousands of digits."""
    return int(digits[:10])


def _described(gpus: str) -> Cluster:
    first, second, kind = _parts(gpus)
    nodes, per_node = (_count(first), _count(second)) if second else (1, _count(first or "1"))
    if not kind:
        raise ClusterError(
            f"--gpus {gpus[:40]!r} has no kind of GPU",
            why="memory and speed depend on it",
            fix=f"write --gpus {gpus.strip()}24GB, or a name: {gpus.strip()}A100-80GB" if first else _GRAMMAR,
        )
    if not 0 < nodes <= MOST_NODES or per_node < 1:
        node_count = f"{min(max(1, abs(nodes)), MOST_NODES)}x" if second else ""
        raise ClusterError(
            f"--gpus {gpus[:40]!r}",
            why=f"1 to {MOST_NODES} nodes and at least 1 GPU are needed",
            fix=f"write --gpus {node_count}{max(1, abs(per_node))}x{kind}",
        )
    if per_node > MOST_GPUS_PER_NODE:
        write = f"nodes x GPUs x kind, such as {min(MOST_NODES, -(-per_node // 8))}x8x{kind}"
        if kind.strip().isdigit():  # 4090x2
            write = f"--gpus {kind.strip()}xRTX{per_node}"
        raise ClusterError(
            f"--gpus {gpus[:40]!r} has {(second or first)[:40]} GPUs in one node",
            why=f"a node holds at most {MOST_GPUS_PER_NODE}",
            fix=f"write {write}",
        )
    gpu, assumptions = _gpu_of_kind(kind, gpus)
    return Cluster(nodes=nodes, gpus_per_node=per_node, gpu=gpu, assumptions=assumptions)


def _gpu_of_kind(kind: str, gpus: str) -> tuple[Gpu, tuple[str, ...]]:
    size = _SIZE.fullmatch(kind.strip())
    if size and size[2]:
        gpu = gpu_of_memory(float(size[1]))
        known = f"GPUs of {gpu.nominal_gb} GB have the speed of the {gpu.name} (--gpus names no model)"
        return gpu, (known,)
    if size and len(size[1]) < 4:
        number, is_count = size[1], gpus.strip() == size[1] and size[1] in map(str, range(17))
        raise ClusterError(
            f"--gpus {gpus!r} ends in a number without a unit",
            why="it could be a count or a memory size",
            fix=f"write --gpus {number}x24GB for {number} GPUs of 24 GB, or --gpus {number}GB for one of {number} GB"
            if is_count
            else f"write --gpus {gpus.strip()}GB for memory",
        )
    if kind.strip().lower() in _THIS_MACHINE:
        raise ClusterError(f"--gpus {gpus!r} names no GPU", fix="write --gpus auto for those of this machine")
    try:
        gpu = find_gpu(kind)
    except ClusterError as error:
        named = _NAME_AND_SIZE.fullmatch(kind.strip())
        if named is not None:
            return _gpu_of_name_and_memory(named[1], float(named[2]))
        same = {each.strip() for each in gpus.split(",")}
        if len(same) == 1 and "," in gpus:
            fix = f"write --gpus {gpus.count(',') + 1}x{same.pop()}"
            raise ClusterError(f"--gpus {gpus!r} lists the cards one by one", fix=fix) from None
        other = _OTHER_ORDER.fullmatch(gpus.strip())
        if other is not None and kind == gpus.strip():  # no count was found
            count, kind = other["count"] or other["count_first"], other["kind"] or other["kind_last"]
            kind = kind.strip() if _SIZE.fullmatch(kind.strip()) else _one_of_name(kind.strip())
            raise ClusterError(f"--gpus {gpus!r} is not GPUs x kind", fix=f"write --gpus {count}x{kind}") from None
        if (one := _one_of_name(kind)) != kind:
            fix = f"write --gpus {gpus.removesuffix(kind)}{one} or another of them"
            raise ClusterError(error.what, why=error.why, fix=fix) from None
        if (part := re.fullmatch(r"(\d*[.,]\d+)\s*x\s*(.+)", kind.strip())) is not None:
            number = ceil(float(part[1].replace(",", ".")))
            what = f"--gpus {gpus[:40]!r}: {part[1]} is not a whole number of GPUs"
            raise ClusterError(what, fix=f"write --gpus {number}x{part[2]}") from None
        if error.fix.startswith("nearest: ") and (near := nearest_names(kind, least=0.65)):
            counts = gpus.removesuffix(kind)
            names = ", ".join(f"{counts}{name.replace(' ', '-')}" for name in near)
            fix = f"write --gpus {names}, or {counts}24GB for the memory alone"
            raise ClusterError(error.what, why=error.why, fix=fix) from None
        raise
    return gpu, ((f"{kind.strip()} means the {gpu.name}",) if assumes_sxm(kind, gpu) else ())


def _one_of_name(kind: str) -> str:
    """The last of several GPUs with this name, such as A100-SXM4-80GB; any other name as it is."""
    try:
        find_gpu(kind)
    except ClusterError as error:
        found = re.fullmatch("name one of them, such as --gpus (.+)", error.fix)
        return found[1] if found else kind
    return kind


def _gpu_of_name_and_memory(name: str, gigabytes: float) -> tuple[Gpu, tuple[str, ...]]:
    """An unknown card, or a known card with another memory size. Its speed is that of the card with its name, else that
    of a card of its size. Raises ClusterError for a name of several cards of other sizes."""
    gpu = gpu_of_memory(gigabytes)
    try:
        gpu = replace(find_gpu(name), memory_bytes=gpu.memory_bytes, nominal_gb=gpu.nominal_gb, assumed=True)
    except ClusterError as error:
        if (one := _one_of_name(name)) != name:
            fix = f"write --gpus {one}, or the memory alone: --gpus {gigabytes:g}GB"
            raise ClusterError(f"no {name} of {gigabytes:g} GB is known", why=error.what, fix=fix) from None
    taken = f"{name} of {gpu.nominal_gb} GB, which is not in the table of GPUs, has the speed of the {gpu.name}"
    return gpu, (taken,)


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
    size = parse_size("--ram", text, least=10**9, most=64 * 2**40)
    if "i" in text.lower():
        return size, ""
    usable = int(size * (1 - KERNEL_MEMORY_SHARE))
    return usable, (
        f"--ram {text.strip()} is taken as {size / 2**30:,.4g} GiB, minus {100 * KERNEL_MEMORY_SHARE:.0f} % for the "
        "kernel"
    )


def parse_size(option: str, text: str, *, least: int, most: int) -> int:
    """Bytes of `256GB` or `256GiB`. A GB of memory is 2**30 bytes, a GB of a drive 10**9 bytes."""
    example = f"{text.strip()}GB" if text.strip().isdigit() else "200GiB"
    fix = f"write it as {option} {'/mnt/nvme:2TB' if option == '--nvme' else example}"
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]+)", text.strip(), flags=re.IGNORECASE | re.ASCII)
    unit = match[2].lower() if match else ""
    scale = (_UNITS if option == "--nvme" else _MEMORY_UNITS).get(unit if unit.endswith("b") else unit + "b")
    if match is None or scale is None:
        what = f"{option} {text[:40]!r} is not a size"
        raise ClusterError(what, why="a number and a unit are needed", fix=fix)
    size = int(float(match[1]) * scale)
    if not least <= size <= most:
        raise ClusterError(
            f"{option} {text!r} is out of range",
            why=f"from {least / 1e9:g} GB to {most / 1e12:g} TB are accepted",
            fix=fix,
        )
    return size
