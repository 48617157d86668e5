"""The answer as one JSON object; the shape is part of the public interface (`schema_version`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ...ds_configs.launch_commands import threads_setting
from ...estimators.estimate import Evidence
from ...estimators.hardware.host_defaults import threads_per_rank
from ...estimators.plan import Offload, PlainPyTorch, Rung
from ...estimators.time.utilization import model_flops_utilization
from ...estimators.workload import AttentionKernel, Framework, LayerKernels, LossKernel, Method, Precision, Quantization
from ..question.question import Question, Risk
from ..search.candidate import Candidate, LadderStep, Verdict, duration_of
from .job import JobJson, job_json
from .reasons import slower_without_threads
from .recommendation import Recommendation

if TYPE_CHECKING:
    from .evidence import ProbedPlan

SCHEMA_VERSION = 1


class CandidateJson(TypedDict):
    """A plan with its figures and the verdict on it."""

    rung: Rung | PlainPyTorch
    zero_stage: int
    offload_optimizer: Offload
    offload_optimizer_ratio: float
    """Share of an offloaded optimizer that is on the host."""
    offload_param: Offload
    bf16_master_weights_and_grads: bool
    bf16_optimizer_states: bool
    sequence_parallel_size: int
    """GPUs that share each sample."""
    autotp_size: int
    """GPUs that split each layer."""
    autoep_size: int
    """GPUs that experts are spread over."""
    zero_hpz_partition_size: int
    """GPUs that keep a second copy of the weights together."""
    zero_quantized_weights: bool
    """Weights are gathered in 8 bits."""
    zero_quantized_gradients: bool
    """Gradients travel in 4 bits."""
    gradient_checkpointing: bool
    cpu_checkpointing: bool
    """What checkpointing keeps of each layer waits in host RAM."""
    micro_batch_size: int
    gradient_accumulation_steps: int
    allocated_bytes_per_gpu: int
    """Peak of live tensors."""
    reserved_bytes_per_gpu: int
    """What the caching allocator must hold."""
    device_bytes_per_gpu: int
    """Reserved, the CUDA context and NCCL; judged against the GPU's memory."""
    measured_device_bytes_per_gpu: int | None
    """By a probe's measurement."""
    host_bytes_per_node: int
    host_pinned_bytes_per_node: int
    nvme_bytes_per_node: int
    components: dict[str, int]
    """Bytes by name; they add up to device_bytes_per_gpu."""
    step_seconds: float
    time_components: dict[str, float]
    """Seconds by name; they add up to step_seconds."""
    tokens_per_second: float
    tokens_per_second_low: float | None
    """The interval to tokens_per_second_high holds four of five true speeds."""
    tokens_per_second_high: float | None
    model_flops_utilization: float | None
    """The model's own FLOPs over the peak of the GPUs (MFU); null where no peak is published or it was not asked."""
    job: JobJson | None
    """The whole training under this plan; null where nobody said how much is trained."""
    bottleneck: str
    fits: bool
    fit_probability: float
    verdict: Verdict
    reason: str
    evidence: Evidence


class ModelJson(TypedDict):
    """The model that was asked about."""

    name: str
    parameters: int
    trainable_parameters: int


class WorkloadJson(TypedDict):
    """The training that was asked about."""

    method: Method
    quantization: Quantization | None
    modules_to_save: list[str]
    """Embeddings and heads that train whole beside adapters."""
    seq_len: int
    precision: Precision
    optimizer: str
    global_batch_size: int | None
    """Null: left to the search."""
    attention: AttentionKernel
    loss: LossKernel
    mlp: str
    kernels: LayerKernels
    document_len: int | None
    """Null: a sample is one document."""
    framework: Framework
    software: dict[str, Any]


class LargestJson(TypedDict):
    """What was found for the option that was "max"."""

    option: Literal["seq_len", "micro_batch", "model_size"]
    value: int | str | None
    """The largest with which a plan may be recommended; null: not even the smallest."""
    too_large: int | str | None
    """The smallest that was found too large; null: there is none larger."""


class ClusterJson(TypedDict):
    """The machines that were asked about."""

    nodes: int
    gpus_per_node: int
    gpu: str
    gpu_memory_bytes: int
    """What CUDA offers."""
    host_memory_bytes_per_node: int | None
    """Null: unknown."""
    measured: str
    """Which figures a benchmark of this machine gave; "" for none."""


class StepJson(TypedDict):
    """A rung of the ladder."""

    rung: Rung
    fits: bool
    fit_probability: float
    verdict: Verdict
    reason: str


class HostThreadsJson(TypedDict):
    """Threads of a step on the host."""

    threads_per_rank: int
    setting: str
    """For a shell."""
    step_times_without: dict[str, float]
    """By launcher: how many times as long a step takes where OMP_NUM_THREADS is not set."""


