"""A dry run (verdict, memory by phase and over the run, contents of the peak, the step's time) and a probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from rich.console import Console

from ...ds_configs.files import CONFIG_NAME
from ...ds_configs.read import quantizes_collectives, unmodeled_features
from ...probes.failures.diagnosis import diagnose_text
from ...probes.real_run.result import ProbeResult
from ...probes.recording.result import TimelinePoint
from ..answer.dry_run_answer import DryRunAnswer
from ..answer.reasons import time_shares
from ..answer.verdict import fit_tone
from ..document import blocks as doc
from ..document.charts import GIB, Bar, Limit, Lines, Panel, StackedBars
from ..search.candidate import Fit, chance
from ..text.labels import MEMORY_FAMILIES, cluster_title, component_title, memory_by_family, versions_label
from ..text.language import can_encode
from ..text.lines import NARROWEST, row, sentence
from ..text.units import age, counted_noun, gib, percent, rate, seconds, whole_percents
from ..verification.dry_run import PLAIN_SPARKS, SPARKS, sparkline
from ..verification.probe import ProbeAnswer
from .configuration import configuration
from .known_cause import cause_and_fix
from .plans import chart_with_table, memory_bar, memory_parts

_SMALLEST_SHARE = 0.03
"""Parts of a step below this share are left out of the sentence about it."""

_NEAR = 1.6
"""The GPU's memory is drawn in the chart over the run if it is below this multiple of the highest memory."""

_PHASES = ("forward", "backward", "step")

_FROM_THE_BOTTOM = ("weights", "optimizer", "runtime", "gradients", "activations", "loss", "generation", "buffers")
"""Families from the bottom of the chart to the top: persistent ones first, temporary ones above."""

_MODULES, _TENSORS = 10, 20
"""Largest number of modules and tensors that are listed."""

_PHASE_COLUMNS = {
    "GPU peak": "gpu_peak_bytes",
    "GPU live": "gpu_live_bytes",
    "host live": "host_live_bytes",
    "pinned": "host_pinned_live_bytes",
    "NVMe read": "nvme_read_bytes",
    "written": "nvme_written_bytes",
}
"""Fields of a phase by the titles of their columns; a column without any bytes is left out."""

_STEP_PARTS = ("forward_s", "backward_s", "optimizer_s", "total_s")

_FAILURE_SENTENCES = {
    "out_of_memory": "Out of memory.",
    "crash": "It failed.",
    "hang": "It hung.",
    "stopped": "A rank was suspended.",
    "killed": "A rank was killed.",
    "timeout": "It took too long.",
    "disk_full": "The swap folder is full.",
}


def dry_run_document(
    answer: DryRunAnswer,
    config_name: str = CONFIG_NAME,
    *,
    explain: bool = False,
    training: Sequence[doc.Block] = (),
) -> doc.Document:
    """Return a dry run. explain: print the modules and tensors that are largest at the peak. training: what was
    observed of a training that is not ours."""
    result, cluster = answer.result, answer.run.cluster
    blocks: list[doc.Block] = [*map(doc.Sentence, _summary(answer)), *training]
    if answer.age_s is not None:
        when = f"This was run {age(answer.age_s)}; nothing has changed since."
        blocks.append(doc.Sentence(when, "dim"))
    micro_batch = result.config["train_micro_batch_size_per_gpu"]
    where = f"Rank {result.rank} of {result.world_size} on {cluster_title(cluster)}; micro batch {micro_batch}"
    blocks += [doc.Heading("Phase by phase", "phases", printed=False), doc.Sentence(where), *_phases(answer)]
    if result.timeline:
        chart = doc.Chart(_timeline(answer), printed=partial(_print_timeline, result.timeline))
        blocks += [doc.Heading("Memory over the run", "memory", printed=False), chart]
    blocks += [*_peak(answer, explain=explain), doc.Heading("Evidence", "evidence", printed=False)]
    blocks += configuration(result.config, config_name)
    if quantizes_collectives(answer.run.config):
        text = "Quantized collectives: the memory of their kernels is derived from DeepSpeed's source code."
        blocks.append(doc.Sentence(text))
    for feature in unmodeled_features(answer.run.config):
        blocks.append(doc.Sentence(f"{feature.name}: {feature.predicted}.", "yellow"))
    versions, duration = versions_label(result.versions), seconds(result.seconds)
    blocks.append(doc.Sentence(f"Evidence: dry run of the real engine ({versions}) in {duration}.", "dim"))
    return doc.Document(
        subject=f"Dry run of {answer.run.model_name or 'a module'} · {cluster_title(cluster)}",
        verdict=_verdict(answer.fit),
        tone=fit_tone(answer.fit),
        blocks=blocks,
        data=answer.to_json(),
    )


