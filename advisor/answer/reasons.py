"""Reasons for the chosen plan: shortcomings of the others, and the limit on the batch. Doubts about it: costs in
accuracy, and plans that are close."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from math import inf, sqrt

from ...estimators.models.training_dtype import trained_in_bf16
from ...estimators.plan import Plan
from ...estimators.time.step_time import ratio_spread
from ..question.question import MAX_TOKENS_PER_STEP, Question
from ..search.candidate import FAILED, LEAST, LIKELY, NEEDS_MORE, RAN_OUT, Candidate, LadderStep, chance, lacking
from ..search.choice import (
    COMFORTABLE,
    SAME_SPEED,
    closest,
    costly_features,
    is_passed_for_room,
    offloads,
    other_taken_plans,
)
from ..text.labels import component_title, device_label
from ..text.units import count, gib, listed, percent, rate, times

_MUCH_LESS_RAM = 0.5
"""Share of the chosen plan's host RAM below which a plan that is as fast is named with its own: a host of the next
smaller size holds it."""


def reasons(
    question: Question, ladder: Sequence[LadderStep], chosen: Candidate | None, candidates: Sequence[Candidate]
) -> tuple[str, ...]:
    """Return the reasons as sentences, most decisive first; without a fitting plan, the obstacles."""
    device, least = device_label(question.cluster), LEAST[question.risk]
    if chosen is None:
        missed = closest(ladder)
        return (_obstacle(missed, device),) if missed and missed.fit.limit == "gpu" else ()
    below = takewhile(lambda step: step.strategy != chosen.strategy, ladder)
    failed = [step.candidate for step in below if not step.taken and step.candidate is not None]
    of_strategy = [each for each in candidates if each.strategy == chosen.strategy]
    sentences = (
        _next_best(ladder, chosen),
        _obstacle(failed[-1], device) if failed else "",
        *_features(chosen, candidates, device, least),
        _checkpointing(chosen, of_strategy, device, least),
        _micro_batch(question, chosen, of_strategy),
    )
    return tuple(sentence for sentence in sentences if sentence)


def _next_best(ladder: Sequence[LadderStep], chosen: Candidate) -> str:
    others = other_taken_plans(ladder, chosen)
    if not others:
        return f"No other strategy fits{_without(ladder)}."
    rival = max(others, key=lambda candidate: candidate.tokens_per_s)
    ratio = rival.tokens_per_s / chosen.tokens_per_s
    if costly_features(rival.plan) > costly_features(chosen.plan) and ratio > 1 + SAME_SPEED:
        needs_host = offloads(rival.plan) and not offloads(chosen.plan)
        gain = f"{rival.strategy} might gain {percent(ratio - 1)}, which is within the error of the prediction"
        if not needs_host:
            return f"{gain}."
        need = gib(rival.memory.host_bytes_per_node)
        return f"{gain}, and takes {need} GiB of host RAM."
    if ratio >= 1 - SAME_SPEED and is_passed_for_room(rival, chosen):
        return f"{rival.strategy} is equally fast, but leaves less than {percent(1 - COMFORTABLE)} of a resource free."
    if ratio >= 1 - SAME_SPEED:
        return f"{rival.strategy} is equally fast within {percent(SAME_SPEED)}; {chosen.strategy} is simpler."
    slow, fast = rival.time, chosen.time
    extra = max(
        slow.components,
        key=lambda name: (
            slow.components[name] / slow.tokens_per_step - fast.components.get(name, 0.0) / fast.tokens_per_step
        ),
    )
    return (
        f"The next best plan, {rival.strategy}, runs at {percent(ratio)} of this speed; the difference is mostly "
        f"{component_title(extra)}."
    )


def _without(ladder: Sequence[LadderStep]) -> str:
    """Return ` without NVMe` or ` without more RAM or NVMe` if strategies lack nothing else."""
    fits = (step.candidate.fit for step in ladder if step.candidate is not None and not step.taken)
    found = lacking({fit.limit for fit in fits if fit.gpu_likely_suffices})
    return f" without {found}" if found else ""


def _obstacle(candidate: Candidate, device: str) -> str:
    memory, strategy, fit = candidate.memory, candidate.strategy, candidate.fit
    if fit.reason in (RAN_OUT, FAILED):
        return f"{strategy} {fit.reason} when it was probed on this machine."
    if fit.reason == NEEDS_MORE:
        return f"{strategy} needs more than a plan that ran out of memory on this machine."
    if fit.limit == "host":
        need = gib(memory.host_bytes_per_node)
        return f"{strategy} needs {need} GiB of host RAM per node."
    if fit.limit != "gpu":
        return f"{strategy} needs {gib(memory.nvme_bytes_per_node)} GiB of NVMe per node."
    need = gib(memory.device_bytes_per_gpu)
    if fit.probability >= LIKELY:
        return f"{strategy} needs {need} GiB per {device}: it fits with a probability of {chance(fit.probability)}."
    name, size_bytes = max(memory.components.items(), key=lambda pair: pair[1])
    return f"{strategy} needs at least {need} GiB per {device} ({component_title(name)}: {gib(size_bytes)})."


_FEATURES: Mapping[str, Callable[[Plan], bool]] = {
    "Sample sharing (Ulysses)": lambda plan: plan.sequence_parallel_size > 1,
    "Layer splitting (AutoTP)": lambda plan: plan.autotp_size > 1,
    "Expert parallelism (AutoEP)": lambda plan: plan.autoep_size > 1,
    "A second copy of the weights in every node (hpZ)": lambda plan: plan.zero_hpz_partition_size > 1,
    "Quantization of collectives (ZeRO++)": lambda plan: plan.quantizes_collectives,
    "Storage of layer inputs in host RAM": lambda plan: plan.cpu_checkpointing,
}
"""Features of plans, each compared with the plans without it."""


def _features(chosen: Candidate, candidates: Sequence[Candidate], device: str, least: float) -> Iterator[str]:
    """Yield what each feature of the chosen plan gains over the fastest plan without it, or that no such plan fits."""
    for feature, has in _FEATURES.items():
        others = [each for each in candidates if not has(each.plan)]
        if not has(chosen.plan) or not others:
            continue
        fitting = [each for each in others if each.fit.probability >= least]
        if fitting:
            best = max(fitting, key=lambda each: each.tokens_per_s)
            share = percent(best.tokens_per_s / chosen.tokens_per_s)
            yield f"{feature}: without it, the fastest plan that fits, {best.strategy}, runs at {share} of this speed."
        else:
            need = gib(min(candidate.device_bytes for candidate in others))
            yield f"{feature}: without it, every plan needs at least {need} GiB per {device}."


def _checkpointing(chosen: Candidate, of_strategy: Sequence[Candidate], device: str, least: float) -> str:
    plan = chosen.plan
    others = [each for each in of_strategy if each.plan.gradient_checkpointing != plan.gradient_checkpointing]
    fitting = [each for each in others if each.fit.probability >= least]
    if not others:
        return ""
    if not fitting:
        smallest = min(others, key=lambda candidate: candidate.device_bytes)
        if not plan.gradient_checkpointing or smallest.fit.limit != "gpu":
            return ""
        return (
            f"Without gradient checkpointing it would need {gib(smallest.device_bytes)} GiB per {device} at micro "
            f"batch {smallest.plan.micro_batch_size}."
        )
    rival = max(fitting, key=lambda candidate: candidate.tokens_per_s)
    ratio = chosen.tokens_per_s / rival.tokens_per_s
    if ratio <= 1 + SAME_SPEED:
        return ""
    if not plan.gradient_checkpointing:
        return f"Without gradient checkpointing it is {times(ratio)} as fast: nothing is computed twice."
    gain = f"Gradient checkpointing makes it {times(ratio)} as fast"
    size, other = plan.micro_batch_size, rival.plan.micro_batch_size
    if size == other:
        return f"{gain}."
    return f"{gain}: there is room for micro batch {size} instead of {other}."


def _micro_batch(question: Question, chosen: Candidate, of_strategy: Sequence[Candidate]) -> str:
    plan, cluster = chosen.plan, question.cluster
    if question.micro_batch_size is not None:
        return ""

    def settings(plan: Plan) -> tuple[bool, bool, bool, int, int]:
        """Return the settings, except the micro batch, that determine a forward and backward pass."""
        groups = plan.ranks_per_sample, plan.zero_hpz_partition_size
        return plan.gradient_checkpointing, plan.cpu_checkpointing, plan.quantizes_collectives, *groups

    larger = [
        each
        for each in of_strategy
        if settings(each.plan) == settings(plan) and each.plan.micro_batch_size > plan.micro_batch_size
    ]
    if not larger:
        next_step_tokens = 2 * chosen.time.tokens_per_step
        if question.workload.global_batch_size is not None or next_step_tokens <= MAX_TOKENS_PER_STEP:
            return ""
        return (
            f"A larger micro batch was not tried: it has more than {count(MAX_TOKENS_PER_STEP)} tokens per step "
            "(--micro-batch or --global-batch sets it)."
        )
    following = min(larger, key=lambda candidate: candidate.plan.micro_batch_size)
    if following.fit.probability >= LEAST[question.risk]:
        return f"A larger micro batch gains less than {percent(SAME_SPEED)}."
    if following.fit.limit != "gpu":
        return ""
    need = (
        f"Micro batch {following.plan.micro_batch_size} would need {gib(following.device_bytes)} GiB per "
        f"{device_label(cluster)}"
    )
    if following.device_bytes > cluster.gpu.memory_bytes:
        return f"{need}."
    return f"{need}, which fits with a probability of {chance(following.fit.probability)}."


ROUNDED = (
    "Master weights in bf16 have 8 significant bits, so an update below 1/512 of a weight is rounded away: compare "
    "the loss with that of --optimizer-dtype fp32 before a long training."
)
SENT_IN_FEWER_BITS = (
    "Communicating weights in 8 bits and gradients in 4 changes the loss: compare it with a run without --zeropp "
    "before a long training. DeepSpeed's quantization kernels run on NVIDIA GPUs only; their memory and traffic are "
    "derived from its source code."
)
NEEDS_TRANSFORMERS = (
    "AutoEP needs transformers 5.0 to 5.22: DeepSpeed 0.19.8 cannot initialize it with later versions. transformers "
    "saves only the experts of rank 0: keep DeepSpeed's own checkpoints (engine.save_checkpoint). The step time "
    "assumes a balanced router and has not been compared with published runs."
)


def positions_note(question: Question) -> str:
    """Return a sentence on sequences that are longer than the model's configuration states; "" for others."""
    limit = question.model.max_positions
    if limit is None or question.workload.seq_len <= limit:
        return ""
    return f"The model's configuration states {limit:,} positions; longer sequences need RoPE scaling."


