"""Cause and fix of a failure that the table of messages knows, as `why` and `probe` print them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...ds_configs.files import CONFIG_NAME
from ...probes.failures.diagnosis import Diagnosis
from ...probes.failures.messages import Message
from ...validate.lint.linted_config import ADVISE
from ...validate.lint.values import nearest
from ..document import blocks as doc
from ..text.units import ended

_QUOTED_FILE = re.compile(r"[\"']([^\"']+\.json)[\"']")

_RANKS = 8
"""Ranks that are listed."""


def cause_and_fix(found: Diagnosis, advise: str = ADVISE, config: str = "") -> Iterator[doc.Block]:
    """Yield the cause, the fix and their source; nothing for a failure that is not known.

    advise: the command that finds a plan for the training's model and GPUs; "" if there is none.
    config: the path of the training's DeepSpeed configuration; "" if it is not known.
    """
    message, explanation = found.message, found.explanation
    if message is None or explanation is None:
        return
    cause = "Cause:" if message.certain else "Usual causes:"
    yield doc.Sentence(f" {ended(explanation.cause)}", mark=cause, mark_style="bold")
    fix = explanation.fix.replace(ADVISE, advise) if advise else explanation.fix.partition(f"; `{ADVISE}`")[0]
    file = config or _config_of(found)
    fix = _renamed(found, file) or fix.replace(CONFIG_NAME, file or CONFIG_NAME)
    if len(found.waits) > 1:
        fix = fix.replace("the rank in another state", f"what {ranks(found.waits[-1].ranks)} did")
    elif found.timed_out and found.silent:
        fix = fix.replace("the rank in another state", f"what {ranks(found.silent)} did")
    yield doc.Sentence(f" {ended(fix)}", mark="Fix:", mark_style="bold")
    if isinstance(explanation, Message) or explanation.source.startswith("https://"):
        # else the phase was read in the code of the frames, which are shown
        yield doc.Sentence(_source(explanation.source), "dim")


def ranks(numbers: Sequence[int]) -> str:
    """Return `rank 3`, `ranks 0, 1`, or the first ones of many."""
    shown = ", ".join(map(str, numbers[:_RANKS]))
    more = f" and {len(numbers) - _RANKS} more" if len(numbers) > _RANKS else ""
    return f"rank{'' if len(numbers) == 1 else 's'} {shown}{more}"


def _config_of(found: Diagnosis) -> str:
    """Return the configuration that the command or the user's code names in the log."""
    code = [frame.code for frame in found.first.error.frames if frame.is_own] if found.first else []
    quoted = (each[1] for line in reversed(code) for each in _QUOTED_FILE.finditer(line))
    return next(quoted, next((word for word in found.command if word.endswith(".json")), ""))


def _renamed(found: Diagnosis, file: str) -> str:
    """Return the fix of a misspelled key; "" for any other failure."""
    key = found.first.named.get("key", "") if found.first else ""
    if not key:
        return ""
    from ...validate.lint import load_facts  # imported here: few failures need it

    *_, name = key.split(".")
    near = nearest(name, {known for block in load_facts().blocks for known in block.names()}, cutoff=0.75)
    where = f" in {file}" if file else ""
    return f"Rename {name} to {near}{where}; `ds-advise lint {file or CONFIG_NAME}` checks the rest" if near else ""


def _source(source: str) -> str:
    """Return where cause and fix were found: a thread, a page, or a file of an installed package."""
    if not source.startswith("https://"):
        return f"Read in the code: {source.replace(' ', '/', 1).replace('.py ', '.py: ')}"
    if "/blob/" in source:
        return f"Read in the code: {source}"
    is_thread = any(f"/{kind}/" in source for kind in ("issues", "pull", "discussions"))
    return f"{'Reported and answered in' if is_thread else 'Documented in'}: {source}"
