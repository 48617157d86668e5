"""The answer: every rung's best plan, the fastest that fits, and its evidence: dry runs and probes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..question.question import Question
from ..search.candidate import Candidate, LadderStep

if TYPE_CHECKING:
    from ...ds_configs.job_files import JobFile
    from ...probes.real_run.result import ProbeResult
    from ...validate.deepspeed_estimate import DeepSpeedEstimate
    from ..search.rollouts import RolloutOutcome
    from .dry_run_answer import DryRunAnswer


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A candidate and the dry run of its configuration."""

    candidate: Candidate
    dry_run: DryRunAnswer


@dataclass(frozen=True, kw_only=True)
class ProbedPlan:
    """A candidate that was probed on this machine: why it was chosen, and what happened."""

    candidate: Candidate
    reason: str
    result: ProbeResult
    age_s: float | None = None
    """How long ago it ran; None where it ran for this answer."""


SeriesEnd = Literal["settled", "budget", "interrupted"]
"""Why a series of probes ended: nothing that is left could be faster by more than the search resolves; the time was
over; Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class ProbeSeries:
    """All probes of one answer in their order; those of earlier times come first."""

    probes: tuple[ProbedPlan, ...]
    ended: SeriesEnd
    bound: int
    """No series over these candidates takes more probes of its own."""
    candidates: int

    @property
    def runs(self) -> int:
        """How many were run for this answer."""
        return sum(probe.age_s is None for probe in self.probes)

    @property
    def best(self) -> ProbedPlan | None:
        """The fastest that ran."""
        ran = [probe for probe in self.probes if probe.result.failure is None]
        return max(ran, key=lambda probe: probe.result.tokens_per_s, default=None)


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something that would change the answer."""

    flags: str
    """The arguments to add or replace (`--method lora`)."""
    outcome: str
    """What the answer would then be."""


class Changes:
    """Changes, each searched for when it is first asked for: all take longer than the answer without them."""

    def __init__(self, tried: Iterable[Change | None] = ()) -> None:
        """tried: None for something that would change nothing."""
        self._tried = iter(tried)
        self._found: list[Change] = []
        self.are_all_tried = False

    def try_next(self) -> bool:
        """Try one more. Returns False where none is left."""
        for tried in self._tried:
            if tried is not None:
                self._found.append(tried)
            return True
        self.are_all_tried = True
        return False

    def __iter__(self) -> Iterator[Change]:
        index = 0
        while index < len(self._found) or self.try_next():
            if index < len(self._found):
                yield self._found[index]
                index += 1

    def __bool__(self) -> bool:
        return any(True for _ in self)


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
    """Assumptions of the figures, a phrase each."""
    without_loss: Candidate | None = None
    """The best plan, or the closest, with the training backend's own loss, where the search turned another on."""
    other_rollouts: tuple[RolloutOutcome, ...] = ()
    """What else could generate the completions, where the search chose."""
    changes: Changes = field(default_factory=Changes)
    """What would change the answer."""
    pytorch_baseline: Candidate | None = None
    """Plain PyTorch's best plan, for comparison; it is not a DeepSpeed configuration, and never the recommended one."""
    try_first: Candidate | None = None
    """A plan that is only likely to fit, and much faster; None where there is none."""
    deepspeed_estimate: DeepSpeedEstimate | None = None
    """DeepSpeed's own estimate for the same plan; None where it was not asked for."""
    verifications: tuple[Verification, ...] = ()
    """The dry runs; the last one decided."""
    past_probes: tuple[ProbedPlan, ...] = ()
    """Probes of some candidates that were made before on this machine; the candidates are corrected by them."""
    probe_series: ProbeSeries | None = None
    """The probes that settled the recommendation; None where none were asked for."""
    files: tuple[str, ...] = ()
    """The files that were written for it."""
    job_files: tuple[JobFile, ...] = ()
    """Those among them that start it."""

    @property
    def shown(self) -> Candidate | None:
        """The plan that tables and pictures mark: the recommended one, or the closest where nothing fits."""
        return self.recommended or closest(self.ladder)


def try_first_path(destination: Path) -> Path:
    """The file for the configuration of the plan to try first, next to the other one."""
    return destination.with_stem(f"{destination.stem}_try_first")


def closest(ladder: Sequence[LadderStep]) -> Candidate | None:
    """The candidate that misses by least, None where no rung has any."""
    return min(
        (step.candidate for step in ladder if step.candidate is not None),
        key=lambda candidate: candidate.fit.utilization,
        default=None,
    )