class ChangeJson(TypedDict):
    """Something that would change the answer."""

    flags: str
    outcome: str


class DeepSpeedEstimateJson(TypedDict):
    """DeepSpeed's own figures; null where it has none for the plan."""

    gpu_bytes: int | None
    host_bytes: int | None


class ProbedPlanJson(TypedDict):
    """A plan that ran on this machine."""

    plan: CandidateJson
    reason: str
    age_seconds: float | None
    """Null: it ran for this answer."""
    result: dict[str, Any]
    """As of `ds-advise probe --json`, without `figures`."""


class ProbesJson(TypedDict):
    """The probes that settled an answer."""

    ended: str
    bound: int
    candidates: int
    trials: list[ProbedPlanJson]


class AdviceJson(TypedDict):
    """The whole answer."""

    schema_version: int
    model: ModelJson
    workload: WorkloadJson
    largest: LargestJson | None
    """Null where no option was "max"."""
    job_basis: list[str]
    """What was counted in the job's data, and what was taken for granted."""
    risk: Risk
    """How sure it must be that a plan fits for it to be recommended."""
    cluster: ClusterJson
    candidates: list[CandidateJson]
    """Every rung's best plan; with --all every plan that was predicted."""
    ladder: list[StepJson]
    recommended: CandidateJson | None
    beside: CandidateJson | None
    """Plain PyTorch's plan, with --sharding fsdp."""
    try_first: CandidateJson | None
    """A plan that is only likely to fit, and much faster."""
    host_threads: HostThreadsJson | None
    """Null where the optimizer steps on the device."""
    reasons: list[str]
    doubts: list[str]
    assumptions: list[str]
    changes: list[ChangeJson]
    deepspeed_estimate: DeepSpeedEstimateJson | None
    verifications: list[dict[str, Any]]
    """Dry runs, each with its `rung` and the fields of `ds-advise dry-run --json`."""
    probes: ProbesJson | None
    earlier_probes: list[ProbedPlanJson]
    files: list[str]
    """Files that were written."""


def json_form(answer: Recommendation, *, all_candidates: bool = False) -> AdviceJson:
    """The recommendation as JSON types. `candidates` holds every rung's best plan, or every candidate."""
    question = answer.question
    model, workload, cluster = question.model, question.workload, question.cluster
    shown = (
        answer.candidates
        if all_candidates
        else [step.candidate for step in answer.ladder if step.candidate is not None]
    )
    estimate = answer.deepspeed_estimate
    return {
        "schema_version": SCHEMA_VERSION,
        "model": {
            "name": model.name,
            "parameters": model.parameters,
            "trainable_parameters": question.trainable_parameters,
        },
        "workload": {
            "method": workload.method,
            "quantization": workload.quantization if workload.method == "qlora" else None,
            "modules_to_save": list(workload.modules_to_save),
            "seq_len": workload.seq_len,
            "precision": workload.precision,
            "optimizer": workload.optimizer,
            "global_batch_size": workload.global_batch_size,
            "attention": workload.attention,
            "loss": workload.loss,
            "mlp": workload.mlp,
            "kernels": workload.kernels,
            "document_len": workload.document_len,
            "framework": workload.framework,
            "software": _keys(asdict(workload.software)),
        },
        "largest": _largest(question),
        "job_basis": list(question.job_basis),
        "risk": question.risk,
        "cluster": {
            "nodes": cluster.nodes,
            "gpus_per_node": cluster.gpus_per_node,
            "gpu": cluster.gpu.name,
            "gpu_memory_bytes": cluster.gpu.memory_bytes,
            "host_memory_bytes_per_node": cluster.host_memory_bytes_per_node,
            "measured": cluster.measured,
        },
        "candidates": [_candidate(question, candidate) for candidate in shown],
        "ladder": [_step(step) for step in answer.ladder],
        "recommended": None if answer.recommended is None else _candidate(question, answer.recommended),
        "beside": None if answer.beside is None else _candidate(question, answer.beside),
        "try_first": None if answer.try_first is None else _candidate(question, answer.try_first),
        "host_threads": None if answer.recommended is None else _host_threads(question, answer.recommended),
        "reasons": list(answer.reasons),
        "doubts": list(answer.doubts),
        "assumptions": list(answer.assumptions),
        "changes": [{"flags": change.flags, "outcome": change.outcome} for change in answer.changes],
        "deepspeed_estimate": None
        if estimate is None
        else {"gpu_bytes": estimate.gpu_bytes, "host_bytes": estimate.host_bytes},
        "verifications": [{"rung": run.candidate.rung, **run.dry_run.to_json()} for run in answer.verifications],
        "probes": None
        if answer.probe_series is None
        else {
            "ended": answer.probe_series.ended,
            "bound": answer.probe_series.bound,
            "candidates": answer.probe_series.candidates,
            "trials": [_probed_plan(probe) for probe in answer.probe_series.probes],
        },
        "earlier_probes": [_probed_plan(probe) for probe in answer.past_probes],
        "files": list(answer.files),
    }


