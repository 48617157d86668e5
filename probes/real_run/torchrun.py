"""The launcher of a command that has none."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from ..command.words import interpreter_of, is_assignment, is_python, launcher_of, peel, program_of, shell_text


def with_launcher(words: Sequence[str], ranks: int, *, folder: Path, port: int) -> list[str]:
    """The words of a command that starts its ranks on one node: torchrun stands in front of a Python script or module.
    A command with a launcher, a shell, and a console script, which may start its ranks itself, stay as they are.

    folder: the working folder of the command. Errors: the command has no program, or a program that does not run.
    """
    before: list[str] = []
    rest = list(words)
    while (layer := peel(rest)) and rest[-len(layer.words) :] == layer.words:
        before += rest[: -len(layer.words)]
        rest = layer.words
    if before and is_assignment(before[0]):
        before.insert(0, "env")
    if shell_text(rest, folder) is not None:
        return [*before, *rest]
    program = program_of(rest)
    by_python = is_python(rest[0])
    if launcher_of(program) is not None or not (by_python or program.target.endswith(".py")):
        return [*before, *rest]
    python = rest[0] if by_python else str(interpreter_of(words, folder=folder) or sys.executable)
    options = [f"--nproc_per_node={ranks}", f"--master_port={port}", *(["--no-python"] if by_python else [])]
    return [*before, python, "-m", "torch.distributed.run", *options, *rest]


def free_port() -> int:
    """A free TCP port, so that two trainings on one machine do not collide. It lies below Linux's ephemeral ports
    (32768 to 60999), so that no connection takes it before rank 0 listens on it, seconds later."""
    with socket.socket() as server:
        while True:
            with contextlib.suppress(OSError):
                server.bind(("", random.randrange(10_000, 32_000)))
                return int(server.getsockname()[1])
