"""Where a rank is that makes no progress: on a signal, its Python stack goes into its log, even from a call of C."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .ranks import Rank

_SIGNAL = getattr(signal, "SIGRTMAX", 0) - 5
"""A real-time signal, which neither torch, NCCL nor launchers use. macOS has none, and the number is refused there."""

_DUMP_S = 5.0
"""Longest time waited for the stacks; a suspended rank never writes its own."""

_PACKAGE = Path(__file__).parents[2]

_COLLECTIVES = re.compile(r"torch/distributed/distributed_c10d\.py|deepspeed/comm/")
"""Modules whose functions return when the other ranks have called them too."""

_PACKAGE_OF = re.compile(r"/lib/python[\d.]+/(?:(?:site|dist)-packages/)?")
"""What is in front of a library's package in the path of its file."""

_HEAD = "(most recent call first):\n"
_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')


def show_on_signal() -> bool:
    """Write the stack of this process's main thread to stderr at the signal. Returns whether that was possible."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        faulthandler.register(_SIGNAL, file=2, all_threads=False)
        return True
    return False


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is."""

    rank: int
    frames: tuple[tuple[str, str, str], ...]
    """(path, line, function) of its Python calls, the innermost first; without those of this package and of the
    interpreter."""

    @property
    def collective(self) -> str:
        """The collective operation in which it waits, such as `all_reduce`; "" for none."""
        path, _, name = self.frames[0]
        return name if _COLLECTIVES.search(path) else ""

    @property
    def user_frame(self) -> tuple[str, str, str] | None:
        """The innermost call of the user's code."""
        return next((frame for frame in self.frames if "/lib/python" not in frame[0]), None)

    @property
    def imports(self) -> str:
        """The package that the user's code imports, such as `deepspeed`; "" for none. A program that is run by its
        module's name is the outermost call, and is not imported."""
        own = self.frames.index(self.user_frame) if self.user_frame else len(self.frames) - 1
        loaded = [path for path, _, name in self.frames[:own] if name == "<module>"]
        return _PACKAGE_OF.split(loaded[-1])[-1].partition("/")[0].removesuffix(".py") if loaded else ""

    def __str__(self) -> str:
        """`rank 0 is in all_reduce (torch/.../distributed_c10d.py, line 90), called by main (train.py, line 21)`."""
        if self.imports:
            return f"rank {self.rank} is still importing {self.imports}"
        shown = dict.fromkeys((self.frames[0], self.user_frame or self.frames[0]))
        return f"rank {self.rank} is in {', called by '.join(map(_place, shown))}"


def _place(frame: tuple[str, str, str]) -> str:
    path, line, name = frame
    return f"{name} ({path.rpartition('site-packages/')[2]}, line {line})"


def positions(ranks: Sequence[Rank], folder: Path) -> tuple[Position, ...]:
    """Return where each rank of this node is, as far as its process can show it."""
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
    found = (Position(number, _frames(text)) for number, text in dumps.items())
    return tuple(each for each in found if each.frames)


def stall_fix(found: Sequence[Position]) -> str:
    """What helps if all ranks that show where they are still import a library; "" if they do not."""
    return "pass a longer --stall: it is no hang" if found and all(each.imports for each in found) else ""


def missing_in_collective(found: Sequence[Position]) -> str:
    """Return which ranks wait in a collective operation and for whom, `rank 0 waits in all_reduce for rank 1, which is
    in main (train.py, line 21)`; "" if all wait, or none."""
    waiting = [each for each in found if each.collective]
    missing = [each for each in found if not each.collective]
    if not waiting or not missing:
        return ""
    names = " and ".join(dict.fromkeys(each.collective for each in waiting))
    late = [f"rank {each.rank}, which is in {_place(each.user_frame or each.frames[0])}" for each in missing]
    ranks, one = ", ".join(str(each.rank) for each in waiting), len(waiting) == 1
    return f"rank{'' if one else 's'} {ranks} wait{'s' if one else ''} in {names} for {', and for '.join(late)}"


def _dump(log: Path, offset: int) -> str:
    """The stack written to `log` after `offset`; "" until it is whole."""
    with contextlib.suppress(OSError), log.open("rb") as stream:
        stream.seek(offset)
        text = stream.read().decode(errors="replace").partition(_HEAD)[2]
        return text if text.endswith("\n") else ""
    return ""


def _frames(dump: str) -> tuple[tuple[str, str, str], ...]:
    every = _FRAME.findall(dump)
    return tuple(
        (path, line, name)
        for path, line, name in every
        if not path.startswith("<frozen") and not Path(path).is_relative_to(_PACKAGE)  # engine's calls
    )