def _verdict(fit: Fit) -> str:
    """Return the verdict, with the probability if the verdict is uncertain."""
    if fit.fits:
        return "It fits."
    if fit.verdict == "does not fit":
        return "It does not fit."
    likely = "It probably fits" if fit.verdict == "likely fits" else "It probably does not fit"
    return f"{likely}: the probability is {chance(fit.probability)}."


def _summary(answer: DryRunAnswer) -> list[str]:
    """Return a sentence each on the required memory and the time of a step."""
    result, peak, cluster = answer.result, answer.result.peak, answer.run.cluster
    have, host = cluster.host_memory_bytes_per_node, answer.required_host_bytes_per_node
    needed = (
        f"Needs {gib(answer.required_device_bytes_per_gpu)} of {gib(cluster.gpu.memory_bytes)} GiB per GPU "
        f"({gib(peak.allocated_bytes_per_gpu)} allocated; rest: fragmentation, CUDA context, NCCL)."
    )
    for further in filter(None, (_cached(answer), _other_allocator(answer))):
        needed = f"{needed} {further}"
    if answer.loading_device_bytes_per_gpu == answer.required_device_bytes_per_gpu:
        needed = (
            f"Needs {gib(answer.required_device_bytes_per_gpu)} of {gib(cluster.gpu.memory_bytes)} GiB per GPU before "
            f"the training, then {gib(peak.allocated_bytes_per_gpu)} allocated."
        )
        if not answer.flattens:
            needed = (
                f"{needed} The peak is the loading, before DeepSpeed shards or casts the model: create "
                "TrainingArguments before it, and load it in 16 bits."
            )
    ram = f"{gib(host)} GiB (not checked: pass --ram)" if have is None else f"{gib(host)} of {gib(have)} GiB"
    memory = f"Host RAM per node {ram}, {gib(host - peak.host_bytes_per_node)} GiB of it for the processes themselves"
    if result.nvme_bytes_per_rank:
        memory += f"; NVMe {gib(result.nvme_bytes_per_rank)} GiB per GPU"
    sentences = [needed, f"{memory}."]
    if answer.analytic is not None:
        predicted = answer.analytic.allocated_bytes_per_gpu
        error = predicted / peak.allocated_bytes_per_gpu - 1
        difference = f"predicts {gib(predicted)} GiB allocated, {percent(abs(error))} {'more' if error > 0 else 'less'}"
        agrees = percent(abs(error)) == percent(0)
        sentences.append(f"The closed form {f'agrees: {gib(predicted)} GiB allocated' if agrees else difference}.")
    if answer.step is None:
        return sentences
    step_s, links_s = answer.step.time.step_s, answer.step.links_busy_s
    takes = f"A step takes about {seconds(step_s)} in its recorded schedule"
    if answer.analytic_time is not None:
        takes += f"; the closed form predicts {seconds(answer.analytic_time.step_s)}"
    sentences.append(f"{takes}.")
    sentences.append(f"Its time: {time_shares(answer.step.time, least=_SMALLEST_SHARE)}.")
    computes = f"The GPU computes {percent(answer.step.gpu_busy_s / step_s)} of the time"
    if links_s:
        share = percent(answer.step.overlapped_s / links_s)
        computes += f"; {share} of the {seconds(links_s)} of collectives overlap with computation"
    return [*sentences, f"{computes}."]


