"""Output of every command: text for people, one JSON object for programs, or only the exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from ...estimators.errors import error_line
from ...estimators.json_form import to_json
from .units import printable

if TYPE_CHECKING:
    from rich.console import Console

    from .display import Display


OutputMode = Literal["human", "json", "quiet"]


class Progress:
    """The progress of a task: is called with its current phase."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def __call__(self, phase: str) -> None:
        from .view import View  # imported here: JSON needs no terminal library

        # A worker has no phase while it loads torch.
        self._display.show(View(phase="loading libraries" if phase == "start" else phase))

    def begin(self, title: str) -> None:
        """Name the next task, as `Display.begin` does."""
        self._display.begin(title)


class Output(NamedTuple):
    """Output of a command in one of the modes: the answer on stdout, progress on stderr line by line."""

    mode: OutputMode

    def say(self, text: str) -> None:
        """Print a line of progress or a warning to stderr, never to stdout."""
        if self.mode != "quiet":
            to_stderr(text)

    def warn(self, text: str) -> None:
        """Print a line like `say`, which stands out on a terminal."""
        if self.mode != "quiet":
            to_stderr(text, is_warning=True)

    @property
    def shares_screen(self) -> bool:
        """Whether the answer is text on the terminal that also shows what goes to stderr."""
        return self.mode == "human" and sys.stdout.isatty() and sys.stderr.isatty()

    def gap(self) -> None:
        """On a terminal, leave a line between the progress and the answer."""
        if self.shares_screen:
            with ignore_closed_pipe(sys.stderr, OSError):
                print(file=sys.stderr)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """Return what shows the current phase of a task, with the elapsed time, as `display` does."""
        with self.display(title) as display:
            yield Progress(display)

    def display(self, title: str) -> Display:
        """Return the display of a task on stderr: redrawn on a terminal, elsewhere in lines."""
        from .display import Display  # as above

        return Display(self.console(on_stderr=True), title)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show on a terminal that a task goes on, until it ends; elsewhere nothing."""
        if not sys.stderr.isatty():
            yield
            return
        from .view import View  # as above

        with self.display(what) as display:
            if display.redraws:
                display.show(View())
            yield

    def show(self, form: Callable[[], Any], render: Callable[[Console], object]) -> None:
        """Print the answer of one of the two functions: as JSON (dataclasses become objects), or as text."""
        if self.mode == "json":
            with ignore_closed_pipe(sys.stdout):
                print(json.dumps(to_json(form()), indent=1))
        elif self.mode == "human":
            render(self.console())

    def console(self, *, on_stderr: bool = False) -> Console:
        """Return a console for text."""
        from rich.console import Console  # imported here: JSON needs no terminal library

        file = sys.stderr if on_stderr else sys.stdout
        console = Console(file=file, highlight=False, quiet=self.mode == "quiet")
        console.on_broken_pipe = lambda: discard(file)  # type: ignore[method-assign]  # by default rich ends the process
        if not console.width:  # COLUMNS=0, for which rich prints nothing; elsewhere the width follows the terminal
            console.width = 80
        return console


@contextmanager
def ignore_closed_pipe(stream: TextIO, error: type[OSError] = BrokenPipeError) -> Iterator[None]:
    """Print to a stream, or discard it if its reader is gone."""
    try:
        yield
        stream.flush()
    except error:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Discard what is printed to a stream from now on, and its buffer, which Python would try to write again at exit.
    For a stream whose reader is gone (`| head`): the command goes on, and its exit code is that of its answer."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def to_stderr(text: str, *, is_warning: bool = False) -> None:
    """Print a line on stderr; on a terminal it is wrapped, and a warning is coloured."""
    line = f"ds-advise: {printable(text)}"
    if sys.stderr.isatty():
        with suppress(ImportError):  # an error may be that this library is missing
            # Imported here: pipes and files need no terminal library.
            from rich.console import Console
            from rich.text import Text

            from .lines import WARNING, wrapped

            console = Console(stderr=True, highlight=False)
            style = WARNING if is_warning else ""
            with ignore_closed_pipe(sys.stderr, OSError):
                console.print(Text(wrapped(line, console.width), style=style), soft_wrap=True)
            return
    with ignore_closed_pipe(sys.stderr, OSError):  # also a full disk or a terminal that is gone: no task ends for it
        print(line, file=sys.stderr)


def error_to_stderr(what: str, why: str = "", fix: str = "") -> None:
    """Print an error as one line on stderr; on a terminal the fix has a line of its own, whose commands are whole."""
    if sys.stderr.isatty():
        with suppress(ImportError):  # as above
            _styled_error(what, why, fix)
            return
    to_stderr(error_line(what, why, fix))


def _styled_error(what: str, why: str, fix: str) -> None:
    # Imported here: pipes and files need no terminal library.
    from rich.console import Console
    from rich.text import Text

    from .lines import COMMAND, wrapped

    console = Console(stderr=True, highlight=False)
    text = Text(wrapped(f"ds-advise: {printable(error_line(what, why))}", console.width), style="bold")
    text.stylize("red", 0, len("ds-advise:"))
    if fix:
        advice = Text(f"\n  {wrapped(printable(fix), console.width - 2)}", style="not bold")
        advice.highlight_regex(COMMAND, "cyan")
        text.append_text(advice)
    with ignore_closed_pipe(sys.stderr, OSError):
        console.print(text, soft_wrap=True)
