"""What would change the answer."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ...estimators.phrase import phrase
from ..answer.recommendation import Recommendation
from ..text.language import spoken
from ..text.lines import blank, sentence

_MOST_CHANGES = 5
"""Changes that are told without `details`."""


def print_changes(answer: Recommendation, console: Console, *, details: bool) -> None:
    """What else was tried and what it would win; without `details` the first few."""
    if not answer.changes:
        if answer.recommended is None:
            blank(console)
            sentence(
                console,
                phrase("No change that was tried makes it fit: other methods, a shorter sequence.")
                if answer.question.cluster.gpu.is_cpu
                else phrase(
                    "No change that was tried makes it fit: other methods, a shorter sequence, more or larger GPUs."
                ),
            )
        return
    blank(console)
    title = phrase("What would change the answer") if answer.recommended else phrase("What would make it fit")
    if answer.past_probes or answer.probe_series:
        title = phrase("{title} (predicted, not corrected by probes)", title=title)
    sentence(console, title)
    shown = answer.changes if details else answer.changes[:_MOST_CHANGES]
    width = max(len(change.flags) for change in shown)
    for change in shown:
        sentence(
            console,
            Text.assemble("  ", (f"{change.flags:<{width}}", "bold"), f"  {spoken(change.outcome)}"),
            hang=width + 4,
        )
    if len(shown) < len(answer.changes):
        more = phrase("and {count} more (--details)", count=len(answer.changes) - len(shown))
        sentence(console, f"  {spoken(more)}", style="dim")
