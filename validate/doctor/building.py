"""Check whether DeepSpeed's ops can be compiled here, by small programs for the compilers that torch uses.

Requirements, from ops/op_builder/ of DeepSpeed 0.19.8 and torch/utils/cpp_extension.py of torch 2.13: a C++ compiler
(`CXX`, else `c++`) with OpenMP and `-march=native`, for `-std=c++20` with torch 2.12 or newer, else `-std=c++17`;
Python.h; ninja. async_io needs a program that calls io_submit to link with `-laio` (`has_function`). CUDA ops need nvcc
in the folder that `_find_cuda_home` finds: fused_adam always, async_io with a GPU.
"""

from __future__ import annotations

import os
import re
import shlex
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which

from ...estimators.units import alternatives, listed
from ...probes.real_run import extension_lock
from .. import parse_version
from .findings import Findings, note, ok, problem, unknown, warning
from .machine import ExaminedMachine

_LIMIT_S = 3.0
"""Time limit of one small program; the result of a slower compiler is unknown."""


def _compiled(machine: ExaminedMachine, command: Sequence[str], program: str) -> str | None:
    """Compile a small program. The line of output that explains why it was not compiled; "" if it was, None if the
    compiler is missing or exceeded the time limit. "OUT" in the command is a file that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        ran = machine.run([f"{folder}/out" if word == "OUT" else word for word in command], program, _LIMIT_S)
    if not ran.code:
        return None if ran.code is None else ""
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    error = next((line for line in lines if re.search(r"error|cannot find|No such file", line)), "")
    return error or (lines[0] if lines else f"exit code {ran.code}")


def _command(machine: ExaminedMachine, name: str, default: str) -> list[str]:
    """A compiler's command; `ccache g++` is two words."""
    return machine.environment.get(name, "").split() or [default]


def _version(machine: ExaminedMachine, command: Sequence[str]) -> str:
    """What a compiler prints for --version; "" if there is none. Raises TimeoutError if it does not answer."""
    ran = machine.run([*command, "--version"], "", _LIMIT_S)
    if ran.late:
        raise TimeoutError("a compiler does not print its version")
    return ran.out if ran.code == 0 else ""


def _nvcc(machine: ExaminedMachine) -> tuple[str, str]:
    """(command, version) of nvcc; the version is "" if there is none."""
    command = str(Path(find_cuda_home(machine.environment)) / "bin/nvcc")
    release = re.search(r"release (\d+\.\d+)", _version(machine, [command]))
    return command, release[1] if release else ""


def find_cuda_home(environment: Mapping[str, str]) -> str:
    """The CUDA toolkit's folder, found like `_find_cuda_home` in torch/utils/cpp_extension.py."""
    if named := environment.get("CUDA_HOME") or environment.get("CUDA_PATH"):
        return named
    if nvcc := which("nvcc", path=environment.get("PATH", os.defpath)):
        return str(Path(nvcc).parents[1])
    return "/usr/local/cuda" if Path("/usr/local/cuda").exists() else ""


def compiler(machine: ExaminedMachine) -> Findings:
    """Check for a C++ compiler with OpenMP that supports DeepSpeed's C++ standard."""
    cxx = _command(machine, "CXX", "c++")
    newest = parse_version(machine.software.packages.get("torch", "")).release >= (2, 12)
    standard = "c++20" if newest else "c++17"
    first_line = _version(machine, cxx).partition("\n")[0]
    if not first_line:
        named = machine.environment.get("CXX")
        yield problem(
            f"{named or 'c++'} cannot be run",
            "DeepSpeed compiles CPU Adam, fused Adam and its NVMe code at their first use",
            "point CXX at a C++ compiler" if named else "install g++ (Debian, Ubuntu: g++; Fedora, RHEL: gcc-c++)",
        )
        return
    error = _compiled(
        machine,
        [*cxx, f"-std={standard}", "-march=native", "-fopenmp", "-x", "c++", "-", "-o", "OUT"],
        "#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n",
    )
    if error is None:
        yield unknown(f"{first_line} did not compile three lines within three seconds")
    elif error:
        yield problem(
            f"{first_line} does not compile -std={standard} -march=native -fopenmp: {error[:120]}",
            "DeepSpeed compiles its ops with these flags",
            "install g++ 11 or newer and `export CXX=g++-11`",
        )
    else:
        yield ok(f"{first_line} compiles {standard} with OpenMP")


def python_headers(machine: ExaminedMachine) -> Findings:
    """Check for Python.h, which every op includes."""
    includes = f"-I{sysconfig.get_paths()['include']}"
    command = [*_command(machine, "CXX", "c++"), "-x", "c++", "-fsyntax-only", includes, "-"]
    error = _compiled(machine, command, "#include <Python.h>\n")
    if error:
        yield problem(
            "Python.h of this Python is not installed",
            "every op of DeepSpeed includes it",
            "install its headers (Debian, Ubuntu: python3-dev; Fedora, RHEL: python3-devel)",
        )
    elif error is None:
        yield unknown("whether Python.h is installed: the C++ compiler did not answer")
    else:
        yield ok("Python.h is installed")


def ninja(machine: ExaminedMachine) -> Findings:
    """Check for the command ninja, which torch's builds use."""
    if which("ninja", path=machine.environment.get("PATH", os.defpath)):
        yield ok("ninja is on PATH")
    elif "ninja" in machine.software.packages:
        yield problem(
            "ninja is installed in this Python, but the command is not on PATH",
            "torch calls it by name when DeepSpeed compiles an op",
            "activate the virtual environment before the training starts",
        )
    else:
        yield problem("ninja is not installed", "DeepSpeed cannot compile any op without it", "pip install ninja")


