"""Changes that would change the answer: the question asked again with one option changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

from ...estimators.errors import WorkloadError
from ...estimators.gpu_catalogue import find_gpu
from ...estimators.memory.activations.kernels import runs_eager, takes_flash_package
from ...estimators.memory.activations.loss import why_no_tiling
from ...estimators.models.families import module_experts
from ...estimators.models.lora import adapters, nameable_targets
from ...estimators.objectives import LOSSES, offered_loss, reference_passes
from ...estimators.optimizers import optimizer
from ...estimators.time.collective_time import ring
from ..question.cluster import gpus_argument, parse_ram
from ..question.question import Question
from ..search.candidate import Candidate, LadderStep
from ..search.rollouts import fastest_generation
from ..search.search import best_over_losses, fastest
from .assumed_parts import WORTH_LISTING, deciding_parts
from .changed_answer import ChangedAnswer, too_small
from .recommendation import Change, Changes
from .storage_changes import storage_changes

Asked = tuple[str, Question]
"""Flags, and the question that includes them."""


MOST_STEPS = 3
"""Steps of each kind of change that are tried if a plan already fits: three doublings of the GPUs."""

LARGER_GPUS = ("L40S", "A100-80GB", "H200", "B200")
"""Widely rented GPUs of rising memory, offered if nothing fits."""

LARGE_NODE_RAM = "2TB"
"""RAM of a node of eight such GPUs (NVIDIA DGX H100 and DGX B200 data sheets: 2 TB)."""

BATCHES = (0.25, 4)
"""Other global batches that are shown, as shares of the default: 8 and 128 of 32, the ends of published recipes
(`options.GLOBAL_BATCH`)."""

SHORTEST_SEQUENCE = 256
MOST_GPUS_PER_NODE = 8
MOST_NODES = 128


def changes(question: Question, ladder: Sequence[LadderStep], chosen: Candidate | None) -> Changes:
    """Return the flags that would make a plan fit or run faster, each with the resulting answer.

    With a fitting plan, each kind of change is tried in up to `MOST_STEPS` growing steps; the first step and those that
    lead to another strategy are listed. Without one, each kind grows until something fits.
    """
    return Changes(partial(_tried, question, ladder, chosen))


def use_pytorch(question: Question, plain: Candidate) -> Change:
    """Return the change to plain PyTorch, whose plan `plain` fits."""
    answer = ChangedAnswer(question, plain)
    return answer.change("--sharding fsdp", f"{answer.outcome(question, None)}, without DeepSpeed")


def _tried(question: Question, ladder: Sequence[LadderStep], chosen: Candidate | None) -> Iterator[Change | None]:
    if chosen is not None:
        yield from _other_assumptions(question, chosen)
    storage, first = storage_changes(question, ladder, chosen), _first_kinds(question)
    if chosen is None:
        yield from _grown(question, chosen, _optimizers_on_the_host(question))
        # The smallest and the fastest plan with more RAM or NVMe, then more GPUs.
        yield from islice(storage, 2)
        yield from _grown(question, chosen, _gpus(question))
    if chosen is not None and chosen.fit.assumed_host_bytes:
        # The answer depends on the RAM, so plans with less of it come first.
        for series in first:
            yield from _grown(question, chosen, series)
        yield from _smaller_hosts(question, chosen)
        yield next(storage, None)
    yield from storage
    for series in chain(first, _other_kinds(question, chosen)):
        yield from _grown(question, chosen, series)


def _grown(question: Question, chosen: Candidate | None, series: Iterable[Asked]) -> Iterator[Change | None]:
    """Yield the answers to the growing steps of one kind of change."""
    enough = 0.0 if chosen is None else WORTH_LISTING * chosen.tokens_per_s
    strategies: set[str] = set() if chosen is None else {chosen.strategy}
    for position, (flags, altered) in enumerate(series):
        best = fastest_generation(altered, enough=enough).best
        if best is None or best.tokens_per_s < enough or (position > 0 and best.strategy in strategies):
            yield None
        else:
            answer = ChangedAnswer(*best_over_losses(altered, best))
            yield answer.change(flags, answer.job_outcome(question, chosen))
            strategies.add(answer.best.strategy)
        is_last = best is not None if chosen is None else position == MOST_STEPS - 1
        if is_last:
            break


def _other_assumptions(question: Question, chosen: Candidate) -> Iterator[Change | None]:
    """Yield other values of what the answer assumes, if they change the speed by `WORTH_LISTING` in either direction:
    other parts of the machines, a smaller and a larger global batch."""
    cluster, asked = question.cluster, list[Asked]()
    for part in deciding_parts(question, chosen):
        asked += ((flags, replace(question, cluster=other)) for flags, other in part.others)
    if question.free_batch and (batch := question.workload.global_batch_size) is not None:
        others = (question.default_batch(cluster, batch * share) for share in BATCHES)
        asked += ((f"--global-batch {each}", _altered(question, global_batch_size=each)) for each in others)
    for flags, altered in asked:
        best = fastest(altered)
        ratio = 1.0 if best is None else best.tokens_per_s / chosen.tokens_per_s
        if best is None or 1 / WORTH_LISTING < ratio < WORTH_LISTING:
            yield None
            continue
        answer = ChangedAnswer(*best_over_losses(altered, best))
        yield answer.change(flags, answer.job_outcome(question, chosen), assumed=True)


def _first_kinds(question: Question) -> Iterator[Iterable[Asked]]:
    """Yield the kinds of change that come first: those that leave the training as it is (bf16, flash attention, AutoEP,
    no reference model), which can bring the most, and adapters, which need the least."""
    back, without_autoep = _without_autoep(question)
    if question.workload.precision == "fp16" and question.cluster.gpu.has_bf16:  # the host checks fp16 for overflow
        yield [("--precision bf16", _altered(question, precision="bf16"))]
    yield from ([asked] for asked in (*_flash_attention(question), *_spread_experts(question)))
    yield from ([(flags + back, altered)] for flags, altered in _precomputed(without_autoep))
    yield ((flags + back, altered) for flags, altered in other_methods(without_autoep))


def _other_kinds(question: Question, chosen: Candidate | None) -> Iterator[Iterable[Asked]]:
    """Yield the other kinds."""
    back, without_autoep = _without_autoep(question)
    yield from ([(flags + back, altered)] for flags, altered in _other_loss(without_autoep))
    if chosen is None or not chosen.fit.assumed_host_bytes:
        yield from ([asked] for asked in _smaller_states(question))
    yield from ([asked] for asked in _models(question, chosen))
    if chosen is not None:
        yield _gpus(question)
    yield _sequences(question)
    if chosen is not None or question.cluster.gpu.is_cpu:
        return
    yield ((flags + back, altered) for flags, altered in _tiles(without_autoep))
    yield _larger_gpus(question)


def _altered(question: Question, **workload: Any) -> Question:
    return replace(question, workload=replace(question.workload, **workload))


def _without_autoep(question: Question) -> Asked:
    """Return the question without AutoEP, which supports few methods, losses and states, and the flag for it."""
    return "" if question.options["experts"] == "zero" else " --experts zero", question.replace_options(experts="zero")


def other_methods(question: Question) -> Iterator[Asked]:
    """Yield the question with other training methods, with their flags."""
    if question.model.module:
        return
    given, flags = question.workload, ""
    targets = given.lora_targets
    if targets is None and (targets := nameable_targets(question.model)):
        flags = f" --lora-targets {','.join(targets)}"
    for method in {"full": ("lora", "qlora"), "lora": ("qlora",), "qlora": ("lora",)}[given.method]:
        yield f"--method {method}{flags}", _altered(question, method=method, lora_targets=targets or None)


def _precomputed(question: Question) -> Iterator[Asked]:
    """Yield reference log-probabilities computed before the training, which stays the same."""
    workload = question.workload
    if reference_passes(workload) and not workload.rollouts:
        yield "--precompute-ref-log-probs", _altered(question, precompute_ref_log_probs=True)


def _other_loss(question: Question) -> Iterator[Asked]:
    """Yield another loss, which AutoEP does not support."""
    loss = offered_loss(question.model, question.workload, question.cluster.gpu)
    if loss is not None and not question.free_loss:  # a free loss has been searched already
        yield f"--loss {loss}", _altered(question, loss=loss)


def _smaller_hosts(question: Question, chosen: Candidate) -> Iterator[Change | None]:
    """Yield optimizers with smaller states if a smaller size of `RAM_AS_SOLD` suffices, or if they are faster."""
    for flags, altered in _smaller_states(question):
        enough = chosen.tokens_per_s / WORTH_LISTING
        for asked in filter(None, (altered, altered.offered_loss_question)):
            best = fastest(asked, enough=enough)
            if best is not None and best.tokens_per_s >= enough:
                break
        else:
            yield None
            continue
        answer = ChangedAnswer(*best_over_losses(asked, best))
        is_smaller = too_small(answer.best) < too_small(chosen)
        if is_smaller or answer.best.tokens_per_s >= WORTH_LISTING * chosen.tokens_per_s:
            yield answer.change(flags, answer.job_outcome(question, chosen))


def _optimizers_on_the_host(question: Question) -> Iterator[Asked]:
    """Yield AdamW in place of an optimizer that cannot be offloaded."""
    if optimizer(question.workload.optimizer).cpu_state_bytes is None:
        yield "--optimizer adamw", _altered(question, optimizer="adamw")


def _smaller_states(question: Question) -> Iterator[Asked]:
    """Yield AdamW with states in 8 bits, and in bf16, neither of which AutoEP supports."""
    back, question = _without_autoep(question)
    workload = question.workload
    if workload.method != "full" or question.options["optimizer_dtype"] != "fp32":
        return
    if workload.optimizer == "adamw" and not question.cluster.gpu.is_cpu:
        yield f"--optimizer adamw_8bit{back}", _altered(question, optimizer="adamw_8bit")
    if workload.precision == "bf16" and optimizer(workload.optimizer).is_adam:
        yield f"--optimizer-dtype bf16{back}", question.replace_options(optimizer_dtype="bf16")


def _flash_attention(question: Question) -> Iterator[Asked]:
    """Yield the flash-attn package where attention would run eager, on GPUs and in the precisions that it supports (its
    2.x: from Ampere on, 16 bits)."""
    model, workload, gpu = question.model, question.workload, question.cluster.gpu
    with_flash = replace(workload, attention="flash")
    is_able = gpu.vendor == "NVIDIA" and (gpu.compute_capability or 0.0) >= 8.0 and workload.precision != "fp32"
    if is_able and runs_eager(model, workload) and not runs_eager(model, with_flash) and takes_flash_package(model):
        yield "--attention flash", replace(question, workload=with_flash)


def _spread_experts(question: Question) -> Iterator[Asked]:
    """Yield experts spread by AutoEP."""
    if question.options["experts"] == "zero" and question.cluster.world_size > 1 and question.model.is_moe:
        with suppress(WorkloadError):
            yield "--experts autoep", question.replace_options(experts="autoep")


def _models(question: Question, chosen: Candidate | None) -> Iterator[Asked]:
    """Yield experts fused as in transformers 5 if each is a separate module, and quantized collectives if ZeRO-3's
    cross a network that is slower than the links within a node."""
    cluster, software = question.cluster, question.workload.software
    if module_experts(question.model, software):
        fused = _altered(question, software=replace(software, transformers=(5, 0)))
        with suppress(WorkloadError):  # peft refuses dropout where experts are fused
            adapters(fused.model, fused.workload)
            yield "--software transformers=5.0", fused
    crosses = chosen is not None and chosen.plan.zero_stage == 3 and min(cluster.nodes, cluster.gpus_per_node) > 1
    if crosses and not question.options["zeropp"] and ring(cluster).resource == "network":
        yield "--zeropp", question.replace_options(zeropp=True)


def _tiles(question: Question) -> Iterator[Asked]:
    """Yield tiled loss and feed-forward if they are not tiled yet; long sequences need them to fit the GPU."""
    given = question.workload
    mlp, both = replace(given, mlp="tiled"), replace(given, mlp="tiled", loss="tiled")
    if given.mlp == "whole" and why_no_tiling(question.model, mlp) is None:
        yield "--mlp tiled", replace(question, workload=mlp)
    if LOSSES[given.loss].makes_logits and why_no_tiling(question.model, both) is None:
        yield (
            "--loss tiled" + " --mlp tiled" * (given.mlp == "whole"),
            replace(question, workload=both, free_loss=False),
        )


def _sequences(question: Question) -> Iterator[Asked]:
    length = question.workload.seq_len // 2
    while question.model.fixed_len is None and length >= SHORTEST_SEQUENCE:
        with suppress(WorkloadError):  # the GPUs that share a sample do not divide it
            yield f"--seq-len {length}", _altered(question, seq_len=length)
        length //= 2


def _gpus(question: Question) -> Iterator[Asked]:
    """Yield repeated doublings of the GPUs: within the node first, then more nodes; nothing where no other machine can
    be suggested."""
    cluster = question.cluster
    if not _can_change_gpus(question):
        return
    nodes, per_node = cluster.nodes, cluster.gpus_per_node
    while nodes < MOST_NODES:
        if per_node < MOST_GPUS_PER_NODE:
            per_node = min(per_node * 2, MOST_GPUS_PER_NODE)
        else:
            nodes *= 2
        larger = replace(cluster, nodes=nodes, gpus_per_node=per_node)
        try:
            altered = question.about_cluster(larger)
        except WorkloadError:  # a batch that the user fixed does not divide
            return
        yield f"--gpus {gpus_argument(larger)}", altered


def _can_change_gpus(question: Question) -> bool:
    rollouts = question.workload.rollouts
    with_server = rollouts is not None and rollouts.server_gpus > 0  # the cluster excludes the server's GPUs
    return not question.cluster.gpu.is_cpu and not with_server


def _larger_gpus(question: Question) -> Iterator[Asked]:
    cluster = question.cluster
    if not _can_change_gpus(question):
        return
    for name in LARGER_GPUS:
        gpu = find_gpu(name)
        if gpu.memory_bytes > cluster.gpu.memory_bytes:
            larger = replace(cluster, gpu=gpu)
            yield f"--gpus {gpus_argument(larger)}", question.about_cluster(larger)
    usable, _ = parse_ram(LARGE_NODE_RAM)
    large_node = replace(cluster, gpu=find_gpu(LARGER_GPUS[-1]), host_memory_bytes_per_node=usable)
    for flags, altered in _gpus(question.about_cluster(large_node)):
        yield f"{flags} --ram {LARGE_NODE_RAM}", altered
