"""What is shown of a running task, as rows of a terminal's width with bars, and as one line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from .lines import LONGEST, PLAIN_SPARKS, SPARKS, folded
from .units import gib, loss_figure, printable, rate, seconds, whole_seconds

_LEAST_PICTURE = 14
"""Least columns of a bar next to its figures; on a narrower terminal it stands below them."""

_MOST_LINES, _INDENT = 4, 3
"""Most lines of a phase, and the columns before all but the first."""

_TITLE = 4
"""Columns of the names of rows: step, loss, host, GPU."""

_VALUE = len("12.3 GiB")
"""Least columns of the figures of rows, so that bars do not move when the first figures arrive."""

_ROOM = 1.25
"""Length of a memory bar as a multiple of the prediction, if no more memory is used."""

_NEARLY_FULL = 0.95
"""Share of the capacity from which memory is shown in red."""

_LEAST_SPAN = 0.05
"""Least height of a line of bars as a share of its highest value: smaller changes are noise, and look flat."""

_SHOWN_S = 3.0
"""Least time in a phase that is shown."""


class MemoryUse(NamedTuple):
    """Memory of the fullest GPU, or of a training's processes on this node; None if unknown."""

    title: str
    now_bytes: int
    peak_bytes: int
    predicted_bytes: int | None = None
    capacity_bytes: int | None = None
    is_stepping: bool = True
    """Whether a step was made: the peak is compared with the prediction from then on."""
    most_bytes: int = 0
    """Upper end of the prediction."""

    @property
    def exceeds(self) -> bool:
        """Whether the peak is above the interval of the prediction, by the printed figures."""
        if self.predicted_bytes is None or not self.is_stepping:
            return False
        most_bytes = max(self.most_bytes, self.predicted_bytes)
        return self.peak_bytes > most_bytes and gib(self.peak_bytes) != gib(most_bytes)

    @property
    def style(self) -> str:
        if self.capacity_bytes and self.peak_bytes > _NEARLY_FULL * self.capacity_bytes:
            return "red"
        return "yellow" if self.exceeds else "green"

    @property
    def notes(self) -> tuple[str, str]:
        """The peak; and the prediction, or without one the capacity."""
        peak = f"peak {gib(self.peak_bytes)}"
        if self.predicted_bytes is not None:
            return f"{peak}{' >' if self.exceeds else ','}", f"predicted {gib(self.predicted_bytes)}"
        return peak, "" if self.capacity_bytes is None else f"of {gib(self.capacity_bytes)} GiB"


@dataclass(frozen=True, kw_only=True)
class View:
    """A task as it is now."""

    phase: str = ""
    """What it does; "" while it makes steps."""
    step: int = 0
    total_steps: int | None = None
    left_s: float | None = None
    """Time left; None before it is known."""
    step_s: float | None = None
    tokens_per_s: float | None = None
    predicted_tokens_per_s: float | None = None
    losses: Sequence[float] = ()
    """The losses from the first to the last, thinned out if there are many."""
    first_loss: float | None = None
    loss: float | None = None
    """The last loss."""
    memory: Sequence[MemoryUse] = ()

    @property
    def speed(self) -> str:
        if self.tokens_per_s is None:
            return "" if self.step_s is None else f"{seconds(self.step_s)} a step"
        return f"{rate(self.tokens_per_s)} tokens/s"

    @property
    def steps(self) -> str:
        return f"{self.step}/{self.total_steps}" if self.total_steps else f"{self.step}"

    @property
    def left(self) -> str:
        return "" if self.left_s is None else f"{whole_seconds(self.left_s)} left"


def line(title: str, view: View, elapsed_s: float) -> str:
    """Return the view in one line: `training, 3 min 12 s: step 60/600, loss 2.3, 28 min left; host 9.1 GiB, ...`."""
    loss = "" if view.loss is None else f"loss {loss_figure(view.loss)}"
    parts = [f"step {view.steps}" if view.step else "", loss, view.speed, view.left]
    memory = [f"{use.title} {gib(use.now_bytes)} GiB, {' '.join(use.notes)}" for use in view.memory if use.peak_bytes]
    figures = ", ".join(filter(None, parts))
    what = "; ".join(filter(None, (view.phase, figures, *(memory if view.step else ()))))
    return f"{title}, {whole_seconds(elapsed_s)}: {what}"


