"""The machines of a hostfile, as DeepSpeed's launcher will meet them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .facts import HostfileNode, MachineFacts
from .findings import DoctorFinding, ok, problem, unknown, warning

_CLOCK_S = 1.0
"""A difference that mixes up logs and makes ninja take new files on a shared drive for old ones."""


def names(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """They resolve, and not to the machine itself alone."""
    lost = [node for node in facts.nodes if node.unresolved]
    if lost:
        yield problem(
            f"{_listed(lost)}: {lost[0].unresolved}",
            "the launcher cannot reach what it cannot find",
            "put the name into /etc/hosts or DNS, or its address into the hostfile",
        )
    looped = [
        node for node in facts.nodes if node.addresses and all(_is_loopback(address) for address in node.addresses)
    ]
    if len(facts.nodes) > 1 and looped:
        yield problem(
            f"{_listed(looped)} means this machine itself ({looped[0].addresses[0]})",
            "the other nodes would look for it on themselves and wait without end",
            "remove the 127.0.1.1 line from /etc/hosts, or pass --master_addr with the address on the network",
        )
    if facts.nodes and not lost and not (looped and len(facts.nodes) > 1):
        yield ok(f"{len(facts.nodes)} name{'s' * (len(facts.nodes) > 1)} resolved")


def ssh(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The launcher gets in without a password."""
    found = [node for node in facts.nodes if not node.unresolved]
    shut = [node for node in found if node.ssh_error]
    if shut:
        said = shut[0].ssh_error.lower()
        yield problem(
            f"{_listed(shut)}: {shut[0].ssh_error[:100].rstrip('.')}",
            "DeepSpeed's launcher starts the ranks over ssh and cannot type a password",
            "ssh to it once by hand and accept its key"
            if "host key" in said
            else "ssh-copy-id to it"
            if "denied" in said
            else "start an ssh server there, or launch with --no_ssh on every node",
        )
    elif found:
        yield ok("no password is asked for")


def pdsh(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The launcher's default way to the nodes is installed."""
    if len(facts.nodes) > 1 and not facts.pdsh:
        yield problem(
            "pdsh is not installed",
            "DeepSpeed's launcher starts several nodes with it unless told otherwise",
            "install the package pdsh, or pass --launcher openmpi, mpich or slurm",
        )


def clocks(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """They agree on the time."""
    known = [node for node in facts.nodes if node.clock_ahead_s is not None]
    off = [node for node in known if abs(node.clock_ahead_s or 0.0) - node.clock_error_s > _CLOCK_S]
    if off:
        most = max((node.clock_ahead_s or 0.0 for node in off), key=abs)
        yield warning(
            f"{_listed(off)}: {abs(most):,.1f} s {'ahead' if most > 0 else 'behind'}",
            "logs do not line up, and ninja compiles anew, or not at all, on a shared drive",
            "start chrony or systemd-timesyncd on it",
        )
    elif known:
        yield ok(f"within {_CLOCK_S:.0f} s")


def slots(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """They have as many GPUs as the hostfile gives them slots."""
    wrong = [node for node in facts.nodes if node.gpus is not None and node.gpus < node.slots]
    if wrong:
        yield problem(
            f"{wrong[0].name} has {wrong[0].gpus} GPU{'s' * (wrong[0].gpus != 1)} for {wrong[0].slots} slots",
            "a rank without a GPU stops, and the others wait for it",
            "correct slots= in the hostfile",
        )
    elif any(node.gpus is not None for node in facts.nodes) and len(_drivers(facts)) <= 1:
        yield ok("every node has the GPUs that the hostfile says")


def drivers(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """They have one driver."""
    versions = _drivers(facts)
    if len(versions) > 1:
        yield warning(
            f"the nodes have different drivers: {', '.join(versions)}",
            "what works on one may fail on another",
            "install the same driver on all",
        )


def _drivers(facts: MachineFacts) -> list[str]:
    return sorted({node.driver for node in facts.nodes if node.driver})


def meeting_point(facts: MachineFacts) -> Iterator[DoctorFinding]:
    """The port on the first node is reached from here, and free."""
    if not facts.nodes or facts.host is None or not facts.nodes[0].port_answer:
        return
    first, port = facts.nodes[0], facts.host.port
    if first.port_answer == "free":
        yield ok(f"port {port} of {first.name} is reached and free")
    elif first.port_answer == "in use":
        yield problem(
            f"port {port} of {first.name} is in use", "the ranks meet there", f"deepspeed --master_port {port + 1} ..."
        )
    elif first.ssh_error:
        yield unknown(f"port {port} of {first.name}: the machine does not answer")
    else:
        yield problem(
            f"port {port} of {first.name}: no answer, though ssh gets in",
            "a firewall drops what the ranks say to each other, and the job hangs at its start",
            "open the port, and those of NCCL, between the nodes",
        )


def _listed(nodes: Sequence[HostfileNode]) -> str:
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return ", ".join(node.name for node in nodes[:3]) + more


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


CHECKS = (names, ssh, pdsh, clocks, slots, drivers, meeting_point)
