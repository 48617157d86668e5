"""Options of machines: how they are read, what is assumed, what is refused, and what must be on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.question.cluster import build_cluster, cluster_here, machine_arguments, parse_cluster
from ds_advise.advisor.question.gpu_text import meant_gpus
from ds_advise.estimators import hardware
from ds_advise.estimators.errors import ClusterError
from ds_advise.estimators.gpu_catalogue import gpus, same_size_gpus
from ds_advise.estimators.hardware import (
    KERNEL_MEMORY_SHARE,
    machine_assumptions,
    network_bytes_per_s,
    nvme_read_bytes_per_s,
    nvme_write_bytes_per_s,
)
from ds_advise.estimators.machine_parts import bridge_of
from ds_advise.probes.machine import cpu_cores, host_memory_bytes

GIB = 2**30
Driver = Callable[..., None]


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "name"),
    [
        ("2x32GB", 1, 2, "RTX 5000 Ada"),
        ("8xA100-80GB", 1, 8, "A100-SXM4-80GB"),
        ("4x8xH100", 4, 8, "H100-SXM5"),
        ("4090", 1, 1, "RTX 4090"),
        ("2 X RTX 4090", 1, 2, "RTX 4090"),
        ("24gib", 1, 1, "RTX 3090"),
        (" 2 x 4 x 24 GB ", 2, 4, "RTX 3090"),
        ("7900XTX", 1, 1, "RX 7900 XTX"),
        ("2x7900XTX", 1, 2, "RX 7900 XTX"),
    ],
)
def test_gpus_are_nodes_times_gpus_times_kind(text: str, nodes: int, per_node: int, name: str) -> None:
    """Counts may be left out from the left; a kind is a name, which may have a number before an x, or a memory size."""
    cluster = parse_cluster(text)
    assert (cluster.nodes, cluster.gpus_per_node, cluster.gpu.name) == (nodes, per_node, name)
    assert cluster.world_size == nodes * per_node
    assert cluster.host_memory_bytes_per_node is None and not cluster.is_this_machine


def test_assumptions_are_sentences_of_the_answer() -> None:
    """The speed of a card of unknown name, and a network without effect."""
    cluster = parse_cluster("2x32GB")
    assert cluster.gpu.assumed
    assert any("32 GB" in sentence and cluster.gpu.name in sentence for sentence in cluster.assumptions)
    assert parse_cluster("RTX4090").assumptions == ()
    alone = parse_cluster("8xL40S", interconnect="200Gb/s")
    assert alone.interconnect_bytes_per_s is None and "no effect" in alone.assumptions[-1]


def test_the_network_between_nodes_is_assumed_by_the_gpu() -> None:
    """Unless it is stated; the answer says so."""
    known = {"2x8xV100-32GB": 100, "2x8xA100-SXM4-80GB": 400, "2x8xH100-SXM5": 3200, "2x8xRTX4090": 100}
    for spec, gbit_per_s in known.items():
        assert network_bytes_per_s(parse_cluster(spec)) == gbit_per_s * 1e9 / 8
        assert f"{gbit_per_s} Gb/s between nodes" in machine_assumptions(parse_cluster(spec))
    stated = parse_cluster("2x8xA100-SXM4-80GB", interconnect="8x200Gb/s")
    assert network_bytes_per_s(stated) == 200e9 and not any("Gb/s" in each for each in machine_assumptions(stated))


@pytest.mark.parametrize(
    ("texts", "gigabytes_per_s"),
    [
        ("200Gb/s|25GB/s|25 GBps|25GB", 25),
        ("400gbps|4 x 100Gb/s", 50),
        ("100 Gbps|100gbe", 12.5),
        ("8x400Gb/s", 400),
        ("2500Mb/s", 0.3125),
    ],
)
def test_rates_of_a_network(texts: str, gigabytes_per_s: float) -> None:
    """GB/s is bytes; Gb/s, Gbps and GbE are bits."""
    for text in texts.split("|"):
        assert parse_cluster("2x8xH100", interconnect=text).interconnect_bytes_per_s == gigabytes_per_s * 1e9


@pytest.mark.parametrize(("text", "size"), [("256GB", 256), ("0.5TB", 512), ("512g", 512), ("1TB", 1024)])
def test_ram_is_read_as_it_is_sold(text: str, size: int) -> None:
    """In powers of two, less the kernel's share; the answer says so. GiB are the usable size."""
    cluster = parse_cluster("2x32GB", ram=text)
    assert cluster.host_memory_bytes_per_node == int(size * GIB * (1 - KERNEL_MEMORY_SHARE))
    assert f"{size:,} GiB, minus 2 % for the kernel" in cluster.assumptions[-1]
    usable = parse_cluster("2x32GB", ram=f"{size}GiB")
    assert usable.host_memory_bytes_per_node == size * GIB and usable.assumptions == parse_cluster("2x32GB").assumptions


