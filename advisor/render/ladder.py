"""The table of the strategies, each with its best plan or its obstacle, and its notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple

from ..answer.recommendation import Recommendation
from ..document.blocks import HIDDEN, Cell, Figure, Look, Row, Table
from ..search.candidate import IF_RAM_ALLOWS, NEEDS_RAM, NEEDS_RAM_AND_NVME, Candidate
from ..text.labels import batch_label, checkpointing_label, device_label, shape_label
from ..text.units import gib, rate, whole_gib

_CHECKPOINTING, _BATCH, _RAM, _SPEED = 2, 1, 4, 5
"""Columns of the table."""


class _Column(NamedTuple):
    """A column of the table. value: exact value of its figure."""

    title: str
    width: int
    text: Callable[[Candidate], str]
    value: Callable[[Candidate], float | None] = lambda _: None


def _columns(answer: Recommendation) -> list[_Column]:
    """Return the columns between strategy and verdict."""
    question = answer.question
    memory, unit = "GiB" if question.cluster.gpu.is_cpu else "GPU GiB", question.model.unit
    return [
        _Column("batch", 5, lambda plan: batch_label(plan.plan)),
        _Column("ckpt", 4, lambda plan: checkpointing_label(plan.plan)),
        _Column(memory, 7, lambda plan: gib(plan.device_bytes), attrgetter("device_bytes")),
        _Column("RAM GiB", 7, lambda plan: gib(plan.host_bytes), attrgetter("host_bytes")),
        _Column(f"{unit}/s", 8, lambda plan: rate(plan.tokens_per_s), attrgetter("tokens_per_s")),
    ]


Shown = Literal["all", "fits the GPU", "fits", "taken"]
"""Which plans the table shows: all, those that likely fit the GPU, those that surely fit, or the one that is taken; if
none is, those that surely fit."""


def ladder_table(
    answer: Recommendation,
    *,
    all_candidates: bool = False,
    shown: Shown = "all",
    details: bool = False,
    today: Candidate | None = None,
    today_title: str = "today",
    keeps_today: bool = False,
) -> Table:
    """Return per strategy its best plan, all predicted plans, or its obstacle; then plain PyTorch. Plans that do not
    fit the GPU have no speed. details: explain all short titles. today: the present training's plan, in place of the
    best of its strategy if the table shows the same settings for both, else beside it. today_title: its mark.
    keeps_today: mark it as chosen in place of the recommended plan."""
    steps = _steps(answer, all_candidates=all_candidates, shown=shown, today=today)
    columns = _columns(answer)
    if not any(plan is not None and plan.fit.gpu_likely_suffices for _, plan, _ in steps):
        columns.pop()
    rows, previous = list[Row](), ""
    for strategy, plan, reason in steps:
        if plan is None:
            rows.append(Row([strategy, "the same" if reason == previous else reason], "faded"))
            previous = reason
        else:
            chosen = today if keeps_today else answer.shown
            rows.append(
                _row(answer, plan, columns, is_chosen=plan is chosen, mark=today_title if plan is today else "")
            )
            previous = ""
    titles, widths = [column.title for column in columns], [column.width for column in columns]
    notes = [*_notes(answer, steps, details=details)]
    head, optional = ["strategy", *titles, ""], (_CHECKPOINTING, _BATCH, _RAM)
    return Table(head, rows, [19, *widths, 0], gap=1, optional=optional, notes=notes, hidden=HIDDEN)


def _steps(
    answer: Recommendation, *, all_candidates: bool, shown: Shown, today: Candidate | None
) -> list[tuple[str, Candidate | None, str]]:
    """Return the strategy, plan and verdict of every row."""
    steps: list[tuple[str, Candidate | None, str]] = []
    for step in answer.ladder:
        if step.candidate is None:
            steps.append((step.strategy, None, step.reason))
        else:
            plans = answer.candidates if all_candidates else (step.candidate,)
            steps += [(plan.strategy, plan, plan.fit.reason) for plan in plans if plan.strategy == step.strategy]
        if today is not None and today.strategy == step.strategy:
            if step.candidate is not None and _is_shown_as(today, step.candidate, answer.recommended):
                steps.pop()
            steps.append((today.strategy, today, today.fit.reason))
    if (plain := answer.pytorch_baseline) is not None:
        steps.append((plain.strategy, plain, plain.fit.reason))
    if shown == "all":
        return steps
    if shown == "taken" and answer.taken is not None:
        return [step for step in steps if step[1] is answer.taken]
    is_sure = shown in ("fits", "taken")
    return [
        step
        for step in steps
        if (plan := step[1]) is not None and (plan.fit.fits if is_sure else plan.fit.gpu_likely_suffices)
    ]


def _notes(
    answer: Recommendation, steps: Sequence[tuple[str, Candidate | None, str]], *, details: bool
) -> Iterator[tuple[str, str]]:
    """Yield what short titles, tokens and verdicts mean, each with the title of its column."""
    plans = [plan for _, plan, _ in steps if plan is not None]
    shares = any(plan.plan.ranks_per_sample > 1 for plan in plans)
    sharing = f" / {device_label(answer.question.cluster)}s that share it" if shares else ""
    if shares or details:
        yield "batch", f"batch: micro batch{sharing} x accumulation"
    elif any(plan.plan.gradient_accumulation_steps > 1 for plan in plans):
        yield "batch", "batch: micro x accum"
    if details:
        yield "ckpt", "ckpt: checkpointing"
    # The facts say it of the chosen plan.
    if any(plan.plan.cpu_checkpointing for plan in plans if plan is not answer.shown):
        yield "ckpt", "ckpt host: layer inputs in RAM"
    if shares or details:
        yield "RAM GiB", "RAM, NVMe: per node"
    cluster, length = answer.question.cluster, answer.question.model.fixed_len
    reasons = [plan.fit.reason for plan in plans]
    if length and length > 1:
        yield "strategy", f"tokens/s: with {length} tokens per sample"
    if IF_RAM_ALLOWS in reasons:
        assumed = whole_gib(cluster.usual_host_bytes_per_node)
        yield "strategy", f"if RAM allows: more than the assumed {assumed:,} GiB (--ram)"
    if any(reason.endswith(" RAM") or reason == NEEDS_RAM_AND_NVME for reason in reasons) and (
        cluster.host_memory_bytes_per_node is None
    ):
        # The largest amount that the processors of such a machine are sold with.
        yield "strategy", f"RAM: {gib(cluster.most_host_bytes_per_node)} GiB, the most of a host of {cluster.gpu.name}"
    if any(reason.startswith(NEEDS_RAM) for reason in reasons):
        most = gib(cluster.most_host_bytes_per_node)
        yield "strategy", f"needs --ram: pass it if a host has more than {most} GiB"
    if any(reason.endswith("%") for reason in reasons):
        yield "strategy", "%: the probability that it fits (--risk)"


def _is_shown_as(today: Candidate, best: Candidate, recommended: Candidate | None) -> bool:
    """Whether a row of today's plan says all that one of the best plan of its strategy would."""
    return today.plan == best.plan or (best is not recommended and shape_label(today.plan) == shape_label(best.plan))


def _row(answer: Recommendation, plan: Candidate, columns: list[_Column], *, is_chosen: bool, mark: str) -> Row:
    figures: list[Cell] = [Figure(column.text(plan), column.value(plan)) for column in columns]
    if not plan.fit.gpu_likely_suffices and len(figures) == _SPEED:
        figures[-1] = ""
    verdict = plan.fit.reason.replace("likely fits", "likely")
    if plan.fit.fits and plan.memory.nvme_bytes_per_node:
        verdict += f", NVMe {gib(plan.memory.nvme_bytes_per_node)} GiB"
    if mark:
        verdict += f" ({mark})"
    look: Look = "" if plan.fit.fits else "faded"
    if is_chosen:
        look = "closest" if answer.taken is None else "chosen"
    return Row([plan.strategy, *figures, f" {verdict}"], look)
