"""The evidence for an answer in sentences: dry runs, probes, and DeepSpeed's own estimate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...probes.dry_run.supported import unknown_kernels
from ..document.blocks import Block, Figure, Heading, Row, Sentence, Table
from ..text.labels import batch_label, checkpointing_label
from ..text.units import age, gib, rate, seconds
from .recommendation import Recommendation

if TYPE_CHECKING:
    from ...validate.deepspeed_estimate import DeepSpeedEstimate
    from .dry_run_answer import DryRunAnswer
    from .recommendation import ProbedPlan


def dry_run_sentence(run: DryRunAnswer) -> str:
    """Return the result of a dry run and the prediction as a sentence."""
    peak, memory, time = run.result.peak, run.analytic, run.analytic_time
    assert memory is not None, "it is the run of a predicted plan"
    versions = run.result.versions
    text = (
        f"Dry run of {run.strategy} (DeepSpeed {versions['deepspeed']}, transformers {versions['transformers']}): "
        f"{run.fit.reason}; {gib(peak.allocated_bytes_per_gpu)} GiB allocated (predicted: "
        f"{gib(memory.allocated_bytes_per_gpu)}), {gib(run.required_device_bytes_per_gpu)} GiB on the device, "
        f"{gib(run.required_host_bytes_per_node)} GiB of host RAM (predicted: {gib(memory.host_bytes_per_node)})"
    )
    if run.step is not None and time is not None:
        text = (
            f"{text}; step time {seconds(run.step.time.step_s)} from the recorded schedule (predicted: "
            f"{seconds(time.step_s)})"
        )
    return f"{text}."


_PROBES_END = {
    "settled": "No other plan can be faster by more than the search resolution.",
    "budget": "The time limit (--budget) ended before all plans were compared.",
    "interrupted": "Interrupted before all plans were compared.",
}


def probe_blocks(answer: Recommendation) -> Iterator[Block]:
    """Yield the probes, one row for each, and why the series ended."""
    series, probes, unit = answer.probe_series, answer.past_probes, answer.question.model.unit
    title = "Earlier probes on this machine"
    if series is not None:
        probes = series.probes
        title = f"Probes on this machine: {series.runs} of {series.candidates} plans were run (at most {series.bound})"
    if series is not None or probes:
        yield Heading(title, "probes")
        yield Table([""] * 4, [_probe_row(probe, unit) for probe in probes], [21, 5, 4, 0], gap=1)
    if series is not None:
        yield Sentence(_PROBES_END[series.ended])


def _probe_row(probe: ProbedPlan, unit: str) -> Row:
    plan, failure = probe.candidate.plan, probe.result.failure
    if failure is not None:
        outcome = f"{failure.kind.replace('_', ' ')}: {failure.message}"
    else:
        outcome = f"{rate(probe.result.tokens_per_s)} {unit}/s"
        if probe.age_s is None:
            outcome = f"{outcome} (predicted {rate(probe.candidate.tokens_per_s)})"
    reason = probe.reason if probe.age_s is None else age(probe.age_s)
    settings = (Figure(batch_label(plan)), Figure(checkpointing_label(plan)))
    return Row([f"  {plan.strategy}", *settings, f" {outcome}; {reason}"])


def evidence_sentences(answer: Recommendation) -> Iterator[str]:
    """Yield sentences on the evidence for the answer, and on the runs that would confirm it."""
    cluster, series, chosen = answer.question.cluster, answer.probe_series, answer.recommended
    own = next((probe for probe in answer.past_probes if probe.candidate is chosen and probe.age_s is not None), None)
    if series is not None and series.best is None and chosen is not None:
        yield "Evidence: analytic; no probe finished."
    elif series is not None:
        yield (
            "Evidence: probes of the real engine on this machine for the speed and the verdict; other plans are "
            "predicted, and corrected by the probe of the most similar plan."
        )
    elif answer.verifications:
        yield "Evidence: dry run of the real engine."
    elif own is not None and own.age_s is not None:
        yield (
            f"Evidence: probe, {age(own.age_s)}, for the speed and the verdict; other plans are predicted, and "
            "corrected by the probe of the most similar plan (ds-advise history)."
        )
    elif answer.past_probes:
        advice = " Add --probe to confirm it with a few real runs." if chosen is not None else ""
        yield (
            "Evidence: analytic, corrected by earlier probes of other plans on this machine (ds-advise history)."
            f"{advice}"
        )
    elif cluster.gpu.is_cpu:
        advice = " Add --probe to confirm it with a few real runs on this machine." if chosen is not None else ""
        yield f"Evidence: analytic.{advice}"
    elif answer.taken is not chosen:  # plain PyTorch's plan: neither a dry run nor a probe is of it
        yield "Evidence: analytic."
    elif unknown_kernels(answer.question.workload):
        yield "Evidence: analytic. --probe runs the real engine on this machine's GPUs."
    else:
        yield "Evidence: analytic. --verify dry-runs the real DeepSpeed engine, without a GPU."
    if cluster.measured:
        yield f"Measured {cluster.measured}."


def deepspeed_sentence(estimate: DeepSpeedEstimate, device_bytes: int) -> str:
    """Return DeepSpeed's own figures compared with ours. device_bytes: our prediction for one GPU."""
    if estimate.gpu_bytes is None or estimate.host_bytes is None:
        return f"DeepSpeed's {estimate.function} could not be called: {estimate.problem}."
    counts = f"counts {'; '.join(estimate.counts)}. It " if estimate.counts else ""
    return (
        f"DeepSpeed's {estimate.function} gives {gib(estimate.gpu_bytes)} GiB per GPU (ours: {gib(device_bytes)}) and "
        f"{gib(estimate.host_bytes)} GiB of RAM per node. It {counts}leaves out {', '.join(estimate.leaves_out)}."
    )
