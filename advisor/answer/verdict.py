"""The first sentences of an answer: what fits, its speed, its needs, and the question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from ...ds_configs.training_script import evaluation_arguments
from ...estimators.hardware import same_size_gpus
from ...estimators.memory.batch_independent import UNCAST_WEIGHTS
from ...estimators.objectives import LOSSES, OBJECTIVES, has_reference_model, keeps_gathered, reference_passes
from ...estimators.time.step_time import estimate_time
from ...estimators.workload import DEFAULT, NEXT_TOKEN, Software, Workload
from ..document.blocks import Tone
from ..question.question import Largest, Question
from ..search.candidate import LEAST, Candidate, Fit, candidate_duration, chance, fits_sentence
from ..text.job import verdict_sentence
from ..text.labels import checkpointing_title, cluster_title, device_label, method_title, plan_title
from ..text.units import count, gib, percent, rate, rough_rate, times
from .assumed_parts import deciding_parts
from .phases import split_sentences
from .recommendation import Recommendation


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
    try_first: str
    """The sentence in `sentences` on a plan that only likely fits."""


def fit_tone(fit: Fit) -> Tone:
    """Return whether a plan fits, may fit (under a condition or with a probability), or does not fit."""
    if fit.verdict == "does not fit":
        return "bad"
    return "good" if fit.fits and not fit.assumed_host_bytes else "unsure"


def answer_verdict(answer: Recommendation) -> Verdict:
    """Return the verdict on the recommended plan, or on the closest one."""
    question, chosen, risky = answer.question, answer.recommended, answer.try_first
    largest = _largest_found(question.largest, chosen)
    risk = () if risky is None else (_gain_of_risk(question, risky, chosen),)
    tone: Tone = "bad"
    if chosen is not None:
        tone = fit_tone(chosen.fit)
        headline, short = (fits_sentence(name, chosen.fit) for name in (plan_title(chosen.plan), chosen.strategy))
        duration = candidate_duration(question, chosen)
        job = () if duration is None else (verdict_sentence(duration, question.price),)
        limit, positions = question.model.max_positions, list[str]()
        if limit is not None and question.workload.seq_len > limit:
            positions.append(
                f"The model's configuration states {limit:,} positions; longer sequences need RoPE scaling."
            )
        doubts = (*positions, *_loss(answer), *risk, *answer.doubts)
        split = split_sentences(question, answer.other_rollouts)
        further = (*_reference(question, chosen), *_evaluation(question, chosen))
        needs = (need_sentence(question, chosen), *loading_peak(chosen))
        figures = (*split, batch_sentence(question, chosen), *needs, *further)
        speeds = speed_sentence(question, chosen), *_cards_of_this_size(question, chosen)
        sentences = (*largest, *speeds, *doubts, *figures, *job)
    elif failed := _first_failure(answer):
        headline = short = "No plan ran."
        sentences = (f"The first failure: {failed}", *largest)
    elif risk:
        tone = "unsure"
        headline = short = "No plan is sure to fit."
        sentences = (*largest, *risk)
    else:
        headline = short = "Nothing fits."
        missed = answer.closest
        lacks = () if missed is None else (what_lacks(question, missed), *loading_peak(missed))
        evaluation = () if missed is None else _evaluation(question, missed)
        sentences = (*lacks, *_fits_once_loaded(answer), *evaluation, *_loss(answer), *largest)
    return Verdict(
        tone=tone,
        headline=headline,
        short=short.removesuffix("."),
        sentences=sentences,
        try_first=risk[0] if risk else "",
    )


def _gain_of_risk(question: Question, risky: Candidate, chosen: Candidate | None) -> str:
    need, have = gib(risky.device_bytes), gib(question.cluster.gpu.memory_bytes)
    if risky.fit.limit == "host":
        need, have = gib(risky.memory.host_bytes_per_node), gib(question.cluster.most_host_bytes_per_node)
    plan = f"{risky.strategy}, micro batch {risky.plan.micro_batch_size}"
    figures = f"({need} of {have} GiB, {chance(risky.fit.probability)})"
    if chosen is None:
        return f"{plan}, probably fits {figures}: try it, and watch its memory."
    ratio = times(risky.tokens_per_s / chosen.tokens_per_s)
    return f"{plan}, probably fits too {figures} and would be {ratio} as fast: try it first."


def _first_failure(answer: Recommendation) -> str | None:
    probes = () if answer.probe_series is None else answer.probe_series.probes
    failures = (probe.result.failure for probe in probes if probe.result.failure is not None)
    message = next((failure.message for failure in failures if failure.kind != "out_of_memory"), None)
    return message if message is None or message.endswith((".", "!", "?")) else f"{message}."


def speed_sentence(question: Question, chosen: Candidate) -> str:
    """Return a plan's speed with its interval."""
    cluster, between, rollouts = question.cluster, chosen.time.tokens_per_s_range, question.workload.rollouts
    ranks, length = cluster.world_size + (rollouts.server_gpus if rollouts else 0), question.model.fixed_len
    text = f"{rate(chosen.tokens_per_s)} {question.model.unit}/s"
    if chosen.estimate.evidence != "probe":
        text = f"About {text}"
    if between is not None:
        low, high = between
        text = f"{text} ({rough_rate(low)} to {rough_rate(high)} in 80 % of runs)"
    if ranks > 1:
        each = rate(chosen.tokens_per_s / ranks)
        text = f"{text}, {each} per {device_label(cluster)}"
    workload = question.workload
    sequences = OBJECTIVES[workload.objective].sequences
    if sequences > 1:
        pairs = rate(chosen.tokens_per_s / (sequences * workload.seq_len))
        text = f"{text}; {pairs} pairs/s"
    if length and length > 1:  # for an image model, samples are counted instead of patches
        text = f"{text}; {rate(chosen.tokens_per_s / length)} samples/s"
    assumed = speed_assumptions(question, chosen)
    return f"{text}, assuming {', '.join(assumed)}." if assumed else f"{text}."


