"""A comparison for people: the verdict, the figures side by side, where they come from, and the keys that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from ...ds_configs.read import unmodeled_features
from ...estimators.phrase import Phrase, named, phrase
from ..answer.comparison import Comparison, Difference, parts
from ..answer.config_settings import Setting
from ..search.candidate import Candidate, chance
from ..text.job import hours, money
from ..text.labels import cluster_title, component_title, method_title, phase_title
from ..text.language import translate
from ..text.lines import blank, named_row, padded, row, sentence
from ..text.printable import printable
from ..text.units import gib, percent, rate, times

_LABEL, _CELL = 34, 13
"""Columns of a row's name, and of each of the three figures after it."""

_KEY, _WIDE = 46, 15
"""Columns of a key, and of each of its two values."""

_SAME_SPEED = 0.03
"""Predictions closer than this are called equal; the search calls them so too."""

_SMALL_SHARE = 0.01
_SAME = 0.005
"""Relative difference below which two times are shown as equal."""

_LONGEST_VALUE = 24


def render_comparison(comparison: Comparison, console: Console) -> None:
    """The verdict, the figures side by side, their basis, and the keys that differ."""
    for line, style in zip(verdict(comparison), ("bold", ""), strict=False):
        sentence(console, line, style=style)
    blank(console)
    for letter, side in zip("AB", comparison.sides, strict=True):
        rung = side.candidate.rung if side.candidate is not None else side.name
        sentence(console, f"{letter}: {printable(side.name)}{f' ({rung})' if rung != side.name else ''}")
        for feature in unmodeled_features(side.settings.config) if side.candidate is not None else ():
            sentence(console, f"{letter} has {feature.name}: {feature.predicted}.", style="yellow")
    if len(comparison.candidates) == 2:
        first, second = comparison.candidates
        _figures(comparison, console)
        _memory(first, second, console)
        _time(first, second, console)
    _differences(comparison.differences, console)
    blank(console)
    for line in _basis(comparison):
        sentence(console, line, style="dim")


def verdict(comparison: Comparison) -> tuple[str, ...]:
    """The first sentences of the comparison."""
    count = len([found for found in comparison.differences if found.acts])
    if len(comparison.candidates) < 2:
        if not count:
            return (phrase("Both do the same."),)
        return (
            phrase("{count} settings differ.", count=count) if count > 1 else phrase("1 setting differs."),
            phrase("Pass --model and --gpus to see what that does to memory and speed."),
        )
    first, second = comparison.candidates
    saved = first.device_bytes - second.device_bytes
    if abs(saved) <= _SMALL_SHARE * first.device_bytes:
        return (_speed(first, second),)
    size = gib(abs(saved))
    less = phrase("B takes {size} GiB less of each GPU.", size=size)
    return _speed(first, second), less if saved > 0 else phrase("B takes {size} GiB more of each GPU.", size=size)


def _speed(first: Candidate, second: Candidate) -> Phrase:
    if not first.fit.fits and not second.fit.fits:
        return phrase(
            "Neither is sure to fit: A {first}, B {second}.", first=first.fit.reason, second=second.fit.reason
        )
    if not first.fit.fits or not second.fit.fits:
        fits, other, lacks = ("A", "B", second) if first.fit.fits else ("B", "A", first)
        return phrase("Only {fits} is sure to fit; {other}: {reason}.", fits=fits, other=other, reason=lacks.fit.reason)
    ratio = second.tokens_per_s / first.tokens_per_s
    if abs(ratio - 1) < _SAME_SPEED:
        return phrase("Both fit, and are equally fast.")
    faster, by = ("B", ratio) if ratio > 1 else ("A", 1 / ratio)
    return phrase("Both fit; {faster} is {ratio} as fast.", faster=faster, ratio=times(by))


class FigureRow(NamedTuple):
    """A figure of both sides. is_size: in bytes; the difference is shown, and for other figures the ratio."""

    title: str
    values: tuple[float, ...]
    write: Callable[[Any], str]
    is_size: bool = False


