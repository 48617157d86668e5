"""Every check of the doctor on recorded trees, a stand-in for NVML and recorded answers of tools."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ds_advise.advisor.render.doctor import doctor_document
from ds_advise.ds_configs.launch_commands import read_hostfile
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.validate.doctor import STATUSES, Checkup, examine
from ds_advise.validate.doctor.examine import AREAS
from ds_advise.validate.doctor.findings import ProgramRun, run_program
from ds_advise.validate.doctor.machine import ExaminedMachine, InstalledSoftware
from ds_advise.validate.doctor.nodes import port_state, rank_port

from tests.helpers import left_lock, printed_document

GIB = 2**30
STATUS = re.compile(r"^  (ok|note|warning|problem|unknown) {2,}\S+ {2,}\S")
PACKAGES = {
    "torch": "2.12.0",
    "deepspeed": "0.19.8",
    "transformers": "5.0.0",
    "accelerate": "1.10.0",
    "ninja": "1.13.0",
}
PCI = "sys/bus/pci/devices"
FILES = {
    "proc/meminfo": f"MemTotal: {512 * 2**20} kB\nMemFree: 9 kB\nMemAvailable: {500 * 2**20} kB\n",
    "proc/self/status": "Name:\tpython\nCapEff:\t0000000000000000\n",
    "proc/self/cgroup": "0::/job/step\n",
    "proc/77/comm": "python\n",
    **{
        f"{PCI}/{number}/{name}": text
        for number in "01"
        for name, text in (("class", "0x030200"), ("vendor", "0x10de"))
    },
    f"{PCI}/2/class": "0x020000",
    f"{PCI}/2/vendor": "0x10de",
    "bin/ninja": "",
    "hosts": "n1 slots=2\nann@n2 slots=2\n",
}
FINE = ProgramRun(code=0)
TOOLS = {
    "c++ --version": ProgramRun(code=0, out="g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0\nCopyright"),
    "nvcc --version": ProgramRun(code=0, out="Cuda compilation tools, release 12.8, V12.8.131"),
    **dict.fromkeys(("-fopenmp", "-fsyntax-only", "-laio", "-x cu", "import torch", "ssh"), FINE),
    "getent ahosts n1": ProgramRun(code=0, out="10.0.0.1 STREAM good\n10.0.0.1 DGRAM\n"),
    "getent ahosts n2": ProgramRun(code=0, out="10.0.0.2 STREAM good\n"),
}


class NvmlError(Exception):
    pass


def gpus(*states: tuple[str, int, int], processes: Sequence[tuple[int, int | None]] = ()) -> dict[str, Any]:
    """NVML's answers for GPUs of (name, GiB, free GiB); the processes run on the last one."""
    running = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in processes]
    return {
        "nvmlDeviceGetCount": lambda: len(states),
        "nvmlDeviceGetName": lambda index: states[index][0],
        "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(
            total=states[index][1] * GIB, free=states[index][2] * GIB
        ),
        "nvmlDeviceGetComputeRunningProcesses": lambda index: running if index == len(states) - 1 else [],
    }


A100 = ("NVIDIA A100-SXM4-80GB", 80, 79)
NVML = {
    "nvmlInit": lambda: None,
    "nvmlShutdown": lambda: None,
    "nvmlDeviceGetHandleByIndex": lambda index: index,
    "nvmlSystemGetDriverVersion": lambda: "570.86",
    "nvmlSystemGetCudaDriverVersion": lambda: 12080,
    **gpus(A100, A100),
}


def failing(message: str) -> dict[str, Any]:
    """NVML that does not start."""

    def fail() -> None:
        raise NvmlError(message)

    return {"nvmlInit": fail}


def _nvml(answers: Mapping[str, Any]) -> Any:
    """A module like pynvml: what is not among the answers is not supported, as on virtual GPUs."""

    def refuse(*_: Any) -> Any:
        raise NvmlError("Not Supported")

    class Module:
        NVMLError = NvmlError

        def __getattr__(self, name: str) -> Any:
            return answers.get(name, refuse)

    return Module()


