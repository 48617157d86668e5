"""Whether DeepSpeed's ops can be compiled here: small programs are given to the compilers that torch would take.

What is needed, by ops/op_builder/ of DeepSpeed 0.19.8 and torch/utils/cpp_extension.py of torch 2.13: a C++ compiler
(`CXX`, else `c++`) for `-std=c++20` with torch 2.12 or newer, else `-std=c++17`, with OpenMP and `-march=native`;
Python.h; ninja; for async_io a program that calls io_submit must link with `-laio` (`has_function`); for CUDA ops nvcc
in the folder that `_find_cuda_home` finds.
"""

from __future__ import annotations

import os
import re
import shlex
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ..versions import parse_version
from .facts import CompilerTrial, OpsFolder, Toolchain
from .read_folder import mount_of
from .tools import Runner

_LIMIT_S = 3.0
"""For one small program; a compiler on a slow network drive may take longer, and is then unknown."""

_MANAGERS = ("apt-get", "dnf", "yum", "zypper", "pacman", "apk")


def read_toolchain(run: Runner, environment: Mapping[str, str], torch_version: str) -> Toolchain:
    """Compile the four programs at the same time, each for at most three seconds. Raises TimeoutError where a compiler
    does not even tell its version in them."""
    cxx, cc = _command(environment, "CXX", "c++"), _command(environment, "CC", "cc")
    standard = "c++20" if parse_version(torch_version).release >= (2, 12) else "c++17"
    paths = environment.get("PATH", os.defpath)
    cuda_home = find_cuda_home(environment)
    nvcc = str(Path(cuda_home) / "bin/nvcc")
    host_compiler = ["-ccbin", environment["CC"]] if environment.get("CC") else []  # as torch's ninja file has it
    c_flags, linker_flags = (_words(environment.get(name, "")) for name in ("CFLAGS", "LDFLAGS"))
    includes = f"-I{sysconfig.get_paths()['include']}"
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(6) as pool:
        fast_cpu = [f"-std={standard}", "-march=native", "-fopenmp", "-x", "c++", "-", "-o", f"{folder}/cpu"]
        with_aio = [*c_flags, "-x", "c", "-", *linker_flags, "-laio", "-o", f"{folder}/aio"]
        cpu = pool.submit(
            _trial, run, [*cxx, *fast_cpu], "#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n"
        )
        python = pool.submit(_trial, run, [*cxx, "-x", "c++", "-fsyntax-only", includes, "-"], "#include <Python.h>\n")
        aio = pool.submit(
            _trial, run, [*cc, *with_aio], "void io_submit(void);\nint main(void) { io_submit(); return 0; }\n"
        )
        cuda = pool.submit(_trial, run, [nvcc, "-x", "cu", *host_compiler, "-E", "-"], "#include <cuda_runtime.h>\n")
        name = pool.submit(run, [*cxx, "--version"], "", _LIMIT_S)
        release = pool.submit(run, [nvcc, "--version"], "", _LIMIT_S)
        if name.result().late or release.result().late:
            raise TimeoutError("a compiler does not tell its version")
        found = re.search(r"release (\d+\.\d+)", release.result().out)
        first = name.result().out.splitlines()[:1] if name.result().code == 0 else []
        return Toolchain(
            cxx=_compiler(first[0]) if first else "",
            standard=standard,
            cxx_trial=cpu.result() if first else None,
            python_trial=python.result() if first else None,
            aio_trial=aio.result(),
            nvcc_trial=cuda.result() if found else None,
            cuda_home=cuda_home,
            nvcc=found[1] if found else "",
            ninja=_on_path("ninja", paths),
            package_manager=next((name for name in _MANAGERS if _on_path(name, paths)), ""),
        )


def _command(environment: Mapping[str, str], variable: str, default: str) -> list[str]:
    """`ccache g++` is two words; torch's build file has it as it is."""
    return _words(environment.get(variable, "")) or [default]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quotation mark without its partner
        return text.split()


def _trial(run: Runner, command: list[str], program: str) -> CompilerTrial | None:
    """None where the compiler is not there or did not answer."""
    ran = run(command, program, _LIMIT_S)
    if ran.code is None:
        return None
    if ran.code == 0:
        return CompilerTrial()
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    telling = next((line for line in lines if re.search(r"error|cannot find|No such file", line)), "")
    return CompilerTrial(error=telling or (lines[0] if lines else f"exit code {ran.code}"))


def _compiler(line: str) -> str:
    """`g++ (Debian 12.2.0-14) 12.2.0` -> `g++ 12.2.0`."""
    version = re.search(r"(\d+\.\d+(?:\.\d+)?)(?!.*\d\.\d)", line)
    return f"{line.split()[0]} {version[1]}" if version and line.split() else line


def find_cuda_home(environment: Mapping[str, str]) -> str:
    """The CUDA toolkit's folder, as torch/utils/cpp_extension.py `_find_cuda_home` looks for it."""
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    if named:
        return named
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        if folder and os.access(Path(folder) / "nvcc", os.X_OK):
            return str(Path(folder).parent)
    return "/usr/local/cuda" if Path("/usr/local/cuda").exists() else ""


def read_ops_folder(environment: Mapping[str, str], root: Path = Path("/")) -> OpsFolder:
    """Where torch keeps what it compiled, and the locks of builds that run or were killed."""
    named = environment.get("TORCH_EXTENSIONS_DIR")
    cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or "~").expanduser() / ".cache")
    folder = Path(named or f"{cache}/torch_extensions")
    there = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    locks = []
    for lock in sorted([*folder.glob("*/lock"), *folder.glob("*/*/lock")]):  # <op>/lock, or <python and CUDA>/<op>/lock
        with suppress(OSError):
            locks.append((lock.parent.name, max(0.0, time.time() - lock.stat().st_mtime)))
    return OpsFolder(
        path=str(folder),
        filesystem=mount_of(there.resolve(), root)[0],
        writable=os.access(there, os.W_OK | os.X_OK),
        locks=tuple(locks),
    )


def _on_path(name: str, paths: str) -> bool:
    return any(folder and os.access(Path(folder) / name, os.X_OK) for folder in paths.split(os.pathsep))
