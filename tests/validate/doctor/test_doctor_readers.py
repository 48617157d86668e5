"""The doctor's readers on recorded /proc and /sys trees, on a stand-in for NVML, and on recorded answers of tools."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ds_advise.validate.doctor.building import read_ops_folder, read_toolchain
from ds_advise.validate.doctor.examine import gather
from ds_advise.validate.doctor.findings import ProgramRun, run_program
from ds_advise.validate.doctor.gpus import read_graphics
from ds_advise.validate.doctor.host import Processor, read_folder, read_memory, read_processor
from ds_advise.validate.doctor.nodes import port_state, rank_port, read_nodes
from ds_advise.validate.doctor.software import read_software

MEMINFO = """MemTotal:       528000000 kB
MemFree:        300000000 kB
MemAvailable:   500000000 kB
"""
STATUS = "Name:\tpython\nCapEff:\t0000000000000000\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def host_tree(root: Path, **more: str) -> Path:
    return tree(root, {"proc/meminfo": MEMINFO, "proc/self/status": STATUS, **more})


def test_memory_of_an_ordinary_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RAM comes from the kernel's file, /dev/shm from its file system; CAP_IPC_LOCK lifts the limit of ulimit."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    assert read_memory(host_tree(tmp_path)).shared_bytes is None
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    memory = read_memory(tmp_path)
    assert (memory.total_bytes, memory.available_bytes) == (528000000 * 1024, 500000000 * 1024)
    assert (memory.lockable_bytes, memory.limit_bytes, memory.killed, memory.rdma) == (65536, None, 0, True)
    assert memory.shared_bytes == shutil.disk_usage(tmp_path).total and (memory.shared_free_bytes or 0) > 0
    tree(tmp_path, {"proc/self/status": STATUS.replace("0000000000000000", "000001ffffffffff")})
    assert read_memory(tmp_path).lockable_bytes is None


def test_the_tightest_cgroup_counts(tmp_path: Path) -> None:
    """Version 2: this process's cgroup and those above it; what the kernel can drop is not in use."""
    memory = read_memory(
        host_tree(
            tmp_path,
            **{
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/memory.max": str(8 * 2**30),
                "sys/fs/cgroup/job/memory.current": str(3 * 2**30),
                "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {2**30}\n",
                "sys/fs/cgroup/job/memory.events": "low 0\noom 3\noom_kill 2\n",
                "sys/fs/cgroup/job/step/memory.max": str(9 * 2**30),
            },
        )
    )
    assert (memory.limit_bytes, memory.limit_used_bytes, memory.killed) == (8 * 2**30, 2 * 2**30, 2)


def test_cgroups_of_version_1(tmp_path: Path) -> None:
    """An absurdly high limit is none; a real one is."""
    base = {
        "proc/self/cgroup": "4:memory:/docker/ab\n1:cpu,cpuacct:/docker/ab\n",
        "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": "9223372036854771712",
    }
    assert read_memory(host_tree(tmp_path, **base)).limit_bytes is None
    tree(
        tmp_path,
        {
            "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": str(2**30),
            "sys/fs/cgroup/memory/docker/ab/memory.usage_in_bytes": str(2**29),
            "sys/fs/cgroup/memory/docker/ab/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            "sys/fs/cgroup/cpu/docker/ab/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu/docker/ab/cpu.cfs_period_us": "100000",
        },
    )
    memory = read_memory(tmp_path)
    assert (memory.limit_bytes, memory.limit_used_bytes, memory.killed) == (2**30, 2**29, 1)
    assert read_processor(tmp_path).quota == 2.5


def test_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Affinity and quota."""
    root = host_tree(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "400000 100000",
        },
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 8})
    assert read_processor(root) == Processor(usable=5, quota=4.0)


def test_the_port_of_a_node() -> None:
    """It is in use where a process listens, by really listening."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port_state("127.0.0.1", port) == "in use"
    assert port_state("127.0.0.1", port) == "free"
    assert (rank_port({"MASTER_PORT": "7"}), rank_port({"MASTER_PORT": "no"})) == (7, 29500)


def test_the_drive_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost mount decides."""
    mounts = [SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4"), SimpleNamespace(mountpoint="/", fstype="ext4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    assert read_folder(str(tmp_path)).filesystem == "nfs4"


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    """Missing, a file, of an unknown user, nonsense: an error, never an exception."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file", "~nobody-of-this-name/x", "a\0b"):
        assert read_folder(str(path)).error


class NvmlError(Exception):
    pass


def nvml(answers: dict[str, Any], gpus: int = 2) -> Any:
    """A module like pynvml: what is not among the answers is not supported here, as on real GPUs."""

    def refuse(*_: Any) -> Any:
        raise NvmlError("Not Supported")

    known: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: gpus,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        **answers,
    }

    class Module:
        NVMLError = NvmlError

        def __getattr__(self, name: str) -> Any:
            return known.get(name, refuse)

    return Module()


