"""What an estimator answers: named figures, each with its formula, its inputs and its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .plan import Plan

Evidence = Literal["analytic", "dry-run", "solo-probe", "probe", "training"]
"""How a figure is known, weakest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerm:
    """Bytes of one component.

    formula: in the legend's symbols, so that a reader can recompute `size_bytes` from `inputs`.
    inputs:  (symbol, value) pairs of the formula.
    source:  DeepSpeed file and version, paper equation, or measurement.
    """

    name: str
    size_bytes: int
    formula: str
    inputs: tuple[tuple[str, float], ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The live tensors on the GPU at one phase of a training step; a peak is the largest phase."""

    name: str
    terms: tuple[MemoryTerm, ...]

    @property
    def allocated_bytes(self) -> int:
        return sum(term.size_bytes for term in self.terms)


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Memory of a plan. Three figures per GPU, never mixed: allocated <= reserved <= device.

    phases:        the candidates for the peak of live tensors, per GPU.
    reserved_terms: what the caching allocator must hold beyond the peak of live tensors (rounding, fragmentation). With
                    memory to spare it also keeps blocks cached that it would return when asked; they are not in here.
    device_terms:   what the device shows beyond that (CUDA context, NCCL, library workspaces outside the allocator).
    host_pinned_terms, host_pageable_terms: per node, all local ranks together, while training.
    host_loading_bytes_per_node: the peak while the model is loaded and partitioned, per node.
    nvme_terms:     per node.
    """

    phases: tuple[Phase, ...]
    reserved_terms: tuple[MemoryTerm, ...]
    device_terms: tuple[MemoryTerm, ...]
    host_pinned_terms: tuple[MemoryTerm, ...]
    host_pageable_terms: tuple[MemoryTerm, ...]
    host_loading_bytes_per_node: int
    nvme_terms: tuple[MemoryTerm, ...]

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.allocated_bytes)

    @property
    def allocated_bytes_per_gpu(self) -> int:
        """Peak bytes of live tensors: torch.cuda.max_memory_allocated()."""
        return self.peak.allocated_bytes

    @property
    def reserved_bytes_per_gpu(self) -> int:
        """Bytes that the caching allocator must hold at the peak; torch.cuda.max_memory_reserved() on a GPU that is
        full."""
        return self.allocated_bytes_per_gpu + sum(term.size_bytes for term in self.reserved_terms)

    @property
    def device_bytes_per_gpu(self) -> int:
        """What the process needs of the device (as nvidia-smi shows it on a GPU that is full); compared with its
        memory."""
        return self.reserved_bytes_per_gpu + sum(term.size_bytes for term in self.device_terms)

    @property
    def gpu_terms(self) -> tuple[MemoryTerm, ...]:
        """The terms that add up to `device_bytes_per_gpu`."""
        return self.peak.terms + self.reserved_terms + self.device_terms

    @property
    def components(self) -> dict[str, int]:
        """Bytes by component name; they add up to `device_bytes_per_gpu`."""
        total: dict[str, int] = {}
        for term in self.gpu_terms:
            total[term.name] = total.get(term.name, 0) + term.size_bytes
        return total

    @property
    def host_pinned_bytes_per_node(self) -> int:
        return sum(term.size_bytes for term in self.host_pinned_terms)

    @property
    def host_training_bytes_per_node(self) -> int:
        return self.host_pinned_bytes_per_node + sum(term.size_bytes for term in self.host_pageable_terms)

    @property
    def host_bytes_per_node(self) -> int:
        """Host RAM that a node must have: the larger of loading and training."""
        return max(self.host_training_bytes_per_node, self.host_loading_bytes_per_node)

    @property
    def nvme_bytes_per_node(self) -> int:
        return sum(term.size_bytes for term in self.nvme_terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTerm:
    """Seconds of one component of an optimizer step (all micro batches of the accumulation together).

    seconds: on the critical path, after what overlaps has been taken off.
    hidden_s: seconds that run in the shadow of other terms and so cost nothing.
    resource: what the term keeps busy: "gpu compute", "gpu memory", "launch", "gpu links", "network", "pcie", "cpu",
        "nvme".
    """

    name: str
    seconds: float
    resource: str
    formula: str
    inputs: tuple[tuple[str, float], ...] = ()
    source: str = ""
    hidden_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """Time of one optimizer step; `terms` add up to `step_s`."""

    terms: tuple[TimeTerm, ...]
    tokens_per_step: int

    @property
    def step_s(self) -> float:
        return sum(term.seconds for term in self.terms)

    @property
    def components(self) -> dict[str, float]:
        """Seconds by component name; they add up to `step_s`."""
        total: dict[str, float] = {}
        for term in self.terms:
            total[term.name] = total.get(term.name, 0.0) + term.seconds
        return total

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the whole cluster per second."""
        return self.tokens_per_step / self.step_s

    @property
    def bottleneck(self) -> str:
        """The resource that takes the largest share of the step."""
        shares: dict[str, float] = {}
        for term in self.terms:
            shares[term.resource] = shares.get(term.resource, 0.0) + term.seconds
        return max(shares, key=lambda resource: shares[resource])


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Memory and time of one plan."""

    plan: Plan
    memory: MemoryEstimate
    time: TimeEstimate
    evidence: Evidence = "analytic"
