"""Environment variables that break a training or slow it down.

Sources: NCCL's user guide ("Environment Variables"); torch/csrc/distributed/c10d, c10/cuda and c10/core of torch 2.13;
DeepSpeed 0.19.8 accelerator/real_accelerator.py, comm/comm.py and ops/op_builder/builder.py. Peer access of the RTX
4090: DeepSpeed issue 4433, NVIDIA/nccl-tests issue 117.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec
from typing import NamedTuple

from ...probes.machine import cpu_cores
from .findings import Findings, ok, problem, warning
from .machine import ExaminedMachine

_ON = ("1", "true", "on", "yes", "y")
"""Values in lower case that NCCL, torch and CUDA accept as true."""


class VariableRule(NamedTuple):
    """Values of an environment variable that are reported."""

    values: tuple[str, ...]
    """The values in lower case; empty for any non-empty value."""
    least_gpus: int
    """Number of GPUs from which the variable matters; 0: also on the CPU."""
    why: str
    fix: str = ""
    """"" for the default fix, `unset NAME`."""


RULES = {
    "NCCL_P2P_DISABLE": VariableRule(
        _ON,
        2,
        "GPUs communicate through host memory instead of NVLink; it cures hangs of cards whose peer access does not "
        "work, such as the RTX 4090",
        "unset NCCL_P2P_DISABLE, unless collectives hang without it",
    ),
    "NCCL_SHM_DISABLE": VariableRule(_ON, 2, "GPUs without peer access communicate over TCP"),
    "NCCL_IB_DISABLE": VariableRule(
        _ON, 1, "nodes communicate over TCP although InfiniBand or RoCE may exist; on one node it changes nothing"
    ),
    "TORCH_NCCL_BLOCKING_WAIT": VariableRule(_ON, 1, "the host waits for every collective: nothing overlaps"),
    "TORCH_DISTRIBUTED_DEBUG": VariableRule(("detail",), 0, "every collective is checked by another one first"),
    "CUDA_LAUNCH_BLOCKING": VariableRule(_ON, 1, "the host waits for every kernel: nothing overlaps"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": VariableRule((), 1, "the driver allocates every tensor: very slow steps"),
}

_VISIBLE = "CUDA_VISIBLE_DEVICES"

_ACCELERATOR_MODULES = {
    "npu": "torch_npu",
    "sdaa": "torch_sdaa",
    "hpu": "habana_frameworks",
    "mlu": "torch_mlu",
    "supa": "torch_supa",
    "klxpu": "torch_xmlir",
}
"""DS_ACCELERATOR -> the module that DeepSpeed imports for it."""

_ALLOCATOR_KEYS = (
    *("max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb", "garbage_collection_threshold"),
    *("roundup_power2_divisions", "expandable_segments", "backend", "release_lock_on_cudamalloc"),
    *("pinned_use_background_threads", "pinned_use_cuda_host_register", "pinned_num_register_threads"),
    *("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb", "pinned_reserve_segment_size_mb"),
    *("per_process_memory_fraction", "graph_capture_record_stream_reuse"),
)
"""Keys of PYTORCH_ALLOC_CONF (c10/core/AllocatorConfig.cpp, c10/cuda/CUDAAllocatorConfig.h). Another version has
others: only a key that resembles one of these is taken for a mistake."""


_NAMES = (
    *RULES,
    *(_VISIBLE, "DS_ACCELERATOR", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_RANK"),
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)
"""Names that others may be misspellings of."""

_INHERIT = "are submitted from here and inherit it"
"""Why a variable matters on a machine without GPUs."""

_SAME_NAME = 0.93
"""Least similarity of a misspelled name: one letter of 15 differs or lacks. Real variables of NCCL, torch and other
makers are less similar: the nearest, `PYTORCH_XPU_ALLOC_CONF`, has 0.89."""


def environment(machine: ExaminedMachine) -> Findings:
    """Check for environment variables with harmful values."""
    found = [finding for look in _LOOKS for finding in look(machine)]
    # some matter on GPUs only, or between them
    device = {0: "the CPU", 1: "one GPU"}.get(_gpus(machine), "GPUs")
    yield from found or [ok(f"no variable breaks a training on {device}, or slows it down")]


def _gpus(machine: ExaminedMachine) -> int:
    """GPUs that a training may use; two if nodes or a driver that does not answer may have more."""
    own = machine.gpu_count
    return 2 if own is None or machine.hosts else own


def _set(machine: ExaminedMachine, *names: str) -> Iterator[tuple[str, str, str]]:
    """(name, value, `name=value`) of the variables that are set to a text."""
    for name in names:
        if value := machine.environment.get(name, ""):
            yield name, value, f"{name}={value[:60]}"


def _switches(machine: ExaminedMachine) -> Findings:
    for name, value, written in _set(machine, *RULES):
        rule, gpus = RULES[name], _gpus(machine)
        matters = gpus >= rule.least_gpus or not gpus
        if matters and (not rule.values or value.lower() in rule.values):
            where = "" if gpus >= rule.least_gpus else f", in jobs that {_INHERIT}"
            yield warning(written, f"{rule.why}{where}", rule.fix or f"unset {name}")


def _accelerator(machine: ExaminedMachine) -> Findings:
    """DS_ACCELERATOR must be a name that DeepSpeed knows, and of a device that this Python supports."""
    value, software = machine.environment.get("DS_ACCELERATOR"), machine.software
    if value is None:
        return
    written, missing = f"DS_ACCELERATOR={value[:40]}", ""
    if value not in software.accelerators:
        yield problem(
            f"{written} is no accelerator of DeepSpeed",
            f"`import deepspeed` fails; it must be one of {', '.join(software.accelerators)}",
            "unset DS_ACCELERATOR, and DeepSpeed finds the device itself",
        )
    elif value == "cpu":
        if machine.gpu_count:
            yield warning(written, "DeepSpeed uses the CPU instead of the GPUs", "unset DS_ACCELERATOR")
    elif value == "cuda":
        if not (software.torch_cuda or software.torch_hip):
            missing = "a torch built with CUDA or ROCm"
        elif machine.gpu_count == 0 and not software.torch_hip:
            missing = "an NVIDIA GPU"
    elif value == "mps":
        missing = "" if sys.platform == "darwin" else "macOS"
    elif (module := _ACCELERATOR_MODULES.get(value)) and find_spec(module) is None:
        missing = f"the module {module}"
    if missing:
        yield problem(f"{written} needs {missing}", "DeepSpeed fails at its start", "unset DS_ACCELERATOR")


def _visible_gpus(machine: ExaminedMachine) -> Findings:
    """CUDA ignores the first GPU that does not exist, and all GPUs after it."""
    value, count = machine.environment.get(_VISIBLE), machine.gpu_count or 0
    if value is None or not count or machine.environment.get("DS_ACCELERATOR") == "cpu":
        return
    named = [word.strip() for word in value.split(",")] if value.strip() else []
    is_absent = [re.fullmatch(r"-?\d+", word) is not None and not 0 <= int(word) < count for word in named]
    written = f"{_VISIBLE}={value[:40]}"
    has = f"this machine has {count} GPU{'s' * (count > 1)}, numbered from 0"
    if named in ([], ["-1"]):
        yield warning(f"{written} hides every GPU", f"trainings run on the CPU, or fail; {has}", f"unset {_VISIBLE}")
    elif any(is_absent):
        at = is_absent.index(True)
        yield problem(
            f"{written}: there is no GPU {named[at]}",
            f"CUDA uses only the {at} before it; {has}" if at else f"CUDA finds no GPU; {has}",
            f"unset {_VISIBLE}, or name GPUs that exist",
        )


def _threads(machine: ExaminedMachine) -> Findings:
    cores, ranks = cpu_cores(machine.root), machine.gpu_count or 2  # by default two processes on the CPU
    share = max(1, cores // ranks)
    for _, value, written in _set(machine, "OMP_NUM_THREADS"):
        threads, fix = int(value) if value.isdecimal() else 0, f"export OMP_NUM_THREADS={share}, the cores per rank"
        if threads == 1 and share > 1:
            yield warning(written, "CPU Adam runs on one thread per rank (torchrun sets it by default)", fix)
        elif threads > cores:
            has = f"{cores} core{'s' * (cores > 1)}"
            yield warning(
                f"{written} on {has}", "the threads of an operation wait for a core, and then for each other", fix
            )


def _place(machine: ExaminedMachine) -> Findings:
    """Variables of a rank, as a launcher sets them."""
    place = list(_set(machine, "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"))
    numbers = {name: int(value) for name, value, _ in place if name != "MASTER_ADDR" and value.isdecimal()}
    if numbers.get("WORLD_SIZE", 1) > 1 or any(numbers.get(name) for name in ("RANK", "LOCAL_RANK")):
        yield warning(
            " ".join(written for *_, written in place),
            "a command without a launcher (python train.py) takes itself for one of these ranks and waits for all",
            f"unset {' '.join(name for name, *_ in place)}, unless a launcher or scheduler has set them for this job",
        )
    for _, value, written in _set(machine, "MASTER_PORT"):
        if not (value.isdecimal() and 0 < int(value) < 2**16):
            yield problem(
                f"{written} is not a port",
                "ranks that are started without a launcher meet there",
                "unset MASTER_PORT, or set it to a number from 1 to 65535",
            )


def _interfaces(machine: ExaminedMachine) -> Findings:
    """The network interfaces that NCCL and gloo are told to use.

    NCCL takes prefixes of names, after `=` whole names, after `^` those that it must not use; gloo takes whole names.
    """
    folder = machine.root / "sys/class/net"
    existing = sorted(each.name for each in folder.glob("*"))
    if not existing:
        return
    for name, value, written in _set(machine, "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        is_nccl = name.startswith("NCCL")
        wanted = [word.strip() for word in value.removeprefix("=").split(",") if word.strip()]
        whole = not is_nccl or value.startswith("=")
        found = [each for each in existing for word in wanted if each == word or (not whole and each.startswith(word))]
        if value.startswith("^") or found:
            continue
        # Only GPUs communicate by NCCL. A job that is submitted here inherits the variable; its node may differ.
        is_here = not is_nccl or _gpus(machine)
        report, where = (problem, "") if is_here else (warning, f" in jobs that {_INHERIT}, on a node without it")
        yield report(
            f"{written}: there is no such network interface",
            f"{'NCCL' if is_nccl else 'gloo'} fails at its start{where}; the interfaces are {', '.join(existing[:6])}",
            f"unset {name}, or name an interface of `ip addr`",
        )


def _allocator(machine: ExaminedMachine) -> Findings:
    for name, value, _ in _set(machine, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        for key in re.findall(r"(?:^|,)\s*(\w+)\s*:", re.sub(r"\[[^]]*\]", "", value)):
            near = get_close_matches(key, _ALLOCATOR_KEYS, 1, 0.8)
            if not near or near[0] == key:
                continue
            report, where = (problem, "") if _gpus(machine) else (warning, f" in jobs that {_INHERIT}")
            yield report(
                f"{key} in {name} is no key of torch's allocator",
                f"torch fails at the first use of the GPU{where}",
                f"write {near[0]}",
            )


def _misspelled(machine: ExaminedMachine) -> Findings:
    """A variable with nearly the name of one that a training reads: nothing reads it."""
    for name in machine.environment:
        near = get_close_matches(name, _NAMES, 1, _SAME_NAME)
        if near and near[0] != name:
            yield warning(
                f"{name} is set", "nothing reads a variable of this name", f"write {near[0]}, or unset {name}"
            )


_LOOKS = (_accelerator, _visible_gpus, _switches, _threads, _place, _interfaces, _allocator, _misspelled)
