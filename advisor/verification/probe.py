"""A probe of a `Run`: what was measured, beside the closed form and the dry run of the same configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...estimators.errors import ClusterError
from ...estimators.estimate import Estimate, MemoryEstimate
from ...estimators.json_form import from_attributes, to_json
from ...probes.dry_run import DryRunResult, NeedsValuesError, dry_run
from ...probes.real_run.result import ProbeResult
from ...probes.run import Run, check_kernels
from .dry_run import no_such_rank
from .past_results import probe_and_keep


@dataclass(frozen=True, slots=True)
class ProbeFigure:
    """One quantity of the job: measured on its highest rank, and as predicted. None: not known that way."""

    name: str
    unit: str
    """"bytes", "s" or "tokens/s"."""
    measured: float | None
    analytic: float | None
    dry_run: float | None = None

    def error(self, predicted: float | None) -> float | None:
        """Relative error of a prediction, None where either figure is missing."""
        return predicted / self.measured - 1 if predicted is not None and self.measured else None


@dataclass(frozen=True, kw_only=True)
class ProbeFigureWithErrors:
    """A quantity, measured and predicted; null: not known that way."""

    name: str
    unit: str
    """bytes, s or tokens/s."""
    measured: float | None
    analytic: float | None
    analytic_error: float | None
    """Relative: predicted over measured, less 1."""
    dry_run: float | None
    dry_run_error: float | None


@dataclass(frozen=True, kw_only=True)
class ProbeAdditions:
    """What an answer adds to a probe's own result."""

    figures: tuple[ProbeFigureWithErrors, ...]


@dataclass(frozen=True, kw_only=True)
class ProbeAnswer:
    """What a probe says about a run on this machine."""

    run: Run
    result: ProbeResult
    estimate: Estimate | None
    """The closed form for the same plan; None for a model or an optimizer that it does not know."""
    dry_run: DryRunResult | None
    """None where none was made."""

    @property
    def figures(self) -> tuple[ProbeFigure, ...]:
        """Memory first, then time; empty after a failure."""
        if self.result.failure is not None:
            return ()
        time = None if self.estimate is None else self.estimate.time
        return (
            *(_on_the_cpu(self) if self.result.device == "cpu" else _on_cuda(self)),
            ProbeFigure("step", "s", self.result.step_s, None if time is None else time.step_s),
            ProbeFigure("tokens/s", "tokens/s", self.result.tokens_per_s, None if time is None else time.tokens_per_s),
        )

    def to_json(self) -> dict[str, Any]:
        """The result with every figure beside its predictions, and their relative errors."""
        figures = tuple(
            from_attributes(
                ProbeFigureWithErrors,
                figure,
                analytic_error=figure.error(figure.analytic),
                dry_run_error=figure.error(figure.dry_run),
            )
            for figure in self.figures
        )
        return {**self.result.to_json(), **to_json(ProbeAdditions(figures=figures))}


def prove_by_probe(
    run: Run, *, rank: int, steps: int, dry: bool, on_progress: Callable[[str], None], **settings: Any
) -> ProbeAnswer:
    """Run it for a few steps, after a dry run of the same where `dry`, and keep the result.

    settings: of `probe`. Weights are read where the model was named by a folder that holds safetensors.

    Raises DsAdviseError for what cannot be run at all; a job that fails is an answer.
    """
    if rank >= run.cluster.world_size:
        raise no_such_rank(rank, run.cluster.world_size)
    if run.cluster.nodes > 1 and not settings.get("solo"):
        raise ClusterError(
            f"{run.cluster.nodes} nodes are not here",
            why="a probe starts all ranks on this machine",
            fix="pass --solo, which runs one rank of the job",
        )
    check_kernels(run.config, settings.get("device", "cuda"))
    dry_result = _dry_run_beside(run, rank, steps, on_progress) if dry else None
    result = probe_and_keep(
        run,
        rank=rank,
        steps=steps,
        checkpoint=_checkpoint(run.model_name),
        on_progress=lambda phase: on_progress(f"probe: {phase} ..."),
        **settings,
    )
    filled = result.config or (dry_result.config if dry_result is not None else None)
    estimate = None if filled is None else run.estimate(filled)
    return ProbeAnswer(run=run, result=result, estimate=estimate, dry_run=dry_result)


def _dry_run_beside(run: Run, rank: int, steps: int, on_progress: Callable[[str], None]) -> DryRunResult | None:
    """None for a model that only real values lead through its code: the probe has them."""
    on_progress("dry run ...")
    try:
        return dry_run(run, rank=rank, iterations=steps)
    except NeedsValuesError as error:
        on_progress(f"no dry run stands beside it: {error.what}")
        return None


def _checkpoint(model: str) -> str | None:
    """The folder, where the model was named by one that holds safetensors."""
    folder = Path(model)
    return str(folder.resolve()) if folder.is_dir() and any(folder.glob("*.safetensors")) else None


def cpu_rank_bytes(memory: MemoryEstimate, ranks_per_node: int) -> int:
    """Predicted bytes of one rank on the CPU device, where the tensors of the "GPU" and of the host share the RAM."""
    host = sum(
        term.size_bytes for term in memory.host_pinned_terms + memory.host_pageable_terms if term.name != "processes"
    )
    return memory.device_bytes_per_gpu + host // ranks_per_node


def _on_the_cpu(answer: ProbeAnswer) -> tuple[ProbeFigure, ...]:
    dry, memory = answer.dry_run, None if answer.estimate is None else answer.estimate.memory
    dry_bytes = None if dry is None else max(phase.total_peak_bytes for phase in dry.phases if phase.iteration)
    if dry_bytes is not None and memory is not None:  # what lies beside tensors, no dry run shows
        dry_bytes += sum(term.size_bytes for term in memory.reserved_terms + memory.device_terms)
    analytic = None if memory is None else cpu_rank_bytes(memory, answer.run.cluster.gpus_per_node)
    return (ProbeFigure("memory per rank", "bytes", answer.result.highest("host_tensor_bytes"), analytic, dry_bytes),)


def _on_cuda(answer: ProbeAnswer) -> tuple[ProbeFigure, ...]:
    result, ranks = answer.result, answer.run.cluster.gpus_per_node
    memory = None if answer.estimate is None else answer.estimate.memory
    peak = None if answer.dry_run is None else answer.dry_run.peak

    def figure(title: str, measured: float | None, kind: str) -> ProbeFigure:
        return ProbeFigure(title, "bytes", measured, getattr(memory, kind, None), getattr(peak, kind, None))

    swapped = None if answer.dry_run is None else answer.dry_run.nvme_bytes_per_rank * ranks
    rows = (
        figure("allocated per GPU", result.highest("allocated_bytes"), "allocated_bytes_per_gpu"),
        figure("reserved per GPU", result.highest("reserved_bytes"), "reserved_bytes_per_gpu"),
        figure("device memory", result.highest("device_bytes"), "device_bytes_per_gpu"),
        ProbeFigure(
            "host RAM per rank",
            "bytes",
            result.highest("host_tensor_bytes"),
            None if memory is None else memory.host_training_bytes_per_node / ranks,
            None if peak is None else peak.host_bytes_per_node / ranks,
        ),
        replace(figure("NVMe", result.ranks[0].nvme_bytes or None, "nvme_bytes_per_node"), dry_run=swapped),
    )
    return tuple(row for row in rows if row.measured is not None or row.analytic)
