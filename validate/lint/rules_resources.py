"""The model on these GPUs: memory and avoidable slowness (DS9xx). Predictions, not measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...ds_configs.read import unmodeled_features
from ...estimators.estimate import MemoryEstimate
from ...estimators.hardware import Cluster
from ...estimators.memory.fit_probability import SURE, fit_probability
from ...estimators.memory.plan_memory import estimate_memory
from ...estimators.models.model_shape import ModelShape
from ...estimators.phrase import named, phrase
from ...estimators.plan import Plan
from ...estimators.time.step_time import estimate_time
from ...estimators.unsupported import unsupported
from ...estimators.workload import Workload
from .linted_config import LintedConfig
from .rule import Rules, Violation, violation

RESOURCE_RULES = Rules("Model and GPUs")

GAIN = 1.10
"""Minimum predicted speedup; less is within the error of the time model."""

_SOURCE = "estimators/memory/plan_memory.py, estimators/time/step_time.py"


@RESOURCE_RULES.warning(
    "DS901 a training that does not fit the GPUs",
    why="the predicted need, within its error, may be more than the GPU has",
    fix="`ds-advise MODEL --gpus SPEC` finds what fits",
    source=_SOURCE,
)
def too_large(config: LintedConfig) -> Iterator[Violation]:
    situation = Situation.of(config)
    if situation and not situation.fits():
        need, there = situation.memory().device_bytes_per_gpu, situation.cluster.gpu.memory_bytes
        probability = situation.fit_probability()
        sizes = {"need": _gb(need), "memory": _gb(there)}
        what = phrase("it needs about {need} per GPU, which has {memory}", **sizes)
        if situation.memory().peak.name == "evaluation":
            what = phrase("it needs about {need} per GPU at the first evaluation, which has {memory}", **sizes)
        if probability >= 1 - SURE:
            what = phrase("{what}: it fits with a probability of {chance}", what=what, chance=f"{probability:.0%}")
        yield violation("zero_optimization", what)


@RESOURCE_RULES.warning(
    "DS902 a training that does not fit the RAM",
    why="a process that the system kills because RAM runs out leaves no message",
    fix="offload less, or use a machine with more RAM",
    source=_SOURCE,
)
def too_much_ram(config: LintedConfig) -> Iterator[Violation]:
    situation = Situation.of(config)
    ram = situation.cluster.host_memory_bytes_per_node if situation else None
    if situation and ram and (need := situation.memory().host_bytes_per_node) > ram:
        yield violation(
            "zero_optimization", "it needs about {need} of RAM per node, which has {ram}", need=_gb(need), ram=_gb(ram)
        )


@RESOURCE_RULES.advice(
    "DS903 an offload that is not needed",
    why="what fits the GPUs runs faster there, because nothing waits for the CPU's optimizer or for copies over PCIe",
    fix="remove it",
    source=_SOURCE,
)
def unneeded_offload(config: LintedConfig) -> Iterator[Violation]:
    situation = Situation.of(config)
    if situation is None:
        return
    plan = situation.plan
    for name, other in (
        ("offload_optimizer", plan.with_fields(offload_optimizer="none", offload_param="none")),
        ("offload_param", plan.with_fields(offload_param="none")),
    ):
        if getattr(plan, name) != "none" and (gain := situation.gain(other)):
            yield violation(
                f"zero_optimization.{name}",
                "without it the model fits, and is predicted {gain} x as fast",
                gain=f"{gain:.1f}",
            )
            return


@RESOURCE_RULES.advice(
    "DS904 a higher stage than needed",
    why="stage 3 gathers the weights for every forward and backward pass; a lower stage that fits communicates less",
    source=_SOURCE,
)
def lower_stage(config: LintedConfig) -> Iterator[Violation]:
    situation = Situation.of(config)
    plan = situation.plan if situation else None
    if not situation or not plan or plan.zero_stage != 3 or plan.offload_param != "none":
        return
    if plan.offload_optimizer != "nvme" and (gain := situation.gain(plan.with_fields(zero_stage=2))):
        yield violation(
            "zero_optimization.stage",
            "stage 2 fits, and is predicted {gain} x as fast",
            gain=f"{gain:.1f}",
            fix="use stage 2",
        )


@RESOURCE_RULES.advice(
    "DS906 a feature that the predictions leave out",
    why="the predicted memory and time are those of the same configuration without it",
    source="ds_configs/read.py",
    fix="measure it: `ds-advise probe`",
)
def left_out(config: LintedConfig) -> Iterator[Violation]:
    if Situation.of(config):
        for feature in unmodeled_features(config.values):
            yield violation(feature.key, "{name}: {predicted}", name=feature.name, predicted=named(feature.predicted))


@RESOURCE_RULES.advice(
    "DS907 an Adam of the training script with temporaries",
    why="without an optimizer block the script makes torch's AdamW, whose foreach step (the Trainer's default before "
    "transformers 4.54, and torch's own) takes the root of all second moments of a sub-group or a partition at once",
    fix='pass optim="adamw_torch_fused" to the Trainer or fused=True to torch\'s class, or write an optimizer block',
    source="torch optim/adam.py _multi_tensor_adam",
)
def with_temporaries(config: LintedConfig) -> Iterator[Violation]:
    situation = Situation.of(config)
    if not situation or situation.workload.software.optimizer_step == "auto":  # DeepSpeed's own optimizer
        return
    fused = replace(situation.workload.software, optimizer_step="fused")
    without = replace(situation, workload=replace(situation.workload, software=fused))
    more = situation.memory().allocated_bytes_per_gpu - without.memory().allocated_bytes_per_gpu
    if more > 0.01 * situation.cluster.gpu.memory_bytes:
        what = phrase(
            "the {kind} step needs {more} more than a fused one",
            kind=situation.workload.software.optimizer_step,
            more=_gb(more),
        )
        if situation.plan.zero_stage == 3:
            what = phrase("{what}; at stage 3 a smaller sub_group_size helps, too", what=what)
        yield violation("zero_optimization", what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A model on GPUs with a plan that the closed forms can predict."""

    model: ModelShape
    workload: Workload
    cluster: Cluster
    plan: Plan

    @classmethod
    def of(cls, config: LintedConfig) -> Situation | None:
        model, workload, cluster, plan = config.model, config.workload, config.cluster, config.plan
        if model is None or workload is None or cluster is None or plan is None:
            return None
        if unsupported(model, workload, plan, cluster):
            return None
        return cls(model=model, workload=workload, cluster=cluster, plan=plan)

    def memory(self) -> MemoryEstimate:
        return estimate_memory(self.model, self.workload, self.cluster, self.plan)

    def fits(self) -> bool:
        return self.fit_probability() >= SURE

    def fit_probability(self) -> float:
        return fit_probability(self.memory(), self.cluster)

    def gain(self, other_plan: Plan) -> float:
        """The speedup of another plan in tokens per second; 0 if it does not fit or gains nothing."""
        if unsupported(self.model, self.workload, other_plan, self.cluster):
            return 0.0
        other = replace(self, plan=other_plan)
        gain = other._rate() / self._rate() if other.fits() else 0.0
        return gain if gain >= GAIN else 0.0

    def _rate(self) -> float:
        """The speed of a plan in micro batches per second."""
        step_s = estimate_time(self.model, self.workload, self.cluster, self.plan).step_s
        return self.plan.gradient_accumulation_steps / step_s


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
