"""A dry run: verdict, figures, memory by phase and over the run, the peak and the step in parts, and remarks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby

from ...ds_configs.files import CONFIG_NAME
from ...ds_configs.read import quantizes_collectives, reduce_bucket_size_in, unmodeled_features
from ...estimators.estimate import total_bytes
from ...estimators.memory.host_memory import process_terms
from ...probes.recording.engine_hooks import BETWEEN
from ..answer.dry_run_answer import DryRunAnswer
from ..answer.verdict import fit_tone
from ..document import blocks as doc
from ..document.charts import Bar, Lines, Panel, StackedBars, Unit, memory_unit
from ..search.candidate import fits_sentence
from ..text.labels import (
    MEMORY_FAMILIES,
    checkpointing_title,
    cluster_title,
    component_title,
    device_label,
    global_batch_label,
    memory_by_family,
    plan_title,
    versions_label,
)
from ..text.units import age, capitalised, gib, memory_size, percent, rate, seconds
from ..verification.prediction import UNTIMED, is_timed
from .configuration import configuration
from .phase_memory import host_sentence, phase_table
from .plans import chart_with_table, family_of_part, gpu_limit, memory_bar, memory_parts, time_bar

_NEAR = 1.6
"""The GPU's memory is drawn in the chart over the run if it is below this multiple of the highest memory."""

_PHASES = ("forward", "backward", "step")
_UNNAMED = ("start", BETWEEN)

_FROM_THE_BOTTOM = ("weights", "optimizer", "runtime", "gradients", "activations", "loss", "generation", "buffers")
"""Families from the bottom of the chart to the top: persistent ones first, temporary ones above."""

_MODULES, _TENSORS = 10, 20
"""Largest number of modules and tensors that are listed."""

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""The number of a layer in a module's name."""

_OF_NO_MODULE = "(of no single module: flat buffers, optimizer)"

_LEAST_SHARE = 0.01
"""Share of the peak below which a module or tensor is not listed."""


_LEAST_OF_ALLOCATOR, _NEARLY_FULL = 0.05, 0.9
"""Shares of the GPU's memory: the least difference of the allocator's settings that is told, and the need from which
every difference is."""


def dry_run_document(
    answer: DryRunAnswer,
    config_name: str = CONFIG_NAME,
    *,
    explain: bool = False,
    following: Sequence[doc.Block] = (),
    remarks: Sequence[doc.Block] = (),
    training: Sequence[doc.Block] = (),
) -> doc.Document:
    """Return a dry run. explain: print the modules and tensors that are largest at the peak. following: the next
    command. remarks: what in the training differs from the command and its configuration. training: what was observed
    of a training that is not ours."""
    if not is_timed(answer.run.cluster):
        answer = replace(answer, step=None, analytic_time=None)
    result, cluster = answer.result, answer.run.cluster
    place = f"the {cluster.gpu.name}" if cluster.gpu.is_cpu else cluster_title(cluster)
    batch = global_batch_label(result.config, result.world_size, device_label(cluster))
    blocks: list[doc.Block] = [
        *remarks,
        *_allocator(answer),
        *_subject(answer),
        doc.Sentence(f"Rank {result.rank} (of {result.world_size}) on {place}."),
        doc.Sentence(f"{capitalised(batch)}."),
        *_advice(answer),
        *_figures(answer),
    ]
    if result.timeline:
        timeline = _timeline(answer)
        title = "Tensors over the run"
        if timeline.panels[0].limit is None:
            title = f"{title}, of {gib(cluster.gpu.memory_bytes)} GiB per {device_label(cluster)}"
        blocks += [doc.Heading(title, "memory"), doc.Chart(timeline, printed=timeline)]
    blocks += [
        *_peak(answer, explain=explain),
        doc.Heading("Phase by phase", "phases", printed=False),
        *_phases(answer),
        *training,
        doc.Heading("What the figures are", "evidence", printed=False),
    ]
    blocks += [doc.Sentence(note, "dim") for note in _notes(answer)]
    blocks += configuration(result.config, config_name)
    for feature in unmodeled_features(answer.run.config):
        blocks.append(doc.Sentence(f"{feature.name}: {feature.predicted}.", "yellow"))
    when = "" if answer.age_s is None else f" It was run {age(answer.age_s)}; nothing has changed since."
    versions, duration = versions_label(result.versions), seconds(result.seconds)
    blocks.append(doc.Sentence(f"Evidence: dry run of the real engine ({versions}) in {duration}.{when}", "dim"))
    blocks += following
    return doc.Document(
        subject=f"Dry run of {answer.run.model_name or 'a module'} · {cluster_title(cluster, speed=False)}",
        verdict=_verdict(answer),
        tone=fit_tone(answer.fit),
        blocks=blocks,
        data=answer.to_json(),
    )


