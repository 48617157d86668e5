"""All checks over all facts, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from ...estimators.json_form import SCHEMA_VERSION
from . import building, environment, gpus, versions
from . import check_folder as folder
from . import check_host as host
from . import check_nodes as nodes
from .facts import MachineFacts
from .findings import STATUSES, DoctorFinding, FindingStatus
from .gather import gather

DoctorCheck = Callable[[MachineFacts], Iterator[DoctorFinding]]

AREAS: Mapping[str, tuple[DoctorCheck, ...]] = {
    "versions": versions.CHECKS,
    "building ops": building.CHECKS,
    "gpus": gpus.CHECKS,
    "links": gpus.LINKS,
    "memory": host.MEMORY,
    "processor": host.PROCESSOR,
    "swap folder": folder.CHECKS,
    "environment": environment.CHECKS,
    "network": host.LIMITS,
    "nodes": nodes.CHECKS,
}
"""Every check, by what it is about, in the order of the report."""


class DoctorFindingJson(TypedDict):
    """What a check says."""

    area: str
    check: str
    status: FindingStatus
    what: str
    """What was seen."""
    why: str
    """Why it matters."""
    fix: str


class CheckupJson(TypedDict):
    """A machine that was checked."""

    schema_version: int
    worst: FindingStatus
    """The gravest status."""
    counts: dict[str, int]
    """Findings by status."""
    findings: list[DoctorFindingJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Findings by area, areas without any left out, and the facts that they rest on."""

    facts: MachineFacts
    areas: Mapping[str, tuple[DoctorFinding, ...]]

    @property
    def findings(self) -> tuple[DoctorFinding, ...]:
        return tuple(finding for findings in self.areas.values() for finding in findings)

    @property
    def worst(self) -> FindingStatus:
        return next((status for status in STATUSES if self.count(status)), "ok")

    def count(self, status: FindingStatus) -> int:
        return sum(finding.status == status for finding in self.findings)

    def to_json(self) -> CheckupJson:
        """JSON types; the facts are left out but for what a finding says of them."""
        return {
            "schema_version": SCHEMA_VERSION,
            "worst": self.worst,
            "counts": {status: self.count(status) for status in STATUSES},
            "findings": [
                {
                    "area": area,
                    "check": finding.check,
                    "status": finding.status,
                    "what": finding.what,
                    "why": finding.why,
                    "fix": finding.fix,
                }
                for area, findings in self.areas.items()
                for finding in findings
            ],
        }


def examine(*, nvme: str | None = None, hostfile: Path | None = None) -> Checkup:
    """Look at this machine and say what will go wrong with DeepSpeed on it. Raises ConfigFileError for a hostfile that
    cannot be read."""
    return judge(gather(nvme=nvme, hostfile=hostfile))


def judge(facts: MachineFacts) -> Checkup:
    """The findings of facts. A check's function has the check's name (`cuda_toolkit`: cuda-toolkit)."""
    areas = {
        area: tuple(
            replace(finding, check=check.__name__.replace("_", "-")) for check in checks for finding in check(facts)
        )
        for area, checks in AREAS.items()
    }
    areas["unread"] = tuple(
        DoctorFinding(
            check=part,
            status="unknown",
            what=f"could not be read: {reason}",
            why="its checks are missing above",
            fix="report it with what ds-advise doctor --report prints",
        )
        for part, reason in facts.unread
    )
    return Checkup(facts=facts, areas={area: findings for area, findings in areas.items() if findings})
