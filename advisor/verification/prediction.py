"""What was predicted of a training, to compare it with what happens: by a dry run of its command, or by the closed
form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ...estimators.estimate import Estimate, Evidence
from ...estimators.hardware import Cluster
from ...estimators.memory.fit_probability import most_device_bytes, most_host_bytes
from ..answer.command_answer import CommandAnswer

STEP_PHASES = ("forward", "backward", "step")
"""Phases of an optimizer step."""

ENGINE_SETTINGS = {
    "zero_stage": "ZeRO",
    "micro_batch_size": "micro batch",
    "gradient_accumulation_steps": "accumulation",
}
"""Settings that a rank reports from its engine, fields of `Plan` -> their titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """One phase of a step: of all its micro batches, on the rank that needs most."""

    name: str
    seconds: float | None
    """Time of the phase; None if it is unknown. A prediction's is its part of the step's critical path."""
    peak_bytes: int | None
    """Peak of the allocated GPU memory; None if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted figures of a training."""

    evidence: Evidence
    engine: dict[str, int]
    """Values of `ENGINE_SETTINGS`."""
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    host_bytes: int
    """Memory of a node's ranks during the training."""
    step_s: float | None
    """None for a GPU of unknown speed."""
    tokens_per_step: float | None
    phases: tuple[PhaseFigures, ...] = field(default=())

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens_per_step / self.step_s if self.tokens_per_step and self.step_s else None

    def most_bytes(self, cluster: Cluster) -> tuple[int, int]:
        """Return what a GPU and a node's ranks need at most, within the error of the prediction."""
        is_dry_run = self.evidence != "analytic"
        device = most_device_bytes(self.device_bytes, self.allocated_bytes, cluster, is_dry_run=is_dry_run)
        return device, most_host_bytes(self.host_bytes, cluster)

    def stored(self) -> dict[str, Any]:
        """Return the figures that the store keeps."""
        memory = (f"{each}_bytes" for each in ("allocated", "reserved", "device", "host"))
        return {name: getattr(self, name) for name in ("evidence", "step_s", "tokens_per_s", *memory)}


UNTIMED = "Times are not predicted: the speed of this CPU was not measured (ds-advise bench --device cpu)."


def is_timed(cluster: Cluster, evidence: Evidence = "analytic") -> bool:
    """Whether a prediction by this evidence has times. Those of a CPU whose speed is only assumed would be off by any
    factor: a core multiplies bf16 matrices at 1.3 GFLOP/s without instructions for it, and at up to 100 with them
    (AMD EPYC, torch 2.13)."""
    return evidence not in ("analytic", "dry-run") or not cluster.gpu.is_cpu or bool(cluster.measured)


def by_estimate(estimate: Estimate, cluster: Cluster) -> Prediction:
    """The closed form for a plan on this cluster, with the figures that a probe of it has measured."""
    memory, time, plan, measured = estimate.memory, estimate.time, estimate.plan, estimate.measured
    return Prediction(
        evidence=estimate.evidence,
        engine={name: getattr(plan, name) for name in ENGINE_SETTINGS},
        allocated_bytes=(measured and measured.allocated_bytes) or memory.allocated_bytes_per_gpu,
        reserved_bytes=(measured and measured.reserved_bytes) or memory.reserved_bytes_per_gpu,
        device_bytes=(measured and measured.device_bytes) or memory.device_bytes_per_gpu,
        host_bytes=(measured and measured.host_bytes) or memory.host_training_bytes_per_node,
        step_s=time.step_s if is_timed(cluster, estimate.evidence) else None,
        tokens_per_step=time.tokens_per_step,
    )


def by_dry_run(answer: CommandAnswer) -> Prediction:
    """A dry run of the command, with the peak of each phase over the steps and the simulated time."""
    engine, result = answer.engine, answer.result
    time = answer.step.time if answer.step and is_timed(answer.run.cluster) else None
    seconds = Counter[str]()
    for term in time.terms if time else ():
        seconds[term.name.partition(": ")[0]] += term.seconds  # type: ignore[assignment]  # seconds are no integers
    peaks = {
        name: max((phase.gpu_peak_bytes for phase in result.phases if phase.phase == name), default=None)
        for name in STEP_PHASES
    }
    return Prediction(
        evidence="dry-run",
        engine={name: getattr(engine, name) for name in ENGINE_SETTINGS},
        allocated_bytes=result.peak.allocated_bytes_per_gpu,
        reserved_bytes=result.peak.reserved_bytes_per_gpu,
        device_bytes=answer.device_bytes_per_gpu,
        host_bytes=answer.required_host_bytes_per_node,
        step_s=time.step_s if time else None,
        tokens_per_step=time.tokens_per_step if time else None,
        phases=tuple(
            PhaseFigures(name=name, seconds=seconds[name] if time else None, peak_bytes=peaks[name])
            for name in STEP_PHASES
        ),
    )
