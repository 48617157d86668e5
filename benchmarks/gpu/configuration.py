"""One training that is really run for a few steps: a model, a plan, and whether it is one rank of many."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ds_advise.ds_configs.presets import plan_for
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.plan import Plan, Strategy
from ds_advise.estimators.workload import LossKernel, Method, Workload
from ds_advise.probes.run import Run

WIDE_OFFLOAD_STRATEGIES: tuple[Strategy, ...] = ("zero2-offload", "zero3-offload", "zero3-nvme")
"""Strategies whose optimizer steps on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What is trained; every other setting is the strategy's preset."""

    model: str
    """A name of the catalogue."""
    strategy: Strategy
    world_size: int = 1
    """Of more than one, a single rank runs and the others are pretended."""
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    seq_len: int = 2048
    gradient_checkpointing: bool = True
    method: Method = "full"
    loss: LossKernel = "standard"
    expandable_segments: bool = True
    """The allocator's setting, which the program's start commands switch on."""
    steps: int = 4
    changes: tuple[tuple[str, Any], ...] = ()
    """Fields of the model's `config.json` that are changed, such as a smaller depth."""

    @property
    def name(self) -> str:
        """`train Qwen2.5-7B zero3 full, 8 ranks, 2 x 4096 tokens`, and what differs from the usual."""
        accumulation = f" x {self.gradient_accumulation_steps}" * (self.gradient_accumulation_steps > 1)
        parts = [
            f"train {self.model} {self.strategy} {self.method}",
            f"{self.world_size} rank{'s' * (self.world_size > 1)}",
            f"{self.micro_batch_size}{accumulation} x {self.seq_len} tokens",
        ]
        parts += ["no checkpointing"] * (not self.gradient_checkpointing)
        parts += ["fused loss"] * (self.loss == "fused") + ["fixed segments"] * (not self.expandable_segments)
        return ", ".join([*parts, *(f"{key} {value}" for key, value in self.changes)])

    @property
    def arguments(self) -> dict[str, Any]:
        """In JSON's types; `from_arguments` reads them."""
        return asdict(self) | {"changes": [list(change) for change in self.changes]}

    @property
    def description(self) -> dict[str, Any]:
        """The transformers configuration of the model."""
        return {**catalogue.config(catalogue.find(self.model).name), **dict(self.changes)}

    @property
    def shape(self) -> ModelShape:
        return shape_from_config(self.description, name=catalogue.find(self.model).name)

    @property
    def workload(self) -> Workload:
        return Workload(method=self.method, seq_len=self.seq_len, loss=self.loss)

    def plan(self, cluster: Cluster) -> Plan:
        return plan_for(
            self.strategy,
            self.shape,
            self.workload,
            cluster,
            micro_batch_size=self.micro_batch_size,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            gradient_checkpointing=self.gradient_checkpointing,
        )

    def run(self, cluster: Cluster) -> Run:
        """What the program probes and dry-runs."""
        return Run.from_plan(self.plan(cluster), self.shape, self.workload, cluster, description=self.description)


def from_arguments(arguments: dict[str, Any]) -> Configuration:
    """The configuration that `arguments` describes."""
    return Configuration(**arguments | {"changes": tuple((key, value) for key, value in arguments["changes"])})
