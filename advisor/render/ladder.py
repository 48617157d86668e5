"""The ladder as a table: a row for each rung, and below the terminal's width a sentence."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console

from ...estimators.phrase import phrase
from ..answer.recommendation import Recommendation
from ..search.candidate import MOST_HOST_BYTES, Candidate
from ..text.labels import batch_words, checkpointing_word, device_word, plan_title
from ..text.language import spoken
from ..text.lines import WIDTH, padded, row, sentence
from ..text.units import gib, percent, rate

_COLUMNS = (
    (phrase("rung"), -19),
    (phrase("batch"), 5),
    (phrase("ckpt"), 4),
    (phrase("GPU GiB"), 7),
    (phrase("RAM GiB"), 7),
    ("NVMe", 5),
    ("tokens/s", 8),
)


_NARROW = 2 + sum(abs(width) + 1 for _, width in _COLUMNS)
"""Columns of a terminal below which each row of the table is a sentence."""


def print_table(answer: Recommendation, console: Console, *, all_candidates: bool) -> None:
    """The ladder, one row a rung: its best plan; with `all_candidates` every plan that was predicted."""
    cluster = answer.question.cluster
    cpu = cluster.gpu.is_cpu
    titles = ["GiB" if cpu and title == "GPU GiB" else spoken(title) for title, _ in _COLUMNS]
    header = " ".join(padded(title, width) for title, (_, width) in zip(titles, _COLUMNS, strict=True))
    if console.width >= _NARROW:
        row(console, "  " + header, style="bold")
    last_reason = ""
    for step in answer.ladder:
        if step.candidate is None:
            reason = step.reason if step.reason != last_reason else phrase("the same")
            sentence(console, f" {step.rung:<19} {spoken(reason)}", style="dim", hang=21)
            last_reason = step.reason
            continue
        last_reason = ""
        for candidate in answer.candidates if all_candidates else (step.candidate,):
            if candidate.rung == step.rung:
                _row(candidate, candidate is answer.recommended, console)
    if answer.pytorch_baseline is not None:
        _row(answer.pytorch_baseline, False, console)
    shown = answer.candidates if all_candidates else [step.candidate for step in answer.ladder if step.candidate]
    length, notes = answer.question.model.fixed_len, []
    if length:
        notes.append(phrase("tokens/s: every sample is {tokens} tokens", tokens=length))
    notes.append(
        phrase(
            "batch: micro batch / {device}s that share it x accumulation; ckpt: checkpointing",
            device=device_word(cluster),
        )
        if any(candidate.plan.ranks_per_sample > 1 for candidate in shown)
        else phrase("batch: micro batch x accumulation steps; ckpt: gradient checkpointing")
    )
    notes.append(
        phrase("GiB: what a rank needs; RAM and NVMe: all ranks")
        if cpu
        else phrase("GPU: device memory that the plan needs; RAM and NVMe: per node")
    )
    if any(candidate.fit.reason.endswith("any RAM") for candidate in shown):
        notes.append(
            phrase(
                "any RAM: {most} GiB, the most that hosts have; --ram says how much there is", most=gib(MOST_HOST_BYTES)
            )
        )
    if any(candidate.fit.reason.endswith("%") for candidate in shown):
        notes.append(phrase("%: the probability that it fits (--risk)"))
    for line in notes:
        sentence(console, f" {spoken(line)}", style="dim")


def _row(candidate: Candidate, chosen: bool, console: Console) -> None:
    values, reason = [spoken(cell) for cell in _cells(candidate)], spoken(candidate.fit.reason)
    style = "bold green" if chosen else "" if candidate.fit.fits else "dim"
    if console.width < _NARROW:
        titles = [spoken(title) for title, _ in _COLUMNS]
        said = [f"{title} {value}" for title, value in zip(titles[1:], values[1:], strict=True) if value != "-"]
        line = f"{'>' if chosen else ' '} {', '.join([values[0], *said])}: {reason}"
        sentence(console, line, style=style, hang=4)
        return
    cells = " ".join(padded(value, width) for value, (_, width) in zip(values, _COLUMNS, strict=True))
    line, reason = f"{'>' if chosen else ' '} {cells}", reason.replace("likely fits", "likely")
    gap = "  " if cell_len(line) + cell_len(reason) + 2 <= WIDTH else " "
    row(console, f"{line}{gap}{reason}", style=style)


def _cells(candidate: Candidate) -> tuple[str, ...]:
    plan, memory = candidate.plan, candidate.memory
    return (
        plan.rung,
        batch_words(plan),
        checkpointing_word(plan),
        gib(candidate.device_bytes),
        gib(memory.host_bytes_per_node),
        gib(memory.nvme_bytes_per_node) if memory.nvme_bytes_per_node else "-",
        rate(candidate.tokens_per_s) if candidate.fit.gpu_likely_suffices else "-",
    )


def beside(plain: Candidate, chosen: Candidate | None) -> str:
    """What plain PyTorch's row is, and how it compares."""
    said = phrase("{plan} needs {need} GiB per GPU", plan=plan_title(plain.plan), need=gib(plain.device_bytes))
    if plain.fit.fits and chosen is not None:
        share = percent(plain.tokens_per_s / chosen.tokens_per_s)
        said = phrase("{needs} and would run at {share} of the speed", needs=said, share=share)
    return phrase(
        "{needs}. It keeps no fp32 master weights, and is a comparison: no configuration is written for it.", needs=said
    )
