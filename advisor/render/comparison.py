"""A comparison: the verdict, the figures side by side, their basis, and the keys that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ..answer.comparison import Comparison
from ..answer.config_settings import AUTO, Setting
from ..answer.differences import Difference
from ..document.blocks import (
    NOTHING,
    Block,
    Chart,
    Document,
    Fact,
    Facts,
    Figure,
    Gap,
    Heading,
    Row,
    Sentence,
    Table,
    Tone,
    make_figure,
)
from ..document.charts import GIB, MS
from ..search.candidate import Candidate, candidate_duration, chance
from ..search.choice import SAME_SPEED
from ..text.job import hours, money
from ..text.labels import checkpointing_label, cluster_title, component_title, method_title, phase_title
from ..text.units import counted_noun, gib, percent, printable, rate, three_digits, times
from .configuration import value_label

_HEAD = "", "A", "B", "B vs A", "better"
_WIDTHS = 30, 11, 11, 9, 6
"""Titles and least widths of the columns of all tables: a name, its three figures, and the better side."""

_KEY_WIDTHS = 46, 13, 13
"""Least widths of a key, and of its two values."""

_SMALL_SHARE = 0.01
_SAME = 0.005
"""Relative difference below which two times are shown as equal."""


def comparison_document(comparison: Comparison) -> Document:
    """Return the verdict, the figures side by side, their basis, and the keys that differ; of identical files only the
    verdict."""
    first, *more = _verdict(comparison)
    blocks: list[Block] = [*map(Sentence, more), Heading("Side by side", "figures", printed=False)]
    for letter, side in zip("AB", comparison.sides, strict=True):
        strategy = side.candidate.strategy if side.candidate is not None else side.name
        loss = "" if (workload := side.settings.workload) is None else f"{workload.loss} loss"
        about = ", ".join(filter(None, (strategy if strategy != side.name else "", loss)))
        blocks.append(Sentence(f"{letter}: {printable(side.name)}{f' ({about})' if about else ''}"))
        if side.refused:
            blocks.append(Sentence(f"{letter} cannot run: {printable(side.refused)}.", "bad"))
        for feature in side.unpredicted:
            blocks.append(Sentence(f"{letter} has {feature.name}: {feature.predicted}.", "yellow"))
        if side.dry_run is not None:
            blocks.append(Sentence(f"{letter}: the memory per GPU is that of a dry run.", "yellow"))
    is_predicted = len(comparison.candidates) == 2
    if is_predicted and not comparison.is_identical:
        blocks += [*_figures(comparison), *_parts(comparison)]
    blocks += _differences(comparison, with_meanings=not is_predicted)
    if not comparison.is_identical:
        blocks += [Gap(), *(Sentence(line, "dim") for line in _basis(comparison))]
    subject = " · ".join(f"{letter}: {side.name}" for letter, side in zip("AB", comparison.sides, strict=True))
    if comparison.question is not None:
        subject = _subject_of(comparison)  # the sides stand below
    candidates = comparison.candidates
    is_sure = all(plan.fit.fits for plan in candidates) and not any(side.refused for side in comparison.sides)
    tone: Tone = "good" if is_sure else "unsure"
    return Document(subject=subject, verdict=first, tone=tone, blocks=blocks, data=comparison.figures())


def _verdict(comparison: Comparison) -> tuple[str, ...]:
    """Return the first sentences of the comparison."""
    if comparison.is_identical:
        return ("The files are identical.",)
    if len(comparison.candidates) < 2:
        return _verdict_on_keys([found for found in comparison.differences if found.acts])
    first, second = comparison.candidates
    assert comparison.question is not None, "plans have a question"
    cluster = comparison.question.cluster
    has_ram = cluster.host_memory_bytes_per_node is not None
    found = [_speed(first, second, "" if has_ram or cluster.gpu.is_cpu else " the GPUs", comparison.recomputing)]
    ranks = cluster.world_size
    samples = [plan.plan.samples_per_step(ranks) for plan in (first, second)]
    if samples[0] != samples[1]:
        found.append(f"They train differently: A takes {samples[0]:,} samples a step, B takes {samples[1]:,}.")
    labels = [checkpointing_label(plan.plan) for plan in (first, second)]
    if labels[0] != labels[1]:
        set_both = "--gradient-checkpointing on or off sets both"
        found.append(f"Gradient checkpointing: A {labels[0]}, B {labels[1]}; {set_both}.")
    saved = first.device_bytes - second.device_bytes
    if abs(saved) > _SMALL_SHARE * first.device_bytes:
        found.append(f"B takes {gib(abs(saved))} GiB {'less' if saved > 0 else 'more'} on each GPU.")
    if not has_ram and (first.fit.fits or second.fit.fits):
        found.append("Host RAM is not checked; --ram SIZE checks it.")
    return tuple(found)


def _verdict_on_keys(found: Sequence[Difference]) -> tuple[str, ...]:
    """Return the same without figures. An `auto` that only the Trainer fills may be the other side's value."""
    if not found:
        return ("Both do the same.",)
    is_open = [AUTO in (each.first, each.second) for each in found]
    unknown, known = is_open.count(True), is_open.count(False)
    first = f"{counted_noun(known, 'setting')} differ{'s' * (known == 1)}" if known else "No setting is known to differ"
    more = f"{unknown} {'more ' * bool(known)}may: `auto` on one side, which the Trainer fills" if unknown else ""
    effect = "Pass --model and --gpus to see the effect on memory and speed"
    return f"{first}{'; ' * bool(more)}{more}.", f"{effect}{', and to fill `auto`' * bool(unknown)}."


