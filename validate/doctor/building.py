"""Check whether DeepSpeed's ops can be compiled here, by small programs for the compilers that torch uses.

Requirements, from ops/op_builder/ of DeepSpeed 0.19.8 and torch/utils/cpp_extension.py of torch 2.13: a C++ compiler
(`CXX`, else `c++`) with OpenMP and `-march=native`, for `-std=c++20` with torch 2.12 or newer, else `-std=c++17`;
Python.h; ninja. async_io needs a program that calls io_submit to link with `-laio` (`has_function`). CUDA ops need nvcc
in the folder that `_find_cuda_home` finds: fused_adam always, async_io with a GPU.
"""

from __future__ import annotations

import os
import re
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from ...estimators.phrase import phrase
from ...probes.real_run.supervisor import open_files
from .. import parse_version
from .findings import Findings, Runner, ok, problem, unknown, warning
from .host import Folder
from .software import InstalledSoftware

_LIMIT_S = 3.0
"""Time limit of one small program; the result of a slower compiler is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """The tools that compile DeepSpeed's ops at their first use.

    A trial is the line of output that explains why a small program was not compiled; "" if it was, None if the compiler
    is missing or exceeded the time limit.
    """

    cxx: str = ""
    """torch's C++ compiler by its own description ("g++ (Debian 12.2.0-14) 12.2.0"); "" if there is none."""
    standard: str = "c++17"
    """The C++ standard that DeepSpeed uses."""
    cxx_trial: str | None = None
    """Trial of a program in that standard with OpenMP for this processor."""
    python_trial: str | None = None
    """Trial of a program that includes Python.h."""
    aio_trial: str | None = None
    """Trial of a program that calls libaio."""
    nvcc_trial: str | None = None
    """Trial of a program for nvcc, which rejects C++ compilers that it does not know."""
    cuda_home: str = ""
    """The folder of the CUDA toolkit that torch would use; "" if there is none."""
    nvcc: str = ""
    """Version of nvcc ("12.4"); "" if there is none."""
    ninja: bool = False
    """Whether the command ninja is on PATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsFolder:
    """The folder of compiled ops."""

    path: str
    writable: bool = True
    locks: tuple[tuple[str, float], ...] = ()
    """(op, age in seconds) of each lock that no local process has open. torch 2.13 utils/file_baton.py keeps its lock
    open until the build ends; other processes wait silently while the file exists."""


def read_toolchain(run: Runner, environment: Mapping[str, str], torch_version: str) -> Toolchain:
    """Compile the four programs in parallel. Raises TimeoutError if a compiler does not answer."""
    cxx = environment.get("CXX", "").split() or ["c++"]  # `ccache g++` is two words
    cc = environment.get("CC", "").split() or ["cc"]
    standard = "c++20" if parse_version(torch_version).release >= (2, 12) else "c++17"
    paths = environment.get("PATH", os.defpath)
    cuda_home = find_cuda_home(environment)
    nvcc = str(Path(cuda_home) / "bin/nvcc")
    host_compiler = ["-ccbin", environment["CC"]] if environment.get("CC") else []  # as in torch's ninja file
    c_flags, linker_flags = environment.get("CFLAGS", "").split(), environment.get("LDFLAGS", "").split()
    includes = f"-I{sysconfig.get_paths()['include']}"

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(6) as pool:

        def trial(command: list[str], program: str) -> str | None:
            ran = run(command, program, _LIMIT_S)
            if not ran.code:
                return None if ran.code is None else ""
            lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
            error = next((line for line in lines if re.search(r"error|cannot find|No such file", line)), "")
            return error or (lines[0] if lines else f"exit code {ran.code}")

        cpu = pool.submit(
            trial,
            [*cxx, f"-std={standard}", "-march=native", "-fopenmp", "-x", "c++", "-", "-o", f"{folder}/cpu"],
            "#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n",
        )
        python = pool.submit(trial, [*cxx, "-x", "c++", "-fsyntax-only", includes, "-"], "#include <Python.h>\n")
        aio = pool.submit(
            trial,
            [*cc, *c_flags, "-x", "c", "-", *linker_flags, "-laio", "-o", f"{folder}/aio"],
            "void io_submit(void);\nint main(void) { io_submit(); return 0; }\n",
        )
        cuda = pool.submit(trial, [nvcc, "-x", "cu", *host_compiler, "-E", "-"], "#include <cuda_runtime.h>\n")
        cxx_version = pool.submit(run, [*cxx, "--version"], "", _LIMIT_S).result()
        nvcc_version = pool.submit(run, [nvcc, "--version"], "", _LIMIT_S).result()
        if cxx_version.late or nvcc_version.late:
            raise TimeoutError("a compiler does not print its version")
        release = re.search(r"release (\d+\.\d+)", nvcc_version.out)
        first_line = cxx_version.out.splitlines()[:1] if cxx_version.code == 0 else []
        return Toolchain(
            cxx=first_line[0] if first_line else "",
            standard=standard,
            cxx_trial=cpu.result() if first_line else None,
            python_trial=python.result() if first_line else None,
            aio_trial=aio.result(),
            nvcc_trial=cuda.result() if release else None,
            cuda_home=cuda_home,
            nvcc=release[1] if release else "",
            ninja=which("ninja", path=paths) is not None,
        )


def find_cuda_home(environment: Mapping[str, str]) -> str:
    """The CUDA toolkit's folder, found like `_find_cuda_home` in torch/utils/cpp_extension.py."""
    if named := environment.get("CUDA_HOME") or environment.get("CUDA_PATH"):
        return named
    if nvcc := which("nvcc", path=environment.get("PATH", os.defpath)):
        return str(Path(nvcc).parents[1])
    return "/usr/local/cuda" if Path("/usr/local/cuda").exists() else ""


