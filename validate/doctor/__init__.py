"""The doctor: examines a machine for causes of failing or slow DeepSpeed trainings.

Each check reads what it needs (files under /proc and /sys, NVML, package metadata, three-line programs for the
compilers, ssh) and yields findings. Neither torch nor DeepSpeed is imported, and nothing is changed on the machine.
"""

from .examine import Checkup, examine
from .findings import STATUSES, DoctorFinding, FindingStatus

__all__ = ["STATUSES", "Checkup", "DoctorFinding", "FindingStatus", "examine"]
