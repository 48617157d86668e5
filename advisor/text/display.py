"""A running task on a terminal, redrawn in place; elsewhere in lines, at the changes of its phase and at intervals.

The display must not disturb what it shows: an error of drawing (a terminal that is gone, a full disk behind a pipe) is
ignored, and nothing waits for the terminal except the thread that draws.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from .language import can_encode
from .lines import SPARKS, wrapped
from .units import printable
from .view import View, line, rows

_PER_S = 2.0
"""Redraws per second; one takes about half a millisecond."""

_NEWS_S, _SAME_S = 30.0, 60.0
"""Least intervals between two printed lines: for another phase or step, and for nothing new."""

_STEPS_AT_ONCE = 3
"""Number of first steps that are printed at once."""

_BLOCKS = f"{SPARKS}━╍─┃…"


class Display:
    """Display of one task, from entering to leaving its context."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._view = View(phase="start")
        self._began = self._phase_at = time.monotonic()
        self._printed_at = -math.inf
        self._printed = self._view
        self._has_blocks = can_encode(console, _BLOCKS)
        # FORCE_COLOR colours a pipe, but nothing can be redrawn there.
        self.redraws = console.is_interactive and console.file.isatty()
        self._live = _Redrawn(console, _Lines(self._drawn)) if self.redraws else None
        self._is_awaited = False  # whether the first view starts the lines: a task may end without one

    def __enter__(self) -> Display:
        self._began = self._phase_at = time.monotonic()
        self._is_awaited = self._live is not None
        return self

    def __exit__(self, *_: object) -> None:
        self._is_awaited = False
        if self._live is not None:
            with suppress(Exception):
                self._live.stop()

    def say(self, message: str) -> None:
        """Print a message that is not redrawn, as `Output.say` does."""
        text = f"ds-advise: {printable(message)}"
        self.echo(text if self._live is None else wrapped(text, self._console.width))

    def echo(self, text: str) -> None:
        """Print a line of the task's own output."""
        with suppress(Exception):
            self._console.print(Text(text), soft_wrap=True)

    def begin(self, title: str) -> None:
        """Name the next task, whose time starts now: in place of the one before on a terminal, else in a line of its
        own."""
        self._title = title
        self._began = self._phase_at = time.monotonic()
        if self._live is None:
            self._printed_at = self._began
            self.say(f"{title} ...")

    def show(self, view: View) -> None:
        """Show the task as it is now."""
        now = time.monotonic()
        if view.phase != self._view.phase:
            self._phase_at = now
        self._view = view
        if self._is_awaited and self._live is not None:
            self._is_awaited = False
            with suppress(Exception):
                self._live.start()
        is_empty = not (view.phase or view.step)
        if self._live is None and not is_empty and now - self._printed_at >= self._interval_s(view):
            self._printed_at, self._printed = now, view
            self.say(line(self._title, view, now - self._began))

    def _interval_s(self, view: View) -> float:
        if view.step != self._printed.step:
            return 0.0 if self._printed.step < _STEPS_AT_ONCE else _NEWS_S
        return _NEWS_S if view.phase != self._printed.phase and not view.step else _SAME_S

    def _drawn(self, columns: int) -> list[Text]:
        now = time.monotonic()
        times = now - self._began, now - self._phase_at
        return rows(self._title, self._view, times, columns, blocks=self._has_blocks)


class _Lines:
    """The lines of a task at the moment in which they are drawn."""

    def __init__(self, draw: Callable[[int], list[Text]]) -> None:
        self._draw = draw
        self._columns, self._drawn = 0, list[Text]()

    def __rich_console__(self, console: Console, _options: ConsoleOptions) -> RenderResult:
        self._columns = console.width
        self._drawn = self._draw(self._columns)
        yield Text("\n", no_wrap=True).join(self._drawn)

    def wrapped_by(self, columns: int) -> int:
        """Return the number of further rows that the lines on the terminal take since it has so many columns."""
        if columns >= self._columns:
            return 0
        return sum(max(0, cell_len(text.plain) - 1) // columns for text in self._drawn)


class _Redrawn(Live):
    """Lines that are redrawn in place, also after the terminal has become narrower."""

    def __init__(self, console: Console, lines: _Lines) -> None:
        # stdout is for the answer: only what is printed to stderr is placed above the lines.
        super().__init__(
            lines,
            console=console,
            refresh_per_second=_PER_S,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )
        self._lines_drawn = lines

    def refresh(self) -> None:
        with suppress(Exception):
            super().refresh()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Also erase the rows that wrapped lines take, before the cursor is moved up by the number of lines. The cursor
        is left at the first column: behind a full line, the `^C` of a terminal would take a further row."""
        wrapped_rows = self._lines_drawn.wrapped_by(self.console.width)
        erased = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * wrapped_rows
        drawn = super().process_renderables(renderables)
        return [*([Control(*erased)] if erased else []), *drawn, Control(ControlType.CARRIAGE_RETURN)]
