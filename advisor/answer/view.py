"""The answer for people: the sentences, rows and figures that the terminal, Markdown, the HTML report and the page
draw.

Texts are English; those that are a `Phrase` can be translated when they are drawn (`text.language.translate`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...estimators.estimate import MemoryEstimate
from ...estimators.objectives import OBJECTIVES
from ...estimators.phrase import Phrase, phrase
from ...estimators.time.flops import model_flops_utilization, peak_flops_per_s
from ..question.question import Question
from ..search.candidate import NEEDS_RAM, Candidate, chance, duration_of
from ..text.job import hours, money, parts_sentences, price_label
from ..text.labels import batch_label, checkpointing_label, device_label, phase_title, plan_title, shape_label
from ..text.units import amount, gib, percent, rate, rough_rate, seconds
from .evidence import ProbeRow, deepspeed_sentence, dry_run_sentence, evidence_of, probe_row, probes_of
from .phases import phase_sentences
from .reasons import time_shares
from .recommendation import Changes, Recommendation
from .start import Block, next_steps, recommended_config
from .verdict import Verdict, subject_of, verdict_of

_LARGE_SHARE, _SMALL_SHARE = 0.1, 0.01
"""Shares of a step that are named without `details`, and with them."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A headline figure of the recommended plan."""

    name: Literal["speed", "gpu", "ram", "batch", "step", "job"]
    title: str
    value: str
    unit: str
    note: str = ""
    more: str = ""
    share: float | None = None
    """The used share of the capacity; None where that is unknown or unbounded."""


@dataclass(frozen=True, kw_only=True)
class LadderRow:
    """A plan of the ladder, or a rung that has none; a cell is "" where there is nothing to show."""

    candidate: Candidate | None
    rung: str
    batch: str = ""
    """`2x8`: micro batch and accumulation steps."""
    shape: str = ""
    """`micro batch 2 x 8, checkpointing on`."""
    checkpointing: str = ""
    gpu_gib: str = ""
    ram_gib: str = ""
    nvme_gib: str = ""
    tokens_per_s: str = ""
    """"" for a plan that does not fit the GPU."""
    verdict: str
    is_chosen: bool = False
    """Recommended, or the closest where nothing fits."""
    fits: bool = False


@dataclass(frozen=True, kw_only=True)
class AnswerView:
    """Everything that people are shown; "" and empty tuples stand for what an answer does not have."""

    verdict: Verdict
    subject: tuple[str, str]
    """The model; its training and the machines."""
    figures: tuple[Figure, ...]
    columns: Mapping[str, str]
    """Titles of the ladder's columns, by field of `LadderRow`."""
    ladder: tuple[LadderRow, ...]
    ladder_notes: tuple[str, ...]
    memory: str
    """Title of `memory_parts`."""
    memory_parts: Mapping[str, int]
    """Bytes by component of the recommended plan, or of the closest."""
    phases: tuple[str, ...]
    """Rollout, scoring and training, where completions are generated."""
    time: str
    """Where the time of a step goes."""
    job: tuple[str, ...]
    """What the duration of the whole job consists of."""
    utilization: str
    """MFU."""
    reasons: tuple[str, ...]
    pytorch_baseline: str
    dry_runs: tuple[str, ...]
    probes: str
    """Title of `probe_rows`."""
    probe_rows: tuple[ProbeRow, ...]
    probes_end: str
    deepspeed_estimate: str
    change_rows: Changes
    changes_title: str
    no_changes: str
    """A sentence in place of `changes_title` where there are none; "" where none are needed."""
    evidence: tuple[str, ...]
    assumptions: tuple[str, ...]
    files: tuple[str, ...]
    """Files that were written."""
    config: dict[str, Any] | None
    """The recommended DeepSpeed configuration."""
    steps: tuple[Block, ...]
    """What to do next."""

    @property
    def changes(self) -> str:
        """The title of the changes or, once they were searched for, that there are none."""
        return self.changes_title if self.change_rows else self.no_changes