@pytest.fixture
def checkup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Checkup]:
    """The doctor's findings on the sound machine with changes: parts of FILES, TOOLS, NVML and PACKAGES (None removes
    one), variables, and other facts."""

    def examined(
        *,
        files: Mapping[str, str | None] | None = None,
        tools: Mapping[str, ProgramRun | None] | None = None,
        nvml: Mapping[str, Any] | None = None,
        packages: Mapping[str, str | None] | None = None,
        cuda: str = "12.8",
        environment: Mapping[str, str] | None = None,
        ulimit: int = resource.RLIM_INFINITY,
        cores: int = 64,
        shared: tuple[int, int] | None = (256 * GIB, 255 * GIB),
        filesystem: str = "xfs",
        port: str = "free",
        nvme: str | None = "",
        hosts: bool = True,
    ) -> Checkup:
        for name, text in {**FILES, **(files or {})}.items():
            if text is not None:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(text)
        (tmp_path / "bin/ninja").chmod(0o755)
        answers = {name: ran for name, ran in {**(tools or {}), **TOOLS, **(tools or {})}.items() if ran is not None}

        def run(command: Sequence[str], _text: str, _limit_s: float) -> ProgramRun:
            line = " ".join(command)
            return next(
                (ran for words, ran in answers.items() if words in line), ProgramRun(code=None, err="not found")
            )

        def disk_usage(_path: Path) -> SimpleNamespace:
            if shared is None:
                raise FileNotFoundError
            return SimpleNamespace(total=shared[0], free=shared[1])

        found = {name: version for name, version in {**PACKAGES, **(packages or {})}.items() if version is not None}
        software = InstalledSoftware(packages=found, torch_cuda=cuda)
        mounts = [
            SimpleNamespace(mountpoint=at, fstype=kind) for at, kind in (("/", "ext4"), (str(tmp_path), filesystem))
        ]
        monkeypatch.setattr(ExaminedMachine, "software", software)
        monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
        monkeypatch.setattr(resource, "getrlimit", lambda _: (ulimit, ulimit))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        monkeypatch.setattr("ds_advise.validate.doctor.host.disk_usage", disk_usage)
        monkeypatch.setattr("ds_advise.validate.doctor.nodes.port_state", lambda *_: port)
        variables = {"PATH": str(tmp_path / "bin"), "CUDA_HOME": "/opt/cuda", "HOME": str(tmp_path / "home")}
        (tmp_path / "home").mkdir(exist_ok=True)
        return examine(
            root=tmp_path,
            run=run,
            nvml=_nvml({**NVML, **(nvml or {})}),
            environment={**variables, **(environment or {})},
            nvme=str(tmp_path / nvme) if nvme is not None else None,
            hostfile=tmp_path / "hosts" if hosts else None,
        )

    return examined


def _failed(err: str) -> ProgramRun:
    return ProgramRun(code=1, err=err)


