"""The first sentences of an answer: what fits, its speed, its needs, and the question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from ...ds_configs.training_script import evaluation_arguments
from ...estimators.objectives import LOSSES, OBJECTIVES, has_reference_model, keeps_gathered, reference_passes
from ...estimators.phrase import Phrase, listed, named, phrase
from ...estimators.workload import DEFAULT, NEXT_TOKEN, Software, Workload
from ..question.question import Largest, Question
from ..search.candidate import LEAST, Candidate, Fit, chance, duration_of, fits_sentence
from ..text.job import verdict_sentence
from ..text.labels import checkpointing_title, cluster_title, device_label, method_title, plan_title
from ..text.units import count, gib, percent, rate, rough_rate, times
from .phases import split_sentences
from .recommendation import Recommendation

Tone = Literal["good", "unsure", "bad"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on the whole answer, as sentences."""

    tone: Tone
    headline: str
    """Such as `ZeRO-3 with optimizer in host RAM fits.`"""
    short: str
    """Such as `zero3-offload fits`."""
    sentences: tuple[str, ...]
    """Sentences after the headline, in order."""
    notes: tuple[str, ...]
    """The `sentences` that no figure shows: the plan to try first and doubts, or the shortage of the closest plan."""
    try_first: str
    """The sentence in `sentences` on a plan that only likely fits."""


def tone_of(fit: Fit) -> Tone:
    """Return whether a plan fits, may fit (under a condition or with a probability), or does not fit."""
    if fit.verdict == "does not fit":
        return "bad"
    return "good" if fit.fits and not fit.assumed_host_bytes else "unsure"


def verdict_of(answer: Recommendation) -> Verdict:
    """Return the verdict on the recommended plan, or on the closest one."""
    question, chosen, risky = answer.question, answer.recommended, answer.try_first
    largest = _largest_found(question.largest, chosen)
    risk = () if risky is None else (_gain_of_risk(question, risky, chosen),)
    tone: Tone = "bad"
    notes: tuple[str, ...] = ()
    if chosen is not None:
        tone = tone_of(chosen.fit)
        headline, short = (fits_sentence(name, chosen.fit) for name in (plan_title(chosen.plan), chosen.rung))
        duration = duration_of(question, chosen)
        job = () if duration is None else (verdict_sentence(duration, question.price),)
        limit, positions = question.model.max_positions, list[Phrase]()
        if limit is not None and question.workload.seq_len > limit:
            positions.append(
                phrase(
                    "The model's configuration states {limit} positions; longer sequences need RoPE scaling.",
                    limit=f"{limit:,}",
                )
            )
        notes = (*positions, *_loss(answer), *risk, *answer.doubts)
        split = split_sentences(question, answer.other_rollouts)
        further = (*_reference(question, chosen), *_evaluation(question, chosen))
        figures = (*split, batch_sentence(question, chosen), need_sentence(question, chosen), *further)
        sentences = (*largest, speed_sentence(question, chosen), *notes, *figures, *job)
    elif failed := _first_failure(answer):
        headline = short = phrase("No plan ran.")
        notes = (phrase("The first failure: {message}", message=failed),)
        sentences = (*notes, *largest)
    elif risk:
        tone, notes = "unsure", risk
        headline = short = phrase("No plan is sure to fit.")
        sentences = (*largest, *risk)
    else:
        headline = short = phrase("Nothing fits.")
        missed = answer.closest
        notes = () if missed is None else (what_lacks(question, missed), *_evaluation(question, missed))
        notes = (*notes, *_loss(answer))
        sentences = (*notes, *largest)
    return Verdict(
        tone=tone,
        headline=headline,
        short=short.removesuffix("."),
        sentences=sentences,
        notes=notes,
        try_first=risk[0] if risk else "",
    )


