"""The answer for people: the verdict first, then the ladder, the memory, the reasons, the next command. 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from ..estimators.estimate import MemoryTerm
from .reasons import time_shares
from .recommendation import Candidate, LadderStep, Recommendation
from .units import count, gib, percent, rate, seconds
from .words import cluster_title, component_title, method_title, plan_title

WIDTH = 80
"""Columns that the answer may take; a narrower terminal wraps sentences, and the table keeps its own width."""

_COLUMNS = (("rung", -19), ("batch", 6), ("ckpt", 4), ("GPU GiB", 7), ("host RAM", 8), ("NVMe", 5), ("tokens/s", 8))
_SHADES = "█▓▒░"
_PLAIN_SHADES = "#=+-"
_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")


def render(answer: Recommendation, console: Console) -> None:
    """Print the whole answer but the files and commands that follow from it."""
    chosen = answer.recommended
    _print(console, *_verdict(answer))
    _blank(console)
    _print(console, *_subject(answer))
    _blank(console)
    _table(answer.ladder, chosen, console)
    shown = chosen or _closest(answer.ladder)
    if shown is not None:
        _blank(console)
        _memory_bar(shown, console)
    if chosen is not None:
        _blank(console)
        shares = ", ".join(f"{component_title(name)} {percent(share)}" for name, share in
                           time_shares(chosen.estimate.time) if share >= 0.01)
        _print(console, f"Where the {seconds(chosen.estimate.time.step_s)} of a step go: {shares}.")
    for sentence in answer.reasons:
        _print(console, sentence)
    _deepspeed(answer, shown, console)
    _changes(answer, console)
    if answer.assumptions:
        _blank(console)
        _print(console, "Assumed: " + "; ".join(answer.assumptions) + ".", style="dim")


def _verdict(answer: Recommendation) -> Iterable[str | Text]:
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
    headline = Text(plan_title(plan), style="bold green")
    headline.append(f": fits, {gib(memory.device_bytes_per_gpu)} of {offer} GiB per GPU,"
                    f" about {rate(chosen.tokens_per_s)} tokens/s.", style="not bold default")
    steps = plan.gradient_accumulation_steps
    batch = plan.micro_batch_size * steps * answer.question.cluster.world_size
    lines: list[str | Text] = [headline, (
        f"Micro batch {plan.micro_batch_size}" + (f" x {steps} accumulation steps" if steps > 1 else "")
        + f" (global batch {batch}), gradient checkpointing {'on' if plan.gradient_checkpointing else 'off'}.")]
    lines += _host_need(answer, chosen)
    return lines


def _host_need(answer: Recommendation, chosen: Candidate) -> list[str | Text]:
    memory, cluster = chosen.estimate.memory, answer.question.cluster
    have = cluster.host_memory_bytes_per_node
    per_node = " per node" if cluster.nodes > 1 else ""
    disk = f" and {gib(memory.nvme_bytes_per_node)} GiB of NVMe" if memory.nvme_bytes_per_node else ""
    need = f"It needs {gib(memory.host_bytes_per_node)} GiB of host RAM{disk}{per_node}"
    if have is not None:
        return [f"{need}; there are {gib(have)} GiB of RAM."]
    return [f"{need} (not checked: pass --ram)."]


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


def _table(ladder: Sequence[LadderStep], chosen: Candidate | None, console: Console) -> None:
    header = " ".join(f"{title:<{-width}}" if width < 0 else f"{title:>{width}}" for title, width in _COLUMNS)
    _line(console, Text("  " + header, style="bold"))
    for step in ladder:
        candidate = step.candidate
        mark = ">" if candidate is not None and candidate is chosen else " "
        if candidate is None:
            _print(console, Text(f"{mark} {step.rung:<19} {step.reason}", style="dim"), hang=22)
            continue
        cells = [f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
                 for cell, (_, width) in zip(_cells(candidate), _COLUMNS, strict=True)]
        style = "bold green" if mark == ">" else "" if step.fits else "dim"
        _line(console, Text(f"{mark} {' '.join(cells)}  {step.reason}", style=style))
    _line(console, Text("  batch: micro batch x accumulation steps; GPU: device memory, as nvidia-smi shows it",
                        style="dim"))


def _cells(candidate: Candidate) -> tuple[str, ...]:
    plan, memory = candidate.estimate.plan, candidate.estimate.memory
    steps = plan.gradient_accumulation_steps
    return (plan.rung, f"{plan.micro_batch_size}" + (f"x{steps}" if steps > 1 else ""),
            "on" if plan.gradient_checkpointing else "off", gib(memory.device_bytes_per_gpu),
            gib(memory.host_bytes_per_node), gib(memory.nvme_bytes_per_node) if memory.nvme_bytes_per_node else "-",
            rate(candidate.tokens_per_s) if candidate.fit.limit != "gpu" else "-")


def _memory_bar(candidate: Candidate, console: Console) -> None:
    """The components of device memory as a bar of characters, each with its own shade, and a legend."""
    terms = _merge_small(candidate.estimate.memory.gpu_terms)
    total = sum(size for _, size in terms)
    shades = _SHADES if _can_encode(console, _SHADES) else _PLAIN_SHADES
    bar, legend = Text(), Text()
    for index, (name, size) in enumerate(terms):
        shade, style = shades[index % len(shades)], _STYLES[index % len(_STYLES)]
        bar.append(shade * max(1, round(size / total * (WIDTH - 12))), style=style)
        legend.append(f"{shade} ", style=style)
        legend.append(f"{component_title(name)} {gib(size)}   ".replace(" ", "\u00a0").rstrip("\u00a0") + "   ")
    moment = candidate.estimate.memory.peak.name.replace("_", " ")
    _print(console, f"Where the {gib(candidate.device_bytes)} GiB per GPU of {candidate.rung} go (peak: {moment})")
    _line(console, Text(" ") + bar)
    _print(console, legend)


SMALL_SHARE = 0.02
"""Components below this share of the total are drawn together as `other`."""


def _merge_small(terms: Sequence[MemoryTerm]) -> list[tuple[str, int]]:
    total = sum(term.size_bytes for term in terms)
    large = [(term.name, term.size_bytes) for term in terms if term.size_bytes >= SMALL_SHARE * total]
    rest = total - sum(size for _, size in large)
    ordered = sorted(large, key=lambda pair: -pair[1])
    return [*ordered, ("other", rest)] if rest else ordered


def _deepspeed(answer: Recommendation, shown: Candidate | None, console: Console) -> None:
    estimate = answer.deepspeed_estimate
    if estimate is None or shown is None:
        return
    _blank(console)
    _print(console, estimate.sentence(shown.device_bytes))


def _changes(answer: Recommendation, console: Console) -> None:
    if not answer.changes:
        return
    _blank(console)
    _print(console, "What would change the answer" if answer.recommended else "What would make it fit")
    width = max(len(change.flags) for change in answer.changes)
    for change in answer.changes:
        _print(console, Text.assemble("  ", (f"{change.flags:<{width}}", "bold"), f"  {change.outcome}"), hang=width + 4)


def _closest(ladder: Sequence[LadderStep]) -> Candidate | None:
    return min((step.candidate for step in ladder if step.candidate is not None),
               key=lambda candidate: candidate.fit.shortfall, default=None)


def _can_encode(console: Console, text: str) -> bool:
    try:
        text.encode(console.encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _print(console: Console, *lines: str | Text, style: str = "", hang: int = 2) -> None:
    """Sentences, wrapped to the width with one column of margin; continuation lines hang."""
    width = min(WIDTH, max(console.width, 40))
    for line in lines:
        text = Text(line, style=style) if isinstance(line, str) else line
        for index, wrapped in enumerate(text.wrap(console, width - 1 - (hang if len(text) > width - 1 else 0))):
            wrapped.rstrip()
            _line(console, Text(" " if index == 0 else " " + " " * hang) + wrapped)


def _line(console: Console, text: Text) -> None:
    if not _can_encode(console, text.plain):
        text = Text(text.plain.replace("·", "|").replace("\u00a0", " ").encode("ascii", "replace").decode("ascii"))
    console.print(text, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True, highlight=False)


def _blank(console: Console) -> None:
    console.print()