def _speed(first: Candidate, second: Candidate, where: str, recomputing: Sequence[Candidate]) -> str:
    """Return which side fits, and the faster one, also with checkpointing in both if only one side has it. where: ` the
    GPUs` if the host's RAM is not known."""
    lacking = [plan.fit for plan in (first, second) if not plan.fit.fits]
    fits = "fits" if all(fit.verdict == "does not fit" for fit in lacking) else "is sure to fit"
    if len(lacking) == 2:
        return f"Neither {fits}: A {first.fit.reason}, B {second.fit.reason}."
    if lacking:
        which, other = ("A", "B") if first.fit.fits else ("B", "A")
        return f"Only {which} {fits}{where}; {other}: {lacking[0].reason}."
    faster, same = _faster(first, second), "at about the same speed"
    said = f"Both fit{where}{f'; {faster}' if faster else f' {same}'}"
    if len(recomputing) == 2:
        said += f"; with checkpointing on in both, {_faster(*recomputing) or f'they train {same}'}"
    return f"{said}."


def _faster(first: Candidate, second: Candidate) -> str:
    """Return the faster plan and by how much: `A is 1.5 x as fast`; "" for about the same speed."""
    ratio = second.tokens_per_s / first.tokens_per_s
    if abs(ratio - 1) < SAME_SPEED:
        return ""
    return f"B is {times(ratio)} as fast" if ratio > 1 else f"A is {times(1 / ratio)} as fast"


def _subject_of(comparison: Comparison) -> str:
    """Return the model, its training and the machines."""
    question = comparison.question
    assert question is not None, "plans have a question"
    workloads = [side.settings.workload or question.workload for side in comparison.sides]
    precision = " and ".join(dict.fromkeys(workload.precision for workload in workloads))
    return (
        f"{question.model.name} · {method_title(question.workload)} · {precision} · "
        f"sequence {question.workload.seq_len} · {cluster_title(question.cluster)}"
    )