def _subject(answer: DryRunAnswer) -> Iterator[doc.Block]:
    """Yield the model, the plan and the training of a described run; those of a command are observed."""
    plan, workload = answer.run.plan(answer.result.config), answer.run.workload
    if plan is not None:
        what = f"{plan_title(plan)}, {checkpointing_title(plan)}, {workload.loss} loss"
        sequence = f"sequence {workload.seq_len:,} in {workload.precision}"
        yield doc.Sentence(f"{answer.run.model_name}: {what}, {sequence}.")


def _verdict(answer: DryRunAnswer) -> str:
    """Return the verdict and the need of what decides it."""
    cluster = answer.run.cluster
    need, have = answer.required_device_bytes_per_gpu, cluster.gpu.memory_bytes
    of = f"GiB per {device_label(cluster)}"
    if answer.fit.limit == "host":
        need, have = answer.required_host_bytes_per_node, cluster.most_host_bytes_per_node
        of = f"GiB of host RAM{' per node' * (cluster.nodes > 1)}"
    return f"{fits_sentence('It', answer.fit).removesuffix('.')}: {gib(need)} of {gib(have)} {of}."


def _allocator(answer: DryRunAnswer) -> Iterator[doc.Block]:
    """Yield a sentence if the training fits with expandable segments alone."""
    name, need = _other_allocator(answer)
    if name == "without" and answer.fit.fits and need > answer.run.cluster.gpu.memory_bytes:
        yield doc.Sentence(
            f"With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; without it {gib(need)} GiB, which does not fit.",
            "yellow",
        )


def _is_loading(answer: DryRunAnswer) -> bool:
    return answer.loading_device_bytes_per_gpu == answer.required_device_bytes_per_gpu


def _advice(answer: DryRunAnswer) -> Iterator[doc.Block]:
    """Yield what to change in the loading of the model if it decides the need."""
    if _is_loading(answer) and not answer.flattens:
        yield doc.Sentence(
            "The peak is the loading, before DeepSpeed shards or casts the model: create TrainingArguments before it, "
            "and load it in 16 bits.",
            "yellow",
        )


def _figures(answer: DryRunAnswer) -> Iterator[doc.Block]:
    """Yield memory and time, beside those of the closed form."""
    result, peak, cluster = answer.result, answer.result.peak, answer.run.cluster
    analytic, times = answer.analytic, answer.analytic_time
    rows = list[doc.Row]()

    def add(title: str, need: int, closed: int | None, have: int | None, remark: str = "") -> None:
        figures = [doc.make_figure(each, memory_size) for each in (need, closed)]
        meter = "" if have is None else doc.Meter(need / have, limited=True)
        rows.append(doc.Row([title, *figures, meter, remark if have is None else f"of {gib(have)} GiB"]))

    gpu = host = allocated = None
    if analytic is not None:
        gpu, allocated = max(analytic.device_bytes_per_gpu, answer.generation_bytes), analytic.allocated_bytes_per_gpu
        host = None if cluster.gpu.is_cpu else analytic.host_bytes_per_node
    add(f"{device_label(cluster)} memory", answer.required_device_bytes_per_gpu, gpu, cluster.gpu.memory_bytes)
    add("  allocated", peak.allocated_bytes_per_gpu, allocated, None)
    have = cluster.host_memory_bytes_per_node
    add("host RAM per node", answer.required_host_bytes_per_node, host, have, "not checked: pass --ram")
    if result.nvme_bytes_per_rank:
        add("NVMe per GPU", result.nvme_bytes_per_rank, None, None)
    if answer.step is not None:
        steps = answer.step.time.step_s, None if times is None else times.step_s
        rows.append(doc.Row(["step time", *(doc.make_figure(each, seconds) for each in steps), "", ""]))
        if answer.unit:
            rates = answer.step.time.tokens_per_s, None if times is None else times.tokens_per_s
            rows.append(doc.Row([f"{answer.unit}/s", *(doc.make_figure(each, rate) for each in rates), "", ""]))
    yield doc.Heading("Memory and time", "figures", printed=False)
    table = doc.Table(["", "dry run", "closed form", "", ""], rows, optional=(3,))
    yield table if analytic is not None or times is not None else table.without({2})