def read_ops_folder(environment: Mapping[str, str]) -> OpsFolder:
    """The folder of compiled ops, and the locks of running or killed builds."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or "~").expanduser() / ".cache")
    folder = Path(environment.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions")
    existing = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    found = sorted([*folder.glob("*/lock"), *folder.glob("*/*/lock")])  # <op>/lock, or <python and CUDA>/<op>/lock
    processes = Path("/proc").glob("[0-9]*") if found else ()
    in_use = {file for process in processes for file in open_files(process)}
    locks = []
    for lock in found:
        with suppress(OSError):
            age_s = max(0.0, time.time() - lock.stat().st_mtime)
            if os.path.realpath(lock) not in in_use:
                locks.append((lock.parent.name, age_s))
    return OpsFolder(path=str(folder), writable=os.access(existing, os.W_OK | os.X_OK), locks=tuple(locks))


def compiler(toolchain: Toolchain, environment: Mapping[str, str]) -> Findings:
    """Check for a C++ compiler with OpenMP that supports DeepSpeed's C++ standard."""
    if not toolchain.cxx:
        named = environment.get("CXX")
        yield problem(
            phrase("{compiler} cannot be run", compiler=named or "c++"),
            "DeepSpeed compiles CPU Adam, fused Adam and its NVMe code at their first use",
            "point CXX at a C++ compiler" if named else "install g++ (Debian, Ubuntu: g++; Fedora, RHEL: gcc-c++)",
        )
    elif toolchain.cxx_trial is None:
        yield unknown(phrase("{cxx} did not compile three lines within three seconds", cxx=toolchain.cxx))
    elif toolchain.cxx_trial:
        yield problem(
            phrase(
                "{cxx} does not compile -std={standard} -march=native -fopenmp: {error}",
                cxx=toolchain.cxx,
                standard=toolchain.standard,
                error=toolchain.cxx_trial[:120],
            ),
            "DeepSpeed compiles its ops with these flags",
            "install g++ 11 or newer and `export CXX=g++-11`",
        )
    else:
        yield ok(phrase("{cxx} compiles {standard} with OpenMP", cxx=toolchain.cxx, standard=toolchain.standard))


def python_headers(toolchain: Toolchain) -> Findings:
    """Check for Python.h, which every op includes."""
    if toolchain.python_trial:
        yield problem(
            "Python.h of this Python is not installed",
            "every op of DeepSpeed includes it",
            "install its headers (Debian, Ubuntu: python3-dev; Fedora, RHEL: python3-devel)",
        )
    elif toolchain.python_trial == "":
        yield ok("Python.h is installed")


