"""Why this plan: what the others lack, what bounds the batch, and where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING

from ...ds_configs.launch_commands import PROGRAMS, Launcher, unset_threads
from ...estimators.estimate import TimeEstimate
from ...estimators.hardware.cluster import Cluster
from ...estimators.phrase import Phrase, listed, phrase
from ...estimators.plan import RUNGS, Plan
from ...estimators.time.step_time import estimate_time, ratio_spread
from ..question.question import MAX_TOKENS_PER_STEP, Question
from ..search.candidate import FAILED, LEAST, LIKELY, NEEDS_MORE, RAN_OUT, Candidate, LadderStep, chance
from ..search.choice import COMFORTABLE, SAME_SPEED, costly_features, tolerance
from ..text.labels import component_title, device_label
from ..text.units import count, gib, percent, rate, times, whole_percents
from .recommendation import closest

if TYPE_CHECKING:
    from ...validate.deepspeed_estimate import DeepSpeedEstimate


def gain_of_risk(question: Question, risky: Candidate, chosen: Candidate | None) -> Phrase:
    """What a plan that is only likely to fit would gain; chosen: the recommended one."""
    told = {
        "rung": risky.rung,
        "size": risky.plan.micro_batch_size,
        "need": gib(risky.device_bytes),
        "have": gib(question.cluster.gpu.memory_bytes),
        "chance": chance(risky.fit.probability),
    }
    if chosen is None:
        return phrase(
            "{rung}, micro batch {size}, probably fits ({need} of {have} GiB, {chance}): try it, and watch its memory.",
            **told,
        )
    return phrase(
        "{rung}, micro batch {size}, probably fits too ({need} of {have} GiB, {chance}) and would be {ratio} as fast: "
        "try it first.",
        ratio=times(risky.tokens_per_s / chosen.tokens_per_s),
        **told,
    )


def reasons(
    question: Question, ladder: Sequence[LadderStep], chosen: Candidate | None, candidates: Sequence[Candidate]
) -> tuple[str, ...]:
    """Sentences, most decisive first; for a question without a fitting plan, what stands in the way."""
    device = device_label(question.cluster)
    if chosen is None:
        missed = closest(ladder)
        return (_obstacle(missed, device),) if missed and missed.fit.limit == "gpu" else ()
    sentences = [
        _next_best(ladder, chosen),
        _simpler_that_fails(ladder, chosen, device),
        _layer_inputs(chosen, candidates, device),
        _shared_samples(chosen, candidates, device, LEAST[question.risk]),
        _split_layers(chosen, candidates, device, LEAST[question.risk]),
        _spread_experts(chosen, candidates, device, LEAST[question.risk]),
        _second_copy(chosen, candidates, LEAST[question.risk]),
        _fewer_bits(chosen, candidates, LEAST[question.risk]),
        _checkpointing(chosen, candidates, device, LEAST[question.risk]),
        _kept_states(chosen),
        _micro_batch(question, chosen, candidates),
    ]
    return tuple(sentence for sentence in sentences if sentence)


ROUNDED = phrase(
    "Master weights in bf16 have 8 significant bits, so an update below 1/512 of a weight is rounded away: compare the "
    "loss with that of --states fp32 before a long training."
)


SENT_IN_FEWER_BITS = phrase(
    "Weights that travel in 8 bits and gradients in 4 change the losses: compare them with those of --collectives "
    "exact before a long training. DeepSpeed's kernels for it run on NVIDIA's GPUs only; what they allocate and send "
    "is derived from its sources."
)


NEEDS_TRANSFORMERS = phrase(
    "AutoEP needs transformers 5.0 to 5.22: DeepSpeed 0.19.8 cannot initialize it with later ones. What transformers "
    "saves are rank 0's experts alone: keep DeepSpeed's own checkpoints (engine.save_checkpoint). Its time is that of "
    "a balanced router, and has not been held against published runs."
)


def doubts(cluster: Cluster, ladder: Sequence[LadderStep], chosen: Candidate | None) -> tuple[str, ...]:
    """What bf16 states and quantized collectives cost in accuracy, and what AutoEP needs; and what might make another
    plan that fits the fastest: an assumed figure that decides, and plans that are close.

    Close: so little slower that the order is open, for half of all predicted ratios of two speeds are further off (half
    of their interval, in logarithms). On one GPU a stage that offloads nothing shares nothing and can only take longer.
    """
    others = [step.candidate for step in ladder if step.taken and step.candidate and step.candidate is not chosen]
    told: tuple[str, ...] = (ROUNDED,) if chosen is not None and chosen.plan.bf16_optimizer_states else ()
    told += (SENT_IN_FEWER_BITS,) if chosen is not None and chosen.plan.quantizes_collectives else ()
    told += (NEEDS_TRANSFORMERS,) if chosen is not None and chosen.plan.autoep_size > 1 else ()
    if chosen is None or not others:
        return told
    winner, assumption = _deciding_assumption(cluster, others, chosen)
    close = [
        other
        for other in others
        if other is not winner
        and (cluster.world_size > 1 or other.plan.offloads)
        and not chosen.estimate.evidence == other.estimate.evidence == "probe"
        and other.tokens_per_s >= chosen.tokens_per_s * sqrt(ratio_spread(chosen.plan, other.plan).low)
    ]
    return (*told, *assumption, *_close(close))


def _close(plans: Sequence[Candidate]) -> tuple[str, ...]:
    """`zero2 and zero3 are close: 25,600 to 30,400 tokens/s.`"""
    if not plans:
        return ()
    *names, last = (candidate.rung for candidate in plans)
    speeds = [rate(speed) for speed in sorted(candidate.tokens_per_s for candidate in plans)]
    speed = speeds[0]
    if speeds[-1] != speed:
        speed = phrase("{low} to {high}", low=speed, high=speeds[-1])
    if not names:
        return (phrase("{rung} is close: {speed} tokens/s.", rung=last, speed=speed),)
    return (phrase("{rungs} and {last} are close: {speed} tokens/s.", rungs=", ".join(names), last=last, speed=speed),)


_ASSUMED: Mapping[Phrase, tuple[Callable[[Cluster], bool], frozenset[str]]] = {
    phrase("GPUs"): (lambda cluster: cluster.gpu.assumed, frozenset(("gpu compute", "gpu memory"))),
    phrase("links between GPUs"): (
        lambda cluster: (
            cluster.gpu.peer_link == "pcie" and cluster.gpus_per_node > 1 and cluster.all_reduce_bytes_per_s is None
        ),
        frozenset(("gpu links",)),
    ),
    phrase("host memory"): (
        lambda cluster: (
            cluster.dram_bytes_per_s_per_node is None and cluster.cpu_adam_parameters_per_s_per_node is None
        ),
        frozenset(("cpu",)),
    ),
    phrase("a drive"): (lambda cluster: cluster.nvme_read_bytes_per_s_per_node is None, frozenset(("nvme",))),
}
"""What may be assumed of a cluster: whether it is, and the resources whose terms then take longer or less."""

ASSUMED_FACTOR = 2.0
"""An assumed speed may be half or twice the true one: cards of one memory size, hosts, and what PCIe carries between
cards differ by as much."""


def _deciding_assumption(
    cluster: Cluster, others: Sequence[Candidate], chosen: Candidate
) -> tuple[Candidate | None, tuple[str, ...]]:
    """The plan that would be chosen if an assumed speed were half or twice as high, and the sentence on it.

    Terms are scaled as they stand, so what hides behind them does not move.
    """
    for name, (is_assumed, resources) in _ASSUMED.items():
        halved, doubled = phrase("half as fast"), phrase("twice as fast")
        for speed, words in ((1 / ASSUMED_FACTOR, halved), (ASSUMED_FACTOR, doubled)) if is_assumed(cluster) else ():
            speeds = [(_tokens_per_s(other, resources, speed), other) for other in others]
            best, winner = max(speeds, key=lambda pair: pair[0])
            if _tokens_per_s(chosen, resources, speed) < best * (1 - tolerance(winner.plan, chosen.plan)):
                return winner, (
                    phrase(
                        "An assumed speed decides: with {what} {speed}, {rung} would win.",
                        what=name,
                        speed=words,
                        rung=winner.rung,
                    ),
                )
    return None, ()


def _tokens_per_s(candidate: Candidate, resources: frozenset[str], speed: float) -> float:
    """Its speed where some resources are so many times as fast."""
    terms = candidate.time.terms
    step_s = sum(term.seconds / speed if term.resource in resources else term.seconds for term in terms)
    return candidate.time.tokens_per_step / step_s


_LARGEST_REST = 0.3
"""A share of the step that a reader may be left without a name for."""


def time_shares(time: TimeEstimate, least: float) -> Phrase:
    """`matrix products 70 %, attention 25 %, other 5 %`: the step's terms, largest first; those below a share of
    `least` are the others, as far as these do not come to more than three tenths together."""
    shares = sorted(((taken / time.step_s, name) for name, taken in time.components.items() if taken > 0), reverse=True)
    shown, rest = [], 1.0
    for share, name in shares:
        if share < least and rest <= _LARGEST_REST:
            break
        shown.append((component_title(name), share))
        rest -= share
    shown.append((phrase("other"), max(0.0, rest)))
    percents = whole_percents([share for _, share in shown])
    parts = zip(shown, percents, strict=True)
    return listed([phrase("{part} {share} %", part=name, share=whole) for (name, _), whole in parts if whole])


def slower_without_threads(question: Question, chosen: Candidate) -> dict[Launcher, float]:
    """How many times as long the plan's step takes by launcher where nobody sets OMP_NUM_THREADS, against the threads
    that it is predicted with. Empty where the optimizer steps on the device."""
    if chosen.plan.offload_optimizer == "none":
        return {}
    launchers = [name for name in PROGRAMS if name != "accelerate" or question.workload.framework == "hf"]
    return {name: slower_with(question, chosen, unset_threads(name, question.cluster)) for name in launchers}


def slower_with(question: Question, chosen: Candidate, threads_per_rank: int) -> float:
    """The plan's step with so many threads for each rank, over that with those it is predicted with."""
    cluster = replace(question.cluster, threads_per_rank=threads_per_rank)
    model, workload = question.model, question.workload
    predicted = estimate_time(model, workload, question.cluster, chosen.plan)
    return estimate_time(model, workload, cluster, chosen.plan).step_s / predicted.step_s


