"""The dry run: the installed DeepSpeed's real engine and real model code, as one rank of N, on a simulated GPU.

`dry_run(run)` returns a `DryRunResult`: bytes on the GPU, on the host and on NVMe, by phase and category. torch and
DeepSpeed are imported only in its subprocess.
"""

from ..recording.result import DryRunResult, LiveTensor, Peak, PhaseMemory, TimelinePoint
from .run import DryRunError, NeedsValuesError, dry_run

__all__ = [
    "DryRunError",
    "DryRunResult",
    "LiveTensor",
    "NeedsValuesError",
    "Peak",
    "PhaseMemory",
    "TimelinePoint",
    "dry_run",
]
