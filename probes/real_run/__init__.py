"""A few real steps of a plan on this machine: memory, time and failure as they happen."""

from .result import ProbeResult, RankFailure, RankReport
from .run import probe

__all__ = ["ProbeResult", "RankFailure", "RankReport", "probe"]
