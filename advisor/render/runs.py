"""A dry run and a probe for people: the verdict, memory by phase, measured and predicted figures, the step's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from ...ds_configs.read import quantizes_collectives, unmodeled_features
from ...probes.real_run.result import ProbeResult, RankFailure
from ..answer.dry_run_answer import DryRunAnswer
from ..answer.reasons import time_shares
from ..search.candidate import Fit, chance
from ..text.labels import cluster_title, component_title, versions_label
from ..text.language import can_encode
from ..text.lines import NARROWEST, bar, blank, cells, row, sentence
from ..text.units import age, counted_noun, gib, percent, rate, seconds, whole_percents
from ..verification.dry_run import PLAIN_SPARKS, SPARKS, spark, sparkline
from ..verification.probe import ProbeAnswer, ProbeFigure

SMALLEST_SHARE = 0.03
"""Smaller parts of a step are left out of the sentence about it."""

FAILURE_SENTENCES = {
    "out_of_memory": "Out of memory.",
    "crash": "It failed.",
    "hang": "It hung.",
    "stopped": "A rank was suspended.",
    "killed": "A rank was killed.",
    "timeout": "It took too long.",
    "disk_full": "The swap folder is full.",
}


def render_dry_run(answer: DryRunAnswer, console: Console, *, explain: bool = False) -> None:
    """Print a dry run; `explain` adds the modules and tensors that are largest at the peak."""
    result, peak = answer.result, answer.result.peak
    sentence(console, dry_run_verdict(answer.fit))
    for line in dry_run_summary(answer):
        sentence(console, line)
    if answer.age_s is not None:
        sentence(console, f"This was run {age(answer.age_s)}: nothing has changed since.", style="dim")
    blank(console)
    batch = f"micro batch {result.config['train_micro_batch_size_per_gpu']}"
    sentence(console, f"Rank {result.rank} of {result.world_size} on {cluster_title(answer.run.cluster)}; {batch}")
    _print_phases(answer, console)
    _print_timeline(answer, console)
    blank(console)
    at_peak = f"What the {gib(peak.allocated_bytes_per_gpu)} GiB at the peak are"
    sentence(console, f"{at_peak} (iteration {peak.iteration}, {peak.phase})")
    bar(peak.by_category, console)
    if explain:
        _print_largest(answer, console)
    blank(console)
    if quantizes_collectives(answer.run.config):
        sentence(console, "Quantized collectives: what their kernels allocate is derived from DeepSpeed's sources.")
    for feature in unmodeled_features(answer.run.config):
        sentence(console, f"{feature.name}: {feature.predicted}.", style="yellow")
    evidence = f"Evidence: dry run of the real engine ({versions_label(result.versions)}) in {seconds(result.seconds)}."
    sentence(console, evidence, style="dim")


def dry_run_verdict(fit: Fit) -> Text:
    """The verdict, with the probability where it is not clear."""
    if fit.fits:
        return Text("It fits.", style="bold green")
    if fit.verdict == "does not fit":
        return Text("It does not fit.", style="bold red")
    likely = "It probably fits" if fit.verdict == "likely fits" else "It probably does not fit"
    return Text(f"{likely}: the probability that it does is {chance(fit.probability)}.", style="bold yellow")


def dry_run_summary(answer: DryRunAnswer, *, shares: bool = True) -> list[str]:
    """What is needed and how long a step takes, a sentence each; shares: and what the step's time consists of."""
    result, peak, cluster = answer.result, answer.result.peak, answer.run.cluster
    have, host = cluster.host_memory_bytes_per_node, answer.required_host_bytes_per_node
    sentences = [
        f"{gib(answer.required_device_bytes_per_gpu)} of {gib(cluster.gpu.memory_bytes)} GiB per GPU are needed: "
        f"{gib(peak.allocated_bytes_per_gpu)} allocated, the allocator's fragmentation, the CUDA context and "
        f"NCCL.{_cached(answer)}{_other_allocator(answer)}",
        f"Host RAM {gib(host)} GiB per node"
        + (f" of {gib(have)}" if have is not None else " (not checked: pass --ram)")
        + f", {gib(host - peak.host_bytes_per_node)} of it the processes' own"
        + (f"; NVMe {gib(result.nvme_bytes_per_rank)} GiB per GPU" if result.nvme_bytes_per_rank else "")
        + ".",
    ]
    if answer.analytic is not None:
        predicted = answer.analytic.allocated_bytes_per_gpu
        error = predicted / peak.allocated_bytes_per_gpu - 1
        more = "more" if error >= 0 else "less"
        sentences.append(f"The closed form predicts {gib(predicted)} GiB allocated, {percent(abs(error))} {more}.")
    return [*sentences, *_step_sentences(answer, shares=shares)]


