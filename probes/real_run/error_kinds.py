"""The error that ended a rank, by the table of known messages: its kind, and the phase in which memory ran out."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from ..failures.messages import ErrorKind, MemoryPhase, Message, find_message, memory_phase, under
from ..failures.signs import signs_of
from ..failures.traceback_frames import frames_of

_KINDS_BY_ERRNO: dict[int | None, ErrorKind] = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.ENOMEM: "host_out_of_memory",
}


def known_error(error: Mapping[str, Any]) -> Message | None:
    """The known message that an error in the event log is; None for an unknown one."""
    text = f"{error['type']}: {error['message']}"
    lines = error["details"].splitlines()
    found = find_message(text, lines)
    return found and under(found, signs_of((*lines, *frames_of(error["details"])))).about(text)


def kind_of_error(error: Mapping[str, Any]) -> ErrorKind:
    """The kind of an error in the event log."""
    if is_compilers(error):
        return "crash"
    message = known_error(error)
    return _KINDS_BY_ERRNO.get(error.get("errno"), "crash") if message is None else message.kind


def phase_of_error(error: Mapping[str, Any]) -> MemoryPhase | None:
    """What the rank was doing, by the traceback of an error in the event log; None if it does not show it."""
    frames = frames_of(error["details"])
    found = memory_phase(frames)
    return found and under(found, signs_of(frames))


def is_compilers(error: Mapping[str, Any]) -> bool:
    """Whether the build of an extension failed. Includes a compiler that a memory limit ended (torch 2.13
    `utils/cpp_extension.py`): all plans compile the same."""
    return "Error building extension" in error["message"]
