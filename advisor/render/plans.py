"""Charts of plans: memory, host RAM, time, speed against memory, and a series of a varied quantity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...estimators.estimate import MemoryEstimate, MemoryTerm, TimeEstimate, TimeTerm
from ...estimators.hardware import Cluster
from ..answer.explanation import in_words
from ..answer.recommendation import Recommendation
from ..answer.scaling import Series
from ..document.blocks import Chart, Row, Table, make_figure
from ..document.charts import GIB, Bar, Limit, Lines, Panel, Part, StackedBars, Unit, time_unit
from ..search.candidate import LIKELY, Candidate
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
from ..text.units import gib, rate, seconds, three_digits

MOST_MEMORY = 2.0
"""Plans that need more than this multiple of the GPU's memory are left out or cut."""

_SMALL = 0.02
"""Share of a step below which the description of a bar leaves a part out."""

_SLOWEST = 3.0
"""Bars of time are cut at this multiple of the time of the fastest plan that fits."""


def best_plans(answer: Recommendation) -> dict[str, Candidate]:
    """Return the best plan of each strategy."""
    return {step.strategy: step.candidate for step in answer.ladder if step.candidate is not None}


def memory_bars(
    plans: Mapping[str, Candidate], cluster: Cluster, *, chosen: Candidate | None = None, with_sources: bool = False
) -> StackedBars:
    """Return device memory of each plan by component, against the GPU's memory. plans: keyed by the labels of their
    bars. chosen: the plan to mark. with_sources: hints include formulas and sources."""
    limit, device = cluster.gpu.memory_bytes, device_label(cluster)
    bars = [
        _bar(name, plan, plan.memory.components, plan.memory.gpu_terms * with_sources, f"GiB per {device}", chosen)
        for name, plan in plans.items()
    ]
    title = f"Memory per {device} of every plan, in GiB, against the {gib(limit)} GiB that it offers"
    return _sizes(title, bars, gpu_limit(cluster))


def host_bars(plans: Mapping[str, Candidate], cluster: Cluster, *, chosen: Candidate | None = None) -> StackedBars:
    """Return host RAM of a node by component, against its RAM if that is known."""
    bars = []
    for name, plan in plans.items():
        terms = (*plan.memory.host_pinned_terms, *plan.memory.host_pageable_terms)
        bars.append(_bar(name, plan, host_parts(plan.memory), terms, "GiB of RAM", chosen))
    limit = cluster.host_memory_bytes_per_node
    drawn = None if limit is None else Limit(limit, f"{gib(limit)} GiB of RAM")
    return _sizes("Host RAM per node of every plan, in GiB, by what it holds", bars, drawn)


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


def _sizes(title: str, bars: Sequence[Bar], limit: Limit | None) -> StackedBars:
    most = max((bar.value for bar in bars), default=0)
    end = most if limit is None else min(max(most, limit.value), MOST_MEMORY * limit.value / 1.02)
    return StackedBars(title=title, bars=tuple(bars), limit=limit, ends_at=1.02 * end, families=MEMORY_FAMILIES)


def memory_bar(components: Mapping[str, int], limit: Limit | None = None, unit: Unit = GIB) -> StackedBars:
    """Return bytes by component as one bar."""
    bar = Bar(label="", parts=memory_parts(components), note=unit.figure(sum(components.values())))
    title = f"Memory by what it holds, in {unit.title}"
    return StackedBars(title=title, bars=(bar,), limit=limit, unit=unit, families=MEMORY_FAMILIES)


def family_of_part(name: str) -> str:
    """Return the time family of a component, which may have a phase: `backward: matrix products`."""
    return time_family(name.rpartition(": ")[2])


def time_bar(time: TimeEstimate) -> StackedBars:
    """Return the time of a step by component as one bar."""
    bar = Bar(label="", parts=_parts(time.components, 1, family_of_part, seconds, ()), note=seconds(time.step_s))
    return StackedBars(title="Time of a step", bars=(bar,), unit=time_unit(time.step_s), families=TIME_FAMILIES)