def _step_sentences(answer: DryRunAnswer, *, shares: bool) -> Iterator[str]:
    step, analytic = answer.step, answer.analytic_time
    if step is None:
        return
    predicted = "" if analytic is None else f"; the closed form predicts {seconds(analytic.step_s)}"
    yield f"A step takes about {seconds(step.time.step_s)} by its recorded schedule{predicted}."
    if shares:
        yield f"Its time: {time_shares(step.time, least=SMALLEST_SHARE)}."
    collectives = ""
    if step.links_busy_s:
        hidden = percent(step.overlapped_s / step.links_busy_s)
        collectives = f"; {hidden} of the {seconds(step.links_busy_s)} of collectives run meanwhile"
    yield f"The GPU computes {percent(step.gpu_busy_s / step.time.step_s)} of the time{collectives}."


def _cached(answer: DryRunAnswer) -> str:
    """What nvidia-smi shows of a training that fits: PyTorch caches freed blocks while the GPU has room for them."""
    needed, there = answer.required_device_bytes_per_gpu, answer.run.cluster.gpu.memory_bytes
    shown = min(answer.device_bytes_per_gpu, there)
    if needed >= there or gib(shown) == gib(needed):
        return ""
    return f" PyTorch also caches freed blocks while there is room, so nvidia-smi shows up to {gib(shown)} GiB."


def _other_allocator(answer: DryRunAnswer) -> str:
    """What the other setting of `expandable_segments` would need, where that is another figure."""
    peak, needed = answer.result.peak, answer.required_device_bytes_per_gpu
    required = peak.required_bytes_per_gpu
    plain = required == peak.with_expandable_segments.required_bytes_per_gpu
    other = (peak.without_expandable_segments if plain else peak.with_expandable_segments).required_bytes_per_gpu
    if gib(needed - required + other) == gib(needed):
        return ""
    return f" {'Without' if plain else 'With'} expandable_segments {gib(needed - required + other)} are needed."


def _print_phases(answer: DryRunAnswer, console: Console) -> None:
    """One row a phase, with a spark for its GPU peak; an iteration like the one before is only named."""
    phases = answer.result.phases
    top, last = max(phase.gpu_peak_bytes for phase in phases), max(phase.iteration for phase in phases)
    sparks = SPARKS if can_encode(console, SPARKS) else PLAIN_SPARKS
    if answer.result.library_workspace_bytes:
        workspaces = gib(answer.result.library_workspace_bytes)
        counted = f"torch.cuda.memory_allocated counts {workspaces} GiB more, cuBLAS's workspaces."
        sentence(console, f"The tensors of each phase; {counted}")
    cells(console, "  step phase         GPU peak  GPU live  host live    pinned  NVMe r/w (GiB)", style="bold")
    previous: list[tuple[str, int, int]] = []
    for iteration in sorted({phase.iteration for phase in phases}):
        own = [phase for phase in phases if phase.iteration == iteration]
        key = [(phase.phase, phase.gpu_peak_bytes, phase.gpu_live_bytes) for phase in own]
        if key == previous:
            later = "; later iterations repeat it" if iteration == last < answer.result.iterations else ""
            cells(console, f"  {iteration:>4} same as {iteration - 1}{later}", style="dim")
            continue
        previous = key
        for phase in own:
            read, written = phase.nvme_read_bytes, phase.nvme_written_bytes
            nvme = f"{gib(read)}/{gib(written)}" if read or written else "-"
            cells(
                console,
                f"  {iteration or '':>4} {phase.phase:<10} {spark(phase.gpu_peak_bytes, top, sparks)} "
                f"{gib(phase.gpu_peak_bytes):>9} {gib(phase.gpu_live_bytes):>9} {gib(phase.host_live_bytes):>10} "
                f"{gib(phase.host_pinned_live_bytes):>9} {nvme:>8}",
            )


def _print_timeline(answer: DryRunAnswer, console: Console) -> None:
    if answer.result.timeline:
        sparks = SPARKS if can_encode(console, SPARKS) else PLAIN_SPARKS
        drawn, marks = sparkline(answer.result.timeline, max(NARROWEST, console.width) - 4, sparks)
        blank(console)
        row(console, f"  {drawn}", style="cyan")
        row(console, f"  {marks}", style="dim")
        legend = "(each iteration by its number; load, initialize, forward, backward, step by their initials)"
        sentence(console, legend, style="dim", hang=1)


