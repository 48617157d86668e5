"""The charts of an answer, with their figures as tables, and the source of every part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ..answer.explanation import explain_plan
from ..answer.recommendation import Recommendation
from ..answer.scaling import Series, build_scaling
from ..document.blocks import Block, Chart, Folded, Heading, Row, Sentence, Table, make_figure
from ..document.charts import Drawing, Lines, StackedBars
from ..search.candidate import LIKELY, Candidate, lacking
from ..text.units import gib, rate
from .explanation import section_title, terms_table
from .ladder import ladder_table
from .plans import (
    best_plans,
    chart_with_table,
    host_bars,
    memory_bars,
    pareto_optimal,
    series_chart,
    speed_against_memory,
    time_chart,
)

_note = partial(Sentence, style="dim")


def answer_series(answer: Recommendation) -> Sequence[Series]:
    """Return the scaling series; none if no plan fits."""
    return () if answer.recommended is None else build_scaling(answer.question, answer.recommended)


def answer_picture(answer: Recommendation, name: str) -> Drawing | Sequence[Drawing]:
    """Return the chart of `--plot`: the scaling series if it is named `scaling` and there are any, otherwise the memory
    of every plan."""
    cluster = answer.question.cluster
    series = answer_series(answer) if name == "scaling" else ()
    if series:
        return [series_chart(each, cluster) for each in series]
    return memory_bars(best_plans(answer), cluster, chosen=answer.shown)


def chart_blocks(answer: Recommendation) -> Iterator[Block]:
    """Yield host RAM, time, and speed against memory as charts."""
    plans, cluster, chosen = best_plans(answer), answer.question.cluster, answer.shown
    if chosen is None:
        return
    yield Heading("Host RAM", "ram")
    yield _note(
        "RAM of a node. PyTorch rounds pinned buffers up to powers of two. Loading is shown if it takes more than "
        "training."
    )
    yield chart_with_table(host_bars(plans, cluster, chosen=chosen))
    yield Heading("Time of a step", "time")
    times = time_chart(plans, chosen=chosen)
    cut = "; longer bars are cut" if isinstance(times.drawing, StackedBars) and times.drawing.is_cut else ""
    yield _note(f"Per 1,000 tokens, so that plans with different batches can be compared{cut}.")
    yield times
    best = pareto_optimal(answer.candidates, cluster, answer.recommended)
    if not best:  # every plan needs more memory than the chart shows
        return
    yield Heading("Speed against memory", "speed")
    points = speed_against_memory(best, cluster, answer.recommended)
    yield _note(f"{_what_fits(answer, best)}{_lines_meaning([points])} The table has every plan.")
    yield Chart(points, ladder_table(answer, all_candidates=True))


def _what_fits(answer: Recommendation, plans: Sequence[Candidate]) -> str:
    """Return which points are which in the chart of speed against memory."""
    lacks = {plan.fit.limit for plan in plans if plan.fit.probability < LIKELY}
    if answer.recommended is not None:
        hollow = " Hollow ones lack memory." if lacks == {"gpu"} else " Hollow ones lack memory, RAM or NVMe."
        return f"The Pareto-optimal plans, and, in green, the recommended one.{hollow * bool(lacks)}"
    found = "No plan is sure to fit" if answer.try_first is not None else "No plan fits"
    more = lacking(lacks)
    left = f": hollow points left of the dashed line need {more}" if more else ""
    return f"The Pareto-optimal plans. {found}{left}."


def _lines_meaning(charts: Sequence[Lines]) -> str:
    """Return what the vertical lines mean; "" without any."""
    return " A vertical line: another strategy." * any(len(chart.spans) > 1 for chart in charts)


def scaling_blocks(answer: Recommendation) -> Iterator[Block]:
    """Yield speed and memory against sequence length, micro batch and GPUs, which asks about twenty more questions."""
    every_series, cluster = answer_series(answer), answer.question.cluster
    drawings = [series_chart(series, cluster) for series in every_series]
    if every_series:
        hollow = " Hollow: does not fit." * any(drawing.hollow for drawing in drawings)
        yield Heading("Longer sequences, larger batches, more GPUs", "scaling")
        yield _note(
            "The fastest plan that fits for each value; for each micro batch the recommended plan. Green: this "
            f"question.{hollow}{_lines_meaning(drawings)}"
        )
    if any(series.mixes_batches for series in every_series):
        yield _note("The global batch differs between the values (see the tables): a larger one is faster per token.")
    for series, drawing in zip(every_series, drawings, strict=True):
        rows = []
        for value, plan, samples in zip(series.values, series.plans, series.samples, strict=True):
            figures = (None, None) if plan is None else (plan.tokens_per_s, plan.device_bytes)
            speed, size = make_figure(figures[0], rate), make_figure(figures[1], gib)
            batch = make_figure(samples, str)
            rows.append(Row([value, "nothing fits" if plan is None else plan.strategy, batch, speed, size]))
        table = Table([series.title, "strategy", "global batch", "tokens/s", "GPU GiB"], rows)
        yield Chart(drawing, table)


def source_blocks(answer: Recommendation) -> Iterator[Block]:
    """Yield formula, numbers and source of every part of the recommended or closest plan."""
    if answer.shown is None:
        return
    explanation = explain_plan(answer.shown)
    yield Heading("Where the figures come from", "figures")
    yield _note(f"Every part of {answer.shown.strategy}: formula in words, numbers and source.")
    for section in explanation.sections:
        yield Folded(section_title(explanation, section), [terms_table(section)])