def _cached(answer: DryRunAnswer) -> str:
    """Return the memory that nvidia-smi shows for a training that fits: PyTorch caches freed blocks while the GPU has
    room."""
    needed, there = answer.required_device_bytes_per_gpu, answer.run.cluster.gpu.memory_bytes
    shown = min(answer.device_bytes_per_gpu, there)
    if needed >= there or gib(shown) == gib(needed):
        return ""
    return f"PyTorch also caches freed blocks while there is room, so nvidia-smi shows up to {gib(shown)} GiB."


def _other_allocator(answer: DryRunAnswer) -> str:
    """Return the need under the other setting of `expandable_segments`, if it differs."""
    peak, needed = answer.result.peak, answer.required_device_bytes_per_gpu
    required = peak.required_bytes_per_gpu
    plain = required == peak.with_expandable_segments.required_bytes_per_gpu
    other = (peak.without_expandable_segments if plain else peak.with_expandable_segments).required_bytes_per_gpu
    if gib(needed - required + other) == gib(needed):
        return ""
    size = gib(needed - required + other)
    return f"{'Without' if plain else 'With'} expandable_segments it needs {size}."


def _phases(answer: DryRunAnswer) -> Iterator[doc.Block]:
    """Yield a table with one row per phase; a repeated iteration takes one row."""
    phases = answer.result.phases
    last = max(phase.iteration for phase in phases)
    if answer.result.library_workspace_bytes:
        text = (
            "Tensors of each phase; torch.cuda.memory_allocated also counts "
            f"{gib(answer.result.library_workspace_bytes)} GiB of cuBLAS workspaces."
        )
        yield doc.Sentence(text)
    shown = {title: name for title, name in _PHASE_COLUMNS.items() if any(getattr(phase, name) for phase in phases)}
    rows, previous = list[doc.Row](), list[tuple[str, int, int]]()
    for iteration, group in groupby(phases, key=lambda phase: phase.iteration):
        own = list(group)
        key = [(phase.phase, phase.gpu_peak_bytes, phase.gpu_live_bytes) for phase in own]
        if key == previous:
            later = "; later iterations repeat it" if iteration == last < answer.result.iterations else ""
            rows.append(doc.Row([doc.Figure(str(iteration)), f"same as {iteration - 1}{later}"], "faded"))
            continue
        previous = key
        number = str(iteration) if any(phase.phase == "step" for phase in own) else ""
        for phase in own:
            sizes = (doc.make_figure(getattr(phase, name), gib) for name in shown.values())
            rows.append(doc.Row([doc.Figure(number), phase.phase, *sizes]))
    yield doc.Table(["step", "phase (GiB)", *shown], rows)
    if answer.step is not None:
        parts = sorted(answer.step.time.components.items(), key=lambda pair: -pair[1])
        times = [doc.Row([name, doc.make_figure(taken, seconds)]) for name, taken in parts]
        yield doc.Folded("Time of a step", [doc.Table(["what", "time"], times)])


def _timeline(answer: DryRunAnswer) -> Lines:
    """Return GPU memory by family over allocations and frees, with the phases."""
    points, limit = answer.result.timeline, answer.run.cluster.gpu.memory_bytes
    sizes = [memory_by_family(point.by_category) for point in points]
    present = {family for each in sizes for family in each}
    families = [family for family in dict.fromkeys((*_FROM_THE_BOTTOM, *MEMORY_FAMILIES)) if family in present]
    begins = ((next(own), phase) for phase, own in groupby(points, key=lambda point: (point.iteration, point.phase)))
    is_near = limit < _NEAR * max(point.gpu_bytes for point in points)
    panel = Panel(
        title="GiB",
        layers={family: [each.get(family, 0) for each in sizes] for family in families},
        unit=GIB,
        limit=Limit(limit, f"{gib(limit)} GiB per GPU") if is_near else None,
        areas=True,
    )
    return Lines(
        title="GPU memory over the run, by what it is",
        x_title="allocations and frees, in their order",
        xs=[point.event for point in points],
        panels=[panel],
        labels=(),
        families={family: MEMORY_FAMILIES[family] for family in families},
        spans=[(first.begins, f"{phase} {iteration or ''}".strip()) for first, (iteration, phase) in begins],
    )


