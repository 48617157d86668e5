"""One rank: `python -m ...rank --folder FOLDER [--set NAME=VALUE]... [--is-module] TARGET ARGUMENTS`.

Runs the user's script as `__main__`, as the launcher would have run it: the same sys.argv, sys.path[0], working folder
and exit code. Added are: its output goes to `rank<R>.log` in FOLDER, and `observe` notes its steps in `rank<R>.jsonl`.
A failure of these must not make the script fail.
"""

from __future__ import annotations

import contextlib
import os
import resource
import runpy
import socket
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...probes.real_run.rank import EventLog

_LIMITS = ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_FSIZE")


@dataclass
class _Arguments:
    folder: Path
    target: str
    is_module: bool
    variables: dict[str, str]
    arguments: list[str]


def main() -> None:
    given = _parse(sys.argv[1:])
    os.environ.update(given.variables)
    number = os.environ.get("RANK", "0")
    with contextlib.suppress(OSError):
        given.folder.mkdir(parents=True, exist_ok=True)
        _redirect_output(given.folder / f"rank{number}.log")
    events = EventLog(given.folder / f"rank{number}.jsonl")
    events.note({"rank": int(number), "pid": os.getpid(), "host": socket.gethostname()})
    with contextlib.suppress(Exception):
        from .observe import install

        install(events, given.folder)
    try:
        _run(given)
    except SystemExit as error:
        events.note({"end": 0 if error.code is None else error.code if isinstance(error.code, int) else 1})
        raise
    except BaseException as error:
        events.note({"error": _description(error)})
        raise
    events.note({"end": 0})


def _parse(words: list[str]) -> _Arguments:
    """The deepspeed launcher puts the script's `--local_rank=N` before all else."""
    folder, is_module, variables, before = Path(), False, {}, []
    while words:
        word, *words = words
        if word.startswith("--local_rank="):
            before.append(word)
        elif word == "--folder":
            folder = Path(words.pop(0))
        elif word == "--set":
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        elif word == "--is-module":
            is_module = True
        else:
            return _Arguments(folder, word, is_module, variables, [*before, *words])
    raise SystemExit("no script")


def _run(given: _Arguments) -> None:
    sys.argv = [given.target, *given.arguments]
    if given.is_module:
        runpy.run_module(given.target, run_name="__main__", alter_sys=True)
    else:
        # `python script.py` imports from the script's folder; `python -m`, which started this, from the working folder.
        sys.path[0] = str(Path(given.target).resolve().parent)
        runpy.run_path(given.target, run_name="__main__")


def _redirect_output(path: Path) -> None:
    """Both streams by their descriptors, so that the output of libraries and children is included."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _description(error: BaseException) -> dict[str, Any]:
    limits = {name: resource.getrlimit(getattr(resource, name))[0] for name in _LIMITS}
    return {
        "type": type(error).__name__,
        "message": " ".join(str(error).split())[:2000],
        "errno": error.errno if isinstance(error, OSError) else None,
        "limits": {name: limit for name, limit in limits.items() if limit != resource.RLIM_INFINITY},
        "details": "".join(traceback.format_exception(error))[-8000:],
    }


if __name__ == "__main__":
    main()
