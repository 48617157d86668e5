"""All checks over all facts, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checks import building as check_building
from .checks import environment as check_environment
from .checks import folder as check_folder
from .checks import gpus as check_gpus
from .checks import host as check_host
from .checks import nodes as check_nodes
from .checks import versions as check_versions
from .facts import MachineFacts
from .findings import STATUSES, DoctorFinding, FindingStatus, unknown
from .gather import gather

DoctorCheck = Callable[[MachineFacts], Iterator[DoctorFinding]]

AREAS: Mapping[str, tuple[DoctorCheck, ...]] = {
    "versions": check_versions.CHECKS,
    "building ops": check_building.CHECKS,
    "gpus": check_gpus.CHECKS,
    "links": check_gpus.LINKS,
    "memory": check_host.MEMORY,
    "processor": check_host.PROCESSOR,
    "swap folder": check_folder.CHECKS,
    "environment": check_environment.CHECKS,
    "network": check_host.LIMITS,
    "nodes": check_nodes.CHECKS,
}
"""Every check, by what it is about, in the order of the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Findings by area, areas without any left out, and the facts that they rest on."""

    facts: MachineFacts
    areas: Mapping[str, tuple[DoctorFinding, ...]]

    @property
    def findings(self) -> tuple[DoctorFinding, ...]:
        return tuple(finding for found in self.areas.values() for finding in found)

    @property
    def worst(self) -> FindingStatus:
        return next((status for status in STATUSES if self.count(status)), "ok")

    def count(self, status: FindingStatus) -> int:
        return sum(finding.status == status for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """JSON types; the facts are left out but for what a finding says of them."""
        return {
            "schema_version": 1,
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
                for area, found in self.areas.items()
                for finding in found
            ],
        }


def examine(*, nvme: str | None = None, hostfile: Path | None = None) -> Checkup:
    """Look at this machine and say what will go wrong with DeepSpeed on it. Raises ConfigFileError for a hostfile that
    cannot be read."""
    return judge(gather(nvme=nvme, hostfile=hostfile))


def judge(facts: MachineFacts) -> Checkup:
    """The findings of facts."""
    areas = {area: tuple(finding for check in checks for finding in check(facts)) for area, checks in AREAS.items()}
    areas["unread"] = tuple(
        unknown(
            part,
            f"could not be read: {reason}",
            "its checks are missing above",
            "report it with what ds-advise doctor --report prints",
        )
        for part, reason in facts.unread
    )
    return Checkup(facts=facts, areas={area: found for area, found in areas.items() if found})
