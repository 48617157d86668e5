"""Can DeepSpeed compile its ops here, which it does when one is first used?

What each needs was read in ops/op_builder/ of DeepSpeed 0.19.8: cpu_adam a C++ compiler with OpenMP, Python.h and ninja
(cpu/builder.py); fused_adam besides these nvcc (builder.py `nvcc_args`); async_io, with a GPU, nvcc too, and always
libaio.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..versions import parse_version
from .facts import CompilerTrial, MachineFacts
from .findings import DoctorFinding, note, ok, problem, unknown, warning
from .versions import lacks_architecture

_MANAGERS = ("apt-get", "dnf", "yum", "zypper", "pacman", "apk")
_PACKAGES = {
    "compiler": ("g++", "gcc-c++", "gcc-c++", "gcc-c++", "gcc", "g++"),
    "python": ("python{0}-dev", "python{0}-devel", "python{0}-devel", "python3-devel", "python", "python3-dev"),
    "aio": ("libaio-dev", "libaio-devel", "libaio-devel", "libaio-devel", "libaio", "libaio-dev"),
    "numactl": ("numactl",) * 6,
}
"""What has to be installed -> the package's name for each of the package managers."""

_INSTALL = {"pacman": "pacman -S", "apk": "apk add"}

_ABANDONED_S = 3600.0
"""No op of DeepSpeed takes an hour to compile."""

_NETWORK = ("nfs", "nfs4", "cifs", "lustre", "beegfs", "gpfs", "ceph", "9p")


def install(what: str, facts: MachineFacts) -> str:
    """The command that installs a package of the operating system, or its usual name where the manager is not known."""
    manager = facts.toolchain.package_manager if facts.toolchain else ""
    python = parse_version(facts.software.python if facts.software else "3")
    names = dict(zip(_MANAGERS, _PACKAGES[what], strict=True))
    package = names.get(manager, names["apt-get"]).format(f"{python.major}.{python.minor}")
    if not manager:
        return f"install the package {package}"
    return f"sudo {_INSTALL.get(manager, f'{manager} install')} {package}"


