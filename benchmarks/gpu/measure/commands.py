"""Commands of the manual, run as a user runs them, one after the other in one folder; what they print is kept.

`{nvme}` in a command stands for a folder on the drive, `train.py` is trainer_script.py, `ds-advise` this checkout's. A
command that ends with an exit code that is not expected makes the measurement a failure, after the rest ran.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ..machine.place import Place
from ..outcome import Outcome
from . import small_model

_KEPT = 100_000
"""Characters of a command's output that are kept: its end, where the answer or the error stands."""

_ENDING_S = 3.0
"""For ending orderly, once a command is asked to."""


def measure(arguments: dict[str, Any], place: Place) -> Outcome:
    """arguments: `commands`, each one line; `model`, fields of a small model that is made first, or nothing;
    `expected`, exit codes, by default 0 alone."""
    deadline = time.monotonic() + place.limit_s - 5
    folder = Path("commands")
    folder.mkdir()
    if arguments.get("model"):
        small_model.make(folder / "model", folder / "chats.jsonl", arguments["model"])
    # Into a folder of its own: a script finds its neighbours before installed packages.
    shutil.copyfile(Path(__file__).with_name("trainer_script.py"), folder / "train.py")
    done = [_run(line.format(nvme=place.nvme_folder), folder, deadline) for line in arguments["commands"]]
    late = [result["command"] for result in done if not result["in_time"]]
    wrong = [result["command"] for result in done if result["exit_code"] not in arguments.get("expected", [0])]
    if late:
        return {"outcome": "timed out", "value": {"commands": done}, "reason": f"not done in time: {late[0]}"}
    if wrong:
        return {"outcome": "failed", "value": {"commands": done}, "reason": f"unexpected end of: {'; '.join(wrong)}"}
    return {"value": {"commands": done}}


def _run(command: str, folder: Path, deadline: float) -> dict[str, Any]:
    started, printed = time.monotonic(), folder / "printed.txt"
    words = shlex.split(command)
    program = [sys.executable, "-m", "ds_advise"] if words[0] == "ds-advise" else words[:1]
    with printed.open("wb") as output:
        process = subprocess.Popen(
            [*program, *words[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        )
        in_time = _ended(process, max(1.0, deadline - started))
        if not in_time:
            process.terminate()  # a command that is asked to end ends its ranks
            if not _ended(process, _ENDING_S):
                process.kill()
                process.wait()
    return {
        "command": command,
        "exit_code": process.returncode,
        "in_time": in_time,
        "seconds": time.monotonic() - started,
        "output": printed.read_text(encoding="utf-8", errors="replace")[-_KEPT:],
    }


def _ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(within_s)
        return True
    except subprocess.TimeoutExpired:
        return False