def speed_assumptions(question: Question, chosen: Candidate) -> list[str]:
    """Return what a plan's speed assumes of the machine."""
    assumed = [f"the speed of the {question.cluster.gpu.name}"] if question.cluster.gpu.assumed else []
    return [*assumed, *(part.phrase for part in deciding_parts(question, chosen))]


def _cards_of_this_size(question: Question, chosen: Candidate) -> tuple[str, ...]:
    """Return the speeds of the plan on the slowest and the fastest card, if only a memory size was given."""
    cluster, workload = question.cluster, question.workload
    predicted = estimate_time(question.model, workload, cluster, chosen.plan)
    factor, speeds = chosen.tokens_per_s / predicted.tokens_per_s, dict[str, float]()  # the factor of a run of the plan
    for gpu in same_size_gpus(cluster.gpu):
        if question.free_precision and workload.precision != "fp32":
            workload = replace(workload, precision=gpu.half_precision)
        if workload.precision != "bf16" or gpu.has_bf16:
            time = estimate_time(question.model, workload, replace(cluster, gpu=gpu), chosen.plan)
            speeds[gpu.name] = factor * time.tokens_per_s
    if len(speeds) < 2:
        return ()
    low, high = min(speeds, key=speeds.__getitem__), max(speeds, key=speeds.__getitem__)
    return (
        f"Cards of {cluster.gpu.nominal_gb} GB reach {rate(speeds[low])} ({low}) to {rate(speeds[high])} "
        f"{question.model.unit}/s ({high}).",
    )


def _reference(question: Question, chosen: Candidate) -> tuple[str, ...]:
    if not reference_passes(question.workload) or question.workload.rollouts:
        return ()
    share = percent(chosen.time.components.get("reference model", 0.0) / chosen.time.step_s)
    if has_reference_model(question.workload):
        size = gib(chosen.memory.components.get("reference_model", 0))
        text = f"The reference model, a second engine, takes {size} GiB and {share} of the time"
    elif keeps_gathered(question.workload, chosen.plan):
        terms = (part for phase in chosen.memory.phases for part in phase.terms)
        weights = max(part.size_bytes for part in terms if part.name == "gathered_parameters")
        text = (
            f"The reference is the policy without adapters: {share} of the time, and ZeRO-3 keeps all weights in the "
            f"backward pass, up to {gib(weights)} GiB per GPU"
        )
    else:
        return (f"The reference is the policy without adapters: {share} of the time, no memory.",)
    return (f"{text}; --precompute-ref-log-probs saves both.",)


def _evaluation(question: Question, plan: Candidate) -> tuple[str, ...]:
    workload, memory = question.workload, plan.memory
    phase = next((phase for phase in memory.phases if phase.name == "evaluation"), None)
    if phase is None:
        return ()
    arguments = ", ".join(f"{name}={value}" for name, value in evaluation_arguments(workload).items())
    step = max(other.allocated_bytes for other in memory.phases if other is not phase)
    training = f"training {gib(step)}" if phase.allocated_bytes > step else "less than training"
    taken = f"Evaluation takes {gib(phase.allocated_bytes)} GiB, {training} ({arguments})."
    if not workload.eval_logits:
        return (taken,)
    kept = sum(term.size_bytes for term in memory.host_pageable_terms if term.name == "evaluated_logits")
    on_host = (
        f"Its logits take {gib(kept)} GiB of RAM per node; preprocess_logits_for_metrics reduces this."
        if workload.eval_samples
        else f"Its logits take {gib(kept)} GiB of RAM per node and more with more batches (--eval-samples)."
    )
    return taken, on_host