def _print_timeline(points: Sequence[TimelinePoint], console: Console) -> None:
    sparks = SPARKS if can_encode(console, SPARKS) else PLAIN_SPARKS
    drawn, marks = sparkline(points, max(NARROWEST, console.width) - 4, sparks)
    row(console, f"  {drawn}", style="cyan")
    row(console, f"  {marks}", style="dim")
    legend = "(iterations by number; load, initialize, forward, backward, step by initial)"
    sentence(console, legend, style="dim", hang=1)


def _peak(answer: DryRunAnswer, *, explain: bool) -> Iterator[doc.Block]:
    """Yield the tensors when each phase is highest, and the largest modules and tensors at the peak."""
    result, peak, limit = answer.result, answer.result.peak, answer.run.cluster.gpu.memory_bytes
    by_phase = {phase: result.peak_by_phase[phase] for phase in _PHASES if phase in result.peak_by_phase}
    bars = tuple(
        Bar(label=phase, parts=memory_parts(parts), note=gib(sum(parts.values())), chosen=phase == peak.phase)
        for phase, parts in by_phase.items()
    )
    chart = StackedBars(
        title="Live tensors on the GPU when each phase is highest, in GiB",
        bars=bars,
        limit=Limit(limit, f"{gib(limit)} GiB per GPU"),
        ends_at=1.05 * max((bar.value for bar in bars), default=1.0),
        families=MEMORY_FAMILIES,
    )
    size = gib(peak.allocated_bytes_per_gpu)
    yield doc.Heading(f"Tensors of the {size} GiB at the peak (iteration {peak.iteration}, {peak.phase})", "peak")
    yield chart_with_table(chart, by_phase, "GiB", gib)._replace(printed=memory_bar(peak.by_category))
    modules = sorted(peak.by_module.items(), key=lambda pair: -pair[1])[:_MODULES]
    tensors = (
        (each.size_bytes, component_title(each.category), each.dtype, "x".join(map(str, each.shape)), each.module)
        for each in peak.largest[:_TENSORS]
    )
    module_rows = [_sized(size, name or "(no module)") for name, size in modules]
    tensor_rows = [_sized(*each) for each in tensors]
    for name, table in (
        ("Largest modules at the peak", doc.Table(["GiB", "module"], module_rows)),
        ("Largest tensors at the peak", doc.Table(["GiB", "what", "type", "shape", "module"], tensor_rows)),
    ):
        yield from (doc.Heading(name, name.split()[1]), table) if explain else (doc.Folded(name, [table]),)


def _sized(size_bytes: int, *words: str) -> doc.Row:
    return doc.Row([doc.Figure(gib(size_bytes), size_bytes), *words])


def probe_document(answer: ProbeAnswer, config_name: str = CONFIG_NAME) -> doc.Document:
    """Return a probe: its end, measured and predicted figures, and the parts of the step."""
    result, failure = answer.result, answer.result.failure
    return doc.Document(
        subject=f"Probe of {answer.run.model_name or 'a module'}",
        verdict="It runs." if failure is None else _FAILURE_SENTENCES[failure.kind],
        tone="good" if failure is None else "bad",
        blocks=[*_probe_blocks(answer), *configuration(result.config, config_name)],
        data=answer.to_json(),
    )


