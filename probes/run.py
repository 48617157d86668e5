"""A run, the subject of dry runs, probes, trainings and stored measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..ds_configs.emit import ds_config
from ..ds_configs.read import needs_quantizer, plan_from_ds_config, ranks_per_sample_in, sequence_parallel_size_in
from ..estimators.errors import ClusterError, ConfigFileError, WorkloadError
from ..estimators.estimate import Estimate
from ..estimators.hardware import Cluster
from ..estimators.models.model_shape import Input, ModelShape
from ..estimators.objectives import trained_config
from ..estimators.optimizers import OPTIMIZERS
from ..estimators.plan import Plan
from ..estimators.time.step_time import estimate_plan
from ..estimators.workload import Workload
from .machine import cpu_has_fp16
from .run_errors import DryRunError

Device = Literal["cpu", "cuda"]
"""Device of a real run; "cpu" is DeepSpeed's CPU accelerator over gloo."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A DeepSpeed configuration with its model, machines and batch."""

    config: Mapping[str, Any]
    """The ds_config, including its `auto` values."""
    model: Mapping[str, Any] | str
    """A transformers configuration, or "FILE.py:FACTORY", a user's function that returns a module."""
    cluster: Cluster
    workload: Workload = field(default_factory=Workload)
    shape: ModelShape | None = None
    """The model's shape for the closed forms; None for an unknown model."""
    model_name: str = ""
    """The model's name, for the records."""
    micro_batch_size: int | None = None
    """Fills an `auto` or absent key of the configuration; None for DeepSpeed's value, or 1."""
    gradient_accumulation_steps: int | None = None
    gradient_checkpointing: bool = True
    cpu_checkpointing: bool = False
    """Whether the inputs of checkpointed layers are stored on the host."""
    inputs: tuple[Input, ...] = ()
    """One sample, for a FACTORY without `make_batch`."""

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        shape: ModelShape,
        workload: Workload,
        cluster: Cluster,
        *,
        description: Mapping[str, Any] | str | None = None,
    ) -> Run:
        """The run of a plan's configuration.

        description: value of the field `model`; a run without it can be looked up but not executed.

        Raises ClusterError like `ds_config`.
        """
        run = cls(
            config={}, model=description or {}, cluster=cluster, workload=workload, shape=shape, model_name=shape.name
        )
        return run.replace_plan(plan)

    def replace_plan(self, plan: Plan) -> Run:
        """The run of the same model on the same machines under another plan."""
        assert self.shape is not None, "a plan needs a known model"
        return replace(
            self,
            config=ds_config(plan, self.shape, self.workload, self.cluster, flavor=self.workload.framework),
            micro_batch_size=plan.micro_batch_size,
            gradient_accumulation_steps=plan.gradient_accumulation_steps,
            gradient_checkpointing=plan.gradient_checkpointing,
            cpu_checkpointing=plan.cpu_checkpointing,
        )

    @property
    def description(self) -> dict[str, Any] | None:
        """The transformers configuration, with the head of the objective; None for a user's module."""
        if isinstance(self.model, str):
            return None
        return trained_config(self.model, self.shape, self.workload.objective)

    @property
    def sequence_parallel_size(self) -> int:
        """Number of ranks that share a sample by sequence parallelism."""
        return sequence_parallel_size_in(self.config)

    @property
    def ranks_per_sample(self) -> int:
        """Number of ranks per sample by sequence and tensor parallelism."""
        return ranks_per_sample_in(self.config)

    @property
    def samples_per_step(self) -> int:
        """Samples of one optimizer step over all ranks, from train_batch_size or the batch sizes (1 if None)."""
        total = self.config.get("train_batch_size")
        if isinstance(total, int):
            return total
        samples = (self.micro_batch_size or 1) * (self.gradient_accumulation_steps or 1) * self.cluster.world_size
        return samples // self.ranks_per_sample

    @property
    def config_with_batch(self) -> dict[str, Any]:
        """The configuration with `micro_batch_size` and `gradient_accumulation_steps` in place of an `auto`."""
        batch = {
            "train_micro_batch_size_per_gpu": self.micro_batch_size,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
        }
        open_keys = [key for key in batch if self.config.get(key, "auto") == "auto" and batch[key] is not None]
        return {**self.config, **{key: batch[key] for key in open_keys}}

    def plan(self, filled: Mapping[str, Any] | None = None) -> Plan | None:
        """The plan of the configuration; None for a model or optimizer without closed form.

        filled: the executed configuration, without `auto`.

        Raises ConfigFileError for a configuration that DeepSpeed rejects.
        """
        if self.shape is None or self.workload.optimizer not in OPTIMIZERS:
            return None
        return plan_from_ds_config(
            self.config if filled is None else filled,
            self.shape,
            self.cluster,
            micro_batch_size=self.micro_batch_size if filled is None else None,
            gradient_accumulation_steps=self.gradient_accumulation_steps if filled is None else None,
            gradient_checkpointing=self.gradient_checkpointing,
            cpu_checkpointing=self.cpu_checkpointing,
            software=self.workload.software,
        )

    def estimate(self, filled: Mapping[str, Any] | None = None) -> Estimate | None:
        """The closed form of `plan`; also None for an unknown GPU speed or a configuration that DeepSpeed rejects."""
        try:
            plan = self.plan(filled)
            if plan is None or self.shape is None:
                return None
            return estimate_plan(self.shape, self.workload, self.cluster, plan)
        except (ClusterError, ConfigFileError):
            return None


def absolute_factory(text: str) -> str:
    """FILE.py:FUNCTION with the absolute path of the file. Raises DryRunError if the file is missing."""
    file, _, function = text.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise DryRunError(
            f"{file}: no such file",
            phase="start",
            fix="give FILE.py:FUNCTION, a function that returns a module",
        )
    return f"{path}:{function}"


MONITORS = ("tensorboard", "wandb", "comet", "csv_monitor", "flops_profiler")
"""Blocks of a configuration that write files, open connections or print, and change nothing else."""


def isolated_config(config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The configuration without side effects outside this process; memory stays the same.

    DeepSpeed clears and creates its swap folders below `nvme_path`, where a real training may be running: they are
    placed in `folder`. Monitors, which write files or open connections, and the profiler, which prints, are removed.
    """
    isolated = {key: value for key, value in config.items() if key not in MONITORS}
    zero = isolated.get("zero_optimization")
    if isinstance(zero, dict):
        isolated["zero_optimization"] = {
            key: {**value, "nvme_path": folder} if isinstance(value, dict) and value.get("nvme_path") else value
            for key, value in zero.items()
        }
    return isolated


def check_device(run: Run, device: Device) -> None:
    """Raises WorkloadError for a run that DeepSpeed rejects on the device: ZeRO++'s quantized collectives have no CPU
    kernels (deepspeed 0.19.8 op_builder/cpu/no_impl.py), and few CPUs have the fp16 products that its CPU accelerator
    requires (accelerator/cpu_accelerator.py `is_fp16_supported`)."""
    if device == "cpu" and run.workload.precision == "fp16" and not cpu_has_fp16():
        raise WorkloadError(
            "fp16 does not run on this CPU",
            why="it lacks the fp16 instructions that DeepSpeed's engine needs",
            fix="use bf16 or fp32 here",
        )
    if device == "cpu" and needs_quantizer(run.config):
        raise WorkloadError(
            "quantized collectives do not run on the CPU",
            why="DeepSpeed's quantization kernels are for NVIDIA GPUs",
            fix="set zero_quantized_weights and zero_quantized_gradients to false, or make a dry run",
        )
