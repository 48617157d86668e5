"""A log as a stream of UTF-8: compressed, as Windows writes it, of a notebook, from a pipe that is interrupted."""

from __future__ import annotations

import codecs
import gzip
import io
import re
from typing import BinaryIO, cast

from .notebook import may_be_notebook, outputs

_LOOK = 4_096
"""Bytes that tell what the log is."""

_NO_TEXT = bytes((*range(8), *range(14, 27), *range(28, 32)))
"""Control characters that no text has; escape codes and progress bars have the others."""

_HOLE = re.compile(rb"\0{16,}")
"""Zeros of a file that was open when its node died, or that was emptied while a process wrote; others are no text."""

_MOST = 0.05
"""Largest share of them in a text."""


def read_log(stream: BinaryIO) -> BinaryIO:
    """The text of a log, as a stream of UTF-8, without reading it; of a notebook, which is read, the outputs. Raises
    ValueError if it is not text, OSError and EOFError if it cannot be decompressed."""
    buffered = _buffered(stream)
    if _head(buffered)[:2] == b"\x1f\x8b":
        buffered = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=buffered)))
    head = _head(buffered)
    if encoding := _utf_16(head):
        return cast("BinaryIO", codecs.EncodedFile(buffered, "utf-8", encoding, "replace"))
    while head and not head.strip(b"\0"):
        buffered.read(len(head))
        head = _head(buffered)
        if not head:
            raise ValueError("it is not text")
    if may_be_notebook(head):
        whole = buffered.read()
        printed = outputs(whole)
        return io.BytesIO(whole if printed is None else printed)
    head = _HOLE.sub(b"", head)
    if len(head) - len(head.translate(None, _NO_TEXT)) > _MOST * len(head):
        raise ValueError("it is not text")
    return cast("BinaryIO", buffered)


class _UntilInterrupted(io.RawIOBase):
    """A stream that Ctrl-C ends, as somebody ends `tail -f log | ds-advise why -`."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        read = getattr(self._stream, "read1", self._stream.read)
        try:
            part = read(len(buffer))
        except KeyboardInterrupt:
            return 0
        buffer[: len(part)] = part
        return len(part)


def _buffered(stream: BinaryIO) -> io.BufferedReader:
    return io.BufferedReader(_UntilInterrupted(stream))


def _head(stream: io.BufferedReader) -> bytes:
    return stream.peek(_LOOK)[:_LOOK]


def _utf_16(head: bytes) -> str:
    """The encoding of a text in UTF-16, by its mark or by its zeros; "" for another one."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    zeros = [head[place::2].count(0) for place in (0, 1)]
    most, least = max(zeros), min(zeros)
    return "" if most < len(head) / 4 or least > most / 10 else ("utf-16-be", "utf-16-le")[zeros.index(most)]
