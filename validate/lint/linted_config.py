"""The configuration that rules check: as DeepSpeed receives it, with the known facts of the version, the model and the
GPUs.

The accessors of `LintedConfig` return the declared type whatever the file contains; DS020 reports values of a wrong
type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from ...ds_configs.conversions import TRUTHS, is_true
from ...ds_configs.read import plan_from_ds_config, zero_stage_in
from ...estimators.errors import ConfigFileError
from ...estimators.estimate import MemoryEstimate, TimeEstimate
from ...estimators.hardware import Cluster
from ...estimators.memory.fit_probability import FIT_THRESHOLD, fit_probability, host_fit_probability
from ...estimators.memory.plan_memory import estimate_memory
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OptimizerSpec, deepspeed_optimizer
from ...estimators.plan import Plan
from ...estimators.time.step_time import estimate_time
from ...estimators.unsupported import unsupported
from ...estimators.workload import DEFAULT, Framework, Software, Workload
from .. import parse_version
from .document import Document, KeyPath
from .facts import DeepSpeedFacts

GAIN = 1.10
"""Minimum predicted speedup; less is within the error of the time model."""

_MISSING = object()

ADVISE = "ds-advise MODEL --gpus SPEC"

OTHER_PLAN = f"find a plan that fits: `{ADVISE}`"

NO_GPUS = "--gpus is missing"
"""Why nothing is predicted for a model without GPUs."""


class FilledBatch(NamedTuple):
    """Values for an `auto` batch, and gradient checkpointing, which no file contains; a size is None if it needs no
    value."""

    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    gradient_checkpointing: bool = True
    cpu_checkpointing: bool = False
    words: str = ""
    """The description of values that the advice filled in; "" if none."""

    def plan(
        self, config: Mapping[str, Any], model: ModelShape, cluster: Cluster, software: Software = DEFAULT
    ) -> Plan:
        """The plan of a configuration with these values. Raises like `plan_from_ds_config`."""
        return plan_from_ds_config(
            config,
            model,
            cluster,
            micro_batch_size=self.micro_batch_size,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            gradient_checkpointing=self.gradient_checkpointing,
            cpu_checkpointing=self.cpu_checkpointing,
            software=software,
        )


NOTHING_FILLED = FilledBatch()

Fill = Callable[[Mapping[str, Any]], FilledBatch]
"""The values for `auto` of a configuration."""


def nothing_filled(_: Mapping[str, Any]) -> FilledBatch:
    return NOTHING_FILLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A model on GPUs with a plan that the closed forms can predict."""

    model: ModelShape
    workload: Workload
    cluster: Cluster
    plan: Plan

    def memory(self) -> MemoryEstimate:
        return estimate_memory(self.model, self.workload, self.cluster, self.plan)

    def time(self) -> TimeEstimate:
        return estimate_time(self.model, self.workload, self.cluster, self.plan)

    def fit_probability(self) -> float:
        """The probability that it fits the GPUs."""
        return fit_probability(self.memory(), self.cluster)

    def host_fit_probability(self) -> float:
        """The probability that it fits the RAM; 1 if that is unknown."""
        ram = self.cluster.host_memory_bytes_per_node
        return host_fit_probability(self.memory().host_bytes_per_node, ram) if ram else 1.0

    def tokens_per_s(self) -> float:
        time = self.time()
        return time.tokens_per_step / time.step_s

    def gain(self, other_plan: Plan) -> float:
        """The speedup of another plan in tokens per second; 0 if it does not fit or gains less than `GAIN`."""
        if unsupported(self.model, self.workload, other_plan, self.cluster):
            return 0.0
        other = replace(self, plan=other_plan)
        if min(other.fit_probability(), other.host_fit_probability()) < FIT_THRESHOLD:
            return 0.0
        gain = other.tokens_per_s() / self.tokens_per_s()
        return gain if gain >= GAIN else 0.0


class FasterConfig(NamedTuple):
    """A change of the stage or the offload that fits and is faster."""

    removed: tuple[str, ...]
    """The offload blocks that it removes."""
    stage: int | None
    """The new stage; None if it stays."""
    gain: float
    config: LintedConfig
    """The changed configuration."""


class Misspelled(NamedTuple):
    """A key that DeepSpeed does not know by its name or in its block, which the other rules judge at its right path."""

    path: KeyPath
    right: KeyPath
    span: tuple[int, int]
    """Its place in the text."""

    @property
    def is_misplaced(self) -> bool:
        """Whether it has its right name, in a wrong block."""
        return self.path[:-1] != self.right[:-1]


