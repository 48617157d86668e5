"""The doctor: looks at a machine and says what will go wrong with DeepSpeed there.

`gather` reads facts (files under /proc and /sys, NVML, packages' metadata, three-line programs for the compilers, ssh),
each check is a small function from these facts to findings, and `Hider` takes out what does not belong into a bug
report. Nothing of torch or DeepSpeed is imported, nothing is changed, and nothing is left behind.
"""

from .examine import AREAS, Checkup, examine, judge
from .facts import MachineFacts
from .findings import STATUSES, DoctorFinding, FindingStatus
from .gather import gather
from .redact import Hider

__all__ = [
    "AREAS",
    "STATUSES",
    "Checkup",
    "DoctorFinding",
    "FindingStatus",
    "Hider",
    "MachineFacts",
    "examine",
    "gather",
    "judge",
]