def _figures(comparison: Comparison) -> Iterator[Block]:
    """Yield speed and memory of both plans, and duration and cost of the job if its amount is known."""
    question, plans = comparison.question, comparison.candidates
    assert question is not None, "plans have a question"
    short = {"fits": "yes", "does not fit": "no"}
    fits = [Figure(short.get(plan.fit.verdict, chance(plan.fit.probability))) for plan in plans]
    batches = [Figure(f"{plan.plan.micro_batch_size} x {plan.plan.gradient_accumulation_steps}") for plan in plans]
    chances = [plan.fit.probability * (fits[0] != fits[1]) for plan in plans]
    recomputed = [Figure(checkpointing_label(plan.plan)) for plan in plans]
    rows = [
        _row("fits", fits, Figure(""), chances[1] - chances[0]),
        _row("micro batch x accumulation", batches, Figure(""), 0),
        _row("gradient checkpointing", recomputed, Figure(""), 0),
    ]

    def ratio(title: str, values: Iterable[float | None], write: Callable[[Any], str], sign: int) -> None:
        """Add a row; sign: whether more is better (1), less is (-1), or neither (0). None: that of a plan that cannot
        run, which is the worse; without both there is no row."""
        first, second = values
        if first is None and second is None:
            return
        change, gain = "", 0.0
        if first is not None and second is not None:
            change = times(second / first)
            gain = sign * (second - first) if abs(second / first - 1) >= SAME_SPEED else 0
        elif sign:
            gain = -1.0 if second is None else 1.0
        rows.append(_row(title, [make_figure(first, write), make_figure(second, write)], Figure(change), gain))

    runs = [*map(_runs, plans)]
    ratio("tokens/s", [plan.tokens_per_s if ran else None for plan, ran in zip(plans, runs, strict=True)], rate, 1)
    for title, name in (
        ("GPU GiB", "device_bytes"),
        ("RAM GiB per node", "memory.host_bytes_per_node"),
        ("NVMe GiB per node", "memory.nvme_bytes_per_node"),
    ):
        if any(sizes := tuple(map(attrgetter(name), plans))):
            rows.append(_less_is_better(title, _sizes(*sizes)))
    jobs = [job for plan in plans if (job := candidate_duration(question, plan)) is not None]
    running = [job if ran else None for job, ran in zip(jobs, runs, strict=False)]
    if jobs:
        ratio("optimizer steps of the job", [job.steps for job in jobs], "{:,}".format, 0)
        ratio("hours of the job", [job and job.duration_s for job in running], hours, -1)
    if jobs and (price := question.price) is not None:
        costs = [job and job.cost(price) for job in running]
        ratio("cost of the job", costs, lambda cost: money(cost, price.currency), -1)
    yield Facts([Fact("model", "", _subject_of(comparison), is_subject=True)])
    yield Gap()
    yield Table(_HEAD, rows, _WIDTHS, optional=(3,))
    for name, side in zip("AB", comparison.sides, strict=True):
        if side.filled:
            yield Sentence(f"{name}: {side.filled}.", "dim")
    yield from map(Sentence, question.job_basis)


def _runs(plan: Candidate) -> bool:
    """Whether a step, whose time can be compared, is ever made: as in the answer's table of strategies."""
    return plan.fit.gpu_likely_suffices


def _row(title: str, figures: Sequence[Figure], difference: Figure, gain: float) -> Row:
    """Return a row whose better figure is marked. gain: above 0 if B's is better, below 0 if A's is."""
    better = "B" if gain > 0 else "A" if gain < 0 else ""
    marked = [
        each._replace(style="good" if letter == better else "") for letter, each in zip("AB", figures, strict=True)
    ]
    return Row([title, *marked, difference, Figure(better)])


def _less_is_better(title: str, figures: Sequence[Figure]) -> Row:
    """Return a row of two figures and their difference."""
    first, second, difference = figures
    gain = 0.0 if difference.text == "=" else (first.value or 0) - (second.value or 0)
    return _row(title, (first, second), difference, gain)


def _parts(comparison: Comparison) -> Iterator[Block]:
    """Yield both plans' memory, and the time of a step if both have the same tokens per step, otherwise of 1,000
    tokens."""
    from .plans import memory_bars, time_bars  # imported here: a comparison of keys has no charts

    question, plans = comparison.question, comparison.candidates
    assert question is not None, "plans have a question"
    labels = {f"{letter}: {plan.strategy}": plan for letter, plan in zip("AB", plans, strict=True)}
    first, second = (phase_title(plan.memory.peak.name) for plan in plans)
    title = f"Memory per GPU, GiB (peak: {first})"
    if first != second:
        title = f"Memory per GPU, GiB (peak of A: {first}; of B: {second})"
    yield Heading(title, "memory")
    memory = memory_bars(labels, question.cluster, with_sources=True)
    yield Chart(memory, printed=memory)
    yield _table([plan.memory.components for plan in plans], _sizes)
    if not any(map(_runs, plans)):
        return
    steps = {plan.time.tokens_per_step for plan in plans}
    tokens = steps.pop() if len(steps) == 1 else 1000
    title = f"Time, ms per {'1,000' if steps else f'step of {tokens:,}'} tokens"
    columns = [
        {name: 1e3 * seconds * tokens / plan.time.tokens_per_step for name, seconds in plan.time.components.items()}
        for plan in plans
    ]
    yield Heading(title, "time")
    time = replace(time_bars(labels, with_sources=True, tokens=tokens), unit=MS)  # the unit of the title
    yield Chart(time, printed=time)
    yield _table(columns, _durations)


