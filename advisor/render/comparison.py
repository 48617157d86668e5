"""A comparison on a terminal: the verdict, the figures side by side, their basis, and the keys that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from rich.console import Console

from ...ds_configs.read import unmodeled_features
from ...estimators.phrase import Phrase, named, phrase
from ..answer.comparison import Comparison, Difference
from ..answer.config_settings import Setting
from ..question.question import Question
from ..search.candidate import Candidate, chance, duration_of
from ..search.choice import SAME_SPEED
from ..text.job import hours, money
from ..text.labels import cluster_title, component_title, method_title, phase_title
from ..text.language import translate
from ..text.lines import blank, named_row, padded, row, sentence
from ..text.units import gib, percent, printable, rate, times

_WIDTHS = 34, 13
"""Width of a row's name, and of each of the three figures after it."""

_KEY_WIDTHS = 46, 15
"""Width of a key, and of each of its two values."""

_SMALL_SHARE = 0.01
_SAME = 0.005
"""Relative difference below which two times are shown as equal."""

_LONGEST_VALUE = 24


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Print the verdict, the figures side by side, their basis, and the keys that differ."""
    for line, style in zip(verdict(comparison), ("bold", ""), strict=False):
        sentence(console, line, style=style)
    blank(console)
    for letter, side in zip("AB", comparison.sides, strict=True):
        rung = side.candidate.rung if side.candidate is not None else side.name
        sentence(console, f"{letter}: {printable(side.name)}{f' ({rung})' if rung != side.name else ''}")
        for feature in unmodeled_features(side.settings.config) if side.candidate is not None else ():
            sentence(console, f"{letter} has {feature.name}: {feature.predicted}.", style="yellow")
    if len(comparison.candidates) == 2:
        _figures(comparison, console)
        _parts(comparison.candidates, console)
    _differences(comparison.differences, console)
    blank(console)
    for line in _basis(comparison):
        sentence(console, line, style="dim")


def verdict(comparison: Comparison) -> tuple[str, ...]:
    """Return the first sentences of the comparison."""
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
    if abs(ratio - 1) < SAME_SPEED:
        return phrase("Both fit, and are equally fast.")
    faster, by = ("B", ratio) if ratio > 1 else ("A", 1 / ratio)
    return phrase("Both fit; {faster} is {ratio} as fast.", faster=faster, ratio=times(by))


def subject_of(question: Question) -> Phrase:
    """Return the model, its training and the machines."""
    return phrase(
        "{model} · {method} · sequence {tokens} · {machines}",
        model=question.model.name,
        method=method_title(question.workload),
        tokens=question.workload.seq_len,
        machines=cluster_title(question.cluster),
    )


class FigureRow(NamedTuple):
    """A figure of both sides. is_size: the figure is in bytes and its difference is shown; otherwise the ratio is."""

    title: str
    values: tuple[float, ...]
    write: Callable[[Any], str]
    is_size: bool = False


def figure_rows(comparison: Comparison) -> list[FigureRow]:
    """Return speed and memory of both plans, and duration and cost of the job if its amount is known."""
    plans, question = comparison.candidates, comparison.question
    rows = [FigureRow("tokens/s", tuple(plan.tokens_per_s for plan in plans), rate)]
    for title, name in (
        (phrase("GPU GiB"), "device_bytes"),
        (phrase("RAM GiB per node"), "memory.host_bytes_per_node"),
        (phrase("NVMe GiB per node"), "memory.nvme_bytes_per_node"),
    ):
        if any(sizes := tuple(map(attrgetter(name), plans))):
            rows.append(FigureRow(title, sizes, gib, is_size=True))
    durations = [] if question is None else [duration_of(question, plan) for plan in plans]
    jobs = [job for job in durations if job is not None]
    if jobs:
        rows.append(FigureRow(phrase("optimizer steps of the job"), tuple(job.steps for job in jobs), "{:,}".format))
        rows.append(FigureRow(phrase("hours of the job"), tuple(job.duration_s for job in jobs), hours))
    if jobs and question is not None and (price := question.price) is not None:
        costs = tuple(job.cost(price) for job in jobs)
        rows.append(FigureRow(phrase("cost of the job"), costs, lambda cost: money(cost, price.currency)))
    return rows


def _figures(comparison: Comparison, console: Console) -> None:
    question, plans = comparison.question, comparison.candidates
    assert question is not None, "plans have a question"
    sentence(console, subject_of(question))
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
        _row(figure.title, _gib_cells(first, second) if figure.is_size else ratio, console)
    for name, side in zip("AB", comparison.sides, strict=True):
        if side.filled:
            sentence(console, f"{name}: {side.filled}.", style="dim")
    for line in question.job_basis:
        sentence(console, line)


def _parts(plans: Sequence[Candidate], console: Console) -> None:
    """Print both plans' memory, and the time of a step if both have the same tokens per step, otherwise of 1,000
    tokens."""
    first, second = (phase_title(plan.memory.peak.name) for plan in plans)
    title = phrase("Where a GPU's memory goes, GiB (peak: {moment})", moment=first)
    if first != second:
        title = phrase(
            "Where a GPU's memory goes, GiB (peak of A: {first}; of B: {second})", first=first, second=second
        )
    _table(title, [plan.memory.components for plan in plans], _gib_cells, console)
    tokens = [plan.time.tokens_per_step for plan in plans]
    title = phrase("Where the time goes, ms of 1,000 tokens")
    if tokens[0] == tokens[1]:
        title = phrase("Where the time goes, ms of a step of {tokens} tokens", tokens=f"{tokens[0]:,}")
        tokens = [1000, 1000]
    columns = [
        {name: 1e6 * seconds / count for name, seconds in plan.time.components.items()}
        for plan, count in zip(plans, tokens, strict=True)
    ]
    _table(title, columns, _ms_cells, console)


def _table(
    title: str, columns: Sequence[Mapping[str, float]], cells: Callable[[Any, Any], Sequence[str]], console: Console
) -> None:
    """Print the components of both sides, the largest first; components that are small on both sides add up to
    `other`."""
    first, second = columns
    rows = {name: (first.get(name, 0), second.get(name, 0)) for name in dict.fromkeys([*first, *second])}
    least = [_SMALL_SHARE * sum(column.values()) for column in columns]
    large = {name: pair for name, pair in rows.items() if pair[0] >= least[0] or pair[1] >= least[1]}
    small = [pair for name, pair in rows.items() if name not in large]
    rest = sum(pair[0] for pair in small), sum(pair[1] for pair in small)
    blank(console)
    sentence(console, title, style="bold")
    for name, pair in (*sorted(large.items(), key=lambda item: -max(item[1])), ("other", rest)):
        if any(pair):
            _row(component_title(name), cells(*pair), console)


def _differences(differences: Sequence[Difference], console: Console) -> None:
    """Print the keys by block, each with both values and what it decides."""
    acting = [found for found in differences if found.acts]
    if acting:
        blank(console)
        _row(phrase("What differs"), ("A", "B"), console, widths=_KEY_WIDTHS, bold=True)
    block = ""
    for found in acting:
        here, dot, name = found.key.partition(".")
        if dot and here != block:
            row(console, f" {here}")
        block = here
        label, values = (
            f"{'  ' * bool(dot)}{printable(name or here)}",
            (value_label(found.first), value_label(found.second)),
        )
        if all(len(value) < _KEY_WIDTHS[1] for value in values):
            _row(label, values, console, widths=_KEY_WIDTHS)
        else:
            sentence(console, f"{label}: A {values[0]}; B {values[1]}", hang=4)
        if found.meaning:
            sentence(console, f"    {translate(named(found.meaning))}", style="dim", hang=4)
    idle = [found for found in differences if not found.acts]
    if idle:
        blank(console)
        names = ", ".join(printable(found.key) for found in idle)
        sentence(console, phrase("Without effect at these ZeRO stages: {names}.", names=names), style="dim")


def value_label(setting: Setting) -> str:
    """Return a value in the notation of configurations, with `*` for a default; `-` for none."""
    value = setting.value
    if setting.origin == "unset":
        return "-"
    if value is None or isinstance(value, bool):
        text = "null" if value is None else str(value).lower()
    elif isinstance(value, int | float):
        text = _number(value)
    else:
        text = "{...}" if isinstance(value, dict) else str(value)
    text = printable(text)
    text = text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."
    return f"{text} *" if setting.origin == "default" else text


def _number(value: int | float) -> str:
    """Return `50,000,000` as `5e7` if that is exact, which is the notation of configurations."""
    if isinstance(value, int) and not 1e5 <= abs(value) < 1e15:
        return f"{value:,}"
    short = f"{value:.4g}".replace("e+0", "e").replace("e+", "e")
    return short if float(short) == value else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _basis(comparison: Comparison) -> Iterator[Phrase]:
    acting = (found for found in comparison.differences if found.acts)
    if any("default" in (found.first.origin, found.second.origin) for found in acting):
        yield phrase("* the default of DeepSpeed {version}; - no value.", version=comparison.deepspeed)
    if comparison.question is None:
        yield phrase("Keys with their default on both sides are no difference.")
    else:
        yield phrase("Evidence: analytic. Speeds within {share} are called equal.", share=percent(SAME_SPEED))


def _gib_cells(first: float, second: float) -> tuple[str, str, str]:
    written = [gib(int(size)) if size else "-" for size in (first, second)]
    return written[0], written[1], _signed(gib(int(abs(second - first))), second - first)


def _ms_cells(first: float, second: float) -> tuple[str, str, str]:
    def write(duration: float) -> str:
        return "-" if duration < 0.005 else f"{duration:,.0f}" if duration >= 99.5 else f"{duration:.3g}"

    change = second - first
    is_same = abs(change) <= _SAME * max(first, second)
    return write(first), write(second), "=" if is_same else _signed(write(abs(change)), change)


def _signed(text: str, difference: float) -> str:
    if text in ("-", "0.00"):  # no visible difference
        return "="
    return f"{'+' if difference > 0 else '-'}{text}"


def _row(
    name: str, values: Sequence[str], console: Console, *, widths: tuple[int, int] = _WIDTHS, bold: bool = False
) -> None:
    """Print a name and its figures."""
    label, cell = widths
    figures = "".join(padded(translate(value), cell) for value in values)
    named_row(console, f" {translate(name)}", figures, width=1 + label, style="bold" if bold else "")
