"""Cause and fix of a failure that the table of messages knows, as `why` and `probe` print them."""

from __future__ import annotations

from collections.abc import Iterator

from ...probes.failures.diagnosis import Diagnosis
from ...validate.lint.linted_config import ADVISE
from ..document import blocks as doc
from ..text.units import ended


def cause_and_fix(found: Diagnosis, advise: str = ADVISE) -> Iterator[doc.Block]:
    """Yield the cause, the fix and their source; nothing for a failure that is not known.

    advise: the command that finds a plan for the training's model and GPUs; "" if there is none.
    """
    message, explanation = found.message, found.explanation
    if message is None or explanation is None:
        return
    cause = "Cause:" if message.certain else "Usual causes:"
    yield doc.Sentence(f" {ended(explanation.cause)}", mark=cause, mark_style="bold")
    fix = explanation.fix.replace(ADVISE, advise) if advise else explanation.fix.partition(f"; `{ADVISE}`")[0]
    yield doc.Sentence(f" {ended(fix)}", mark="Fix:", mark_style="bold")
    yield doc.Sentence(f"Confirmed by: {explanation.source}", "dim")