def host_parts(memory: MemoryEstimate) -> dict[str, int]:
    """Bytes of host RAM per node by component; they add up to `host_bytes_per_node`."""
    sizes = Counter({"loading the model": memory.host_bytes_per_node - memory.host_training_bytes_per_node})
    for term in (*memory.host_pinned_terms, *memory.host_pageable_terms):
        sizes[term.name] += term.size_bytes
    return +sizes


def view_of(
    answer: Recommendation,
    *,
    config_path: str = "ds_config.json",
    all_candidates: bool = False,
    details: bool = False,
) -> AnswerView:
    """The answer as people are shown it.

    config_path: the file that commands name, written or not.
    all_candidates: every predicted plan in the ladder, not only each rung's best.
    details: with smaller shares of the step's time, all of the script's lines and every launcher's command.
    """
    question, chosen, series = answer.question, answer.recommended, answer.probe_series
    shown = answer.shown
    estimate = answer.deepspeed_estimate
    ladder = tuple(_ladder(answer, all_candidates=all_candidates))
    least_share = _SMALL_SHARE if details else _LARGE_SHARE
    probes_title, probes, probes_end = probes_of(answer)
    return AnswerView(
        verdict=verdict_of(answer),
        subject=subject_of(question),
        figures=() if chosen is None else tuple(_figures(question, chosen)),
        columns={
            **(_CPU_COLUMNS if question.cluster.gpu.is_cpu else _COLUMNS),
            "tokens_per_s": f"{question.model.unit}/s",
        },
        ladder=ladder,
        ladder_notes=tuple(_ladder_notes(question, [row.candidate for row in ladder if row.candidate], details)),
        memory="" if shown is None else _memory_title(shown, device_label(question.cluster)),
        memory_parts={} if shown is None else shown.memory.components,
        phases=() if chosen is None else tuple(phase_sentences(question, chosen)),
        time="" if chosen is None else step_time(chosen, least_share),
        job=() if chosen is None else tuple(_job_parts(question, chosen)),
        utilization="" if chosen is None else _utilization(question, chosen),
        reasons=answer.reasons,
        pytorch_baseline=_pytorch_baseline(answer),
        dry_runs=tuple(dry_run_sentence(run) for run in answer.verifications),
        probes=probes_title,
        probe_rows=tuple(probe_row(probe, question.model.unit) for probe in probes),
        probes_end=probes_end,
        deepspeed_estimate=deepspeed_sentence(estimate, shown.device_bytes) if estimate and shown else "",
        change_rows=answer.changes,
        changes_title=_changes_title(answer, has_probes=bool(series or answer.past_probes)),
        no_changes=_no_changes(answer),
        evidence=tuple(evidence_of(answer)),
        assumptions=answer.assumptions,
        files=answer.files,
        config=recommended_config(answer),
        steps=tuple(next_steps(answer, config_path, details=details)),
    )


def step_time(chosen: Candidate, least_share: float) -> Phrase:
    """Where the time of a step goes, by parts of at least a share."""
    shares = time_shares(chosen.time, least=least_share)
    return phrase("Where the {time} of a step go: {shares}.", time=seconds(chosen.time.step_s), shares=shares)


