"""A pseudo-terminal that is read while it is written to, and the screen that a user sees."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
import threading
import time
from collections.abc import Callable

LIMIT_S = 120


class Screen:
    """The rows of a terminal that wraps its rows anew when it gets narrower, as most do."""

    def __init__(self, columns: int) -> None:
        self.columns, self.rows, self.row, self.column = columns, [""], 0, 0

    def resize(self, columns: int) -> None:
        folded = [[row[at : at + columns] for at in range(0, max(1, len(row)), columns)] for row in self.rows]
        self.row = sum(map(len, folded[: self.row + 1])) - 1
        self.rows, self.columns = [part for row in folded for part in row], columns

    def write(self, text: str) -> None:
        for code, final, plain in re.findall(r"\x1b\[\??([\d;]*)([A-Za-z])|([^\x1b])", text):
            if final == "A":
                self.row = max(0, self.row - int(code or 1))
            elif final == "K":
                self.rows[self.row] = ""
            elif plain == "\r":
                self.column = 0
            elif plain == "\n":
                self._next()
            elif plain:
                if self.column == self.columns:
                    self._next()
                row = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = row[: self.column] + plain + row[self.column + 1 :]
                self.column += 1

    def _next(self) -> None:
        self.row, self.column = self.row + 1, 0
        self.rows += [""] * (self.row == len(self.rows))

    @property
    def text(self) -> str:
        return "\n".join(row.rstrip() for row in self.rows)


class Terminal:
    """A pseudo-terminal with the screen of what is written to it."""

    def __init__(self, columns: int) -> None:
        self.master, self.slave = pty.openpty()
        self.screen, self.written = Screen(columns), ""
        self._lock = threading.Lock()
        self.resize(columns)
        threading.Thread(target=self._read, daemon=True).start()

    def resize(self, columns: int) -> None:
        with self._lock:
            self.screen.resize(columns)
            fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 1 << 16):
                with self._lock:
                    self.written += data.decode()
                    self.screen.write(data.decode())

    def wait(self, holds: Callable[[str], object]) -> str:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            with self._lock:
                text = self.screen.text
            if holds(text):
                return text
            time.sleep(0.05)
        raise AssertionError(text)
