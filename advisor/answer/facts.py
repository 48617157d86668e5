"""The facts of an answer, each with a title: the plan's figures, what they assume, and the question."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace

from ...ds_configs.training_script import evaluation_arguments
from ...estimators.errors import WorkloadError
from ...estimators.gpu_catalogue import same_size_gpus
from ...estimators.hardware import cpu_cores, dram_bytes_per_s, host_score_s
from ...estimators.memory.activations.kernels import runs_eager
from ...estimators.memory.batch_independent import UNCAST_WEIGHTS
from ...estimators.models.model_shape import ModelShape
from ...estimators.objectives import (
    LOSSES,
    OBJECTIVES,
    has_reference_model,
    keeps_gathered,
    reference_passes,
    unusable_loss,
)
from ...estimators.time.step_time import estimate_time
from ...estimators.workload import DEFAULT, NEXT_TOKEN, Software, Workload
from ..document.blocks import Fact
from ..question.options import GLOBAL_BATCH
from ..question.question import Question
from ..search.candidate import LEAST, LIKELY, Candidate, candidate_duration, chance, predict
from ..search.search import best_over_losses, fastest
from ..text.job import hours, whole_job
from ..text.labels import batch_factors, checkpointing_title, cluster_title, device_label, method_title, shared_among
from ..text.units import count, counted_noun, gib, percent, rate, rough_rates, tokens, whole_gib
from .assumed_parts import deciding_parts
from .phases import generators
from .recommendation import Recommendation

LONG_STEP_S = 600.0
"""Time from which that of an optimizer step is named."""


def plan_facts(question: Question, chosen: Candidate) -> list[Fact]:
    """Return a plan's speed, memory, host RAM and batch."""
    return [speed_fact(question, chosen), *memory_facts(question, chosen), batch_fact(question, chosen)]


def further_facts(answer: Recommendation) -> Iterator[Fact]:
    """Yield what else belongs to the plan that is taken or the closest one, what its speed assumes, and the
    question."""
    question, chosen, shown = answer.question, answer.taken, answer.shown
    if chosen is not None:
        if rollouts := generators(question, answer.other_rollouts):
            yield Fact("rollouts", "", rollouts)
        yield from _reference(question, chosen)
    if shown is not None:
        yield from _evaluation(question, shown)
    yield from _loss(answer)
    if chosen is not None:
        duration = candidate_duration(question, chosen)
        if duration is not None:
            yield Fact("whole job", *whole_job(duration, question.price))
    for doubt in answer.doubts:
        yield Fact("note", "", doubt.removesuffix("."))
    if chosen is not None:
        assumed = [", ".join(speed_assumptions(question, chosen)), _cards_of_this_size(question, chosen)]
        if any(assumed):
            yield Fact("assumed", "", "; ".join(filter(None, assumed)))
    for title, words in zip(("model", "training"), answer_subject(question), strict=True):
        yield Fact(title, "", words, is_subject=True)


def speed_fact(question: Question, chosen: Candidate) -> Fact:
    """Return a plan's speed with its interval."""
    cluster, between, rollouts = question.cluster, chosen.time.tokens_per_s_range, question.workload.rollouts
    ranks, length = cluster.world_size + (rollouts.server_gpus if rollouts else 0), question.model.fixed_len
    words = f"{question.model.unit}/s"
    if between is not None:
        low, high = between
        words = f"{words} ({' to '.join(rough_rates(low, high, chosen.tokens_per_s))} in 80 % of runs)"
    if ranks > 1:
        words = f"{words}, {rate(chosen.tokens_per_s / ranks)} per {device_label(cluster)}"
    sequences = OBJECTIVES[question.workload.objective].sequences
    if sequences > 1:
        words = f"{words}; {rate(chosen.tokens_per_s / (sequences * question.workload.seq_len))} pairs/s"
    if chosen.time.step_s >= LONG_STEP_S:
        words = f"{words}; a step takes {hours(chosen.time.step_s)}"
    if length and length > 1:  # for an image model, samples are counted instead of patches
        words = f"{words}; {rate(chosen.tokens_per_s / length)} samples/s"
    return Fact("speed", rate(chosen.tokens_per_s), words)


