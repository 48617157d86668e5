"""The machines of a hostfile: name resolution, ssh without a password, and rendezvous port.

Nothing is changed: no host key is accepted and no password is requested. The one command that runs on a node is `true`.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

from .findings import Findings, ok, problem, unknown
from .machine import ExaminedMachine

PARALLEL_NODES = 64
"""Maximum number of nodes examined at the same time."""

MAX_NODES = 1024

PortAnswer = Literal["free", "in use", "no answer"]

_LOOK_UP_S = 1.0
_CONNECT_S = 2
_SSH_S = 2.8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    name: str
    addresses: tuple[str, ...] = ()
    """The addresses of the name; if empty, `unresolved` has the reason."""
    unresolved: str = ""
    ssh_error: str = ""
    """Why a command cannot be run there without a password; "" if it can."""


def nodes(machine: ExaminedMachine) -> Findings:
    """Check the names of the nodes, ssh to them, and the rendezvous port of the first."""
    if not machine.hosts:
        return

    def read(name: str) -> _Node:
        looked_up = machine.run(["getent", "ahosts", name.rpartition("@")[2]], "", _LOOK_UP_S)
        addresses = tuple(dict.fromkeys(line.split()[0] for line in looked_up.out.splitlines() if line.strip()))
        if looked_up.code != 0 or not addresses:
            reason = "the name is not found" if looked_up.code else looked_up.err or "no address"
            return _Node(name=name, unresolved=reason)
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}"]
        ssh_run = machine.run(["ssh", *options, "--", name, "true"], "", _SSH_S)
        errors = [line.strip() for line in ssh_run.err.splitlines() if line.strip()]
        error = "" if ssh_run.code == 0 else errors[-1] if errors else "no answer"
        return _Node(name=name, addresses=addresses, ssh_error=error)

    with ThreadPoolExecutor(min(PARALLEL_NODES, len(machine.hosts))) as pool:
        found = list(pool.map(read, machine.hosts))
    for check, findings in (("names", _names(found)), ("ssh", _ssh(found)), ("rendezvous", _port(found[0], machine))):
        yield from (replace(finding, check=check) for finding in findings)


def rank_port(environment: Mapping[str, str]) -> int:
    """The rendezvous port of the ranks: MASTER_PORT, or DeepSpeed's default (constants.py, 0.19.8)."""
    named = environment.get("MASTER_PORT", "")
    return int(named) if named.isdigit() and int(named) < 2**16 else 29500


def port_state(address: str, port: int) -> PortAnswer:
    """The answer: "free" if the machine refuses the connection, "no answer" if the request is dropped."""
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except OSError as error:
        return "free" if error.errno == errno.ECONNREFUSED else "no answer"
    return "in use"


def _node_names(nodes: Sequence[_Node]) -> str:
    listed = ", ".join(node.name for node in nodes[:3])
    return f"{listed} and {len(nodes) - 3} more" if len(nodes) > 3 else listed


def _is_loopback(name: str) -> bool:
    """Whether a name or address means the machine itself on every machine."""
    return name.startswith(("127.", "::1", "localhost"))


def _names(nodes: Sequence[_Node]) -> Findings:
    """Check that the names resolve, and not to loopback addresses."""

    unresolved = [node for node in nodes if node.unresolved]
    looped = [node for node in nodes if len(nodes) > 1 and node.addresses and all(map(_is_loopback, node.addresses))]
    if unresolved:
        yield problem(
            f"{_node_names(unresolved)}: {unresolved[0].unresolved}",
            "the launcher cannot reach a node without an address",
            "add the name to /etc/hosts or DNS, or put its address into the hostfile",
        )
    loopback_names = [node for node in looped if _is_loopback(node.name.rpartition("@")[2])]
    waits = "the other nodes connect to themselves instead and wait forever"
    if loopback_names:
        yield problem(
            f"the hostfile has {_node_names(loopback_names)}, by which every node means itself",
            waits,
            "write this machine's network name or address into the hostfile",
        )
    if others := [node for node in looped if node not in loopback_names]:
        address = others[0].addresses[0]
        yield problem(
            f"{_node_names(others)} resolve{'s' * (len(others) == 1)} to this machine itself ({address})",
            waits,
            f"remove the {address} line from /etc/hosts, or pass --master_addr with the address on the network",
        )
    if not unresolved and not looped:
        yield ok(f"{len(nodes)} name{'s' * (len(nodes) > 1)} resolved")


def _ssh(nodes: Sequence[_Node]) -> Findings:
    """Check that ssh works without a password."""
    refused = [node for node in nodes if node.ssh_error]
    if refused:
        message = refused[0].ssh_error
        if "host key" in message.lower():
            fix = "ssh to it once by hand and accept its key"
        elif "denied" in message.lower():
            fix = "ssh-copy-id to it"
        else:
            fix = "start an ssh server there, or launch with --no_ssh on every node"
        yield problem(
            f"{_node_names(refused)}: {message[:100].rstrip('.')}",
            "DeepSpeed's launcher starts the ranks over ssh and cannot enter a password",
            fix,
        )
    elif any(not node.unresolved for node in nodes):
        yield ok("no password is needed")


def _port(first: _Node, machine: ExaminedMachine) -> Findings:
    """Check that the rendezvous port of the first node is reachable and free."""
    if first.unresolved:
        return
    port = rank_port(machine.environment)
    where = f"port {port} of {first.name}"
    answer = port_state(first.addresses[0], port)
    if answer == "free":
        yield ok(f"{where} is reachable and free")
    elif answer == "in use":
        yield problem(f"{where} is in use", "the ranks meet there", f"deepspeed --master_port {port + 1} ...")
    elif first.ssh_error:
        yield unknown(f"{where}: the machine does not answer")
    else:
        yield problem(
            f"{where}: no answer, though ssh works",
            "a firewall drops the messages of the ranks, and the job hangs at its start",
            "open the port, and those of NCCL, between the nodes",
        )
