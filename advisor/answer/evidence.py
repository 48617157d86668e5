"""The evidence for an answer in sentences: dry runs, probes, and DeepSpeed's own estimate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...estimators.phrase import Phrase, listed, phrase
from ..text.labels import batch_label, checkpointing_label
from ..text.units import age, gib, rate, seconds
from .recommendation import Recommendation

if TYPE_CHECKING:
    from ...validate.deepspeed_estimate import DeepSpeedEstimate
    from .dry_run_answer import DryRunAnswer
    from .recommendation import ProbedPlan


ProbeRow = tuple[str, str, str, str]
"""Rung, batch, checkpointing and outcome of a probe."""


def dry_run_sentence(run: DryRunAnswer) -> Phrase:
    """Return the result of a dry run and the prediction as a sentence."""
    peak, memory, time = run.result.peak, run.analytic, run.analytic_time
    assert memory is not None, "it is the run of a predicted plan"
    versions = run.result.versions
    text = phrase(
        "Dry run of {rung} (DeepSpeed {deepspeed}, transformers {transformers}): {verdict}; {allocated} GiB allocated "
        "(predicted: {predicted}), {device} GiB on the device, {host} GiB of host RAM (predicted: {predicted_host})",
        rung=run.rung,
        deepspeed=versions["deepspeed"],
        transformers=versions["transformers"],
        verdict=run.fit.reason,
        allocated=gib(peak.allocated_bytes_per_gpu),
        predicted=gib(memory.allocated_bytes_per_gpu),
        device=gib(run.required_device_bytes_per_gpu),
        host=gib(run.required_host_bytes_per_node),
        predicted_host=gib(memory.host_bytes_per_node),
    )
    if run.step is not None and time is not None:
        text = phrase(
            "{run}; step time {time} from the recorded schedule (predicted: {predicted})",
            run=text,
            time=seconds(run.step.time.step_s),
            predicted=seconds(time.step_s),
        )
    return phrase("{words}.", words=text)


_PROBES_END = {
    "settled": phrase("No other plan can be faster by more than the search resolution."),
    "budget": phrase("The time limit (--budget) ended before all plans were compared."),
    "interrupted": phrase("Interrupted before all plans were compared."),
}


def probes_of(answer: Recommendation) -> tuple[str, tuple[ProbeRow, ...], str]:
    """Return the title of the probes, one row per probe, and why the series ended."""
    series, unit = answer.probe_series, answer.question.model.unit
    if series is None:
        title = phrase("Earlier probes on this machine") if answer.past_probes else ""
        return title, tuple(_probe_row(probe, unit) for probe in answer.past_probes), ""
    title = phrase(
        "Probes on this machine: {runs} of {plans} plans were run (at most {bound})",
        runs=series.runs,
        plans=series.candidates,
        bound=series.bound,
    )
    return title, tuple(_probe_row(probe, unit) for probe in series.probes), _PROBES_END[series.ended]


def _probe_row(probe: ProbedPlan, unit: str) -> ProbeRow:
    plan, failure = probe.candidate.plan, probe.result.failure
    if failure is not None:
        outcome: str = f"{failure.kind.replace('_', ' ')}: {failure.message}"
    elif probe.age_s is None:
        speed, predicted = rate(probe.result.tokens_per_s), rate(probe.candidate.tokens_per_s)
        outcome = phrase("{speed} {unit}/s (predicted {predicted})", speed=speed, predicted=predicted, unit=unit)
    else:
        outcome = phrase("{figure} {unit}/s", figure=rate(probe.result.tokens_per_s), unit=unit)
    reason = probe.reason if probe.age_s is None else age(probe.age_s)
    text = phrase("{outcome}; {reason}", outcome=outcome, reason=reason)
    return plan.rung, batch_label(plan), checkpointing_label(plan), text


def evidence_of(answer: Recommendation) -> Iterator[str]:
    """Yield sentences on the evidence for the answer, and on the runs that would confirm it."""
    cluster, series, chosen = answer.question.cluster, answer.probe_series, answer.recommended
    own = next((probe for probe in answer.past_probes if probe.candidate is chosen and probe.age_s is not None), None)
    if series is not None and series.best is None and chosen is not None:
        yield phrase("Evidence: analytic; no probe finished.")
    elif series is not None:
        yield phrase(
            "Evidence: probes of the real engine on this machine for the speed and the verdict; other plans are "
            "predicted, and corrected by the probe of the most similar plan."
        )
    elif answer.verifications:
        yield phrase("Evidence: dry run of the real engine.")
    elif own is not None and own.age_s is not None:
        yield phrase(
            "Evidence: probe, {age}, for the speed and the verdict; other plans are predicted, and corrected by the "
            "probe of the most similar plan (ds-advise history).",
            age=age(own.age_s),
        )
    elif answer.past_probes:
        yield phrase(
            "Evidence: analytic, corrected by earlier probes of other plans on this machine (ds-advise history). Add "
            "--probe to confirm it with a few real runs."
        )
    elif cluster.gpu.is_cpu:
        yield phrase("Evidence: analytic. Add --probe to confirm it with a few real runs on this machine.")
    else:
        yield phrase("Evidence: analytic. --verify dry-runs the real DeepSpeed engine, without a GPU.")
    if cluster.measured:
        yield phrase("Measured {how}.", how=cluster.measured)


def deepspeed_sentence(estimate: DeepSpeedEstimate, device_bytes: int) -> str:
    """Return DeepSpeed's own figures compared with ours. device_bytes: our prediction for one GPU."""
    if estimate.gpu_bytes is None or estimate.host_bytes is None:
        return phrase(
            "DeepSpeed's {function} could not be called: {problem}.",
            function=estimate.function,
            problem=estimate.problem,
        )
    return phrase(
        "DeepSpeed's {function} gives {gpu} GiB per GPU (ours: {ours}) and {host} GiB of RAM per node. It leaves out "
        "{parts}.",
        function=estimate.function,
        gpu=gib(estimate.gpu_bytes),
        ours=gib(device_bytes),
        host=gib(estimate.host_bytes),
        parts=listed(estimate.leaves_out),
    )