@pytest.mark.parametrize(
    ("kind", "memory", "as_fast_as"),
    [("RTX3060-8GB", 8, "RTX 3060"), ("RTX 4090 48GB", 48, "RTX 4090"), ("Z100-32GB", 32, "RTX 5000 Ada")],
)
def test_a_memory_size_in_a_name_is_believed(kind: str, memory: int, as_fast_as: str) -> None:
    """The memory of an unknown variant of a card; its speed is assumed."""
    cluster = parse_cluster(f"2x{kind}")
    assert (cluster.gpu.nominal_gb, cluster.gpu.name, cluster.gpu.assumed) == (memory, as_fast_as, True)
    assert cluster.gpu.memory_bytes == int(memory * GIB * 0.98)
    assert f"has the speed of the {as_fast_as}" in cluster.assumptions[-1]
    assert not parse_cluster("RTX3060-12GB").gpu.assumed
    assert parse_cluster("2x2x7900XT-24GB").gpu.nominal_gb == 24, "the X after four digits may be of a name"


def test_nvme_is_a_path_and_a_size_or_a_size() -> None:
    """The path may be in any script."""
    cluster = parse_cluster("2x32GB", nvme="/mnt/数据:2TB")
    assert (cluster.nvme_path, cluster.nvme_bytes_per_node) == ("/mnt/数据", 2 * 10**12)
    cluster = parse_cluster("2x32GB", nvme="500GB")
    assert (cluster.nvme_path, cluster.nvme_bytes_per_node) == ("", 5 * 10**11)
    assert any("NVMe that reads" in phrase for phrase in machine_assumptions(cluster))


@pytest.mark.parametrize(
    ("rates", "read", "write"),
    [
        ("7GB/s,5000MB/s", 7e9, 5e9),
        ("20GB/s", 20e9, 20e9),
        ("sata", 0.5e9, 0.39e9),
        ("4xPCIe4", 14.76e9, 12.72e9),
    ],
)
def test_the_rates_of_a_drive_are_stated_with_it(rates: str, read: float, write: float) -> None:
    """They replace the assumed ones, and the answer no longer names an assumption."""
    cluster = parse_cluster("2x32GB", nvme=f"/mnt/nvme:2TB@{rates}")
    assert (cluster.nvme_path, cluster.nvme_bytes_per_node) == ("/mnt/nvme", 2 * 10**12)
    assert (nvme_read_bytes_per_s(cluster), nvme_write_bytes_per_s(cluster)) == pytest.approx((read, write))
    assert not any("NVMe" in phrase for phrase in machine_assumptions(cluster))


@pytest.mark.parametrize(
    ("gpus", "link", "kind", "peer", "pcie"),
    [
        ("2xRTX3090", "nvlink", "nvlink", 56.25, 31.5),
        ("2xRTX3090", "NVLink:50GB/s,PCIe3x8", "nvlink", 50, 7.877),
        ("4xA6000", "nvlink", "nvlink", 56.25, 31.5),
        ("4xMI210", "infinity-fabric", "infinity fabric", 150, 31.5),
        ("3xMI210", "xgmi", "infinity fabric", 150, 31.5),
        ("2xRTX4090", "pcie4x8", "pcie", 15.75, 15.75),
        ("2xRTX4090", "pcie5", "pcie", 31.5, 31.5),
        ("2xRTX4090", "pcie:12GB/s", "pcie", 12, 12),
        ("8xH100", "pcie4", "nvlink", 450, 31.5),
    ],
)
def test_links_inside_a_node_can_be_stated(gpus: str, link: str, kind: str, peer: float, pcie: float) -> None:
    """Bridges, and the slot: no card is faster than its own PCIe."""
    cluster = parse_cluster(gpus, link=link)
    gpu = cluster.gpu
    assert gpu.peer_link == kind and not any("PCIe" in each for each in machine_assumptions(cluster))
    assert (gpu.peer_bytes_per_s, gpu.pcie_bytes_per_s) == pytest.approx((peer * 1e9, pcie * 1e9), rel=1e-3)
    assert any("join 2 cards" in each for each in cluster.assumptions) == (gpus == "4xA6000")