def test_figures_of_gpus_come_from_nvml(tmp_path: Path) -> None:
    """Every figure of two GPUs; the process name comes from /proc."""
    root = tree(
        tmp_path,
        {
            "proc/77/comm": "python\n",
            "sys/bus/pci/devices/0000:3b:00.0/class": "0x030200\n",
            "sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n",
            "proc/driver/nvidia/version": "x",
        },
    )
    graphics = read_graphics(
        root,
        nvml(
            {
                "nvmlSystemGetDriverVersion": lambda: "570.86",
                "nvmlSystemGetCudaDriverVersion": lambda: 12080,
                "nvmlDeviceGetName": lambda _: "NVIDIA A100",
                "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80, free=50),
                "nvmlDeviceGetComputeRunningProcesses": lambda _: [
                    SimpleNamespace(pid=77, usedGpuMemory=30),
                    SimpleNamespace(pid=1, usedGpuMemory=None),
                ],
            }
        ),
    )
    gpu = graphics.gpus[1]
    assert (graphics.driver, graphics.driver_cuda) == ("570.86", "12.8")
    assert graphics.on_the_bus == 1 and graphics.module_loaded
    assert (gpu.index, gpu.name, gpu.memory_bytes, gpu.free_bytes) == (1, "NVIDIA A100", 80, 50)
    assert gpu.processes == (("python", 30), ("process 1", 0))


def test_a_gpu_that_supports_no_query(tmp_path: Path) -> None:
    """Virtual GPUs and missing rights leave most questions unanswered: unknown, not an error, and not a finding."""
    graphics = read_graphics(tmp_path, nvml({}, gpus=3))
    assert len(graphics.gpus) == 3 and graphics.error == ""
    assert graphics.gpus[0].name == "GPU"


def test_nvml_that_does_not_start(tmp_path: Path) -> None:
    """Its message is kept, and the PCI bus is read all the same."""

    def fail() -> None:
        raise NvmlError("Driver Not Loaded")

    root = tree(
        tmp_path,
        {
            f"sys/bus/pci/devices/{name}/{file}": text
            for name, kind, vendor in (
                ("0", "0x030000", "0x10de"),
                ("1", "0x120000", "0x10de"),
                ("2", "0x020000", "0x10de"),
                ("3", "0x030000", "0x8086"),
            )
            for file, text in (("class", kind), ("vendor", vendor))
        },
    )
    graphics = read_graphics(root, nvml({"nvmlInit": fail}))
    assert (graphics.error, graphics.on_the_bus, graphics.gpus) == ("Driver Not Loaded", 2, ())


def recorded(answers: dict[str, ProgramRun]) -> Any:
    """A runner that answers by the first words in a command that it knows; else the program is missing."""

    def run(command: Sequence[str], _text: str, _limit_s: float) -> ProgramRun:
        line = " ".join(command)
        return next((ran for words, ran in answers.items() if words in line), ProgramRun(code=None, err="not found"))

    return run


def test_compilers_are_judged_by_what_they_compile() -> None:
    """Versions from --version; an error line of a failed trial; nothing of a compiler that is not there."""
    tools = read_toolchain(
        recorded(
            {
                "c++ --version": ProgramRun(code=0, out="g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0\nCopyright"),
                "-fopenmp": ProgramRun(code=0),
                "-fsyntax-only": ProgramRun(code=1, err="<stdin>:1:10: fatal error: Python.h: No such file\n 1 |"),
                "-laio": ProgramRun(
                    code=1, err="/usr/bin/ld: cannot find -laio: No such file\ncollect2: error: ld returned 1"
                ),
                "nvcc --version": ProgramRun(code=0, out="Cuda compilation tools, release 12.4, V12.4.131"),
                "-x cu": ProgramRun(
                    code=1, err="in file x:\nhost_config.h: #error -- unsupported GNU version! gcc later than 13"
                ),
            }
        ),
        {"CUDA_HOME": "/opt/cuda", "PATH": ""},
        "2.12.1",
    )
    assert tools.cxx.startswith("g++ (Ubuntu 11.4.0")
    assert (tools.standard, tools.nvcc, tools.cuda_home) == ("c++20", "12.4", "/opt/cuda")
    assert not tools.ninja
    assert tools.cxx_trial == "" and "Python.h" in str(tools.python_trial)
    assert "cannot find -laio" in str(tools.aio_trial) and "unsupported GNU" in str(tools.nvcc_trial)
    wrapped = read_toolchain(
        recorded({"ccache g++ --version": ProgramRun(code=0, out="g++ (GCC) 14.1.1 20240720")}),
        {"CXX": "ccache g++", "CFLAGS": "-I 'x", "PATH": ""},
        "2.8",
    )
    assert wrapped.cxx == "g++ (GCC) 14.1.1 20240720"
    with pytest.raises(TimeoutError):  # not: no compiler
        read_toolchain(recorded({"--version": ProgramRun(code=None, late=True)}), {"PATH": ""}, "2.8")
    nothing = read_toolchain(recorded({}), {"PATH": "", "CUDA_PATH": "/x"}, "2.8.0+cu128")
    assert (nothing.cxx, nothing.nvcc, nothing.standard) == ("", "", "c++17")
    assert nothing.cxx_trial is None and nothing.nvcc_trial is None


