"""The answer as data. `--json` prints it with these field names, which are part of the public interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ...estimators.estimate import Evidence
from ...estimators.hardware import cpu_cores, dram_bytes_per_s, nvme_read_bytes_per_s, nvme_write_bytes_per_s
from ...estimators.json_form import SCHEMA_VERSION, from_attributes
from ...estimators.plan import PlainPyTorch, PlanSettings, Strategy
from ...estimators.time.flops import model_flops_utilization
from ...estimators.time.job import JobDuration, Price
from ...estimators.workload import (
    AttentionKernel,
    Framework,
    LayerKernels,
    LossKernel,
    Method,
    Precision,
    Quantization,
)
from ..question.options import Risk
from ..question.question import Largest, Question
from ..search.candidate import Candidate, LadderStep, Verdict, candidate_duration
from ..text.labels import component_key
from .phases import PhaseFigures, phase_figures
from .recommendation import Change, Recommendation

if TYPE_CHECKING:
    from .recommendation import ProbedPlan


@dataclass(frozen=True, kw_only=True)
class JobFigures:
    """The whole training under one plan."""

    steps: int
    """Optimizer steps."""
    tokens: int
    """Tokens trained in all epochs, without padding."""
    padding: float
    """Share of the computed tokens that is padding."""
    mean_sample_tokens: float
    timed_sample_tokens: int
    """Mean length of the longest sample of a micro batch; the other samples are padded to it."""
    duration_s: float
    duration_s_low: float | None
    """Lower end of the 80 % prediction interval; it covers only the uncertainty of the step's time."""
    duration_s_high: float | None
    training_s: float
    loading_s: float
    """Seconds to start the processes and read the weights."""
    evaluation_s: float
    checkpoints: int
    checkpoint_bytes: int
    checkpoint_write_s: float
    """Seconds per checkpoint."""
    checkpoint_interval_s: float
    """Training time between two checkpoints that minimizes the expected loss of time."""
    gpu_hours: float
    cost: float | None
    """Null if no price was given."""
    cost_low: float | None
    cost_high: float | None
    currency: str
    """Currency of the given price; "" if it has none."""


@dataclass(frozen=True, kw_only=True)
class PlanFigures(PlanSettings):
    """A plan with its figures and verdict."""

    strategy: Strategy | PlainPyTorch
    allocated_bytes_per_gpu: int
    """Peak of live tensors in bytes."""
    reserved_bytes_per_gpu: int
    """Peak of the caching allocator's reserved memory."""
    device_bytes_per_gpu: int
    """Reserved memory, CUDA context and NCCL buffers; the figure that is compared with the GPU's memory."""
    measured_device_bytes_per_gpu: int | None
    """Device memory measured by a probe, or by a dry run of keys that are not predicted; null without one."""
    host_bytes_per_node: int
    host_pinned_bytes_per_node: int
    nvme_bytes_per_node: int
    components: dict[str, int]
    """Bytes by component name; the sum is device_bytes_per_gpu."""
    step_seconds: float
    time_components: dict[str, float]
    """Seconds by component name; the sum is step_seconds."""
    tokens_per_second: float
    tokens_per_second_low: float | None
    """Lower end of the 80 % prediction interval that ends at tokens_per_second_high."""
    tokens_per_second_high: float | None
    phases: tuple[PhaseFigures, ...]
    """Rollout, scoring and training phases of a step; empty for an objective without completions."""
    model_flops_utilization: float | None
    """Model FLOPs utilization (MFU): the model's FLOPs over the GPUs' peak; null if no peak is published or MFU is not
    computed."""
    job: JobFigures | None
    """The whole training under this plan; null if the amount of training is unknown."""
    bottleneck: str
    fits: bool
    assumed_host_bytes: int
    """Host RAM per node that the verdict assumes because the true amount is unknown; 0 if nothing is assumed."""
    fit_probability: float
    verdict: Verdict
    reason: str
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """The model of the question."""

    name: str
    parameters: int
    trainable_parameters: int