@pytest.mark.parametrize(
    ("gpus", "host", "cores", "memory"),
    [
        ("2xRTX4090", "", 16, 51.2),
        ("2xRTX4090", "16cores,2xDDR5-5600", 16, 89.6),
        ("2xRTX4090", "server", 32, 200),
        ("8xA100-80GB", "2x64cores,2x204.8GB/s", 128, 200),
        ("8xA100-80GB", "2x64cores,2x8xDDR4-3200", 128, 200),
        ("8xA100-80GB", "96 cores", 96, 200),
        ("1xGH200-96GB", "", 72, 500),
        ("4xGH200-96GB", "", 288, 2000),
        ("2xGB200", "", 72, 500),
        ("1xGH200-96GB", "gh200,384GB/s", 72, 384),
    ],
)
def test_the_host_is_stated_or_that_of_the_gpu(gpus: str, host: str, cores: int, memory: float) -> None:
    """Published steps on two sockets are no faster than with 200 GB/s."""
    cluster = parse_cluster(gpus, host=host or None)
    found = hardware.cpu_cores(cluster), hardware.dram_bytes_per_s(cluster) / 1e9
    assert found == pytest.approx((cores, memory))
    assumed = any("host memory" in each for each in machine_assumptions(cluster))
    assert assumed == (host in ("", "96 cores"))


@pytest.mark.parametrize(
    "options",
    [
        {"gpus": "4xMI210", "link": "infinity-fabric", "host": "192cores,230GB/s", "ram": "200GiB"},
        {"gpus": "2x8xH100-SXM5", "interconnect": "8x200Gb/s", "nvme": "/nvme:2TB@4xpcie4"},
        {"gpus": "2xRTX4090", "link": "pcie:12GB/s", "nvme": "500GB", "host": "desktop"},
    ],
)
def test_a_cluster_is_described_by_options(options: dict[str, Any]) -> None:
    """Which mean the same when they are read again."""
    cluster = parse_cluster(**options)
    assert parse_cluster(**machine_arguments(cluster)) == cluster


def test_bridges_are_of_cards_that_pcie_joins_otherwise() -> None:
    bridges = {gpu.name: bridge_of(gpu.name) for gpu in gpus()}
    for gpu in gpus():
        bridge = bridges[gpu.name]
        assert bridge is None or (gpu.peer_link == "pcie" and bridge.bytes_per_s > 1.5 * (gpu.pcie_bytes_per_s or 0))
    assert sum(bridge is not None for bridge in bridges.values()) == 20


BAD = {
    "gpus": "| |0x32GB|-1x32GB|2x0x32GB|2x|x32GB|2x0GB|2x-32GB|2x32|8|2x9999GB|99999999999x8xH100|64xH100|2x3x4x32GB|"
    f"1.5x32GB|1e3xH100|A100|2xfoo|\uff12x32GB|2\xd732GB|{'9' * 300}xH100|{'9' * 20}x80GB|{'9' * 5000}x80GB|"
    "1234567890x8x80GB|1x2x99999999999x80GB|12345.5x80GB|99999999999xTesla V100-32GB|2x3x4567xTesla V100-32GB",
    "ram": "|256|GB|0GB|-5GB|1e9GB|999999TB|256QB|\u0662GB|nan GB",
    "nvme": "|/mnt|:|/mnt:|/mnt:0GB|/mnt:1QB|99999999PB|/mnt:2TB@|/mnt:2TB@fast|/mnt:2TB@7GB/s,|/mnt:2TB@0GB/s|"
    "/mnt:2TB@99xsata|/mnt:2TB@0xsata|/mnt:2TB@pcie9",
    "link": "|nvlink4|pcie2|pcie4x3|nvlink:|nvlink:50|pcie|pciex8|pcie4,|pcie4:0GB/s|rope",
    "host": "|64|GB/s|0cores|9999cores|64cores,|512GB|9xDDR9-3200|2x|0GB/s|toaster",
    "interconnect": "|200|200g|fast|0Gb/s|-1Gb/s|1e9Gb/s|999999GB/s|ib|roce|0x200Gb/s",
}


@pytest.mark.parametrize(("option", "text"), [(option, text) for option in BAD for text in BAD[option].split("|")])
def test_bad_input_is_one_clear_error(option: str, text: str) -> None:
    """Zero, negative, absurd, non-ASCII or incomplete: one line with the value and the fix."""
    with pytest.raises(ClusterError) as error:
        parse_cluster(**{"gpus": "2x8xH100", option: text})
    assert error.value.what and error.value.fix
    assert "\n" not in str(error.value) and len(error.value.what) < 400


