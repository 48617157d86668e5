"""The report of a dry run: memory over the run, what it consists of, and the lanes of one step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from ..answer.recommendation import DryRunAnswer
from ..render.dry_run import summary, verdict
from ..text.labels import cluster_title, component_title
from ..text.units import gib, rate, seconds
from .bar_charts import Bar, Lane, Lanes, LaneSpan, Part, StackedBars, draw_lanes, draw_stacked_bars
from .canvas import Markup, joined
from .document import Cell, Report, Section, configuration, duration, figure, folded, html_of, note, size, table, tiles
from .line_charts import SpanOfTime, StackedArea, draw_stacked_area, layers_of
from .output_files import write_outputs
from .palette import memory_family, time_family
from .plans import MEMORY_ORDER

_PHASES = ("forward", "backward", "step")
_MODULES, _TENSORS = 12, 20


def write_dry_run_report(
    answer: DryRunAnswer, config_path: Path, html: Path | None, plot: Path | None, say: Callable[[str], None]
) -> None:
    """Write the report and the picture of memory over the run, whichever is asked for."""

    def picture() -> Markup:
        return draw_stacked_area(_over_time(answer)) if answer.result.timeline else draw_stacked_bars(_by_phase(answer))

    heading = _subject(answer)
    write_outputs(
        html, plot, report=lambda: dry_run_html(answer, config_path), picture=picture, heading=heading, say=say
    )


def _subject(answer: DryRunAnswer) -> str:
    run = answer.run
    return f"Dry run of {run.model_name or 'a module'} · {cluster_title(run.cluster)}"


def dry_run_html(answer: DryRunAnswer, config_path: Path) -> str:
    """The report as the text of one HTML file."""
    result, form = answer.result, answer.to_json()
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return html_of(
        Report(
            subject=_subject(answer),
            verdict=str(verdict(answer.fit)),
            tone="good" if answer.fit.fits else "bad" if answer.fit.verdict == "does not fit" else "warn",
            lead=summary(answer, shares=False),
            tiles=_tiles(answer),
            sections=(
                _timeline(answer),
                Section(name="peak", title="What memory consists of", body=_peak(answer)),
                _time(answer),
                _lanes(answer),
                Section(name="phases", title="Phase by phase", body=_phases(answer)),
                Section(
                    name="configuration",
                    title="The configuration, as DeepSpeed got it",
                    body=configuration(result.config, config_path.name),
                ),
                Section(
                    name="evidence",
                    title="How it is known",
                    body=note(
                        f"Dry run of the real engine ({versions}) as rank {result.rank} of {result.world_size}, in "
                        f"{seconds(result.seconds)}: every tensor is fake, the code is real."
                    ),
                ),
            ),
            data=form,
        )
    )


def _tiles(answer: DryRunAnswer) -> Markup:
    peak, step, offer = answer.result.peak, answer.step, answer.run.cluster.gpu.memory_bytes
    shown = [
        ("GiB per GPU needed", gib(answer.required_device_bytes_per_gpu), f"of {gib(offer)}"),
        ("GiB allocated at the peak", gib(peak.allocated_bytes_per_gpu), f"in {peak.phase} {peak.iteration}"),
        ("GiB of host RAM", gib(answer.required_host_bytes_per_node), "per node"),
    ]
    if step is not None:
        shown.append(("one step", seconds(step.time.step_s), f"{rate(step.time.tokens_per_s)} tokens/s"))
    return tiles(shown)


def _over_time(answer: DryRunAnswer) -> StackedArea:
    """The GPU's memory by category, a point for each stretch of the run."""
    points, offer = answer.result.timeline, answer.run.cluster.gpu.memory_bytes
    end = points[-1].event + 1
    spans = []
    runs = [
        (phase, iteration, list(own))
        for (iteration, phase), own in groupby(points, key=lambda point: (point.iteration, point.phase))
    ]
    for index, (phase, iteration, own) in enumerate(runs):
        until = runs[index + 1][2][0].begins if index + 1 < len(runs) else end
        highest = max(own, key=lambda point: point.gpu_bytes)
        parts = sorted(highest.by_category.items(), key=lambda pair: -pair[1])
        words = "\n".join(f"{name} {gib(bytes_)} GiB" for name, bytes_ in parts if bytes_ >= 2**20)
        name = f"{phase} {iteration}" if iteration else phase
        hint = f"{name}: at most {gib(highest.gpu_bytes)} GiB\n{words}"
        spans.append(SpanOfTime(name=name, begins=own[0].begins, ends=until, hint=hint))
    return StackedArea(
        title="GPU memory over the run, by what it is",
        times=tuple(float(point.event) for point in points),
        layers=layers_of([point.by_category for point in points], memory_family),
        spans=tuple(spans),
        unit="GiB",
        write=lambda value: f"{value / 2**30:,.4g}",
        x_title="allocations and frees, in their order",
        counts_in=2**30,
        limit=offer,
        limit_words=f"{gib(offer)} GiB per GPU",
    )


