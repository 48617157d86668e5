"""What the control groups of this process allow it: memory and processor time (a container's limits).

A group's limit binds the groups below it too, so every group from this process's own up to the root counts. Both
versions of the kernel's interface are read (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of Linux).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .kernel_files import read_number, read_pairs, read_text


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The memory controller's files of one control group; each property reads the file anew."""

    folder: Path

    @property
    def limit_bytes(self) -> int | None:
        """None without a limit; version 1 writes "no limit" as a number larger than any machine's RAM."""
        return read_number(self.folder / "memory.max", self.folder / "memory.limit_in_bytes")

    @property
    def used_bytes(self) -> int | None:
        """All memory of the group's processes, with the page cache, of which the kernel can drop a part."""
        return read_number(self.folder / "memory.current", self.folder / "memory.usage_in_bytes")

    @property
    def events_file(self) -> Path:
        """The file that counts the processes which the kernel has killed because the memory was used up."""
        file = self.folder / "memory.events"
        return file if file.exists() else self.folder / "memory.oom_control"

    @property
    def killed(self) -> int | None:
        count = read_pairs(self.events_file, " ").get("oom_kill", "")
        return int(count) if count.isdecimal() else None

    def counters(self) -> dict[str, int]:
        """memory.stat: bytes of each kind of memory."""
        pairs = read_pairs(self.folder / "memory.stat", " ")
        return {name: int(value) for name, value in pairs.items() if value.isdecimal()}


def memory_groups(root: Path = Path("/")) -> list[MemoryGroup]:
    """The control groups whose memory limits bind this process, its own first."""
    return [MemoryGroup(folder) for folder in _groups(root, "memory")]


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processor seconds per second that this process's control groups allow, None without a limit."""
    quotas = []
    for folder in _groups(root, "cpu"):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        quota, period = (
            quota or read_text(folder / "cpu.cfs_quota_us"),
            period or read_text(folder / "cpu.cfs_period_us"),
        )
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _groups(root: Path, controller: str) -> list[Path]:
    """The folders of this process's groups in version 2's tree and in the controller's own tree of version 1.

    The roots of both are always among them: inside a container they are the container's group, whatever path
    /proc/self/cgroup names.
    """
    trees = {"": root / "sys/fs/cgroup", controller: root / "sys/fs/cgroup" / controller}
    folders = []
    for entry in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = entry.partition(":")
        controllers, _, own = rest.partition(":")
        tree = trees.get(controller if controller in controllers.split(",") else controllers)
        if tree is not None:
            folder = tree / own.strip("/")
            folders += [place for place in (folder, *folder.parents) if place.is_relative_to(tree)]
    return list(dict.fromkeys([*folders, *trees.values()]))
