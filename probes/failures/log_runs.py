"""The lines with which a launcher starts: a log to which several trainings were appended has several."""

from __future__ import annotations

import re

START_WORDS = (b"[runner.py:", b"torch/distributed/run.py:", b"torch.distributed.run:")
"""Every line of a start has one of them."""

_RUNNER = re.compile(r"\[runner\.py:\d+:(?:main|fetch_hostfile)\]")
"""DeepSpeed's launcher (0.19.8 launcher/runner.py), which runs on one node and starts the others."""

_TORCHRUN = re.compile(
    r"^(?:[A-Z](\d{4} \d\d:\d\d:[\d.]+) +\d+ torch/distributed/(\w+)|"
    r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:[\d,]+)\] torch\.distributed\.(\w+))"
)
"""Time and module of a line of torchrun (torch 2.13 distributed/run.py and elastic), and as torch 2.3 and older write
it."""


class RunStarts:
    """Tells the lines with which a training starts from those of its further nodes."""

    def __init__(self) -> None:
        self._ended = ""
        """The time of the last line of an elastic agent."""

    def begins(self, text: str) -> bool:
        """Whether a launcher starts in a line. torchrun starts on every node: it is a new training only if it starts
        later than an agent of the one before reported something. The times of a year are compared as text."""
        if _RUNNER.search(text):
            return True
        found = _TORCHRUN.match(text)
        if found is None:
            return False
        time, module = found[1] or found[3], found[2] or found[4]
        if module == "elastic":
            self._ended = max(self._ended, time)
        return module == "run" and "" < self._ended < time
