"""The lines that show how a training goes, and the messages in between."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..text.units import gib, rate, seconds

_PLAIN_EVERY_S = 30.0
"""Between lines where there is no terminal to draw over; the first steps are printed at once."""

_PRINTED_AT_ONCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the lines show; None for what is not known (yet)."""

    step: int
    total_steps: int | None
    loss: float | None
    tokens_per_s: float | None
    step_s: float | None
    device_bytes: int | None
    """The fullest GPU's."""
    device_peak_bytes: int | None
    device_predicted_bytes: int | None
    host_bytes: int
    """All of this node's processes'."""
    host_peak_bytes: int
    host_predicted_bytes: int | None

    @property
    def steps(self) -> str:
        parts = [f"step {self.step}" + (f"/{self.total_steps}" if self.total_steps else "")]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.tokens_per_s is not None:
            parts.append(f"{rate(self.tokens_per_s)} tokens/s")
        if self.total_steps and self.step < self.total_steps and self.step_s is not None:
            parts.append(f"{seconds((self.total_steps - self.step) * self.step_s)} left")
        return "  ".join(parts)

    @property
    def memory(self) -> str:
        host = (self.host_bytes, self.host_peak_bytes, self.host_predicted_bytes)
        if self.device_bytes is None:
            return f"host GiB: {_sizes(host)}"
        gpu = (self.device_bytes, self.device_peak_bytes, self.device_predicted_bytes)
        return f"GPU GiB: {_sizes(gpu)}; host: {_sizes(host, labelled=False)}"


def _sizes(sizes: tuple[int | None, ...], *, labelled: bool = True) -> str:
    """Memory now, at its peak and as predicted, as far as it is known."""
    labels = (" now", " peak", " predicted") if labelled else ("", "", "")
    known = ((size, label) for size, label in zip(sizes, labels, strict=True) if size is not None)
    return ", ".join(f"{gib(size)}{label}" for size, label in known)


class Display:
    """Draws the progress over itself on a terminal; elsewhere prints it as one line now and then."""

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
        """Print a line that stays."""
        self._console.print(Text(text), soft_wrap=True)

    def show(self, progress: Progress) -> None:
        if self._live is not None:
            # Two lines, which 80 columns hold.
            self._live.update(Text(f"{progress.steps}\n{progress.memory}", overflow="ellipsis", no_wrap=True))
            return
        step, now = progress.step, time.monotonic()
        if step != self._printed_step and (step <= _PRINTED_AT_ONCE or now - self._printed_at > _PLAIN_EVERY_S):
            self._printed_at, self._printed_step = now, step
            self.say(f"{progress.steps}  {progress.memory}")
