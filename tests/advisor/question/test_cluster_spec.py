"""`--gpus`, `--ram`, `--nvme` and `--interconnect`: what is understood, what is assumed, what is refused."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.estimators.errors import ClusterError
from ds_advise.estimators.hardware.cluster import KERNEL_MEMORY_SHARE, Cluster
from ds_advise.probes.machine import cpu_cores, host_memory_bytes
from hypothesis import given
from hypothesis import strategies as st

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "name"),
    [
        ("2x32GB", 1, 2, "RTX 4080 SUPER"),
        ("8xA100-80GB", 1, 8, "A100-SXM4-80GB"),
        ("4x8xH100", 4, 8, "H100-SXM5"),
        ("RTX4090", 1, 1, "RTX 4090"),
        ("4090", 1, 1, "RTX 4090"),
        ("2x4090", 1, 2, "RTX 4090"),
        ("2 X RTX 4090", 1, 2, "RTX 4090"),
        ("8xMI300X", 1, 8, "MI300X"),
        ("MI300X", 1, 1, "MI300X"),
        ("24gib", 1, 1, "RTX 3090"),
        (" 2 x 4 x 24 GB ", 2, 4, "RTX 3090"),
    ],
)
def test_gpus_are_nodes_times_gpus_times_kind(text: str, nodes: int, per_node: int, name: str) -> None:
    """Counts may be left out from the left; a kind is a name or a memory size."""
    cluster = parse_cluster(text)
    assert (cluster.nodes, cluster.gpus_per_node, cluster.gpu.name) == (nodes, per_node, name)
    assert cluster.host_memory_bytes_per_node is None
    assert not cluster.is_this_machine


def test_a_bare_size_says_whose_speed_it_borrows() -> None:
    """The assumption is a sentence of the answer."""
    cluster = parse_cluster("2x32GB")
    assert cluster.gpu.assumed
    assert any("32 GB" in sentence and cluster.gpu.name in sentence for sentence in cluster.assumptions)
    assert parse_cluster("RTX4090").assumptions == ()


def test_several_nodes_without_an_interconnect_get_a_stated_one() -> None:
    """The assumed network goes with the GPU and is said; a given one is not."""
    known = {"2x8xV100-32GB": 100, "2x8xA100-SXM4-80GB": 400, "2x8xH100-SXM5": 3200, "2x8xRTX4090": 100}
    for spec, gbit_per_s in known.items():
        assumed = parse_cluster(spec)
        assert assumed.interconnect_bytes_per_s == gbit_per_s * 1e9 / 8
        assert any(f"{gbit_per_s} Gb/s between nodes (--interconnect)" in said for said in assumed.assumptions)
    given_one = parse_cluster("2x8xA100-SXM4-80GB", interconnect="8x200Gb/s")
    assert given_one.interconnect_bytes_per_s == 200e9
    assert given_one.assumptions == ()


def test_an_interconnect_without_effect_is_said() -> None:
    """One node has no network between nodes."""
    cluster = parse_cluster("8xL40S", interconnect="ib-hdr")
    assert cluster.interconnect_bytes_per_s is None
    assert any("no effect" in sentence for sentence in cluster.assumptions)


@pytest.mark.parametrize(
    ("text", "gigabytes_per_s"),
    [
        ("200Gb/s", 25),
        ("400gbps", 50),
        ("100 Gbps", 12.5),
        ("25GB/s", 25),
        ("25 GBps", 25),
        ("10GbE", 1.25),
        ("100gbe", 12.5),
        ("ib-hdr", 25),
        ("IB NDR", 50),
        ("infiniband edr", 12.5),
        ("8xib-ndr", 400),
        ("4 x 100Gb/s", 50),
        ("2500Mb/s", 0.3125),
    ],
)
def test_rates_of_a_network(text: str, gigabytes_per_s: float) -> None:
    """GB/s is bytes; Gb/s, Gbps and GbE are bits; InfiniBand goes by its generation."""
    assert parse_cluster("2x8xH100", interconnect=text).interconnect_bytes_per_s == gigabytes_per_s * 1e9


@pytest.mark.parametrize(
    ("text", "size"),
    [("256GB", 256), ("0.5TB", 512), ("512g", 512), ("1TB", 1024)],
)
def test_ram_is_read_as_it_is_sold(text: str, size: int) -> None:
    """In powers of two, less what the kernel keeps of it; the answer says so."""
    cluster = parse_cluster("2x32GB", ram=text)
    assert cluster.host_memory_bytes_per_node == int(size * GIB * (1 - KERNEL_MEMORY_SHARE))
    assert f"{size:,} GiB, of which the kernel keeps 2 %" in cluster.assumptions[-1]


@pytest.mark.parametrize(("text", "size"), [("200GiB", 200 * GIB), ("1 TiB", 2**40)])
def test_ram_in_gib_is_what_may_be_used(text: str, size: int) -> None:
    """Nothing is taken off a container's limit, and nothing needs saying."""
    cluster = parse_cluster("2x32GB", ram=text)
    assert cluster.host_memory_bytes_per_node == size
    assert cluster.assumptions == parse_cluster("2x32GB").assumptions