def _table(columns: Sequence[Mapping[str, float]], cells: Callable[[Any, Any], Sequence[Figure]]) -> Table:
    """Return the components that differ, the largest first; those that are small on both sides and those that are equal
    add up to a faded row each."""
    first, second = columns
    least = [_SMALL_SHARE * sum(column.values()) for column in columns]
    shown, sums = list[tuple[float, Row]](), {"other": (0.0, 0.0), "the same in both": (0.0, 0.0)}
    for name in dict.fromkeys([*first, *second]):
        pair = first.get(name, 0), second.get(name, 0)
        figures = cells(*pair)
        is_equal = figures[2].text == "="
        if is_equal or (pair[0] < least[0] and pair[1] < least[1]):
            title = "the same in both" if is_equal else "other"
            sums[title] = sums[title][0] + pair[0], sums[title][1] + pair[1]
        else:
            shown.append((max(pair), _less_is_better(component_title(name), figures)))
    rows = [row for _, row in sorted(shown, key=lambda each: -each[0])]
    rows += [Row([title, *cells(*pair), Figure("")], "faded") for title, pair in sums.items() if any(pair)]
    return Table(_HEAD, rows, _WIDTHS, optional=(3,))


def _differences(comparison: Comparison, *, with_meanings: bool) -> Iterator[Block]:
    """Yield the keys by block, each with both values, and what it decides or the command that says so."""
    rows, block, differences = list[Row](), "", comparison.differences
    sides = [side.settings for side in comparison.sides]
    for found in (each for each in differences if each.acts):
        here, dot, name = found.key.partition(".")
        if dot and here != block:
            rows.append(Row([here]))
        block = here
        values = (
            Figure(
                _value_label(value) + " (invalid)" * (found.key in side.invalid_blocks)
                if side.acts(found.key)
                else _idle_label(value, found.key, side.stage())
            )
            for value, side in zip((found.first, found.second), sides, strict=True)
        )
        meaning = [found.meaning] * (with_meanings and bool(found.meaning))
        rows.append(Row([f"{'  ' * bool(dot)}{printable(name or here)}", *values], remarks=meaning))
    if rows:
        yield Heading("Differences", "differences", printed=False)
        yield Table(["Keys that differ", "A", "B"], rows, _KEY_WIDTHS)
        if not with_meanings:
            yield Sentence("ds-advise explain KEY says what a key decides.", "dim")
    idle = [f"{printable(found.key)}{_only_of(found)}" for found in differences if not found.acts]
    if idle:
        yield Gap()
        yield Sentence(f"Without effect at these ZeRO stages: {', '.join(idle)}.", "dim")


def _value_label(setting: Setting) -> str:
    """Return a value with `*` for a default; `-` for none."""
    if setting.origin == "unset":
        return NOTHING
    text = value_label(setting.value)
    return f"{text} *" if setting.origin == "default" else text


def _only_of(found: Difference) -> str:
    """Return the side that alone has a key: at the other's stage, it may have an effect."""
    owners = [
        letter for letter, setting in zip("AB", (found.first, found.second), strict=True) if not setting.is_default
    ]
    return f" (of {owners[0]})" if len(owners) == 1 else ""


def _idle_label(setting: Setting, key: str, stage: int) -> str:
    """Return a value that DeepSpeed does not use."""
    if setting.is_default:
        return NOTHING
    return f"{value_label(setting.value)} (no effect{'' if key.startswith('aio.') else f' at stage {stage}'})"


def _basis(comparison: Comparison) -> Iterator[str]:
    acting = (found for found in comparison.differences if found.acts)
    if any("default" in (found.first.origin, found.second.origin) for found in acting):
        yield f"* the default of DeepSpeed {comparison.deepspeed}; - no value."
    if comparison.question is None:
        yield "A key with its default on both sides is not a difference."
    else:
        yield f"Evidence: analytic. Speeds within {percent(SAME_SPEED)} count as equal."


def _sizes(first: float, second: float) -> tuple[Figure, Figure, Figure]:
    one, other = (Figure(GIB.part(size) if size else NOTHING, size) for size in (first, second))
    is_same = one.text == other.text
    return one, other, Figure("=") if is_same else _signed(gib(int(abs(second - first))), second - first)


def _durations(first: float, second: float) -> tuple[Figure, Figure, Figure]:
    def write(duration: float) -> str:
        return NOTHING if duration < 0.005 else three_digits(duration)

    one, other, change = make_figure(first, write), make_figure(second, write), second - first
    is_same = one.text == other.text or abs(change) <= _SAME * max(first, second)
    return one, other, Figure("=") if is_same else _signed(write(abs(change)), change)


def _signed(text: str, difference: float) -> Figure:
    if text in (NOTHING, "0.00"):  # no visible difference
        return Figure("=")
    return Figure(f"{'+' if difference > 0 else '-'}{text}")