OVERFLOWS = "fp16 may overflow: the model was trained in bf16. Train with {precision}."


NEEDS_CUDA_12 = "torch must be a build for CUDA 12: CUDA 13 has nothing before Turing."

_LEAST_CAPABILITY_OF_CUDA_13 = 7.5
"""NVIDIA, CUDA 13.0 release notes: Maxwell, Pascal and Volta are removed."""


def doubts(question: Question, ladder: Sequence[LadderStep], chosen: Candidate | None) -> tuple[str, ...]:
    """Return cautions and doubts: a sequence beyond the model's positions, fp16 for a model that was trained in bf16,
    a GPU that CUDA 13 does not have, the accuracy cost of bf16 states and quantized collectives, the requirements of
    AutoEP, the negatives of embeddings, and plans that are close (`close_plans`). Without a chosen plan only the first
    applies.
    """
    beyond = [note] if (note := positions_note(question)) else []
    if chosen is None:
        return tuple(beyond)
    cluster, plan = question.cluster, chosen.plan
    safer = "--precision bf16" if cluster.gpu.has_bf16 else "--precision fp32, or on a GPU with bf16"
    cautions = (
        (question.workload.precision == "fp16" and trained_in_bf16(question.model), OVERFLOWS.format(precision=safer)),
        ((cluster.gpu.compute_capability or inf) < _LEAST_CAPABILITY_OF_CUDA_13, NEEDS_CUDA_12),
        (plan.bf16_optimizer_states, ROUNDED),
        (plan.quantizes_collectives, SENT_IN_FEWER_BITS),
        (plan.autoep_size > 1, NEEDS_TRANSFORMERS),
    )
    return (
        *beyond,
        *(caution for applies, caution in cautions if applies),
        *_negatives(question, plan),
        *close_plans(question, ladder, chosen),
    )