def gpu_limit(cluster: Cluster) -> Limit:
    """Return the memory of a GPU as a line in a chart."""
    limit = cluster.gpu.memory_bytes
    return Limit(limit, f"{gib(limit)} GiB per {device_label(cluster)}")


def host_parts(memory: MemoryEstimate) -> dict[str, int]:
    """Return host RAM per node in bytes by component; the sum is `host_bytes_per_node`."""
    sizes = Counter({"loading the model": memory.host_bytes_per_node - memory.host_training_bytes_per_node})
    for term in (*memory.host_pinned_terms, *memory.host_pageable_terms):
        sizes[term.name] += term.size_bytes
    return +sizes


def memory_parts(components: Mapping[str, int], terms: Iterable[MemoryTerm] = ()) -> tuple[Part, ...]:
    """Return the parts of a bar from bytes by component. terms: supply formula and source for a part's hint."""
    return _parts(components, 1, memory_family, lambda size: f"{gib(int(size))} GiB ({size:,} bytes)", terms)


def time_bars(
    plans: Mapping[str, Candidate], *, chosen: Candidate | None = None, with_sources: bool = False, tokens: int = 1000
) -> StackedBars:
    """Return the time of each plan by component, for a number of tokens: a step's, or 1,000, since steps of different
    batches are not comparable."""
    bars = []
    for name, plan in plans.items():
        step_s, terms = plan.time.step_s, plan.time.terms if with_sources else ()
        scale = tokens / plan.tokens_per_s / step_s
        largest = sorted(((each_s, part) for part, each_s in plan.time.components.items()), reverse=True)
        parts = ", ".join(
            f"{component_title(part)}: {seconds(each_s)}" for each_s, part in largest if each_s >= _SMALL * step_s
        )
        bars.append(
            Bar(
                label=name,
                parts=_parts(plan.time.components, scale, time_family, _step_share(step_s), terms),
                note=f"{rate(plan.tokens_per_s)} tokens/s" if plan.fit.fits else plan.fit.reason,
                words=f"{name}, {shape_label(plan.plan)}: a step of {seconds(step_s)}, {plan.fit.reason}. {parts}",
                chosen=plan is chosen,
                faded=not plan.fit.fits,
            )
        )
    lengths = [bar.value for bar in bars]
    fitting = [bar.value for bar in bars if not bar.faded] or lengths
    end = min(max(lengths, default=1.0), _SLOWEST * min(fitting, default=1.0)) * 1.02
    return StackedBars(
        title=f"Time for {tokens:,} tokens, of every plan, by what takes it",
        bars=tuple(bars),
        unit=time_unit(end),
        ends_at=end,
        families=TIME_FAMILIES,
    )


def _step_share(step_s: float) -> Callable[[float], str]:
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
        source = "\n".join(dict.fromkeys(sources.get(component_key(name), ())))
        hint = f"{component_title(name)}: {figure(value)}"
        parts.append(Part(name=name, value=value * factor, ink=family(name), hint=hint, source=source))
    return tuple(parts)


def chart_with_table(chart: StackedBars, what: str = "", write: Callable[[float], str] | None = None) -> Chart:
    """Return the chart with a table of its figures: components in rows, the largest first, and bars in columns. what,
    write: the title and the form of the figures, by default those of the chart's unit."""
    bars = [{part.name: part.value for part in bar.parts} for bar in chart.bars]
    most = Counter[str]()
    for parts in bars:
        most |= Counter(parts)
    write = write or chart.unit.part
    rows = [
        Row([component_title(name), *(make_figure(parts.get(name) or None, write) for parts in bars)])
        for name, _ in most.most_common()
    ]
    return Chart(chart, Table([what or chart.unit.title, *(bar.label for bar in chart.bars)], rows))


def memory_chart(plans: Mapping[str, Candidate], cluster: Cluster, *, chosen: Candidate | None = None) -> Chart:
    """Return memory of a GPU by component, with formulas and sources."""
    return chart_with_table(memory_bars(plans, cluster, chosen=chosen, with_sources=True))