def cuda_toolkit(machine: ExaminedMachine) -> Findings:
    """Check that nvcc and torch have the same major CUDA version."""
    required = machine.software.torch_cuda
    if not required:
        return
    home, (_, own) = find_cuda_home(machine.environment), _nvcc(machine)
    if not own:
        where = f"in CUDA_HOME ({home})" if home else "and no CUDA toolkit"
        yield problem(
            f"no nvcc {where}",
            "fused Adam (AdamW in a ds_config without offload) and NVMe offload are compiled with it",
            f"install the CUDA toolkit {required} and `export CUDA_HOME=/usr/local/cuda-{required}`; without it "
            '"torch_adam": true in optimizer.params replaces fused Adam',
        )
    elif parse_version(own).major != parse_version(required).major:
        yield problem(
            f"nvcc is of CUDA {own}, torch is built for {required}",
            "DS_BUILD_OPS refuses this pair; ops compiled at first use may not load",
            f"point CUDA_HOME at a CUDA {parse_version(required).major} toolkit, or install torch built for CUDA "
            f"{parse_version(own).major}",
        )
    else:
        yield ok(f"nvcc {own} for torch's CUDA {required}")


def nvcc_and_compiler(machine: ExaminedMachine) -> Findings:
    """Check that nvcc accepts the C++ compiler: each version rejects newer compilers."""
    nvcc, version = _nvcc(machine) if machine.software.torch_cuda else ("", "")
    host = ["-ccbin", machine.environment["CC"]] if machine.environment.get("CC") else []  # as in torch's ninja file
    error = _compiled(machine, [nvcc, "-x", "cu", *host, "-E", "-"], "#include <cuda_runtime.h>\n") if version else ""
    if error is None:
        yield unknown("whether nvcc accepts the C++ compiler: it did not answer")
    elif error:
        yield problem(
            f"nvcc cannot compile three lines: {error[:140]}",
            "no CUDA op of DeepSpeed can be compiled",
            "if the compiler is too new for it, install an older g++ and `export CC=gcc-12 CXX=g++-12`",
        )


def links_libaio(machine: ExaminedMachine) -> bool | None:
    """Whether libaio can be linked; None if there is no compiler, or if it exceeded the time limit."""
    c_flags, linker_flags = (machine.environment.get(name, "").split() for name in ("CFLAGS", "LDFLAGS"))
    error = _compiled(
        machine,
        [*_command(machine, "CC", "cc"), *c_flags, "-x", "c", "-", *linker_flags, "-laio", "-o", "OUT"],
        "void io_submit(void);\nint main(void) { io_submit(); return 0; }\n",
    )
    return None if error is None else not error


def c_compiler(machine: ExaminedMachine) -> Findings:
    """Check that the C compiler that CC names can be run."""
    named = machine.environment.get("CC", "").strip()
    if named and not _version(machine, named.split()):
        yield problem(
            f"CC={named[:60]} cannot be run",
            "async_io is refused without it, nvcc compiles no CUDA op, and Triton no kernel",
            "point CC at a C compiler, or unset CC",
        )


def async_io(machine: ExaminedMachine) -> Findings:
    """Check for libaio, which async_io needs to swap to NVMe."""
    links = links_libaio(machine)
    if links is None:
        yield unknown("whether libaio can be linked: the C compiler (CC, else cc) did not answer")
    elif links:
        yield ok("libaio can be linked")
    else:
        report = problem if machine.nvme is not None else warning
        yield report(
            "libaio cannot be linked",
            'offload to NVMe (async_io) is refused: "Unable to JIT load the async_io op"',
            "install it (Debian, Ubuntu: libaio-dev; Fedora, RHEL: libaio-devel), or name its folders in CFLAGS and "
            "LDFLAGS",
        )


def ops_folder(machine: ExaminedMachine) -> Findings:
    """Check that the folder of compiled ops of this torch is writable and has no lock of a killed build.

    torch 2.13 utils/file_baton.py keeps its lock open until the build ends; other processes wait silently while the
    file exists. A lock that no process here holds is that of a killed build, or of another machine.
    """
    folder = extension_lock.build_folder(machine.environment, machine.software.torch_build)
    existing = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    writable = os.access(existing, os.W_OK | os.X_OK)
    if not writable:
        yield problem(
            f"{folder} is not writable",
            "compiled ops are stored there",
            "export TORCH_EXTENSIONS_DIR=/a/folder/of/yours",
        )
    left: dict[Path, float] = {}  # lock -> minutes
    for lock in sorted(folder.glob("*/lock")):
        with suppress(OSError):
            minutes, name = max(0.0, time.time() - lock.stat().st_mtime) / 60, lock.parent.name
            if process := extension_lock.builder(lock):
                running = f"{name} is being compiled ({process}), {minutes:.0f} min"
                yield note(running, "processes that need it wait until it ends")
            else:
                left[lock] = minutes
    if left:
        names, shortest = [lock.parent.name for lock in left], min(left.values())
        ops, are, them = ("op", "is", "it") if len(names) == 1 else ("ops", "are", "them")
        for_long = f"for {'' if len(left) == 1 else 'at least '}{shortest:.0f} min"
        yield problem(
            f"the {ops} {listed(names)} {are} locked {for_long}, and no process here compiles {them}",
            "a killed build leaves its lock, and every process that needs the op then waits forever, without a message",
            "\n".join(
                [
                    f"when no other machine compiles {them}:",
                    *(f"rm {shlex.quote(str(lock))}" for lock in left),
                ]
            ),
            effect=f"trainings that need {alternatives(names)} will hang",
        )
    if writable and not left:
        yield ok("the folder of compiled ops is writable")