def figure_rows(comparison: Comparison) -> list[FigureRow]:
    """Speed and memory of both plans, and duration and cost of the job if its amount is known."""
    plans, known = comparison.candidates, comparison.context
    rows = [
        FigureRow("tokens/s", tuple(plan.tokens_per_s for plan in plans), rate),
        FigureRow(phrase("GPU GiB"), tuple(plan.device_bytes for plan in plans), gib, is_size=True),
        FigureRow(
            phrase("RAM GiB per node"), tuple(plan.memory.host_bytes_per_node for plan in plans), gib, is_size=True
        ),
    ]
    if any(plan.memory.nvme_bytes_per_node for plan in plans):
        nvme = tuple(plan.memory.nvme_bytes_per_node for plan in plans)
        rows.append(FigureRow(phrase("NVMe GiB per node"), nvme, gib, is_size=True))
    jobs = [] if known is None else [job for job in map(known.duration, plans) if job is not None]
    if jobs:
        rows.append(FigureRow(phrase("optimizer steps of the job"), tuple(job.steps for job in jobs), "{:,}".format))
        rows.append(FigureRow(phrase("hours of the job"), tuple(job.duration_s for job in jobs), hours))
    if jobs and known is not None and (price := known.price) is not None:
        costs = tuple(job.cost(price) for job in jobs)
        rows.append(FigureRow(phrase("cost of the job"), costs, lambda cost: money(cost, price.currency)))
    return rows


def _figures(comparison: Comparison, console: Console) -> None:
    known, plans = comparison.context, comparison.candidates
    assert known is not None, "plans have a context"
    workload = known.workload
    subject = phrase(
        "{model} · {method} · sequence {tokens} · {machines}",
        model=known.model.name,
        method=method_title(workload),
        tokens=workload.seq_len,
        machines=cluster_title(known.cluster),
    )
    sentence(console, subject)
    blank(console)
    _row("", ("A", "B", "B - A"), console, bold=True)
    short = {"fits": phrase("yes"), "does not fit": phrase("no")}
    fits = [short.get(plan.fit.verdict, chance(plan.fit.probability)) for plan in plans]
    _row(phrase("fits"), fits, console)
    batches = [f"{plan.plan.micro_batch_size} x {plan.plan.gradient_accumulation_steps}" for plan in plans]
    _row(phrase("micro batch x accumulation"), batches, console)
    for figure in figure_rows(comparison):
        first, second = figure.values
        ratio = (figure.write(first), figure.write(second), times(second / first))
        _row(figure.title, _gib_cells(int(first), int(second)) if figure.is_size else ratio, console)
    for name, side in zip("AB", comparison.sides, strict=True):
        if side.filled:
            sentence(console, f"{name}: {side.filled}.", style="dim")
    for line in known.job_basis:
        sentence(console, line)


def _memory(first: Candidate, second: Candidate, console: Console) -> None:
    memories = first.memory, second.memory
    peaks = [phase_title(memory.peak.name) for memory in memories]
    title = phrase("Where a GPU's memory goes, GiB (peak: {moment})", moment=peaks[0])
    if peaks[0] != peaks[1]:
        title = phrase(
            "Where a GPU's memory goes, GiB (peak of A: {first}; of B: {second})", first=peaks[0], second=peaks[1]
        )
    blank(console)
    sentence(console, title, style="bold")
    for part in parts(memories[0].components, memories[1].components, _SMALL_SHARE):
        _row(component_title(part.name), _gib_cells(int(part.first), int(part.second)), console)


def _time(first: Candidate, second: Candidate, console: Console) -> None:
    """The time of a step where both have the same tokens, otherwise of the same number of tokens."""
    ours, theirs = first.time, second.time
    same = ours.tokens_per_step == theirs.tokens_per_step
    step = phrase("Where the time goes, ms of a step of {tokens} tokens", tokens=f"{ours.tokens_per_step:,}")
    blank(console)
    sentence(console, step if same else phrase("Where the time goes, ms of 1,000 tokens"), style="bold")
    columns = [
        {
            name: 1e3 * seconds if same else 1e6 * seconds / time.tokens_per_step
            for name, seconds in time.components.items()
        }
        for time in (ours, theirs)
    ]
    for part in parts(columns[0], columns[1], _SMALL_SHARE):
        change = part.second - part.first
        difference = _signed(_ms(abs(change)), change) if abs(change) > _SAME * max(part.first, part.second) else "="
        _row(component_title(part.name), (_ms(part.first), _ms(part.second), difference), console)


