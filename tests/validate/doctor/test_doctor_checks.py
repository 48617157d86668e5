"""Each check of the doctor on facts of a sound machine and of broken ones."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from ds_advise.advisor.render.doctor import render_doctor
from ds_advise.advisor.text.language import translate, use_language
from ds_advise.estimators.phrase import named
from ds_advise.validate.doctor import STATUSES, MachineFacts, judge
from ds_advise.validate.doctor.building import OpsFolder, Toolchain
from ds_advise.validate.doctor.examine import AREAS
from ds_advise.validate.doctor.gpus import GpuState, Graphics
from ds_advise.validate.doctor.host import Folder, Memory, Processor
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
            "ninja": "1.13.0",
        },
        torch_cuda="12.8",
    ),
    toolchain=Toolchain(
        cxx="g++ 12.2.0",
        cxx_trial="",
        python_trial="",
        aio_trial="",
        nvcc_trial="",
        cuda_home="/usr/local/cuda",
        nvcc="12.8",
        ninja=True,
    ),
    ops_folder=OpsFolder(path="/home/ann/.cache/torch_extensions"),
    graphics=Graphics(
        driver="570.86",
        driver_cuda="12.8",
        on_the_bus=2,
        module_loaded=True,
        device_files=True,
        gpus=GPUS,
    ),
    memory=Memory(
        total_bytes=512 * GIB, available_bytes=500 * GIB, shared_bytes=256 * GIB, shared_free_bytes=255 * GIB
    ),
    processor=Processor(usable=64),
    folder=Folder(path="/nvme", filesystem="xfs"),
    nodes=(
        HostfileNode(name="n1", addresses=("10.0.0.1",), port_answer="free"),
        HostfileNode(name="n2", addresses=("10.0.0.2",)),
    ),
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


def no_gpu(**fields: Any) -> MachineFacts:
    return facts(graphics=Graphics(**{"error": "NVML Shared Library Not Found", **fields}))


def first_node(**fields: Any) -> MachineFacts:
    return replace(SOUND, nodes=(replace(SOUND.nodes[0], **fields), SOUND.nodes[1]))


def environment(**variables: str) -> MachineFacts:
    return facts(environment=variables)


PACKAGES = dict(SOUND.software.packages)  # type: ignore[union-attr]
NO_AIO = "cannot find -laio"


def without(package: str) -> dict[str, Any]:
    return {"packages": {name: version for name, version in PACKAGES.items() if name != package}}


WITHOUT_PACKAGE = {
    name: {key: value for key, value in PACKAGES.items() if key != name} for name in ("torch", "deepspeed", "ninja")
}

CASES: tuple[tuple[str, str, str, MachineFacts], ...] = (
    # check, status, words of the finding, facts
    ("driver", "note", "no NVIDIA GPU", no_gpu()),
    ("driver", "note", "AMD", no_gpu(other_vendor="AMD")),
    ("driver", "problem", "no NVIDIA driver is loaded", no_gpu(on_the_bus=2)),
    ("driver", "problem", "--gpus all", no_gpu(on_the_bus=2, module_loaded=True)),
    ("driver", "problem", "reboot", no_gpu(on_the_bus=1, module_loaded=True, error="an NVML/RM version mismatch.")),
    ("driver", "problem", "NVML Shared Library", no_gpu(on_the_bus=1, module_loaded=True, device_files=True)),
    ("torch", "problem", "pip install torch", facts(software=without("torch") | {"torch_cuda": ""})),
    ("torch", "problem", "without CUDA", facts(software={"torch_cuda": ""})),
    ("torch-and-driver", "problem", "580", facts(software={"torch_cuda": "13.0"})),
    ("deepspeed", "problem", "pip install deepspeed", facts(software=without("deepspeed"))),
    ("deepspeed", "note", "0.14.4", facts(software={"packages": {**PACKAGES, "deepspeed": "0.14.4"}})),
    ("compiler", "problem", "install g++", facts(toolchain={"cxx": "", "cxx_trial": None})),
    ("compiler", "problem", "g++-99", facts(toolchain={"cxx": "", "cxx_trial": None}, environment={"CXX": "g++-99"})),
    ("compiler", "problem", "c++20", facts(toolchain={"cxx_trial": "error: unrecognized option -std=c++20"})),
    ("compiler", "unknown", "three seconds", facts(toolchain={"cxx_trial": None})),
    ("python-headers", "problem", "python3-dev", facts(toolchain={"python_trial": "Python.h: No such file"})),
    ("ninja", "problem", "pip install ninja", facts(toolchain={"ninja": False}, software=without("ninja"))),
    ("ninja", "problem", "activate", facts(toolchain={"ninja": False})),
    ("cuda-toolkit", "problem", "torch_adam", facts(toolchain={"nvcc": "", "nvcc_trial": None, "cuda_home": ""})),
    ("cuda-toolkit", "problem", "CUDA 12 toolkit", facts(toolchain={"nvcc": "11.8"})),
    ("nvcc-and-compiler", "problem", "unsupported GNU", facts(toolchain={"nvcc_trial": "#error: unsupported GNU"})),
    ("async-io", "problem", "libaio-dev", facts(toolchain={"aio_trial": NO_AIO})),
    ("async-io", "warning", "libaio-dev", facts(toolchain={"aio_trial": NO_AIO}, folder=None)),
    ("ops-folder", "problem", "waits forever", facts(ops_folder={"locks": (("cpu_adam", 60.0),)})),
    ("ops-folder", "problem", "TORCH_EXTENSIONS_DIR", facts(ops_folder={"writable": False})),
    ("gpus", "warning", "slowest", gpu(name="NVIDIA A100-SXM4-40GB", memory_bytes=40 * GIB, free_bytes=40 * GIB)),
    ("gpu-memory", "warning", "python (30.0 GiB)", gpu(free_bytes=50 * GIB, processes=(("python", 30 * GIB),))),
    ("gpu-memory", "warning", "no visible process", gpu(free_bytes=50 * GIB)),
    ("ram", "warning", "10.0 of 512.0", facts(memory={"available_bytes": 10 * GIB})),
    ("memory-limit", "note", "--ram 64GiB", facts(memory={"limit_bytes": 64 * GIB, "limit_used_bytes": GIB})),
    ("memory-limit", "warning", "2 processes", facts(memory={"killed": 2})),
    ("locked-memory", "problem", "8 MiB", facts(memory={"lockable_bytes": 8 * 2**20})),
    ("locked-memory", "problem", "InfiniBand", facts(memory={"lockable_bytes": 65536, "rdma": True}, folder=None)),
    ("locked-memory", "note", "ulimit -l", facts(memory={"lockable_bytes": 8 * 2**20}, folder=None)),
    ("shared-memory", "problem", "--shm-size", facts(memory={"shared_bytes": 64 * 2**20})),
    ("shared-memory", "warning", "64 MiB", facts(memory={"shared_bytes": 64 * 2**20}, graphics={"gpus": GPUS[:1]})),
    ("shared-memory", "problem", "missing", facts(memory={"shared_bytes": None})),
    ("shared-memory", "warning", "full", facts(memory={"shared_free_bytes": 2**20})),
    ("cores", "warning", "OMP_NUM_THREADS=4", facts(processor={"quota": 8.0})),
    ("cores", "warning", "2 cores for 2 ranks", facts(processor={"usable": 2})),
    ("swap-folder", "problem", "does not exist", facts(folder={"error": "it does not exist"})),
    ("swap-folder", "problem", "in RAM", facts(folder={"filesystem": "tmpfs"})),
    ("swap-folder", "warning", "network", facts(folder={"filesystem": "nfs4"})),
    ("environment", "warning", "NCCL_P2P_DISABLE=1", environment(NCCL_P2P_DISABLE="1")),
    ("environment", "warning", "unset CUDA_LAUNCH_BLOCKING", environment(CUDA_LAUNCH_BLOCKING="1")),
    ("environment", "warning", "cores per rank", environment(OMP_NUM_THREADS="1")),
    ("names", "problem", "not known", first_node(addresses=(), unresolved="Name or service not known")),
    ("names", "problem", "127.0.1.1", first_node(addresses=("127.0.1.1",))),
    ("ssh", "problem", "ssh-copy-id", first_node(ssh_error="Permission denied (publickey,password).")),
    ("ssh", "problem", "accept its key", first_node(ssh_error="Host key verification failed.")),
    ("rendezvous", "problem", "29501", first_node(port_answer="in use")),
    ("rendezvous", "problem", "firewall", first_node(port_answer="no answer")),
    ("rendezvous", "unknown", "does not answer", first_node(port_answer="no answer", ssh_error="timed out")),
)


def test_every_check_passes_a_sound_machine_and_fails_a_broken_one() -> None:
    """Every check has an example that it finds, and none finds anything on the sound machine."""
    checks = {check.__name__.replace("_", "-") for checks in AREAS.values() for check in checks}
    assert checks == {check for check, *_ in CASES}
    findings = judge(SOUND).findings
    assert {finding.status for finding in findings} == {"ok"} and len(findings) > 20


@pytest.mark.parametrize(("check", "status", "words", "broken"), CASES)
def test_a_fault_is_found_and_printed(check: str, status: str, words: str, broken: MachineFacts) -> None:
    """By the right check, with its status and fix; the findings are complete, and fit 80 columns."""
    checkup = judge(broken)
    found = [finding for finding in checkup.findings if finding.check == check and finding.status == status]
    assert any(words in f"{finding.what} {finding.why} {finding.fix}" for finding in found), checkup.findings
    assert checkup.worst == min((finding.status for finding in checkup.findings), key=STATUSES.index)
    printed = printed_of(broken)
    lines = printed.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert sum(STATUS.match(line) is not None for line in lines) == len(checkup.findings)
    unwrapped = " ".join(printed.split())
    for finding in checkup.findings:
        assert finding.what and not finding.what.endswith(".")
        assert finding.status not in ("warning", "problem") or (finding.why and finding.fix), finding
        assert all(" ".join(text.split()) in unwrapped for text in (finding.what, finding.why, finding.fix))


def test_a_fault_in_chinese_has_no_english_reason_and_fix() -> None:
    """Commands and messages of other programs stay as they are."""
    english = re.compile(r"(?:\b[a-z']{3,},? ){4}")
    with use_language("zh"):
        for *_, broken in (case.values if isinstance(case, type(pytest.param())) else case for case in CASES):
            for finding in judge(broken).findings:
                for text in (finding.why, finding.fix):
                    chinese = re.sub('`.*?`|".*?"|: .*', "", translate(named(text)))
                    assert not english.search(chinese), text


def printed_of(machine: MachineFacts) -> str:
    output = StringIO()
    render_doctor(judge(machine), Console(file=output, width=80))
    return output.getvalue()


def test_unread_parts_have_no_findings() -> None:
    """A machine without any facts gets one line for each unread part."""
    empty = judge(MachineFacts(unread=(("memory", "KeyError: 'MemTotal'"),)))
    assert [(finding.area, finding.check, finding.status) for finding in empty.findings] == [
        ("environment", "environment", "ok"),
        ("unread", "memory", "unknown"),
    ]


def test_variables_between_gpus_do_not_matter_to_one() -> None:
    graphics = replace(SOUND.graphics, gpus=GPUS[:1])  # type: ignore[type-var]
    alone = replace(environment(NCCL_P2P_DISABLE="1"), graphics=graphics, nodes=())
    assert all(finding.status == "ok" for finding in judge(alone).findings if finding.area == "environment")


def test_the_verdict_comes_first() -> None:
    """The number of problems, of warnings, or that there is none."""
    assert printed_of(facts(toolchain={"ninja": False})).startswith(" 1 problem: DeepSpeed will fail here.")
    assert printed_of(facts(memory={"killed": 2})).startswith(" No problem, 1 warning")
    assert printed_of(SOUND).startswith(" No problem found: DeepSpeed works here.\n")


def test_nothing_that_was_read_steers_the_terminal() -> None:
    """An ssh server's banner, a compiler's message and a variable may hold anything."""
    strange = replace(first_node(ssh_error="\x1b[2J\x07denied"), environment={"NCCL_ALGO": "\x1b[31mRing"})
    printed = printed_of(strange)
    assert "denied" in printed and "\x1b" not in printed


def test_development_versions_are_compared() -> None:
    """A Python built from its repository, a nightly torch, a release candidate of DeepSpeed."""
    packages = {**PACKAGES, "torch": "2.8.0.dev20250601+cu128", "deepspeed": "0.18.1rc1"}
    report = judge(facts(software={"python": "3.14.0+", "packages": packages}))
    assert {finding.status for finding in report.findings if finding.area == "versions"} == {"ok"}