def time_chart(plans: Mapping[str, Candidate], *, chosen: Candidate | None = None) -> Chart:
    """Return the time of 1,000 tokens by component, with formulas and sources; its table is in the unit of the axis."""
    bars = time_bars(plans, chosen=chosen, with_sources=True)
    unit = bars.unit
    return chart_with_table(bars, f"{unit.title} per 1,000 tokens", lambda part_s: three_digits(part_s / unit.size))


def pareto_optimal(plans: Iterable[Candidate], cluster: Cluster, chosen: Candidate | None) -> list[Candidate]:
    """Return the plans that no other beats in speed and device memory, and the chosen one, by memory. Plans that need
    more than twice the GPU's memory are left out."""
    limit, best = cluster.gpu.memory_bytes, list[Candidate]()
    for plan in sorted(plans, key=lambda plan: (plan.device_bytes, -plan.tokens_per_s)):
        if plan.device_bytes <= MOST_MEMORY * limit and (not best or plan.tokens_per_s > best[-1].tokens_per_s):
            best.append(plan)
    if chosen is not None and chosen not in best:  # a simpler plan whose speed is within the error
        best = sorted([*best, chosen], key=lambda plan: plan.device_bytes)
    return best


def speed_against_memory(best: Sequence[Candidate], cluster: Cluster, chosen: Candidate | None) -> Lines:
    """Return speed against memory of the `pareto_optimal` plans, with strategies. Plans that are not likely to fit have
    hollow points."""
    device, names = device_label(cluster), [plan.strategy for plan in best]
    return Lines(
        title=f"Speed against memory per {device} of the plans that no other beats in both",
        x_title=f"GiB per {device}",
        x_unit=GIB,
        x_limit=gpu_limit(cluster),
        xs=[plan.device_bytes for plan in best],
        panels=[Panel(title="tokens/s", layers={"weights": [plan.tokens_per_s for plan in best]})],
        hints=[_hint(plan) for plan in best],
        own=None if chosen is None else best.index(chosen),
        hollow=_unlikely(best),
        spans=[(best[at].device_bytes, names[at]) for at in _changes(names)],
    )


def _unlikely(plans: Iterable[Candidate | None]) -> list[int]:
    """Return the positions of plans that are not likely to fit."""
    return [at for at, plan in enumerate(plans) if plan is not None and plan.fit.probability < LIKELY]


def _hint(plan: Candidate) -> str:
    sizes = f"{rate(plan.tokens_per_s)} tokens/s, {gib(plan.device_bytes)} GiB, {plan.fit.reason}"
    return f"{plan.strategy}, {shape_label(plan.plan)}, {sizes}"


def _changes(names: Sequence[str]) -> list[int]:
    """Return the positions at which a name differs from the one before."""
    return [at for at, name in enumerate(names) if at == 0 or name != names[at - 1]]


def series_chart(series: Series, cluster: Cluster) -> Lines:
    """Return speed above memory for each value of a series, with the strategies."""
    device = device_label(cluster)
    names = ["nothing fits" if plan is None else plan.strategy for plan in series.plans]
    batches = [samples for samples in series.samples if samples is not None]
    mixed = f" (global batch {min(batches)} to {max(batches)})" if series.mixes_batches else ""
    speed = Panel(
        title=f"tokens/s, by {series.title}{mixed}",
        layers={"weights": [None if plan is None else plan.tokens_per_s for plan in series.plans]},
    )
    memory = Panel(
        title=f"GiB per {device}",
        layers={"weights": [None if plan is None else plan.device_bytes for plan in series.plans]},
        unit=GIB,
        limit=gpu_limit(cluster),
    )
    hints = [
        "" if plan is None else f"{series.title} {value}: {_hint(plan)}, global batch {samples}"
        for value, plan, samples in zip(series.values, series.plans, series.samples, strict=True)
    ]
    return Lines(
        title=f"Speed and memory per {device} against {series.title}, with the strategy",
        x_title=series.title,
        xs=range(len(series.values)),
        panels=[speed, memory],
        labels=series.values,
        hints=hints,
        own=series.own,
        hollow=_unlikely(series.plans),
        spans=[(max(0, at - 0.5), names[at]) for at in _changes(names)],
    )
