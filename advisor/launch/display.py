"""The one line that tells how a training goes, and whatever else is said meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..units import gib, rate, seconds

_PLAIN_EVERY_S = 30.0
"""Between lines where there is no terminal to draw over; the first steps are told at once."""

_TOLD_AT_ONCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the line says; None where it is not known (yet).

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
    def line(self) -> str:
        parts = [f"step {self.step}" + (f"/{self.total_steps}" if self.total_steps else "")]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.tokens_per_s is not None:
            parts.append(f"{rate(self.tokens_per_s)} tokens/s")
        if self.device_bytes is not None and self.device_peak_bytes is not None:
            parts.append("GPU " + _memory(self.device_bytes, self.device_peak_bytes, self.device_predicted_bytes))
        parts.append("host " + _memory(self.host_bytes, self.host_peak_bytes, self.host_predicted_bytes))
        if self.total_steps and self.step_s is not None:
            parts.append(f"{seconds(max(0, self.total_steps - self.step) * self.step_s)} left")
        return "  ".join(parts)


def _memory(now: int, peak: int, predicted: int | None) -> str:
    text = f"{gib(now)} GiB, peak {gib(peak)}"
    return text if predicted is None else f"{text}, predicted {gib(predicted)}"


class Display:
    """Draws the line over itself on a terminal; elsewhere prints it now and then."""

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
            self._live.update(Text(status.line, overflow="ellipsis", no_wrap=True))
            return
        now = time.monotonic()
        new = status.step != self._printed_step
        if new and (status.step <= _TOLD_AT_ONCE or now - self._printed_at > _PLAIN_EVERY_S):
            self._printed_at, self._printed_step = now, status.step
            self.say(status.line)
