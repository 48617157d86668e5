"""A few real steps of a plan on this machine: memory, time and failure as they happen."""

from ..rank_processes.failure import RankFailure
from .result import ProbeResult, RankReport
from .run import probe

__all__ = ["ProbeResult", "RankFailure", "RankReport", "probe"]
