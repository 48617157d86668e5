"""Cause and fix of a failure that the table of messages knows, as `why` and `probe` print them."""

from __future__ import annotations

from collections.abc import Iterator

from ...probes.failures.diagnosis import Diagnosis
from ...probes.failures.messages import Message
from ...validate.lint.linted_config import ADVISE
from ..document import blocks as doc
from ..text.units import capitalised, ended
from .named_fix import named_fix


def cause_and_fix(
    found: Diagnosis, advise: str = ADVISE, config: str = "", predicted_fix: str = ""
) -> Iterator[doc.Block]:
    """Yield the cause, the fix and their source; nothing for a failure that is not known.

    advise: the command that finds a plan for the training's model and GPUs; "" if there is none.
    config: the path of the training's DeepSpeed configuration; "" if it is not known.
    predicted_fix: the fix that a prediction for this training names, in place of the usual one; "" without one.
    """
    message, explanation = found.message, found.explanation
    if message is None or explanation is None:
        return
    search = f"; `{ADVISE}`"  # what begins the last clause of a fix: the command that finds another plan
    fix = named_fix(found, config)
    if predicted_fix:
        fix = predicted_fix if ADVISE in predicted_fix else predicted_fix + "".join(fix.partition(search)[1:])
    fix = fix.replace(ADVISE, advise) if advise else fix.partition(search)[0]
    # The source of another phase is the code of the frames, which are shown.
    has_source = isinstance(explanation, Message) or explanation.source.startswith("https://")
    source = explanation.source if has_source else ""
    yield from _explained(explanation.cause, fix, source, is_certain=found.is_certain)


def course_of_loss(message: Message) -> Iterator[doc.Block]:
    """Yield what is wrong with the loss of a training without an error, as far as it shows, and the usual causes."""
    yield doc.Sentence(ended(capitalised(message.headline)), "yellow")
    yield from _explained(message.cause, message.fix, message.source, is_certain=message.certain)


def _explained(cause: str, fix: str, source: str, *, is_certain: bool) -> Iterator[doc.Block]:
    yield doc.Sentence(f" {ended(cause)}", mark="Cause:" if is_certain else "Usual causes:", mark_style="bold")
    yield doc.Sentence(f" {ended(fix)}", mark="Fix:", mark_style="bold")
    if source:
        yield doc.Sentence(_source(source), "dim")


def _source(source: str) -> str:
    """Return where cause and fix were found: a thread, a page, or a file of an installed package."""
    if not source.startswith("https://"):
        return f"Read in the code: {source.replace(' ', '/', 1).replace('.py ', '.py: ')}"
    if "/blob/" in source and not source.endswith(".md"):
        return f"Read in the code: {source}"
    is_thread = any(f"/{kind}/" in source for kind in ("issues", "pull", "discussions"))
    return f"{'Reported and answered in' if is_thread else 'Documented in'}: {source}"
