"""What the links carry beside a pass, and how much of it the pass hides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..estimate import TimeTerm


@dataclass(slots=True)
class Transfers:
    """What the links carry beside one kind of pass, all micro batches together."""

    shown: list[TimeTerm] = field(default_factory=list)
    """What nothing hides."""
    carried: list[TimeTerm] = field(default_factory=list)
    """What the pass may hide, all of it in `seconds`; each in the same proportion."""
    alone_s: float = 0.0
    """Of what is carried, what has no pass beside it: the last reduction, and the first gather."""
    before: float = 0.0
    """The share of the pass that is over when the first reduction begins: its bucket fills."""

    def carry(self, terms: Iterable[TimeTerm], alone: float) -> None:
        """Adds what the pass may hide but for the share `alone`."""
        terms = tuple(terms)
        self.carried += terms
        self.alone_s += alone * sum(term.seconds for term in terms)

    def terms(self, pass_s: float, *, hidden_share: float, idle_s: float = 0.0) -> list[TimeTerm]:
        """Terms of what the pass leaves, which hides `hidden_share` of what runs beside it.

        idle_s: of the pass, what the GPU waits for the host: as much later it may begin.
        """
        total = sum(term.seconds for term in self.carried)
        if not total or not hidden_share:
            return self.shown + self.carried
        hidden = hidden_share * min(total - self.alone_s, pass_s * (1 - self.before)) + min(self.alone_s, idle_s)
        hidden /= total
        return self.shown + [
            term._replace(seconds=term.seconds * (1 - hidden), hidden_s=term.seconds * hidden) for term in self.carried
        ]
