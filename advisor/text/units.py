"""Formats of bytes, counts, rates and sentences, and safe display of external text on a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from ...estimators.units import GIB as GIB
from ...estimators.units import alternatives as alternatives
from ...estimators.units import gib as gib
from ...estimators.units import listed as listed
from ...estimators.units import mib as mib
from ...estimators.units import whole_gib as whole_gib

GLUE, FIRM = "\ue000", "\ue001"
"""Non-breaking spaces, printed as spaces. A word with a firm one is never broken at all."""

_UNBREAKABLE = re.compile(
    r"(?<=\d) (?=(?:%|x|\u500d|s|ms|min|[MBT]|GiB|GB|tokens/s|samples/s)(?:\W|$))|(?<=batch) (?=\d)"
)

_MOST_NUMBERS = 8
"""Numbers that are listed."""


def glued(text: str, space: str = GLUE) -> str:
    """Return the text with a non-breaking space between a figure and its unit."""
    return _UNBREAKABLE.sub(space, text)


def printable(text: str) -> str:
    """Return external text without control characters, which could steer the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def shown_path(path: PurePath) -> str:
    """Return a path as it is typed in the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def shown_paths(text: str) -> str:
    """Return a text with the paths below the current folder as they are typed there."""
    return re.sub(rf"(?<![\w./~}}@+-]){re.escape(f'{Path.cwd()}/')}", "", text)


def ended(text: str) -> str:
    """Return a sentence with a full stop, unless quoted text already ends it."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def capitalised(text: str) -> str:
    """Return the text as a sentence begins, unless it begins with an identifier or a quotation."""
    first = text.partition(" ")[0]
    is_identifier = not {*"_.:=/('\""}.isdisjoint(first[:-1]) or any(map(str.isupper, first[1:]))
    return text if is_identifier else text[:1].upper() + text[1:]


def count(number: int) -> str:
    """Return a parameter count: `14.77 B`, `124.4 M`, `315,722`."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:.4g} {unit}" if number < 1000 * size else f"{number / size:,.0f} {unit}"
    return f"{number:,}"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Return `rank 3`, `ranks 0, 1`, or the first ones of many."""
    shown = ", ".join(map(str, numbers[:_MOST_NUMBERS]))
    more = f" and {len(numbers) - _MOST_NUMBERS} more" if len(numbers) > _MOST_NUMBERS else ""
    return f"{noun}{'s' * (len(numbers) != 1)} {shown}{more}"