@dataclass(frozen=True, kw_only=True)
class WorkloadFigures:
    """The training of the question."""

    method: Method
    quantization: Quantization | None
    modules_to_save: tuple[str, ...]
    """Embeddings and heads that are trained in full in addition to the adapters."""
    seq_len: int
    precision: Precision
    optimizer: str
    global_batch_size: int | None
    """Null if the search chooses it."""
    attention: AttentionKernel
    loss: LossKernel
    mlp: str
    kernels: LayerKernels
    document_len: int | None
    """Length of a document in tokens; null if each sample is one document."""
    framework: Framework
    rollouts: dict[str, Any] | None
    """Rollout settings of GRPO and RLOO by option name, as chosen by the search; null for other objectives."""
    software: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ClusterFigures:
    """The machines of the question."""

    nodes: int
    gpus_per_node: int
    gpu: str
    gpu_memory_bytes: int
    """Memory that CUDA reports as available."""
    host_memory_bytes_per_node: int | None
    """Null if unknown."""
    cpu_cores_per_node: int
    host_memory_bytes_per_s: float
    """Bandwidth of a node's memory."""
    gpu_link: str
    """Link between the GPUs of a node."""
    gpu_link_bytes_per_s: float | None
    """One way, of a GPU; null if unknown."""
    host_link_bytes_per_s: float | None
    """Link between a GPU and the host, one way; null if unknown."""
    nvme_read_bytes_per_s: float
    nvme_write_bytes_per_s: float
    measured: str
    """Names of the figures that come from a benchmark of this machine; "" if there are none."""


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """A strategy of the ladder with its best plan or its obstacle."""

    strategy: Strategy
    fits: bool
    fit_probability: float
    verdict: Verdict
    reason: str


@dataclass(frozen=True, kw_only=True)
class DeepSpeedFigures:
    """DeepSpeed's own memory estimate; null if DeepSpeed has none for the plan."""

    gpu_bytes: int | None
    host_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class ProbeFigures:
    """A plan that was probed on this machine."""

    plan: PlanFigures
    reason: str
    age_seconds: float | None
    """Null if the probe ran for this answer."""
    result: dict[str, Any]
    """The JSON of `ds-advise probe`, without `figures`."""


@dataclass(frozen=True, kw_only=True)
class ProbesFigures:
    """The probes of an answer."""

    ended: str
    bound: int
    candidates: int
    trials: tuple[ProbeFigures, ...]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The whole answer."""

    schema_version: int
    model: ModelFigures
    workload: WorkloadFigures
    largest: Largest | None
    """Null if no option was "max"."""
    job_basis: tuple[str, ...]
    """Counts from the job's data, and the assumptions about it."""
    risk: Risk
    """Risk level; it sets the least probability of fitting of a recommended plan."""
    cluster: ClusterFigures
    candidates: tuple[PlanFigures, ...]
    """The best plan of each strategy; with --all, every predicted plan."""
    ladder: tuple[StepFigures, ...]
    recommended: PlanFigures | None
    pytorch_baseline: PlanFigures | None
    """The plan of plain PyTorch; present with --sharding fsdp, or if it fits and no DeepSpeed plan does."""
    closest: PlanFigures | None
    """The plan that comes closest to fitting; null if one fits."""
    try_first: PlanFigures | None
    """A much faster plan that only likely fits."""
    reasons: tuple[str, ...]
    doubts: tuple[str, ...]
    assumptions: tuple[str, ...]
    changes: tuple[Change, ...]
    deepspeed_estimate: DeepSpeedFigures | None
    verifications: tuple[dict[str, Any], ...]
    """Dry runs, each with its `strategy` and the fields of `ds-advise dry-run --json`."""
    probes: ProbesFigures | None
    earlier_probes: tuple[ProbeFigures, ...]
    files: tuple[str, ...]
    """Files that were written."""


