"""The machines of a hostfile: do their names resolve, does ssh let us in without a password, how far off is their
clock.

Nothing is written anywhere: no host key is accepted, no password is asked for, and the one command that runs on a node
reads its clock and its GPUs.
"""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from ....estimators.errors import ConfigFileError
from ..facts import Node
from .tools import Runner

_ENTRY = re.compile(r"^(\S+)\s+slots=(\d{1,4})(?:\s|$)")
"""As launcher/runner.py `_parse_hostfile` of DeepSpeed 0.19.8 reads a line."""

_NAME = re.compile(r"^(?:[\w.-]+@)?[A-Za-z0-9_][\w.:-]*$")
"""What may be handed to ssh: nothing that it could take for an option."""

_MOST_BYTES = 1_000_000
_MOST_NODES = 1024
AT_ONCE = 64
"""Nodes that are looked at together."""

_LOOK_UP_S, _CONNECT_S, _LIMIT_S = 1.0, 2, 2.8
_LOOK = "date +%s.%N; nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null"


def read_hostfile(file: Path) -> tuple[tuple[str, int], ...]:
    """(host, GPUs) of each line, as DeepSpeed's launcher reads them. Raises ConfigFileError for what it refuses too."""
    fix = "write a line such as `worker-0 slots=8` for each machine"
    if not file.is_file():  # a pipe would be waited for
        raise ConfigFileError(
            f"{file}: {'is no file' if file.exists() else 'no such file'}",
            fix="name the hostfile of the deepspeed launcher",
        )
    try:
        with file.open("rb") as stream:
            text = stream.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigFileError(
            f"{file}: cannot be read ({reason})", fix="name the hostfile of the deepspeed launcher"
        ) from None
    found: dict[str, int] = {}
    for number, line in enumerate(text.decode("utf-8", errors="replace").splitlines()[: 10 * _MOST_NODES], start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        match = _ENTRY.match(entry)
        if match is None or not _NAME.match(match[1]):
            raise ConfigFileError(
                f"{file}: line {number} is no host with its slots: {entry[:60]!r}",
                why="DeepSpeed's launcher refuses it",
                fix=fix,
            )
        if match[1] in found:
            raise ConfigFileError(
                f"{file}: {match[1]} stands there twice", why="DeepSpeed's launcher refuses it", fix=fix
            )
        found[match[1]] = int(match[2])
    if not found or len(found) > _MOST_NODES or len(text) > _MOST_BYTES:
        raise ConfigFileError(f"{file}: names {len(found)} hosts", why=f"from 1 to {_MOST_NODES} are accepted", fix=fix)
    return tuple(found.items())


def read_nodes(
    hosts: tuple[tuple[str, int], ...],
    port: int,
    run: Runner,
    *,
    knock: Callable[[str, int], Literal["free", "in use", "no answer"]] | None = None,
) -> tuple[Node, ...]:
    """Look at the machines, `AT_ONCE` at the same time; the port is tried on the first, where the ranks meet."""
    try_port = knock or port_of

    def look(entry: tuple[int, tuple[str, int]]) -> Node:
        position, (name, slots) = entry
        looked_up = run(["getent", "ahosts", name.rpartition("@")[2]], "", _LOOK_UP_S)
        found = tuple(dict.fromkeys(line.split()[0] for line in looked_up.out.splitlines() if line.strip()))
        if looked_up.code != 0 or not found:
            return Node(
                name=name,
                slots=slots,
                unresolved="its name is not found" if looked_up.code else looked_up.err or "no address",
            )
        node = _by_ssh(name, slots, found, run)
        if position:
            return node
        return Node(
            name=name,
            slots=slots,
            addresses=found,
            ssh_error=node.ssh_error,
            clock_ahead_s=node.clock_ahead_s,
            clock_error_s=node.clock_error_s,
            gpus=node.gpus,
            driver=node.driver,
            port_answer=try_port(found[0], port) if found else "",
        )

    with ThreadPoolExecutor(min(AT_ONCE, len(hosts))) as pool:
        return tuple(pool.map(look, enumerate(hosts)))


def _by_ssh(name: str, slots: int, found: tuple[str, ...], run: Runner) -> Node:
    begin = time.time()
    ran = run(["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "--", name, _LOOK], "", _LIMIT_S)
    end = time.time()
    lines = ran.out.splitlines()
    if ran.code is None or not lines or not re.fullmatch(r"\d+\.\d+", lines[0]):
        said = [line for line in ran.err.splitlines() if line.strip()]
        return Node(name=name, slots=slots, addresses=found, ssh_error=said[-1].strip() if said else "no answer")
    drivers = [line.strip() for line in lines[1:] if re.fullmatch(r"[\d.]+", line.strip())]
    return Node(
        name=name,
        slots=slots,
        addresses=found,
        clock_ahead_s=float(lines[0]) - (begin + end) / 2,
        clock_error_s=(end - begin) / 2,
        gpus=len(drivers) or None,
        driver=drivers[0] if drivers else "",
    )


def port_of(address: str, port: int) -> Literal["free", "in use", "no answer"]:
    """ "free": the machine answers that nobody listens there. "no answer": something on the way drops the request."""
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except OSError as error:
        return "free" if error.errno == errno.ECONNREFUSED else "no answer"
    return "in use"