def compiler(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """A C++ compiler for the standard that DeepSpeed asks for, with OpenMP."""
    if (tools := facts.toolchain) is None:
        return
    if not tools.cxx:
        named = facts.environment.get("CXX")
        yield problem(
            f"{named or 'c++'} cannot be run",
            "DeepSpeed compiles CPU Adam, fused Adam and its NVMe code when they are first used",
            "point CXX at a C++ compiler" if named else install("compiler", facts),
        )
    elif tools.cxx_trial is None:
        yield unknown(f"{tools.cxx} did not compile three lines within three seconds")
    elif not tools.cxx_trial.compiled:
        yield problem(
            f"{tools.cxx} does not compile -std={tools.standard} -march=native -fopenmp: {tools.cxx_trial.error[:120]}",
            "DeepSpeed compiles its ops with these",
            "install g++ 11 or newer and `export CXX=g++-11`",
        )
    else:
        yield ok(f"{tools.cxx} compiles {tools.standard} with OpenMP")


def python_headers(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Python.h, which every op includes."""
    trial = facts.toolchain.python_trial if facts.toolchain else None
    if trial is not None and not trial.compiled:
        yield problem(
            "Python.h of this Python is not installed", "every op of DeepSpeed includes it", install("python", facts)
        )
    elif trial is not None:
        yield ok("Python.h is there")


def ninja(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """ninja as a command, without which torch compiles nothing."""
    if facts.toolchain is None:
        return
    if facts.toolchain.ninja:
        yield ok("ninja is there")
    elif facts.software and "ninja" in facts.software.packages:
        yield problem(
            "ninja is installed in this Python, but the command is not on PATH",
            "torch calls it by name when DeepSpeed compiles an op",
            "activate the virtual environment before the training starts",
        )
    else:
        yield problem("ninja is not installed", "DeepSpeed cannot compile any op without it", "pip install ninja")


def setuptools(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Python 3.12 and newer have no distutils of their own, which DeepSpeed looks for libaio with."""
    software = facts.software
    if software and parse_version(software.python).release >= (3, 12) and "setuptools" not in software.packages:
        yield problem(
            f"setuptools is missing, and Python {software.python} has no distutils",
            "torch and DeepSpeed compile ops with it",
            "pip install setuptools",
        )


def cuda_toolkit(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """nvcc, of the CUDA that torch was built for; DeepSpeed's own list says which minor versions it takes as equal."""
    software, tools = facts.software, facts.toolchain
    if software is None or tools is None or not software.torch_cuda:
        return
    own, torch = tools.nvcc, software.torch_cuda
    nvccs, torchs = parse_version(own), parse_version(torch)
    if not own:
        also = "CPU Adam, " if software.cpu_adam_needs_cuda else ""
        where = f"in CUDA_HOME ({tools.cuda_home})" if tools.cuda_home else "and no CUDA toolkit"
        yield problem(
            f"no nvcc {where}",
            f"{also}fused Adam (AdamW in a ds_config without offload) and NVMe offload are compiled with it",
            f"install the CUDA toolkit {torch} and `export CUDA_HOME=/usr/local/cuda"
            f'-{torch}`; without it "torch_adam": true in optimizer.params replaces fused Adam',
        )
    elif nvccs.major != torchs.major:
        yield problem(
            f"nvcc is of CUDA {own}, torch is built for {torch}",
            "ops are refused when DeepSpeed is installed (DS_BUILD_OPS); compiled at first use they may not load",
            f"point CUDA_HOME at a CUDA {torchs.major} toolkit, or install torch built for CUDA {nvccs.major}",
        )
    elif nvccs.minor != torchs.minor and not {own, torch} <= set(software.toolkits_taken_as_equal):
        yield warning(
            f"nvcc is of CUDA {own}, torch is built for {torch}",
            "DeepSpeed refuses this pair where "
            "ops are compiled when it is installed (DS_BUILD_OPS); at first use they are compiled all the same",
            f"install the CUDA toolkit {torch}, or set DS_SKIP_CUDA_CHECK=1",
        )
    else:
        yield ok(f"nvcc {own} for torch's CUDA {torch}")


def nvcc_architecture(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """nvcc knows these GPUs."""
    if facts.toolchain is None or facts.graphics is None or not facts.toolchain.nvcc:
        return
    for gpu in facts.graphics.gpus:
        wanted = lacks_architecture(facts.toolchain.nvcc, gpu.capability) if gpu.capability else ""
        if wanted:
            yield problem(
                f"nvcc {facts.toolchain.nvcc} does not compile for the {gpu.name}",
                "fused Adam and other CUDA ops cannot be compiled",
                f"install the toolkit of {wanted}",
            )
            return


def nvcc_and_compiler(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """nvcc takes the C++ compiler: each version refuses those that came after it."""
    trial = facts.toolchain.nvcc_trial if facts.toolchain else None
    if trial is not None and not trial.compiled and facts.software and facts.software.torch_cuda:
        yield problem(
            f"nvcc cannot compile three lines: {trial.error[:140]}",
            "no CUDA op of DeepSpeed can be compiled",
            "if the compiler is too new for it, install an older g++ and `export CC=gcc-12 CXX=g++-12`",
        )


def cpu_adam(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """DeepSpeedCPUAdam, which every plan with the optimizer in host RAM needs."""
    yield from _op("cpu_adam", facts, needs_cuda=bool(facts.software and facts.software.cpu_adam_needs_cuda))


def fused_adam(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """FusedAdam, which AdamW in a configuration without offload becomes."""
    if facts.graphics and facts.graphics.gpus:
        yield from _op("fused_adam", facts, needs_cuda=True)


def async_io(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """async_io, which swaps to NVMe."""
    tools = facts.toolchain
    if tools is None or tools.aio_trial is None:
        return
    if not tools.aio_trial.compiled:
        say = problem if facts.folder is not None else warning
        yield say(
            "libaio cannot be linked",
            'offload to NVMe (async_io) is refused: "Unable to JIT load the async_io op"',
            install("aio", facts) + ", or name its folders in CFLAGS and LDFLAGS",
        )
        return
    yield from _op("async_io", facts, needs_cuda=bool(facts.graphics and facts.graphics.gpus))


def _op(op: str, facts: MachineFacts, *, needs_cuda: bool) -> Iterator[DoctorFinding]:
    """A summary: what stands in the way is told, with its fix, by the check that it belongs to."""
    tools, software = facts.toolchain, facts.software
    if tools is None or software is None:
        return
    if op in software.built_ahead:
        yield ok("compiled when DeepSpeed was installed")
        return
    lacks = [
        name
        for name, there in (
            ("compiler", _compiled(tools.cxx_trial)),
            ("python-headers", _compiled(tools.python_trial)),
            ("ninja", tools.ninja),
            ("cuda-toolkit", not needs_cuda or bool(tools.nvcc)),
            ("nvcc-and-compiler", not needs_cuda or _compiled(tools.nvcc_trial)),
        )
        if not there
    ]
    if not lacks:
        yield ok("can be compiled at its first use")
    else:
        yield note(f"cannot be compiled: {', '.join(lacks)}", "the checks of these names say what to do")


def _compiled(trial: CompilerTrial | None) -> bool:
    return trial is not None and trial.compiled


def ops_folder(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The folder of compiled ops can be written to, is local, and nobody's dead build holds a lock in it."""
    if (folder := facts.ops_folder) is None:
        return
    if not folder.writable:
        yield problem(
            f"{folder.path} cannot be written to",
            "compiled ops are kept there",
            "export TORCH_EXTENSIONS_DIR=/a/folder/of/yours",
        )
    for name, age_s in folder.locks:
        mend = f"when nothing compiles: find {folder.path} -path '*{name}/lock' -delete"
        if age_s >= _ABANDONED_S:
            yield problem(
                f"the op {name} has been locked for {age_s / 3600:.0f} h",
                "a build that was killed leaves its lock, and every process that needs the op waits for it without end",
                mend,
            )
        else:
            yield note(
                f"the op {name} has been locked for {age_s / 60:.0f} min",
                "it is being compiled; if it is not, the next job waits without end",
                mend,
            )
    if folder.filesystem in _NETWORK or folder.filesystem.startswith("fuse."):
        yield warning(
            f"{folder.path} is on {folder.filesystem}",
            "nodes that share it compile over each other, and wait for one another's locks",
            "export TORCH_EXTENSIONS_DIR=/tmp/torch_extensions",
        )
    elif folder.writable and not folder.locks:
        yield ok("compiled ops can be kept")


def vectors(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """CPU Adam is compiled with vector instructions."""
    if (processor := facts.processor) is None:
        return
    if processor.vectors:
        yield ok(f"CPU Adam is compiled for {processor.vectors}")
    else:
        yield warning(
            "the processor shows neither AVX2 nor SVE nor NEON",
            "CPU Adam is compiled without vector instructions, several times slower",
            "in a virtual machine pass the host's CPU through (QEMU: -cpu host)",
        )


CHECKS = (
    compiler,
    python_headers,
    ninja,
    setuptools,
    cuda_toolkit,
    nvcc_architecture,
    nvcc_and_compiler,
    cpu_adam,
    fused_adam,
    async_io,
    ops_folder,
    vectors,
)
