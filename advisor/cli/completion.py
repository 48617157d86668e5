"""What a shell offers where a model or GPUs are typed: the names that are known offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

_MOST = 200
"""Names that are offered at once."""


def complete_model(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Catalogue names that begin like this, without their owner unless one is being typed; none for a path."""
    # Imported here: only a shell that asks for completions needs the catalogue.
    from ...estimators.models import catalogue

    if incomplete.startswith((".", "~", "/")):
        return []
    names = catalogue.names() if "/" in incomplete else [name.rpartition("/")[2] for name in catalogue.names()]
    return _beginning(names, incomplete)


def complete_gpus(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """GPU kinds after the counts that are typed already: `8xA1` becomes `8xA100-SXM4-80GB`."""
    from ...estimators.hardware.gpus import gpus

    counts, kind = _counts(incomplete)
    names = [gpu.name.replace(" ", "-") for gpu in gpus()]
    return [counts + name for name in _beginning(["auto", *names] if not counts else names, kind)]


def _counts(text: str) -> tuple[str, str]:
    """(`4x8x`, `H1`) of `4x8xH1`."""
    *counts, kind = text.split("x")
    numbers = 0
    while numbers < len(counts) and counts[numbers].isdigit():
        numbers += 1
    return "".join(f"{count}x" for count in counts[:numbers]), "x".join([*counts[numbers:], kind])


def _beginning(names: list[str], start: str) -> list[str]:
    """The names that begin so, in any case, each once."""
    return [name for name in dict.fromkeys(names) if name.lower().startswith(start.lower())][:_MOST]
