"""The answer for people: the verdict first, then the ladder, the memory, the reasons, the next command. 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from .bar import bar
from .lines import blank, row, sentence
from .reasons import time_shares
from .recommendation import Candidate, LadderStep, Recommendation
from .units import count, gib, percent, rate, seconds
from .words import cluster_title, component_title, method_title, plan_title

_COLUMNS = (("rung", -19), ("batch", 5), ("ckpt", 4), ("GPU GiB", 7), ("RAM GiB", 7), ("NVMe", 5), ("tokens/s", 8))


def render(answer: Recommendation, console: Console, *, all_candidates: bool = False) -> None:
    """Print the whole answer but the files and commands that follow from it."""
    chosen = answer.recommended
    for line in _verdict(answer):
        sentence(console, line)
    blank(console)
    for line in _subject(answer):
        sentence(console, line)
    blank(console)
    _table(answer, console, all_candidates=all_candidates)
    shown = chosen or _closest(answer.ladder)
    if shown is not None:
        blank(console)
        _memory_bar(shown, console)
    if chosen is not None:
        blank(console)
        shares = ", ".join(f"{component_title(name)} {percent(share)}" for name, share in
                           time_shares(chosen.estimate.time) if share >= 0.01)
        sentence(console, f"Where the {seconds(chosen.estimate.time.step_s)} of a step go: {shares}.")
    for reason in answer.reasons:
        sentence(console, reason)
    _deepspeed(answer, shown, console)
    _changes(answer, console)
    if answer.assumptions:
        blank(console)
        sentence(console, "Assumed: " + "; ".join(answer.assumptions) + ".", style="dim")


def _verdict(answer: Recommendation) -> tuple[str | Text, ...]:
    chosen = answer.recommended
    offer = gib(answer.question.cluster.gpu.memory_bytes)
    if chosen is None:
        closest = _closest(answer.ladder)
        text = Text("Nothing fits", style="bold red")
        if closest is not None:
            text.append(f": the closest is {closest.rung}, {closest.fit.reason} "
                        f"({gib(closest.device_bytes)} of {offer} GiB per GPU).", style="not bold default")
        return (text,)
    memory, plan = chosen.estimate.memory, chosen.estimate.plan
    steps = plan.gradient_accumulation_steps
    batch = plan.micro_batch_size * steps * answer.question.cluster.world_size
    return (
        Text(f"{plan_title(plan)} fits.", style="bold green"),
        f"About {rate(chosen.tokens_per_s)} tokens/s; {gib(memory.device_bytes_per_gpu)} of {offer} GiB per GPU; "
        f"micro batch {plan.micro_batch_size}" + (f" x {steps} accumulation steps" if steps > 1 else "")
        + f" (global batch {batch}); gradient checkpointing {'on' if plan.gradient_checkpointing else 'off'}.",
        _host_need(answer, chosen))


def _host_need(answer: Recommendation, chosen: Candidate) -> str:
    memory, cluster = chosen.estimate.memory, answer.question.cluster
    have = cluster.host_memory_bytes_per_node
    per_node = " per node" if cluster.nodes > 1 else ""
    disk = f" and {gib(memory.nvme_bytes_per_node)} GiB of NVMe" if memory.nvme_bytes_per_node else ""
    need = f"It needs {gib(memory.host_bytes_per_node)} GiB of host RAM{disk}{per_node}"
    if have is not None:
        return f"{need}; there are {gib(have)} GiB of RAM."
    return f"{need} (not checked: pass --ram)."


def _subject(answer: Recommendation) -> tuple[str, ...]:
    question = answer.question
    model, workload = question.model, question.workload
    trained = question.trainable_parameters
    size = f"{count(model.parameters)} parameters"
    if trained != model.parameters:
        size += f", {count(trained)} trained"
    loss = ", fused loss" if workload.loss == "fused" else ""
    return (f"{model.name} · {size} · {method_title(workload)}",
            f"{workload.precision} · {workload.optimizer} · sequence {workload.seq_len}{loss} · "
            f"{cluster_title(question.cluster)}")


def _table(answer: Recommendation, console: Console, *, all_candidates: bool) -> None:
    """The ladder, one row a rung: its best plan; with `all_candidates` every plan that was predicted."""
    header = " ".join(f"{title:<{-width}}" if width < 0 else f"{title:>{width}}" for title, width in _COLUMNS)
    row(console, Text("  " + header, style="bold"))
    for step in answer.ladder:
        if step.candidate is None:
            sentence(console, Text(f" {step.rung:<19} {step.reason}", style="dim"), hang=21)
            continue
        for candidate in answer.candidates if all_candidates else (step.candidate,):
            if candidate.rung == step.rung:
                _row(candidate, candidate is answer.recommended, console)
    row(console, Text("  batch: micro batch x accumulation steps; GPU: device memory, as in nvidia-smi", style="dim"))


def _row(candidate: Candidate, chosen: bool, console: Console) -> None:
    cells = [f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
             for cell, (_, width) in zip(_cells(candidate), _COLUMNS, strict=True)]
    style = "bold green" if chosen else "" if candidate.fit.fits else "dim"
    row(console, Text(f"{'>' if chosen else ' '} {' '.join(cells)}  {candidate.fit.reason}", style=style))


def _cells(candidate: Candidate) -> tuple[str, ...]:
    plan, memory = candidate.estimate.plan, candidate.estimate.memory
    steps = plan.gradient_accumulation_steps
    return (plan.rung, f"{plan.micro_batch_size}" + (f"x{steps}" if steps > 1 else ""),
            "on" if plan.gradient_checkpointing else "off", gib(memory.device_bytes_per_gpu),
            gib(memory.host_bytes_per_node), gib(memory.nvme_bytes_per_node) if memory.nvme_bytes_per_node else "-",
            rate(candidate.tokens_per_s) if candidate.fit.limit != "gpu" else "-")


def _memory_bar(candidate: Candidate, console: Console) -> None:
    memory = candidate.estimate.memory
    sentence(console, f"Where the {gib(candidate.device_bytes)} GiB per GPU of {candidate.rung} go "
                      f"(peak: {memory.peak.name.replace('_', ' ')})")
    bar(memory.components, console)


def _deepspeed(answer: Recommendation, shown: Candidate | None, console: Console) -> None:
    estimate = answer.deepspeed_estimate
    if estimate is None or shown is None:
        return
    blank(console)
    sentence(console, estimate.sentence(shown.device_bytes))


def _changes(answer: Recommendation, console: Console) -> None:
    if not answer.changes:
        return
    blank(console)
    sentence(console, "What would change the answer" if answer.recommended else "What would make it fit")
    width = max(len(change.flags) for change in answer.changes)
    for change in answer.changes:
        sentence(console, Text.assemble("  ", (f"{change.flags:<{width}}", "bold"), f"  {change.outcome}"), hang=width + 4)


def _closest(ladder: Sequence[LadderStep]) -> Candidate | None:
    return min((step.candidate for step in ladder if step.candidate is not None),
               key=lambda candidate: candidate.fit.shortfall, default=None)
