"""Each check of the doctor on facts of a sound machine and of broken ones."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from ds_advise.advisor.render.doctor import render_doctor, report_block
from ds_advise.validate.doctor import STATUSES, MachineFacts, judge
from ds_advise.validate.doctor.building import CompilerTrial, OpsFolder, Toolchain
from ds_advise.validate.doctor.examine import AREAS, findings_of
from ds_advise.validate.doctor.folder import Folder
from ds_advise.validate.doctor.gpus import NO_PYNVML, GpuState, Graphics
from ds_advise.validate.doctor.host import Host, Memory, Processor
from ds_advise.validate.doctor.nodes import HostfileNode
from ds_advise.validate.doctor.software import InstalledSoftware
from rich.console import Console

GIB = 2**30
STATUS = re.compile(r"^  (ok|note|warning|problem|unknown) +\S+ {2,}\S")
GPUS = tuple(
    GpuState(
        index=index,
        name="NVIDIA A100-SXM4-80GB",
        memory_bytes=80 * GIB,
        free_bytes=79 * GIB,
        capability=(8, 0),
        nvlinks=12,
        pcie_lanes=(16, 16),
    )
    for index in range(2)
)
SOUND = MachineFacts(
    software=InstalledSoftware(
        python="3.12.4",
        packages={
            "torch": "2.8.0",
            "deepspeed": "0.19.8",
            "transformers": "5.0.0",
            "accelerate": "1.10.0",
            "setuptools": "80.9.0",
            "ninja": "1.13.0",
        },
        torch_cuda="12.8",
        compatible_toolkits=("12.6", "12.8"),
        prebuilt_ops=("cpu_adam",),
        prebuilt_with_torch="2.8",
    ),
    toolchain=Toolchain(
        cxx="g++ 12.2.0",
        cxx_trial=CompilerTrial(),
        python_trial=CompilerTrial(),
        aio_trial=CompilerTrial(),
        nvcc_trial=CompilerTrial(),
        cuda_home="/usr/local/cuda",
        nvcc="12.8",
        ninja=True,
        package_manager="apt-get",
    ),
    ops_folder=OpsFolder(path="/home/ann/.cache/torch_extensions", filesystem="ext4"),
    graphics=Graphics(
        driver="570.86",
        driver_cuda="12.8",
        on_the_bus=2,
        module_loaded=True,
        device_files=True,
        gpus=GPUS,
        peer_access=(True,),
    ),
    memory=Memory(
        total_bytes=512 * GIB, available_bytes=500 * GIB, shared_bytes=256 * GIB, shared_free_bytes=255 * GIB
    ),
    processor=Processor(
        name="AMD EPYC 7742",
        online=64,
        usable=frozenset(range(64)),
        numactl=True,
        numa_nodes=2,
    ),
    host=Host(
        system="Debian",
        kernel="6.1",
        open_files=65536,
        interfaces=("eth0", "lo"),
        own_name_resolves=True,
        port_in_use=False,
    ),
    folder=Folder(path="/nvme", filesystem="xfs", device="nvme", free_bytes=2 * 10**12),
    nodes=(
        HostfileNode(
            name="n1",
            slots=2,
            addresses=("10.0.0.1",),
            gpus=2,
            port_answer="free",
        ),
        HostfileNode(name="n2", slots=2, addresses=("10.0.0.2",), gpus=2),
    ),
    environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
)


def facts(**changes: Any) -> MachineFacts:
    """The sound machine with some fields of some parts changed: `memory={"killed": 2}`."""
    parts = {
        name: replace(getattr(SOUND, name), **fields) if name != "environment" else {**SOUND.environment, **fields}
        for name, fields in changes.items()
        if isinstance(fields, dict)
    }
    return replace(SOUND, **{**changes, **parts})


def gpu(**fields: Any) -> MachineFacts:
    """The second GPU is different."""
    return facts(graphics={"gpus": (GPUS[0], replace(GPUS[1], **fields))})


def first_node(**fields: Any) -> MachineFacts:
    return replace(SOUND, nodes=(replace(SOUND.nodes[0], **fields), SOUND.nodes[1]))


def environment(**variables: str) -> MachineFacts:
    return facts(environment=variables)


NO_GPU = Graphics(error="NVML Shared Library Not Found")
WITHOUT_PACKAGE = {
    name: {key: value for key, value in SOUND.software.packages.items() if key != name}  # type: ignore[union-attr]
    for name in ("torch", "deepspeed", "accelerate", "setuptools", "ninja")
}

BROKEN: dict[str, tuple[MachineFacts, str, str, str]] = {
    # what is wrong: facts, the check, its status, words that must be said
    "no GPU at all": (facts(graphics=NO_GPU), "driver", "note", "no NVIDIA GPU"),
    "AMD": (facts(graphics=replace(NO_GPU, other_vendor="AMD")), "driver", "note", "AMD"),
    "no driver": (facts(graphics=replace(NO_GPU, on_the_bus=2)), "driver", "problem", "no NVIDIA driver is loaded"),
    "container without GPUs": (
        facts(graphics=replace(NO_GPU, on_the_bus=2, module_loaded=True)),
        "driver",
        "problem",
        "--gpus all",
    ),
    "driver updated": (
        facts(
            graphics=replace(
                NO_GPU, on_the_bus=1, module_loaded=True, error="RM has detected an NVML/RM version mismatch."
            )
        ),
        "driver",
        "problem",
        "reboot",
    ),
    "NVML fails": (
        facts(graphics=replace(NO_GPU, on_the_bus=1, module_loaded=True, device_files=True)),
        "driver",
        "problem",
        "NVML Shared Library",
    ),
    "no pynvml": (facts(graphics=replace(NO_GPU, on_the_bus=1, error=NO_PYNVML)), "driver", "unknown", "nvidia-ml-py"),
    "no torch": (
        facts(software={"packages": WITHOUT_PACKAGE["torch"], "torch_cuda": ""}),
        "torch",
        "problem",
        "pip install torch",
    ),
    "torch for the CPU": (facts(software={"torch_cuda": ""}), "torch", "problem", "without CUDA"),
    "driver too old": (facts(software={"torch_cuda": "13.0"}), "torch-and-driver", "problem", "580"),
    "driver a little older": (facts(software={"torch_cuda": "12.9"}), "torch-and-driver", "note", "PTX"),
    "Blackwell on CUDA 12.4": (
        facts(software={"torch_cuda": "12.4"}, graphics={"gpus": (replace(GPUS[0], capability=(12, 0)),)}),
        "gpu-architecture",
        "problem",
        "CUDA 12.8",
    ),
    "Volta on CUDA 13": (
        facts(software={"torch_cuda": "13.0"}, graphics={"gpus": (replace(GPUS[0], capability=(7, 0)),)}),
        "gpu-architecture",
        "problem",
        "CUDA 12",
    ),
    "other NCCL": (
        facts(software={"wrong_libraries": (("nvidia-nccl-cu12", "2.27.3", "2.19.3"),)}),
        "torch-libraries",
        "warning",
        "pip install nvidia-nccl-cu12==2.27.3",
    ),
    "no DeepSpeed": (
        facts(software={"packages": WITHOUT_PACKAGE["deepspeed"]}),
        "deepspeed",
        "problem",
        "pip install deepspeed",
    ),
    "old DeepSpeed": (
        facts(software={"packages": {**SOUND.software.packages, "deepspeed": "0.14.4"}}),  # type: ignore[union-attr]
        "deepspeed",
        "note",
        "0.14.4",
    ),
    "AutoEP's transformers": (
        facts(software={"packages": {**WITHOUT_PACKAGE["ninja"], "transformers": "5.23.0"}}),
        "experts",
        "note",
        "transformers 5.23.0 and AutoEP",
    ),
    "no accelerate": (facts(software={"packages": WITHOUT_PACKAGE["accelerate"]}), "trainer", "problem", "accelerate"),
    "ops of another torch": (facts(software={"prebuilt_with_torch": "2.4"}), "prebuilt-ops", "problem", "2.4"),
    "no compiler": (facts(toolchain={"cxx": "", "cxx_trial": None}), "compiler", "problem", "apt-get install g++"),
    "CXX is wrong": (
        facts(toolchain={"cxx": "", "cxx_trial": None}, environment={"CXX": "g++-99"}),
        "compiler",
        "problem",
        "g++-99",
    ),
    "old compiler": (
        facts(toolchain={"cxx_trial": CompilerTrial(error="error: unrecognized command line option '-std=c++20'")}),
        "compiler",
        "problem",
        "c++20",
    ),
    "slow compiler": (facts(toolchain={"cxx_trial": None}), "compiler", "unknown", "three seconds"),
    "no Python.h": (
        facts(toolchain={"python_trial": CompilerTrial(error="Python.h: No such file")}),
        "python-headers",
        "problem",
        "python3.12-dev",
    ),
    "no ninja": (
        facts(toolchain={"ninja": False}, software={"packages": WITHOUT_PACKAGE["ninja"]}),
        "ninja",
        "problem",
        "pip install ninja",
    ),
    "ninja beside the PATH": (facts(toolchain={"ninja": False}), "ninja", "problem", "activate"),
    "no setuptools": (
        facts(software={"packages": WITHOUT_PACKAGE["setuptools"]}),
        "setuptools",
        "problem",
        "setuptools",
    ),
    "no nvcc": (
        facts(toolchain={"nvcc": "", "nvcc_trial": None, "cuda_home": ""}),
        "cuda-toolkit",
        "problem",
        "torch_adam",
    ),
    "nvcc of CUDA 11": (facts(toolchain={"nvcc": "11.8"}), "cuda-toolkit", "problem", "CUDA 12 toolkit"),
    "nvcc of 12.7": (facts(toolchain={"nvcc": "12.7"}), "cuda-toolkit", "warning", "DS_SKIP_CUDA_CHECK"),
    "nvcc too old for the GPU": (
        facts(toolchain={"nvcc": "12.6"}, graphics={"gpus": (replace(GPUS[0], capability=(10, 0)),)}),
        "nvcc-architecture",
        "problem",
        "12.8",
    ),
    "g++ too new for nvcc": (
        facts(toolchain={"nvcc_trial": CompilerTrial(error="#error -- unsupported GNU version!")}),
        "nvcc-and-compiler",
        "problem",
        "unsupported GNU",
    ),
    "no libaio, swapping": (
        facts(toolchain={"aio_trial": CompilerTrial(error="cannot find -laio")}),
        "async-io",
        "problem",
        "libaio-dev",
    ),
    "no libaio": (
        facts(toolchain={"aio_trial": CompilerTrial(error="cannot find -laio")}, folder=None),
        "async-io",
        "warning",
        "libaio-dev",
    ),
    "dead lock": (facts(ops_folder={"locks": (("cpu_adam", 7200.0),)}), "ops-folder", "problem", "waits forever"),
    "young lock": (facts(ops_folder={"locks": (("cpu_adam", 60.0),)}), "ops-folder", "note", "being compiled"),
    "ops folder of another": (facts(ops_folder={"writable": False}), "ops-folder", "problem", "TORCH_EXTENSIONS_DIR"),
    "ops folder shared": (facts(ops_folder={"filesystem": "nfs4"}), "ops-folder", "warning", "nfs4"),
    "mixed GPUs": (
        gpu(name="NVIDIA A100-SXM4-40GB", memory_bytes=40 * GIB, free_bytes=40 * GIB),
        "gpus",
        "warning",
        "slowest",
    ),
    "held GPU": (
        gpu(free_bytes=50 * GIB, processes=(("python", 30 * GIB),)),
        "gpu-memory",
        "warning",
        "python (30.0 GiB)",
    ),
    "held by nobody": (gpu(free_bytes=50 * GIB), "gpu-memory", "warning", "no visible process"),
    "MIG": (gpu(mig=True), "mig", "warning", "GPU 1"),
    "Turing": (gpu(capability=(7, 5)), "bf16", "note", "fp16"),
    "narrow": (gpu(pcie_lanes=(4, 16)), "pcie", "warning", "x4 of x16"),
    "NVLink missing": (gpu(nvlinks=0), "nvlink", "warning", "GPU 1"),
    "no P2P": (facts(graphics={"peer_access": (False,)}), "peer-to-peer", "note", "/dev/shm"),
    "P2P in part": (
        facts(graphics={"peer_access": (False, True)}),
        "peer-to-peer",
        "warning",
        "1 of 2",
    ),
    "little RAM": (facts(memory={"available_bytes": 10 * GIB}), "ram", "warning", "10.0 of 512.0"),
    "container limit": (
        facts(memory={"limit_bytes": 64 * GIB, "limit_used_bytes": GIB}),
        "memory-limit",
        "note",
        "--ram 64GiB",
    ),
    "killed": (facts(memory={"killed": 2}), "memory-limit", "warning", "2 processes"),
    "locking, swapping": (facts(memory={"lockable_bytes": 8 * 2**20}), "locked-memory", "problem", "8 MiB"),
    "locking, InfiniBand": (
        facts(memory={"lockable_bytes": 65536}, folder=None, host={"rdma": ("mlx5_0",)}),
        "locked-memory",
        "problem",
        "InfiniBand",
    ),
    "locking": (facts(memory={"lockable_bytes": 8 * 2**20}, folder=None), "locked-memory", "note", "ulimit -l"),
    "Docker's shm": (
        facts(memory={"shared_bytes": 64 * 2**20, "shared_free_bytes": 64 * 2**20}),
        "shared-memory",
        "problem",
        "--shm-size",
    ),
    "small shm, one GPU": (
        facts(memory={"shared_bytes": 64 * 2**20}, graphics={"gpus": GPUS[:1]}),
        "shared-memory",
        "warning",
        "64 MiB",
    ),
    "no shm": (facts(memory={"shared_bytes": None}), "shared-memory", "problem", "missing"),
    "full shm": (facts(memory={"shared_free_bytes": 2**20}), "shared-memory", "warning", "full"),
    "quota": (facts(processor={"quota": 8.0}), "cores", "warning", "OMP_NUM_THREADS=4"),
    "few cores": (facts(processor={"usable": frozenset({0, 1})}), "cores", "warning", "2 cores for 2 ranks"),
    "bound": (facts(processor={"usable": frozenset(range(48))}), "cores", "note", "48 of 64"),
    "no numactl": (facts(processor={"numactl": False}), "numa", "note", "apt-get install numactl"),
    "no folder": (facts(folder={"error": "it does not exist"}), "swap-folder", "problem", "does not exist"),
    **{
        f"drive: {device}": (facts(folder={"device": device, "filesystem": "x"}), "drive", status, words)
        for device, status, words in (
            ("memory", "problem", "in RAM"),
            ("network", "warning", "network"),
            ("layered", "warning", "container"),
            ("disk", "warning", "rotating"),
            ("ssd", "note", "SATA"),
            ("virtual", "note", "bench --nvme"),
            ("unknown", "note", "unknown kind"),
        )
    },
    "no O_DIRECT": (facts(folder={"direct_error": "Invalid argument"}), "direct-io", "problem", "O_DIRECT"),
    "full drive": (facts(folder={"free_bytes": 10**9}), "free-space", "note", "1 GB free"),
    "P2P off": (environment(NCCL_P2P_DISABLE="1"), "environment", "warning", "NCCL_P2P_DISABLE=1"),
    "blocking": (environment(CUDA_LAUNCH_BLOCKING="1"), "environment", "warning", "unset CUDA_LAUNCH_BLOCKING"),
    "one thread": (environment(OMP_NUM_THREADS="1"), "environment", "warning", "cores per rank"),
    "GPUs hidden": (environment(CUDA_VISIBLE_DEVICES=""), "visible-devices", "problem", "hides every GPU"),
    "GPU not there": (environment(CUDA_VISIBLE_DEVICES="0,5"), "visible-devices", "problem", "GPU 5"),
    "some hidden": (environment(CUDA_VISIBLE_DEVICES="1"), "visible-devices", "note", "1 of 2"),
    "no such interface": (environment(NCCL_SOCKET_IFNAME="ib0"), "interfaces", "problem", "eth0, lo"),
    "loopback": (environment(GLOO_SOCKET_IFNAME="lo"), "interfaces", "problem", "loopback"),
    "other architecture": (environment(TORCH_CUDA_ARCH_LIST="7.0;9.0"), "architectures", "problem", "8.0"),
    "stubs": (environment(LD_LIBRARY_PATH="/usr/local/cuda/lib64/stubs"), "libraries", "problem", "stub"),
    "other CUDA first": (environment(LD_LIBRARY_PATH="/usr/local/cuda-11.8/lib64"), "libraries", "warning", "CUDA 11"),
    "fragmentation": (environment(PYTORCH_CUDA_ALLOC_CONF=""), "allocator", "note", "expandable_segments"),
    "few files": (facts(host={"open_files": 1024}), "open-files", "note", "1024"),
    "own name": (facts(host={"own_name_resolves": False}), "own-name", "warning", "/etc/hosts"),
    "port": (facts(host={"port_in_use": True}), "port", "warning", "--master_port 29501"),
    "unknown name": (first_node(addresses=(), unresolved="Name or service not known"), "names", "problem", "not known"),
    "Debian's hosts": (first_node(addresses=("127.0.1.1",)), "names", "problem", "127.0.1.1"),
    "password": (first_node(ssh_error="Permission denied (publickey,password)."), "ssh", "problem", "ssh-copy-id"),
    "strange key": (first_node(ssh_error="Host key verification failed."), "ssh", "problem", "accept its key"),
    "no pdsh": (facts(pdsh=False), "pdsh", "problem", "--launcher"),
    "too many slots": (first_node(gpus=1), "slots", "problem", "1 GPU for 2 slots"),
    "port there": (first_node(port_answer="in use"), "rendezvous", "problem", "29501"),
    "firewall": (first_node(port_answer="no answer"), "rendezvous", "problem", "firewall"),
    "first node silent": (
        first_node(port_answer="no answer", ssh_error="timed out"),
        "rendezvous",
        "unknown",
        "does not answer",
    ),
}


def test_a_sound_machine_has_no_finding() -> None:
    """Whoever has done everything right reads nothing but ok."""
    assert [finding for finding in judge(SOUND).findings if finding.status != "ok"] == []


def test_every_check_passes_a_sound_machine_and_fails_a_broken_one() -> None:
    """No check is without an example that it finds and one that it passes."""
    silent = judge(SOUND).findings
    for area, checks in AREAS.items():
        for check in checks:
            found = [
                finding
                for broken, *_ in BROKEN.values()
                for finding in findings_of(check, broken)
                if finding.status != "ok"
            ]
            assert found, f"{area}: {check.__name__} has no failing example"
            assert all(finding.status == "ok" for finding in findings_of(check, SOUND))
    assert len(silent) > 30


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_found_and_its_remedy_told(name: str) -> None:
    """The right check speaks, as gravely as it must, and says the words that help."""
    broken, check, status, words = BROKEN[name]
    spoken = [finding for finding in judge(broken).findings if finding.check == check and finding.status == status]
    assert spoken, [finding for finding in judge(broken).findings if finding.status != "ok"]
    assert any(words in f"{finding.what} {finding.why} {finding.fix}" for finding in spoken), spoken


@pytest.mark.parametrize("name", BROKEN)
def test_findings_are_whole(name: str) -> None:
    """A warning or a problem says why and what mends it; no phrase ends in a full stop; the worst decides."""
    checkup = judge(BROKEN[name][0])
    for finding in checkup.findings:
        assert finding.status in STATUSES and finding.what and not finding.what.endswith(".")
        if finding.status in ("warning", "problem"):
            assert finding.why and finding.fix, finding
    assert checkup.worst == min((finding.status for finding in checkup.findings), key=STATUSES.index)


def test_nothing_is_said_of_what_could_not_be_read() -> None:
    """A machine of which nothing is known gets one line for each part, and no guess."""
    empty = judge(MachineFacts(unread=(("memory", "KeyError: 'MemTotal'"),)))
    assert [(finding.check, finding.status) for finding in empty.findings if finding.area == "unread"] == [
        ("memory", "unknown")
    ]
    assert all(finding.check in ("environment", "memory") for finding in empty.findings)


def test_one_gpu_needs_no_talk_between_gpus() -> None:
    """NCCL's switches between GPUs matter to several only."""
    alone = replace(
        environment(NCCL_P2P_DISABLE="1"), graphics=replace(SOUND.graphics, gpus=GPUS[:1], peer_access=()), nodes=()
    )  # type: ignore[type-var]
    assert all(finding.status == "ok" for finding in judge(alone).findings if finding.area == "environment")