def _loss(answer: Recommendation) -> tuple[str, ...]:
    without, loss = answer.without_loss, answer.question.workload.loss
    if without is None or answer.recommended is None:
        return ()
    standard = f"the standard loss reaches {rate(without.tokens_per_s)} tokens/s"
    if without.fit.probability < LEAST[answer.question.risk]:
        standard = "no plan fits with the standard loss"
    return (f"Loss: {loss} ({LOSSES[loss].switch}); {standard}.",)


def batch_sentence(question: Question, chosen: Candidate) -> str:
    """Return a plan's batch, how samples are shared among GPUs, and checkpointing."""
    plan, cluster = chosen.plan, question.cluster
    steps, device = plan.gradient_accumulation_steps, device_label(cluster)
    text = f"Micro batch {plan.micro_batch_size}"
    if steps > 1:
        text = f"{text} x {steps} accumulation steps"
    shared, split, spread = plan.sequence_parallel_size, plan.autotp_size, plan.autoep_size
    groups = (
        (shared, f"each sample shared by {shared} {device}s (Ulysses)"),
        (split, f"each layer split by {split} {device}s (AutoTP)"),
        (spread, f"experts spread over {spread} {device}s (AutoEP)"),
    )
    samples: int | str = plan.samples_per_step(cluster.world_size)
    if OBJECTIVES[question.workload.objective].sequences > 1:
        samples = f"{samples} pairs"
    elif (rollouts := question.workload.rollouts) is not None:
        prompts = samples // rollouts.num_generations if isinstance(samples, int) else 0
        samples = f"{samples} completions of {prompts} prompts"
    if question.is_batch_free or question.free_batch:
        samples = f"{samples} (--global-batch)"
    return (
        f"{', '.join([text, *(words for ranks, words in groups if ranks > 1)])}, global batch {samples}; "
        f"{checkpointing_title(plan)}."
    )


def need_sentence(question: Question, chosen: Candidate) -> str:
    """Return a plan's need of each resource, and the available amount."""
    memory, cluster = chosen.memory, question.cluster
    have, host = cluster.host_memory_bytes_per_node, gib(memory.host_bytes_per_node)
    in_headline = bool(chosen.fit.assumed_host_bytes)
    text = f"It needs {gib(chosen.device_bytes)} of {gib(cluster.gpu.memory_bytes)} GiB per {device_label(cluster)}"
    if chosen.fit.fits and chosen.device_bytes > cluster.gpu.memory_bytes:
        text = f"{text} (PyTorch's cache can release some of it)"
    of_have = "" if have is None else f" of {gib(have)}"
    text = f"{text} and {host}{of_have} GiB of host RAM"
    if memory.nvme_bytes_per_node:
        text = f"{text}, {gib(memory.nvme_bytes_per_node)} GiB of NVMe"
    if cluster.nodes > 1:
        text = f"{text} per node"
    if in_headline:  # which has the RAM with the margin for the error of this figure
        return f"{text}, plus a margin."
    return f"{text}." if have is not None else f"{text} (--ram checks it)."


def loading_peak(plan: Candidate) -> tuple[str, ...]:
    """Return a sentence if the GPU needs the most memory before the engine shards or casts the weights."""
    peak = plan.memory.peak
    if peak.name != "load":
        return ()
    if any(term.declared is UNCAST_WEIGHTS for term in peak.terms):
        return ("Its peak is the loading: every GPU holds the weights in fp32 until DeepSpeed casts them.",)
    return ("Its peak is the loading: every GPU holds the whole model before ZeRO-3 shards it.",)


def _fits_once_loaded(answer: Recommendation) -> Iterator[str]:
    """Yield a sentence if another plan than the closest lacks memory only while the model loads."""
    room = answer.question.cluster.gpu.memory_bytes
    for each in (step.candidate for step in answer.ladder):
        if each is None or each is answer.closest or each.memory.peak.name != "load":
            continue
        later = max(phase.allocated_bytes for phase in each.memory.phases if phase.name != "load")
        need = each.device_bytes - each.memory.allocated_bytes_per_gpu + later
        if need <= room:
            yield f"{each.strategy} fits once it is loaded ({gib(need)} GiB); before, every GPU holds the whole model."
            return


