"""Reports of a dry run (memory over the run, memory by part, time of a step) and of a probe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from pathlib import Path

from ...probes.recording.result import TimelinePoint
from ..answer.dry_run_answer import DryRunAnswer
from ..answer.verdict import tone_of
from ..render.runs import FAILURE_SENTENCES, UNITS, dry_run_summary, dry_run_verdict, probe_place, render_probe, signed
from ..text.labels import MEMORY_FAMILIES, cluster_title, memory_by_family, time_family, versions_label
from ..text.units import gib, rate, seconds
from ..verification.probe import ProbeAnswer
from . import canvas as svg
from . import document as doc
from .bar_charts import Bar, Part, StackedBars, draw_stacked_bars
from .canvas import GIB, SMALL, WIDE, Markup, Scale, joined, time_unit
from .plans import memory_parts

_PHASES = ("forward", "backward", "step")
_FROM_THE_BOTTOM = ("weights", "optimizer", "runtime", "gradients", "activations", "loss", "generation", "buffers")
"""Families from the bottom of the chart to the top: persistent ones first, temporary ones above."""

_MODULES, _TENSORS = 12, 20
_CONFIGURATION = "The configuration, as DeepSpeed got it"

_PHASE_COLUMNS = {
    "GPU peak": "gpu_peak_bytes",
    "GPU after": "gpu_live_bytes",
    "host peak": "host_peak_bytes",
    "pinned": "host_pinned_live_bytes",
    "NVMe read": "nvme_read_bytes",
    "written": "nvme_written_bytes",
}


def dry_run_report(answer: DryRunAnswer, config_path: Path) -> doc.Report:
    """Return the report, with the chart of memory over the run."""
    result, peak, step, cluster = answer.result, answer.result.peak, answer.step, answer.run.cluster
    offer, timeline, chart = cluster.gpu.memory_bytes, Markup(), partial(draw_stacked_bars, _by_phase(answer))
    if result.timeline:
        note = doc.note(
            "Live tensors of one rank. The order is true, durations are not: a step's time is further down. "
            "A click on a phase shows it alone, a drag any stretch; another click shows everything."
        )
        timeline = joined(note, doc.figure(result.timeline, partial(draw_timeline, limit_bytes=offer)))
        chart = partial(draw_timeline, result.timeline, limit_bytes=offer)
    tiles = [
        ("GiB per GPU needed", gib(answer.required_device_bytes_per_gpu), f"of {gib(offer)}"),
        ("GiB allocated at the peak", gib(peak.allocated_bytes_per_gpu), f"in {peak.phase} {peak.iteration}"),
        ("GiB of host RAM", gib(answer.required_host_bytes_per_node), "per node"),
    ]
    if step is not None:
        tiles.append(("one step", seconds(step.time.step_s), f"{rate(step.time.tokens_per_s)} tokens/s"))
    columns = _PHASE_COLUMNS.values()
    phases: list[list[doc.Cell]] = [
        [f"{phase.phase} {phase.iteration or ''}".rstrip(), *(doc.size(getattr(phase, name)) for name in columns)]
        for phase in result.phases
    ]
    evidence = (
        f"Dry run of the real engine ({versions_label(result.versions)}) as rank {result.rank} of {result.world_size}, "
        f"in {seconds(result.seconds)}: every tensor is fake, the code is real."
    )
    return doc.Report(
        subject=f"Dry run of {answer.run.model_name or 'a module'} · {cluster_title(cluster)}",
        verdict=str(dry_run_verdict(answer.fit)),
        tone=tone_of(answer.fit),
        lead=dry_run_summary(answer, shares=False),
        tiles=tiles,
        sections=(
            doc.Section("memory", "Memory over the run", timeline),
            doc.Section("peak", "What memory consists of", _peak(answer)),
            doc.Section("time", "Time of a step", _time(answer)),
            doc.Section("phases", "Phase by phase", doc.table(["GiB", *_PHASE_COLUMNS], phases)),
            doc.configuration(result.config, config_path.name, _CONFIGURATION),
            doc.Section("evidence", "How it is known", doc.note(evidence)),
        ),
        data=answer.to_json(),
        chart=chart,
    )


def _by_phase(answer: DryRunAnswer) -> StackedBars:
    by_phase, offer = answer.result.peak_by_phase, answer.run.cluster.gpu.memory_bytes
    bars = tuple(
        Bar(
            label=phase,
            parts=memory_parts(by_phase[phase]),
            note=gib(sum(by_phase[phase].values())),
            chosen=phase == answer.result.peak.phase,
        )
        for phase in _PHASES
        if phase in by_phase
    )
    return StackedBars(
        title="Live tensors on the GPU when each phase is highest, in GiB",
        bars=bars,
        limit=offer,
        limit_words=f"{gib(offer)} GiB per GPU",
        ends_at=1.05 * max((bar.value for bar in bars), default=1.0),
        inks=tuple(MEMORY_FAMILIES),
    )


def _peak(answer: DryRunAnswer) -> Markup:
    result, peak = answer.result, answer.result.peak
    phases = [(phase, result.peak_by_phase[phase]) for phase in _PHASES if phase in result.peak_by_phase]
    modules = sorted(peak.by_module.items(), key=lambda pair: -pair[1])[:_MODULES]
    module_rows: list[list[doc.Cell]] = [[name or "(no module)", doc.size(bytes_)] for name, bytes_ in modules]
    tensor_rows: list[list[doc.Cell]] = [
        [tensor.module, doc.size(tensor.size_bytes), tensor.category, " x ".join(map(str, tensor.shape)), tensor.dtype]
        for tensor in peak.largest[:_TENSORS]
    ]
    tensor_head = ["module", "GiB", "what", "shape", "type"]
    return joined(
        doc.note(
            "Tensors when each phase is highest; the highest phase is marked. cuBLAS's workspaces of "
            f"{gib(result.library_workspace_bytes)} GiB come in addition."
        ),
        doc.figure(_by_phase(answer), draw_stacked_bars, doc.parts_table(phases, doc.size, "GiB")),
        doc.folded("Largest modules at the peak", doc.table(["module", "GiB"], module_rows)),
        doc.folded("Largest tensors at the peak", doc.table(tensor_head, tensor_rows)),
    )


def _time(answer: DryRunAnswer) -> Markup:
    if answer.step is None:
        return Markup()
    by_phase: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, taken in answer.step.time.components.items():
        phase, _, what = name.rpartition(": ")
        by_phase[phase][what] += taken
    bars = tuple(
        Bar(
            label=phase or "all",
            parts=tuple(
                Part(name=what, value=taken, ink=time_family(what), hint=f"{what}: {seconds(taken)}")
                for what, taken in by_phase[phase].items()
            ),
            note=seconds(sum(by_phase[phase].values())),
        )
        for phase in sorted(by_phase, key=lambda phase: _PHASES.index(phase) if phase in _PHASES else len(_PHASES))
    )
    title, unit = "What one optimizer step waits for, by phase", time_unit(max(bar.value for bar in bars))
    parts = sorted(answer.step.time.components.items(), key=lambda pair: -pair[1])
    rows: list[list[doc.Cell]] = [[name, doc.duration(taken)] for name, taken in parts]
    table = doc.figures_table(["what", "time"], rows)
    return doc.figure(StackedBars(title=title, bars=bars, unit=unit), draw_stacked_bars, table)


def draw_timeline(points: Sequence[TimelinePoint], width: int = WIDE, *, limit_bytes: int) -> Markup:
    """Return the chart as SVG. The horizontal axis counts allocations and frees; a script can zoom into a part of
    it."""
    rows = [memory_by_family(point.by_category) for point in points]
    present = {family for row in rows for family in row}
    families = [family for family in dict.fromkeys((*_FROM_THE_BOTTOM, *MEMORY_FAMILIES)) if family in present]
    keys, taken = svg.legend(families, width)
    top, bottom, right = taken + 24.0, taken + (210.0 if svg.is_narrow(width) else 270.0), width - 4.0
    highest = max(point.gpu_bytes for point in points)
    is_near = limit_bytes < 1.6 * highest
    most = 1.08 * max(highest, limit_bytes * is_near) or 1.0
    values = svg.ticks(svg.round_steps(most, 5, GIB.size), GIB.write, GIB.title)
    axis, left, y_of = svg.vertical_axis(values, (0, most), top, bottom, right)
    x_of = Scale(points[0].event, max(points[-1].event, points[0].event + 1), left, right)
    spans, names = zip(*_phase_areas(points, x_of, top, bottom), strict=True)
    y = y_of(limit_bytes)
    return svg.frame(
        "GPU memory over the run, by what it is",
        width,
        bottom + 26,
        keys,
        axis,
        svg.element(
            "svg",
            *_areas([point.event for point in points], rows, families, x_of, y_of),
            *spans,
            class_="stretch",
            x=left,
            y=0,
            width=right - left,
            height=bottom,
            viewBox=f"{left:g} 0 {right - left:g} {bottom:g}",
            preserveAspectRatio="none",
        ),
        *names,
        svg.line(left, y, right, y, "limit") if is_near else None,
        svg.small(right - 4, y - 5, f"{gib(limit_bytes)} GiB per GPU", anchor="end", ink="limit") if is_near else None,
        svg.small(right, bottom + 18, "allocations and frees, in their order", anchor="end"),
    )


def _areas(
    times: Sequence[int], rows: Sequence[dict[str, int]], families: Sequence[str], x_of: Scale, y_of: Scale
) -> Iterator[Markup]:
    """Yield each family as the area between the sum of the families below and its own sum. Memory and areas change in
    steps."""
    sums = [list(accumulate((row.get(family, 0) for family in families), initial=0)) for row in rows]
    xs = [x_of(time) for time in times]
    outlines = [_steps(xs, [y_of(row[level]) for row in sums]) for level in range(len(families) + 1)]
    for family, (below, above) in zip(families, pairwise(outlines), strict=True):
        path = f"M{' '.join(above)}L{' '.join(reversed(below))}Z"
        yield svg.element("path", d=path, fill_opacity=0.88, **svg.fill(family))


def _steps(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
    """Return a line that changes its height at the next point; points without a change are left out."""
    points: list[tuple[float, float]] = []
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if index and abs(y - points[-1][1]) < 0.05 and index < len(xs) - 1:
            continue
        if index:
            points.append((x, points[-1][1]))
        points.append((x, y))
    return [f"{x:.2f},{y:.1f}" for x, y in points]


def _phase_areas(
    points: Sequence[TimelinePoint], x_of: Scale, top: float, bottom: float
) -> Iterator[tuple[Markup, Markup]]:
    """Yield (area of the phase with its hint, name of the phase; the name is hidden if there is no room)."""
    groups = [list(own) for _, own in groupby(points, key=lambda point: (point.iteration, point.phase))]
    ends = [own[0].begins for own in groups[1:]] + [points[-1].event + 1]
    free = 0.0
    for own, end in zip(groups, ends, strict=True):
        peak, begins, ends_at = max(own, key=lambda point: point.gpu_bytes), x_of(own[0].begins), x_of(end)
        name = f"{peak.phase} {peak.iteration}" if peak.iteration else peak.phase
        parts = sorted(peak.by_category.items(), key=lambda pair: -pair[1])
        words = [f"{part} {gib(size)} GiB" for part, size in parts if size >= 2**20]
        hint = "\n".join([f"{name}: at most {gib(peak.gpu_bytes)} GiB", *words])
        area = svg.element(
            "rect",
            svg.element("title", hint),
            x=begins,
            y=top - 18,
            width=max(0.5, ends_at - begins),
            height=bottom - top + 18,
            fill_opacity=0,
            **svg.fill("paper"),
        )
        fits = begins + 3 >= free and begins + 3 + svg.text_width(name, SMALL) <= ends_at
        free = begins + 7 + svg.text_width(name, SMALL) if fits else free
        label = svg.element("g", svg.small(begins + 3, top - 7, name), opacity=None if fits else 0, class_="phase")
        edge = svg.line(begins, top - 4, begins, bottom)
        yield svg.element("g", svg.joined(edge, area), tabindex="0", role="img", aria_label=hint), label


def probe_report(answer: ProbeAnswer, config_path: Path) -> doc.Report:
    """Return the report of a probe."""
    result, failure = answer.result, answer.result.failure
    lead, tiles, figures = f"{probe_place(answer)}; random weights and tokens unless a checkpoint was given.", [], []
    if failure is not None:
        lead = f"Rank {failure.rank} was the first, at {failure.phase}: {failure.message}"
    else:
        tiles = [
            ("tokens/s", rate(result.tokens_per_s), "measured"),
            ("one step", seconds(result.step_s), f"{result.tokens_per_step:,} tokens"),
            ("steps", str(len(result.ranks[0].losses)), f"{len(result.ranks)} ranks"),
        ]
        names = ("forward_s", "backward_s", "optimizer_s", "total_s")
        ranks: list[list[doc.Cell]] = [
            [f"rank {report.rank}", *(doc.duration(sum(map(attrgetter(name), steps)) / len(steps)) for name in names)]
            for report in result.ranks
            if (steps := report.steps)
        ]
        figures = [
            doc.Section("figures", "Measured and predicted", _figures(answer)),
            doc.Section("ranks", "Rank by rank", doc.table(["", "forward", "backward", "optimizer", "a step"], ranks)),
        ]
    evidence = joined(
        doc.note(f"A real run ({versions_label(result.versions)}) in {seconds(result.seconds)}."),
        doc.as_printed(lambda console: render_probe(answer, console)),
    )
    return doc.Report(
        subject=f"Probe of {answer.run.model_name or 'a module'}",
        verdict="It runs." if failure is None else FAILURE_SENTENCES[failure.kind],
        tone="good" if failure is None else "bad",
        lead=[lead],
        tiles=tiles,
        sections=(
            *figures,
            doc.configuration(result.config, config_path.name, _CONFIGURATION),
            doc.Section("evidence", "How it is known", evidence),
        ),
        data=answer.to_json(),
    )


def _figures(answer: ProbeAnswer) -> Markup:
    bars, rows = [], list[list[doc.Cell]]()
    for found in answer.figures:
        unit = UNITS[found.unit]
        known = {
            "measured": (found.measured, None),
            "closed form": (found.analytic, found.analytic_error),
            "dry run": (found.dry_run, found.dry_run_error),
        }
        rows.append([found.name, *(doc.figure_of(value, unit) for value, _ in known.values())])
        for title, (value, error) in known.items():
            if found.unit == "bytes" and found.measured and value is not None:
                label, ink = f"{found.name}, {title}", "weights" if title == "measured" else "other"
                part = Part(name=title, value=value, ink=ink, hint=f"{label}: {unit(value)}")
                note = gib(int(value)) + (f" ({signed(error)})" if error is not None else "")
                bars.append(Bar(label=label, parts=(part,), note=note, chosen=title == "measured"))
    chart = StackedBars(title="Memory, measured and predicted, in GiB", bars=tuple(bars))
    table = doc.table(["", "measured", "closed form", "dry run"], rows)
    return joined(doc.figure(chart, draw_stacked_bars) if bars else None, table)
