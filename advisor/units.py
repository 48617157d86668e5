"""Bytes, counts and rates as people read them. The only place where GiB appear."""

from __future__ import annotations

GIB = 2**30


def gib(size_bytes: int) -> str:
    """GiB with three significant digits or one decimal: `0.49`, `4.1`, `238.0`, `1,204`."""
    value = size_bytes / GIB
    if value < 0.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 999.5 else f"{value:,.0f}"


def count(number: int) -> str:
    """A parameter count: `14.77 B`, `124.4 M`, `315,722`."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:.4g} {unit}" if number < 1000 * size else f"{number / size:,.0f} {unit}"
    return f"{number:,}"


def rate(per_s: float) -> str:
    """Tokens per second with two or three significant digits, no more than the prediction is worth."""
    if per_s >= 1e7:
        return f"{per_s / 1e6:.3g} M" if per_s < 9.995e8 else f"{per_s / 1e6:,.0f} M"
    if per_s >= 1000:
        digits = len(str(int(per_s))) - 3
        return f"{round(per_s, -digits):,.0f}"
    return f"{per_s:.0f}" if per_s >= 10 else f"{per_s:.2g}"


def seconds(duration_s: float) -> str:
    """`3.2 s`, `48 ms`, `2 min 5 s`."""
    if duration_s >= 99.5:
        minutes, rest = divmod(round(duration_s), 60)
        return f"{minutes} min {rest} s"
    if duration_s >= 0.995:
        return f"{duration_s:.0f} s" if duration_s >= 9.95 else f"{duration_s:.1f} s"
    return f"{duration_s * 1000:.0f} ms" if duration_s >= 0.00995 else f"{duration_s * 1000:.1f} ms"


def age(duration_s: float) -> str:
    """How long ago: `just now`, `12 min ago`, `5 h ago`, `3 days ago`."""
    if duration_s < 60:
        return "just now"
    if duration_s < 3600:
        return f"{duration_s // 60:.0f} min ago"
    if duration_s < 48 * 3600:
        return f"{duration_s // 3600:.0f} h ago"
    return f"{duration_s // 86400:.0f} days ago"


def times(ratio: float) -> str:
    """A ratio with two or three digits: `1.14 x`, `2.6 x`, `24 x`."""
    digits = 2 if ratio < 1.995 else 1 if ratio < 9.95 else 0
    return f"{ratio:.{digits}f} x"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"