def what_lacks(question: Question, missed: Candidate) -> str:
    """Return all shortages of the plan with the smallest shortage."""
    memory, cluster = missed.memory, question.cluster
    have = cluster.host_memory_bytes_per_node
    disk, room = memory.nvme_bytes_per_node, cluster.nvme_bytes_per_node
    text = (
        f"The closest plan, {missed.strategy}, needs {gib(missed.device_bytes)} GiB per {device_label(cluster)} "
        f"({gib(cluster.gpu.memory_bytes)} available)"
    )
    beyond = []
    if missed.fit.limit == "gpu" and missed.device_bytes <= cluster.gpu.memory_bytes:
        probability = chance(missed.fit.probability)
        text = f"{text}, which fits with a probability of {probability}"
    if memory.host_bytes_per_node > cluster.most_host_bytes_per_node:
        note = "--ram" if have is None else f"{gib(have)} available"
        beyond.append(f"{gib(memory.host_bytes_per_node)} GiB of RAM per node ({note})")
    if disk and not room:
        beyond.append(f"{gib(disk)} GiB of NVMe per node (--nvme)")
    elif room is not None and disk > room:
        beyond.append(f"{gib(disk)} GiB of NVMe per node ({gib(room)} available)")
    return f"{' and '.join([', '.join([text, *beyond[:-1]]), *beyond[-1:]])}."


def _largest_found(found: Largest | None, chosen: Candidate | None) -> tuple[str, ...]:
    if found is None:
        return ()

    value = found.too_large if found.value is None else found.value
    named_value = f"Micro batch {value}"
    if found.option == "seq_len":
        named_value = f"A sequence of {value:,} tokens"
    if found.value is None:
        return (f"{named_value}, the smallest, does not fit.",)
    unknown = chosen is not None and chosen.fit.assumed_host_bytes
    fits = "fits if the host has the RAM" if unknown else "fits"
    text = f"{named_value} is the largest that {fits}"
    if found.too_large:
        return (f"{text}; {found.too_large:,} does not.",)
    return (f"{text}.",)


def training_subject(question: Question, tool: str = "TRL") -> tuple[str, str]:
    """Return the model and its training, without the machines. tool: the library whose trainer implements the
    objective."""
    model, workload = question.model, question.workload
    size = f"{count(model.parameters)} parameters"
    if question.trainable_parameters != model.parameters:
        size = f"{size}, {count(question.trainable_parameters)} trained"
    length = str(workload.seq_len)
    if any(block.cross_attention for block in model.blocks):
        length = f"{length} (target tokens, which are counted; the source has {model.encoder_len(workload.seq_len)})"
    training = f"{workload.precision} · {workload.optimizer}"
    if model.unit != "samples":
        training = f"{training} · sequence {length}"
    return (
        f"{model.name} · {size} · {method_title(workload)}",
        ", ".join([training, *_unusual(workload, tool)]),
    )


def _unusual(workload: Workload, tool: str) -> Iterator[str]:
    if workload.dora:
        yield "DoRA"
    if workload.document_len is not None:
        yield f"documents of {workload.document_len}"
    if workload.objective != NEXT_TOKEN:
        by_tool = OBJECTIVES[workload.objective].trainer
        yield f"objective {workload.objective} by {tool}" if by_tool else f"objective {workload.objective}"
    if workload.eval_new_tokens is not None:
        yield f"evaluation generates {workload.eval_new_tokens} tokens"
    if workload.loss != "standard":
        yield f"{workload.loss} loss"
    if workload.mlp == "tiled":
        yield "tiled feed-forward"
    if workload.kernels != "torch":
        yield f"{ ({'liger': 'Liger', 'unsloth': 'unsloth'}[workload.kernels]) } kernels"
    for field in fields(Software):
        value, name = getattr(workload.software, field.name), field.name.replace("_", " ")
        if value != getattr(DEFAULT, field.name):
            version = ".".join(map(str, value)) if isinstance(value, tuple) else value
            yield (name if value is True else f"no {name}" if value is False else f"{name} {version}")


def answer_subject(question: Question, tool: str = "TRL") -> tuple[str, str]:
    """Return a title of the model, and one of the training and the machines. tool: the library whose trainer
    implements the objective."""
    model, training = training_subject(question, tool)
    machines = cluster_title(question.cluster, speed=False)
    return model, f"{training} · {machines}"