def _differences(differences: Sequence[Difference], console: Console) -> None:
    """The keys under their blocks, each with both values and what it decides."""
    acting = [found for found in differences if found.acts]
    if acting:
        blank(console)
        _row(phrase("What differs"), ("A", "B"), console, widths=(_KEY, _WIDE), bold=True)
    block = ""
    for found in acting:
        here, dot, name = found.key.partition(".")
        if dot and here != block:
            row(console, f" {here}")
        block = here
        label, values = f"{'  ' * bool(dot)}{printable(name or here)}", (_value(found.first), _value(found.second))
        if all(len(value) < _WIDE for value in values):
            _row(label, values, console, widths=(_KEY, _WIDE))
        else:
            sentence(console, f"{label}: A {values[0]}; B {values[1]}", hang=4)
        if found.meaning:
            sentence(console, f"    {translate(named(found.meaning))}", style="dim", hang=4)
    idle = [found for found in differences if not found.acts]
    if idle:
        blank(console)
        names = ", ".join(printable(found.key) for found in idle)
        sentence(console, phrase("Without effect at these ZeRO stages: {names}.", names=names), style="dim")


def _value(setting: Setting) -> str:
    if setting.origin == "unset":
        return "-"
    if isinstance(setting.value, bool):
        text = "true" if setting.value else "false"
    elif isinstance(setting.value, int | float):
        text = _number(setting.value)
    else:
        text = setting.value if isinstance(setting.value, str) else _compact(setting.value)
    text = printable(text)
    text = text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."
    return f"{text} *" if setting.origin == "default" else text


def _compact(value: Any) -> str:
    return "{...}" if isinstance(value, dict) else repr(value) if isinstance(value, list) else "null"


def _number(value: int | float) -> str:
    """`50,000,000` as `5e7` where that is exact, as configurations write it."""
    if isinstance(value, int) and not 1e5 <= abs(value) < 1e15:
        return f"{value:,}"
    short = f"{value:.4g}".replace("e+0", "e").replace("e+", "e")
    return short if float(short) == value else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _basis(comparison: Comparison) -> Iterator[Phrase]:
    acting = (found for found in comparison.differences if found.acts)
    if any("default" in (found.first.origin, found.second.origin) for found in acting):
        yield phrase("* the default of DeepSpeed {version}; - no value.", version=comparison.deepspeed)
    if comparison.context is None:
        yield phrase("Keys with their default on both sides are no difference.")
    else:
        yield phrase("Evidence: analytic. Speeds within {share} are called equal.", share=percent(_SAME_SPEED))


def _gib_cells(first: int, second: int) -> tuple[str, str, str]:
    return (
        gib(first) if first else "-",
        gib(second) if second else "-",
        _signed(gib(abs(second - first)), second - first),
    )


def _ms(duration: float) -> str:
    return "-" if duration < 0.005 else f"{duration:,.0f}" if duration >= 99.5 else f"{duration:.3g}"


def _signed(text: str, difference: float) -> str:
    if text in ("-", "0.00"):  # nothing that would show
        return "="
    return f"{'+' if difference > 0 else '-'}{text}"


def _row(
    name: str,
    values: Sequence[str],
    console: Console,
    *,
    widths: tuple[int, int] = (_LABEL, _CELL),
    bold: bool = False,
) -> None:
    """A name and its figures."""
    label, cell = widths
    figures = "".join(padded(translate(value), cell) for value in values)
    named_row(console, f" {translate(name)}", figures, width=1 + label, style="bold" if bold else "")
