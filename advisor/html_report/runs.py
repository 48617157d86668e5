"""The reports of a dry run (memory over the run, its parts, the time of a step) and of a probe."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from ..answer.dry_run_answer import DryRunAnswer
from ..render.runs import FAILURE_SENTENCES, UNITS, dry_run_summary, dry_run_verdict, probe_place, render_probe
from ..text.labels import MEMORY_FAMILIES, cluster_title, time_family, versions_label
from ..text.units import gib, percent, rate, seconds
from ..verification.probe import ProbeAnswer
from . import document as doc
from .bar_charts import Bar, Part, StackedBars, draw_stacked_bars
from .canvas import WIDE, Markup, joined, time_unit
from .plans import memory_parts
from .timeline import draw_timeline

_PHASES = ("forward", "backward", "step")
_MODULES, _TENSORS = 12, 20


def dry_run_report(answer: DryRunAnswer, config_path: Path) -> doc.Report:
    """The report, and the chart of memory over the run."""
    result, run, timeline = answer.result, answer.run, Markup()
    if result.timeline:
        words = (
            "Live tensors of one rank. The order is true, durations are not: a step's time is further down. "
            "A click on a phase shows it alone, a drag any stretch; another click shows everything."
        )
        timeline = joined(doc.note(words), doc.figure(answer, _over_time))
    versions = versions_label(result.versions)
    evidence = (
        f"Dry run of the real engine ({versions}) as rank {result.rank} of {result.world_size}, in "
        f"{seconds(result.seconds)}: every tensor is fake, the code is real."
    )
    return doc.Report(
        subject=f"Dry run of {run.model_name or 'a module'} · {cluster_title(run.cluster)}",
        verdict=str(dry_run_verdict(answer.fit)),
        tone="good" if answer.fit.fits else "bad" if answer.fit.verdict == "does not fit" else "warn",
        lead=dry_run_summary(answer, shares=False),
        tiles=_tiles(answer),
        sections=(
            doc.Section("memory", "Memory over the run", timeline),
            doc.Section("peak", "What memory consists of", _peak(answer)),
            doc.Section("time", "Time of a step", _time(answer)),
            doc.Section("phases", "Phase by phase", _phases(answer)),
            doc.configuration(result.config, config_path.name, "The configuration, as DeepSpeed got it"),
            doc.Section("evidence", "How it is known", doc.note(evidence)),
        ),
        data=answer.to_json(),
        chart=lambda: _over_time(answer) if result.timeline else draw_stacked_bars(_by_phase(answer)),
    )


def _tiles(answer: DryRunAnswer) -> list[tuple[str, str, str]]:
    peak, step, offer = answer.result.peak, answer.step, answer.run.cluster.gpu.memory_bytes
    shown = [
        ("GiB per GPU needed", gib(answer.required_device_bytes_per_gpu), f"of {gib(offer)}"),
        ("GiB allocated at the peak", gib(peak.allocated_bytes_per_gpu), f"in {peak.phase} {peak.iteration}"),
        ("GiB of host RAM", gib(answer.required_host_bytes_per_node), "per node"),
    ]
    if step is not None:
        shown.append(("one step", seconds(step.time.step_s), f"{rate(step.time.tokens_per_s)} tokens/s"))
    return shown


def _over_time(answer: DryRunAnswer, width: int = WIDE) -> Markup:
    return draw_timeline(answer.result.timeline, answer.run.cluster.gpu.memory_bytes, width)


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
    chart = StackedBars(
        title="What one optimizer step waits for, by phase",
        bars=bars,
        unit=time_unit(max(bar.value for bar in bars)),
    )
    parts = sorted(answer.step.time.components.items(), key=lambda pair: -pair[1])
    rows: list[list[doc.Cell]] = [[name, doc.duration(taken)] for name, taken in parts]
    return doc.figure(chart, draw_stacked_bars, doc.figures_table(["what", "time"], rows))


_PHASE_COLUMNS = {
    "GPU peak": "gpu_peak_bytes",
    "GPU after": "gpu_live_bytes",
    "host peak": "host_peak_bytes",
    "pinned": "host_pinned_live_bytes",
    "NVMe read": "nvme_read_bytes",
    "written": "nvme_written_bytes",
}


def _phases(answer: DryRunAnswer) -> Markup:
    rows: list[list[doc.Cell]] = [
        [
            f"{phase.phase} {phase.iteration}" if phase.iteration else phase.phase,
            *(doc.size(getattr(phase, name)) for name in _PHASE_COLUMNS.values()),
        ]
        for phase in answer.result.phases
    ]
    return doc.table(["GiB", *_PHASE_COLUMNS], rows)


_SOURCES = {"measured": "measured", "closed form": "analytic", "dry run": "dry_run"}
"""Attributes of a `ProbeFigure` by their title."""


def probe_report(answer: ProbeAnswer, config_path: Path) -> doc.Report:
    """The report."""
    result, failure = answer.result, answer.result.failure
    versions = versions_label(result.versions)
    lead, tiles, figures = f"{probe_place(answer)}; random weights and tokens unless a checkpoint was given.", [], []
    if failure is not None:
        lead = f"Rank {failure.rank} was the first, at {failure.phase}: {failure.message}"
    else:
        tiles = [
            ("tokens/s", rate(result.tokens_per_s), "measured"),
            ("one step", seconds(result.step_s), f"{result.tokens_per_step:,} tokens"),
            ("steps", str(len(result.ranks[0].losses)), f"{len(result.ranks)} ranks"),
        ]
        figures = [
            doc.Section("figures", "Measured and predicted", _figures(answer)),
            doc.Section("ranks", "Rank by rank", _ranks(answer)),
        ]
    evidence = joined(
        doc.note(f"A real run ({versions}) in {seconds(result.seconds)}."),
        doc.as_printed(lambda console: render_probe(answer, console)),
    )
    title = "The configuration, as DeepSpeed got it"
    return doc.Report(
        subject=f"Probe of {answer.run.model_name or 'a module'}",
        verdict="It runs." if failure is None else FAILURE_SENTENCES[failure.kind],
        tone="good" if failure is None else "bad",
        lead=[lead],
        tiles=tiles,
        sections=(
            *figures,
            doc.configuration(result.config, config_path.name, title),
            doc.Section("evidence", "How it is known", evidence),
        ),
        data=answer.to_json(),
    )


def _figures(answer: ProbeAnswer) -> Markup:
    bars = []
    for found in answer.figures:
        if found.unit != "bytes" or not found.measured:
            continue
        for title, attribute in _SOURCES.items():
            value = getattr(found, attribute)
            if value is None:
                continue
            ink, hint = "weights" if title == "measured" else "other", f"{found.name}, {title}: {gib(int(value))} GiB"
            error = getattr(found, f"{attribute}_error", None)
            off = "" if error is None else f" ({'+' if error >= 0 else '-'}{percent(abs(error))})"
            bars.append(
                Bar(
                    label=f"{found.name}, {title}",
                    parts=(Part(name=title, value=value, ink=ink, hint=hint),),
                    note=f"{gib(int(value))}{off}",
                    chosen=title == "measured",
                )
            )
    chart = StackedBars(title="Memory, measured and predicted, in GiB", bars=tuple(bars))
    rows: list[list[doc.Cell]] = [
        [found.name, *(doc.figure_of(getattr(found, attribute), UNITS[found.unit]) for attribute in _SOURCES.values())]
        for found in answer.figures
    ]
    return joined(doc.figure(chart, draw_stacked_bars) if bars else None, doc.table(["", *_SOURCES], rows))


def _ranks(answer: ProbeAnswer) -> Markup:
    names = ("forward_s", "backward_s", "optimizer_s", "total_s")
    rows: list[list[doc.Cell]] = [
        [
            f"rank {report.rank}",
            *(doc.duration(sum(getattr(step, name) for step in report.steps) / len(report.steps)) for name in names),
        ]
        for report in answer.result.ranks
        if report.steps
    ]
    return doc.table(["", "forward", "backward", "optimizer", "a step"], rows)
