"""Charts of plans: memory, time, and speed against memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...estimators.estimate import MemoryTerm, TimeTerm
from ...estimators.hardware import Cluster
from ..answer.explanation import in_words
from ..answer.recommendation import Recommendation
from ..answer.view import host_parts
from ..search.candidate import Candidate
from ..text.labels import (
    MEMORY_FAMILIES,
    TIME_FAMILIES,
    component_key,
    component_title,
    device_label,
    memory_family,
    shape_label,
    time_family,
)
from ..text.units import gib, rate, seconds
from .bar_charts import Bar, Part, StackedBars
from .canvas import time_unit
from .line_charts import MOST_MEMORY

_SLOWEST = 3.0
"""Bars of time are cut at this multiple of the time of the fastest plan that fits."""


def best_plans(answer: Recommendation) -> dict[str, Candidate]:
    """Return the best plan of each rung."""
    return {step.rung: step.candidate for step in answer.ladder if step.candidate is not None}


def memory_bars(
    plans: Mapping[str, Candidate], cluster: Cluster, *, chosen: Candidate | None = None, with_sources: bool = False
) -> StackedBars:
    """Return device memory of each plan by component, against the GPU's memory. plans: keyed by the labels of their
    bars. chosen: the plan to mark. with_sources: hints include formulas and sources."""
    limit, device = cluster.gpu.memory_bytes, device_label(cluster)
    bars = []
    for name, plan in plans.items():
        terms = plan.memory.gpu_terms if with_sources else ()
        bars.append(_bar(name, plan, plan.memory.components, terms, f"GiB per {device}", chosen))
    title = f"Memory per {device} of every plan, in GiB, against the {gib(limit)} GiB that it offers"
    return _sizes(title, bars, limit, f"{gib(limit)} GiB per {device}")


def host_bars(plans: Mapping[str, Candidate], cluster: Cluster, *, chosen: Candidate | None = None) -> StackedBars:
    """Return host RAM of a node by component, against its RAM if that is known."""
    bars = []
    for name, plan in plans.items():
        terms = (*plan.memory.host_pinned_terms, *plan.memory.host_pageable_terms)
        bars.append(_bar(name, plan, host_parts(plan.memory), terms, "GiB of RAM", chosen))
    limit = cluster.host_memory_bytes_per_node
    words = "" if limit is None else f"{gib(limit)} GiB of RAM"
    return _sizes("Host RAM per node of every plan, in GiB, by what it holds", bars, limit, words)


def _bar(
    name: str,
    plan: Candidate,
    sizes: Mapping[str, int],
    terms: Iterable[MemoryTerm],
    unit: str,
    chosen: Candidate | None,
) -> Bar:
    need = gib(sum(sizes.values()))
    largest = sorted((size, part) for part, size in sizes.items() if size >= 2**27)[::-1]
    words = ", ".join(f"{component_title(part)} {gib(size)}" for size, part in largest)
    return Bar(
        label=name,
        parts=memory_parts(sizes, terms),
        note=need,
        words=f"{name}, {shape_label(plan.plan)}: {need} {unit}, {plan.fit.reason}. {words}",
        chosen=plan is chosen,
        faded=not plan.fit.fits,
    )


def _sizes(title: str, bars: Sequence[Bar], limit: int | None, limit_words: str) -> StackedBars:
    most = max((bar.value for bar in bars), default=0)
    end = most if limit is None else min(max(most, limit), MOST_MEMORY * limit / 1.02)
    return StackedBars(
        title=title,
        bars=tuple(bars),
        limit=limit,
        limit_words=limit_words,
        ends_at=1.02 * end,
        inks=tuple(MEMORY_FAMILIES),
    )


def memory_parts(components: Mapping[str, int], terms: Iterable[MemoryTerm] = ()) -> tuple[Part, ...]:
    """Return the parts of a bar from bytes by component. terms: supply formula and source for a part's hint."""
    return _parts(components, 1, memory_family, lambda size: f"{gib(int(size))} GiB ({size:,} bytes)", terms)


def time_bars(
    plans: Mapping[str, Candidate], *, chosen: Candidate | None = None, with_sources: bool = False
) -> StackedBars:
    """Return the time per thousand tokens of each plan by component; steps of different batches are not comparable."""
    bars = []
    for name, plan in plans.items():
        step_s, terms = plan.time.step_s, plan.time.terms if with_sources else ()
        scale = 1e3 / plan.tokens_per_s / step_s
        bars.append(
            Bar(
                label=name,
                parts=_parts(plan.time.components, scale, time_family, _of_step(step_s), terms),
                note=f"{rate(plan.tokens_per_s)} tokens/s",
                words=f"{name}, {shape_label(plan.plan)}: a step of {seconds(step_s)}, {plan.fit.reason}",
                chosen=plan is chosen,
                faded=not plan.fit.fits,
            )
        )
    lengths = [bar.value for bar in bars]
    fitting = [bar.value for bar in bars if not bar.faded] or lengths
    end = min(max(lengths, default=1.0), _SLOWEST * min(fitting, default=1.0)) * 1.02
    return StackedBars(
        title="Time of a step for every 1,000 tokens, of every plan, by what takes it",
        bars=tuple(bars),
        unit=time_unit(end),
        ends_at=end,
        inks=tuple(TIME_FAMILIES),
    )


def _of_step(step_s: float) -> Callable[[float], str]:
    return lambda taken_s: f"{seconds(taken_s)} of a step of {seconds(step_s)}"


def _parts(
    components: Mapping[str, float],
    factor: float,
    family: Callable[[str], str],
    figure: Callable[[float], str],
    terms: Iterable[MemoryTerm | TimeTerm],
) -> tuple[Part, ...]:
    sources: dict[str, list[str]] = {}
    for term in terms:
        sources.setdefault(component_key(term.name), []).extend((f"= {in_words(term)}", f"source: {term.source}"))
    parts = []
    for name, value in components.items():
        hint = dict.fromkeys([f"{component_title(name)}: {figure(value)}", *sources.get(component_key(name), ())])
        parts.append(Part(name=name, value=value * factor, ink=family(name), hint="\n".join(hint)))
    return tuple(parts)