def _gain_of_risk(question: Question, risky: Candidate, chosen: Candidate | None) -> Phrase:
    fields = {
        "rung": risky.rung,
        "size": risky.plan.micro_batch_size,
        "need": gib(risky.device_bytes),
        "have": gib(question.cluster.gpu.memory_bytes),
        "chance": chance(risky.fit.probability),
    }
    if chosen is None:
        return phrase(
            "{rung}, micro batch {size}, probably fits ({need} of {have} GiB, {chance}): try it, and watch its memory.",
            **fields,
        )
    return phrase(
        "{rung}, micro batch {size}, probably fits too ({need} of {have} GiB, {chance}) and would be {ratio} as fast: "
        "try it first.",
        ratio=times(risky.tokens_per_s / chosen.tokens_per_s),
        **fields,
    )


def _first_failure(answer: Recommendation) -> str | None:
    probes = () if answer.probe_series is None else answer.probe_series.probes
    failures = (probe.result.failure for probe in probes if probe.result.failure is not None)
    message = next((failure.message for failure in failures if failure.kind != "out_of_memory"), None)
    return message if message is None or message.endswith((".", "!", "?")) else f"{message}."


def speed_sentence(question: Question, chosen: Candidate) -> Phrase:
    """Return a plan's speed with its interval."""
    cluster, between, rollouts = question.cluster, chosen.time.tokens_per_s_range, question.workload.rollouts
    ranks, length = cluster.world_size + (rollouts.server_gpus if rollouts else 0), question.model.fixed_len
    text = phrase("{figure} {unit}/s", figure=rate(chosen.tokens_per_s), unit=question.model.unit)
    if chosen.estimate.evidence != "probe":
        text = phrase("About {speed}", speed=text)
    if between is not None:
        low, high = between
        text = phrase(
            "{speed} ({low} to {high} in 80 % of runs)", speed=text, low=rough_rate(low), high=rough_rate(high)
        )
    if ranks > 1:
        each = rate(chosen.tokens_per_s / ranks)
        text = phrase("{speed}, {each} per {device}", speed=text, each=each, device=device_label(cluster))
    workload = question.workload
    sequences = OBJECTIVES[workload.objective].sequences
    if sequences > 1:
        pairs = rate(chosen.tokens_per_s / (sequences * workload.seq_len))
        text = phrase("{speed}; {pairs} pairs/s", speed=text, pairs=pairs)
    if length and length > 1:  # for an image model, samples are counted instead of patches
        text = phrase("{speed}; {samples} samples/s", speed=text, samples=rate(chosen.tokens_per_s / length))
    if cluster.gpu.assumed:
        text = phrase("{speed}, assuming the speed of the {gpu}", speed=text, gpu=cluster.gpu.name)
    return phrase("{words}.", words=text)


def _reference(question: Question, chosen: Candidate) -> tuple[Phrase, ...]:
    if not reference_passes(question.workload) or question.workload.rollouts:
        return ()
    share = percent(chosen.time.components.get("reference model", 0.0) / chosen.time.step_s)
    if has_reference_model(question.workload):
        size = gib(chosen.memory.components.get("reference_model", 0))
        text = phrase(
            "The reference model, a second engine, takes {size} GiB and {share} of the time", size=size, share=share
        )
    elif keeps_gathered(question.workload, chosen.plan):
        terms = (part for phase in chosen.memory.phases for part in phase.terms)
        weights = max(part.size_bytes for part in terms if part.name == "gathered_parameters")
        text = phrase(
            "The reference is the policy without adapters: {share} of the time, and ZeRO-3 keeps all weights in the "
            "backward pass, up to {size} GiB per GPU",
            share=share,
            size=gib(weights),
        )
    else:
        return (phrase("The reference is the policy without adapters: {share} of the time, no memory.", share=share),)
    return (phrase("{sentence}; --precompute-ref-log-probs saves both.", sentence=text),)


