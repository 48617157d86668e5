"""A machine that can be rented, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from ...estimators.hardware.cluster import Cluster
from ...estimators.time.price import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One size of a row of a price table."""

    provider: str
    name: str
    """What the provider calls it; "" where it has no name."""
    cluster: Cluster
    """One such machine."""
    most_nodes: int
    """How many may be joined by their network."""
    price: Price | None
    """On demand; None where the table does not say. This and the next are those of a node."""
    spot: Price | None
    """Where the provider may take it back."""
    hours_between_interruptions: float
    """Of one machine that may be taken back, on average."""
    date: str
    """The day of the price, "" where the table does not say."""
    source: str

    @property
    def title(self) -> str:
        return " ".join(part for part in (self.provider, self.name) if part)