def _timeline(answer: DryRunAnswer) -> Section | None:
    if not answer.result.timeline:
        return None
    body = joined(
        note("Live tensors of one rank. The order is true, durations are not: a step's time is further down."),
        figure(_over_time(answer), draw_stacked_area),
    )
    return Section(name="memory", title="Memory over the run", body=body)


def _by_phase(answer: DryRunAnswer) -> StackedBars:
    """What forward, backward and step consist of when each is highest."""
    by_phase, offer = answer.result.peak_by_phase, answer.run.cluster.gpu.memory_bytes
    bars = tuple(
        Bar(
            label=phase,
            parts=tuple(
                Part(
                    name=name,
                    value=value,
                    ink=memory_family(name),
                    hint=f"{component_title(name)}: {gib(value)} GiB ({value:,} bytes)",
                )
                for name, value in by_phase[phase].items()
            ),
            note=gib(sum(by_phase[phase].values())),
            chosen=phase == answer.result.peak.phase,
        )
        for phase in _PHASES
        if phase in by_phase
    )
    return StackedBars(
        title="Live tensors on the GPU when each phase is highest, in GiB",
        bars=bars,
        unit="GiB",
        write=lambda value: f"{value / 2**30:,.4g}",
        counts_in=2**30,
        limit=offer,
        limit_words=f"{gib(offer)} GiB per GPU",
        ends_at=1.05 * max((bar.value for bar in bars), default=1.0),
        inks=MEMORY_ORDER,
    )


def _peak(answer: DryRunAnswer) -> Markup:
    """Categories by phase, then the modules and tensors that are largest at the peak."""
    result, peak = answer.result, answer.result.peak
    names = sorted({name for parts in result.peak_by_phase.values() for name in parts})
    phases = [phase for phase in _PHASES if phase in result.peak_by_phase]
    rows: list[list[Cell]] = [
        [component_title(name), *(size(result.peak_by_phase[phase].get(name, 0)) for phase in phases)] for name in names
    ]
    modules = sorted(peak.by_module.items(), key=lambda pair: -pair[1])[:_MODULES]
    module_rows: list[list[Cell]] = [[name or "(no module)", size(bytes_)] for name, bytes_ in modules]
    tensor_rows: list[list[Cell]] = [
        [tensor.module, size(tensor.size_bytes), tensor.category, " x ".join(map(str, tensor.shape)), tensor.dtype]
        for tensor in peak.largest[:_TENSORS]
    ]
    return joined(
        note(
            "Tensors when each phase is highest; the highest phase is marked. cuBLAS's workspaces of "
            f"{gib(result.library_workspace_bytes)} GiB stand beside them."
        ),
        figure(_by_phase(answer), draw_stacked_bars, folded("Figures as a table", table(["GiB", *phases], rows))),
        folded("Largest modules at the peak", table(["module", "GiB"], module_rows)) if module_rows else None,
        folded("Largest tensors at the peak", table(["module", "GiB", "what", "shape", "type"], tensor_rows))
        if tensor_rows
        else None,
    )


