"""Plans that differ only in the micro batch: their prediction, and the search for the fastest that fits.

Memory and speed rise with the micro batch. The exception is a question with a global batch: a plan without
accumulation, which has the largest micro batch, keeps no gradients between micro batches and may need less memory than
smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

from ...estimators.estimate import Estimate, MemoryEstimate, TimeEstimate, total_bytes
from ...estimators.hardware import Cluster
from ...estimators.memory.plan_memory import estimate_memory, least_bytes, resident_terms
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...estimators.time.step_time import estimate_time
from ...estimators.unsupported import unsupported
from ...estimators.workload import Workload
from ..question.question import Question
from .candidate import LEAST, LIKELY, Candidate, Fit, judge_fit
from .choice import SAME_SPEED

RESOLVED = 0.01
"""Relative gain in speed below which the micro batch is not refined further."""


_memory = lru_cache(maxsize=1024)(estimate_memory)
_time = lru_cache(maxsize=1024)(estimate_time)
# Cached because the searches of one answer (with another loss, with other amounts of RAM) predict the same plans.


class BatchSweep:
    """The plans of one question that differ only in the batch shape (micro batch, accumulation steps)."""

    def __init__(self, question: Question, preset: Plan, fields: Mapping[str, Any]) -> None:
        """fields: fields of `Plan` that replace the preset's."""
        self.question = question
        ranks_per_sample = fields["sequence_parallel_size"] * fields["autotp_size"]
        self.shapes = question.batch_shapes(ranks_per_sample)
        micro, steps = self.shapes[0]
        self.smallest_plan = preset.replace_fields(
            **{"micro_batch_size": micro, "gradient_accumulation_steps": steps, **fields}
        )
        self.least = LEAST[question.risk]
        self.doubles = question.is_batch_free and len(self.shapes) > 1
        """Whether micro batches are doubled without accumulation, with optional refinement in between."""
        self._inputs = question.model, question.workload, question.cluster_without_storage
        self._plans = {self.shapes[0]: self.smallest_plan}
        self._candidates: dict[tuple[int, int], Candidate] = {}

    def plan(self, shape: tuple[int, int]) -> Plan:
        if shape not in self._plans:
            micro, steps = shape
            self._plans[shape] = self.smallest_plan.replace_fields(
                micro_batch_size=micro, gradient_accumulation_steps=steps
            )
        return self._plans[shape]

    def time(self, shape: tuple[int, int]) -> TimeEstimate:
        return _time(*self._inputs, self.plan(shape))

    def candidate(self, shape: tuple[int, int]) -> Candidate:
        """Return the candidate of a batch shape; its time is computed on demand."""
        if shape not in self._candidates:
            self._candidates[shape] = self._predict(self.plan(shape))
        return self._candidates[shape]

    def _predict(self, plan: Plan) -> Candidate:
        memory = _memory(*self._inputs, plan)
        # No reference to this object, which would be a reference cycle.
        later = partial(_complete_estimate, memory, *self._inputs, plan)
        fit = judge_fit(memory, self.question.cluster, plan)
        return Candidate(plan=plan, memory=memory, fit=fit, make_estimate=later)

    @property
    def obstacle(self) -> str | None:
        """Reason why none of the plans can run; None if they can."""
        question = self.question
        return unsupported(question.model, question.workload, self.smallest_plan, question.cluster)

    @property
    def can_run(self) -> bool:
        """Whether the plans can run without NVMe that the question does not name."""
        has_place = not self.smallest_plan.swaps or bool(self.question.cluster.nvme_bytes_per_node)
        return has_place and self.obstacle is None

    @cached_property
    def resident_bytes(self) -> int:
        """Bytes that stay on each GPU for any batch."""
        return total_bytes(resident_terms(*self._inputs, self.smallest_plan))

    @cached_property
    def is_hopeless(self) -> bool:
        """Whether lower bounds on memory already exceed the GPU's memory for every batch."""
        offer = self.question.cluster.gpu.memory_bytes
        if self.resident_bytes > offer:  # cheaper to compute
            return True
        # The last shape may have no accumulation, and then needs less than smaller ones.
        ends = dict.fromkeys((self.shapes[0], self.shapes[-1]))
        return all(least_bytes(*self._inputs, self.plan(shape)) > offer for shape in ends)

    def known_fits(self) -> Iterator[Fit]:
        """Return the verdicts on the candidates computed so far."""
        return (candidate.fit for candidate in self._candidates.values())

    def smallest_fits(self) -> Iterator[Fit]:
        """Yield the verdicts on the plans that may need least memory; none if the sweep is hopeless."""
        first, last = self.shapes[0], self.shapes[-1]
        if first not in self._candidates and self.is_hopeless:
            return
        yield self.candidate(first).fit
        if first[1] > last[1] == 1:
            yield self.candidate(last).fit

    def acceptable(self, fit: Fit) -> bool:
        """Whether a plan fits as surely as the question's risk requires, or would with host memory or NVMe that the
        smallest batch lacks too."""
        if fit.limit in ("host", "nvme") and fit.probability < self.least:
            smallest = self.candidate(self.shapes[0]).fit
            return fit.limit == smallest.limit and fit.gpu_probability >= min(self.least, smallest.gpu_probability)
        return fit.probability >= self.least

    def rising_candidates(self) -> list[Candidate]:
        """Return the candidates by rising micro batch, up to the first that likely does not fit, and the one without
        accumulation if it likely fits."""
        found: list[Candidate] = []
        for shape in self.shapes:
            found.append(self.candidate(shape))
            if not found[-1].fit.gpu_likely_suffices:
                break
        last = self.shapes[-1]
        if shape[1] > last[1] == 1 and self.candidate(last).fit.probability >= LIKELY:
            found.append(self.candidate(last))
        return found

    def largest(self, near: float) -> list[Candidate]:
        """Return the largest doubled micro batch that is acceptable, the smaller ones that are as fast, and the next
        larger one; empty if the smallest is not acceptable. near: the micro batch at which the search begins."""
        # `near` is an estimate: step down to the first acceptable shape, then up to the last one.
        index = max((index for index, (micro, _) in enumerate(self.shapes) if micro <= near), default=0)
        while index >= 0 and not self.acceptable(self.candidate(self.shapes[index]).fit):
            index -= 1
        if index < 0 or self.candidate(self.shapes[index]).fit.probability < self.least:
            return []
        end = index + 1
        while end < len(self.shapes) and self.acceptable(self.candidate(self.shapes[end]).fit):
            end += 1
        fastest = first = end - 1
        best = self.time(self.shapes[fastest]).tokens_per_s
        while first and self.time(self.shapes[first - 1]).tokens_per_s >= (1 - SAME_SPEED) * best:
            first -= 1
            best = max(best, self.time(self.shapes[first]).tokens_per_s)
        return [self.candidate(shape) for shape in self.shapes[first : end + 1]]

    def refine(self, found: Sequence[Candidate], least_speed: float) -> list[Candidate]:
        """Return candidates of doubled micro batches by rising size, and those between the last acceptable one and the
        next. least_speed: tokens per second below which micro batches in between are skipped."""
        candidates = list(found)
        acceptable = [each for each in found if self.acceptable(each.fit)]
        if self.question.is_batch_free and 0 < len(acceptable) < len(found):
            between = self._between(acceptable[-1], found[len(acceptable)], least_speed)
            candidates += (each for each in between if each.fit.gpu_likely_suffices)
            candidates.sort(key=lambda candidate: candidate.plan.micro_batch_size)
        return candidates

    def _between(self, fits: Candidate, fails: Candidate, least_speed: float) -> Iterator[Candidate]:
        """Yield candidates of micro batches between an acceptable and a larger, unacceptable one, by bisection.

        The bisection ends if the next acceptable one would be faster by less than `RESOLVED`, or slower than
        `least_speed`. Its speed is at most that of the batch that is too large, and rises at most in proportion to the
        batch.
        """
        speed, enough, too_many = fits.tokens_per_s, fits.plan.micro_batch_size, fails.plan.micro_batch_size
        speed_of_too_many = self.time((too_many, 1)).tokens_per_s
        while True:
            bound = min(speed_of_too_many, speed * (too_many - 1) / enough)
            if bound < max(least_speed, speed * (1 + RESOLVED)):
                return
            candidate = self.candidate(((enough + too_many) // 2, 1))
            yield candidate
            if self.acceptable(candidate.fit):
                speed, enough = candidate.tokens_per_s, candidate.plan.micro_batch_size
            else:
                too_many = candidate.plan.micro_batch_size


def _complete_estimate(
    memory: MemoryEstimate, model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan
) -> Estimate:
    return Estimate(plan=plan, memory=memory, time=_time(model, workload, cluster, plan))
