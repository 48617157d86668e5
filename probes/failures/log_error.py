"""An error of a log: its message, its traceback and the lines around it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import takewhile

from .logged_steps import step_number
from .traceback_frames import Frame, NumberedLine, frame_of

TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_ENDS = re.compile(
    r"^(?:\s*$|Traceback|During handling|The above exception|Exception ignored|\[\d{4}-|\[[EWIF]\d{3,4} |slurmstepd:|"
    r"\[?(?:INFO|WARNING|ERROR|rank)\b|Exception raised from|E\d{4} |W\d{4} |={8}|-{8}|wandb:|\s*\d+%\||[╭╰│])"
)
"""What a line after an error begins with if it no longer belongs to the message."""


@dataclass(slots=True, kw_only=True)
class LogError:
    """One error of a log."""

    log: str = ""
    """The name of its log, if there are several."""
    line: int
    """Number of its line in its log."""
    order: int
    """Number of its line in all logs, one behind the other."""
    process: str
    rank: int | None
    steps: int
    """Training steps that the log shows before it."""
    until: int = 0
    """Those up to the last of its repetitions: a loss that is not a number stays so."""
    trained: int = 0
    """Number of the line before it in which the Trainer reports that all steps are done; 0 without one."""
    head: str
    """The line of the message."""
    is_exception: bool = False
    frames: tuple[Frame, ...] = ()
    """Of its traceback, the outermost first."""
    before: tuple[str, ...] = ()
    after: list[NumberedLine] = field(default_factory=list)
    chain: int = 0
    """Number of its chain: exceptions raised while another one was handled."""
    ignored: bool = False
    """Whether Python ignored it (a destructor)."""

    @property
    def lines(self) -> list[NumberedLine]:
        """The lines of the message."""
        lines = [NumberedLine(self.line, self.head), *takewhile(lambda line: not _ENDS.match(line.text), self.after)]
        frame = next((at for at, line in enumerate(lines) if frame_of(line) is not None), 0)
        if not frame or any(TRACEBACK.search(line.text) for line in lines):
            return lines
        # A traceback of another rank goes on, whose lines are mixed with this one's.
        while frame > 1 and lines[frame - 1].text.startswith("    "):
            frame -= 1
        return lines[:frame]

    @property
    def has_place(self) -> bool:
        """Whether its traceback names a file."""
        return any(frame.file for frame in self.frames)

    @property
    def is_followed(self) -> bool:
        """Whether the message ends at the last line that was read."""
        return bool(self.after) and len(self.lines) == len(self.after)

    @property
    def step(self) -> int | None:
        """The number of the last training step before it; None if the log does not name it."""
        return step_number(self.before)

    @property
    def text(self) -> str:
        """The message in one line."""
        return " ".join([self.head, *(line.text.strip() for line in self.lines[1:])])

    @property
    def around(self) -> tuple[str, ...]:
        """The traceback and the lines before and after it."""
        return (*map(str, self.frames), *self.before, *(line.text for line in self.after))