def speed_assumptions(question: Question, chosen: Candidate) -> list[str]:
    """Return what a plan's speed assumes of the machine."""
    gpu = question.cluster.gpu
    unknown = f" for {gpu.unknown_name}, which is not in the table of GPUs" if gpu.unknown_name else ""
    assumed = [f"the speed of the {gpu.name}{unknown}"] if gpu.assumed else []
    return [*assumed, *(part.phrase for part in deciding_parts(question, chosen))]


def _cards_of_this_size(question: Question, chosen: Candidate) -> str:
    """Return the speeds on the cards that are slowest and fastest with the plan, if only a memory size was given. A
    card whose memory is predicted to be too small for the plan has the speed of its own answer, and is left out without
    one. A plan that may run out of memory there still runs at its own speed where it does not."""
    predicted = estimate_time(question.model, question.workload, question.cluster, chosen.plan)
    factor = chosen.tokens_per_s / predicted.tokens_per_s  # of a run of the plan
    cards = {card.cluster.gpu.name: card for card in _cards(question, chosen)}
    plans = {name: predict(card.model, card.workload, card.cluster, chosen.plan) for name, card in cards.items()}
    speeds = {name: plan.tokens_per_s for name, plan in plans.items()}
    misfits = {name for name, plan in plans.items() if plan.fit.probability < LIKELY}
    for end in (min, max):
        while speeds and (name := end(speeds, key=speeds.__getitem__)) in misfits:
            misfits.remove(name)
            del speeds[name]
            if best := fastest(cards[name]):
                speeds[name] = best_over_losses(cards[name], best)[1].tokens_per_s
    if len(speeds) < 2:
        return ""
    low, high = min(speeds, key=speeds.__getitem__), max(speeds, key=speeds.__getitem__)
    gigabytes, unit = question.cluster.gpu.same_size, f"{question.model.unit}/s"
    size = f"{gigabytes} GB"
    if gigabytes != question.cluster.gpu.nominal_gb:
        size = f"the nearest known size, {size}"
    slowest, fastest_rate = rate(factor * speeds[low]), rate(factor * speeds[high])
    if slowest == fastest_rate:
        return f"any card of {size}: {slowest} {unit}"
    return f"cards of {size}: {slowest} ({low}) to {fastest_rate} {unit} ({high})"


def _cards(question: Question, chosen: Candidate) -> Iterator[Question]:
    """Yield the question about every card that may be meant, with the plan's host, and with a precision and a loss that
    the card has."""
    node = chosen.node(question.cluster)
    same_host = replace(
        question.cluster,
        cpu_cores_per_node=cpu_cores(node),
        dram_bytes_per_s_per_node=dram_bytes_per_s(node),
        host_score_s=host_score_s(question.cluster),
    )
    for gpu in same_size_gpus(question.cluster.gpu):
        workload = question.workload
        if question.free_precision and workload.precision != "fp32":
            workload = replace(workload, precision=gpu.half_precision)
        if workload.precision == "bf16" and not gpu.has_bf16:
            continue
        card = replace(question, workload=workload)
        if unusable_loss(question.model, workload.loss, gpu) is not None:
            card = card.default_loss_question
        with suppress(WorkloadError):  # it cannot run the loss or the kernels that were asked for
            yield replace(card, cluster=replace(same_host, gpu=gpu))


