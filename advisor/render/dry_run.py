"""A dry run for people: the verdict, memory by phase, what the peak consists of, the largest tensors."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ...ds_configs.read import quantizes_collectives, unmodeled_features
from ..answer.reasons import time_shares
from ..answer.recommendation import DryRunAnswer
from ..search.candidate import Fit, chance
from ..text.labels import cluster_title, component_title
from ..text.lines import NARROWEST, bar, blank, can_encode, cells, row, sentence
from ..text.units import age, gib, percent, seconds
from ..verification.dry_run import PLAIN_SPARKS, SPARKS, spark, sparkline

SMALLEST_SHARE = 0.03
"""Smaller parts of a step are left out of the sentence about it."""


def render_dry_run(answer: DryRunAnswer, console: Console, *, explain: bool = False) -> None:
    """Print everything; `explain` adds the modules and tensors that are largest at the peak."""
    result, peak = answer.result, answer.result.peak
    sentence(console, verdict(answer.fit))
    for line in summary(answer):
        sentence(console, line)
    if answer.age_s is not None:
        sentence(console, f"This was run {age(answer.age_s)}: nothing has changed since.", style="dim")
    blank(console)
    sentence(console, f"Rank {result.rank} of {result.world_size} on {cluster_title(answer.run.cluster)}")
    _phases(answer, console)
    _timeline(answer, console)
    blank(console)
    sentence(
        console,
        f"What the {gib(peak.allocated_bytes_per_gpu)} GiB at the peak are (iteration {peak.iteration}, {peak.phase})",
    )
    bar(peak.by_category, console)
    if explain:
        _explain(answer, console)
    blank(console)
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    if quantizes_collectives(answer.run.config):
        sentence(console, "Quantized collectives: what their kernels allocate is derived from DeepSpeed's sources.")
    for feature in unmodeled_features(answer.run.config):
        sentence(console, f"{feature.name}: {feature.predicted}.", style="yellow")
    sentence(
        console,
        f"Evidence: dry run of the real engine ({versions}) in {seconds(result.seconds)}.",
        style="dim",
    )


def summary(answer: DryRunAnswer, *, shares: bool = True) -> list[str]:
    """What is needed and how long a step takes, a sentence each; shares: and what it waits for."""
    result, peak, offer = answer.result, answer.result.peak, answer.run.cluster.gpu.memory_bytes
    have = answer.run.cluster.host_memory_bytes_per_node
    sentences = [
        f"{gib(answer.required_device_bytes_per_gpu)} of {gib(offer)} GiB per GPU are needed: "
        f"{gib(peak.allocated_bytes_per_gpu)} allocated, the allocator's fragmentation, the CUDA context and "
        f"NCCL. With memory to spare PyTorch keeps more cached, and nvidia-smi shows "
        f"{gib(answer.device_bytes_per_gpu)}.{_other_allocator(answer)}",
        f"Host RAM {gib(answer.required_host_bytes_per_node)} GiB per node"
        + (f" of {gib(have)}" if have is not None else " (not checked: pass --ram)")
        + f", {gib(answer.required_host_bytes_per_node - peak.host_bytes_per_node)} of it the processes' own"
        + (f"; NVMe {gib(result.nvme_bytes_per_rank)} GiB per GPU" if result.nvme_bytes_per_rank else "")
        + ".",
    ]
    if answer.analytic is not None:
        closed = answer.analytic.allocated_bytes_per_gpu
        error = closed / peak.allocated_bytes_per_gpu - 1
        sentences.append(
            f"The closed form says {gib(closed)} GiB allocated, {percent(abs(error))} "
            f"{'more' if error >= 0 else 'less'}."
        )
    return [*sentences, *_step(answer, shares=shares)]


def verdict(fit: Fit) -> Text:
    """The verdict, with the probability where it is not clear."""
    if fit.fits:
        return Text("It fits.", style="bold green")
    if fit.verdict == "does not fit":
        return Text("It does not fit.", style="bold red")
    word = "It probably fits" if fit.verdict == "likely fits" else "It probably does not fit"
    return Text(f"{word}: the probability that it does is {chance(fit.probability)}.", style="bold yellow")


def _step(answer: DryRunAnswer, *, shares: bool) -> list[str]:
    """How long a step takes, what it waits for, and how busy the GPU is."""
    step = answer.step
    if step is None:
        return []
    other = f"; the closed form says {seconds(answer.analytic_time.step_s)}" if answer.analytic_time is not None else ""
    exchanged = (
        f"; {percent(step.overlapped_s / step.links_busy_s)} of the {seconds(step.links_busy_s)} of collectives run "
        "beside it"
        if step.links_busy_s
        else ""
    )
    return [
        f"A step takes about {seconds(step.time.step_s)}, as its recorded schedule plays out{other}.",
        *([f"What it waits for: {time_shares(step.time, least=SMALLEST_SHARE)}."] if shares else []),
        f"The GPU computes {percent(step.gpu_busy_s / step.time.step_s)} of the time{exchanged}.",
    ]


def _other_allocator(answer: DryRunAnswer) -> str:
    """What the other setting of `expandable_segments` would need, where that is another figure."""
    peak, needed = answer.result.peak, answer.required_device_bytes_per_gpu
    required = peak.required_bytes_per_gpu
    plain = required == peak.with_expandable_segments.required_bytes_per_gpu
    other = (peak.without_expandable_segments if plain else peak.with_expandable_segments).required_bytes_per_gpu
    if gib(needed - required + other) == gib(needed):
        return ""
    return f" {'Without' if plain else 'With'} expandable_segments {gib(needed - required + other)} are needed."


def _phases(answer: DryRunAnswer, console: Console) -> None:
    """One row a phase, with a spark for its GPU peak; an iteration like the one before is only named."""
    phases = answer.result.phases
    top = max(phase.gpu_peak_bytes for phase in phases)
    sparks = SPARKS if can_encode(console, SPARKS) else PLAIN_SPARKS
    if answer.result.library_workspace_bytes:
        sentence(
            console,
            "The tensors of each phase; torch.cuda.memory_allocated counts "
            f"{gib(answer.result.library_workspace_bytes)} GiB more, cuBLAS's workspaces.",
        )
    cells(console, "  step phase         GPU peak  GPU live  host live    pinned  NVMe r/w (GiB)", style="bold")
    previous: list[tuple[str, int, int]] = []
    last = max(phase.iteration for phase in phases)
    for iteration in sorted({phase.iteration for phase in phases}):
        own = [phase for phase in phases if phase.iteration == iteration]
        key = [(phase.phase, phase.gpu_peak_bytes, phase.gpu_live_bytes) for phase in own]
        if key == previous:
            later = ", and so would all later ones be" if iteration == last < answer.result.iterations else ""
            cells(console, f"  {iteration:>4} as {iteration - 1}{later}", style="dim")
            continue
        previous = key
        for phase in own:
            nvme = (
                f"{gib(phase.nvme_read_bytes)}/{gib(phase.nvme_written_bytes)}"
                if phase.nvme_read_bytes or phase.nvme_written_bytes
                else "-"
            )
            drawn = spark(phase.gpu_peak_bytes, top, sparks)
            cells(
                console,
                f"  {iteration or '':>4} {phase.phase:<10} {drawn} {gib(phase.gpu_peak_bytes):>9} "
                f"{gib(phase.gpu_live_bytes):>9} {gib(phase.host_live_bytes):>10} "
                f"{gib(phase.host_pinned_live_bytes):>9} {nvme:>8}",
            )


def _timeline(answer: DryRunAnswer, console: Console) -> None:
    """The GPU's memory over the whole run in one line, and what ran when beneath it."""
    if not answer.result.timeline:
        return
    sparks = SPARKS if can_encode(console, SPARKS) else PLAIN_SPARKS
    columns = max(NARROWEST, console.width) - 4
    drawn, marks = sparkline(answer.result.timeline, columns, sparks)
    blank(console)
    row(console, f"  {drawn}", style="cyan")
    row(console, f"  {marks}", style="dim")
    sentence(
        console,
        "(each iteration by its number; load, initialize, forward, backward, step by their initials)",
        style="dim",
        hang=1,
    )


def _explain(answer: DryRunAnswer, console: Console) -> None:
    peak = answer.result.peak
    blank(console)
    sentence(console, "Largest modules at the peak")
    for module, size_bytes in sorted(peak.by_module.items(), key=lambda pair: -pair[1])[:10]:
        row(console, f"  {gib(size_bytes):>8} GiB  {module or '(no module)'}")
    blank(console)
    sentence(console, "Largest tensors at the peak")
    for tensor in peak.largest[:20]:
        shape = "x".join(map(str, tensor.shape))
        row(
            console,
            f"  {gib(tensor.size_bytes):>8} GiB  {component_title(tensor.category):<20} {tensor.dtype:<9} "
            f"{shape:<20} {tensor.module} ({tensor.phase})",
        )