@pytest.mark.parametrize(
    ("kind", "memory", "as_fast_as"),
    [("RTX3060-8GB", 8, "RTX 3060"), ("RTX 4090 48GB", 48, "RTX 4090"), ("Z100-32GB", 32, "RTX 4080 SUPER")],
)
def test_a_spelled_memory_is_believed(kind: str, memory: int, as_fast_as: str) -> None:
    """Of a card that is not known with it; its speed is assumed, and that is said."""
    cluster = parse_cluster(f"2x{kind}")
    assert (cluster.gpu.nominal_gb, cluster.gpu.name, cluster.gpu.assumed) == (memory, as_fast_as, True)
    assert cluster.gpu.memory_bytes == int(memory * GIB * 0.98)
    assert f"as fast as the {as_fast_as}" in cluster.assumptions[-1]
    assert not parse_cluster("RTX3060-12GB").gpu.assumed


def test_nvme_is_a_path_and_a_size_or_a_size() -> None:
    """The path may be in any script."""
    cluster = parse_cluster("2x32GB", nvme="/mnt/数据:2TB")
    assert (cluster.nvme_path, cluster.nvme_bytes_per_node) == ("/mnt/数据", 2 * 10**12)
    cluster = parse_cluster("2x32GB", nvme="500GB")
    assert (cluster.nvme_path, cluster.nvme_bytes_per_node) == ("", 5 * 10**11)


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"gpus": text}
            for text in (
                "",
                " ",
                "0x32GB",
                "-1x32GB",
                "2x0x32GB",
                "2x",
                "x32GB",
                "2x0GB",
                "2x-32GB",
                "2x32",
                "8",
                "2x9999GB",
                "99999999999x8xH100",
                "64xH100",
                "2x3x4x32GB",
                "1.5x32GB",
                "1e3xH100",
                "A100",
                "2xfoo",
                "\uff12x32GB",
                "2\xd732GB",
                "2x32GB\n",
                "9" * 300 + "xH100",
            )
        ),
        *(
            {"ram": text}
            for text in ("", "256", "GB", "0GB", "-5GB", "1e9GB", "999999TB", "256QB", "\u0662GB", "nan GB")
        ),
        *({"nvme": text} for text in ("", "/mnt", ":", "/mnt:", "/mnt:0GB", "/mnt:1QB", "99999999PB", "/mnt\x00:1TB")),
        *(
            {"gpus": "2x8xH100", "interconnect": text}
            for text in (
                "",
                "200",
                "200g",
                "fast",
                "0Gb/s",
                "-1Gb/s",
                "1e9Gb/s",
                "999999GB/s",
                "ib",
                "roce",
                "0x200Gb/s",
            )
        ),
    ],
)
def test_bad_input_is_one_clear_error(options: dict[str, str]) -> None:
    """Zero, negative, absurd, non-ASCII or incomplete: one line that names the value, and what to write instead."""
    with pytest.raises(ClusterError) as error:
        parse_cluster(**{"gpus": "2x32GB", **options})
    assert error.value.what
    assert error.value.fix
    assert "\n" not in str(error.value)
    assert len(error.value.what) < 400


@pytest.mark.parametrize("text", ["H100x8", "H100 x 8", "H100:8", "H100*8", "8*H100", "8:H100"])
def test_a_count_in_another_place_is_told_where_it_belongs(text: str) -> None:
    with pytest.raises(ClusterError) as error:
        parse_cluster(text)
    assert error.value.fix == "write --gpus 8xH100"


@given(
    gpus=st.text(max_size=30), ram=st.text(max_size=12), nvme=st.text(max_size=12), interconnect=st.text(max_size=12)
)
def test_any_text_is_a_cluster_or_a_cluster_error(gpus: str, ram: str, nvme: str, interconnect: str) -> None:
    """Whatever is typed, nothing else escapes."""
    if gpus.strip().lower() == "auto":
        return
    for options in (
        {"gpus": gpus},
        {"gpus": f"2x{gpus}"},
        {"gpus": "2x32GB", "ram": ram},
        {"gpus": "2x32GB", "nvme": nvme},
        {"gpus": "2x8xH100", "interconnect": interconnect},
    ):
        try:
            cluster = parse_cluster(**options)
        except ClusterError:
            continue
        assert cluster.world_size >= 1