NO_GPUS = {f"{PCI}/{number}/class": "0x020000" for number in "01"}
NO_AIO = {"-laio": _failed("/usr/bin/ld: cannot find -laio: No such file\ncollect2: error: ld returned 1")}
CGROUP = "sys/fs/cgroup/job"
OPS = "home/.cache/torch_extensions"
PYTHON = f"{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
CASES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    # check, status, words of the finding, changes
    ("driver", "note", "no NVIDIA GPU", {"files": NO_GPUS, "nvml": failing("NVML Shared Library Not Found")}),
    ("driver", "problem", "2 NVIDIA GPUs on the PCI bus, but", {"nvml": failing("Driver Not Loaded")}),
    ("driver", "problem", "reboot", {"nvml": failing("an NVML/RM version mismatch.")}),
    ("torch", "problem", "pip install torch", {"packages": {"torch": None}, "cuda": ""}),
    ("torch", "problem", "without CUDA", {"cuda": ""}),
    ("torch-and-driver", "problem", "580", {"cuda": "13.0"}),
    ("deepspeed", "problem", "pip install deepspeed", {"packages": {"deepspeed": None}}),
    ("deepspeed", "note", "0.14.4", {"packages": {"deepspeed": "0.14.4"}}),
    ("compiler", "problem", "install g++", {"tools": {"c++ --version": None}}),
    ("compiler", "problem", "c++20", {"tools": {"-fopenmp": _failed("error: unrecognized option -std=c++20")}}),
    ("compiler", "unknown", "three seconds", {"tools": {"-fopenmp": ProgramRun(code=None, late=True)}}),
    (
        "python-headers",
        "problem",
        "python3-dev",
        {"tools": {"-fsyntax-only": _failed("error: Python.h: No such file")}},
    ),
    ("ninja", "problem", "pip install ninja", {"environment": {"PATH": ""}, "packages": {"ninja": None}}),
    ("ninja", "problem", "activate", {"environment": {"PATH": ""}}),
    (
        "cuda-toolkit",
        "problem",
        "CUDA 12 toolkit",
        {"tools": {"nvcc --version": ProgramRun(code=0, out="release 11.8")}},
    ),
    (
        "nvcc-and-compiler",
        "problem",
        "unsupported GNU",
        {"tools": {"-x cu": _failed("x:\nh: #error -- unsupported GNU")}},
    ),
    ("async-io", "problem", "libaio-dev", {"tools": NO_AIO}),
    ("async-io", "warning", "libaio-dev", {"tools": NO_AIO, "nvme": None}),
    ("ops-folder", "problem", "waits forever", {"files": {f"{OPS}/py{PYTHON}_cu128/cpu_adam/lock": ""}}),
    ("ops-folder", "problem", "waits forever", {"files": {f"{OPS}/py{PYTHON}_cpu/cpu_adam/lock": ""}, "cuda": ""}),
    # torch never reads these locks: they are of another Python, another build of torch, and no build at all.
    ("ops-folder", "ok", "writable", {"files": {f"{OPS}/py27_cu128/cpu_adam/lock": ""}}),
    ("ops-folder", "ok", "writable", {"files": {f"{OPS}/py{PYTHON}_cpu/cpu_adam/lock": ""}}),
    ("ops-folder", "ok", "writable", {"files": {f"{OPS}/cpu_adam/lock": ""}}),
    ("gpus", "warning", "slowest", {"nvml": gpus(A100, ("NVIDIA A100-SXM4-40GB", 40, 40))}),
    (
        "gpu-memory",
        "warning",
        "python (30.0 GiB), process 1",
        {"nvml": gpus(A100, ("NVIDIA A100-SXM4-80GB", 80, 50), processes=[(1, None), (77, 30 * GIB)])},
    ),
    ("ram", "warning", "10.0 of 512.0", {"files": {"proc/meminfo": f"MemTotal: {2**29} kB\nMemFree: {10 * 2**20} kB"}}),
    (
        "memory-limit",
        "note",
        "8.0 of the machine's 512.0 GiB may be used, 2.0 in use",
        {
            "files": {
                f"{CGROUP}/memory.max": str(8 * GIB),
                f"{CGROUP}/memory.current": str(3 * GIB),
                f"{CGROUP}/memory.stat": f"anon 5\ninactive_file {GIB}\n",
                f"{CGROUP}/step/memory.max": str(9 * GIB),
            }
        },
    ),
    ("memory-limit", "warning", "2 processes", {"files": {f"{CGROUP}/memory.events": "oom 3\noom_kill 2\n"}}),
    ("locked-memory", "problem", "8 MiB", {"ulimit": 8 * 2**20}),
    ("locked-memory", "note", "ulimit -l", {"ulimit": 8 * 2**20, "nvme": None}),
    ("shared-memory", "problem", "--shm-size", {"shared": (64 * 2**20, 64 * 2**20)}),
    ("shared-memory", "problem", "missing", {"shared": None}),
    ("shared-memory", "warning", "full", {"shared": (GIB, 2**20)}),
    ("cores", "warning", "2 cores for 2 ranks", {"cores": 2}),
    ("swap-folder", "problem", "there is no folder /", {"nvme": "none"}),
    ("swap-folder", "problem", "null", {"nvme": "a\0b"}),
    ("swap-folder", "problem", "in RAM", {"filesystem": "tmpfs"}),
    ("swap-folder", "warning", "network", {"filesystem": "nfs4"}),
    ("environment", "warning", "NCCL_P2P_DISABLE=1", {"environment": {"NCCL_P2P_DISABLE": "1"}}),
    ("environment", "warning", "cores per rank", {"environment": {"OMP_NUM_THREADS": "1"}}),
    ("environment", "warning", "on 64 cores", {"environment": {"OMP_NUM_THREADS": "65"}}),
    ("environment", "problem", "cuda, cpu, xpu", {"environment": {"DS_ACCELERATOR": "gpu"}}),
    ("environment", "problem", "cuda, cpu, xpu", {"environment": {"DS_ACCELERATOR": ""}}),
    ("environment", "problem", "built with CUDA", {"environment": {"DS_ACCELERATOR": "cuda"}, "cuda": ""}),
    ("environment", "problem", "an NVIDIA GPU", {"environment": {"DS_ACCELERATOR": "cuda"}, "nvml": failing("no")}),
    ("environment", "problem", "torch_npu", {"environment": {"DS_ACCELERATOR": "npu"}}),
    ("environment", "warning", "instead of the GPUs", {"environment": {"DS_ACCELERATOR": "cpu"}}),
    ("environment", "warning", "hides every GPU", {"environment": {"CUDA_VISIBLE_DEVICES": ""}}),
    ("environment", "problem", "only the 1 before it", {"environment": {"CUDA_VISIBLE_DEVICES": "0,2"}}),
    ("environment", "warning", "unset RANK WORLD_SIZE", {"environment": {"RANK": "1", "WORLD_SIZE": "8"}}),
    ("environment", "problem", "not a port", {"environment": {"MASTER_PORT": "99999"}}),
    (
        "environment",
        "problem",
        "the interfaces are eth0",
        {"environment": {"NCCL_SOCKET_IFNAME": "eth7"}, "files": {"sys/class/net/eth0": ""}},
    ),
    (
        "environment",
        "problem",
        "write expandable_segments",
        {"environment": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:9,expandable_segmnts:True"}},
    ),
    ("torch-import", "problem", "libcudart", {"tools": {"import torch": _failed("x\nImportError: libcudart.so.12")}}),
    ("torch-import", "unknown", "15 seconds", {"tools": {"import torch": ProgramRun(code=None, late=True)}}),
    ("c-compiler", "problem", "CC=nope cannot be run", {"environment": {"CC": "nope"}}),
    ("async-io", "unknown", "libaio", {"tools": {"-laio": None}}),
    ("python-headers", "unknown", "Python.h", {"tools": {"-fsyntax-only": None}}),
    ("nvcc-and-compiler", "unknown", "nvcc", {"tools": {"-x cu": None}}),
    ("swap-folder", "problem", "doctor takes no size", {"nvme": "none:2TB"}),
    ("names", "problem", "n2: the name is not found", {"tools": {"getent ahosts n2": ProgramRun(code=2)}}),
    (
        "names",
        "problem",
        "network name or address into the hostfile",
        {
            "files": {"hosts": "localhost slots=1\n127.0.0.1 slots=1\n"},
            "tools": {"getent": ProgramRun(code=0, out="127.0.0.1 STREAM")},
        },
    ),
    ("names", "problem", "127.0.1.1", {"tools": {"getent ahosts n1": ProgramRun(code=0, out="127.0.1.1 STREAM")}}),
    ("ssh", "problem", "ssh-copy-id", {"tools": {"ssh": _failed("Warning: x\nPermission denied (publickey).\n")}}),
    ("rendezvous", "problem", "29501", {"port": "in use"}),
    ("rendezvous", "problem", "firewall", {"port": "no answer"}),
    ("rendezvous", "unknown", "does not answer", {"port": "no answer", "tools": {"ssh": _failed("timed out")}}),
)


