"""Pictures of plans, from the objects that `--json` prints for candidates: memory, time, speed against memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ..text.labels import component_title, shape_label
from ..text.units import gib, rate, seconds
from .bar_charts import Bar, Part, StackedBars
from .line_charts import Point, Scatter
from .palette import key, memory_family, time_family

Plan = Mapping[str, Any]
"""A candidate as in `ds-advise --json`."""
Terms = Mapping[str, Sequence[Mapping[str, Any]]]
"""A plan's terms as in `ds-advise explain --json`, by `key` of their name."""

MEMORY_ORDER = ("weights", "gradients", "optimizer", "loss", "activations", "buffers", "runtime", "other")
"""Families from left to right in bars of memory."""

_TIME_ORDER = ("compute", "memory", "links", "pcie", "host", "nvme", "launch", "other")

_BEYOND = 2.0
"""Bars are cut at so many times the GPU: what needs ten times as much would leave no room for what fits."""

_SLOWEST = 3.0
"""Bars of time are cut at so many times the fastest plan that fits."""


def memory_bars(
    plans: Sequence[Plan],
    limit_bytes: int,
    *,
    chosen: int | None = None,
    terms: Sequence[Terms] = (),
    device: str = "GPU",
) -> StackedBars:
    """Device memory of each plan by component, against what the GPU offers.

    chosen: the index of the plan to mark; terms: of each plan, for the formula and the source in a part's hint.
    """
    needs = [plan["device_bytes_per_gpu"] for plan in plans]
    bars = tuple(
        Bar(
            label=plan["rung"],
            parts=tuple(
                Part(
                    name=name,
                    value=size,
                    ink=memory_family(name),
                    hint=_memory_hint(name, size, terms[index].get(name, ()) if terms else ()),
                )
                for name, size in plan["components"].items()
            ),
            note=gib(plan["device_bytes_per_gpu"]),
            words=_words(plan, gib(plan["device_bytes_per_gpu"]) + f" GiB per {device}", plan["components"]),
            chosen=index == chosen,
            faded=not plan["fits"] and index != chosen,
        )
        for index, plan in enumerate(plans)
    )
    return StackedBars(
        title=f"Memory per {device} of every plan, in GiB, against the {gib(limit_bytes)} GiB that it offers",
        bars=bars,
        unit="GiB",
        write=lambda size: f"{size / 2**30:,.4g}",
        counts_in=2**30,
        limit=limit_bytes,
        limit_words=f"{gib(limit_bytes)} GiB per {device}",
        ends_at=min(max([*needs, limit_bytes], default=1) * 1.02, _BEYOND * limit_bytes),
        inks=MEMORY_ORDER,
    )


def time_bars(plans: Sequence[Plan], *, chosen: int | None = None, terms: Sequence[Terms] = ()) -> StackedBars:
    """Time for a thousand tokens of each plan by component: steps of unequal batches are no comparison."""
    bars = []
    for index, plan in enumerate(plans):
        factor = 1e3 / (plan["tokens_per_second"] * plan["step_seconds"])
        bars.append(
            Bar(
                label=plan["rung"],
                parts=tuple(
                    Part(
                        name=name,
                        value=taken * factor,
                        ink=time_family(name),
                        hint=_time_hint(name, taken, plan["step_seconds"], terms[index].get(name, ()) if terms else ()),
                    )
                    for name, taken in plan["time_components"].items()
                ),
                note=f"{rate(plan['tokens_per_second'])} tokens/s",
                words=_words(plan, f"a step of {seconds(plan['step_seconds'])}", {}),
                chosen=index == chosen,
                faded=not plan["fits"] and index != chosen,
            )
        )
    fitting = [bar.value for bar, plan in zip(bars, plans, strict=True) if plan["fits"]] or [bar.value for bar in bars]
    end = min(max((bar.value for bar in bars), default=1.0), _SLOWEST * min(fitting, default=1.0)) * 1.02
    in_seconds = end >= 1
    return StackedBars(
        title="Time of a step for every 1,000 tokens, of every plan, by what takes it",
        bars=tuple(bars),
        unit="s" if in_seconds else "ms",
        write=lambda taken: f"{taken if in_seconds else 1e3 * taken:,.4g}",
        counts_in=1 if in_seconds else 1e-3,
        ends_at=end,
        inks=_TIME_ORDER,
    )


def speed_against_memory(
    plans: Sequence[Plan], limit_bytes: int, *, chosen: Plan | None = None, device: str = "GPU"
) -> Scatter:
    """Every plan as a point; those whose memory is far beyond the GPU are left out."""
    needs = [limit_bytes, *(plan["device_bytes_per_gpu"] for plan in plans)]
    return Scatter(
        title=f"Speed against memory per {device} of every plan, and the plans that no other beats in both",
        points=tuple(
            Point(
                label=plan["rung"],
                x=plan["device_bytes_per_gpu"],
                y=plan["tokens_per_second"],
                hint=_plan_hint(plan),
                chosen=plan == chosen,
                faded=not plan["fits"],
            )
            for plan in plans
        ),
        x_title=f"GiB per {device}",
        y_title="tokens/s",
        write_x=lambda size: f"{size / 2**30:,.4g}",
        x_counts_in=2**30,
        write_y=lambda speed: rate(speed) if speed else "0",
        limit=limit_bytes,
        limit_words=f"{gib(limit_bytes)} GiB per {device}",
        x_ends_at=1.05 * max((need for need in needs if need <= _BEYOND * limit_bytes), default=limit_bytes),
    )


def _plan_hint(plan: Plan) -> str:
    return (
        f"{plan['rung']}, {shape_label(SimpleNamespace(**plan))}: {gib(plan['device_bytes_per_gpu'])} GiB, "
        f"{rate(plan['tokens_per_second'])} tokens/s; {plan['reason']}"
    )


def _words(plan: Plan, figure: str, components: Mapping[str, int]) -> str:
    parts = ", ".join(
        f"{component_title(name)} {gib(size)}"
        for name, size in sorted(components.items(), key=lambda pair: -pair[1])
        if size >= 2**27
    )
    return f"{plan['rung']}, {shape_label(SimpleNamespace(**plan))}: {figure}, {plan['reason']}" + (
        f". {parts}" if parts else ""
    )


def _memory_hint(name: str, size: int, terms: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{component_title(name)}: {gib(size)} GiB ({size:,} bytes)"]
    for term in terms:
        lines.append(f"= {term['formula_in_words']}")
        lines.append(f"source: {term['source']}")
    return "\n".join(dict.fromkeys(lines))


def _time_hint(name: str, taken: float, step_s: float, terms: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{component_title(name)}: {seconds(taken)} of a step of {seconds(step_s)}"]
    for term in terms:
        lines.append(f"= {term['formula_in_words']}")
        lines.append(f"source: {term['source']}")
    return "\n".join(dict.fromkeys(lines))


def terms_by_key(terms: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """A section's terms of `ds-advise explain --json` by the key that a candidate's components have."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for term in terms:
        found.setdefault(key(term["name"]), []).append(term)
    return found