def _next_best(ladder: Sequence[LadderStep], chosen: Candidate) -> str:
    others = [step.candidate for step in ladder if step.taken and step.candidate and step.candidate is not chosen]
    if not others:
        return "No other rung fits."
    rival = max(others, key=lambda candidate: candidate.tokens_per_s)
    ratio = rival.tokens_per_s / chosen.tokens_per_s
    if costly_features(rival.plan) > costly_features(chosen.plan) and ratio > 1 + SAME_SPEED:
        offloads = rival.plan.offloads and not chosen.plan.offloads
        ram = f", and takes {gib(rival.memory.host_bytes_per_node)} GiB of host RAM" if offloads else ""
        return f"{rival.rung} might gain {percent(ratio - 1)}, too little to be sure of{ram}."
    if ratio >= 1 - SAME_SPEED and RUNGS.index(rival.rung) < RUNGS.index(chosen.rung):
        return (
            f"{rival.rung} is as fast, but leaves less than {percent(1 - COMFORTABLE)} of its tightest resource free."
        )
    if ratio >= 1 - SAME_SPEED:
        return f"{rival.rung} is as fast within {percent(SAME_SPEED)}; {chosen.rung} has fewer moving parts."
    return (
        f"The next best, {rival.rung}, runs at {percent(ratio)} of its speed; the difference is mostly "
        f"{component_title(_largest_extra(rival.time, chosen.time))}."
    )