def test_locks_of_dead_builds_are_found(tmp_path: Path) -> None:
    """In the folder that TORCH_EXTENSIONS_DIR names, or in the user's cache below Python's and CUDA's versions."""
    tree(tmp_path, {"own/cpu_adam/lock": "", "home/.cache/torch_extensions/py312_cu128/fused_adam/lock": ""})
    os.utime(tmp_path / "own/cpu_adam/lock", (time.time() - 7200,) * 2)
    here = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "own")}
    ((name, age_s),) = read_ops_folder(here).locks
    assert name == "cpu_adam" and 7190 < age_s < 7300
    with (tmp_path / "own/cpu_adam/lock").open():  # as torch's FileBaton while it builds
        assert read_ops_folder(here).locks == ()
    assert [name for name, _ in read_ops_folder({"HOME": str(tmp_path / "home")}).locks] == ["fused_adam"]
    assert read_ops_folder({"HOME": str(tmp_path / "none")}).locks == ()


def test_facts_of_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions, and torch's CUDA."""
    site = tree(
        tmp_path,
        {
            "torch/version.py": "from typing import Optional\n__version__ = '2.8.0'\ncuda: Optional[str] = "
            "'12.8'\nhip = None\n",
            "torch-2.8.0.dist-info/METADATA": ("Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0\n"),
            "deepspeed-0.19.8.dist-info/METADATA": "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8\n",
        },
    )
    monkeypatch.setattr(sys, "path", [str(site)])
    found = read_software()
    assert found.packages == {"torch": "2.8.0", "deepspeed": "0.19.8"}
    assert found.torch_cuda == "12.8" and found.torch_hip == ""


def test_nodes_answer_over_ssh_or_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first is asked for the port."""
    monkeypatch.setattr("ds_advise.validate.doctor.nodes.port_state", lambda *_: "no answer")
    asked: list[str] = []

    def run(command: Sequence[str], _text: str, _limit_s: float) -> ProgramRun:
        if command[0] == "getent":
            return (
                ProgramRun(code=2)
                if command[-1] == "lost"
                else ProgramRun(code=0, out="10.0.0.1 STREAM good\n10.0.0.1 DGRAM\n")
            )
        asked.append(" ".join(command))
        return (
            ProgramRun(code=0)
            if "good" in command
            else ProgramRun(code=255, err="Warning: x\nPermission denied (publickey).\n")
        )

    nodes = read_nodes(("good", "user@shut", "lost"), 29500, run)
    assert all("BatchMode=yes" in line and " -- " in line for line in asked) and len(asked) == 2
    assert (nodes[0].ssh_error, nodes[0].port_answer) == ("", "no answer")
    assert (nodes[1].ssh_error, nodes[1].port_answer) == ("Permission denied (publickey).", "")
    assert nodes[0].addresses == nodes[1].addresses == ("10.0.0.1",)
    assert nodes[2].unresolved == "the name is not found" and nodes[2].ssh_error == ""


def test_a_tool_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The limit holds, and what the tool started goes with it."""
    ran = run_program(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/child; wait"], "", 2.0)
    assert ran.code is None
    child = int((tmp_path / "child").read_text())
    for _ in range(1200):  # the kernel may take a moment to bury it
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or ") Z " in state.read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the tool's child still runs")
    assert run_program(["no-such-program"], "", 1).code is None


def test_a_reader_that_fails_costs_only_its_part(tmp_path: Path) -> None:
    """On a system without /proc the other parts are reported, and the missing one is named."""
    facts = gather(root=tmp_path, environment={}, run=recorded({}))
    assert facts.memory is None and [part for part, _ in facts.unread] == ["memory"]
    assert facts.software is not None and facts.toolchain is not None


HANGING = """
import sys, threading
from pathlib import Path
from ds_advise.validate.doctor import examine
examine._LIMIT_S = 4.0  # the others must end within it, on a busy machine too
examine.read_graphics = lambda root: threading.Event().wait()
facts = examine.gather(root=Path(sys.argv[1]), environment={})
print(dict(facts.unread)["graphics"], facts.processor is not None)
"""


def test_a_driver_that_hangs_does_not_hold_the_doctor_up(tmp_path: Path) -> None:
    """What does not answer in time is named, and everything else is reported. The program ends although a thread still
    waits."""
    command = [sys.executable, "-c", HANGING, str(host_tree(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.stdout == "no answer within the time True\n", done