def memory_facts(question: Question, chosen: Candidate) -> list[Fact]:
    """Return a plan's need of the GPU's memory and of host RAM and NVMe, with the available amounts."""
    memory, cluster, fit = chosen.memory, question.cluster, chosen.fit
    room, have, host = cluster.gpu.memory_bytes, cluster.host_memory_bytes_per_node, memory.host_bytes_per_node
    words = f"of {gib(room)} GiB per {device_label(cluster)}, fits with a probability of {chance(fit.gpu_probability)}"
    if fit.fits and chosen.device_bytes > room:
        words = f"{words} (PyTorch's cache can release some of it)"
    each = " per node" if cluster.nodes > 1 else ""
    others = gib(memory.host_bytes_of_other_nodes)
    where, rest = each, ""
    if each and others != gib(host):
        where, rest = " on the first node", f", {others} GiB on the others"
    if have is not None:
        offered = f"of {gib(have)} GiB{where}{rest}"
    elif fit.assumed_host_bytes:
        offered = f"GiB{where}, {whole_gib(fit.assumed_host_bytes):,} GiB with a margin for the error{rest}"
    else:
        offered = f"GiB{where}{rest} (--ram checks it)"
    if not chosen.plan.pin_memory:
        offered = f"{offered}, pin_memory false"
    if memory.nvme_bytes_per_node:
        offered = f"{offered}, {gib(memory.nvme_bytes_per_node)} GiB of NVMe{each}"
    words = ". ".join([words, *loading_peak(chosen)]).removesuffix(".")
    return [
        Fact("memory", gib(chosen.device_bytes), words, chosen.device_bytes / room),
        Fact("host RAM", gib(host), offered, None if have is None else host / have),
    ]


def loading_peak(plan: Candidate) -> tuple[str, ...]:
    """Return a sentence if the GPU needs the most memory before the engine shards or casts the weights."""
    peak = plan.memory.peak
    if peak.name != "load":
        return ()
    if any(term.declared is UNCAST_WEIGHTS for term in peak.terms):
        return ("Its peak is the loading: every GPU holds the weights in fp32 until DeepSpeed casts them.",)
    return ("Its peak is the loading: every GPU holds the whole model before ZeRO-3 shards it.",)


def batch_fact(question: Question, chosen: Candidate) -> Fact:
    """Return a plan's batch, how samples are shared among GPUs, and checkpointing."""
    plan, cluster, rollouts = chosen.plan, question.cluster, question.workload.rollouts
    device = device_label(cluster)
    samples = plan.samples_per_step(cluster.world_size)
    noun = counted_noun(samples, OBJECTIVES[question.workload.objective].sample).partition(" ")[2]
    prompts = f" of {samples // rollouts.num_generations} prompts" if rollouts else ""
    reason = question.reason_for_fewer_samples
    fewer = f"; fewer than {GLOBAL_BATCH}: {reason}" if reason else ""
    asked = f" (--global-batch{fewer})" if question.is_batch_free or question.free_batch else ""
    parts = [
        f"{noun}{prompts}{asked}",
        batch_factors(plan),
    ]
    parts += shared_among(plan, device)
    return Fact("batch", f"{samples:,}", ", ".join([*parts, checkpointing_title(plan)]))


def _reference(question: Question, chosen: Candidate) -> Iterator[Fact]:
    if not reference_passes(question.workload) or question.workload.rollouts:
        return
    share = percent(chosen.time.components.get("reference model", 0.0) / chosen.time.step_s)
    saved = "; --precompute-ref-log-probs saves"
    if has_reference_model(question.workload):
        without = replace(question.workload, precompute_ref_log_probs=True)
        other = predict(question.model, without, question.cluster, chosen.plan)
        device_bytes = chosen.device_bytes - other.device_bytes
        host_bytes = chosen.memory.host_bytes_per_node - other.memory.host_bytes_per_node
        sizes = [f"{gib(device_bytes)} GiB{' per GPU' if question.cluster.world_size > 1 else ''}"]
        if whole_gib(max(0, host_bytes)) > 0:
            sizes.append(f"{whole_gib(host_bytes):,} GiB of RAM")
        words = f"a second engine takes {', '.join(sizes)} and {share} of the time{saved} them"
    elif keeps_gathered(question.workload, chosen.plan):
        terms = (part for phase in chosen.memory.phases for part in phase.terms)
        weights = max(part.size_bytes for part in terms if part.name == "gathered_parameters")
        words = (
            f"the policy without adapters: {share} of the time, and ZeRO-3 keeps all weights in the backward pass, up "
            f"to {gib(weights)} GiB per GPU{saved} both"
        )
    else:
        words = f"the policy without adapters: {share} of the time, no memory"
    yield Fact("reference", "", words)