def test_every_check_passes_a_sound_machine_and_fails_a_broken_one(checkup: Callable[..., Checkup]) -> None:
    """Every check has an example that it finds, and none finds anything on the sound machine."""
    checks = {check.__name__.replace("_", "-") for checks in AREAS.values() for check in checks}
    assert checks - {"nodes", "shadowed-packages"} | {"names", "ssh", "rendezvous"} == {check for check, *_ in CASES}
    findings = checkup().findings
    assert {finding.status for finding in findings} == {"ok"} and len(findings) > 20, findings
    assert any("NVIDIA driver 570.86, runs CUDA up to 12.8" in finding.what for finding in findings)


@pytest.mark.parametrize(("check", "status", "words", "changes"), CASES)
def test_a_fault_is_found_and_printed(
    check: str, status: str, words: str, changes: dict[str, Any], checkup: Callable[..., Checkup]
) -> None:
    """By the right check, with its status and fix, in 80 columns."""
    broken = checkup(**changes)
    found = [finding for finding in broken.findings if finding.check == check and finding.status == status]
    assert any(words in f"{finding.what} {finding.why} {finding.fix}" for finding in found), broken.findings
    assert broken.worst == min((finding.status for finding in broken.findings), key=STATUSES.index)
    printed = printed_document(doctor_document(broken))
    lines = printed.splitlines()
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []  # a path stays whole
    assert sum(STATUS.match(line) is not None for line in lines) == len(broken.findings)
    unwrapped = "".join(printed.replace("\\\n", "").split())
    for finding in broken.findings:
        assert finding.what and not finding.what.endswith(".")
        assert finding.status not in ("warning", "problem") or (finding.why and finding.fix), finding
        assert all("".join(text.split()) in unwrapped for text in (finding.what, finding.why, finding.fix))


