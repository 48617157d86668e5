"""A few real steps of a plan on this machine: memory, time and failure as they happen."""

from .result import Failure, ProbeResult, RankReport
from .run import probe

__all__ = ["Failure", "ProbeResult", "RankReport", "probe"]