def _evaluation(question: Question, plan: Candidate) -> Iterator[Fact]:
    workload, memory = question.workload, plan.memory
    phase = next((phase for phase in memory.phases if phase.name == "evaluation"), None)
    if phase is None:
        return
    arguments = ", ".join(f"{name}={value}" for name, value in evaluation_arguments(workload).items())
    step = max(other.allocated_bytes for other in memory.phases if other is not phase)
    training = f"training {gib(step)}" if phase.allocated_bytes > step else "less than training"
    yield Fact("evaluation", "", f"takes {gib(phase.allocated_bytes)} GiB, {training} ({arguments})")
    if workload.eval_logits:
        kept = sum(term.size_bytes for term in memory.host_pageable_terms if term.name == "evaluated_logits")
        further = (
            "; preprocess_logits_for_metrics reduces this"
            if workload.eval_samples
            else " and more with more batches (--eval-samples)"
        )
        yield Fact("evaluation", "", f"its logits take {gib(kept)} GiB of RAM per node{further}")


def _loss(answer: Recommendation) -> Iterator[Fact]:
    without, loss = answer.without_loss, answer.question.workload.loss
    if without is None or answer.recommended is None:
        return
    standard = f"standard loss: {rate(without.tokens_per_s)} tokens/s"
    if without.fit.probability < LEAST[answer.question.risk]:
        standard = "no plan fits with the standard loss"
    yield Fact("loss", "", f"{loss} ({LOSSES[loss].switch}); {standard}")


def training_subject(question: Question, tool: str = "TRL") -> tuple[str, str]:
    """Return the model and its training, without the machines. tool: the library whose trainer implements the
    objective."""
    model, workload = question.model, question.workload
    size = f"{count(model.parameters)} parameters" + " (policy and value model)" * (model.policy is not None)
    if question.trainable_parameters != model.parameters:
        size = f"{size}, {count(question.trainable_parameters)} trained"
    length = tokens(workload.seq_len)
    if any(block.cross_attention for block in model.blocks):
        length = f"{length} (target tokens, which are counted; the source has {model.encoder_len(workload.seq_len)})"
    training = f"{workload.precision} · {workload.optimizer}"
    if model.unit != "samples":
        training = f"{training} · sequence {length}"
    details = (training, model.images_of_samples, *_attention(model, workload), *_unusual(workload, tool))
    return f"{model.name} · {size} · {method_title(workload)}", ", ".join(filter(None, details))


def _attention(model: ModelShape, workload: Workload) -> Iterator[str]:
    """Yield the attention kernel if it is not sdpa, which most classes run by default."""
    if runs_eager(model, workload):
        yield "attention eager"
    elif workload.attention != "sdpa":
        yield f"attention {workload.attention}"


_SOFTWARE = {
    "reentrant": "reentrant checkpointing",
    "loading host-fp32": "loaded in fp32",
    "loading gpu": "loaded on the GPU",
    "loading gpu-fp32": "trained weights cast to fp32 on the GPU",
}
"""Words for settings of the software that their names do not make clear."""


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
    needless = "fp32_adapters" if workload.method == "full" else "autocast"
    for field in fields(Software):
        value, name = getattr(workload.software, field.name), field.name.replace("_", " ")
        if value != getattr(DEFAULT, field.name) and field.name != needless:
            version = ".".join(map(str, value)) if isinstance(value, tuple) else value
            words = name if value is True else f"no {name}" if value is False else f"{name} {version}"
            yield _SOFTWARE.get(words, words)


def answer_subject(question: Question, tool: str = "TRL") -> tuple[str, str]:
    """Return a title of the model, and one of the training and the machines. tool: the library whose trainer
    implements the objective."""
    model, training = training_subject(question, tool)
    machines = cluster_title(question.cluster, speed=False)
    return model, f"{training} · {machines}"
