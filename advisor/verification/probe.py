"""A probe of a `Run` or of a user's command, compared with the closed form and the dry run of the same training."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ...estimators.errors import ClusterError
from ...estimators.estimate import Estimate, MemoryEstimate
from ...estimators.hardware import Cluster
from ...estimators.json_form import to_json
from ...estimators.workload import Workload
from ...probes.command.request import CommandRequest
from ...probes.command.run import NoEngineError
from ...probes.command.words import script_in
from ...probes.dry_run.run import DryRunError, NeedsValuesError, dry_run
from ...probes.real_run.command import CommandProbe, probe_command
from ...probes.real_run.result import ProbeResult
from ...probes.recording.result import DryRunResult
from ...probes.run import Run, check_device
from ..question.run import read_ds_config
from ..text.output import Output
from .command import command_answer
from .dry_run import no_such_rank
from .past_results import keep_probe, probe_and_keep
from .prediction import Prediction, by_dry_run, by_estimate, is_timed
from .run_view import shown_probe

_PHASES = {"forward": "forward pass", "backward": "backward pass", "step": "optimizer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFigure:
    """A quantity on its highest rank, measured and predicted; null if not available."""

    name: str
    unit: str
    """bytes, s or tokens/s."""
    measured: float | None
    analytic: float | None
    analytic_error: float | None
    """Relative error: predicted over measured, minus 1."""
    dry_run: float | None
    dry_run_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAdditions:
    figures: tuple[ProbeFigure, ...]
    command: tuple[str, ...]
    """The user's command; empty for a configuration."""
    remarks: tuple[str, ...]
    """What a dry run of the command remarks: keys that DeepSpeed ignores, another number of ranks."""


@dataclass(frozen=True, kw_only=True)
class ProbeAnswer:
    """A probe of a run on this machine."""

    run: Run
    result: ProbeResult
    estimate: Estimate | None
    """The closed form for the same plan; None if it does not know the model or the optimizer."""
    dry_run: DryRunResult | None
    command: tuple[str, ...] = ()
    prediction: Prediction | None = None
    """The dry run of the command."""
    remarks: tuple[str, ...] = ()
    """What the dry run remarks on the command."""

    @property
    def figures(self) -> tuple[ProbeFigure, ...]:
        """Memory figures, then time figures; empty after a failure."""
        result, cluster = self.result, self.run.cluster
        time = self.estimate.time if self.estimate is not None and is_timed(cluster) else None
        predictions = (time, self.prediction)
        seconds = [each.step_s if each else None for each in predictions]
        rates = [each.tokens_per_s if each else None for each in predictions]
        if result.failure is not None:
            return ()
        return (
            *(self._cpu_memory() if result.device == "cpu" else self._cuda_memory()),
            *self._phases(),
            _figure("step", result.step_s, *seconds, unit="s"),
            _figure(f"{result.unit}/s", result.tokens_per_s, *rates, unit=f"{result.unit}/s"),
        )

    def to_json(self) -> dict[str, Any]:
        additions: dict[str, Any] = to_json(
            ProbeAdditions(figures=self.figures, command=self.command, remarks=self.remarks)
        )
        return {**self.result.to_json(), **additions}

    def _phases(self) -> Iterator[ProbeFigure]:
        """The phases of a command's step: the peak on the highest rank, the seconds on the slowest one, whose parts add
        up to its step."""
        predicted = {each.name: each for each in self.prediction.phases} if self.prediction else {}
        for name, title in _PHASES.items() if self.command else ():
            measured, dry = [rank.phases_named(name) for rank in self.result.ranks], predicted.get(name)
            peak = max(each.allocated_bytes for phases in measured for each in phases)
            if peak:
                yield _figure(f"{title}, peak", peak, None, dry.peak_bytes if dry else None)
            seconds = median(each.seconds for each in self.result.slowest.phases_named(name))
            yield _figure(title, seconds, None, dry.seconds if dry else None, unit="s")

    def _cpu_memory(self) -> tuple[ProbeFigure, ...]:
        dry, memory = self.dry_run, None if self.estimate is None else self.estimate.memory
        dry_bytes = None if dry is None else dry.cpu_rank_bytes(loading=False)
        analytic = None if memory is None else cpu_rank_bytes(memory, self.run.cluster.gpus_per_node)
        return (_figure("memory per rank", self.result.highest("host_tensor_bytes"), analytic, dry_bytes),)

    def _cuda_memory(self) -> tuple[ProbeFigure, ...]:
        result, ranks = self.result, self.run.cluster.gpus_per_node
        memory = None if self.estimate is None else self.estimate.memory
        peak = None if self.dry_run is None else self.dry_run.peak
        on_gpu = {
            "allocated per GPU": ("allocated_bytes", "allocated_bytes_per_gpu"),
            "reserved per GPU": ("reserved_bytes", "reserved_bytes_per_gpu"),
            "device memory": ("device_bytes", "device_bytes_per_gpu"),
        }
        rows = (
            *(
                _figure(name, result.highest(measured), getattr(memory, kind, None), getattr(peak, kind, None))
                for name, (measured, kind) in on_gpu.items()
            ),
            _figure(
                "host RAM per rank",
                result.highest("host_tensor_bytes"),
                None if memory is None else memory.host_training_bytes_per_node / ranks,
                None if peak is None else peak.host_bytes_per_node / ranks,
            ),
            _figure(
                "NVMe",
                result.ranks[0].nvme_bytes or None,
                None if memory is None else memory.nvme_bytes_per_node,
                None if self.dry_run is None else self.dry_run.nvme_bytes_per_rank * ranks,
            ),
        )
        return tuple(row for row in rows if row.measured is not None or row.analytic)