@pytest.mark.parametrize("name", BROKEN)
def test_every_finding_fits_80_columns_and_keeps_its_words(name: str) -> None:
    """A line starts with its status and check; the remedy is printed whole, and in any encoding."""
    checkup = judge(BROKEN[name][0])
    output = StringIO()
    render_doctor(checkup, Console(file=output, width=80))
    lines = output.getvalue().splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert sum(STATUS.match(line) is not None for line in lines) == len(checkup.findings)
    unwrapped = " ".join(output.getvalue().split())
    assert all(
        " ".join(text.split()) in unwrapped
        for finding in checkup.findings
        for text in (finding.what, finding.why, finding.fix)
        if text
    )


def test_the_verdict_comes_first() -> None:
    """How many problems, how many warnings, or that nothing stands in the way."""

    def verdict(name: str) -> str:
        output = StringIO()
        render_doctor(judge(BROKEN[name][0]), Console(file=output, width=80))
        return output.getvalue().splitlines()[0]

    assert verdict("no ninja") == " 1 problem: DeepSpeed will fail here."
    assert verdict("killed").startswith(" No problem, 1 warning")
    output = StringIO()
    render_doctor(judge(SOUND), Console(file=output, width=80))
    assert output.getvalue().startswith(" No problem found: DeepSpeed works here.")


def test_nothing_that_was_read_steers_the_terminal() -> None:
    """An ssh server's banner, a compiler's message and a variable may hold anything."""
    strange = replace(first_node(ssh_error="\x1b[2J\x07denied"), environment={"NCCL_ALGO": "\x1b[31mRing"})
    output = StringIO()
    render_doctor(judge(strange), Console(file=output, width=80))
    assert "denied" in output.getvalue() and "\x1b" not in output.getvalue() + report_block(strange)


def test_a_report_of_nodes_names_none_of_them() -> None:
    """What is wrong with which of them can still be read."""
    block = report_block(BROKEN["too many slots"][0])
    assert "<node0> has 1 GPU for 2 slots" in block and "GPU 1: NVIDIA A100" in block and "n1" not in block


def test_versions_that_are_no_releases_are_compared() -> None:
    """A Python built from its repository, a nightly torch, a release candidate of DeepSpeed."""
    packages = {**SOUND.software.packages, "torch": "2.8.0.dev20250601+cu128", "deepspeed": "0.18.1rc1"}  # type: ignore[union-attr]
    report = judge(facts(software={"python": "3.14.0+", "packages": packages}))
    assert {finding.status for finding in report.findings if finding.area == "versions"} == {"ok"}