def _negatives(question: Question, plan: Plan) -> Iterator[str]:
    """Yield what accumulation does to the loss of embeddings: it compares the texts of one micro batch, so the model
    that results depends on the micro batch and not on the samples per step."""
    micro, steps = plan.micro_batch_size, plan.gradient_accumulation_steps
    if question.workload.objective == "embedding" and steps > 1:
        yield (
            f"each text is compared with {micro} texts, those of its micro batch; accumulation adds none. "
            f"--micro-batch {micro * steps}, if it fits, compares {micro * steps}."
        )


def close_plans(question: Question, ladder: Sequence[LadderStep], chosen: Candidate | None) -> tuple[str, ...]:
    """Return sentences on the plans that are close to the chosen one; none without it.

    Two plans are close if the predicted gap is less than the median error of a predicted speed ratio (half of its
    interval, in logarithms), so their order is open. On one GPU, ZeRO partitions nothing, so only plans that all
    offload are compared.
    """
    if chosen is None:
        return ()
    cluster, plan = question.cluster, chosen.plan
    compared = [
        other
        for other in other_taken_plans(ladder, chosen)
        if (cluster.world_size > 1 or (other.plan.offloads and plan.offloads))
        and not chosen.estimate.evidence == other.estimate.evidence == "probe"
    ]
    gaps = {other.strategy: sqrt(ratio_spread(plan, other.plan).low) for other in compared}
    speeds = [each.tokens_per_s for each in compared if each.tokens_per_s >= chosen.tokens_per_s * gaps[each.strategy]]
    # One whose ratio is predicted better is named with those that are close and no faster, as far as they are printed.
    least = min(speeds, default=inf)
    close = [each for each in compared if speeds and rate(min(each.tokens_per_s, least)) == rate(least)]
    return tuple(_close(close, chosen, question.model.unit))