def _figures(question: Question, chosen: Candidate) -> Iterator[Figure]:
    plan, memory, cluster = chosen.plan, chosen.memory, question.cluster
    ranks, device, have = cluster.world_size, device_label(cluster), cluster.host_memory_bytes_per_node
    between = chosen.time.tokens_per_s_range
    samples, steps = plan.samples_per_step(ranks), plan.gradient_accumulation_steps
    duration, price = duration_of(question, chosen), question.price
    yield Figure(
        name="speed",
        title="Speed",
        value=rate(chosen.tokens_per_s),
        unit=f"{question.model.unit}/s",
        note=f"{rough_rate(between[0])} to {rough_rate(between[1])}" if between else "",
        more=f"{rate(chosen.tokens_per_s / ranks)} per {device}" if ranks > 1 else "",
    )
    yield Figure(
        name="gpu",
        title=f"Memory per {device}",
        value=gib(chosen.device_bytes),
        unit=f"of {gib(cluster.gpu.memory_bytes)} GiB",
        note=f"fits with {chance(chosen.fit.probability)}",
        share=chosen.device_bytes / cluster.gpu.memory_bytes,
    )
    nvme = f"{gib(memory.nvme_bytes_per_node)} GiB of NVMe" if memory.nvme_bytes_per_node else ""
    yield Figure(
        name="ram",
        title="Host RAM" + (" per node" if cluster.nodes > 1 else ""),
        value=gib(memory.host_bytes_per_node),
        unit="GiB" if have is None else f"of {gib(have)} GiB",
        note=nvme or ("required: the RAM is unknown" if have is None else ""),
        share=None if have is None else memory.host_bytes_per_node / have,
    )
    yield Figure(
        name="batch",
        title="Batch",
        value=f"{samples:,}",
        unit=f"{OBJECTIVES[question.workload.objective].sample}{'s' * (samples != 1)} a step",
        note=f"micro batch {plan.micro_batch_size}"
        + (f" x {steps} steps" if steps > 1 else "")
        + (f", shared by {plan.ranks_per_sample}" if plan.ranks_per_sample > 1 else ""),
        more=f"checkpointing {checkpointing_label(plan)}",
    )
    yield Figure(
        name="step",
        title="One step",
        value=seconds(chosen.time.step_s),
        unit="",
        note=f"{chosen.time.tokens_per_step:,} {question.model.unit}",
    )
    if duration is not None:
        cost = ""
        if price is not None:
            cost = f"{money(duration.cost(price), price.currency)} at {price_label(price)}"
        yield Figure(
            name="job",
            title="The whole job",
            value=hours(duration.duration_s),
            unit="",
            note=cost or f"{duration.steps:,} steps",
        )


# The ladder.

_COLUMNS = {
    "rung": phrase("strategy"),
    "batch": phrase("batch"),
    "checkpointing": phrase("ckpt"),
    "gpu_gib": phrase("GPU GiB"),
    "ram_gib": phrase("RAM GiB"),
    "nvme_gib": "NVMe",
    "tokens_per_s": "tokens/s",
}
_CPU_COLUMNS = {**_COLUMNS, "gpu_gib": "GiB"}


def _ladder(answer: Recommendation, *, all_candidates: bool) -> Iterator[LadderRow]:
    """A row for each rung: its best plan, or every predicted plan, or why it cannot run; then plain PyTorch's."""
    for step in answer.ladder:
        if step.candidate is None:
            yield LadderRow(candidate=None, rung=step.rung, verdict=step.reason)
            continue
        for candidate in answer.candidates if all_candidates else (step.candidate,):
            if candidate.rung == step.rung:
                yield _row(candidate, is_chosen=candidate is answer.shown)
    if answer.pytorch_baseline is not None:
        yield _row(answer.pytorch_baseline, is_chosen=False)


def _row(candidate: Candidate, *, is_chosen: bool) -> LadderRow:
    plan, memory = candidate.plan, candidate.memory
    return LadderRow(
        candidate=candidate,
        rung=plan.rung,
        batch=batch_label(plan),
        shape=shape_label(plan),
        checkpointing=checkpointing_label(plan),
        gpu_gib=gib(candidate.device_bytes),
        ram_gib=gib(memory.host_bytes_per_node),
        nvme_gib=gib(memory.nvme_bytes_per_node) if memory.nvme_bytes_per_node else "",
        tokens_per_s=rate(candidate.tokens_per_s) if candidate.fit.gpu_likely_suffices else "",
        verdict=candidate.fit.reason,
        is_chosen=is_chosen,
        fits=candidate.fit.fits,
    )