def _driver(monkeypatch: pytest.MonkeyPatch, devices: list[tuple[str, float]], *, fails: bool = False) -> None:
    """Put a driver with these (name, GiB) devices in the place of pynvml."""
    module: Any = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def init() -> None:
        if fails:
            raise NVMLError("Driver Not Loaded")

    def by_index(index: int) -> tuple[str, float]:
        if index >= len(devices):
            raise NVMLError("Invalid Argument")
        return devices[index]

    module.NVMLError = NVMLError
    module.nvmlInit, module.nvmlShutdown = init, lambda: None
    module.nvmlDeviceGetCount = lambda: len(devices)
    module.nvmlDeviceGetHandleByIndex = by_index
    module.nvmlDeviceGetName = lambda handle: handle[0]
    module.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(total=int(handle[1] * GIB))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_auto_asks_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count, kind, memory, RAM and cores of this machine."""
    _driver(monkeypatch, [("NVIDIA A100-SXM4-80GB", 80.0)] * 4)
    cluster = parse_cluster("auto")
    assert (cluster.nodes, cluster.gpus_per_node, cluster.gpu.name) == (1, 4, "A100-SXM4-80GB")
    assert not cluster.gpu.assumed
    assert cluster.is_this_machine
    assert cluster.host_memory_bytes_per_node == host_memory_bytes()
    assert cluster.cpu_cores_per_node == cpu_cores()
    assert parse_cluster("auto", ram="64GiB").host_memory_bytes_per_node == 64 * GIB


def test_auto_tells_cards_of_one_name_by_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's name does not say which RTX 4060 Ti it is."""
    _driver(monkeypatch, [("NVIDIA GeForce RTX 4060 Ti", 16.0)])
    assert parse_cluster("auto").gpu.name == "RTX 4060 Ti 16GB"


def test_auto_obeys_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the devices that CUDA would show count, up to the first invalid one."""
    _driver(monkeypatch, [("NVIDIA GeForce RTX 4090", 24.0), ("NVIDIA GeForce RTX 3090", 24.0)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,-1,0")
    cluster = parse_cluster("auto")
    assert (cluster.gpus_per_node, cluster.gpu.name) == (1, "RTX 3090")


def test_auto_takes_an_unknown_cards_memory_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that the data file does not know, or that was modified, keeps its name and its own memory."""
    _driver(monkeypatch, [("NVIDIA Future 9000", 60.0)])
    cluster = parse_cluster("auto")
    assert cluster.gpu.name == "NVIDIA Future 9000"
    assert cluster.gpu.assumed
    assert 0.95 < cluster.gpu.memory_bytes / (60 * GIB) < 1
    assert any("NVIDIA Future 9000" in sentence for sentence in cluster.assumptions)
    _driver(monkeypatch, [("NVIDIA GeForce RTX 4090", 48.0)])
    assert 0.95 < parse_cluster("auto").gpu.memory_bytes / (48 * GIB) < 1


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
    monkeypatch: pytest.MonkeyPatch, devices: list[tuple[str, float]], visible: str | None, fails: bool
) -> None:
    """No driver, no GPU, none visible, one that is not there, or unequal ones."""
    _driver(monkeypatch, devices, fails=fails)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ClusterError) as error:
        parse_cluster("auto")
    assert "--gpus" in error.value.fix


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"sys/fs/cgroup/memory.max": "1000000000"}, 10**9),
        (
            {
                "sys/fs/cgroup/memory.max": "max",
                "sys/fs/cgroup/a/b/memory.max": "max",
                "sys/fs/cgroup/a/memory.max": "2000000000",
                "proc/self/cgroup": "0::/a/b",
            },
            2 * 10**9,
        ),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000000"}, 3 * 10**9),
        ({"sys/fs/cgroup/memory.max": "max"}, None),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ({}, None),
    ],
)
def test_the_containers_memory_limit_counts_before_the_machines(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    """cgroup v2 (its own and every one above), v1, and none."""
    psutil = pytest.importorskip("psutil")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n", encoding="ascii")
    assert host_memory_bytes(tmp_path) == (limit or psutil.virtual_memory().total)


def test_the_containers_cpu_quota_counts(tmp_path: Path) -> None:
    """Half a core's quota is still one core; no quota leaves the affinity."""
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    quota = tmp_path / "sys/fs/cgroup/cpu.max"
    everything = cpu_cores(tmp_path)
    quota.write_text("50000 100000\n", encoding="ascii")
    assert cpu_cores(tmp_path) == 1
    quota.write_text("max 100000\n", encoding="ascii")
    assert cpu_cores(tmp_path) == everything


def test_a_cluster_is_made_without_heavy_imports() -> None:
    """psutil and pynvml are read only for this machine."""
    import subprocess

    code = (
        "import sys; from ds_advise.advisor.question.cluster import parse_cluster; parse_cluster('4x8xH100', "
        "ram='1TB');print(sorted({'psutil', 'pynvml', 'torch', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


def test_world_size_is_nodes_times_gpus() -> None:
    """One rank per GPU."""
    cluster = parse_cluster("4x8xH100")
    assert isinstance(cluster, Cluster)
    assert cluster.world_size == 32