def _close(plans: Sequence[Candidate], chosen: Candidate, unit: str) -> Iterator[str]:
    """Yield `zero3: predicted 2 % faster, within the error; the simpler plan is used.` or, for a lower strategy, `...;
    zero2 leaves more memory free.`, and `zero2 and ddp are close: 25,600 to 30,400 tokens/s.`"""
    ahead = [plan for plan in plans if plan.tokens_per_s >= 1.005 * chosen.tokens_per_s]
    behind = [plan for plan in plans if plan not in ahead]
    for for_room in (True, False):
        passed = [plan for plan in ahead if is_passed_for_room(plan, chosen) == for_room]
        if passed:
            gain = percent(max(plan.tokens_per_s for plan in passed) / chosen.tokens_per_s - 1)
            if len(passed) > 1:
                gain = f"up to {gain}"
            names = listed([plan.strategy for plan in passed])
            why = f"{chosen.strategy} leaves more memory free" if for_room else "the simpler plan is used"
            least = min(passed, key=lambda plan: plan.host_bytes)
            if not for_room and least.host_bytes < _MUCH_LESS_RAM * chosen.host_bytes:
                why += f", with {gib(chosen.host_bytes)} GiB of RAM ({least.strategy}: {gib(least.host_bytes)})"
            yield f"{names}: predicted {gain} faster, within the error; {why}."
    if behind:
        speeds = sorted(plan.tokens_per_s for plan in behind)
        low, high = rate(speeds[0]), rate(speeds[-1])
        speed = low if low == high else f"{low} to {high}"
        names = listed([plan.strategy for plan in behind])
        yield (f"{names} is close: {speed} {unit}/s." if len(behind) == 1 else f"{names} are close: {speed} {unit}/s.")
