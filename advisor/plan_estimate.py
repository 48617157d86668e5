"""What `estimate()` returns: one plan with the figures that people read, by the names of `--json`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..ds_configs.emit import ds_config
from ..estimators.estimate import Estimate
from ..estimators.json_form import to_json
from ..estimators.plan import PlainPyTorch, Strategy
from .question.python_words import python_words
from .question.question import Question
from .search.candidate import Candidate, Fit, plan_words
from .text.units import gib, rate


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PlanEstimate(Estimate):
    """The result of `estimate()`: memory and time of one plan, and whether it fits."""

    question: Question
    fit: Fit

    @classmethod
    def of(cls, candidate: Candidate, question: Question) -> PlanEstimate:
        return cls(**fields_of(candidate.estimate, Estimate), question=question, fit=candidate.fit)

    def __eq__(self, other: object) -> bool:
        """Compare the estimates: one of the advice is equal to that of `estimate()`."""
        return isinstance(other, Estimate) and fields_of(self, Estimate) == fields_of(other, Estimate)

    __hash__ = Estimate.__hash__

    def __repr__(self) -> str:
        speed = f"{rate(self.tokens_per_second)} {self.question.model.unit}/s"
        needs = f"{gib(self.device_bytes_per_gpu)} GiB per GPU, {self.fit.reason}"
        return f"<{self.question.model.name}, {plan_words(self.plan)}: {speed}, {needs}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan with its figures, by the names that `--json` has for a candidate."""
        from .answer.advice import candidate_figures

        found: dict[str, Any] = to_json(candidate_figures(self.question, Candidate.from_estimate(self, self.fit)))
        return found

    @property
    def fits(self) -> bool:
        """Whether the plan fits with a probability of at least 97.5 %."""
        return self.fit.fits

    @property
    def strategy(self) -> Strategy | PlainPyTorch:
        """Name of the strategy, such as "zero2-offload"."""
        return self.plan.strategy

    @property
    def micro_batch_size(self) -> int:
        """Samples per GPU and forward pass."""
        return self.plan.micro_batch_size

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro batches per optimizer step."""
        return self.plan.gradient_accumulation_steps

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether layers are recomputed in the backward pass."""
        return self.plan.gradient_checkpointing

    @property
    def device_bytes_per_gpu(self) -> int:
        """Bytes of GPU memory, with the CUDA context and NCCL."""
        return self.memory.device_bytes_per_gpu

    @property
    def host_bytes_per_node(self) -> int:
        """Bytes of host RAM."""
        return self.memory.host_bytes_per_node

    @property
    def assumed_host_bytes(self) -> int:
        """Bytes of host RAM per node that `fits` assumes, because the amount is unknown and the plan needs more than
        such a node usually has; 0 if nothing is assumed."""
        return self.fit.assumed_host_bytes

    @property
    def tokens_per_second(self) -> float:
        """Tokens (samples for a model without tokens) of all GPUs per second."""
        return self.time.tokens_per_s

    @property
    def tokens_per_second_low(self) -> float | None:
        """Lower end of the interval that contains four of five measured speeds; None if the error is unknown."""
        between = self.time.tokens_per_s_range
        return between and between[0]

    @property
    def tokens_per_second_high(self) -> float | None:
        """Upper end of the interval."""
        between = self.time.tokens_per_s_range
        return between and between[1]

    @property
    def ds_config(self) -> dict[str, Any] | None:
        """DeepSpeed's configuration of the plan; None for plain PyTorch, which has none. Raises ClusterError for a plan
        that swaps to NVMe without a folder."""
        question = self.question
        if self.plan.sharding != "zero":
            return None
        flavor = question.workload.framework
        with python_words():
            return ds_config(self.plan, question.model, question.workload, question.cluster, flavor=flavor)


def fields_of(value: Any, kind: type) -> dict[str, Any]:
    """Return the fields that an object has of a dataclass."""
    return {field.name: getattr(value, field.name) for field in fields(kind)}
