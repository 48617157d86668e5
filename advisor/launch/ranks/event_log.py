"""What a rank tells the process that watches it: one JSON object a line, appended to the rank's own file.

Keys, each in the lines that have something to say of it:

time          seconds since the epoch, in every line.
rank, pid, host, limits   the first line: who writes; limits: the finite resource limits by name.
step          optimizer step that was completed; with it tokens (of this rank, in that step) and forward_s.
step, loss    the loss of that step, which a GPU tells later than the step.
allocated_bytes, allocated_peak_bytes, reserved_bytes, reserved_peak_bytes   of torch's allocator, at times.
trainer       {total_steps, output_dir}: the Hugging Face Trainer begins.
checkpoint    the folder of a checkpoint that the Trainer has saved.
stop_at       the step after which the Trainer will save and stop.
error         {type, message, errno, details}: the exception that ended the script.
end           the script's exit code, where it ended by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Notes:
    """One rank's file. A line that cannot be written (a full disk) is lost: the training goes on."""

    def __init__(self, path: Path) -> None:
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, values: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError, TypeError, ValueError):
            os.write(self._file, (json.dumps({"time": time.time(), **values}) + "\n").encode())
