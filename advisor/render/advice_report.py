"""The report of an advice, with its charts; a terminal has `render.answer`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter

from rich.console import Console

from ..answer.advice import build_advice
from ..answer.explanation import explain_plan
from ..answer.recommendation import Recommendation
from ..answer.scaling import Series, build_scaling
from ..answer.view import AnswerView, LadderRow, host_parts
from ..document import blocks as doc
from ..text.labels import device_label
from ..text.units import gib, rate
from .answer import print_answer
from .configuration import configuration
from .explanation import section_title, terms_table
from .plans import (
    best_plans,
    chart_with_table,
    host_bars,
    memory_bars,
    memory_chart,
    series_chart,
    speed_against_memory,
    time_chart,
)

_note = partial(doc.Sentence, style="dim")


def advice_report(answer: Recommendation, config_path: str, picture: str = "") -> doc.Document:
    """Return the report with its chart. config_path: path of the configuration in the commands. picture: name of the
    chart's file without suffix; `scaling` draws the scaling series, any other name the memory of every plan."""
    view = AnswerView(answer, config_path, details=True)
    question, chosen = answer.question, answer.recommended
    series = () if chosen is None else build_scaling(question, chosen)
    tiles = [(each.title, each.value, " · ".join(filter(None, (each.unit, each.note)))) for each in view.figures]
    blocks: list[doc.Block] = [*map(doc.Sentence, view.verdict.sentences), *([doc.Tiles(tiles)] if tiles else [])]
    changes = [doc.Row([change.flags, change.outcome]) for change in answer.changes]
    what_if: list[doc.Block] = [
        doc.Heading(view.changes, "changes"),
        doc.Table(["option", "answer"], changes),
    ]
    if chosen is None:
        blocks += what_if
    else:
        blocks.append(doc.Heading("Start it", "start"))
        for step in view.steps:
            blocks += [_note(step.text), *([doc.Code(step.code)] if step.code else [])]
    blocks += [*_charts(answer, series), *_ladder(view), *_terms(answer)]
    if chosen is not None:
        blocks += what_if
    blocks += [doc.Heading("Phases of a step", "phases"), *map(doc.Sentence, view.phases)]
    blocks += [doc.Heading("The whole job", "job"), *map(doc.Sentence, view.job)]
    if view.config:
        blocks += [doc.Heading("The configuration", "configuration"), *configuration(view.config, config_path)]
    blocks += [doc.Heading("Reasons and evidence", "evidence"), *map(_note, view.evidence)]
    if answer.assumptions:
        blocks += [doc.Sentence("Assumed:", "bold"), *map(_note, answer.assumptions)]
    page = io.StringIO()
    print_answer(answer, Console(file=page, width=80, highlight=False, color_system=None), details=True)
    printed = doc.Folded("The printed answer", [doc.Verbatim(page.getvalue().strip("\n").splitlines())])
    return doc.Document(
        subject=" · ".join(view.subject),
        verdict=view.verdict.headline,
        tone=view.verdict.tone,
        blocks=[*blocks, *([_note(view.deepspeed_estimate)] if view.deepspeed_estimate else []), printed],
        data=build_advice(answer),
        picture=[series_chart(each, question.cluster) for each in series]
        if picture == "scaling" and series
        else memory_bars(best_plans(answer), question.cluster, chosen=answer.shown),
    )


def _terms(answer: Recommendation) -> Iterator[doc.Block]:
    if answer.shown is not None:
        explanation = explain_plan(answer.shown)
        yield doc.Heading("Where the figures come from", "figures")
        yield _note(f"Every part of {answer.shown.strategy}: formula in words, numbers and source.")
        for section in explanation.sections:
            yield doc.Folded(section_title(explanation, section), [terms_table(section)])


def _charts(answer: Recommendation, every_series: Sequence[Series]) -> Iterator[doc.Block]:
    plans, cluster, chosen = best_plans(answer), answer.question.cluster, answer.shown
    if not plans:
        return
    yield doc.Heading(f"Memory per {device_label(cluster)}", "memory")
    yield _note(
        "The best plan of every strategy. The dashed line is the memory of the GPU; longer bars are cut. Hover over a "
        "part for its bytes, formula and source."
    )
    yield memory_chart(plans, cluster, chosen=chosen)
    yield doc.Heading("Host RAM", "ram")
    yield _note(
        "RAM of a node. PyTorch rounds pinned buffers up to powers of two. Loading is shown if it takes more than "
        "training."
    )
    hosts = {name: host_parts(plan.memory) for name, plan in plans.items()}
    yield chart_with_table(host_bars(plans, cluster, chosen=chosen), hosts, "GiB", gib)
    yield doc.Heading("Time of a step", "time")
    yield _note("Per 1,000 tokens, so that plans with different batches can be compared.")
    yield time_chart(plans, chosen=chosen)
    yield doc.Heading("Speed against memory", "speed")
    yield _note("The Pareto-optimal plans, and, in green, the recommended one. The table has every plan.")
    points = speed_against_memory(answer.candidates, cluster, answer.recommended)
    yield doc.Chart(points, _plans_table(AnswerView(answer, all_candidates=True)))
    if every_series:
        yield doc.Heading("Longer sequences, larger batches, more GPUs", "scaling")
        yield _note(
            "The fastest plan that fits for each value; for each micro batch the recommended plan. Green: this "
            "question."
        )
    for series in every_series:
        rows = []
        for value, plan in zip(series.values, series.plans, strict=True):
            figures = (None, None) if plan is None else (plan.tokens_per_s, plan.device_bytes)
            speed, size = doc.make_figure(figures[0], rate), doc.make_figure(figures[1], gib)
            rows.append(doc.Row([value, "nothing fits" if plan is None else plan.strategy, speed, size]))
        table = doc.Table([series.title, "strategy", "tokens/s", "GPU GiB"], rows)
        yield doc.Chart(series_chart(series, cluster), table)


_FIRST_COLUMNS = ("strategy", "tokens_per_s", "verdict")
"""Columns that fit on a phone."""


def _ladder(view: AnswerView) -> Iterator[doc.Block]:
    yield doc.Heading("Every strategy", "ladder")
    yield _note("From all states on every GPU to states on NVMe. The fastest predicted plan that fits is recommended.")
    yield _plans_table(view)
    yield from map(_note, filter(None, (*view.ladder_notes, view.pytorch_baseline)))
    yield from map(doc.Sentence, view.answer.reasons)


def _plans_table(view: AnswerView) -> doc.Table:
    """Return a row for every plan; a strategy without a plan has only its reason."""
    named = {"verdict": "verdict", **view.columns}
    titles = {name: named[name] for name in dict.fromkeys((*_FIRST_COLUMNS, *view.columns))}
    rows = [
        doc.Row(
            [_cell(row, name, getattr(row, name)) for name in titles],
            "chosen" if row.is_chosen else "" if row.fits else "faded",
        )
        for row in view.ladder
    ]
    return doc.Table([*titles.values()], rows)


def _cell(row: LadderRow, column: str, text: str) -> doc.Cell:
    exact = {
        "gpu_gib": "device_bytes",
        "ram_gib": "memory.host_bytes_per_node",
        "nvme_gib": "memory.nvme_bytes_per_node",
        "tokens_per_s": "tokens_per_s",
    }
    if column not in exact:
        return text
    value = None if row.candidate is None else attrgetter(exact[column])(row.candidate)
    return doc.Figure(text or "-", value)
