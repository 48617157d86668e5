"""What was read of a machine, before anything is judged. Sizes are bytes; "" and None stand for what is not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledSoftware:
    """Python's packages, read without importing any.

    packages:   name -> version, of those that matter here and are installed.
    torch_cuda: CUDA that torch was built for ("12.8"), "" for a build without. torch_hip: the same for ROCm.
    wrong_libraries: (library, version that torch wants, version installed or "") of NVIDIA's packages.
    toolkits_taken_as_equal: CUDA versions of one major number that the installed DeepSpeed takes for each other.
    cpu_adam_needs_cuda: the installed DeepSpeed compiles its CPU Adam against the CUDA toolkit (older versions do).
    built_ahead: DeepSpeed's ops that were compiled when it was installed; built_with_torch: for that torch ("2.8").
    """

    python: str
    packages: Mapping[str, str]
    torch_cuda: str = ""
    torch_hip: str = ""
    wrong_libraries: tuple[tuple[str, str, str], ...] = ()
    toolkits_taken_as_equal: tuple[str, ...] = ()
    cpu_adam_needs_cuda: bool = False
    built_ahead: tuple[str, ...] = ()
    built_with_torch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerTrial:
    """A small program that was given to a compiler. error: the line that tells why it failed, "" where it compiled."""

    error: str = ""

    @property
    def compiled(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What DeepSpeed's ops are compiled with at their first use.

    cxx:       the C++ compiler that torch takes and its version ("g++ 12.2.0"), "" for none.
    standard:  the C++ standard that DeepSpeed asks for ("c++20").
    cxx_trial: a program in that standard with OpenMP for this processor. python_trial: one that includes Python.h.
               aio_trial: one that calls libaio. nvcc_trial: one for nvcc, which refuses C++ compilers that it does not
                   know.
               None where the compiler is missing.
    cuda_home: the CUDA toolkit's folder as torch finds it, "" for none; nvcc: its version ("12.4"), "" for none.
    ninja:     the command is there.
    package_manager: "apt", "dnf", ... of this machine, "" where none is known.
    """

    cxx: str = ""
    standard: str = "c++17"
    cxx_trial: CompilerTrial | None = None
    python_trial: CompilerTrial | None = None
    aio_trial: CompilerTrial | None = None
    nvcc_trial: CompilerTrial | None = None
    cuda_home: str = ""
    nvcc: str = ""
    ninja: bool = False
    package_manager: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsFolder:
    """Where torch keeps compiled ops. locks: names of ops with a lock on them, and the lock's age in seconds."""

    path: str
    filesystem: str = ""
    writable: bool = True
    locks: tuple[tuple[str, float], ...] = ()


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
    """One NVIDIA GPU, by NVML. None: NVML does not tell it here.

    holders:  (process name, bytes) of what computes on it now.
    capability: (8, 0) for sm_80.
    slowed_by: reasons for which its clock is lowered right now: "power", "heat", "hardware".
    nvlinks:  (active, inactive) links.
    near_cpus: CPUs of its NUMA node, empty where the system names none. numa_node: -1 where it has none.
    """

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int] | None = None
    holders: tuple[tuple[str, int], ...] = ()
    compute_mode: Literal["default", "exclusive", "prohibited"] = "default"
    mig: bool = False
    uncorrected_errors: int | None = None
    remapping_failed: bool = False
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    temperature_c: int | None = None
    slowed_by: tuple[str, ...] = ()
    pcie: Pcie | None = None
    nvlinks: tuple[int, int] = (0, 0)
    numa_node: int = -1
    near_cpus: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two GPUs. direct: NVML says that one may write into the other's memory; None where it does not tell.
    path: "board", "switch", "switches", "host bridge", "node", "sockets", by what lies between them on PCIe; ""
        unknown."""

    first: int
    second: int
    direct: bool | None
    path: str = ""


NO_PYNVML = "pynvml is not installed"
"""`Graphics.error` where nobody can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphics:
    """The NVIDIA side of the machine.

    driver, driver_cuda: the driver's version and the newest CUDA that it runs ("12.4"), "" without one.
    error:       why NVML does not answer, "" where it does.
    on_the_bus:  NVIDIA GPUs among the PCI devices. module_loaded: the kernel has its driver. device_files: /dev/nvidia0
                 and the like are here.
    other_vendor: "AMD" where only its accelerators are on the bus, else "".
    """

    driver: str = ""
    driver_cuda: str = ""
    error: str = ""
    on_the_bus: int = 0
    module_loaded: bool = False
    device_files: bool = False
    other_vendor: str = ""
    gpus: tuple[GpuState, ...] = ()
    pairs: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Host memory.

    limit_bytes: the container's (cgroup's) limit, None for none; limit_used_bytes: how much of it is in use, without
                 what the kernel can drop. killed: processes in it that the kernel killed for memory.
    lockable_bytes: RLIMIT_MEMLOCK, None for no limit, as a privileged process has none.
    shared_bytes, shared_free_bytes: /dev/shm, None where it is missing.
    huge_bytes:  set aside for huge pages. overcommit: vm.overcommit_memory.
    """

    total_bytes: int
    available_bytes: int
    swap_bytes: int = 0
    swap_used_bytes: int = 0
    limit_bytes: int | None = None
    limit_used_bytes: int | None = None
    killed: int = 0
    lockable_bytes: int | None = None
    shared_bytes: int | None = None
    shared_free_bytes: int | None = None
    huge_bytes: int = 0
    overcommit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The CPU.

    vectors:  what DeepSpeed compiles its CPU Adam for: "AVX-512", "AVX2", "SVE", "NEON" or "".
    online:   CPUs of the machine; usable: those that this process may run on; quota: the container's share in CPUs,
              None for no limit. nodes: CPUs of each NUMA node. governor: of the clock, "" unknown. numactl: the command
              is there.
    """

    name: str
    online: int
    usable: frozenset[int]
    quota: float | None = None
    vectors: str = ""
    nodes: tuple[frozenset[int], ...] = ()
    governor: str = ""
    numactl: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The operating system's limits and kind. container: "docker", "kubernetes", "container", "" on the machine itself.
    rdma: InfiniBand or RoCE adapters. interfaces: network interfaces by name."""

    system: str = ""
    kernel: str = ""
    container: str = ""
    open_files: int | None = None
    processes: int | None = None
    rdma: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    own_name_resolves: bool | None = None
    port: int = 29500
    port_in_use: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder to swap to. device: "nvme", "ssd", "disk", "virtual" (a virtual machine's drive), "memory", "network",
    "layered" (a container's own layer), "unknown".

    error: why it cannot be used at all, "" where it can. direct_error: why a file cannot be opened past the page cache
    (O_DIRECT), "" where it can.
    """

    path: str
    filesystem: str = ""
    device: str = "unknown"
    free_bytes: int = 0
    error: str = ""
    direct_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostfileNode:
    """A machine of the hostfile.

    addresses: what its name resolves to, empty with `unresolved` telling why.
    ssh_error: why a command cannot be run there without a password, "" where it can.
    clock_ahead_s, clock_error_s: its clock less ours, and how far off that can be; None where nobody answered.
    gpus, driver: what its nvidia-smi shows; None and "" where it does not answer.
    """

    name: str
    slots: int
    addresses: tuple[str, ...] = ()
    unresolved: str = ""
    ssh_error: str = ""
    clock_ahead_s: float | None = None
    clock_error_s: float = 0.0
    gpus: int | None = None
    driver: str = ""
    port_answer: Literal["", "free", "in use", "no answer"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Everything that the checks judge. A part is None where it was not asked for or could not be read; `unread` then
    names it and the reason."""

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
