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
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

from .facts import HostfileNode
from .tools import Runner

AT_ONCE = 64
"""Nodes that are looked at together."""

MOST_NODES = 1024

PortAnswer = Literal["", "free", "in use", "no answer"]
"""What a node says of the port on which the ranks meet; "" where it was not asked."""

_LOOK_UP_S, _CONNECT_S, _LIMIT_S = 1.0, 2, 2.8
_LOOK = "date +%s.%N; nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null"


def read_nodes(
    slots: Mapping[str, int], port: int, run: Runner, *, knock: Callable[[str, int], PortAnswer] | None = None
) -> tuple[HostfileNode, ...]:
    """Look at the nodes (name -> slots), `AT_ONCE` at the same time; the port is tried on the first, where the ranks
    meet."""
    first = next(iter(slots))

    def look(name: str) -> HostfileNode:
        node = HostfileNode(name=name, slots=slots[name])
        looked_up = run(["getent", "ahosts", name.rpartition("@")[2]], "", _LOOK_UP_S)
        addresses = tuple(dict.fromkeys(line.split()[0] for line in looked_up.out.splitlines() if line.strip()))
        if looked_up.code != 0 or not addresses:
            reason = "its name is not found" if looked_up.code else looked_up.err or "no address"
            return replace(node, unresolved=reason)
        answer = (knock or port_of)(addresses[0], port) if name == first else ""
        return replace(node, addresses=addresses, port_answer=answer, **_by_ssh(name, run))

    with ThreadPoolExecutor(min(AT_ONCE, len(slots))) as pool:
        return tuple(pool.map(look, slots))


def _by_ssh(name: str, run: Runner) -> dict[str, Any]:
    """The fields of a node that a command on it tells."""
    begin = time.time()
    ran = run(["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "--", name, _LOOK], "", _LIMIT_S)
    end = time.time()
    lines = ran.out.splitlines()
    if ran.code is None or not lines or not re.fullmatch(r"\d+\.\d+", lines[0]):
        errors = [line.strip() for line in ran.err.splitlines() if line.strip()]
        return {"ssh_error": errors[-1] if errors else "no answer"}
    drivers = [line.strip() for line in lines[1:] if re.fullmatch(r"[\d.]+", line.strip())]
    return {
        "clock_ahead_s": float(lines[0]) - (begin + end) / 2,
        "clock_error_s": (end - begin) / 2,
        "gpus": len(drivers) or None,
        "driver": drivers[0] if drivers else "",
    }


def port_of(address: str, port: int) -> PortAnswer:
    """ "free" where the machine answers that nobody listens there, "no answer" where something drops the request."""
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except OSError as error:
        return "free" if error.errno == errno.ECONNREFUSED else "no answer"
    return "in use"
