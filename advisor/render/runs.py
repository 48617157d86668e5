"""A dry run or a probe on a terminal: verdict, memory by phase, measured and predicted figures, and the step's time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from ...ds_configs.read import quantizes_collectives, unmodeled_features
from ...estimators.phrase import listed, named, phrase
from ...probes.real_run.result import ProbeResult
from ..answer.dry_run_answer import DryRunAnswer
from ..answer.reasons import time_shares
from ..search.candidate import Fit, chance
from ..text.labels import cluster_title, component_title, versions_label
from ..text.language import can_encode, translate
from ..text.lines import NARROWEST, bar, blank, cells, row, sentence
from ..text.units import age, counted_noun, gib, percent, rate, seconds, whole_percents
from ..verification.dry_run import PLAIN_SPARKS, SPARKS, spark, sparkline
from ..verification.probe import ProbeAnswer

SMALLEST_SHARE = 0.03
"""Parts of a step below this share are left out of the sentence about it."""

FAILURE_SENTENCES = {
    "out_of_memory": phrase("Out of memory."),
    "crash": phrase("It failed."),
    "hang": phrase("It hung."),
    "stopped": phrase("A rank was suspended."),
    "killed": phrase("A rank was killed."),
    "timeout": phrase("It took too long."),
    "disk_full": phrase("The swap folder is full."),
}


def render_dry_run(answer: DryRunAnswer, console: Console, *, explain: bool = False) -> None:
    """Print a dry run. explain: also print the modules and tensors that are largest at the peak."""
    result, peak = answer.result, answer.result.peak
    sentence(console, dry_run_verdict(answer.fit))
    for line in dry_run_summary(answer):
        sentence(console, line)
    if answer.age_s is not None:
        when = phrase("This was run {age}: nothing has changed since.", age=age(answer.age_s))
        sentence(console, when, style="dim")
    blank(console)
    ranks = {"rank": result.rank, "ranks": result.world_size, "cluster": cluster_title(answer.run.cluster)}
    size = result.config["train_micro_batch_size_per_gpu"]
    sentence(console, phrase("Rank {rank} of {ranks} on {cluster}; micro batch {size}", **ranks, size=size))
    sparks = SPARKS if can_encode(console, SPARKS) else PLAIN_SPARKS
    _print_phases(answer, console, sparks)
    if result.timeline:
        drawn, marks = sparkline(result.timeline, max(NARROWEST, console.width) - 4, sparks)
        blank(console)
        row(console, f"  {drawn}", style="cyan")
        row(console, f"  {marks}", style="dim")
        legend = phrase("(each iteration by its number; load, initialize, forward, backward, step by their initials)")
        sentence(console, legend, style="dim", hang=1)
    blank(console)
    at_peak = {"size": gib(peak.allocated_bytes_per_gpu), "iteration": peak.iteration, "phase": named(peak.phase)}
    sentence(console, phrase("What the {size} GiB at the peak are (iteration {iteration}, {phase})", **at_peak))
    bar(peak.by_category, console)
    if explain:
        blank(console)
        sentence(console, "Largest modules at the peak")
        for module, size_bytes in sorted(peak.by_module.items(), key=lambda pair: -pair[1])[:10]:
            row(console, f"  {gib(size_bytes):>8} GiB  {module or '(no module)'}")
        blank(console)
        sentence(console, "Largest tensors at the peak")
        for tensor in peak.largest[:20]:
            shape, category = "x".join(map(str, tensor.shape)), component_title(tensor.category)
            what = f"{category:<20} {tensor.dtype:<9} {shape:<20} {tensor.module} ({tensor.phase})"
            row(console, f"  {gib(tensor.size_bytes):>8} GiB  {what}")
    blank(console)
    if quantizes_collectives(answer.run.config):
        text = phrase("Quantized collectives: what their kernels allocate is derived from DeepSpeed's sources.")
        sentence(console, text)
    for feature in unmodeled_features(answer.run.config):
        sentence(console, f"{feature.name}: {feature.predicted}.", style="yellow")
    evidence = {"versions": versions_label(result.versions), "time": seconds(result.seconds)}
    text = phrase("Evidence: dry run of the real engine ({versions}) in {time}.", **evidence)
    sentence(console, text, style="dim")


def dry_run_verdict(fit: Fit) -> Text:
    """Return the verdict, with the probability if the verdict is uncertain."""
    if fit.fits:
        return Text(translate(phrase("It fits.")), style="bold green")
    if fit.verdict == "does not fit":
        return Text(translate(phrase("It does not fit.")), style="bold red")
    likely = phrase("It probably fits") if fit.verdict == "likely fits" else phrase("It probably does not fit")
    text = phrase("{likely}: the probability that it does is {chance}.", likely=likely, chance=chance(fit.probability))
    return Text(translate(text), style="bold yellow")


def dry_run_summary(answer: DryRunAnswer, *, shares: bool = True) -> list[str]:
    """Return a sentence each on the required memory and the time of a step. shares: add the parts of the step's
    time."""
    result, peak, cluster = answer.result, answer.result.peak, answer.run.cluster
    have, host = cluster.host_memory_bytes_per_node, answer.required_host_bytes_per_node
    needed = phrase(
        "{needed} of {there} GiB per GPU are needed: {allocated} allocated, the allocator's fragmentation, the CUDA "
        "context and NCCL.",
        needed=gib(answer.required_device_bytes_per_gpu),
        there=gib(cluster.gpu.memory_bytes),
        allocated=gib(peak.allocated_bytes_per_gpu),
    )
    for further in filter(None, (_cached(answer), _other_allocator(answer))):
        needed = phrase("{first} {second}", first=needed, second=further)
    ram = phrase("{size} of {there} GiB", size=gib(host), there="" if have is None else gib(have))
    if have is None:
        ram = phrase("{size} GiB (not checked: pass --ram)", size=gib(host))
    own = phrase("{size} GiB of it the processes' own", size=gib(host - peak.host_bytes_per_node))
    memory = listed([phrase("Host RAM per node {ram}", ram=ram), own])
    if result.nvme_bytes_per_rank:
        memory = listed([memory, phrase("NVMe {size} GiB per GPU", size=gib(result.nvme_bytes_per_rank))], "; ")
    sentences: list[str] = [needed, phrase("{text}.", text=memory)]
    if answer.analytic is not None:
        predicted = answer.analytic.allocated_bytes_per_gpu
        error = predicted / peak.allocated_bytes_per_gpu - 1
        more = phrase("{share} more", share=percent(error))
        if error < 0:
            more = phrase("{share} less", share=percent(-error))
        text = phrase("The closed form predicts {size} GiB allocated, {more}.", size=gib(predicted), more=more)
        sentences.append(text)
    if answer.step is None:
        return sentences
    step_s, links_s = answer.step.time.step_s, answer.step.links_busy_s
    takes = phrase("A step takes about {time} by its recorded schedule", time=seconds(step_s))
    if answer.analytic_time is not None:
        closed = phrase("the closed form predicts {time}", time=seconds(answer.analytic_time.step_s))
        takes = listed([takes, closed], "; ")
    sentences.append(phrase("{text}.", text=takes))
    if shares:
        sentences.append(phrase("Its time: {shares}.", shares=time_shares(answer.step.time, least=SMALLEST_SHARE)))
    computes = phrase("The GPU computes {share} of the time", share=percent(answer.step.gpu_busy_s / step_s))
    if links_s:
        busy = {"share": percent(answer.step.overlapped_s / links_s), "time": seconds(links_s)}
        computes = listed([computes, phrase("{share} of the {time} of collectives run meanwhile", **busy)], "; ")
    return [*sentences, phrase("{text}.", text=computes)]


def _cached(answer: DryRunAnswer) -> str:
    """Return the memory that nvidia-smi shows for a training that fits: PyTorch caches freed blocks while the GPU has
    room."""
    needed, there = answer.required_device_bytes_per_gpu, answer.run.cluster.gpu.memory_bytes
    shown = min(answer.device_bytes_per_gpu, there)
    if needed >= there or gib(shown) == gib(needed):
        return ""
    return phrase(
        "PyTorch also caches freed blocks while there is room, so nvidia-smi shows up to {size} GiB.", size=gib(shown)
    )


def _other_allocator(answer: DryRunAnswer) -> str:
    """Return the need under the other setting of `expandable_segments`, if it differs."""
    peak, needed = answer.result.peak, answer.required_device_bytes_per_gpu
    required = peak.required_bytes_per_gpu
    plain = required == peak.with_expandable_segments.required_bytes_per_gpu
    other = (peak.without_expandable_segments if plain else peak.with_expandable_segments).required_bytes_per_gpu
    if gib(needed - required + other) == gib(needed):
        return ""
    size = gib(needed - required + other)
    if plain:
        return phrase("Without expandable_segments {size} are needed.", size=size)
    return phrase("With expandable_segments {size} are needed.", size=size)


def _print_phases(answer: DryRunAnswer, console: Console, sparks: str) -> None:
    """Print one row per phase, with a spark for its GPU peak; repeated iterations take one line."""
    phases = answer.result.phases
    top, last = max(phase.gpu_peak_bytes for phase in phases), max(phase.iteration for phase in phases)
    if answer.result.library_workspace_bytes:
        text = phrase(
            "The tensors of each phase; torch.cuda.memory_allocated counts {size} GiB more, cuBLAS's workspaces.",
            size=gib(answer.result.library_workspace_bytes),
        )
        sentence(console, text)
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


def render_probe(answer: ProbeAnswer, console: Console) -> None:
    """Print a probe: its end, measured and predicted figures, and the parts of the step."""
    result = answer.result
    if result.failure is not None:
        failure = result.failure
        sentence(console, FAILURE_SENTENCES[failure.kind], style="bold red")
        sentence(console, f"Rank {failure.rank} was the first, at {failure.phase}: {failure.message}")
        for line in failure.details.strip().splitlines()[-12:]:
            row(console, f"   {line}", style="dim")
        return
    sentence(console, phrase("It runs."), style="bold green")
    fields = {"speed": rate(result.tokens_per_s), "time": seconds(result.step_s), "place": probe_place(answer)}
    steps = len(result.ranks[0].losses)
    text = phrase("{speed} tokens/s; {time} per optimizer step; {place}, {steps} steps.", **fields, steps=steps)
    sentence(console, text)
    if result.solo:
        text = phrase("The times are without communication, the memory is without NCCL: there are no other ranks.")
        sentence(console, text)
    blank(console)
    cells(console, "                       measured   analytic           dry run", style="bold")
    for figure in answer.figures:
        known = figure.measured, figure.analytic, figure.dry_run
        measured, analytic, dry = ("-" if value is None else UNITS[figure.unit](value) for value in known)
        predicted = f"{analytic:>11} {signed(figure.analytic_error):>7}{dry:>11} {signed(figure.dry_run_error):>7}"
        cells(console, f"  {figure.name:<18}{measured:>13}{predicted}")
    blank(console)
    sentence(console, _step_parts(result))
    blank(console)
    text = phrase(
        "Evidence: probe ({versions}) in {time}; random weights and tokens unless a checkpoint was given.",
        versions=versions_label(result.versions),
        time=seconds(result.seconds),
    )
    sentence(console, text, style="dim")


def probe_place(answer: ProbeAnswer) -> str:
    """Return `2 ranks on 2 x H100-SXM5`, `2 ranks on the CPU (AMD EPYC 7742)`, or `rank 3 of 8, alone, of 8 x
    H100-SXM5`."""
    result, place = answer.result, cluster_title(answer.run.cluster)
    if result.solo:
        return f"rank {result.ranks[0].rank} of {result.world_size}, alone, of {place}"
    return place if answer.run.cluster.gpu.is_cpu else f"{counted_noun(result.world_size, 'rank')} on {place}"


UNITS: Mapping[str, Callable[[Any], str]] = {
    "bytes": lambda size_bytes: f"{gib(int(size_bytes))} GiB",
    "s": seconds,
    "tokens/s": rate,
}
"""Format of a figure by its unit."""


def signed(error: float | None) -> str:
    """Return a relative error such as `+3 %`; "" for none."""
    return "" if error is None else f"{'+' if error >= 0 else '-'}{percent(abs(error))}"


def _step_parts(result: ProbeResult) -> str:
    """Return the parts of the slowest rank's step, by engine call."""
    slowest = max(result.ranks, key=lambda report: report.step_s)

    def share(name: str) -> float:
        return float(sum(getattr(step, name) for step in slowest.steps) / sum(step.total_s for step in slowest.steps))

    parts = [share(name) for name in ("forward_s", "backward_s", "optimizer_s")]
    forward, backward, optimizer, _ = whole_percents([*parts, max(0.0, 1 - sum(parts))])
    text = phrase(
        "Of a step, {forward} % are the forward pass, {backward} % the backward pass, {optimizer} % the optimizer",
        forward=forward,
        backward=backward,
        optimizer=optimizer,
    )
    if slowest.steps[0].waiting_s is not None:
        text = listed([text, phrase("{share} of it in collectives", share=percent(share("waiting_s")))], "; ")
    return phrase("{text}.", text=text)