def _fastest_that_fits(
    candidates: Sequence[Candidate], least: float, *, without: Callable[[Candidate], bool]
) -> Candidate | None:
    """The fastest plan without something that may be taken; None where none may."""
    fitting = (each for each in candidates if without(each) and each.fit.probability >= least)
    return max(fitting, key=lambda candidate: candidate.tokens_per_s, default=None)


def _share_of(chosen: Candidate, other: Candidate) -> str:
    """`84 %`: how fast another plan is against the chosen one."""
    return percent(other.tokens_per_s / chosen.tokens_per_s)


def _shared_samples(chosen: Candidate, candidates: Sequence[Candidate], device: str, least: float) -> str:
    """What GPUs that share samples win over the best plan without: it does not fit, or is slower."""
    shared = chosen.plan.sequence_parallel_size
    if shared == 1:
        return ""
    best = _fastest_that_fits(candidates, least, without=lambda each: each.plan.sequence_parallel_size == 1)
    if best is not None:
        return (
            f"{shared} {device}s share each sample (Ulysses): with whole samples the fastest plan that fits, "
            f"{best.rung}, runs at {_share_of(chosen, best)} of its speed."
        )
    whole = [candidate for candidate in candidates if candidate.plan.sequence_parallel_size == 1]
    if not whole:
        return f"{shared} {device}s share each sample (Ulysses), as the batch asks."
    least_need = min(candidate.device_bytes for candidate in whole)
    return (
        f"{shared} {device}s share each sample (Ulysses): with whole samples every plan needs at least "
        f"{gib(least_need)} GiB per {device}."
    )