def _probe_blocks(answer: ProbeAnswer) -> Iterator[doc.Block]:
    result, failure = answer.result, answer.result.failure
    if failure is not None:
        yield doc.Sentence(f"Rank {failure.rank} was the first, at {failure.phase}: {failure.message}")
        yield doc.Verbatim(failure.details.strip().splitlines()[-12:])
        yield from cause_and_fix(diagnose_text(f"{failure.details}\n{failure.message}"))
        return
    yield doc.Sentence(
        f"{rate(result.tokens_per_s)} tokens/s; {seconds(result.step_s)} per optimizer step; {_place(answer)}, "
        f"{len(result.ranks[0].losses)} steps."
    )
    if result.solo:
        yield doc.Sentence("Times exclude communication and memory excludes NCCL: there are no other ranks.")
    yield doc.Heading("Measured and predicted", "figures", printed=False)
    rows = []
    columns = ["measured", "analytic", "", "dry run", ""]
    for figure in answer.figures:
        write = _UNITS[figure.unit]
        errors = (doc.Figure(_signed(error)) for error in (figure.analytic_error, figure.dry_run_error))
        known = [doc.make_figure(value, write) for value in (figure.measured, figure.analytic, figure.dry_run)]
        cells = [*known[:2], next(errors), known[2], next(errors)]
        rows.append(doc.Row([figure.name, *(cells[:1] + cells[3:] if answer.command else cells)]))
    yield doc.Table(["", *(columns[:1] + columns[3:] if answer.command else columns)], rows)
    yield doc.Gap()
    yield doc.Sentence(_step_parts(result))
    rows = []
    for report in (each for each in result.ranks if each.steps):
        means = (sum(map(attrgetter(name), report.steps)) / len(report.steps) for name in _STEP_PARTS)
        rows.append(doc.Row([f"rank {report.rank}", *(doc.make_figure(mean, seconds) for mean in means)]))
    yield doc.Folded("Rank by rank", [doc.Table(["", "forward", "backward", "optimizer", "a step"], rows)])
    data = "the command's own data" if answer.command else "random weights and tokens unless a checkpoint was given"
    text = f"Evidence: probe ({versions_label(result.versions)}) in {seconds(result.seconds)}; {data}."
    yield doc.Heading("Evidence", "evidence", printed=False)
    yield doc.Sentence(text, "dim")


def _place(answer: ProbeAnswer) -> str:
    """Return `2 ranks on 2 x H100-SXM5`, `2 ranks on the CPU (AMD EPYC 7742)`, or `rank 3 of 8, alone, of 8 x
    H100-SXM5`."""
    result, place = answer.result, cluster_title(answer.run.cluster)
    if result.solo:
        return f"rank {result.ranks[0].rank} of {result.world_size}, alone, of {place}"
    return place if answer.run.cluster.gpu.is_cpu else f"{counted_noun(result.world_size, 'rank')} on {place}"


_UNITS: Mapping[str, Callable[[Any], str]] = {
    "bytes": lambda size_bytes: f"{gib(int(size_bytes))} GiB",
    "s": seconds,
    "tokens/s": rate,
}
"""Format of a figure by its unit."""


def _signed(error: float | None) -> str:
    """Return a relative error such as `+3 %`; "" for none."""
    return "" if error is None else f"{'+' if error >= 0 else '-'}{percent(abs(error))}"


def _step_parts(result: ProbeResult) -> str:
    """Return the parts of the slowest rank's step, by engine call."""
    slowest = max(result.ranks, key=lambda report: report.step_s)

    def share(name: str) -> float:
        return float(sum(getattr(step, name) for step in slowest.steps) / sum(step.total_s for step in slowest.steps))

    parts = [share(name) for name in _STEP_PARTS[:3]]
    forward, backward, optimizer, _ = whole_percents([*parts, max(0.0, 1 - sum(parts))])
    text = f"Step: {forward} % forward pass, {backward} % backward pass, {optimizer} % optimizer"
    if slowest.steps[0].waiting_s is not None:
        text += f"; {percent(share('waiting_s'))} of it in collectives"
    return f"{text}."
