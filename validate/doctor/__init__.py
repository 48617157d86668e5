"""The doctor: examines a machine for causes of failing or slow DeepSpeed trainings.

`gather` reads facts (files under /proc and /sys, NVML, package metadata, three-line programs for the compilers, ssh).
`judge` runs the checks on them. Each subject has one file with its facts, their reader and its checks. Neither torch
nor DeepSpeed is imported, and nothing is changed on the machine.
"""

from .examine import Checkup, MachineFacts, gather, judge
from .findings import STATUSES, DoctorFinding, FindingStatus

__all__ = ["STATUSES", "Checkup", "DoctorFinding", "FindingStatus", "MachineFacts", "gather", "judge"]
