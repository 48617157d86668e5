"""Parts of a whole as a bar of characters, each part with its own shade and colour, and a legend."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from .labels import component_title
from .language import spoken
from .lines import FIRM, NARROWEST, WIDTH, can_encode, row, sentence
from .units import gib

SMALL_SHARE = 0.02
"""Parts below this share of the total are drawn together as `other`."""

_SHADES = "█▓▒░"
_PLAIN_SHADES = "#=+-"
_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")


def bar(parts: Mapping[str, int], console: Console) -> None:
    """Draw `parts` (bytes by name), the largest first."""
    merged = _merge_small(parts)
    total = sum(size for _, size in merged)
    shades = _SHADES if can_encode(console, _SHADES) else _PLAIN_SHADES
    drawn, legend, width = Text(" "), Text(), min(WIDTH, max(console.width, NARROWEST)) - 12
    for index, (name, size) in enumerate(merged):
        shade, style = shades[index % len(shades)], _STYLES[index % len(_STYLES)]
        drawn.append(shade * max(1, round(size / total * width)), style=style)
        legend.append(shade + FIRM, style=style)
        legend.append(f"{spoken(component_title(name))} {gib(size)}".replace(" ", FIRM) + "   ")
    row(console, drawn)
    sentence(console, legend)


def _merge_small(parts: Mapping[str, int]) -> list[tuple[str, int]]:
    total = sum(parts.values())
    large = [(name, size) for name, size in parts.items() if size >= SMALL_SHARE * total]
    rest = total - sum(size for _, size in large)
    ordered = sorted(large, key=lambda pair: -pair[1])
    return [*ordered, ("other", rest)] if rest else ordered