def _figure(
    name: str, measured: float | None, analytic: float | None, dry_run: float | None = None, *, unit: str = "bytes"
) -> ProbeFigure:
    def error(predicted: float | None) -> float | None:
        return predicted / measured - 1 if predicted is not None and measured else None

    return ProbeFigure(
        name=name,
        unit=unit,
        measured=measured,
        analytic=analytic,
        analytic_error=error(analytic),
        dry_run=dry_run,
        dry_run_error=error(dry_run),
    )


def cpu_rank_bytes(memory: MemoryEstimate, ranks_per_node: int) -> int:
    """Return the predicted bytes of one rank on the CPU device, where the tensors of the "GPU" and of the host share
    the RAM."""
    return memory.device_bytes_per_gpu + memory.host_tensor_bytes_per_node // ranks_per_node


def compared_command_probe(
    probe: CommandProbe,
    cluster: Cluster,
    *,
    dry: bool,
    offline: bool,
    output: Output,
    **settings: Any,
) -> ProbeAnswer:
    """Run the first steps of a command, keep the result, and return it with the dry run of the same command.

    cluster: the ranks of the command. settings: of `probe_command`. Raises DsAdviseError for a command that cannot be
    started; a command that fails is a valid answer, and a dry run that fails is left out.
    """
    answer = None
    given = {} if probe.config_file is None else read_ds_config(probe.config_file)
    if dry:
        request = CommandRequest(
            words=probe.words,
            folder=probe.folder,
            cluster=cluster,
            config_file=probe.config_file,
            rank=None if probe.solo is None else probe.solo.rank,
            offline=offline,
        )
        try:
            with output.progress("dry run") as show:
                answer = command_answer(request, timeout_s=settings.get("timeout_s", 1800.0), on_progress=show)
        except NoEngineError:
            raise  # there is no step to measure
        except DryRunError as error:
            if error.misspelt:
                raise  # by the script's parser, which refuses it on the ranks too
            output.say(f"no dry run for comparison: {error.reason}")
    prediction = by_dry_run(answer) if answer else None
    with shown_probe(output, cluster, None if probe.solo else prediction, probe.steps) as on_progress:
        result = probe_command(probe, on_progress=on_progress, **settings)
    name = Path(script_in(probe.words)).name or probe.words[0]
    config = result.config or (answer.run.config if answer else given)
    run = Run(config=config, model={}, cluster=cluster, workload=Workload(), model_name=name)
    keep_probe(
        result,
        run,
        memory_limit_bytes=probe.memory_limit_bytes,
        predicted=None if probe.solo else prediction,
        command=shlex.join(probe.words),
    )
    return ProbeAnswer(
        run=run,
        result=result,
        estimate=None,
        dry_run=answer.result if answer else None,
        command=probe.words,
        prediction=prediction,
        remarks=answer.observed.remarks if answer else (),
    )


def compared_probe(run: Run, *, rank: int, steps: int, dry: bool, output: Output, **settings: Any) -> ProbeAnswer:
    """Run a configuration for a few steps, keep the result, and return it with the predictions.

    dry: make a dry run for comparison. settings: of `probe`. Weights are loaded if the model is a folder with
    safetensors. Raises DsAdviseError for a run that is impossible; a job that fails is a valid answer.
    """
    if rank >= run.cluster.world_size:
        raise no_such_rank(rank, run.cluster.world_size)
    if run.cluster.nodes > 1 and not settings.get("solo"):
        raise ClusterError(
            f"{run.cluster.nodes} nodes are not available here",
            why="a probe starts all ranks on this machine",
            fix="pass --solo, which runs one rank of the job",
        )
    check_device(run, settings.get("device", "cuda"))
    dry_result = None
    if dry:
        try:
            with output.progress("dry run") as show:
                dry_result = dry_run(run, rank=rank, iterations=steps, on_progress=show)
        except NeedsValuesError as error:  # the model's code needs real values, which the probe has
            output.say(f"no dry run for comparison: {error.reason}")
    folder = Path(run.model_name)
    has_weights = folder.is_dir() and any(folder.glob("*.safetensors"))
    predicted = None if settings.get("solo") else run.estimate()
    prediction = None if predicted is None else by_estimate(predicted, run.cluster)
    with shown_probe(output, run.cluster, prediction, steps) as on_progress:
        result = probe_and_keep(
            run,
            rank=rank,
            steps=steps,
            checkpoint=str(folder.resolve()) if has_weights else None,
            predicted=prediction,
            on_progress=on_progress,
            **settings,
        )
    filled = result.config or (dry_result.config if dry_result is not None else None)
    estimate = None if filled is None else run.estimate(filled)
    return ProbeAnswer(run=run, result=result, estimate=estimate, dry_run=dry_result)