@dataclass(frozen=True, kw_only=True)
class LintedConfig:
    """A configuration with its context; `cluster`, `model` and `workload` may be unknown."""

    document: Document
    values: dict[str, Any]
    """The values as DeepSpeed reads them, including `auto`."""
    facts: DeepSpeedFacts
    framework: Framework
    """The reader of the file: "hf" (the Trainer or accelerate, which fill `auto`) or "deepspeed"."""
    cluster: Cluster | None = None
    model: ModelShape | None = None
    workload: Workload | None = None
    fill: Fill = nothing_filled
    """The values for `auto`."""
    what_fits: Callable[[], str] = lambda: OTHER_PLAN
    """What to do if the configuration does not fit this model and these GPUs."""
    framework_is_assumed: bool = False
    misspelled: tuple[Misspelled, ...] = ()
    """Keys that have their right paths in `values`."""
    written: LintedConfig | None = None
    """The configuration with the misspelled keys."""

    @cached_property
    def trained(self) -> dict[str, Any]:
        """The values that the training has, in which "auto" is left for the Trainer and accelerate to fill."""
        return self.values if self.framework == "hf" else self.facts.without_autos(self.values)

    def _find(self, path: str) -> Any:
        node: Any = self.values
        for name in path.split(".") if path else ():
            if not isinstance(node, dict) or name not in node:
                return _MISSING
            node = node[name]
        return node

    def has(self, path: str) -> bool:
        return self._find(path) is not _MISSING

    def get(self, path: str) -> Any:
        """The value at a path; None if there is none."""
        found = self._find(path)
        return None if found is _MISSING else found

    def block(self, path: str) -> dict[str, Any]:
        """The object at a path ("" for the whole); empty if there is none."""
        found = self.get(path)
        return found if isinstance(found, dict) else {}

    def number(self, path: str) -> int | float | None:
        """The finite number at a path, or None."""
        found = self.get(path)
        right = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 1e300
        return found if right else None

    def positive(self, path: str) -> int:
        """The whole number above zero at a path; 0 for anything else."""
        value = self.number(path)
        return int(value) if value is not None and value > 0 and not value % 1 else 0

    def flag(self, path: str) -> bool:
        """Whether DeepSpeed reads the value as true."""
        found = self.get(path)
        return is_true(found) or (isinstance(found, int | float) and bool(found))

    def off(self, path: str) -> bool:
        """Whether DeepSpeed reads the value as false."""
        found = self.get(path)
        if isinstance(found, str):
            return not TRUTHS.get(found.lower(), True)
        return isinstance(found, int | float) and found == 0

    def text(self, path: str) -> str:
        found = self.get(path)
        return found if isinstance(found, str) else ""

    def is_auto(self, path: str) -> bool:
        return self.text(path) == "auto"

    def zero_number(self, name: str) -> int:
        """A number of zero_optimization, DeepSpeed's default if it is absent or `auto`; 0 for any other value."""
        path = self.zero_path(name)
        value = self.get(path)
        if value is None or value == "auto":
            value = self.facts.default(path)
        return int(value) if isinstance(value, int | float) and abs(value) < 1e300 else 0

    def zero_path(self, name: str) -> str:
        """The path of a key of zero_optimization under the name that the file uses, or under its usual name."""
        field = self.facts.find_field(f"zero_optimization.{name}")
        paths = [f"zero_optimization.{key}" for key in (field.names if field else (name,))]
        return next(filter(self.has, paths), paths[0])

    @cached_property
    def stage(self) -> int:
        """The ZeRO stage; 0 if it is absent or does not exist."""
        return self.existing_stage or 0

    @cached_property
    def existing_stage(self) -> int | None:
        """The ZeRO stage; 0 if it is absent, None for a value that is no stage: what is meant is then unknown."""
        path = "zero_optimization.stage"
        if self.get("zero_optimization") is None:
            return 0
        if self.has(path) and self.get(path) is None:
            return None
        try:
            return zero_stage_in(self.trained)
        except ConfigFileError:
            return None

    @property
    def stage_is_missing(self) -> bool:
        """Whether zero_optimization has no stage, or leaves it to the reader."""
        path = "zero_optimization.stage"
        return not self.has(path) or self.is_auto(path)

    def offload(self, what: str) -> str:
        """The device of `optimizer` or `param`: "none", "cpu" or "nvme"; deprecated flags are considered."""
        device = self.get(f"zero_optimization.offload_{what}.device")
        if device in ("cpu", "nvme"):
            return str(device)
        old = "cpu_offload" if what == "optimizer" else "cpu_offload_param"
        return "cpu" if self.flag(f"zero_optimization.{old}") else "none"

    @cached_property
    def bf16_block(self) -> str:
        """The name of the block that DeepSpeed reads as bf16."""
        return "bfloat16" if self.get("bf16") is None and self.get("bfloat16") is not None else "bf16"

    @property
    def bf16(self) -> bool:
        return self.flag(f"{self.bf16_block}.enabled")

    @property
    def fp16(self) -> bool:
        return self.flag("fp16.enabled")

    @property
    def model_type(self) -> str:
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "fp32"

    @property
    def precision_is_auto(self) -> bool:
        """Whether the Trainer or accelerate chooses the precision."""
        return self.framework == "hf" and any(self.is_auto(f"{name}.enabled") for name in ("fp16", "bf16"))

    @property
    def optimizer(self) -> str:
        """DeepSpeed's optimizer name in lower case, or the class name of a torch.optim optimizer unchanged; "" if there
        is none."""
        return self.facts.optimizer_name(self.text("optimizer.type"))

    @cached_property
    def optimizer_spec(self) -> OptimizerSpec | None:
        """The row of the optimizer block's type; None without a block or for an unknown optimizer."""
        return deepspeed_optimizer(self.optimizer)

    @property
    def has_adam(self) -> bool:
        """Whether the optimizer block names DeepSpeed's Adam or AdamW."""
        return self.optimizer_spec is not None and self.optimizer_spec.is_adam

    @property
    def torch_adam(self) -> bool:
        """Whether the optimizer block asks for torch's Adam in place of DeepSpeed's."""
        return self.flag("optimizer.params.torch_adam")

    @property
    def has_zenflow(self) -> bool:
        """Whether ZenFlow steps the optimizer: null is no block."""
        return isinstance(self.get("zero_optimization.zenflow"), dict)

    @property
    def scheduler(self) -> str:
        return self.text("scheduler.type")

    @property
    def world_size(self) -> int | None:
        return self.cluster.world_size if self.cluster is not None else None

    @cached_property
    def batch(self) -> FilledBatch:
        return self.fill(self.trained)

    @property
    def situation(self) -> Situation | None:
        """The plan of the configuration on this cluster; None if it is not predicted."""
        return None if isinstance(self.prediction, str) else self.prediction

    @cached_property
    def prediction(self) -> Situation | str:
        """The plan of the configuration on this cluster, or why it is not predicted; "" without a model."""
        model, workload, cluster = self.model, self.workload, self.cluster
        if model is None:
            return ""
        if workload is None:
            return f"the optimizer {self.text('optimizer.type')!r} is unknown"
        if cluster is None:
            return NO_GPUS
        software = replace(workload.software, deepspeed=parse_version(self.facts.version).release)
        workload = replace(workload, software=software)
        try:
            plan = self.batch.plan(self.trained, model, cluster, software)
        except ConfigFileError as error:
            return error.what
        if obstacle := unsupported(model, workload, plan, cluster):
            return obstacle
        return Situation(model=model, workload=workload, cluster=cluster, plan=plan)

    @cached_property
    def faster(self) -> FasterConfig | None:
        """The fastest of the changes that DS903 and DS904 propose; of those within the error of the time model, the
        smallest."""
        if self.situation is None:
            return None
        plan, found = self.situation.plan, list[FasterConfig]()
        blocks = tuple(f"offload_{name}" for name in ("optimizer", "param") if self.offload(name) != "none")
        removals = [(), *([blocks[1:]] if len(blocks) == 2 else []), *([blocks] if blocks else [])]
        for stage in (None, 2) if plan.zero_stage == 3 else (None,):
            for removed in removals:
                left = {*blocks} - {*removed}
                if stage == 2 and ("offload_param" in left or (plan.offload_optimizer == "nvme" and left)):
                    continue
                changed = self._changed(removed, stage)
                if changed.situation is not None and (gain := self.situation.gain(changed.situation.plan)):
                    found.append(FasterConfig(removed, stage, gain, changed))
        best = max((each.gain for each in found), default=0.0)
        return next((each for each in found if each.gain * GAIN > best), None)

    def _changed(self, removed: Iterable[str], stage: int | None) -> LintedConfig:
        old_names = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
        dropped = {*removed, *(old_names[name] for name in removed)}
        zero = {name: value for name, value in self.block("zero_optimization").items() if name not in dropped}
        zero |= {} if stage is None else {"stage": stage}
        return replace(self, values={**self.values, "zero_optimization": zero})