class _Row(NamedTuple):
    """A row of a view: its figures, a picture that fills the line, and a note. On a narrow terminal the picture and the
    note stand below the figures."""

    title: str
    value: Text
    picture: _Bar | _Sparks
    note: str
    detail: str = ""


def rows(title: str, view: View, times: tuple[float, float], columns: int, *, blocks: bool) -> list[Text]:
    """Return the view in lines of at most `columns`. times: seconds since the start, and in this phase. blocks: whether
    the terminal's encoding has block characters."""
    width = min(columns, LONGEST) - 1  # a full line would leave the cursor on the next one in some terminals
    found = _rows(view)
    figures = [Text.assemble(" ", (each.title.ljust(_TITLE), "dim"), " ", each.value) for each in found]
    for text in figures:
        text.pad_right(_TITLE + 2 + _VALUE - cell_len(text.plain))
    wide = [f"{each.detail} {each.note}".lstrip() for each in found]
    indent, room = _columns(figures, wide, width)
    if is_narrow := room < _LEAST_PICTURE:
        figures = [text.append(f"  {each.detail}".rstrip(" ,>")) for text, each in zip(figures, found, strict=True)]
        wide = [each.note for each in found]
        room = _columns([], wide, width)[1]
    drawn = _head(title, view, times, width)
    for text, each, note in zip(figures, found, wide, strict=True):
        picture = Text.assemble(each.picture.draw(room, blocks=blocks), "  ", (note, "dim"))
        if is_narrow:
            drawn += [text, Text(" ").append_text(picture)]
        else:
            text.pad_right(indent - cell_len(text.plain))
            drawn.append(text.append_text(picture))
    for text in drawn:
        text.rstrip()
        text.truncate(width, overflow="ellipsis" if blocks else "crop")
    return [text for text in drawn if text.plain]


def _columns(figures: Sequence[Text], notes: Sequence[str], width: int) -> tuple[int, int]:
    """Return where the pictures begin, and their columns between the figures and the notes."""
    indent = max((cell_len(text.plain) + 2 for text in figures), default=1)
    return indent, width - indent - 2 - max((cell_len(note) for note in notes), default=0)


