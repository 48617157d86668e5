"""The launcher of a command that has none."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from ..command.training_command import read_command
from ..command.words import interpreter_of, is_python


def with_launcher(words: Sequence[str], ranks: int, *, folder: Path, port: int) -> list[str]:
    """The words of a command that starts its ranks on one node: torchrun stands in front of a Python script or module.
    A command with a launcher, a shell, and a console script, which may start its ranks itself, stay as they are.

    folder: the working folder of the command. Errors: the command has no program, or a program that does not run.
    """
    command = read_command(words)
    if command.program is None:
        return [*command.before, *command.words]
    by_python = is_python(command.words[0])
    python = command.words[0] if by_python else str(interpreter_of(words, folder=folder) or sys.executable)
    options = [f"--nproc_per_node={ranks}", f"--master_port={port}", *(["--no-python"] if by_python else [])]
    return [*command.before, python, "-m", "torch.distributed.run", *options, *command.words]


def free_port() -> int:
    """A free TCP port, so that two trainings on one machine do not collide. It lies below Linux's ephemeral ports
    (32768 to 60999), so that no connection takes it before rank 0 listens on it, seconds later."""
    with socket.socket() as server:
        while True:
            with contextlib.suppress(OSError):
                server.bind(("", random.randrange(10_000, 32_000)))
                return int(server.getsockname()[1])
