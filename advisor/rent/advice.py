"""Which of the offers: the Pareto front of cost against time, and the one that meets a deadline or a budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .offers import LeftOut, Offer
from .table import PriceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RentAdvice:
    """The answer to "which machine should I rent"."""

    table: PriceTable
    offers: tuple[Offer, ...]
    """By rising cost."""
    left_out: tuple[LeftOut, ...]
    deadline_s: float | None
    budget: float | None
    """In the table's currency."""
    basis: tuple[str, ...]
    """Sentences on the job: what was counted, what was taken for granted."""

    @property
    def front(self) -> tuple[Offer, ...]:
        """The offers than which none is both cheaper and faster, by rising cost and falling time."""
        front: list[Offer] = []
        for offer in self.offers:
            if not front or offer.duration_s < front[-1].duration_s:
                front.append(offer)
        return tuple(front)

    @property
    def cheapest(self) -> Offer | None:
        return min(self.offers, key=lambda offer: offer.cost, default=None)

    @property
    def fastest(self) -> Offer | None:
        return min(self.offers, key=lambda offer: offer.duration_s, default=None)

    @property
    def recommended(self) -> Offer | None:
        """The cheapest that meets the deadline, or without one the fastest that the budget pays; without either the
        cheapest. None where none is both in time and within the budget."""
        possible = [offer for offer in self.offers if self.meets(offer)]
        if self.deadline_s is None and self.budget is not None:
            return min(possible, key=lambda offer: offer.duration_s, default=None)
        return min(possible, key=lambda offer: offer.cost, default=None)

    @property
    def sure(self) -> Offer | None:
        """The cheapest whose interval of time ends before the deadline, within the budget; None without a deadline."""
        if self.deadline_s is None:
            return None
        deadline_s = self.deadline_s
        possible = [
            offer
            for offer in self.offers
            if self.meets(offer) and offer.duration_s_range is not None and offer.duration_s_range[1] <= deadline_s
        ]
        return min(possible, key=lambda offer: offer.cost, default=None)

    def meets(self, offer: Offer) -> bool:
        """Whether an offer is in time and within the budget."""
        return (self.deadline_s is None or offer.duration_s <= self.deadline_s) and (
            self.budget is None or offer.cost <= self.budget
        )


def sorted_offers(found: Iterable[Offer | LeftOut]) -> tuple[tuple[Offer, ...], tuple[LeftOut, ...]]:
    """The offers by rising cost, of equals the faster first, and what was left out."""
    listed = list(found)
    offers = [one for one in listed if isinstance(one, Offer)]
    return (
        tuple(sorted(offers, key=lambda offer: (offer.cost, offer.duration_s))),
        tuple(one for one in listed if isinstance(one, LeftOut)),
    )