def build_advice(answer: Recommendation, *, all_candidates: bool = False) -> Advice:
    """Return the answer as data. `candidates` holds the best plan of each strategy, or every candidate."""
    question, series = answer.question, answer.probe_series
    estimate = answer.deepspeed_estimate if answer.shows_deepspeed_estimate else None
    workload, cluster, gpu = question.workload, question.cluster, question.cluster.gpu
    node = cluster if answer.shown is None else answer.shown.node(cluster)
    best = [step.candidate for step in answer.ladder if step.candidate is not None]
    rollouts = workload.rollouts
    reward = rollouts.reward_model.name if rollouts and rollouts.reward_model else None
    return from_attributes(
        Advice,
        answer,
        question,
        schema_version=SCHEMA_VERSION,
        model=from_attributes(ModelFigures, question.model, question),
        workload=from_attributes(
            WorkloadFigures,
            workload,
            quantization=workload.quantization if workload.method == "qlora" else None,
            rollouts=rollouts and asdict(replace(rollouts, reward_model=None)) | {"reward_model": reward},
            software=_keys(asdict(workload.software)),
        ),
        cluster=from_attributes(
            ClusterFigures,
            cluster,
            gpu=gpu.name,
            gpu_memory_bytes=gpu.memory_bytes,
            cpu_cores_per_node=cpu_cores(node),
            host_memory_bytes_per_s=dram_bytes_per_s(node),
            gpu_link=gpu.peer_link,
            gpu_link_bytes_per_s=gpu.peer_bytes_per_s,
            host_link_bytes_per_s=gpu.pcie_bytes_per_s,
            nvme_read_bytes_per_s=nvme_read_bytes_per_s(cluster),
            nvme_write_bytes_per_s=nvme_write_bytes_per_s(cluster),
        ),
        candidates=tuple(
            candidate_figures(question, candidate) for candidate in (answer.candidates if all_candidates else best)
        ),
        ladder=tuple(map(_step, answer.ladder)),
        recommended=answer.recommended and candidate_figures(question, answer.recommended),
        pytorch_baseline=answer.pytorch_baseline and candidate_figures(question, answer.pytorch_baseline),
        closest=None if answer.taken or answer.closest is None else candidate_figures(question, answer.closest),
        try_first=answer.try_first and candidate_figures(question, answer.try_first),
        changes=tuple(answer.changes),
        deepspeed_estimate=estimate and from_attributes(DeepSpeedFigures, estimate),
        verifications=tuple({"strategy": run.strategy, **run.to_json()} for run in answer.verifications),
        probes=series and from_attributes(ProbesFigures, series, trials=tuple(map(_probe, series.probes))),
        earlier_probes=tuple(map(_probe, answer.past_probes)),
    )


def _step(step: LadderStep) -> StepFigures:
    fit = None if step.candidate is None else step.candidate.fit
    return from_attributes(
        StepFigures,
        step,
        fit_probability=0.0 if fit is None else fit.probability,
        verdict="does not fit" if fit is None else fit.verdict,
    )


def _probe(probe: ProbedPlan) -> ProbeFigures:
    return from_attributes(
        ProbeFigures,
        probe,
        plan=plan_figures(probe.candidate),
        age_seconds=probe.age_s,
        result=probe.result.to_json(),
    )


def candidate_figures(question: Question, candidate: Candidate) -> PlanFigures:
    """Return a plan that answers a question, with its utilization and its job."""
    model, workload, cluster = question.model, question.workload, question.cluster
    duration = candidate_duration(question, candidate)
    return plan_figures(
        candidate,
        utilization=model_flops_utilization(model, workload, cluster, candidate.plan, candidate.time),
        job=None if duration is None else job_figures(duration, question.price),
    )


def plan_figures(
    candidate: Candidate, *, utilization: float | None = None, job: JobFigures | None = None
) -> PlanFigures:
    """Return a plan with its figures and verdict."""
    plan, fit, memory, time = candidate.plan, candidate.fit, candidate.memory, candidate.time
    low, high = time.tokens_per_s_range or (None, None)
    return from_attributes(
        PlanFigures,
        plan,
        memory,
        fit,
        candidate.estimate,
        measured_device_bytes_per_gpu=candidate.measured_bytes,
        components=_keys(memory.components),
        step_seconds=time.step_s,
        time_components=_keys(time.components),
        phases=phase_figures(candidate),
        tokens_per_second=time.tokens_per_s,
        tokens_per_second_low=low,
        tokens_per_second_high=high,
        model_flops_utilization=utilization,
        job=job,
        bottleneck=time.bottleneck,
        fit_probability=fit.probability,
    )


def job_figures(duration: JobDuration, price: Price | None) -> JobFigures:
    """Return a job's duration, and its cost if a price is given."""
    low, high = duration.duration_s_range or (None, None)
    cheapest, dearest = (price and duration.cost_range(price)) or (None, None)
    saving = duration.saving
    return from_attributes(
        JobFigures,
        duration,
        tokens=round(duration.tokens),
        mean_sample_tokens=duration.mean_len,
        timed_sample_tokens=duration.timed_len,
        duration_s_low=low,
        duration_s_high=high,
        checkpoints=saving.count,
        checkpoint_bytes=saving.size_bytes,
        checkpoint_write_s=saving.write_s,
        checkpoint_interval_s=saving.interval_s,
        cost=None if price is None else duration.cost(price),
        cost_low=cheapest,
        cost_high=dearest,
        currency="" if price is None else price.currency,
    )


def _keys(values: Mapping[str, Any]) -> dict[str, Any]:
    return {component_key(name): value for name, value in values.items()}