def _ladder_notes(question: Question, shown: list[Candidate], details: bool) -> Iterator[str]:
    cluster, length = question.cluster, question.model.fixed_len
    if length and length > 1:
        yield phrase("tokens/s: every sample is {tokens} tokens", tokens=length)
    if any(candidate.plan.ranks_per_sample > 1 for candidate in shown):
        yield phrase(
            "batch: micro batch / {device}s that share it x accumulation; RAM, NVMe: per node",
            device=device_label(cluster),
        )
    elif details:
        yield phrase("batch: micro batch x accumulation; ckpt: checkpointing; RAM, NVMe: per node")
    if any(candidate.fit.reason == NEEDS_RAM for candidate in shown):
        yield phrase(
            "needs --ram: state it where a host has more than {most} GiB",
            most=gib(question.cluster.most_host_bytes_per_node),
        )
    if any(candidate.fit.reason.endswith("%") for candidate in shown):
        yield phrase("%: the probability that it fits (--risk)")


def _pytorch_baseline(answer: Recommendation) -> str:
    plain, chosen = answer.pytorch_baseline, answer.recommended
    if plain is None:
        return ""
    text = phrase("{plan} needs {need} GiB per GPU", plan=plan_title(plain.plan), need=gib(plain.device_bytes))
    if plain.fit.fits and chosen is not None:
        share = percent(plain.tokens_per_s / chosen.tokens_per_s)
        text = phrase("{needs} and would run at {share} of the speed", needs=text, share=share)
    elif plain.fit.fits:
        text = phrase("{needs} and fits", needs=text)
    if plain.plan.sharding == "fsdp2":
        emits = phrase("{needs}. --emit accelerate writes its configuration, too.", needs=text)
        return emits if plain.fit.fits else phrase("{words}.", words=text)
    return phrase(
        "{needs}. It keeps no fp32 master weights, and is a comparison: no configuration is written for it.", needs=text
    )


# Memory, the job and the GPUs' utilization.


def _memory_title(candidate: Candidate, device: str) -> Phrase:
    memory = candidate.memory
    fields = {
        "need": gib(memory.device_bytes_per_gpu),
        "device": device,
        "rung": candidate.rung,
        "moment": phase_title(memory.peak.name),
    }
    if candidate.measured_bytes is None:
        return phrase("Where the {need} GiB per {device} of {rung} go (peak: {moment})", **fields)
    return phrase("Where the predicted {need} GiB per {device} of {rung} go (peak: {moment})", **fields)


def _job_parts(question: Question, chosen: Candidate) -> Iterator[str]:
    """What was counted of the job, what its duration consists of, and how well it uses the GPUs."""
    duration = duration_of(question, chosen)
    if duration is not None:
        packing_helps = bool(question.job and question.job.lengths) and not question.job_is_packed
        yield from question.job_basis
        yield from parts_sentences(duration, packing_helps=packing_helps)
        if utilization := _utilization(question, chosen):
            yield utilization


def _utilization(question: Question, chosen: Candidate) -> str:
    model, workload, cluster = question.model, question.workload, question.cluster
    share = model_flops_utilization(model, workload, cluster, chosen.plan, chosen.time)
    peak = peak_flops_per_s(cluster.gpu, workload.matmul_precision)
    if share is None or peak is None or cluster.gpu.is_cpu:
        return ""
    return phrase(
        "{speed} tokens/s per {device} at full length use {share} of the {peak} that its data sheet names for "
        "{precision} (MFU).",
        speed=rate(chosen.tokens_per_s / cluster.world_size),
        device=device_label(cluster),
        share=percent(share),
        peak=amount(peak, "flop/s"),
        precision=workload.matmul_precision,
    )


def _changes_title(answer: Recommendation, *, has_probes: bool) -> str:
    title = phrase("What would change the answer") if answer.recommended else phrase("What would make it fit")
    if has_probes:
        title = phrase("{title} (predicted, not corrected by probes)", title=title)
    return title


def _no_changes(answer: Recommendation) -> str:
    if answer.recommended is not None:
        return ""
    if answer.question.cluster.gpu.is_cpu:
        return phrase("No change that was tried makes it fit: other methods, a shorter sequence.")
    return phrase("No change that was tried makes it fit: other methods, a shorter sequence, more or larger GPUs.")