def test_a_gpu_that_supports_no_query_is_not_a_finding(checkup: Callable[..., Checkup]) -> None:
    """Virtual GPUs and missing rights leave most questions unanswered."""
    bare = {
        **dict.fromkeys(NVML, None),
        **{name: NVML[name] for name in list(NVML)[:3]},
        "nvmlDeviceGetCount": lambda: 3,
    }
    answers = {name: answer for name, answer in bare.items() if answer is not None}
    silent = {name: lambda *_: (_ for _ in ()).throw(NvmlError()) for name in NVML if name not in answers}
    found = {finding.check: finding for finding in checkup(nvml={**silent, **answers}).findings}
    assert found["gpus"].what.startswith("3 x GPU") and {found["driver"].status, found["gpu-memory"].status} == {"ok"}


def test_a_check_that_fails_costs_only_its_lines(checkup: Callable[..., Checkup]) -> None:
    """On a system without /proc the other checks are made, and the missing ones are named."""
    found = checkup(files={"proc/meminfo": ""}).findings
    assert {each.check for each in found if each.status == "unknown"} == {"ram", "memory-limit"}
    assert any("KeyError" in each.what for each in found) and len(found) > 20


def test_variables_of_gpus_matter_to_jobs_that_are_submitted_from_a_machine_without(
    checkup: Callable[..., Checkup],
) -> None:
    bare = {"nvml": failing("no driver"), "hosts": False, "cuda": "", "files": NO_GPUS}
    names = ("NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING")
    found = checkup(environment=dict.fromkeys(names, "1"), **bare).findings
    warned = [finding for finding in found if finding.area == "environment"]
    assert [(each.status, each.what) for each in warned] == [("warning", f"{name}=1") for name in names]
    assert all(each.why.endswith(", in jobs that are submitted from here and inherit it") for each in warned)


