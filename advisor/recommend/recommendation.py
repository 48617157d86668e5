"""The answer: every rung's best plan, the fastest that fits, why, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...estimators.estimate import Estimate
from ...estimators.plan import Rung
from ..question.question import Question
from .fit import Fit

if TYPE_CHECKING:
    from ..prove.probe_series import Climbed, Trial
    from ..prove.verify import Verification
    from .deepspeed_estimate import DeepSpeedEstimate


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One plan with its estimate and the verdict on it.

    measured_bytes: device memory that it needs by a probe's measurement; None where no probe measured it.
    """

    estimate: Estimate
    fit: Fit
    measured_bytes: int | None = None

    @property
    def rung(self) -> Rung:
        return self.estimate.plan.rung

    @property
    def tokens_per_s(self) -> float:
        return self.estimate.time.tokens_per_s

    @property
    def device_bytes(self) -> int:
        """Device memory that it needs, measured or else predicted."""
        return self.estimate.memory.device_bytes_per_gpu if self.measured_bytes is None else self.measured_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStep:
    """A rung's verdict: its best candidate, or why it cannot run at all (`candidate` is None then)."""

    rung: Rung
    candidate: Candidate | None
    fits: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that would change the answer.

    flags:   the arguments to add or replace (`--method lora`).
    outcome: what the answer would then be.
    """

    flags: str
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The answer to a question.

    candidates:  all that were predicted; the ladder holds the best of each rung.
    recommended: the fastest that fits, or None.
    reasons:     sentences that say why.
    assumptions: facts that nobody stated and the figures rest on, a phrase each.
    changes:     what would change the answer.
    verifications: the dry runs that were made, the last of which decided; empty when none was asked for.
    earlier: probes of some candidates that were made before on this machine; the candidates are corrected by them.
    climbed: the probes on this machine that settled the recommendation, None when none were asked for.
    deepspeed_estimate: DeepSpeed's own estimate for the same plan, None when it was not asked for.
    """

    question: Question
    candidates: tuple[Candidate, ...]
    ladder: tuple[LadderStep, ...]
    recommended: Candidate | None
    reasons: tuple[str, ...]
    assumptions: tuple[str, ...]
    changes: tuple[Change, ...]
    deepspeed_estimate: DeepSpeedEstimate | None = None
    verifications: tuple[Verification, ...] = ()
    earlier: tuple[Trial, ...] = ()
    climbed: Climbed | None = None
    files: tuple[str, ...] = field(default=())


def closest(ladder: Sequence[LadderStep]) -> Candidate | None:
    """The candidate that misses by least, None where no rung has any."""
    return min(
        (step.candidate for step in ladder if step.candidate is not None),
        key=lambda candidate: candidate.fit.shortfall,
        default=None,
    )
