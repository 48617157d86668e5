"""Cause and fix of a failure that the table of messages knows, as `why` and `probe` print them."""

from __future__ import annotations

from collections.abc import Iterator

from ...probes.failures.diagnosis import Diagnosis
from ..document import blocks as doc
from ..text.units import ended

_PLAIN = ("gpu-memory", "host-memory")
"""Messages of which the phase says more than they do."""


def cause_and_fix(found: Diagnosis) -> Iterator[doc.Block]:
    """Yield the cause, the fix and their source; nothing for a failure that is not known."""
    message, phase = found.message, found.phase
    if message is None:
        return
    told = phase if phase is not None and message.id in _PLAIN else message
    yield doc.Sentence(f"{'Cause' if message.certain else 'Usual causes'}: {ended(told.cause)}")
    yield doc.Sentence(f"Fix: {ended(told.fix)}")
    yield doc.Sentence(f"Confirmed by: {told.source}", "dim")