def ninja(toolchain: Toolchain, software: InstalledSoftware | None = None) -> Findings:
    """Check for the command ninja, which torch's builds use."""
    if toolchain.ninja:
        yield ok("ninja is on PATH")
    elif software and "ninja" in software.packages:
        yield problem(
            "ninja is installed in this Python, but the command is not on PATH",
            "torch calls it by name when DeepSpeed compiles an op",
            "activate the virtual environment before the training starts",
        )
    else:
        yield problem("ninja is not installed", "DeepSpeed cannot compile any op without it", "pip install ninja")


def cuda_toolkit(software: InstalledSoftware, toolchain: Toolchain) -> Findings:
    """Check that nvcc and torch have the same major CUDA version."""
    if not software.torch_cuda:
        return
    own = toolchain.nvcc
    of_torch = software.torch_cuda
    own_version = parse_version(own)
    torch_version = parse_version(of_torch)
    if not own:
        where = (
            phrase("in CUDA_HOME ({cuda_home})", cuda_home=toolchain.cuda_home)
            if toolchain.cuda_home
            else phrase("and no CUDA toolkit")
        )
        yield problem(
            phrase("no nvcc {where}", where=where),
            "fused Adam (AdamW in a ds_config without offload) and NVMe offload are compiled with it",
            phrase(
                "install the CUDA toolkit {of_torch} and `export CUDA_HOME=/usr/local/cuda-{of_torch}`; without it "
                '"torch_adam": true in optimizer.params replaces fused Adam',
                of_torch=of_torch,
            ),
        )
    elif own_version.major != torch_version.major:
        yield problem(
            phrase("nvcc is of CUDA {own}, torch is built for {of_torch}", own=own, of_torch=of_torch),
            "DS_BUILD_OPS refuses this pair; ops compiled at first use may not load",
            phrase(
                "point CUDA_HOME at a CUDA {cuda} toolkit, or install torch built for CUDA {own}",
                cuda=torch_version.major,
                own=own_version.major,
            ),
        )
    else:
        yield ok(phrase("nvcc {own} for torch's CUDA {of_torch}", own=own, of_torch=of_torch))


def nvcc_and_compiler(toolchain: Toolchain, software: InstalledSoftware) -> Findings:
    """Check that nvcc accepts the C++ compiler: each version rejects newer compilers."""
    if toolchain.nvcc_trial and software.torch_cuda:
        yield problem(
            phrase("nvcc cannot compile three lines: {error}", error=toolchain.nvcc_trial[:140]),
            "no CUDA op of DeepSpeed can be compiled",
            "if the compiler is too new for it, install an older g++ and `export CC=gcc-12 CXX=g++-12`",
        )


def async_io(toolchain: Toolchain, folder: Folder | None = None) -> Findings:
    """Check for libaio, which async_io needs to swap to NVMe."""
    if toolchain.aio_trial:
        report = problem if folder is not None else warning
        yield report(
            "libaio cannot be linked",
            'offload to NVMe (async_io) is refused: "Unable to JIT load the async_io op"',
            "install it (Debian, Ubuntu: libaio-dev; Fedora, RHEL: libaio-devel), or name its folders in CFLAGS and "
            "LDFLAGS",
        )
    elif toolchain.aio_trial == "":
        yield ok("libaio can be linked")


def ops_folder(ops_folder: OpsFolder) -> Findings:
    """Check that the folder of compiled ops is writable and has no lock of a killed build."""
    if not ops_folder.writable:
        yield problem(
            phrase("{path} is not writable", path=ops_folder.path),
            "compiled ops are stored there",
            "export TORCH_EXTENSIONS_DIR=/a/folder/of/yours",
        )
    for name, age_s in ops_folder.locks:
        yield problem(
            phrase(
                "the op {name} has been locked for {minutes} min, and no process here compiles it",
                name=name,
                minutes=f"{age_s / 60:.0f}",
            ),
            "a killed build leaves its lock, and every process that needs the op waits forever, without a message",
            phrase(
                "when no other machine compiles it: find {path} -path '*{name}/lock' -delete",
                path=ops_folder.path,
                name=name,
            ),
        )
    if ops_folder.writable and not ops_folder.locks:
        yield ok("the folder of compiled ops is writable")