def _split_layers(chosen: Candidate, candidates: Sequence[Candidate], device: str, least: float) -> str:
    """What layers that GPUs split win over samples that they share."""
    ranks = chosen.plan.autotp_size
    if ranks == 1:
        return ""
    why = f"{ranks} {device}s split each layer (AutoTP), because the batch has fewer samples than there are {device}s"
    best = _fastest_that_fits(candidates, least, without=lambda each: each.plan.autotp_size == 1)
    if best is None:
        return f"{why}."
    share = _share_of(chosen, best)
    return f"{why}: with samples that they share instead (Ulysses), {best.rung} runs at {share} of this speed."


def _spread_experts(chosen: Candidate, candidates: Sequence[Candidate], device: str, least: float) -> str:
    """What experts that stay on their GPUs win over experts that ZeRO shards and gathers."""
    ranks = chosen.plan.autoep_size
    if ranks == 1:
        return ""
    why = f"Experts are spread over {ranks} {device}s (AutoEP), and tokens travel to them"
    best = _fastest_that_fits(candidates, least, without=lambda each: each.plan.autoep_size == 1)
    if best is None:
        need = min(each.device_bytes for each in candidates if each.plan.autoep_size == 1)
        return f"{why}: with experts that ZeRO shards every plan needs at least {gib(need)} GiB per {device}."
    share = _share_of(chosen, best)
    return (
        f"{why}: with experts that ZeRO shards the fastest plan that fits, {best.rung}, runs at {share} of this speed."
    )


def _kept_states(chosen: Candidate) -> str:
    """Why a part of an offloaded optimizer is on the GPU."""
    if chosen.plan.offload_optimizer_ratio == 1:
        return ""
    return phrase(
        "The GPU has room for some of the optimizer, which the host would step more slowly: {share} of its sub-groups "
        "stay in host RAM (offload_optimizer.ratio).",
        share=percent(chosen.plan.offload_optimizer_ratio),
    )


def _second_copy(chosen: Candidate, candidates: Sequence[Candidate], least: float) -> str:
    """What hpZ wins over the best plan of the rung without."""
    of_rung = [each for each in candidates if each.rung == chosen.rung]
    best = _fastest_that_fits(of_rung, least, without=lambda each: each.plan.zero_hpz_partition_size == 1)
    if chosen.plan.zero_hpz_partition_size == 1 or best is None:
        return ""
    held, share = gib(chosen.memory.components.get("second_copy_of_weights", 0)), _share_of(chosen, best)
    return (
        f"Every node keeps a second copy of the weights (hpZ, {held} GiB per GPU at the peak), so that the backward "
        f"pass does not gather them over the network: without it {chosen.rung} runs at {share} of this speed."
    )


def _fewer_bits(chosen: Candidate, candidates: Sequence[Candidate], least: float) -> str:
    """What quantized collectives win over the best plan without."""
    best = _fastest_that_fits(candidates, least, without=lambda each: not each.plan.quantizes_collectives)
    if not chosen.plan.quantizes_collectives or best is None:
        return ""
    gradients = " and gradients in 4" if chosen.plan.zero_quantized_gradients else ""
    return (
        f"Weights travel in 8 bits{gradients} (ZeRO++): with exact collectives the fastest plan that fits, "
        f"{best.rung}, runs at {_share_of(chosen, best)} of this speed."
    )


def _largest_extra(slow: TimeEstimate, fast: TimeEstimate) -> str:
    """The term on which `slow` spends most more per token than `fast`."""
    return max(
        slow.components,
        key=lambda name: (
            slow.components[name] / slow.tokens_per_step - fast.components.get(name, 0.0) / fast.tokens_per_step
        ),
    )


def _simpler_that_fails(ladder: Sequence[LadderStep], chosen: Candidate, device: str) -> str:
    """The rung just below the chosen one that does not fit, and its largest component."""
    below = ladder[: next(index for index, step in enumerate(ladder) if step.candidate is chosen)]
    failed = [step.candidate for step in below if not step.taken and step.candidate is not None]
    return _obstacle(failed[-1], device) if failed else ""