def _notes(answer: DryRunAnswer) -> Iterator[str]:
    """Yield sentences about the figures."""
    result, peak = answer.result, answer.result.peak
    size = gib(peak.allocated_bytes_per_gpu)
    rest = "the rank's process" if answer.run.cluster.gpu.is_cpu else "fragmentation, CUDA context and NCCL"
    subject = f"{capitalised(device_label(answer.run.cluster))} memory"
    text = f"{subject}: {memory_size(peak.allocated_bytes_per_gpu)} of tensors; the rest is {rest}."
    if _is_loading(answer):
        text = f"{subject}: that before the training; then {memory_size(peak.allocated_bytes_per_gpu)} are allocated."
    name, need = _other_allocator(answer)
    other = (
        f"{name.capitalize()} expandable_segments it needs {gib(need)} GiB."
        if name and not any(_allocator(answer))
        else ""
    )
    yield " ".join(filter(None, (text, _cached(answer), other)))
    yield from _bucket(answer)
    processes, cluster = total_bytes(process_terms(answer.run.cluster)), answer.run.cluster
    data = {**asdict(replace(result, schedule=None, timeline=())), "device": "cpu" if cluster.gpu.is_cpu else "cuda"}
    yield host_sentence(data, processes, answer.required_host_bytes_per_node - processes)
    if not is_timed(cluster):
        yield UNTIMED
    if answer.step is not None:
        step_s, links_s = answer.step.time.step_s, answer.step.links_busy_s
        busy = percent(answer.step.gpu_busy_s / step_s)
        computes = f"The bar has what the step waits for; the GPU computes {busy} of the time"
        if links_s:
            share = percent(answer.step.overlapped_s / links_s)
            # What neither overlaps with computation nor is waited for runs while the host launches kernels or computes.
            parts = answer.step.time.components.items()
            waited_s = sum(taken for name, taken in parts if family_of_part(name) == "links")
            computes += f"; {share} of the {seconds(links_s)} of collectives overlap with computation, and the step "
            computes += f"waits for {seconds(waited_s)} of them"
        yield f"{computes}."
    if gib(peak.allocated_bytes_per_gpu - result.library_workspace_bytes) != size:
        workspaces = memory_size(result.library_workspace_bytes)
        yield f"The phases have tensors; torch.cuda.memory_allocated also counts {workspaces} of cuBLAS workspaces."
    if quantizes_collectives(answer.run.config):
        yield "Quantized collectives: the memory of their kernels is derived from DeepSpeed's source code."


def _bucket(answer: DryRunAnswer) -> Iterator[str]:
    """Yield what the reduction bucket is, if it is most of the peak: its size is that of no tensor of the model."""
    peak, elements = answer.result.peak, reduce_bucket_size_in(answer.result.config)
    whole = (each.size_bytes for each in peak.largest if each.category == "buckets" and each.shape == (elements,))
    if 2 * (size := next(whole, 0)) > peak.allocated_bytes_per_gpu:
        yield (
            f"Buffers: a reduction bucket of {elements:,} elements (reduce_bucket_size) takes {memory_size(size)}, "
            "whatever the size of the model."
        )


def _cached(answer: DryRunAnswer) -> str:
    """Return the memory that nvidia-smi shows for a training that fits: PyTorch caches freed blocks while the GPU has
    room."""
    needed, there = answer.required_device_bytes_per_gpu, answer.run.cluster.gpu.memory_bytes
    shown = min(answer.device_bytes_per_gpu, there)
    if needed >= there or gib(shown) == gib(needed):
        return ""
    return f"PyTorch also caches freed blocks while there is room, so nvidia-smi shows up to {gib(shown)} GiB."


def _other_allocator(answer: DryRunAnswer) -> tuple[str, int]:
    """Return the other setting of `expandable_segments`, "with" or "without", and the need under it; "" if the
    difference is small and does not decide whether it fits."""
    peak, needed = answer.result.peak, answer.required_device_bytes_per_gpu
    required = peak.required_bytes_per_gpu
    plain = required == peak.with_expandable_segments.required_bytes_per_gpu
    other = (peak.without_expandable_segments if plain else peak.with_expandable_segments).required_bytes_per_gpu
    need, memory_bytes = needed - required + other, answer.run.cluster.gpu.memory_bytes
    decides = max(need, needed) > _NEARLY_FULL * memory_bytes and gib(need) != gib(needed)
    if abs(need - needed) < _LEAST_OF_ALLOCATOR * memory_bytes and not decides:
        return "", needed
    return "without" if plain else "with", need


def _phases(answer: DryRunAnswer) -> Iterator[doc.Block]:
    """Yield the table of the phases, and the time of a step in parts."""
    yield phase_table([asdict(phase) for phase in answer.result.phases], answer.result.iterations)
    if answer.step is not None:
        parts = sorted(answer.step.time.components.items(), key=lambda pair: -pair[1])
        times = [doc.Row([name, doc.make_figure(taken, seconds)]) for name, taken in parts]
        yield doc.Folded("Time of a step", [doc.Table(["what", "time"], times)])