def _time(answer: DryRunAnswer) -> Section | None:
    """The parts of the critical path, by phase."""
    if answer.step is None:
        return None
    by_phase: dict[str, dict[str, float]] = defaultdict(dict)
    for name, taken in answer.step.time.components.items():
        phase, _, what = name.rpartition(": ")
        by_phase[phase][what] = by_phase[phase].get(what, 0.0) + taken
    shown = [phase for phase in _PHASES if phase in by_phase] + [phase for phase in by_phase if phase not in _PHASES]
    bars = tuple(
        Bar(
            label=phase or "all",
            parts=tuple(
                Part(name=what, value=taken, ink=time_family(what), hint=f"{what}: {seconds(taken)}")
                for what, taken in by_phase[phase].items()
            ),
            note=seconds(sum(by_phase[phase].values())),
        )
        for phase in shown
    )
    in_seconds = max(bar.value for bar in bars) >= 1
    chart = StackedBars(
        title="What one optimizer step waits for, by phase",
        bars=bars,
        unit="s" if in_seconds else "ms",
        write=lambda taken: f"{taken if in_seconds else 1e3 * taken:,.4g}",
        counts_in=1 if in_seconds else 1e-3,
    )
    parts = sorted(answer.step.time.components.items(), key=lambda pair: -pair[1])
    rows: list[list[Cell]] = [[name, duration(taken)] for name, taken in parts]
    return Section(
        name="time",
        title="Time of a step",
        body=figure(chart, draw_stacked_bars, folded("Figures as a table", table(["what", "time"], rows))),
    )


def _lanes(answer: DryRunAnswer) -> Section | None:
    """The host, and every stream with what it keeps busy."""
    step = answer.step
    if step is None:
        return None
    streams: dict[tuple[int, str], list[LaneSpan]] = defaultdict(list)
    for span in step.spans:
        name = step.names[span.operation]
        drawn = LaneSpan(name=name, ink=time_family(name), begins=span.begins_s, ends=span.ends_s)
        streams[span.stream, span.lane].append(drawn)
    host = tuple(
        LaneSpan(name=stretch.name, ink="launch", begins=stretch.begins_s, ends=stretch.ends_s)
        for stretch in step.host
        if stretch.name
    )
    lanes = [Lane(name="host", spans=host)] if host else []
    lanes += [Lane(name=f"stream {stream}: {lane}", spans=tuple(own)) for (stream, lane), own in streams.items()]
    end = max((span.ends for lane in lanes for span in lane.spans), default=1.0)
    chart = Lanes(title="The lanes of one step", lanes=tuple(lanes), ends_at=end, write=_time_words)
    rows: list[list[Cell]] = [[lane.name, duration(lane.busy)] for lane in lanes]
    body = joined(
        note("The recorded schedule as it plays out; each pixel has the colour of what ran the longest in it."),
        figure(chart, draw_lanes, folded("Figures as a table", table(["lane", "busy"], rows))),
    )
    return Section(name="lanes", title="What runs when", body=body)


def _time_words(taken_s: float) -> str:
    return seconds(taken_s) if taken_s else "0"


def _phases(answer: DryRunAnswer) -> Markup:
    rows: list[list[Cell]] = [
        [
            f"{phase.phase} {phase.iteration}" if phase.iteration else phase.phase,
            size(phase.gpu_peak_bytes),
            size(phase.gpu_live_bytes),
            size(phase.host_peak_bytes),
            size(phase.host_pinned_live_bytes),
            size(phase.nvme_read_bytes),
            size(phase.nvme_written_bytes),
        ]
        for phase in answer.result.phases
    ]
    head = ["GiB", "GPU peak", "GPU after", "host peak", "pinned", "NVMe read", "written"]
    return table(head, rows)
