"""The answer: the best plan of each strategy, the fastest that fits, and the evidence from dry runs and probes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from ...estimators.plan import PlainPyTorch, Strategy
from ..question.question import Question
from ..search.candidate import Candidate, LadderStep
from ..search.choice import closest
from .reasons import close_plans, doubts, reasons

if TYPE_CHECKING:
    from ...ds_configs.job_files import JobFile
    from ...probes.real_run.result import ProbeResult
    from ...validate.deepspeed_estimate import DeepSpeedEstimate
    from ..search.rollouts import RolloutOutcome
    from .dry_run_answer import DryRunAnswer


@dataclass(frozen=True, kw_only=True)
class ProbedPlan:
    """A candidate that was probed on this machine, with the reason for the probe and its result."""

    candidate: Candidate
    reason: str
    result: ProbeResult
    age_s: float | None = None
    """Seconds since the probe; None if it ran for this answer."""


SeriesEnd = Literal["settled", "budget", "interrupted"]
"""Why a series of probes ended. settled: no remaining plan could be faster by more than the search resolves. budget:
the time ran out. interrupted: Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class ProbeSeries:
    """All probes of one answer in order; earlier probes come first."""

    probes: tuple[ProbedPlan, ...]
    ended: SeriesEnd
    bound: int
    """Largest number of new probes that a series over these candidates takes."""
    candidates: int

    @property
    def runs(self) -> int:
        """Number of probes that ran for this answer."""
        return sum(probe.age_s is None for probe in self.probes)

    @property
    def best(self) -> ProbedPlan | None:
        """The fastest plan that ran."""
        ran = [probe for probe in self.probes if probe.result.failure is None]
        return max(ran, key=lambda probe: probe.result.tokens_per_s, default=None)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of the question that would change the answer."""

    flags: str
    """Arguments to add or replace (`--method lora`)."""
    outcome: str
    """The answer after the change."""
    assumed: bool = False
    """Whether it changes a value that the answer assumes: the network between nodes, or the global batch."""
    strategy: Strategy | PlainPyTorch | None = None
    """Strategy of the plan after the change; None, as the following figures are, if nothing fits then."""
    tokens_per_second: float | None = None
    device_bytes_per_gpu: int | None = None
    host_bytes_per_node: int | None = None
    assumed_host_bytes: int | None = None
    """Host RAM per node that this plan needs where the amount is unknown; 0 if nothing is assumed."""


class OwnScript(NamedTuple):
    """A script that was written for an answer (`--script`)."""

    path: str
    arguments: tuple[str, ...]
    """Its arguments, without those that pass the configuration."""
    config_words: tuple[str, ...]
    start: str
    """The shell line that starts it, on every node."""
    reads_files: bool = False
    """Whether it has the option `--train_file`."""


class Changes:
    """Changes, searched for on demand because all of them together take longer than the answer itself."""

    def __init__(self, search: Callable[[], Iterable[Change | None]] = tuple) -> None:
        """search: returns the results of the search from its start; None for a change without effect."""
        self._search = search
        self._tried = iter(search())
        self._found: list[Change] = []
        self.are_all_tried = False

    def try_next(self) -> bool:
        """Try the next change. Return False if none is left."""
        for tried in self._tried:
            if tried is not None:
                self._found.append(tried)
            return True
        self.are_all_tried = True
        return False

    def after(self, first: Change) -> Changes:
        """Return these changes after another."""
        return Changes(partial(chain, [first], self))

    def __reduce__(self) -> tuple[type[Changes], tuple[Callable[[], Iterable[Change | None]]]]:
        """Return the parts of a copy, by `copy` and `pickle`. It has the changes of a complete search, and begins any
        other anew, because a generator cannot be copied."""
        return Changes, (partial(tuple, self._found) if self.are_all_tried else self._search,)

    def __iter__(self) -> Iterator[Change]:
        index = 0
        while index < len(self._found) or self.try_next():
            if index < len(self._found):
                yield self._found[index]
                index += 1

    def __repr__(self) -> str:
        """The changes that are tried so far: a representation must not search for seconds."""
        flags = ", ".join(change.flags for change in self._found)
        return f"<Changes: {flags or 'none tried yet'}{'' if self.are_all_tried else '; iterate for more'}>"


@dataclass(frozen=True, kw_only=True, repr=False)
class Recommendation:
    """The answer to a question."""

    question: Question
    candidates: tuple[Candidate, ...]
    """All predicted candidates; the ladder holds the best of each strategy."""
    ladder: tuple[LadderStep, ...]
    recommended: Candidate | None
    """The fastest plan that fits with the probability that the question's risk requires; None if there is none."""
    assumptions: tuple[str, ...]
    """Assumptions behind the figures, one phrase each."""
    without_loss: Candidate | None = None
    """The best or closest plan with the training backend's own loss, if the search chose another loss."""
    other_rollouts: tuple[RolloutOutcome, ...] = ()
    """Alternative generators of the completions, if the search chose the generator."""
    changes: Changes = field(default_factory=Changes)
    """Changes that would change the answer."""
    sharding: Literal["zero", "fsdp"] = "zero"
    """What the question is about: DeepSpeed alone, or also plain PyTorch."""
    pytorch_baseline: Candidate | None = None
    """Plain PyTorch's best plan, which has no DeepSpeed configuration and is never recommended: for comparison with
    `sharding="fsdp"`, otherwise only if it fits and no DeepSpeed plan does."""
    try_first: Candidate | None = None
    """A much faster plan that only likely fits; None if there is none."""
    shows_deepspeed_estimate: bool = False
    """Whether `--details` and `--json` have DeepSpeed's own estimate, which takes seconds."""
    verifications: tuple[DryRunAnswer, ...] = ()
    """Dry runs; the last one was decisive."""
    past_probes: tuple[ProbedPlan, ...] = ()
    """Earlier probes of some candidates on this machine; they correct the candidates' predictions."""
    probe_series: ProbeSeries | None = None
    """The probes that settled the recommendation; None if none were requested."""
    files: tuple[str, ...] = ()
    """Files that were written for the answer."""
    job_files: tuple[JobFile, ...] = ()
    """The job files among `files`."""
    script: OwnScript | None = None
    """The script that was written for the answer."""
    kept_config: str = ""
    """The file that was to be written, if it is another configuration and this answer's has a numbered name; ""
    otherwise."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {self.question.model.name}: {self.recommended or 'nothing fits'}>"

    @property
    def taken(self) -> Candidate | None:
        """The plan that the answer is about: the recommended one, or plain PyTorch's if `sharding` asks for it and it
        alone fits; None if nothing fits."""
        return self.recommended or (self.fitting_pytorch if self.sharding == "fsdp" else None)

    @property
    def shown(self) -> Candidate | None:
        """The plan that tables and charts mark: the one that is taken, or the closest if nothing fits."""
        return self.taken or self.closest

    @property
    def fitting_pytorch(self) -> Candidate | None:
        """Plain PyTorch's plan if it fits and no DeepSpeed plan does."""
        plain = self.pytorch_baseline
        return plain if self.recommended is None and plain is not None and plain.fit.fits else None

    @property
    def fits(self) -> bool:
        """Whether a plan of the asked sharding fits with the probability that the question's risk requires."""
        return self.taken is not None

    @property
    def closest(self) -> Candidate | None:
        return closest(self.ladder)

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Reasons for the recommendation, as sentences, most decisive first; without a fitting plan, the obstacles."""
        return reasons(self.question, self.ladder, self.recommended, self.candidates)

    @cached_property
    def deepspeed_estimate(self) -> DeepSpeedEstimate | None:
        """DeepSpeed's own estimate for the plan `shown`; None if there is no plan of DeepSpeed. The first access loads
        torch and deepspeed."""
        from ...validate.deepspeed_estimate import deepspeed_estimate  # imported here: it loads torch and deepspeed

        if self.shown is None or self.shown.plan.sharding != "zero":
            return None
        question = self.question
        return deepspeed_estimate(question.model, question.workload, question.cluster, self.shown.plan)

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """Sentences on what might make another plan the fastest (`doubts`)."""
        return doubts(self.question, self.ladder, self.recommended)

    @cached_property
    def close_plans(self) -> tuple[str, ...]:
        """Those of the doubts that are about plans close to the recommended one (`close_plans`)."""
        return close_plans(self.question, self.ladder, self.recommended)


def try_first_path(destination: Path) -> Path:
    """Return the path of the configuration for the plan to try first, next to the recommended configuration."""
    return destination.with_stem(f"{destination.stem}_try_first")
