"""The answer as one JSON object; the shape is part of the public interface (`schema_version`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...ds_configs.launch_commands import threads_setting
from ...estimators.hardware.host_defaults import threads_per_rank
from ..question.question import Question
from .candidate import Candidate, LadderStep
from .reasons import slower_without_threads
from .recommendation import Recommendation

if TYPE_CHECKING:
    from .evidence import ProbedPlan

SCHEMA_VERSION = 1


def json_form(answer: Recommendation, *, all_candidates: bool = False) -> dict[str, Any]:
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
        "risk": question.risk,
        "cluster": {
            "nodes": cluster.nodes,
            "gpus_per_node": cluster.gpus_per_node,
            "gpu": cluster.gpu.name,
            "gpu_memory_bytes": cluster.gpu.memory_bytes,
            "host_memory_bytes_per_node": cluster.host_memory_bytes_per_node,
            "measured": cluster.measured,
        },
        "candidates": [candidate_json(candidate) for candidate in shown],
        "ladder": [_step(step) for step in answer.ladder],
        "recommended": None if answer.recommended is None else candidate_json(answer.recommended),
        "beside": None if answer.beside is None else candidate_json(answer.beside),
        "try_first": None if answer.try_first is None else candidate_json(answer.try_first),
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


def _step(step: LadderStep) -> dict[str, Any]:
    candidate = step.candidate
    return {
        "rung": step.rung,
        "fits": step.fits,
        "fit_probability": 0.0 if candidate is None else candidate.fit.probability,
        "verdict": "does not fit" if candidate is None else candidate.fit.verdict,
        "reason": step.reason,
    }


def _host_threads(question: Question, chosen: Candidate) -> dict[str, Any] | None:
    """The threads that the step on the host is predicted with, and what the launchers' own choices cost."""
    slower = slower_without_threads(question, chosen)
    if not slower:
        return None
    return {
        "threads_per_rank": threads_per_rank(question.cluster),
        "setting": threads_setting(question.cluster),
        "step_times_without": slower,
    }


def _keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Component names as JSON keys: `gradient of logits` -> `gradient_of_logits`."""
    return {name.lower().replace(" ", "_").replace("-", "_"): value for name, value in values.items()}


def _probed_plan(probe: ProbedPlan) -> dict[str, Any]:
    return {
        "plan": candidate_json(probe.candidate),
        "reason": probe.reason,
        "age_seconds": probe.age_s,
        "result": probe.result.to_json(),
    }


def candidate_json(candidate: Candidate) -> dict[str, Any]:
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
        "zero_hpz_partition_size": plan.zero_hpz_partition_size,
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
        "bottleneck": time.bottleneck,
        "fits": candidate.fit.fits,
        "fit_probability": candidate.fit.probability,
        "verdict": candidate.fit.verdict,
        "reason": candidate.fit.reason,
        "evidence": estimate.evidence,
    }
