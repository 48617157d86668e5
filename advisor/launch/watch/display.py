"""The lines that tell how a training goes, and whatever else is said meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ...terminal.units import gib, rate, seconds

_PLAIN_EVERY_S = 30.0
"""Between lines where there is no terminal to draw over; the first steps are told at once."""

_TOLD_AT_ONCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the lines say; None where it is not known (yet).

    device_bytes: of the fullest GPU, host_bytes: of this node's processes; with their peaks and what was predicted.
    """

    step: int
    total_steps: int | None
    loss: float | None
    tokens_per_s: float | None
    step_s: float | None
    device_bytes: int | None
    device_peak_bytes: int | None
    device_predicted_bytes: int | None
    host_bytes: int
    host_peak_bytes: int
    host_predicted_bytes: int | None

    @property
    def progress(self) -> str:
        parts = [f"step {self.step}" + (f"/{self.total_steps}" if self.total_steps else "")]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.tokens_per_s is not None:
            parts.append(f"{rate(self.tokens_per_s)} tokens/s")
        if self.total_steps and self.step_s is not None:
            parts.append(f"{seconds(max(0, self.total_steps - self.step) * self.step_s)} left")
        return "  ".join(parts)

    @property
    def memory(self) -> str:
        if self.device_bytes is None or self.device_peak_bytes is None:
            return f"host GiB: {_memory(self.host_bytes, self.host_peak_bytes, self.host_predicted_bytes)}"
        return (
            f"GPU GiB: {_memory(self.device_bytes, self.device_peak_bytes, self.device_predicted_bytes)}; "
            f"host: {_memory(self.host_bytes, self.host_peak_bytes, self.host_predicted_bytes, words=('', '', ''))}"
        )


def _memory(
    now: int, peak: int, predicted: int | None, words: tuple[str, str, str] = (" now", " peak", " predicted")
) -> str:
    figures = [(now, words[0]), (peak, words[1])] + ([] if predicted is None else [(predicted, words[2])])
    return ", ".join(f"{gib(size)}{word}" for size, word in figures)


class Display:
    """Draws them over themselves on a terminal; elsewhere prints them as one line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._printed_at, self._printed_step = 0.0, 0

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live = Live(Text("starting ..."), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(text), soft_wrap=True)

    def show(self, status: Status) -> None:
        if self._live is not None:
            # Two lines, which 80 columns hold.
            self._live.update(Text(f"{status.progress}\n{status.memory}", overflow="ellipsis", no_wrap=True))
            return
        now = time.monotonic()
        new = status.step != self._printed_step
        if new and (status.step <= _TOLD_AT_ONCE or now - self._printed_at > _PLAIN_EVERY_S):
            self._printed_at, self._printed_step = now, status.step
            self.say(f"{status.progress}  {status.memory}")