def test_variables_between_gpus_do_not_matter_to_one(checkup: Callable[..., Checkup]) -> None:
    alone = checkup(environment={"NCCL_P2P_DISABLE": "1"}, nvml=gpus(A100), hosts=False)
    assert all(finding.status == "ok" for finding in alone.findings if finding.area == "environment")


@pytest.mark.parametrize(
    "environment",
    [
        {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""},  # as `launch --device cpu` sets them
        {"OMP_NUM_THREADS": "1"},
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "29501"},
        {"NCCL_SOCKET_IFNAME": "^eth7"},
        {"GLOO_SOCKET_IFNAME": "lo"},
    ],
)
def test_variables_of_gpus_do_not_matter_without_them(
    environment: dict[str, str], checkup: Callable[..., Checkup]
) -> None:
    """On two cores, where two ranks have one each."""
    bare = {"nvml": failing("no driver"), "cores": 2, "hosts": False, "cuda": ""}
    found = checkup(environment=environment, files={**NO_GPUS, "sys/class/net/lo": ""}, **bare).findings
    (finding,) = (each for each in found if each.area == "environment")
    assert (finding.status, "breaks a training on the CPU, or" in finding.what) == ("ok", True)


def test_variables_that_are_wrong_for_gpus_are_a_warning_without_them(checkup: Callable[..., Checkup]) -> None:
    """A login node has none, and jobs that are submitted there inherit them and fail."""
    for variable, words in {
        "NCCL_SOCKET_IFNAME=eth7": "no such network interface",
        "PYTORCH_ALLOC_CONF=expandable_segment:True": "no key of torch's allocator",
    }.items():
        variables = dict([variable.split("=")])
        files = {**NO_GPUS, "sys/class/net/lo": ""}
        found = checkup(environment=variables, files=files, nvml=failing("no driver"), hosts=False).findings
        (warned,) = [each for each in found if each.area == "environment"]
        assert warned.status == "warning" and words in warned.what
        assert "in jobs that are submitted from here and inherit it" in warned.why


def test_a_misspelled_variable_is_named(checkup: Callable[..., Checkup]) -> None:
    """Others with a similar name are real."""
    real = {"HIP_VISIBLE_DEVICES": "0", "MKL_NUM_THREADS": "1", "PYTORCH_XPU_ALLOC_CONF": "", "NCCL_NVLS_DISABLE": "1"}
    found = checkup(environment={"NCCL_IB_DISABL": "1", **real}, files={"sys/class/net/lo": ""}).findings
    (warned,) = [each for each in found if each.area == "environment"]
    assert (warned.status, warned.fix) == ("warning", "write NCCL_IB_DISABLE, or unset NCCL_IB_DISABL")


def test_interfaces_may_be_prefixes_or_exceptions(checkup: Callable[..., Checkup]) -> None:
    """As NCCL reads them; an unknown key of the allocator that resembles no known one may be of a newer torch."""
    for value in ("eth", "^docker", "=eth0", "ib,eth"):
        variables = {"NCCL_SOCKET_IFNAME": value, "PYTORCH_ALLOC_CONF": "a_new_key:[1:2,2:3],backend:native"}
        found = checkup(environment=variables, files={"sys/class/net/eth0": ""}).findings
        assert [each.status for each in found if each.area == "environment"] == ["ok"], value


