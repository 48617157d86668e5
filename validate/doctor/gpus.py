"""The GPUs: equal, free, healthy, at full speed, and joined by the links that they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...estimators.units import gib
from .facts import GpuState, MachineFacts
from .findings import DoctorFinding, note, ok, problem, warning

_IDLE_SHARE = 0.05
"""Of a GPU's memory that the driver itself may keep: 0.5 to 1 GiB of 80."""

_LOWERED = 0.95
"""A power limit below this share of the default was lowered by somebody."""


def _gpus(facts: MachineFacts) -> Sequence[GpuState]:
    return facts.graphics.gpus if facts.graphics else ()


def named(gpus: Sequence[GpuState]) -> str:
    """`GPU 0`, `GPUs 0, 2 and 3`."""
    numbers = [str(gpu.index) for gpu in gpus]
    return f"GPU {numbers[0]}" if len(numbers) == 1 else f"GPUs {', '.join(numbers[:-1])} and {numbers[-1]}"


def _where(facts: MachineFacts, holds: Callable[[GpuState], bool]) -> list[GpuState]:
    return [gpu for gpu in _gpus(facts) if holds(gpu)]


def gpus(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """They are of one kind."""
    found = _gpus(facts)
    if not found:
        return
    kinds = {(gpu.name, gpu.memory_bytes) for gpu in found}
    listed = ", ".join(
        f"{sum((gpu.name, gpu.memory_bytes) == kind for gpu in found)} x {kind[0]} ({gib(kind[1])} GiB)"
        for kind in sorted(kinds)
    )
    if len(kinds) > 1:
        yield warning(
            listed,
            "every rank holds the same share of the model and waits for the slowest",
            "choose equal ones: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1",
        )
    else:
        yield ok(listed)


def gpu_memory(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Nobody holds their memory."""
    found = _gpus(facts)
    held = [gpu for gpu in found if gpu.memory_bytes - gpu.free_bytes > _IDLE_SHARE * gpu.memory_bytes]
    for gpu in held:
        by = ", ".join(f"{name} ({gib(size)} GiB)" if size else name for name, size in gpu.holders[:3])
        yield warning(
            f"GPU {gpu.index}: {gib(gpu.memory_bytes - gpu.free_bytes)} of {gib(gpu.memory_bytes)} GiB "
            f"in use{f' by {by}' if by else ', by no process that can be seen'}",
            "training has that much less, and shares the GPU's time",
            "end what is left of an earlier run (nvidia-smi; `ps` for the owner), or leave this GPU out with "
            "CUDA_VISIBLE_DEVICES",
        )
    if found and not held:
        yield ok("free on all of them")


def compute_mode(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Processes may use them."""
    if closed := _where(facts, lambda gpu: gpu.compute_mode == "prohibited"):
        yield problem(
            f'{named(closed)}: compute mode "prohibited"', "CUDA refuses every process", "sudo nvidia-smi -c DEFAULT"
        )
    if single := _where(facts, lambda gpu: gpu.compute_mode == "exclusive"):
        yield note(
            f'{named(single)}: compute mode "exclusive process"',
            "one rank a GPU runs; a second process beside it, such as an evaluation, is refused",
            "sudo nvidia-smi -c DEFAULT",
        )


def mig(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """They are not split."""
    if split := _where(facts, lambda gpu: gpu.mig):
        yield warning(
            f"{named(split)}: split into MIG instances",
            "a process sees one instance, and NCCL joins none of them: several ranks cannot train together here",
            "sudo nvidia-smi -mig 0, or train on one instance",
        )


def bf16(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """They have bf16 units, which came with compute capability 8.0."""
    lacking = _where(facts, lambda gpu: gpu.capability is not None and gpu.capability < (8, 0))
    if lacking:
        yield note(
            f"{named(lacking)}: no bf16 units, which came with sm_80",
            "bf16 is emulated, several times slower than fp16",
            'use "fp16": {"enabled": true}',
        )
    elif _where(facts, lambda gpu: gpu.capability is not None):
        yield ok("bf16 units are there")


def memory_errors(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Their memory is sound."""
    if worn := _where(facts, lambda gpu: gpu.remapping_failed):
        yield problem(
            f"{named(worn)}: a broken row of memory could not be replaced",
            "training stops with CUDA errors, or goes on with wrong numbers",
            "have the GPU exchanged",
        )
    if failing := _where(facts, lambda gpu: bool(gpu.uncorrected_errors) and not gpu.remapping_failed):
        yield warning(
            f"{named(failing)}: {sum(gpu.uncorrected_errors or 0 for gpu in failing)} uncorrected "
            "memory errors since the driver was loaded",
            "each ends the process that met it",
            "sudo nvidia-smi --gpu-reset, or reboot; exchange the GPU if they come back",
        )
    if not worn and not failing and _where(facts, lambda gpu: gpu.uncorrected_errors == 0):
        yield ok("no uncorrected memory errors")


def power(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Their power is not limited below the default."""
    lowered = _where(
        facts,
        lambda gpu: bool(
            gpu.power_limit_w and gpu.default_power_limit_w and gpu.power_limit_w < _LOWERED * gpu.default_power_limit_w
        ),
    )
    if lowered:
        first = lowered[0]
        yield warning(
            f"{named(lowered)}: limited to {first.power_limit_w:.0f} of {first.default_power_limit_w:.0f} W",
            "matrix products run slower, and predictions are too fast",
            f"sudo nvidia-smi -pl {first.default_power_limit_w:.0f}",
        )


def throttling(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Nothing lowers their clocks right now."""
    hot = _where(facts, lambda gpu: bool({"heat", "hardware", "power brake"} & set(gpu.slowed_by)))
    if hot:
        reasons = sorted({reason for gpu in hot for reason in gpu.slowed_by})
        warmest = max((gpu.temperature_c or 0 for gpu in hot), default=0)
        yield warning(
            f"{named(hot)}: clocks lowered now by {', '.join(reasons)}{f' at {warmest} degrees' if warmest else ''}",
            "all ranks wait for the slowest GPU",
            "look at the cooling and at the power supply of the GPU",
        )
    elif _gpus(facts):
        yield ok("no clock is lowered by heat or by the hardware")


def pcie(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """Their host links have all lanes. The generation counts only while a GPU works: idle links slow down."""
    known = _where(facts, lambda gpu: gpu.pcie is not None)
    links = {gpu.index: gpu.pcie for gpu in known if gpu.pcie is not None}
    narrow = [gpu for gpu in known if links[gpu.index].width < links[gpu.index].most_width]
    slow = [gpu for gpu in known if gpu.holders and links[gpu.index].generation < links[gpu.index].most_generation]
    if narrow:
        link = links[narrow[0].index]
        yield warning(
            f"{named(narrow)}: PCIe x{link.width} of x{link.most_width}",
            "offloads, and GPUs without NVLink, are that much slower",
            "seat the card anew, take a slot that has all lanes, look at the riser and at how the board shares them",
        )
    if slow:
        link = links[slow[0].index]
        yield warning(
            f"{named(slow)}: PCIe generation {link.generation} of {link.most_generation} at work",
            "offloads, and GPUs without NVLink, are that much slower",
            "look at the slot and at the BIOS setting",
        )
    if known and not narrow and not slow:
        link = links[known[0].index]
        yield ok(f"x{link.width}, up to generation {link.most_generation}")


def nvlink(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """All NVLinks that are there are up."""
    linked = _where(facts, lambda gpu: gpu.nvlinks[0] > 0)
    down = [gpu for gpu in linked if gpu.nvlinks[1]]
    bare = _where(facts, lambda gpu: gpu.nvlinks[0] == 0) if linked else []
    if bare:
        yield warning(
            f"{named(bare)}: no NVLink, others here have it",
            "the slowest link decides every collective",
            "train on the GPUs that NVLink joins: CUDA_VISIBLE_DEVICES",
        )
    elif down:
        active, inactive = down[0].nvlinks
        yield note(
            f"{named(down)}: {active} NVLinks up, {inactive} down",
            "some boards connect fewer than the GPU has; if others of this kind have more, collectives are slower",
            "nvidia-smi nvlink --status; on HGX and DGX: systemctl status nvidia-fabricmanager",
        )
    elif linked:
        yield ok(f"{linked[0].nvlinks[0]} links up on every GPU")


def peer_to_peer(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """GPUs write into each other's memory; where they cannot, NCCL goes through the host's."""
    pairs = facts.graphics.pairs if facts.graphics else ()
    if not pairs:
        return
    known = [pair for pair in pairs if pair.direct is not None]
    barred = [pair for pair in known if not pair.direct]
    if barred and len(barred) < len(known):
        yield warning(
            f"{len(barred)} of {len(pairs)} pairs of GPUs cannot reach each other's memory",
            "those go through host memory, and the slowest pair decides every collective",
            "train on GPUs that can: nvidia-smi topo -p2p w",
        )
    elif barred:
        yield note(
            "no GPU reaches another's memory",
            "NCCL goes through /dev/shm in host memory, as on "
            "GeForce cards and in most virtual machines; ZeRO-3 suffers most",
        )
    elif known:
        yield ok("every GPU reaches every other's memory")


def gpu_paths(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """GPUs without NVLink are on one socket."""
    pairs = facts.graphics.pairs if facts.graphics else ()
    if any(pair.path == "sockets" for pair in pairs) and not any(gpu.nvlinks[0] for gpu in _gpus(facts)):
        yield note(
            "some GPUs hang on different sockets",
            "what they tell each other crosses the link between the CPUs",
            "with fewer ranks than GPUs, choose those of one socket: nvidia-smi topo -m",
        )


CHECKS = (gpus, gpu_memory, compute_mode, mig, bf16, memory_errors, power, throttling)
LINKS = (pcie, nvlink, peer_to_peer, gpu_paths)