def _evaluation(question: Question, plan: Candidate) -> tuple[Phrase, ...]:
    workload, memory = question.workload, plan.memory
    phase = next((phase for phase in memory.phases if phase.name == "evaluation"), None)
    if phase is None:
        return ()
    settings = evaluation_arguments(workload).items()
    fields = {
        "size": gib(phase.allocated_bytes),
        "arguments": ", ".join(f"{name}={value}" for name, value in settings),
    }
    step = max(other.allocated_bytes for other in memory.phases if other is not phase)
    if phase.allocated_bytes > step:
        taken = phrase("Evaluation takes {size} GiB, training {step} ({arguments}).", step=gib(step), **fields)
    else:
        taken = phrase("Evaluation takes {size} GiB, less than training ({arguments}).", **fields)
    if not workload.eval_logits:
        return (taken,)
    kept = sum(term.size_bytes for term in memory.host_pageable_terms if term.name == "evaluated_logits")
    on_host = (
        phrase(
            "Its logits take {size} GiB of RAM per node; preprocess_logits_for_metrics reduces this.", size=gib(kept)
        )
        if workload.eval_samples
        else phrase(
            "Its logits take {size} GiB of RAM per node and more with more batches (--eval-samples).", size=gib(kept)
        )
    )
    return taken, on_host


def _loss(answer: Recommendation) -> tuple[Phrase, ...]:
    without, loss = answer.without_loss, answer.question.workload.loss
    if without is None:
        return ()
    words = {"kind": loss, "switch": LOSSES[loss].switch}
    if without.fit.probability < LEAST[answer.question.risk]:
        return (phrase("Loss: {kind} ({switch}); no plan fits with the standard loss.", **words),)
    speed = rate(without.tokens_per_s)
    return (phrase("Loss: {kind} ({switch}); the standard loss reaches {speed} tokens/s.", speed=speed, **words),)


def batch_sentence(question: Question, chosen: Candidate) -> Phrase:
    """Return a plan's batch, how samples are shared among GPUs, and checkpointing."""
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
    samples: int | Phrase = plan.samples_per_step(cluster.world_size)
    if OBJECTIVES[question.workload.objective].sequences > 1:
        samples = phrase("{count} pairs", count=samples)
    elif (rollouts := question.workload.rollouts) is not None:
        prompts = samples // rollouts.num_generations if isinstance(samples, int) else 0
        samples = phrase("{count} completions of {prompts} prompts", count=samples, prompts=prompts)
    if question.is_batch_free:
        samples = phrase("{samples} (--global-batch)", samples=samples)
    return phrase(
        "{batch}, global batch {samples}; {checkpointing}.",
        batch=listed([text, *(words for ranks, words in groups if ranks > 1)]),
        samples=samples,
        checkpointing=checkpointing_title(plan),
    )


def need_sentence(question: Question, chosen: Candidate) -> Phrase:
    """Return a plan's need of each resource, and the available amount."""
    memory, cluster = chosen.memory, question.cluster
    have, host = cluster.host_memory_bytes_per_node, gib(memory.host_bytes_per_node)
    in_headline = bool(chosen.fit.assumed_host_bytes)
    text = phrase(
        "It needs {need} of {have} GiB per {device}",
        need=gib(chosen.device_bytes),
        have=gib(cluster.gpu.memory_bytes),
        device=device_label(cluster),
    )
    if chosen.fit.fits and chosen.device_bytes > cluster.gpu.memory_bytes:
        text = phrase("{needs} (PyTorch's cache can release some of it)", needs=text)
    if have is None and not in_headline:
        text = phrase("{needs} and {need} GiB of host RAM", needs=text, need=host)
    elif have is not None:
        text = phrase("{needs} and {need} of {have} GiB of host RAM", needs=text, need=host, have=gib(have))
    if memory.nvme_bytes_per_node:
        text = phrase("{needs}, {need} GiB of NVMe", needs=text, need=gib(memory.nvme_bytes_per_node))
    if cluster.nodes > 1 and (memory.nvme_bytes_per_node or not in_headline):
        text = phrase("{needs} per node", needs=text)
    if have is None and not in_headline:
        return phrase("{needs} (--ram checks it).", needs=text)
    return phrase("{words}.", words=text)