def _step(step: LadderStep) -> StepJson:
    candidate = step.candidate
    return {
        "rung": step.rung,
        "fits": step.fits,
        "fit_probability": 0.0 if candidate is None else candidate.fit.probability,
        "verdict": "does not fit" if candidate is None else candidate.fit.verdict,
        "reason": step.reason,
    }


def _host_threads(question: Question, chosen: Candidate) -> HostThreadsJson | None:
    """The threads that the step on the host is predicted with, and what the launchers' own choices cost."""
    slower = slower_without_threads(question, chosen)
    if not slower:
        return None
    return {
        "threads_per_rank": threads_per_rank(question.cluster),
        "setting": threads_setting(question.cluster),
        "step_times_without": {str(launcher): ratio for launcher, ratio in slower.items()},
    }


def _largest(question: Question) -> LargestJson | None:
    found = question.largest
    if found is None:
        return None
    return {"option": found.option, "value": found.value, "too_large": found.too_large}


def _keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Component names as JSON keys: `gradient of logits` -> `gradient_of_logits`."""
    return {name.lower().replace(" ", "_").replace("-", "_"): value for name, value in values.items()}


def _probed_plan(probe: ProbedPlan) -> ProbedPlanJson:
    return {
        "plan": candidate_json(probe.candidate),
        "reason": probe.reason,
        "age_seconds": probe.age_s,
        "result": probe.result.to_json(),
    }


def _candidate(question: Question, candidate: Candidate) -> CandidateJson:
    """A plan with what the question asks of it."""
    model, workload, cluster = question.model, question.workload, question.cluster
    utilization = model_flops_utilization(model, workload, cluster, candidate.plan, candidate.time)
    duration = duration_of(question, candidate)
    job = None if duration is None else job_json(duration, question.price)
    return candidate_json(candidate, utilization=utilization, job=job)


def candidate_json(
    candidate: Candidate, *, utilization: float | None = None, job: JobJson | None = None
) -> CandidateJson:
    """A plan with its figures and the verdict on it."""
    estimate, plan = candidate.estimate, candidate.plan
    memory, time = estimate.memory, estimate.time
    low, high = time.tokens_per_s_range or (None, None)
    return {
        "rung": plan.rung,
        "zero_stage": plan.zero_stage,
        "offload_optimizer": plan.offload_optimizer,
        "offload_optimizer_ratio": plan.offload_optimizer_ratio,
        "offload_param": plan.offload_param,
        "bf16_master_weights_and_grads": plan.bf16_master_weights_and_grads,
        "bf16_optimizer_states": plan.bf16_optimizer_states,
        "sequence_parallel_size": plan.sequence_parallel_size,
        "autotp_size": plan.autotp_size,
        "autoep_size": plan.autoep_size,
        "zero_hpz_partition_size": plan.zero_hpz_partition_size,
        "zero_quantized_weights": plan.zero_quantized_weights,
        "zero_quantized_gradients": plan.zero_quantized_gradients,
        "gradient_checkpointing": plan.gradient_checkpointing,
        "cpu_checkpointing": plan.cpu_checkpointing,
        "micro_batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "allocated_bytes_per_gpu": memory.allocated_bytes_per_gpu,
        "reserved_bytes_per_gpu": memory.reserved_bytes_per_gpu,
        "device_bytes_per_gpu": memory.device_bytes_per_gpu,
        "measured_device_bytes_per_gpu": candidate.measured_bytes,
        "host_bytes_per_node": memory.host_bytes_per_node,
        "host_pinned_bytes_per_node": memory.host_pinned_bytes_per_node,
        "nvme_bytes_per_node": memory.nvme_bytes_per_node,
        "components": _keys(memory.components),
        "step_seconds": time.step_s,
        "time_components": _keys(time.components),
        "tokens_per_second": time.tokens_per_s,
        "tokens_per_second_low": low,
        "tokens_per_second_high": high,
        "model_flops_utilization": utilization,
        "job": job,
        "bottleneck": time.bottleneck,
        "fits": candidate.fit.fits,
        "fit_probability": candidate.fit.probability,
        "verdict": candidate.fit.verdict,
        "reason": candidate.fit.reason,
        "evidence": estimate.evidence,
    }
