"""Changes of the host: more RAM or NVMe that a plan lacks, and less RAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ...estimators.hardware import Cluster
from ...estimators.memory.fit_probability import host_bytes_to_fit
from ...estimators.memory.plan_memory import node_bytes
from ..question.cluster import parse_ram
from ..question.question import Question
from ..search.candidate import Candidate, LadderStep
from ..search.rollouts import fastest_generation
from ..search.search import best_over_losses
from ..text.labels import batch_label
from ..text.units import whole_gib
from .assumed_parts import WORTH_LISTING
from .changed_answer import RAM_AS_SOLD, ChangedAnswer
from .recommendation import Change

LARGE_DRIVE_BYTES = 8 * 10**12
"""Size of an NVMe drive above any plan's need per node; the listed size is what the plan really takes."""


def storage_changes(question: Question, ladder: Sequence[LadderStep], chosen: Candidate | None) -> Iterator[Change]:
    """Yield more host RAM or NVMe; for a plan that assumes an amount of RAM, the plans that a smaller amount allows."""
    blocked = [step.candidate for step in ladder if step.candidate is not None and not step.taken]
    for limit in ("host", "nvme"):
        need = attrgetter(f"memory.{limit}_bytes_per_node")
        stopped = [candidate for candidate in blocked if candidate.fit.limit == limit]
        cluster = question.cluster
        fixed = limit == "host" and cluster.host_memory_bytes_per_node is None and cluster.ram_limit_bytes is not None
        if not stopped or fixed:  # no more RAM than that can be bought
            continue
        best = max(stopped, key=lambda candidate: candidate.tokens_per_s)
        shown = [best]
        if chosen is None:
            least = min(stopped, key=lambda candidate: whole_gib(need(candidate)))
            shown = [least] if best.tokens_per_s < WORTH_LISTING * least.tokens_per_s else [least, best]
        elif best.tokens_per_s < WORTH_LISTING * chosen.tokens_per_s:
            continue
        enough = 0.0
        for plan in shown:
            larger = _sufficient_storage(question.cluster, plan)
            asked = replace(question, cluster=larger)
            fitting = fastest_generation(asked).best  # none if the GPU is too small for `plan`
            if fitting is not None and fitting.tokens_per_s >= enough:  # more RAM may not be faster than less
                enough = WORTH_LISTING * fitting.tokens_per_s
                answer = ChangedAnswer(*best_over_losses(asked, fitting))
                outcome = answer.outcome(question, chosen, *_other_batch(answer.best, ladder))
                yield answer.change(_storage_flags(question.cluster, larger), outcome)
    if chosen is not None and not chosen.plan.pin_memory:
        yield from _pinned(question, chosen)
    if chosen is not None and chosen.fit.assumed_host_bytes:
        yield from _less_ram(question, ladder, chosen)


def _pinned(question: Question, chosen: Candidate) -> Iterator[Change]:
    """Yield the RAM in which the answer's offload is page-locked, if that is faster by `WORTH_LISTING`."""
    pinned = chosen.plan.replace_fields(pin_memory=True)
    ram = host_bytes_to_fit(node_bytes(question.model, question.workload, question.cluster, pinned))
    larger = replace(question.cluster, host_memory_bytes_per_node=whole_gib(ram) * 2**30)
    asked = replace(question, cluster=larger)
    best = fastest_generation(asked).best
    if best is not None and best.plan.pin_memory and best.tokens_per_s >= WORTH_LISTING * chosen.tokens_per_s:
        answer = ChangedAnswer(*best_over_losses(asked, best))
        outcome = answer.outcome(question, chosen, "pin_memory true")
        yield answer.change(_storage_flags(question.cluster, larger), outcome)


def _other_batch(best: Candidate, ladder: Sequence[LadderStep]) -> Iterator[str]:
    """Yield the micro batch if the ladder shows the strategy with another."""
    shown = (step.candidate for step in ladder if step.candidate is not None and step.strategy == best.strategy)
    if any(batch_label(each.plan) != batch_label(best.plan) for each in shown):
        yield f"micro batch {batch_label(best.plan)}"


def _less_ram(question: Question, ladder: Sequence[LadderStep], chosen: Candidate) -> Iterator[Change]:
    """Yield, for each strategy, the smallest tried RAM size below the need at which that strategy is the answer, with
    an NVMe drive if necessary; and the first size at which nothing fits. The tried sizes are the plan's need without
    page-locked memory, which is at least that of its loading, and `RAM_AS_SOLD`."""
    given, found = question.cluster, dict[str, Change]()
    drive_bytes = given.nvme_bytes_per_node
    pageable = node_bytes(question.model, question.workload, given, chosen.plan.replace_fields(pin_memory=False))
    least = max(pageable, chosen.memory.host_loading_bytes_per_node)
    for size in (f"{whole_gib(host_bytes_to_fit(least))}GiB", *RAM_AS_SOLD):
        usable, _ = parse_ram(size)
        if usable >= chosen.ram_to_fit:
            continue
        cluster = replace(given, host_memory_bytes_per_node=usable)
        asked = replace(question, cluster=replace(cluster, nvme_bytes_per_node=drive_bytes))
        best = fastest_generation(asked).best
        if best is None and not drive_bytes:
            drive_bytes = LARGE_DRIVE_BYTES  # still less RAM needs the drive too
            asked = replace(question, cluster=replace(cluster, nvme_bytes_per_node=drive_bytes))
            best = fastest_generation(asked).best
        if best is None:
            found[""] = Change(flags=f"--ram {size}", outcome="nothing fits")
            break
        answer = ChangedAnswer(*best_over_losses(asked, best))
        drive = _storage_flags(cluster, _sufficient_storage(cluster, answer.best))
        outcome = answer.outcome(question, chosen, *_other_batch(answer.best, ladder))
        found[answer.best.strategy] = answer.change(f"--ram {size} {drive}".rstrip(), outcome)
    yield from found.values()


def _sufficient_storage(cluster: Cluster, plan: Candidate) -> Cluster:
    changes, memory = dict[str, Any](), plan.memory
    if plan.ram_to_fit > cluster.most_host_bytes_per_node:
        changes["host_memory_bytes_per_node"] = whole_gib(plan.ram_to_fit) * 2**30
    if memory.nvme_bytes_per_node > (cluster.nvme_bytes_per_node or 0):
        changes["nvme_bytes_per_node"] = whole_gib(memory.nvme_bytes_per_node) * 2**30
    return replace(cluster, **changes)


def _storage_flags(cluster: Cluster, larger: Cluster) -> str:
    amounts = (
        ("--ram ", cluster.host_memory_bytes_per_node, larger.host_memory_bytes_per_node),
        (f"--nvme {cluster.nvme_path or 'PATH'}:", cluster.nvme_bytes_per_node, larger.nvme_bytes_per_node),
    )
    return " ".join(f"{flag}{new >> 30}GiB" for flag, old, new in amounts if new is not None and new != old)
