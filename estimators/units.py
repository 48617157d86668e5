"""Binary units of sizes, and lists in words."""

from __future__ import annotations

from collections.abc import Sequence

GIB = 2**30


def whole_gib(size_bytes: int) -> int:
    """Return the size in GiB, rounded up."""
    return -(-size_bytes // GIB)


def gib(size_bytes: int) -> str:
    """Format a size in GiB with three significant digits or one decimal: `0.49`, `4.1`, `238.0`, `1,204`."""
    value = size_bytes / GIB
    if value < 0.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 999.5 else f"{value:,.0f}"


def mib(size_bytes: int) -> str:
    """Format a size in MiB like `gib`."""
    return gib(1024 * size_bytes)


def alternatives(names: Sequence[str]) -> str:
    """Return `a, b or c`; "" for none."""
    return listed(names, "or")


def listed(names: Sequence[str], last: str = "and") -> str:
    """Return `a, b and c`; "" for none."""
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
