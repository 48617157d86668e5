"""Host memory with all that bounds it, the processor, and the limits of the operating system."""

from __future__ import annotations

from collections.abc import Iterator

from ...estimators.units import gib
from .building import install
from .facts import MachineFacts
from .findings import DoctorFinding, note, ok, problem, warning

_SHORT = 0.1
"""Share of the RAM below which what is free does not last for any offload."""

_LEAST_SHARED_BYTES = 512 * 2**20
"""DeepSpeed's own ds_report warns below it (env_report.py `get_shm_size`, 0.19.8)."""

_DOCKERS_SHARED_BYTES = 64 * 2**20
_LEAST_LOCKED_BYTES = 10**9
"""The parameters' swap buffers of one rank by default: 5 of 1e8 elements of 2 bytes."""

_LEAST_FILES = 4096


def ram(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """There is RAM to be had."""
    if (memory := facts.memory) is None:
        return
    seen = f"{gib(memory.available_bytes)} of {gib(memory.total_bytes)} GiB available"
    if memory.available_bytes < _SHORT * memory.total_bytes:
        yield warning(
            seen,
            "a process that loads a model or offloads to RAM is killed when no more is left",
            "end what holds it: ps aux --sort=-rss | head",
        )
    else:
        yield ok(seen)


def memory_limit(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """What the container may use, and whether the kernel killed in it."""
    if (memory := facts.memory) is None:
        return
    if memory.killed:
        yield warning(
            f"the kernel has killed {memory.killed} process{'es' * (memory.killed > 1)} in this "
            "container or session for memory",
            "such a rank ends without a message, and the others hang",
            "give the container more memory, or ask ds-advise with --ram for a plan that needs less",
        )
    if memory.limit_bytes is not None:
        used = f", {gib(memory.limit_used_bytes)} in use" if memory.limit_used_bytes is not None else ""
        yield note(
            f"{gib(memory.limit_bytes)} of the machine's {gib(memory.total_bytes)} GiB may be used{used}",
            "a job beyond the container's limit is killed without a message, however much RAM is free",
            f"ask ds-advise with --ram {memory.limit_bytes // 2**30}GiB",
        )
    elif not memory.killed:
        yield ok("no limit below the machine's RAM")


def swap(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Nothing is swapped out."""
    if (memory := facts.memory) is None:
        return
    if memory.swap_used_bytes > _SHORT * memory.total_bytes:
        yield warning(
            f"{gib(memory.swap_used_bytes)} GiB are swapped out",
            "the host is short of memory; optimizer states that are swapped slow every step down",
            "end what holds the memory",
        )
    else:
        yield ok(f"{gib(memory.swap_bytes)} GiB, unused" if memory.swap_bytes else "none")


def locked_memory(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """DeepSpeed may page-lock its NVMe buffers, and an RDMA adapter what it sends.

    CUDA's pinned memory is not bound by this limit. The swap buffers are: they are locked with mlock
    (ops/csrc/pin_memory/page_alloc.cpp, runtime/swap_tensor/ of 0.19.8).
    """
    if facts.memory is None:
        return
    limit, rdma = facts.memory.lockable_bytes, bool(facts.host and facts.host.rdma)
    fix = "ulimit -l unlimited (limits.conf: memlock; docker run --ulimit memlock=-1; Slurm: PropagateResourceLimits)"
    if limit is None or limit >= _LEAST_LOCKED_BYTES:
        yield ok("no limit" if limit is None else f"{gib(limit)} GiB may be locked")
    elif facts.folder is not None or rdma:
        what = (
            "DeepSpeed locks its NVMe buffers" if facts.folder is not None else "InfiniBand registers what NCCL sends"
        )
        yield problem(f"a process may lock {limit / 2**20:,.0f} MiB", f"{what}, which then fails", fix)
    else:
        yield note(
            f"a process may lock {limit / 2**20:,.0f} MiB",
            "enough for CUDA, which pins without it; offload to NVMe locks its buffers and fails",
            fix,
        )


def shared_memory(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """/dev/shm holds what NCCL and data loaders share."""
    if (memory := facts.memory) is None:
        return
    several = bool(facts.graphics and len(facts.graphics.gpus) > 1)
    fix = "docker run --shm-size=16g or --ipc=host; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    if memory.shared_bytes is None:
        yield problem("/dev/shm is missing", "NCCL and data loaders with workers fail", fix)
    elif memory.shared_bytes < _LEAST_SHARED_BYTES:
        say = problem if several and memory.shared_bytes <= _DOCKERS_SHARED_BYTES else warning
        yield say(
            f"/dev/shm has {memory.shared_bytes // 2**20} MiB",
            'NCCL between GPUs stops with "No space left on device", data loaders with "bus error"',
            fix,
        )
    elif (memory.shared_free_bytes or 0) < _LEAST_SHARED_BYTES:
        yield warning(
            f"/dev/shm is full: {(memory.shared_free_bytes or 0) // 2**20} MiB free",
            "NCCL and data loaders put their buffers there",
            "look for what earlier runs left: ls -la /dev/shm",
        )
    else:
        yield ok(f"/dev/shm has {gib(memory.shared_free_bytes or 0)} GiB free")


def huge_pages(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """RAM is not set aside for huge pages, which training does not use."""
    memory = facts.memory
    if memory is not None and memory.huge_bytes > _SHORT * memory.total_bytes:
        yield warning(
            f"{gib(memory.huge_bytes)} GiB are set aside for huge pages",
            "neither torch nor DeepSpeed uses them: that RAM is lost to an offload",
            "sudo sysctl vm.nr_hugepages=0",
        )


def overcommit(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Memory may be promised before it is used."""
    if facts.memory is not None and facts.memory.overcommit == 2:
        yield warning(
            "vm.overcommit_memory is 2",
            "CUDA maps more address space than there is memory, and "
            "forked data loaders count twice: allocations fail with RAM to spare",
            "sudo sysctl vm.overcommit_memory=0",
        )


def cores(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Cores for data loading and CPU Adam, and a quota that agrees with the threads that will be started."""
    if (processor := facts.processor) is None:
        return
    usable = len(processor.usable)
    ranks = max(1, len(facts.graphics.gpus) if facts.graphics else 1)
    if processor.quota is not None and processor.quota < 0.9 * usable:
        yield warning(
            f"{usable} cores are shown, {processor.quota:g} of them may be used",
            "a thread is started for each that is shown, and all are stopped when the share is used up",
            f"export OMP_NUM_THREADS={max(1, int(processor.quota / ranks))}",
        )
    elif usable < 2 * ranks:
        yield warning(
            f"{usable} core{'s' * (usable > 1)} for {ranks} rank{'s' * (ranks > 1)}",
            "launching kernels, loading data and CPU Adam share them",
            "take a machine with more cores per GPU",
        )
    elif usable < processor.online:
        yield note(
            f"{usable} of {processor.online} cores may be used",
            "the scheduler or taskset bound this process; CPU Adam has no others",
            "ask for more (Slurm: --cpus-per-task)",
        )
    else:
        yield ok(f"{usable} cores")


def threads(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The ranks together start no more threads than there are cores."""
    chosen = facts.environment.get("OMP_NUM_THREADS", "")
    ranks = len(facts.graphics.gpus) if facts.graphics else 0
    usable = len(facts.processor.usable) if facts.processor else 0
    if chosen.isdigit() and ranks > 1 and usable >= ranks and int(chosen) * ranks > usable:
        yield warning(
            f"OMP_NUM_THREADS={chosen} for each of {ranks} ranks on {usable} cores",
            "the ranks' threads take turns, and CPU Adam waits for the last of them",
            f"export OMP_NUM_THREADS={usable // ranks}",
        )


def numa(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Each rank can have the cores and the memory that are near its GPU."""
    if (processor := facts.processor) is None:
        return
    found = facts.graphics.gpus if facts.graphics else ()
    far = [gpu for gpu in found if gpu.near_cpus and not gpu.near_cpus & processor.usable]
    if far:
        yield warning(
            f"no core near GPU {', '.join(str(gpu.index) for gpu in far)} may be used",
            "all that it takes from the host crosses the sockets",
            "ask the scheduler for cores beside the GPUs",
        )
    elif len(processor.nodes) > 1 and not processor.numactl:
        yield note(
            f"{len(processor.nodes)} NUMA nodes, and numactl is not installed",
            "with the optimizer in host RAM "
            "`deepspeed --bind_cores_to_rank` gives each rank its own cores and near memory, and needs it",
            install("numactl", facts),
        )
    elif len(processor.nodes) > 1:
        yield ok(f"{len(processor.nodes)} NUMA nodes; bind ranks with deepspeed --bind_cores_to_rank")


def governor(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The cores' clock is not held low."""
    if facts.processor is not None and facts.processor.governor == "powersave":
        yield note(
            'the cores\' clock governor is "powersave"',
            "with some drivers this keeps CPU Adam and kernel launches at the lowest clock",
            "sudo cpupower frequency-set -g performance",
        )


def open_files(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Enough files may be open."""
    limit = facts.host.open_files if facts.host else None
    if limit is not None and limit < _LEAST_FILES:
        yield note(
            f"a process may open {limit} files",
            "data loaders with many workers, and NCCL with many peers, open more",
            "ulimit -n 65536",
        )


def own_name(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """This machine's own name resolves, which Gloo looks up at its start."""
    if facts.host is not None and facts.host.own_name_resolves is False:
        yield warning(
            "this machine's own host name does not resolve",
            "Gloo, and so the start of many jobs, looks it up and fails",
            "add it to /etc/hosts, or `export GLOO_SOCKET_IFNAME` with the network interface",
        )


def port(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The port on which the ranks meet is free."""
    host = facts.host
    if host is None or host.port_in_use is None:
        return
    if host.port_in_use:
        yield warning(
            f"port {host.port} is in use",
            'the ranks meet there; a second job on one machine ends with "address already in use"',
            f"deepspeed --master_port {host.port + 1} ...",
        )
    else:
        yield ok(f"port {host.port} is free")


MEMORY = (ram, memory_limit, swap, locked_memory, shared_memory, huge_pages, overcommit)
PROCESSOR = (cores, threads, numa, governor)
LIMITS = (open_files, own_name, port)
