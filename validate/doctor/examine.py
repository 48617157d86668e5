"""All checks, run in parallel, and their findings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...ds_configs.launch_commands import read_hostfile
from ...estimators.errors import ConfigFileError
from ...estimators.json_form import SCHEMA_VERSION
from . import building, host, nodes, software, variables
from .findings import STATUSES, DoctorFinding, Findings, FindingStatus
from .machine import ExaminedMachine, run_in_thread
from .nodes import MAX_NODES, PARALLEL_NODES

_LIMIT_S = 16.0
"""Time limit of all checks; the programs that they run have shorter limits."""

DoctorCheck = Callable[[ExaminedMachine], Findings]

AREAS: Mapping[str, tuple[DoctorCheck, ...]] = {
    "versions": (
        software.driver,
        software.torch,
        software.torch_import,
        software.torch_and_driver,
        software.deepspeed,
        software.shadowed_packages,
    ),
    "building ops": (
        building.compiler,
        building.c_compiler,
        building.python_headers,
        building.ninja,
        building.cuda_toolkit,
        building.nvcc_and_compiler,
        building.async_io,
        building.ops_folder,
    ),
    "gpus": (software.gpus, software.gpu_memory),
    "memory": (host.ram, host.memory_limit, host.locked_memory, host.shared_memory),
    "processor": (host.cores,),
    "swap folder": (host.swap_folder,),
    "environment": (variables.environment,),
    "nodes": (nodes.nodes,),
}
"""Every check, by area, in the order of the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """The result of all checks; its fields are those of the JSON output."""

    schema_version: int = SCHEMA_VERSION
    worst: FindingStatus
    """The most serious status."""
    counts: dict[str, int]
    """Number of findings by status."""
    findings: tuple[DoctorFinding, ...]


def examine(*, nvme: str | None = None, hostfile: Path | None = None, **machine: Any) -> Checkup:
    """The findings of all checks. Raises ConfigFileError for an unreadable hostfile.

    nvme: folder for swapping. hostfile: the deepspeed launcher's hostfile; its machines are examined over ssh. machine:
    further fields of `ExaminedMachine`.
    """
    hosts = read_hostfile(hostfile) if hostfile is not None else {}
    if len(hosts) > MAX_NODES:
        raise ConfigFileError(f"{hostfile}: {len(hosts)} nodes", fix=f"name at most {MAX_NODES} of them")
    examined = ExaminedMachine(nvme=nvme, hosts=tuple(hosts), **{"environment": os.environ, **machine})
    end = time.monotonic() + _LIMIT_S * (1 + len(hosts) // PARALLEL_NODES)

    def run(check: DoctorCheck) -> tuple[DoctorFinding, ...]:
        return tuple(check(examined))

    running = [
        (area, check.__name__.replace("_", "-"), run_in_thread(lambda check=check: run(check)))  # type: ignore[misc]
        for area, checks in AREAS.items()
        for check in checks
    ]
    running.append(("gpus", "graphics", run_in_thread(lambda: (examined.graphics_read.result(), ())[1])))
    findings: list[DoctorFinding] = []
    for area, name, future in running:
        try:
            found = future.result(max(0.0, end - time.monotonic()))
        except Exception as error:  # an unusual machine must not prevent the findings of the other checks
            late = isinstance(error, TimeoutError) and not future.done()
            reason = "no answer within the time" if late else f"{type(error).__name__}: {error}"
            found = (
                DoctorFinding(
                    "unknown",
                    f"could not be read: {reason}",
                    "this check is missing",
                    "report it with the output of ds-advise doctor --json",
                ),
            )
        # A check is named after its function (`cuda_toolkit`: cuda-toolkit), or names its parts itself.
        findings += [replace(finding, area=area, check=finding.check or name) for finding in found]
    counts: dict[str, int] = {status: sum(finding.status == status for finding in findings) for status in STATUSES}
    worst: FindingStatus = next((status for status in STATUSES if counts[status]), "ok")
    return Checkup(worst=worst, counts=counts, findings=tuple(findings))