def _head(title: str, view: View, times: tuple[float, float], width: int) -> list[Text]:
    """Return what runs, and for how long: the phase, or the speed of the steps; and the time since the start. A phase
    that is longer than the line goes on in further ones, of which the last is cut."""
    elapsed_s, phase_s = times
    hours, minutes = divmod(int(elapsed_s) // 60, 60)
    clock = f"{hours}:{minutes:02}:{int(elapsed_s) % 60:02}" if hours else f"{minutes}:{int(elapsed_s) % 60:02}"
    state, detail = _state(view, elapsed_s, phase_s)
    head, room = Text.assemble(" ", (title, "bold"), ": " if state else ""), width - cell_len(clock) - 2
    of_state = room - cell_len(head.plain)
    whole = ", ".join(filter(None, (state, detail)))
    if not view.phase and cell_len(whole) > of_state:
        whole = state  # the speed stands without its prediction
    first, *others = folded(whole, of_state, width - _INDENT) if whole else [""]
    if dropped := others[_MOST_LINES - 1 :]:
        # The time in a phase shows that it goes on.
        others = [*others[: _MOST_LINES - 2], _cut(" ".join((others[_MOST_LINES - 2], *dropped)), detail, width)]
    head.append(first)
    head.truncate(room, overflow="ellipsis", pad=True)
    return [head.append(f"  {clock}", "bold"), *(Text(" " * _INDENT + each) for each in others)]


def _cut(rest: str, detail: str, width: int) -> str:
    """Return the begin of the rest of a phase that is too long, and its time."""
    ending = f"…, {detail}" if detail else "…"
    text = Text(rest.removesuffix(detail))
    text.truncate(width - _INDENT - cell_len(ending))
    return text.plain.rstrip() + ending


def _state(view: View, elapsed_s: float, phase_s: float) -> tuple[str, str]:
    """Return the phase and its time, or the speed and the predicted one; with the step if it has no row."""
    step = f"step {view.steps}" if view.step and not view.total_steps else ""
    state = ", ".join(filter(None, (step, printable(view.phase) or view.speed)))
    if view.phase:
        is_long = phase_s >= _SHOWN_S and elapsed_s - phase_s >= 1
        return state, whole_seconds(phase_s) if is_long else ""
    predicted = view.predicted_tokens_per_s
    return state, f"predicted {rate(predicted)}" if predicted and view.tokens_per_s else ""


def _rows(view: View) -> list[_Row]:
    found = []
    bar: _Bar | _Sparks
    share = view.step / view.total_steps if view.total_steps else 1.0
    if view.total_steps:  # without their number, the step is in the first line
        found.append(
            _Row(
                "step",
                Text(view.steps.rjust(2 * len(f"{view.total_steps}") + 1), "bold"),
                _Bar(share, share, None, "cyan"),
                view.left,
            )
        )
    if view.loss is not None:
        style = "bold" if math.isfinite(view.loss) else "bold red"
        note = "" if view.first_loss is None else f"from {loss_figure(view.first_loss)}"
        found.append(_Row("loss", Text(loss_figure(view.loss), style), _Sparks(view.losses, share), note))
    for use in view.memory:
        if gib(use.peak_bytes) == gib(0):
            continue
        peak_bytes = use.peak_bytes
        if use.predicted_bytes is not None and gib(peak_bytes) == gib(use.predicted_bytes):
            peak_bytes = min(peak_bytes, use.predicted_bytes)  # the bar agrees with the printed figures
        now_bytes, end = min(use.now_bytes, peak_bytes), peak_bytes
        if use.predicted_bytes is not None:
            end = max(end, int(_ROOM * use.predicted_bytes))
        elif use.capacity_bytes is not None:
            end = use.capacity_bytes
        mark = None if use.predicted_bytes is None else use.predicted_bytes / end
        bar = _Bar(now_bytes / end, peak_bytes / end, mark, use.style) if use.notes[1] else _Sparks(())
        style = "bold" if use.style == "green" else f"bold {use.style}"
        detail, note = use.notes
        found.append(_Row(use.title, Text(f"{gib(use.now_bytes)} GiB", style), bar, note, detail))
    return found


class _Bar(NamedTuple):
    """A bar, filled to `now`, dashed to `peak`, with a mark at a prediction; all are shares of its length."""

    now: float
    peak: float
    mark: float | None
    style: str

    def draw(self, columns: int, *, blocks: bool) -> Text:
        full, dashed, rest, sign = "━╍─┃" if blocks else "#=-|"
        now, peak = (min(columns, round(share * columns)) for share in (self.now, self.peak))
        marked = None if self.mark is None else min(columns - 1, round(self.mark * columns))
        text = Text()
        for column in range(columns):
            inside = marked is None or column <= marked
            style = "green" if self.style == "yellow" and inside else self.style
            if column == marked:
                text.append(sign, "bold")
            elif column < peak:
                text.append(full if column < now else dashed, style)
            else:
                text.append(rest, "bright_black")
        return text


class _Sparks(NamedTuple):
    """A line of bars, each of which is the mean of the values in its column; infinite ones are left out."""

    values: Sequence[float]
    share: float = 1.0
    """Share of its length that the values take, as the bar of the steps above it."""

    def draw(self, columns: int, *, blocks: bool) -> Text:
        finite = [value for value in self.values if math.isfinite(value)]
        count = max(1, round(self.share * columns)) if finite else 0
        bounds = [index * len(finite) // count for index in range(count + 1)] if count else []
        means = [fmean(finite[a : max(b, a + 1)]) for a, b in pairwise(bounds)]
        sparks = SPARKS if blocks else PLAIN_SPARKS
        low, high = min(means, default=0.0), _high(means)
        span = max(high - low, _LEAST_SPAN * abs(high)) or 1.0
        levels = ((min(mean, high) - low) / span for mean in means)
        return Text("".join(sparks[round(level * (len(sparks) - 1))] for level in levels).ljust(columns), "cyan")


def _high(values: Sequence[float]) -> float:
    """Return the top of the scale: a tenth of the values may be above it, because the first losses of a training are so
    high that the others would look equal."""
    return sorted(values)[9 * (len(values) - 1) // 10] if values else 0.0
