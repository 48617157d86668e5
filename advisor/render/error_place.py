"""The place of an error in a log, as `why`, `launch`, `train` and `probe` print it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from ...probes.failures.diagnosis import Diagnosis
from ...probes.failures.finding import Finding, Wait
from ...probes.failures.logged_steps import spike
from ...probes.failures.messages import loading_bar
from ...probes.failures.traceback_frames import Frame, NumberedLine, frame_of
from ..document import blocks as doc
from ..text.units import capitalised, counted_noun, numbered, printable, shown_path

LONGEST = 400
"""Characters of a log's last line, and of a line beside the deciding one, that are printed."""

_LIBRARY_FRAMES = 2
"""Last frames of a traceback that are printed, besides the user's own."""

_NEXT_LINES = 2
"""Lines of a message before and after the deciding one that are printed."""


def error_place(found: Diagnosis, log: str = "", *, says_when: bool = True) -> Iterator[doc.Block]:
    """Yield the place of the first error in a log, and there the user's own frame, the last frames, and the lines of
    the message; nothing without an error. log: its name; "" for a text without a file, whose lines have no numbers.
    says_when: whether to print the step that the log names before it: a script may count from 0, an engine does not."""
    first = found.first
    if first is None:
        return
    if not log:
        excerpt = _excerpt(first)
        yield excerpt._replace(lines=[line._replace(number=0) for line in excerpt.lines])
        return
    rank = "" if first.rank is None else f", rank {first.rank}"
    step, steps = first.error.step, counted_noun(first.error.steps, "logged step")
    after = f", after {steps}" if first.error.steps else ""
    if not says_when or first.error.trained:
        after = ""
    elif step is not None:
        after = f", after step {step}" if step else ", before the end of the first step"
    yield doc.Sentence(f"--> {printable(first.error.log or log)}:{first.deciding}{rank}{after}", "bold")
    if first.error.trained:
        yield doc.Sentence(f"  The training had done all its steps before (train_runtime, line {first.error.trained}).")
    yield from _others(found)
    if bar := loading_bar(first.error.before) if found.phase is not None and not first.error.has_place else "":
        yield doc.Sentence(f"  The last progress bar before it: {bar}.")
    yield _excerpt(first)
    before = spike(first.error.before) if first.message is not None and first.message.id.startswith("nan-") else None
    if before is not None:
        last, usual = (" and ".join(f"{name} {value:g}" for name, value in each.items()) for each in before)
        yield doc.Sentence(f"The last finite step had {last}; the median before it was {usual}.")


def _others(found: Diagnosis) -> Iterator[doc.Block]:
    """Yield what the other ranks report."""
    followers = found.followers
    if found.devices:
        yield doc.Sentence(f"  {numbered('GPU', found.devices)} report{'s' * (len(found.devices) == 1)} the same.")
    if not found.timed_out and not found.waits and followers:
        others = capitalised(numbered("rank", followers))
        # Of two logs it is not known which was written first.
        first = found.first is not None and found.first.rank is not None and not found.first.error.log
        told = f"{others} had an error, too."
        if found.is_first:
            told = f"It failed first; {numbered('rank', followers)} followed."
        elif first:
            told = f"Its error is the first in the log; {numbered('rank', followers)} followed."
        yield doc.Sentence(f"  {told}")
    if len(found.waits) != 1:
        return
    wait = found.waits[0]
    if not found.timed_out:
        yield doc.Sentence(f"  {capitalised(numbered('rank', wait.ranks))} waited in {wait} until the timeout.")
    elif len(wait.ranks) > 1 and not found.silent:  # else it is the verdict
        yield doc.Sentence(f"  {capitalised(numbered('rank', wait.ranks))} {verb(wait)} in {wait}.")


def verb(wait: Wait) -> str:
    """Return `waits` of one rank and `wait` of several."""
    return "waits" if len(wait.ranks) == 1 else "wait"


def _excerpt(first: Finding) -> doc.Excerpt:
    frames, message = [*_traceback(first)], [*_message(first)]
    is_behind = bool(first.error.frames) and first.error.frames[0].number > first.error.line
    return doc.Excerpt([*message, *frames] if is_behind else [*frames, *message], level="bad")


def _traceback(first: Finding) -> Iterator[doc.ExcerptLine]:
    frames, own = first.error.frames, first.own_frame
    of_engine = [frame for frame in frames if "deepspeed/" in frame.file][-1:]  # its file names the ZeRO stage
    shown = sorted({*frames[-_LIBRARY_FRAMES:], *of_engine, *([] if own is None else [own])}, key=frames.index)
    for at, frame in enumerate(shown):
        if at and frames.index(frame) > frames.index(shown[at - 1]) + 1:
            yield doc.ExcerptLine(0, "...")
        if frame.file:
            yield _place(frame)
        if frame.code:
            yield doc.ExcerptLine(0 if frame.file else frame.number, f"    {printable(frame.code)}")


def _place(frame: Frame) -> doc.ExcerptLine:
    place = f"{shown_path(PurePath(frame.short_file))}:{frame.place}".rstrip(":")
    return doc.ExcerptLine(frame.number, printable(", in ".join(filter(None, (place, frame.name)))), "/")


def _message(first: Finding) -> Iterator[doc.ExcerptLine]:
    lines = first.error.lines
    place = next(at for at, line in enumerate(lines) if line.number == first.deciding)
    begin = max(0, place - _NEXT_LINES)
    if begin:
        yield _line(lines[0])
    if begin > 1:
        yield doc.ExcerptLine(0, "...")
    for line in lines[begin : place + _NEXT_LINES + 1]:
        if line.number == first.deciding:
            yield doc.ExcerptLine(line.number, _ADVICE.sub("", printable(line.text).strip()), ">")
        elif line.text.strip():
            yield _line(line)


_ADVICE = re.compile(r" If reserved (?:but unallocated )?memory is (?:large|>> allocated memory) try setting .*")
"""torch's advice against fragmentation, which stands in every message, also of memory that is not fragmented."""


def _line(line: NumberedLine) -> doc.ExcerptLine:
    frame = frame_of(line)
    return doc.ExcerptLine(line.number, printable(line.text)[:LONGEST].rstrip()) if frame is None else _place(frame)
