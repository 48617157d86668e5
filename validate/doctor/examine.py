"""The facts of this machine, read in parallel, and the findings of all checks.

A dead network drive or a hanging driver blocks a reader, and such a call cannot be interrupted. Each reader therefore
runs in a daemon thread, which does not keep the program alive.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from ...ds_configs.launch_commands import read_hostfile
from ...estimators.errors import ConfigFileError
from ...estimators.json_form import SCHEMA_VERSION
from ...estimators.phrase import phrase
from . import building, gpus, host, nodes, software
from .building import OpsFolder, Toolchain, read_ops_folder, read_toolchain
from .findings import STATUSES, DoctorFinding, Findings, FindingStatus, Runner, run_program
from .gpus import Graphics, read_graphics
from .host import Folder, Memory, Processor, read_folder, read_memory, read_processor
from .nodes import MAX_NODES, PARALLEL_NODES, HostfileNode, rank_port, read_nodes
from .software import InstalledSoftware, read_software

_Part = TypeVar("_Part")

_LIMIT_S = 4.0
"""Time limit of all readers; the programs that they run have shorter limits."""

DoctorCheck = Callable[..., Findings]
"""A check. Its parameters are names of fields of `MachineFacts`; those without a default are required."""

AREAS: Mapping[str, tuple[DoctorCheck, ...]] = {
    "versions": (
        software.driver,
        software.torch,
        software.torch_and_driver,
        software.deepspeed,
    ),
    "building ops": (
        building.compiler,
        building.python_headers,
        building.ninja,
        building.cuda_toolkit,
        building.nvcc_and_compiler,
        building.async_io,
        building.ops_folder,
    ),
    "gpus": (gpus.gpus, gpus.gpu_memory),
    "memory": (host.ram, host.memory_limit, host.locked_memory, host.shared_memory),
    "processor": (host.cores,),
    "swap folder": (host.swap_folder,),
    "environment": (software.environment,),
    "nodes": (nodes.names, nodes.ssh, nodes.rendezvous),
}
"""Every check, by area, in the order of the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The facts that the checks use. A part is None if it was not requested or could not be read."""

    software: InstalledSoftware | None = None
    toolchain: Toolchain | None = None
    ops_folder: OpsFolder | None = None
    graphics: Graphics | None = None
    memory: Memory | None = None
    processor: Processor | None = None
    folder: Folder | None = None
    nodes: tuple[HostfileNode, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[tuple[str, str], ...] = ()
    """(part, reason) of each part that could not be read."""


def gather(
    *,
    nvme: str | None = None,
    hostfile: Path | None = None,
    environment: Mapping[str, str] | None = None,
    run: Runner = run_program,
    root: Path = Path("/"),
) -> MachineFacts:
    """Read all facts; `unread` lists the parts that could not be read. Raises ConfigFileError for an unreadable
    hostfile.

    nvme: folder for swapping. hostfile: the deepspeed launcher's hostfile; its machines are examined over ssh.
    """
    variables = os.environ if environment is None else environment
    hosts = read_hostfile(hostfile) if hostfile is not None else {}
    if len(hosts) > MAX_NODES:
        raise ConfigFileError(
            phrase("{hostfile}: {hosts} nodes", hostfile=hostfile, hosts=len(hosts)),
            fix=phrase("name at most {max_nodes} of them", max_nodes=MAX_NODES),
        )
    end = time.monotonic() + _LIMIT_S * (1 + len(hosts) // PARALLEL_NODES)

    packages = _start(read_software)
    readers: dict[str, Future[Any]] = {
        "software": packages,
        "toolchain": _start(lambda: read_toolchain(run, variables, packages.result().packages.get("torch", ""))),
        "graphics": _start(lambda: read_graphics(root)),
        "memory": _start(lambda: read_memory(root)),
        "processor": _start(lambda: read_processor(root)),
        "ops_folder": _start(lambda: read_ops_folder(variables)),
    }
    if nvme is not None:
        readers["folder"] = _start(lambda: read_folder(nvme))
    if hosts:
        readers["nodes"] = _start(lambda: read_nodes(hosts, rank_port(variables), run))
    parts: dict[str, Any] = {}
    unread: list[tuple[str, str]] = []
    for name, reader in readers.items():
        try:
            parts[name] = reader.result(max(0.0, end - time.monotonic()))
        except Exception as error:  # an unusual machine must not prevent the findings of the other parts
            late = isinstance(error, TimeoutError) and not reader.done()
            reason = "no answer within the time" if late else f"{type(error).__name__}: {error}"
            unread.append((name.replace("_", " "), reason))
    return MachineFacts(environment=variables, unread=tuple(unread), **parts)


def _start(reader: Callable[[], _Part]) -> Future[_Part]:
    """Run a reader in a daemon thread."""
    future: Future[_Part] = Future()

    def read() -> None:
        try:
            future.set_result(reader())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    return future


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """The result of all checks; its fields are those of the JSON output."""

    schema_version: int = SCHEMA_VERSION
    worst: FindingStatus
    """The most serious status."""
    counts: dict[str, int]
    """Number of findings by status."""
    findings: tuple[DoctorFinding, ...]


def findings_of(check: DoctorCheck, facts: MachineFacts) -> tuple[DoctorFinding, ...]:
    """The findings of one check; empty if a required fact is unknown."""
    arguments = {name: getattr(facts, name) for name in signature(check).parameters}
    for name, parameter in signature(check).parameters.items():
        if arguments[name] is None and parameter.default is parameter.empty:
            return ()
    return tuple(check(**arguments))


def judge(facts: MachineFacts) -> Checkup:
    """The findings of all checks. A check is named after its function (`cuda_toolkit`: cuda-toolkit)."""
    findings = [
        replace(finding, area=area, check=check.__name__.replace("_", "-"))
        for area, checks in AREAS.items()
        for check in checks
        for finding in findings_of(check, facts)
    ]
    findings += [
        DoctorFinding(
            "unknown",
            phrase("could not be read: {reason}", reason=reason),
            "its checks are missing above",
            "report it with the output of ds-advise doctor --json",
            "unread",
            part,
        )
        for part, reason in facts.unread
    ]
    counts: dict[str, int] = {status: sum(finding.status == status for finding in findings) for status in STATUSES}
    worst: FindingStatus = next((status for status in STATUSES if counts[status]), "ok")
    return Checkup(worst=worst, counts=counts, findings=tuple(findings))
