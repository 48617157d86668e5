"""Where a rank is that makes no progress: on a signal, its Python stack goes into its log, even from a call of C."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .ranks import Rank

_SIGNAL = getattr(signal, "SIGRTMAX", 0) - 5
"""A real-time signal, which neither torch, NCCL nor launchers use. macOS has none, and the number is refused there."""

_DUMP_S = 5.0
"""Longest time waited for the stacks; a suspended rank never writes its own."""

_PACKAGE = Path(__file__).parents[2]

_HEAD = "(most recent call first):\n"
_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')


def show_on_signal() -> bool:
    """Write the stack of this process's main thread to stderr at the signal. Returns whether that was possible."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        faulthandler.register(_SIGNAL, file=2, all_threads=False)
        return True
    return False


def positions(ranks: Sequence[Rank], folder: Path) -> tuple[str, ...]:
    """The innermost line of Python of each rank of this node, and of the user's code if that is another one."""
    asked = {}
    for rank in ranks:
        log = folder / f"rank{rank.number}.log"
        if rank.pid and rank.latest.get("stacks"):
            with contextlib.suppress(OSError):
                asked[rank.number, log] = log.stat().st_size
                os.kill(rank.pid, _SIGNAL)
    until = time.monotonic() + _DUMP_S
    dumps: dict[int, str] = {}
    while len(dumps) < len(asked) and time.monotonic() < until:
        time.sleep(0.1)
        dumps = {number: text for (number, log), size in asked.items() if (text := _dump(log, size))}
    return tuple(
        f"rank {number} is in {', called by '.join(found)}"
        for number, text in dumps.items()
        if (found := list(_position(text)))
    )


def _dump(log: Path, offset: int) -> str:
    """The stack written to `log` after `offset`; "" until it is whole."""
    with contextlib.suppress(OSError), log.open("rb") as stream:
        stream.seek(offset)
        text = stream.read().decode(errors="replace").partition(_HEAD)[2]
        return text if text.endswith("\n") else ""
    return ""


def _position(dump: str) -> Iterator[str]:
    frames = [frame for frame in _FRAME.findall(dump) if not Path(frame[0]).is_relative_to(_PACKAGE)]  # engine's calls
    own = next((frame for frame in frames if "/lib/python" not in frame[0]), None)
    for path, line, name in dict.fromkeys((*frames[:1], *([own] if own else []))):
        yield f"{name} ({path.rpartition('site-packages/')[2]}, line {line})"