def _print_largest(answer: DryRunAnswer, console: Console) -> None:
    peak = answer.result.peak
    blank(console)
    sentence(console, "Largest modules at the peak")
    for module, size_bytes in sorted(peak.by_module.items(), key=lambda pair: -pair[1])[:10]:
        row(console, f"  {gib(size_bytes):>8} GiB  {module or '(no module)'}")
    blank(console)
    sentence(console, "Largest tensors at the peak")
    for tensor in peak.largest[:20]:
        shape, category = "x".join(map(str, tensor.shape)), component_title(tensor.category)
        place = f"{tensor.module} ({tensor.phase})"
        row(console, f"  {gib(tensor.size_bytes):>8} GiB  {category:<20} {tensor.dtype:<9} {shape:<20} {place}")


def render_probe(answer: ProbeAnswer, console: Console) -> None:
    """Print a probe: how it ended, figures measured and predicted, and the parts of the step."""
    result = answer.result
    if result.failure is not None:
        _print_failure(result.failure, console)
        return
    sentence(console, "It runs.", style="bold green")
    speed = f"{rate(result.tokens_per_s)} tokens/s; {seconds(result.step_s)} per optimizer step"
    sentence(console, f"{speed}; {probe_place(answer)}, {len(result.ranks[0].losses)} steps.")
    if result.solo:
        sentence(console, "The times are without communication, the memory is without NCCL: there are no other ranks.")
    blank(console)
    cells(console, "                       measured   analytic           dry run", style="bold")
    for figure in answer.figures:
        predicted = _predicted(figure, figure.analytic, figure.analytic_error)
        predicted += _predicted(figure, figure.dry_run, figure.dry_run_error)
        cells(console, f"  {figure.name:<18}{_value(figure, figure.measured):>13}{predicted}")
    blank(console)
    sentence(console, _step_parts(result))
    blank(console)
    evidence = f"Evidence: probe ({versions_label(result.versions)}) in {seconds(result.seconds)}"
    sentence(console, f"{evidence}; random weights and tokens unless a checkpoint was given.", style="dim")


def _print_failure(failure: RankFailure, console: Console) -> None:
    sentence(console, FAILURE_SENTENCES[failure.kind], style="bold red")
    sentence(console, f"Rank {failure.rank} was the first, at {failure.phase}: {failure.message}")
    for line in failure.details.strip().splitlines()[-12:]:
        row(console, f"   {line}", style="dim")


def probe_place(answer: ProbeAnswer) -> str:
    """`2 ranks on 2 x H100-SXM5`, `2 ranks on the CPU (AMD EPYC 7742)`, `rank 3 of 8, alone, of 8 x H100-SXM5`."""
    result, place = answer.result, cluster_title(answer.run.cluster)
    if result.solo:
        return f"rank {result.ranks[0].rank} of {result.world_size}, alone, of {place}"
    return place if answer.run.cluster.gpu.is_cpu else f"{counted_noun(result.world_size, 'rank')} on {place}"


UNITS: Mapping[str, Callable[[Any], str]] = {
    "bytes": lambda size_bytes: f"{gib(int(size_bytes))} GiB",
    "s": seconds,
    "tokens/s": rate,
}
"""Format of a figure, by its unit."""


def _value(figure: ProbeFigure, value: float | None) -> str:
    return "-" if value is None else UNITS[figure.unit](value)


def _predicted(figure: ProbeFigure, value: float | None, error: float | None) -> str:
    signed = "" if error is None else ("+" if error >= 0 else "-") + percent(abs(error))
    return f"{_value(figure, value):>11} {signed:>7}"


def _step_parts(result: ProbeResult) -> str:
    """The parts of the slowest rank's step, by the engine's calls."""
    slowest = max(result.ranks, key=lambda report: report.step_s)

    def share(name: str) -> float:
        return float(sum(getattr(step, name) for step in slowest.steps) / sum(step.total_s for step in slowest.steps))

    parts = [share(name) for name in ("forward_s", "backward_s", "optimizer_s")]
    forward, backward, optimizer, _ = whole_percents([*parts, max(0.0, 1 - sum(parts))])
    text = f"Of a step, {forward} % are the forward pass, {backward} % the backward pass, {optimizer} % the optimizer"
    if slowest.steps[0].waiting_s is not None:
        text += f"; {percent(share('waiting_s'))} of it in collectives"
    return text + "."