@pytest.mark.parametrize(
    ("texts", "meant"),
    [
        ("H100x8|H100 x 8|H100:8|H100*8|8*H100|8:H100|8H100|8 H100|7.5xH100", "8xH100"),
        ("4x8H100|4x8 H100", "4x8xH100"),
        ("64 H100", "8x8xH100"),
        ("24GB,24GB|2\xd724GB|2x24000MB|2x24564MiB", "2x24GB"),
        ("4090x2", "2x4090"),
        ("A100x2|2 A100", "2xA100-SXM4-80GB"),
    ],
)
def test_another_form_of_counts_and_kind_is_corrected(texts: str, meant: str) -> None:
    """What is advised describes the machines."""
    for text in texts.split("|"):
        with pytest.raises(ClusterError) as error:
            parse_cluster(text)
        assert error.value.fix == f"write --gpus {meant}"
    assert meant_gpus(meant) == meant and parse_cluster(meant).world_size > 1


@pytest.mark.parametrize("text", ["gpt4", "4x4090TI", "Qwen2.5-7B", "2", "80", "2x32", "foo", "auto", ""])
def test_a_text_without_a_kind_describes_no_gpus(text: str) -> None:
    """Also one that is nearly the name of a kind."""
    assert meant_gpus(text) == ""


def test_auto_asks_the_driver(driver: Driver) -> None:
    """Count, kind, memory, RAM and cores of this machine."""
    driver(("NVIDIA A100-SXM4-80GB", 80.0), count=4)
    cluster = parse_cluster("auto")
    assert (cluster.nodes, cluster.gpus_per_node, cluster.gpu.name) == (1, 4, "A100-SXM4-80GB")
    assert cluster.is_this_machine and not cluster.gpu.assumed
    assert cluster.host_memory_bytes_per_node == host_memory_bytes()
    assert cluster.cpu_cores_per_node == cpu_cores()
    assert parse_cluster("auto", ram="64GiB").host_memory_bytes_per_node == 64 * GIB


def test_auto_asks_the_driver_for_the_links(driver: Driver) -> None:
    """The slots, and bridges of the cards that have them. SXM cards keep NVLink, Grace's keep NVLink-C2C."""
    driver(("NVIDIA GeForce RTX 3090", 24.0), count=2, slot=(4, 8), nvlinks=4)
    bridged = parse_cluster("auto")
    assert (bridged.gpu.peer_link, bridged.gpu.peer_bytes_per_s) == ("nvlink", 56.25e9)
    assert bridged.gpu.pcie_bytes_per_s == pytest.approx(15.75e9, rel=1e-3) and bridged.links_are_known
    driver(("NVIDIA GeForce RTX 3090", 24.0), count=2, slot=(4, 16))
    assert parse_cluster("auto").gpu.peer_link == "pcie"
    for name, memory, pcie in (("NVIDIA H100 80GB HBM3", 80.0, 63e9), ("NVIDIA GH200-96GB", 96.0, 450e9)):
        driver((name, memory), slot=(5, 16), nvlinks=18)
        gpu = parse_cluster("auto").gpu
        assert (gpu.peer_link, gpu.pcie_bytes_per_s) == ("nvlink", pytest.approx(pcie, rel=1e-3))


def test_auto_takes_the_memory_from_the_driver(driver: Driver) -> None:
    """Of cards with one name, of unknown and of modified ones."""
    driver(("NVIDIA GeForce RTX 4060 Ti", 16.0))
    assert parse_cluster("auto").gpu.name == "RTX 4060 Ti 16GB"
    driver(("NVIDIA Future 9000", 60.0))
    cluster = parse_cluster("auto")
    assert cluster.gpu.assumed and cluster.gpu.name == "NVIDIA Future 9000"
    assert same_size_gpus(cluster.gpu) == (), "the driver names it"
    assert 0.95 < cluster.gpu.memory_bytes / (60 * GIB) < 1
    assert any("NVIDIA Future 9000" in sentence for sentence in cluster.assumptions)
    driver(("NVIDIA GeForce RTX 4090", 48.0))
    assert 0.95 < parse_cluster("auto").gpu.memory_bytes / (48 * GIB) < 1