def _obstacle(candidate: Candidate, device: str) -> str:
    memory, rung = candidate.memory, candidate.rung
    if candidate.fit.reason in (RAN_OUT, FAILED):
        how = candidate.fit.reason
        return phrase("{rung} {failed} when it was probed on this machine.", rung=rung, failed=how)
    if candidate.fit.reason == NEEDS_MORE:
        return phrase("{rung} needs more than what ran out of memory on this machine.", rung=rung)
    if candidate.fit.limit == "gpu":
        need, sure = gib(memory.device_bytes_per_gpu), chance(candidate.fit.probability)
        if candidate.fit.probability >= LIKELY:
            return phrase(
                "{rung} needs {need} GiB per {device}: it fits with a probability of {chance}.",
                rung=rung,
                need=need,
                device=device,
                chance=sure,
            )
        name, size_bytes = max(memory.components.items(), key=lambda pair: pair[1])
        return phrase(
            "{rung} needs at least {need} GiB per {device}, {part} of it for {component}.",
            rung=rung,
            need=need,
            device=device,
            part=gib(size_bytes),
            component=component_title(name),
        )
    if candidate.fit.limit == "host":
        need = gib(memory.host_bytes_per_node)
        return phrase("{rung} needs {need} GiB of host RAM per node.", rung=rung, need=need)
    need = gib(memory.nvme_bytes_per_node)
    return phrase("{rung} needs {need} GiB of NVMe per node.", rung=rung, need=need)


def _checkpointing(chosen: Candidate, candidates: Sequence[Candidate], device: str, least: float) -> str:
    plan = chosen.plan
    others = [
        candidate
        for candidate in candidates
        if candidate.rung == chosen.rung and candidate.plan.gradient_checkpointing != plan.gradient_checkpointing
    ]
    if not others:
        return ""
    fitting = [candidate for candidate in others if candidate.fit.probability >= least]
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
    if plan.micro_batch_size == rival.plan.micro_batch_size:
        return f"{gain}."
    return f"{gain}: there is room for micro batch {plan.micro_batch_size} instead of {rival.plan.micro_batch_size}."


def _layer_inputs(chosen: Candidate, candidates: Sequence[Candidate], device: str) -> str:
    """Why layers' inputs wait on the host."""
    others = [
        candidate.device_bytes
        for candidate in candidates
        if candidate.rung == chosen.rung
        and candidate.plan.gradient_checkpointing
        and not candidate.plan.cpu_checkpointing
    ]
    if not chosen.plan.cpu_checkpointing or not others:
        return ""
    return (
        "The layers' inputs wait in host RAM for the backward pass: with them on the GPU it would need "
        f"{gib(min(others))} GiB per {device}."
    )


def _passes(plan: Plan) -> tuple[bool, bool, bool, int, int]:
    """What decides a pass besides the micro batch."""
    shared, copied = plan.ranks_per_sample, plan.zero_hpz_partition_size
    return plan.gradient_checkpointing, plan.cpu_checkpointing, plan.quantizes_collectives, shared, copied


def _micro_batch(question: Question, chosen: Candidate, candidates: Sequence[Candidate]) -> str:
    plan = chosen.plan
    if question.micro_batch_size is not None:
        return ""
    larger = [
        candidate
        for candidate in candidates
        if candidate.rung == chosen.rung
        and _passes(candidate.plan) == _passes(plan)
        and candidate.plan.micro_batch_size > plan.micro_batch_size
    ]
    if not larger:
        next_step_tokens = 2 * chosen.time.tokens_per_step
        if question.workload.global_batch_size is not None or next_step_tokens <= MAX_TOKENS_PER_STEP:
            return ""
        return (
            f"A larger micro batch was not tried: it takes more than {count(MAX_TOKENS_PER_STEP)} tokens per step "
            "(--micro-batch or --global-batch to have it)."
        )
    following = min(larger, key=lambda candidate: candidate.plan.micro_batch_size)
    size = following.plan.micro_batch_size
    if following.fit.limit == "gpu" and following.fit.probability < LEAST[question.risk]:
        bare = following.device_bytes <= question.cluster.gpu.memory_bytes
        tight = f", which fits with a probability of {chance(following.fit.probability)}" if bare else ""
        need = f"{gib(following.device_bytes)} GiB per {device_label(question.cluster)}"
        return f"Micro batch {size} would need {need}{tight}."
    if following.fit.probability >= LEAST[question.risk]:
        return f"A larger micro batch gains less than {percent(SAME_SPEED)}."
    return ""


def deepspeed_sentence(estimate: DeepSpeedEstimate, device_bytes: int) -> str:
    """DeepSpeed's own figures beside ours, in words. device_bytes: our prediction for one GPU."""
    if estimate.gpu_bytes is None or estimate.host_bytes is None:
        return f"DeepSpeed's {estimate.function} could not be called: {estimate.problem}."
    return (
        f"DeepSpeed's {estimate.function} says {gib(estimate.gpu_bytes)} GiB per GPU (ours: {gib(device_bytes)}) and "
        f"{gib(estimate.host_bytes)} GiB of RAM per node. It leaves out {', '.join(estimate.leaves_out)}."
    )
