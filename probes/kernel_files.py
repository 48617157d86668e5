"""Small files of the kernel (/proc, /sys): their text, a number, or pairs of names and values; nothing ever raises."""

from __future__ import annotations

from pathlib import Path


def read_text(file: Path) -> str:
    """The file's text without surrounding white space, "" where it is missing or must not be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_number(*files: Path) -> int | None:
    """The whole number in the first of these files that holds one."""
    return next((int(text) for text in map(read_text, files) if text.isdecimal()), None)


def read_pairs(file: Path, separator: str = ":") -> dict[str, str]:
    """The value of each `name: value` line; of a name that stands there twice, the first."""
    pairs: dict[str, str] = {}
    for line in read_text(file).splitlines():
        name, found, value = line.partition(separator)
        if found:
            pairs.setdefault(name.strip(), value.strip())
    return pairs
