"""Files of the kernel (/proc, /sys), and this process's control groups: its memory limit and processor quota.

A group's limit also binds the groups below it, so all groups from this process's own to the root count. Both versions
of the interface are read (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of Linux).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


def read_text(file: Path) -> str:
    """The stripped text of a file, "" where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_number(*files: Path) -> int | None:
    """The integer in the first of these files that has one."""
    return next((int(text) for text in map(read_text, files) if text.isdecimal()), None)


def read_pairs(file: Path, separator: str = ":") -> dict[str, str]:
    """The `name: value` lines of a file; the first line of a name counts."""
    pairs: dict[str, str] = {}
    for line in read_text(file).splitlines():
        name, found, value = line.partition(separator)
        if found:
            pairs.setdefault(name.strip(), value.strip())
    return pairs


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The memory controller of one control group; each property reads its file."""

    folder: Path

    @property
    def limit_bytes(self) -> int | None:
        """None without a limit; version 1 writes "no limit" as a huge number."""
        return read_number(self.folder / "memory.max", self.folder / "memory.limit_in_bytes")

    @property
    def used_bytes(self) -> int | None:
        """Memory of the group's processes, including the page cache."""
        return read_number(self.folder / "memory.current", self.folder / "memory.usage_in_bytes")

    @property
    def events_file(self) -> Path:
        """The file with the number of processes that the kernel killed because memory ran out."""
        file = self.folder / "memory.events"
        return file if file.exists() else self.folder / "memory.oom_control"

    @property
    def killed(self) -> int | None:
        count = read_pairs(self.events_file, " ").get("oom_kill", "")
        return int(count) if count.isdecimal() else None

    def counters(self) -> dict[str, int]:
        """Bytes by kind of memory (memory.stat)."""
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
        quota = quota or read_text(folder / "cpu.cfs_quota_us")
        period = period or read_text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _groups(root: Path, controller: str) -> list[Path]:
    """The folders of this process's groups in the tree of version 2 and in the controller's tree of version 1.

    The roots of both are included: inside a container they are the container's group, whatever path /proc/self/cgroup
    names.
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
