"""The answer for people: the sentences, rows and figures that the terminal, Markdown, the HTML report and the page
draw.

Texts are English; those that are a `Phrase` can be translated when they are drawn (`text.language.translate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from ...estimators.models.model_shape import ModelShape
from ...estimators.phrase import Phrase, listed, named, phrase
from ...estimators.time.flops import model_flops_utilization, peak_flops_per_s
from ...estimators.workload import DEFAULT, Software, Workload
from ..question.question import Question
from ..search.candidate import MOST_HOST_BYTES, Candidate, chance, duration_of, fits_sentence
from ..text.job import hours, money, parts_sentences, verdict_sentence
from ..text.labels import (
    batch_label,
    checkpointing_label,
    checkpointing_title,
    cluster_title,
    device_label,
    method_title,
    phase_title,
    plan_title,
    shape_label,
)
from ..text.units import age, amount, count, gib, percent, rate, rough_rate, seconds
from .reasons import deepspeed_sentence, gain_of_risk, time_shares
from .recommendation import Change, Recommendation, closest
from .start import Block, next_steps, recommended_config

if TYPE_CHECKING:
    from .recommendation import ProbedPlan, Verification

Tone = Literal["good", "unsure", "bad"]

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
    """Of what there is; None where that is unknown or unbounded."""


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
    fits: bool = False


@dataclass(frozen=True, kw_only=True)
class ProbeRow:
    """A probe of a plan, and its outcome."""

    rung: str
    batch: str
    checkpointing: str
    outcome: str


@dataclass(frozen=True, kw_only=True)
class AnswerView:
    """Everything that people are shown; "" and empty tuples stand for what an answer does not have."""

    tone: Tone
    headline: str
    """`ZeRO-3 with optimizer in host RAM fits.`"""
    short: str
    """`zero3-offload fits`."""
    sentences: tuple[str, ...]
    """The sentences after the headline, in order."""
    notes: tuple[str, ...]
    """Those of them that no figure shows: the plan to try first and doubts, or what the closest plan lacks."""
    try_first: str
    """The one of them about a plan that is only likely to fit."""
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
    changes: str
    """Title of `change_rows`, or a sentence that there are none."""
    change_rows: tuple[Change, ...]
    evidence: tuple[str, ...]
    assumptions: tuple[str, ...]
    files: tuple[str, ...]
    """Files that were written."""
    config: dict[str, Any] | None
    """The recommended DeepSpeed configuration."""
    steps: tuple[Block, ...]
    """What to do next."""


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
    shown = chosen or closest(answer.ladder)
    estimate = answer.deepspeed_estimate
    ladder = tuple(_ladder(answer, all_candidates=all_candidates))
    least_share = _SMALL_SHARE if details else _LARGE_SHARE
    probes_title, probes, probes_end = _probes(answer)
    return AnswerView(
        **_verdict(answer),
        subject=_subject(question),
        figures=() if chosen is None else tuple(_figures(question, chosen)),
        columns=_CPU_COLUMNS if question.cluster.gpu.is_cpu else _COLUMNS,
        ladder=ladder,
        ladder_notes=tuple(_ladder_notes(question, [row.candidate for row in ladder if row.candidate])),
        memory="" if shown is None else _memory_title(shown, device_label(question.cluster)),
        memory_parts={} if shown is None else shown.memory.components,
        time="" if chosen is None else step_time(chosen, least_share),
        job=() if chosen is None else tuple(_job_parts(question, chosen)),
        utilization="" if chosen is None else _utilization(question, chosen),
        reasons=answer.reasons,
        pytorch_baseline=_pytorch_baseline(answer),
        dry_runs=tuple(_dry_run(run) for run in answer.verifications),
        probes=probes_title,
        probe_rows=tuple(_probe_row(probe) for probe in probes),
        probes_end=probes_end,
        deepspeed_estimate=deepspeed_sentence(estimate, shown.device_bytes) if estimate and shown else "",
        changes=_changes_title(answer, has_probes=bool(series or answer.past_probes)),
        change_rows=answer.changes,
        evidence=tuple(_evidence(answer)),
        assumptions=answer.assumptions,
        files=answer.files,
        config=recommended_config(answer),
        steps=tuple(next_steps(answer, config_path, details=details)),
    )


def step_time(chosen: Candidate, least_share: float) -> Phrase:
    """Where the time of a step goes, by parts of at least a share."""
    shares = time_shares(chosen.time, least=least_share)
    return phrase("Where the {time} of a step go: {shares}.", time=seconds(chosen.time.step_s), shares=shares)


# The verdict.


def _verdict(answer: Recommendation) -> dict[str, Any]:
    """The fields of the view on whether anything fits, and what."""
    chosen = answer.recommended
    largest = _largest_found(answer)
    risk = () if answer.try_first is None else (gain_of_risk(answer.question, answer.try_first, chosen),)
    if chosen is not None:
        tone: Tone = "good" if chosen.fit.fits else "unsure"
        headline = fits_sentence(plan_title(chosen.plan), chosen.fit)
        short = fits_sentence(chosen.rung, chosen.fit)
        duration = duration_of(answer.question, chosen)
        job = () if duration is None else (verdict_sentence(duration, answer.question.price),)
        notes: tuple[str, ...] = (*risk, *answer.doubts)
        sentences = (*largest, _speed(answer.question, chosen), *notes)
        sentences += (_batch(answer.question, chosen), _need(answer.question, chosen), *job)
    else:
        failed = _first_failure(answer)
        missed = closest(answer.ladder)
        tone, notes = "bad", ()
        if failed is not None:
            headline = phrase("No plan ran.")
            notes = (phrase("The first that failed: {message}", message=failed),)
        elif risk:
            tone, headline, notes = "unsure", phrase("Nothing is sure to fit."), risk
        else:
            headline = phrase("Nothing fits.")
            notes = () if missed is None else (_closest(answer.question, missed),)
        short = headline
        sentences = (*largest, *notes) if risk and failed is None else (*notes, *largest)
    return {
        "tone": tone,
        "headline": headline,
        "short": short.removesuffix("."),
        "sentences": sentences,
        "notes": notes,
        "try_first": risk[0] if risk else "",
    }


def _first_failure(answer: Recommendation) -> str | None:
    """The message of the first probe that failed, where memory was not the reason."""
    probes = () if answer.probe_series is None else answer.probe_series.probes
    failures = (probe.result.failure for probe in probes if probe.result.failure is not None)
    message = next((failure.message for failure in failures if failure.kind != "out_of_memory"), None)
    return message if message is None or message.endswith((".", "!", "?")) else f"{message}."


def _speed(question: Question, chosen: Candidate) -> Phrase:
    """Tokens per second, the interval, and what else is known of the speed."""
    cluster, between = question.cluster, chosen.time.tokens_per_s_range
    ranks, length = cluster.world_size, question.model.fixed_len
    text = phrase("{figure} tokens/s", figure=rate(chosen.tokens_per_s))
    if chosen.estimate.evidence != "probe":
        text = phrase("About {speed}", speed=text)
    if between is not None:
        low, high = between
        text = phrase("{speed} ({low} to {high})", speed=text, low=rough_rate(low), high=rough_rate(high))
    if ranks > 1:
        each = rate(chosen.tokens_per_s / ranks)
        text = phrase("{speed}, {each} per {device}", speed=text, each=each, device=device_label(cluster))
    if length:  # an image model: its samples count, not its patches
        text = phrase("{speed}; {samples} samples/s", speed=text, samples=rate(chosen.tokens_per_s / length))
    if cluster.gpu.assumed:
        text = phrase("{speed}, with GPUs as fast as the {gpu}", speed=text, gpu=cluster.gpu.name)
    return phrase("{words}.", words=text)


def _batch(question: Question, chosen: Candidate) -> Phrase:
    """The micro batch, the global batch that it makes, and checkpointing."""
    plan, cluster = chosen.plan, question.cluster
    steps, device = plan.gradient_accumulation_steps, device_label(cluster)
    text = phrase("Micro batch {size}", size=plan.micro_batch_size)
    if steps > 1:
        text = phrase("{batch} x {steps} accumulation steps", batch=text, steps=steps)
    shared, split, spread = plan.sequence_parallel_size, plan.autotp_size, plan.autoep_size
    groups = (
        (shared, phrase("each sample shared by {ranks} {device}s (Ulysses)", ranks=shared, device=device)),
        (split, phrase("each layer split by {ranks} {device}s (AutoTP)", ranks=split, device=device)),
        (spread, phrase("experts spread over {ranks} {device}s (AutoEP)", ranks=spread, device=device)),
    )
    return phrase(
        "{batch}, global batch {samples}; {checkpointing}.",
        batch=listed([text, *(words for ranks, words in groups if ranks > 1)]),
        samples=plan.samples_per_step(cluster.world_size),
        checkpointing=checkpointing_title(plan),
    )


def _need(question: Question, chosen: Candidate) -> Phrase:
    """Memory of the GPU and of the host against what there is, and NVMe."""
    memory, cluster = chosen.memory, question.cluster
    have, host = cluster.host_memory_bytes_per_node, gib(memory.host_bytes_per_node)
    text = phrase(
        "It needs {need} of {have} GiB per {device}",
        need=gib(chosen.device_bytes),
        have=gib(cluster.gpu.memory_bytes),
        device=device_label(cluster),
    )
    if have is None:
        text = phrase("{needs} and {need} GiB of host RAM", needs=text, need=host)
    else:
        text = phrase("{needs} and {need} of {have} GiB of host RAM", needs=text, need=host, have=gib(have))
    if memory.nvme_bytes_per_node:
        text = phrase("{needs}, {need} GiB of NVMe", needs=text, need=gib(memory.nvme_bytes_per_node))
    if cluster.nodes > 1:
        text = phrase("{needs} per node", needs=text)
    return phrase("{needs} (--ram checks it).", needs=text) if have is None else phrase("{words}.", words=text)


def _closest(question: Question, missed: Candidate) -> Phrase:
    """Everything that the plan with the smallest shortage lacks."""
    memory, cluster = missed.memory, question.cluster
    have = cluster.host_memory_bytes_per_node
    disk, room = memory.nvme_bytes_per_node, cluster.nvme_bytes_per_node
    text = phrase(
        "The closest, {rung}, would take {need} of {have} GiB per {device}",
        rung=missed.rung,
        need=gib(missed.device_bytes),
        have=gib(cluster.gpu.memory_bytes),
        device=device_label(cluster),
    )
    if missed.fit.limit == "gpu" and missed.device_bytes <= cluster.gpu.memory_bytes:
        probability = chance(missed.fit.probability)
        text = phrase("{needs}, which fits with a probability of {chance}", needs=text, chance=probability)
    if memory.host_bytes_per_node > (have or MOST_HOST_BYTES):
        host = {"need": gib(memory.host_bytes_per_node), "have": gib(have or MOST_HOST_BYTES)}
        text = (
            phrase("{needs} and {need} GiB of RAM per node, where hosts have {have} at most", needs=text, **host)
            if have is None
            else phrase("{needs} and {need} of {have} GiB of RAM per node", needs=text, **host)
        )
    if disk and not room:
        text = phrase("{needs} and {need} GiB of NVMe per node (--nvme)", needs=text, need=gib(disk))
    elif room is not None and disk > room:
        text = phrase("{needs} and {need} of {have} GiB of NVMe per node", needs=text, need=gib(disk), have=gib(room))
    return phrase("{words}.", words=text)


_NOT_EVEN: Mapping[str, Callable[[object], Phrase]] = {
    "model_size": lambda beyond: phrase("No model of the family fits, not even {beyond}.", beyond=beyond),
    "micro_batch": lambda beyond: phrase("Not even a micro batch of {beyond} fits.", beyond=beyond),
    "seq_len": lambda beyond: phrase("Not even a sequence of {beyond} tokens fits.", beyond=beyond),
}


def _largest_found(answer: Recommendation) -> tuple[str, ...]:
    """What was found for the option that was "max"."""
    question, chosen = answer.question, answer.recommended
    found = question.largest
    if found is None:
        return ()
    value, beyond = found.value, found.too_large
    if value is None:
        return (_NOT_EVEN[found.option](beyond),)
    unknown = question.cluster.host_memory_bytes_per_node is None and chosen is not None and chosen.plan.offloads
    fits = phrase("fits if the host has the RAM") if unknown else phrase("fits")
    if found.option == "seq_len":
        text = phrase("{value} tokens are the longest sequence that {fits}", value=f"{value:,}", fits=fits)
        if beyond:
            return (phrase("{longest}; {beyond} are too many.", longest=text, beyond=f"{beyond:,}"),)
        return (phrase("{longest}: the model has no more positions.", longest=text),)
    text = (
        phrase("{value} is the largest of its family that {fits}", value=value, fits=fits)
        if found.option == "model_size"
        else phrase("Micro batch {value} is the largest that {fits}", value=value, fits=fits)
    )
    if beyond:
        return (phrase("{largest}; {beyond} does not.", largest=text, beyond=beyond),)
    return (phrase("{words}.", words=text),)


def training_subject(question: Question) -> tuple[Phrase, Phrase]:
    """The model, and its training whatever the machines."""
    model, workload = question.model, question.workload
    size = phrase("{count} parameters", count=count(model.parameters))
    if question.trainable_parameters != model.parameters:
        size = phrase("{size}, {count} trained", size=size, count=count(question.trainable_parameters))
    training = phrase(
        "{precision} · {optimizer} · sequence {length}",
        precision=workload.precision,
        optimizer=workload.optimizer,
        length=_length(model, workload),
    )
    return (
        phrase("{model} · {size} · {method}", model=model.name, size=size, method=method_title(workload)),
        listed([training, *_unusual(workload)]),
    )


def _length(model: ModelShape, workload: Workload) -> str:
    """Tokens of a sequence; for an encoder and a decoder, of both."""
    if not any(block.cross_attention for block in model.blocks):
        return str(workload.seq_len)
    return phrase(
        "{tokens} (tokens of the target, which are counted; the source has {source})",
        tokens=workload.seq_len,
        source=model.encoder_len(workload.seq_len),
    )


def _unusual(workload: Workload) -> Iterator[Phrase]:
    """Documents, loss, kernels and software, as far as they differ from the defaults."""
    if workload.document_len is not None:
        yield phrase("documents of {tokens}", tokens=workload.document_len)
    if workload.loss != "standard":
        yield phrase("{kind} loss", kind=workload.loss)
    if workload.mlp == "tiled":
        yield phrase("tiled feed-forward")
    if workload.kernels != "torch":
        yield phrase("{kind} kernels", kind={"liger": "Liger", "unsloth": "unsloth"}[workload.kernels])
    for field in fields(Software):
        value, name = getattr(workload.software, field.name), field.name.replace("_", " ")
        if value != getattr(DEFAULT, field.name):
            version = ".".join(map(str, value)) if isinstance(value, tuple) else value
            yield named(name if value is True else f"no {name}" if value is False else f"{name} {version}")


def _subject(question: Question) -> tuple[str, str]:
    """The model; its training and the machines."""
    model, training = training_subject(question)
    machines = cluster_title(question.cluster, speed=False)
    return model, phrase("{training} · {machines}", training=training, machines=machines)


def _figures(question: Question, chosen: Candidate) -> Iterator[Figure]:
    """Speed, memory, batch, step and job."""
    plan, memory, cluster = chosen.plan, chosen.memory, question.cluster
    ranks, device, have = cluster.world_size, device_label(cluster), cluster.host_memory_bytes_per_node
    between = chosen.time.tokens_per_s_range
    samples, steps = plan.samples_per_step(ranks), plan.gradient_accumulation_steps
    duration, price = duration_of(question, chosen), question.price
    yield Figure(
        name="speed",
        title="Speed",
        value=rate(chosen.tokens_per_s),
        unit="tokens/s",
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
        note=nvme or ("not checked: say how much there is" if have is None else ""),
        share=None if have is None else memory.host_bytes_per_node / have,
    )
    yield Figure(
        name="batch",
        title="Batch",
        value=f"{samples:,}",
        unit=f"sample{'s' * (samples != 1)} a step",
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
        note=f"{chosen.time.tokens_per_step:,} tokens",
    )
    if duration is not None:
        cost = "" if price is None else money(duration.cost(price), price.currency)
        yield Figure(
            name="job",
            title="The whole job",
            value=hours(duration.duration_s),
            unit="",
            note=cost or f"{duration.steps:,} steps",
        )


# The ladder.

_COLUMNS = {
    "rung": phrase("rung"),
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
                yield _row(candidate, is_chosen=candidate is answer.recommended)
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


def _ladder_notes(question: Question, shown: list[Candidate]) -> Iterator[str]:
    """What the columns and words of the ladder mean."""
    cluster, length = question.cluster, question.model.fixed_len
    if length:
        yield phrase("tokens/s: every sample is {tokens} tokens", tokens=length)
    if any(candidate.plan.ranks_per_sample > 1 for candidate in shown):
        yield phrase(
            "batch: micro batch / {device}s that share it x accumulation; ckpt: checkpointing",
            device=device_label(cluster),
        )
    else:
        yield phrase("batch: micro batch x accumulation steps; ckpt: gradient checkpointing")
    if cluster.gpu.is_cpu:
        yield phrase("GiB: what a rank needs; RAM and NVMe: all ranks")
    else:
        yield phrase("GPU: device memory that the plan needs; RAM and NVMe: per node")
    if any(candidate.fit.reason.endswith("any RAM") for candidate in shown):
        yield phrase("any RAM: {most} GiB, the most that hosts have; --ram sets the amount", most=gib(MOST_HOST_BYTES))
    if any(candidate.fit.reason.endswith("%") for candidate in shown):
        yield phrase("%: the probability that it fits (--risk)")


def _pytorch_baseline(answer: Recommendation) -> str:
    """What plain PyTorch's row is, and how it compares."""
    plain, chosen = answer.pytorch_baseline, answer.recommended
    if plain is None:
        return ""
    text = phrase("{plan} needs {need} GiB per GPU", plan=plan_title(plain.plan), need=gib(plain.device_bytes))
    if plain.fit.fits and chosen is not None:
        share = percent(plain.tokens_per_s / chosen.tokens_per_s)
        text = phrase("{needs} and would run at {share} of the speed", needs=text, share=share)
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
    """MFU, and the speed of one GPU against the card's peak."""
    model, workload, cluster = question.model, question.workload, question.cluster
    share = model_flops_utilization(model, workload, cluster, chosen.plan, chosen.time)
    peak = peak_flops_per_s(cluster.gpu, workload.precision)
    if share is None or peak is None or cluster.gpu.is_cpu:
        return ""
    return phrase(
        "{speed} tokens/s per {device} at full length use {share} of the {peak} that its data sheet names for "
        "{precision} (MFU).",
        speed=rate(chosen.tokens_per_s / cluster.world_size),
        device=device_label(cluster),
        share=percent(share),
        peak=amount(peak, "flop/s"),
        precision=workload.precision,
    )