def what_lacks(question: Question, missed: Candidate) -> Phrase:
    """Return all shortages of the plan with the smallest shortage."""
    memory, cluster = missed.memory, question.cluster
    have = cluster.host_memory_bytes_per_node
    disk, room = memory.nvme_bytes_per_node, cluster.nvme_bytes_per_node
    text = phrase(
        "The closest plan, {rung}, needs {need} GiB per {device} ({have} available)",
        rung=missed.rung,
        need=gib(missed.device_bytes),
        have=gib(cluster.gpu.memory_bytes),
        device=device_label(cluster),
    )
    if missed.fit.limit == "gpu" and missed.device_bytes <= cluster.gpu.memory_bytes:
        probability = chance(missed.fit.probability)
        text = phrase("{needs}, which fits with a probability of {chance}", needs=text, chance=probability)
    if memory.host_bytes_per_node > cluster.most_host_bytes_per_node:
        text = phrase("{needs} and {need} GiB of RAM per node", needs=text, need=gib(memory.host_bytes_per_node))
        note = "--ram" if have is None else phrase("{have} available", have=gib(have))
        text = phrase("{needs} ({note})", needs=text, note=note)
    if disk and not room:
        text = phrase("{needs} and {need} GiB of NVMe per node (--nvme)", needs=text, need=gib(disk))
    elif room is not None and disk > room:
        drive = {"need": gib(disk), "have": gib(room)}
        text = phrase("{needs} and {need} GiB of NVMe per node ({have} available)", needs=text, **drive)
    return phrase("{words}.", words=text)


def _largest_found(found: Largest | None, chosen: Candidate | None) -> tuple[str, ...]:
    if found is None:
        return ()

    value = found.too_large if found.value is None else found.value
    named_value = phrase("Micro batch {value}", value=value)
    if found.option == "seq_len":
        named_value = phrase("A sequence of {value} tokens", value=f"{value:,}")
    if found.value is None:
        return (phrase("{smallest}, the smallest, does not fit.", smallest=named_value),)
    unknown = chosen is not None and chosen.fit.assumed_host_bytes
    fits = phrase("fits if the host has the RAM") if unknown else phrase("fits")
    text = phrase("{largest} is the largest that {fits}", largest=named_value, fits=fits)
    if found.too_large:
        return (phrase("{largest}; {beyond} does not.", largest=text, beyond=f"{found.too_large:,}"),)
    return (phrase("{words}.", words=text),)


def training_subject(question: Question, tool: str = "TRL") -> tuple[Phrase, Phrase]:
    """Return the model and its training, without the machines. tool: the library whose trainer implements the
    objective."""
    model, workload = question.model, question.workload
    size = phrase("{count} parameters", count=count(model.parameters))
    if question.trainable_parameters != model.parameters:
        size = phrase("{size}, {count} trained", size=size, count=count(question.trainable_parameters))
    length: str = str(workload.seq_len)
    if any(block.cross_attention for block in model.blocks):
        length = phrase(
            "{tokens} (target tokens, which are counted; the source has {source})",
            tokens=length,
            source=model.encoder_len(workload.seq_len),
        )
    fields = {"precision": workload.precision, "optimizer": workload.optimizer}
    training = phrase("{precision} · {optimizer} · sequence {length}", length=length, **fields)
    if model.unit == "samples":
        training = phrase("{precision} · {optimizer}", **fields)
    return (
        phrase("{model} · {size} · {method}", model=model.name, size=size, method=method_title(workload)),
        listed([training, *_unusual(workload, tool)]),
    )


def _unusual(workload: Workload, tool: str) -> Iterator[Phrase]:
    if workload.document_len is not None:
        yield phrase("documents of {tokens}", tokens=workload.document_len)
    if workload.objective != NEXT_TOKEN:
        yield phrase("objective {objective} by {tool}", objective=workload.objective, tool=tool)
    if workload.eval_new_tokens is not None:
        yield phrase("evaluation generates {tokens} tokens", tokens=workload.eval_new_tokens)
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


def subject_of(question: Question, tool: str = "TRL") -> tuple[str, str]:
    """Return a title of the model, and one of the training and the machines. tool: the library whose trainer
    implements the objective."""
    model, training = training_subject(question, tool)
    machines = cluster_title(question.cluster, speed=False)
    return model, phrase("{training} · {machines}", training=training, machines=machines)