def _timeline(answer: DryRunAnswer) -> Lines:
    """Return GPU memory by family over allocations and frees, with the phases."""
    points, limit = [*answer.result.timeline], answer.run.cluster.gpu.memory_bytes
    # The script goes on for a moment after the observed steps, and repeats them.
    while points[-1].iteration > answer.result.iterations and points[-1].phase in (*_PHASES, BETWEEN):
        points.pop()
    # cuBLAS allocates its workspaces at the first product of matrices: what is allocated includes them from then on.
    workspace_bytes = answer.result.library_workspace_bytes
    held = [workspace_bytes if point.iteration else 0 for point in points]
    sizes = [
        memory_by_family(point.by_category | ({"library_workspace": size} if size else {}))
        for point, size in zip(points, held, strict=True)
    ]
    present = {family for each in sizes for family in each}
    families = [family for family in dict.fromkeys((*_FROM_THE_BOTTOM, *MEMORY_FAMILIES)) if family in present]
    begins = ((next(own), phase) for phase, own in groupby(points, key=lambda point: (point.iteration, point.phase)))
    highest = max(point.gpu_bytes + size for point, size in zip(points, held, strict=True))
    is_near, unit = limit < _NEAR * highest, memory_unit(highest)
    line = gpu_limit(answer.run.cluster)
    panel = Panel(
        title=unit.title if is_near else f"{unit.title} (limit above: {line.words})",
        layers={family: [each.get(family, 0) for each in sizes] for family in families},
        unit=unit,
        limit=line if is_near else None,
        areas=True,
    )
    return Lines(
        title=f"{capitalised(device_label(answer.run.cluster))} memory over the run, by what it is",
        x_title="allocations and frees, in their order",
        xs=[point.event for point in points],
        panels=[panel],
        labels=(),
        families={family: MEMORY_FAMILIES[family] for family in families},
        spans=[
            (first.begins, "" if phase in _UNNAMED else f"{phase} {iteration or ''}".strip())
            for first, (iteration, phase) in begins
        ],
    )


def _peak(answer: DryRunAnswer, *, explain: bool) -> Iterator[doc.Block]:
    """Yield the tensors when each phase is highest, and the largest modules and tensors at the peak."""
    result, peak = answer.result, answer.result.peak
    by_phase = {phase: result.peak_by_phase[phase] for phase in _PHASES if phase in result.peak_by_phase}
    unit = memory_unit(peak.allocated_bytes_per_gpu)
    bars = tuple(
        Bar(label=phase, parts=memory_parts(parts), note=unit.figure(sum(parts.values())), chosen=phase == peak.phase)
        for phase, parts in by_phase.items()
    )
    chart = StackedBars(
        title=f"Live tensors on the GPU when each phase is highest, in {unit.title}",
        bars=bars,
        limit=gpu_limit(answer.run.cluster),
        ends_at=1.05 * max((bar.value for bar in bars), default=1.0),
        unit=unit,
        families=MEMORY_FAMILIES,
    )
    size = unit.figure(peak.allocated_bytes_per_gpu)
    title = f"{size} {unit.title} allocated at the peak (iteration {peak.iteration}, {peak.phase})"
    printed = memory_bar(peak.by_category, unit=unit)
    memory = chart_with_table(chart)._replace(printed=printed)
    times = list[doc.Block]()
    if answer.step is not None:
        bar = time_bar(answer.step.time)
        step_s = answer.step.time.step_s
        times = [doc.Sentence(f"Step time, {seconds(step_s)}", "bold"), doc.Chart(bar, printed=bar)]
    yield doc.Heading("The peak and the step", "peak", printed=False)
    yield doc.Beside([doc.Sentence(title, "bold"), memory], times)
    least = _LEAST_SHARE * peak.allocated_bytes_per_gpu
    modules = [(name, size) for name, size in _by_layer(peak.by_module) if size >= least]
    tensors = (
        (each.size_bytes, component_title(each.category), each.dtype, "x".join(map(str, each.shape)), each.module)
        for each in peak.largest[:_TENSORS]
        if each.size_bytes >= least
    )
    module_rows = [_sized(unit, size, name or _OF_NO_MODULE) for name, size in modules[:_MODULES]]
    tensor_rows = [_sized(unit, *each) for each in tensors]
    for name, table in (
        ("Largest modules at the peak", doc.Table([unit.title, "module"], module_rows)),
        ("Largest tensors at the peak", doc.Table([unit.title, "what", "type", "shape", "module"], tensor_rows)),
    ):
        yield from (doc.Heading(name, name.split()[1]), table) if explain else (doc.Folded(name, [table]),)


def _by_layer(by_module: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the modules with their bytes, the largest first; those of all layers are one, `model.layers.*.mlp`."""
    sizes = Counter[str]()
    for name, size in by_module.items():
        sizes[_NUMBER.sub("*", name)] += size
    return sizes.most_common()


def _sized(unit: Unit, size_bytes: int, *words: str) -> doc.Row:
    return doc.Row([doc.Figure(unit.figure(size_bytes), size_bytes), *words])
