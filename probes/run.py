"""What a dry run, a probe, a training and a stored measurement are *of*."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..ds_configs.emit import ds_config
from ..ds_configs.read import plan_from_ds_config, ranks_per_sample_in
from ..estimators.errors import ClusterError, ConfigFileError
from ..estimators.estimate import Estimate
from ..estimators.hardware.cluster import Cluster
from ..estimators.models.model_shape import ModelShape
from ..estimators.optimizers import OPTIMIZERS
from ..estimators.plan import Plan
from ..estimators.time.step_time import estimate_plan
from ..estimators.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Run:
    """A DeepSpeed configuration with the model, the machines and the batch that it is run with."""

    config: Mapping[str, Any]
    """The ds_config, `auto` still in it."""
    model: Mapping[str, Any] | str
    """A transformers configuration, or "FILE.py:FACTORY", a function of the user's that returns a module."""
    cluster: Cluster
    workload: Workload = field(default_factory=Workload)
    shape: ModelShape | None = None
    """The model as the closed forms know it; None for one that they do not know."""
    model_name: str = ""
    """The model as people call it, for the records."""
    micro_batch_size: int | None = None
    """Fills an `auto` or absent key of the configuration; None leaves it to DeepSpeed, or to 1."""
    gradient_accumulation_steps: int | None = None
    gradient_checkpointing: bool = True
    cpu_checkpointing: bool = False
    """Checkpointed layers' inputs wait on the host."""
    input_shape: tuple[int, ...] | None = None
    """Shape of one sample, for a FACTORY without `make_batch`."""

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        shape: ModelShape,
        workload: Workload,
        cluster: Cluster,
        *,
        description: Mapping[str, Any] | None = None,
    ) -> Run:
        """The run of the configuration that is written for a plan.

        description: the transformers configuration, without which it can be looked up but not run.

        Raises ClusterError as `ds_config` does.
        """
        run = cls(
            config={}, model=description or {}, cluster=cluster, workload=workload, shape=shape, model_name=shape.name
        )
        return run.with_plan(plan)

    def with_plan(self, plan: Plan) -> Run:
        """The same model on the same machines under another plan."""
        assert self.shape is not None, "plans are those of a known model"
        return replace(
            self,
            config=ds_config(plan, self.shape, self.workload, self.cluster, flavor=self.workload.framework),
            micro_batch_size=plan.micro_batch_size,
            gradient_accumulation_steps=plan.gradient_accumulation_steps,
            gradient_checkpointing=plan.gradient_checkpointing,
            cpu_checkpointing=plan.cpu_checkpointing,
        )

    @property
    def samples_per_step(self) -> int:
        """Samples of one optimizer step over all ranks, where the question decides the batch."""
        samples = (self.micro_batch_size or 1) * (self.gradient_accumulation_steps or 1) * self.cluster.world_size
        return samples // ranks_per_sample_in(self.config)

    def plan(self, filled: Mapping[str, Any] | None = None) -> Plan | None:
        """The plan that the configuration describes; None where the closed forms do not know model or optimizer.

        filled: the configuration as it ran, without `auto`.

        Raises ConfigFileError for a configuration that DeepSpeed refuses.
        """
        if self.shape is None or self.workload.optimizer not in OPTIMIZERS:
            return None
        if filled is not None:
            return plan_from_ds_config(
                filled,
                self.shape,
                self.cluster,
                gradient_checkpointing=self.gradient_checkpointing,
                cpu_checkpointing=self.cpu_checkpointing,
            )
        return plan_from_ds_config(
            self.config,
            self.shape,
            self.cluster,
            micro_batch_size=self.micro_batch_size,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            gradient_checkpointing=self.gradient_checkpointing,
            cpu_checkpointing=self.cpu_checkpointing,
        )

    def estimate(self, filled: Mapping[str, Any] | None = None) -> Estimate | None:
        """The closed form of `plan`; None also where the GPU's speed is unknown or DeepSpeed refuses the file."""
        try:
            plan = self.plan(filled)
            if plan is None or self.shape is None:
                return None
            return estimate_plan(self.shape, self.workload, self.cluster, plan)
        except (ClusterError, ConfigFileError):
            return None
