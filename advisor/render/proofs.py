"""How the answer is known: dry runs, probes now and earlier, and the sentence on the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from ...estimators.phrase import Phrase, phrase
from ..answer.recommendation import Recommendation
from ..text.labels import batch_words, checkpointing_word
from ..text.language import spoken
from ..text.lines import blank, padded, sentence
from ..text.units import age, gib, rate, seconds

if TYPE_CHECKING:
    from ..answer.recommendation import ProbedPlan, ProbeSeries, Verification


def verification(run: Verification) -> Phrase:
    """What a dry run found, beside what was predicted."""
    peak, memory, host = run.dry_run.result.peak, run.candidate.memory, run.dry_run.required_host_bytes_per_node
    versions = run.dry_run.result.versions
    said = phrase(
        "Dry run of {rung} (DeepSpeed {deepspeed}, transformers {transformers}): {verdict}; {allocated} GiB allocated "
        "(predicted: {predicted}), {device} GiB on the device, {host} GiB of host RAM (predicted: {predicted_host})",
        rung=run.candidate.rung,
        deepspeed=versions["deepspeed"],
        transformers=versions["transformers"],
        verdict=run.dry_run.fit.reason,
        allocated=gib(peak.allocated_bytes_per_gpu),
        predicted=gib(memory.allocated_bytes_per_gpu),
        device=gib(run.dry_run.required_device_bytes_per_gpu),
        host=gib(host),
        predicted_host=gib(memory.host_bytes_per_node),
    )
    if run.dry_run.step is not None:
        said = phrase(
            "{run}; a step takes {time} by the schedule that it recorded (predicted: {predicted})",
            run=said,
            time=seconds(run.dry_run.step.time.step_s),
            predicted=seconds(run.candidate.time.step_s),
        )
    return phrase("{words}.", words=said)


_ENDED = {
    "settled": phrase("Nothing that was not run could be faster by more than the search resolves."),
    "budget": phrase("The time was over before everything was settled (--budget)."),
    "interrupted": phrase("Interrupted before everything was settled."),
}


def print_series(series: ProbeSeries, console: Console) -> None:
    """The probes in their order, each with its outcome and the reason for it."""
    blank(console)
    sentence(
        console,
        phrase(
            "Probes on this machine: {runs} of {plans} plans were run (at most {bound})",
            runs=series.runs,
            plans=series.candidates,
            bound=series.bound,
        ),
        style="bold",
    )
    for probe in series.probes:
        print_probe(probe, console)
    sentence(console, _ENDED[series.ended])


def print_probe(probe: ProbedPlan, console: Console) -> None:
    """One line of a probe that was made now or earlier."""
    plan, failure = probe.candidate.plan, probe.result.failure
    if failure is not None:
        outcome: str = f"{failure.kind.replace('_', ' ')}: {failure.message}"
    elif probe.age_s is None:
        predicted = rate(probe.candidate.tokens_per_s)
        speed = rate(probe.result.tokens_per_s)
        outcome = phrase("{speed} tokens/s (predicted {predicted})", speed=speed, predicted=predicted)
    else:
        outcome = phrase("{figure} tokens/s", figure=rate(probe.result.tokens_per_s))
    reason = probe.reason if probe.age_s is None else age(probe.age_s)
    told = phrase("{outcome}; {reason}", outcome=outcome, reason=reason)
    word = padded(spoken(checkpointing_word(plan)), 4)
    sentence(console, f"  {plan.rung:<19} {batch_words(plan):>5} {word}  {spoken(told)}", hang=34)


def evidence_sentence(answer: Recommendation) -> str:
    """How the answer is known, and what would settle it."""
    if answer.probe_series is not None and answer.probe_series.best is None and answer.recommended is not None:
        return phrase("Evidence: analytic; no probe came to its end.")
    if answer.probe_series is not None:
        return phrase(
            "Evidence: probes of the real engine on this machine for the speed and the verdict; other plans are "
            "predicted, and corrected by the probe of the plan most like them."
        )
    if answer.verifications:
        return phrase("Evidence: dry run of the real engine.")
    if answer.past_probes:
        return _earlier_evidence(answer)
    cluster = answer.question.cluster
    if cluster.gpu.is_cpu:
        return phrase("Evidence: analytic. Settle it by a few real runs on this machine: add --probe.")
    return phrase(
        "Evidence: analytic. Prove it without a GPU, by a dry run of the real DeepSpeed engine: add --verify."
    )


def _earlier_evidence(answer: Recommendation) -> str:
    """Of an answer that was not probed now."""
    chosen = answer.recommended
    for probe in answer.past_probes:
        if probe.candidate is chosen and probe.age_s is not None:
            return phrase(
                "Evidence: probe, {age}, for the speed and the verdict; other plans are predicted, and corrected by "
                "the probe of the plan most like them (ds-advise history).",
                age=age(probe.age_s),
            )
    return phrase(
        "Evidence: analytic, corrected by earlier probes of other plans on this machine (ds-advise history). Settle it "
        "by a few real runs: add --probe."
    )