# The evidence.


def _dry_run(run: Verification) -> Phrase:
    """What a dry run found, against the prediction."""
    peak, memory, host = run.dry_run.result.peak, run.candidate.memory, run.dry_run.required_host_bytes_per_node
    versions = run.dry_run.result.versions
    text = phrase(
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
        text = phrase(
            "{run}; a step takes {time} by the recorded schedule (predicted: {predicted})",
            run=text,
            time=seconds(run.dry_run.step.time.step_s),
            predicted=seconds(run.candidate.time.step_s),
        )
    return phrase("{words}.", words=text)


_PROBES_END = {
    "settled": phrase("No plan that was not run could be faster by more than the search resolves."),
    "budget": phrase("The time was over before everything was settled (--budget)."),
    "interrupted": phrase("Interrupted before everything was settled."),
}


def _probes(answer: Recommendation) -> tuple[str, tuple[ProbedPlan, ...], str]:
    """The title of the probes, the probes, and why they ended."""
    series = answer.probe_series
    if series is not None:
        title = phrase(
            "Probes on this machine: {runs} of {plans} plans were run (at most {bound})",
            runs=series.runs,
            plans=series.candidates,
            bound=series.bound,
        )
        return title, series.probes, _PROBES_END[series.ended]
    return phrase("Earlier probes on this machine") if answer.past_probes else "", answer.past_probes, ""


def _probe_row(probe: ProbedPlan) -> ProbeRow:
    plan, failure, speed = probe.candidate.plan, probe.result.failure, ""
    if failure is None:
        speed = rate(probe.result.tokens_per_s)
    if failure is not None:
        outcome: str = f"{failure.kind.replace('_', ' ')}: {failure.message}"
    elif probe.age_s is None:
        predicted = rate(probe.candidate.tokens_per_s)
        outcome = phrase("{speed} tokens/s (predicted {predicted})", speed=speed, predicted=predicted)
    else:
        outcome = phrase("{figure} tokens/s", figure=speed)
    reason = probe.reason if probe.age_s is None else age(probe.age_s)
    return ProbeRow(
        rung=plan.rung,
        batch=batch_label(plan),
        checkpointing=checkpointing_label(plan),
        outcome=phrase("{outcome}; {reason}", outcome=outcome, reason=reason),
    )


def _evidence(answer: Recommendation) -> Iterator[str]:
    """How the answer is known, and what would settle it."""
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
            "Evidence: analytic, corrected by earlier probes of other plans on this machine (ds-advise history). "
            "Settle it by a few real runs: add --probe."
        )
    elif cluster.gpu.is_cpu:
        yield phrase("Evidence: analytic. Settle it by a few real runs on this machine: add --probe.")
    else:
        yield phrase(
            "Evidence: analytic. Prove it without a GPU, by a dry run of the real DeepSpeed engine: add --verify."
        )
    if cluster.measured:
        yield phrase("Measured {how}.", how=cluster.measured)


def _changes_title(answer: Recommendation, *, has_probes: bool) -> str:
    """The title of the changes, or what was tried in vain."""
    if not answer.changes:
        if answer.recommended is not None:
            return ""
        if answer.question.cluster.gpu.is_cpu:
            return phrase("No change that was tried makes it fit: other methods, a shorter sequence.")
        return phrase("No change that was tried makes it fit: other methods, a shorter sequence, more or larger GPUs.")
    title = phrase("What would change the answer") if answer.recommended else phrase("What would make it fit")
    if has_probes:
        title = phrase("{title} (predicted, not corrected by probes)", title=title)
    return title
