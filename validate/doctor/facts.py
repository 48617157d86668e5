"""What was read of a machine, before anything is judged. Sizes are bytes; "" and None stand for what is not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledSoftware:
    """Python's packages, read without importing any."""

    python: str
    packages: Mapping[str, str]
    """Name -> version, of those that matter here and are installed."""
    torch_cuda: str = ""
    """CUDA that torch was built for ("12.8"), "" for a build without; `torch_hip` is the same for ROCm."""
    torch_hip: str = ""
    wrong_libraries: tuple[tuple[str, str, str], ...] = ()
    """(library, version that torch wants, version installed or "") of NVIDIA's packages."""
    toolkits_taken_as_equal: tuple[str, ...] = ()
    """CUDA versions of one major number that the installed DeepSpeed takes for each other."""
    cpu_adam_needs_cuda: bool = False
    """The installed DeepSpeed compiles its CPU Adam against the CUDA toolkit (older versions do)."""
    built_ahead: tuple[str, ...] = ()
    """DeepSpeed's ops that were compiled when it was installed, for the torch `built_with_torch` ("2.8")."""
    built_with_torch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerTrial:
    """A small program that was given to a compiler."""

    error: str = ""
    """The line that tells why it failed, "" where it compiled."""

    @property
    def compiled(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What DeepSpeed's ops are compiled with at their first use; a trial is None where its compiler is missing."""

    cxx: str = ""
    """The C++ compiler that torch takes and its version ("g++ 12.2.0"), "" for none."""
    standard: str = "c++17"
    """The C++ standard that DeepSpeed asks for."""
    cxx_trial: CompilerTrial | None = None
    """A program in that standard with OpenMP for this processor."""
    python_trial: CompilerTrial | None = None
    """A program that includes Python.h."""
    aio_trial: CompilerTrial | None = None
    """A program that calls libaio."""
    nvcc_trial: CompilerTrial | None = None
    """A program for nvcc, which refuses C++ compilers that it does not know."""
    cuda_home: str = ""
    """The CUDA toolkit's folder as torch finds it, "" for none."""
    nvcc: str = ""
    """Its version ("12.4"), "" for none."""
    ninja: bool = False
    package_manager: str = ""
    """"apt-get", "dnf", ... of this machine, "" where none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsFolder:
    """Where torch keeps compiled ops."""

    path: str
    filesystem: str = ""
    writable: bool = True
    locks: tuple[tuple[str, float], ...] = ()
    """(op, age in seconds) of the locks in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """A GPU's host link as negotiated now; the newest generation that GPU and slot have together, and the lanes of the
    GPU itself. The generation falls while a GPU is idle."""

    generation: int
    width: int
    most_generation: int
    most_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One NVIDIA GPU as NVML shows it; None where NVML does not tell."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int] | None = None
    """(8, 0) for sm_80."""
    holders: tuple[tuple[str, int], ...] = ()
    """(process name, bytes) of what computes on it now."""
    compute_mode: Literal["default", "exclusive", "prohibited"] = "default"
    mig: bool = False
    uncorrected_errors: int | None = None
    remapping_failed: bool = False
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    temperature_c: int | None = None
    slowed_by: tuple[str, ...] = ()
    """Reasons for which its clock is lowered right now: "power", "heat", "hardware"."""
    pcie: Pcie | None = None
    nvlinks: tuple[int, int] = (0, 0)
    """(active, inactive) links."""
    numa_node: int = -1
    """-1 where the system names none."""
    near_cpus: frozenset[int] = frozenset()
    """CPUs of its NUMA node, empty where the system names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two GPUs."""

    first: int
    second: int
    direct: bool | None
    """NVML says that one may write into the other's memory."""
    path: str = ""
    """What lies between them on PCIe: "board", "switch", "switches", "host bridge", "node", "sockets", or ""."""


NO_PYNVML = "pynvml is not installed"
"""`Graphics.error` where nobody can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphics:
    """The NVIDIA side of the machine."""

    driver: str = ""
    """The driver's version, "" without one."""
    driver_cuda: str = ""
    """The newest CUDA that the driver runs ("12.4"), "" without one."""
    error: str = ""
    """Why NVML does not answer, "" where it does."""
    on_the_bus: int = 0
    """NVIDIA GPUs among the PCI devices."""
    module_loaded: bool = False
    """The kernel has its driver."""
    device_files: bool = False
    """/dev/nvidiactl or the like is here."""
    other_vendor: str = ""
    """"AMD" where only its accelerators are on the bus, else ""."""
    gpus: tuple[GpuState, ...] = ()
    pairs: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Host memory."""

    total_bytes: int
    available_bytes: int
    swap_bytes: int = 0
    swap_used_bytes: int = 0
    limit_bytes: int | None = None
    """The container's (cgroup's) limit, None for none."""
    limit_used_bytes: int | None = None
    """How much of the limit is in use, without what the kernel can drop."""
    killed: int = 0
    """Processes in the container that the kernel killed because memory ran out."""
    lockable_bytes: int | None = None
    """RLIMIT_MEMLOCK, None for no limit, as a privileged process has none."""
    shared_bytes: int | None = None
    """The size of /dev/shm, None where it is missing."""
    shared_free_bytes: int | None = None
    huge_bytes: int = 0
    """What is set aside for huge pages."""
    overcommit: int = 0
    """vm.overcommit_memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The CPU."""

    name: str
    online: int
    """CPUs of the machine."""
    usable: frozenset[int]
    """CPUs that this process may run on."""
    quota: float | None = None
    """The container's share in CPUs, None for no limit."""
    vectors: str = ""
    """What DeepSpeed compiles its CPU Adam for: "AVX-512", "AVX2", "SVE", "NEON" or ""."""
    nodes: tuple[frozenset[int], ...] = ()
    """CPUs of each NUMA node."""
    governor: str = ""
    """Of the clock, "" for unknown."""
    numactl: bool = False
    """The command is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The operating system's limits and kind."""

    system: str = ""
    kernel: str = ""
    container: str = ""
    """"docker", "kubernetes", "container", "" on the machine itself."""
    open_files: int | None = None
    processes: int | None = None
    rdma: tuple[str, ...] = ()
    """InfiniBand or RoCE adapters."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces by name."""
    own_name_resolves: bool | None = None
    port: int = 29500
    port_in_use: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder to swap to."""

    path: str
    filesystem: str = ""
    device: str = "unknown"
    """"nvme", "ssd", "disk", "virtual" (a virtual machine's drive), "memory", "network", "layered" (a container's own
    layer), "unknown"."""
    free_bytes: int = 0
    error: str = ""
    """Why it cannot be used at all, "" where it can."""
    direct_error: str = ""
    """Why a file cannot be opened past the page cache (O_DIRECT), "" where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostfileNode:
    """A machine of the hostfile."""

    name: str
    slots: int
    addresses: tuple[str, ...] = ()
    """What its name resolves to; where it is empty, `unresolved` tells why."""
    unresolved: str = ""
    ssh_error: str = ""
    """Why a command cannot be run there without a password, "" where it can."""
    clock_ahead_s: float | None = None
    """Its clock less ours, off by at most `clock_error_s`; None where nobody answered."""
    clock_error_s: float = 0.0
    gpus: int | None = None
    """What its nvidia-smi shows; None (and "" for the driver) where it does not answer."""
    driver: str = ""
    port_answer: Literal["", "free", "in use", "no answer"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Everything that the checks judge; a part is None where it was not asked for or could not be read."""

    software: InstalledSoftware | None = None
    toolchain: Toolchain | None = None
    ops_folder: OpsFolder | None = None
    graphics: Graphics | None = None
    memory: Memory | None = None
    processor: Processor | None = None
    host: Host | None = None
    folder: Folder | None = None
    nodes: tuple[HostfileNode, ...] = ()
    pdsh: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[tuple[str, str], ...] = ()
    """(part, reason) of each part that could not be read."""
