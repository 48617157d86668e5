"""The answer: every rung's best plan, the fastest that fits, why, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..question.question import Question
from ..search.candidate import Candidate, LadderStep

if TYPE_CHECKING:
    from ...validate.deepspeed_estimate import DeepSpeedEstimate
    from .evidence import ProbedPlan, ProbeSeries, Verification


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something that would change the answer."""

    flags: str
    """The arguments to add or replace (`--method lora`)."""
    outcome: str
    """What the answer would then be."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The answer to a question."""

    question: Question
    candidates: tuple[Candidate, ...]
    """All that were predicted; the ladder holds the best of each rung."""
    ladder: tuple[LadderStep, ...]
    recommended: Candidate | None
    """The fastest that fits as surely as the question's risk asks, or None."""
    reasons: tuple[str, ...]
    """Sentences that say why."""
    doubts: tuple[str, ...]
    """Sentences on what might make another plan the fastest."""
    assumptions: tuple[str, ...]
    """Facts that nobody stated and the figures rest on, a phrase each."""
    changes: tuple[Change, ...] = ()
    """What would change the answer."""
    pytorch_baseline: Candidate | None = None
    """Plain PyTorch's best plan, for comparison; it is no DeepSpeed configuration, and never the recommended one."""
    try_first: Candidate | None = None
    """A plan that is only likely to fit, and so much faster that it is worth the risk; None where there is none."""
    deepspeed_estimate: DeepSpeedEstimate | None = None
    """DeepSpeed's own estimate for the same plan; None where it was not asked for."""
    verifications: tuple[Verification, ...] = ()
    """The dry runs that were made, the last of which decided."""
    past_probes: tuple[ProbedPlan, ...] = ()
    """Probes of some candidates that were made before on this machine; the candidates are corrected by them."""
    probe_series: ProbeSeries | None = None
    """The probes that settled the recommendation; None where none were asked for."""
    files: tuple[str, ...] = ()
    """The files that were written for it."""


def try_first_path(destination: Path) -> Path:
    """Where the configuration of the plan to try first goes: beside the other one."""
    return destination.with_stem(f"{destination.stem}_try_first")


def closest(ladder: Sequence[LadderStep]) -> Candidate | None:
    """The candidate that misses by least, None where no rung has any."""
    return min(
        (step.candidate for step in ladder if step.candidate is not None),
        key=lambda candidate: candidate.fit.utilization,
        default=None,
    )