@pytest.mark.parametrize(("file", "shown"), [("deepspeed/__init__.py", "deepspeed/"), ("torch.py", "torch.py")])
def test_a_module_that_hides_a_package_is_found(
    file: str, shown: str, checkup: Callable[..., Checkup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the current folder; a folder without `__init__.py` hides nothing."""
    (here := tmp_path / "here").mkdir()
    (here / "transformers").mkdir()
    monkeypatch.chdir(here)
    assert not [each for each in checkup().findings if each.check == "shadowed-packages"]
    (here / file).parent.mkdir(exist_ok=True)
    (here / file).touch()
    (found,) = [each for each in checkup().findings if each.check == "shadowed-packages"]
    assert found.status == "problem" and found.what.startswith(f"{shown} in the current folder")


def test_the_verdict_comes_first_and_nothing_steers_the_terminal(checkup: Callable[..., Checkup]) -> None:
    """The number of problems, of warnings, or that there is none; an ssh server's banner may contain anything."""
    assert printed_document(doctor_document(checkup())).startswith(" No problem found: DeepSpeed works here.\n")
    assert printed_document(doctor_document(checkup(cores=2))).startswith(" No problem, 1 warning")
    printed = printed_document(doctor_document(checkup(tools={"ssh": _failed("\x1b[2J\x07denied")})))
    assert printed.startswith(" 1 problem: DeepSpeed will fail here (ssh).") and "denied" in printed
    assert "\x1b" not in printed
    lock = {f"{OPS}/py{PYTHON}_cu128/cpu_adam/lock": ""}
    several = checkup(files=lock, packages={"deepspeed": None, "ninja": None}, environment={"PATH": ""})
    assert printed_document(doctor_document(several), 200).startswith(
        " 3 problems: DeepSpeed will fail here (deepspeed, ninja); trainings that need cpu_adam will hang.\n"
    )


@pytest.mark.parametrize("columns", [80, 40])
def test_effect_and_fix_stand_below_the_observation(columns: int, checkup: Callable[..., Checkup]) -> None:
    """In its column; on a narrow terminal below the check's name, as the observation itself."""
    lines = printed_document(doctor_document(checkup(cores=2)), columns).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("  warning"))
    end = next((each for each in range(at, len(lines)) if not lines[each]), len(lines))
    below = [line for line in lines[at + 1 : end] if line[:9].strip() == ""]
    assert any("fix: " in line for line in below)
    observation = re.match(r"  warning +[a-z-]+ *", lines[at])
    assert observation is not None
    assert (observation.end() == len(lines[at])) == (columns == 40)
    indent = observation.end() if columns == 80 else 10
    assert {len(line) - len(line.lstrip()) for line in below} <= {indent, indent + len("fix: ")}


def test_development_versions_are_compared(checkup: Callable[..., Checkup]) -> None:
    """A nightly torch, a release candidate of DeepSpeed."""
    found = checkup(packages={"torch": "2.8.0.dev20250601+cu128", "deepspeed": "0.18.1rc1"}).findings
    assert {finding.status for finding in found if finding.area == "versions"} == {"ok"}
    assert any("compiles c++17" in finding.what for finding in found)


BUILDS = {
    "torch's": [sys.executable, "-c", "import sys; lock = open(sys.argv[1]); print(); sys.stdin.read()"],
    "ds-advise's": [
        sys.executable,
        "-c",
        "import sys; from pathlib import Path; from ds_advise.probes.real_run.extension_lock import _marked_file\n"
        "lock = Path(sys.argv[1]); lock.unlink(); _marked_file(lock); print(); sys.stdin.read()",
    ],
    "a compiler": ["sh", "-c", "echo; exec c++ -DTORCH_EXTENSION_NAME=cpu_adam -x c++ -fsyntax-only -"],
}


@pytest.mark.parametrize("command", BUILDS.values(), ids=BUILDS)
def test_a_running_build_is_no_fault(command: Sequence[str], checkup: Callable[..., Checkup], tmp_path: Path) -> None:
    """A process that has the lock open, as torch's and ds-advise's do while they build, or compiles the op; once it is
    killed, its lock is a fault."""
    lock = left_lock(tmp_path / "own")

    def found() -> set[tuple[str, str]]:
        findings = checkup(environment={"TORCH_EXTENSIONS_DIR": str(tmp_path / "own")}).findings
        return {(each.status, each.what) for each in findings if each.check == "ops-folder"}

    with subprocess.Popen([*command, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            building = found()
        finally:
            process.kill()
    assert building == {
        ("note", f"cpu_adam is being compiled (pid {process.pid}), 0 min"),
        ("ok", "the folder of compiled ops is writable"),
    }
    assert found() == {("problem", "the op cpu_adam is locked for 0 min, and no process here compiles it")}


def test_stale_locks_are_one_problem_that_hangs_some_trainings(checkup: Callable[..., Checkup], tmp_path: Path) -> None:
    """Each lock has a command of its own, which stays in one line."""
    locks = [left_lock(tmp_path / "own", op) for op in ("cpu_adam", "fused_adam")]
    found = checkup(environment={"TORCH_EXTENSIONS_DIR": str(tmp_path / "own")})
    (locked,) = (each for each in found.findings if each.check == "ops-folder" and each.status == "problem")
    assert locked.effect == "trainings that need cpu_adam or fused_adam will hang"
    removals = [f"rm {lock}" for lock in locks]
    assert locked.fix.splitlines()[1:] == removals
    only = replace(found, findings=(locked,), counts=found.counts | {"problem": 1, "warning": 0})
    printed = printed_document(doctor_document(only), width=200)
    assert printed.startswith(" 1 problem: trainings that need cpu_adam or fused_adam will hang.")
    assert all(f"  {removal}\n" in printed for removal in removals)


def test_a_port_is_in_use_where_a_process_listens() -> None:
    """By really listening."""
    import socket

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port_state("127.0.0.1", port) == "in use"
    assert port_state("127.0.0.1", port) == "free"
    assert (rank_port({"MASTER_PORT": "7"}), rank_port({"MASTER_PORT": "no"})) == (7, 29500)


def test_packages_are_read_without_importing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions, torch's CUDA, and DeepSpeed's accelerators."""
    for name, text in {
        "torch/version.py": "from typing import Optional\ncuda: Optional[str] = '12.8'\nhip = None\n",
        "torch-2.8.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0\n",
        "deepspeed/accelerator/real_accelerator.py": "SUPPORTED_ACCELERATOR_LIST = ['cuda',\n    'new']\n",
        "deepspeed-0.19.8.dist-info/METADATA": "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = ExaminedMachine(environment={}).software
    assert found.packages == {"torch": "2.8.0", "deepspeed": "0.19.8"}
    assert found.torch_cuda == "12.8" and found.torch_hip == "" and found.torch_build == "cu128"
    assert InstalledSoftware(packages={}, torch_hip="6.2.41134-65d174c3e").torch_build == "rocm6241134-65d174c3e"
    assert found.accelerators == ["cuda", "new"]


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


HANGING = """
import threading
from ds_advise.validate.doctor import examine, machine
machine._read_graphics = lambda *_: threading.Event().wait()
found = {finding.check: finding.what for finding in examine().findings}
print(found["graphics"], "ram" in found)
"""


def test_a_driver_that_hangs_does_not_hold_the_doctor_up() -> None:
    """What does not answer in time is named, and everything else is reported. The program ends although a thread still
    waits."""
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=900)
    assert done.stdout == "could not be read: no answer within the time True\n", done


def test_every_faulty_line_of_a_hostfile_is_named(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("node1 slots=8\nnode1 slots=8\nnode2 8\n")
    with pytest.raises(ConfigFileError) as error:
        read_hostfile(tmp_path / "hostfile")
    assert "line 2: node1 is listed twice; line 3 is not a node with its slots: 'node2 8'" in str(error.value)