def test_auto_obeys_cuda_visible_devices(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices count up to the first invalid one, as for CUDA."""
    driver(("NVIDIA GeForce RTX 4090", 24.0), ("NVIDIA GeForce RTX 3090", 24.0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,-1,0")
    cluster = parse_cluster("auto")
    assert (cluster.gpus_per_node, cluster.gpu.name) == (1, "RTX 3090")


@pytest.mark.parametrize(
    ("devices", "visible", "fails"),
    [
        ([], None, False),
        ([("NVIDIA L4", 24.0)], "", False),
        ([("NVIDIA L4", 24.0)], None, True),
        ([("NVIDIA L4", 24.0)], "7", False),
        ([("NVIDIA L4", 24.0), ("NVIDIA T4", 16.0)], None, False),
    ],
)
def test_auto_without_equal_gpus_is_an_error(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    devices: list[tuple[str, float]],
    visible: str | None,
    fails: bool,
) -> None:
    """No GPU, none visible, no driver, a missing one, or unequal ones."""
    driver(*devices, fails=fails)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ClusterError) as error:
        parse_cluster("auto")
    assert "--gpus" in error.value.fix


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "1000000000"}, 10**9),
        ({"memory.max": "max", "a/b/memory.max": "max", "a/memory.max": "2000000000"}, 2 * 10**9),
        ({"memory/memory.limit_in_bytes": "3000000000"}, 3 * 10**9),
        ({"memory.max": "max"}, None),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ({}, None),
    ],
)
def test_the_containers_memory_limit_counts(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    """cgroup v2 (its own and every one above), v1, and none."""
    psutil = pytest.importorskip("psutil")
    written = {f"sys/fs/cgroup/{name}": text for name, text in files.items()} | {"proc/self/cgroup": "0::/a/b"}
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n", encoding="ascii")
    assert host_memory_bytes(tmp_path) == (limit or psutil.virtual_memory().total)


def test_the_containers_cpu_quota_counts(tmp_path: Path) -> None:
    """Half a core's quota is one core; no quota leaves the affinity."""
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    quota, everything = tmp_path / "sys/fs/cgroup/cpu.max", cpu_cores(tmp_path)
    quota.write_text("50000 100000\n", encoding="ascii")
    assert cpu_cores(tmp_path) == 1
    quota.write_text("max 100000\n", encoding="ascii")
    assert cpu_cores(tmp_path) == everything


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 2}, "--ranks needs --device cpu"),
        ({"ranks": 999_999_999, "device": "cpu"}, "--ranks 999999999 are too many"),
        ({"memory": "2GB"}, "--memory needs --device cpu"),
        ({"device": "cpu", "gpus": "2x24GB"}, "--gpus does not apply"),
    ],
)
def test_options_of_the_cpu_go_with_it(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        build_cluster(options)


@pytest.mark.parametrize("gpus", [[], ["--gpus", "2x24GB"]], ids=["auto", "described"])
@pytest.mark.parametrize(
    "words",
    ["probe ds_config.json --model gpt2", "launch ds_config.json", "train --model gpt2 --data a.jsonl", "gpt2 --probe"],
)
def test_no_ranks_are_started_on_missing_gpus(
    tmp_path: Path,
    own_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    gpus: list[str],
) -> None:
    """One line with the reason and the fix; nothing is stored or written."""
    (tmp_path / "ds_config.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 1}))
    (tmp_path / "train.py").write_text("import deepspeed\n")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = set(tmp_path.iterdir())
    script = ["--", "train.py"] if words.startswith("launch") else []
    assert run([*words.split(), *gpus, *script]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("ds-advise: this machine has no GPU: ") and printed.count("\n") == 1
    assert "--device cpu" in printed and "dry-run" in printed
    assert "2x24GB" not in printed  # describing GPUs does not help
    assert not own_store.exists() and set(tmp_path.iterdir()) == before


def test_ranks_need_the_gpus_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank that runs alone needs one; several nodes are not this machine."""
    monkeypatch.setattr("ds_advise.probes.machine.query_nvml", lambda *_: 1)
    with pytest.raises(ClusterError, match="this machine has only 1 of these GPUs"):
        cluster_here({"gpus": "2x24GB"})
    assert cluster_here({"gpus": "2x24GB"}, devices=1).gpus_per_node == 2
    monkeypatch.setattr("ds_advise.probes.machine.query_nvml", lambda *_: 8)
    (tmp_path / "ds_config.json").write_text("{}")
    assert run(["probe", str(tmp_path / "ds_config.json"), "--model", "gpt2", "--gpus", "2x8xH100"]) == 2
    assert "--solo" in capsys.readouterr().err