def counted_noun(number: int, noun: str) -> str:
    """Return `1 row`, `1,204 rows`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def tokens(number: int) -> str:
    """Return a length in tokens: `2048`, `131,072`."""
    return f"{number:,}" if number >= 10_000 else str(number)


def rate(per_s: float) -> str:
    """Return tokens per second with two or three significant digits, the precision of the prediction."""
    if per_s >= 9.995e8:
        return f"{per_s / 1e6:,.0f} M"
    if per_s >= 1000:
        digits = len(str(int(per_s))) - 3
        return f"{round(per_s, -digits):,.0f}"
    return f"{per_s:.0f}" if per_s >= 10 else f"{per_s:.2g}"


def rough_rates(low: float, high: float, middle: float) -> tuple[str, str]:
    """Return the ends of an interval of tokens per second with two significant digits. It has the middle: where an end
    would pass it, that end is rounded outwards."""
    ends = [float(f"{end:.2g}") for end in (low, high)]
    units = [10.0 ** (int(f"{end:e}".partition("e")[2]) - 1) for end in ends]
    ends[0] -= units[0] * (ends[0] > middle)
    ends[1] += units[1] * (ends[1] < middle)
    return rate(ends[0]), rate(ends[1])


def loss_figure(loss: float) -> str:
    """Return a loss with four significant digits: `6.000`."""
    return f"{loss:#.4g}".removesuffix(".")


def seconds(duration_s: float) -> str:
    """Return `3.2 s`, `48 ms`, `2 min 5 s`, `25 h 31 min`."""
    if duration_s >= 2 * 3600 - 0.5:
        hours, minutes = divmod(round(duration_s / 60), 60)
        return f"{hours} h {minutes} min"
    if duration_s >= 99.5:
        minutes, rest = divmod(round(duration_s), 60)
        return f"{minutes} min {rest} s"
    if duration_s >= 0.995:
        return f"{duration_s:.0f} s" if duration_s >= 9.95 else f"{duration_s:.1f} s"
    return f"{duration_s * 1000:.0f} ms" if duration_s >= 0.00995 else f"{duration_s * 1000:.1f} ms"


def three_digits(value: float) -> str:
    """Return a figure of a column in one unit: `1,234`, `56.7`, `0.012`, and `<0.001` for less."""
    if value < 0.9995:
        return "<0.001" if value < 0.0005 else f"{value:.3f}"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def fine_seconds(duration_s: float) -> str:
    """Return a time that may be short: `3.2 s`, `48 ms`, `9.3 us`, `0 s`."""
    return seconds(duration_s) if duration_s >= 0.00095 else amount(duration_s, "s") if duration_s else "0 s"


def whole_seconds(duration_s: float) -> str:
    """Return a time that is counted while it passes: `3 s`, `1 min 5 s`."""
    if duration_s >= 99.5:
        return seconds(duration_s)
    minutes, rest = divmod(round(duration_s), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def age(duration_s: float) -> str:
    """Return the time since an event: `just now`, `12 min ago`, `5 h ago`, `3 days ago`."""
    if duration_s < 60:
        return "just now"
    if duration_s < 3600:
        return f"{duration_s // 60:.0f} min ago"
    if duration_s < 48 * 3600:
        return f"{duration_s // 3600:.0f} h ago"
    return f"{duration_s // 86400:.0f} days ago"


def times(ratio: float) -> str:
    """Return a ratio with two or three digits: `1.14 x`, `2.6 x`, `24 x`."""
    digits = 2 if ratio < 1.995 else 1 if ratio < 9.95 else 0
    return f"{ratio:.{digits}f} x"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def whole_percents(shares: Sequence[float]) -> list[int]:
    """Return shares as whole percents whose sum is the rounded total: rounded down, then the largest remainders up."""
    exact = [100 * share for share in shares]
    whole = [int(value) for value in exact]
    missing = round(sum(exact)) - sum(whole)
    for index in sorted(range(len(exact)), key=lambda index: whole[index] - exact[index])[:missing]:
        whole[index] += 1
    return whole


_PREFIXES = (
    ("P", 1e15),
    ("T", 1e12),
    ("G", 1e9),
    ("M", 1e6),
    ("k", 1e3),
    ("", 1.0),
    ("m", 1e-3),
    ("u", 1e-6),
    ("n", 1e-9),
)


def amount(value: float, unit: str) -> str:
    """Return a rate or time in the decimal unit that leaves one to three integer digits: `612 Tflop/s`, `21 us`."""
    prefix, scale = _prefix(value)
    return f"{_three_digits(value / scale)} {prefix}{unit}"


def amounts(values: Sequence[float], middle: float) -> str:
    """Return values in the unit that `amount` chooses for `middle`: `598 to 615`."""
    return " to ".join(_three_digits(value / _prefix(middle)[1]) for value in values)


def _three_digits(value: float) -> str:
    return f"{float(f'{value:.3g}'):g}"


def _prefix(value: float) -> tuple[str, float]:
    return next(((prefix, scale) for prefix, scale in _PREFIXES if abs(value) >= 0.9995 * scale), _PREFIXES[-1])


SMALL_BYTES = GIB // 10
"""A memory below this size is shown in MiB."""


def memory_size(size_bytes: int) -> str:
    """Return a memory with its unit: `4.1 GiB`, `0.49 GiB`, `27.4 MiB`, `0 MiB`."""
    if not size_bytes:
        return "0 MiB"
    return f"{mib(size_bytes)} MiB" if size_bytes < SMALL_BYTES else f"{gib(size_bytes)} GiB"


def size(size_bytes: int) -> str:
    """Return a buffer's size in binary units: `8 B`, `64 KiB`, `256 MiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            value = size_bytes / scale
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"
    return f"{size_bytes} B"
