"""The report of an advice."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from ..answer.advice import advice_of
from ..answer.explanation import explain_plan
from ..answer.recommendation import Recommendation
from ..answer.scaling import Series, scaling_of
from ..answer.view import AnswerView, LadderRow, host_parts
from ..render.answer import print_answer
from ..render.explanation import section_title
from ..text.labels import device_label
from . import document as doc
from .bar_charts import draw_stacked_bars
from .canvas import Markup, element, joined
from .line_charts import draw_all, draw_series, draw_speed_against_memory
from .plans import best_plans, host_bars, memory_bars, time_bars


def advice_report(answer: Recommendation, config_path: str, picture: str = "") -> doc.Report:
    """Return the report with its chart. config_path: path of the configuration in the commands. picture: name of the
    chart's file without suffix; `scaling` draws the scaling series, any other name the memory of every plan."""
    view = AnswerView(answer, config_path, details=True)
    chosen = answer.recommended
    series = () if chosen is None else scaling_of(answer.question, chosen)
    rows = [[change.flags, change.outcome] for change in answer.changes]
    changes = doc.Section("changes", view.changes, doc.table(["ask with", "and the answer is"], rows))
    steps = (joined(doc.note(block.text), doc.copyable("\n".join(block.code))) for block in view.steps)
    ladder = (
        doc.note("From all states on every GPU to states on a drive. The fastest predicted plan that fits is taken."),
        _plans_table(view),
        *(doc.note(line) for line in (*view.ladder_notes, view.pytorch_baseline)),
        doc.bullets(answer.reasons),
    )
    terms = []
    if answer.shown is not None:
        explanation = explain_plan(answer.shown)
        terms = [
            doc.note(f"Every part of {answer.shown.rung}: formula in words, numbers and source."),
            *(
                doc.folded(section_title(explanation, section), doc.terms_table(section.terms))
                for section in explanation.sections
            ),
        ]
    evidence = joined(
        *(doc.note(line) for line in view.evidence),
        joined(element("h3", "Assumed"), doc.bullets(answer.assumptions)) if answer.assumptions else None,
        doc.note(view.deepspeed_estimate),
        doc.as_printed(lambda console: print_answer(answer, console, details=True)),
    )
    return doc.Report(
        subject=" · ".join(view.subject),
        verdict=view.verdict.headline,
        tone=view.verdict.tone,
        lead=view.verdict.sentences,
        tiles=[(each.title, each.value, " · ".join(filter(None, (each.unit, each.note)))) for each in view.figures],
        sections=(
            doc.Section("start", "Start it", joined(*steps)) if chosen else changes,
            *_charts(answer, series),
            doc.Section("ladder", "Every strategy", joined(*ladder)),
            doc.Section("figures", "Where the figures come from", joined(*terms)),
            *([changes] if chosen else []),
            doc.Section("phases", "Phases of a step", doc.bullets(view.phases)),
            doc.Section("job", "The whole job", doc.bullets(view.job)),
            doc.configuration(view.config, config_path),
            doc.Section("evidence", "Why, and how it is known", evidence),
        ),
        data=advice_of(answer),
        chart=partial(draw_all, answer.question.cluster, series)
        if picture == "scaling" and series
        else lambda: draw_stacked_bars(memory_bars(best_plans(answer), answer.question.cluster, chosen=answer.shown)),
    )


def _charts(answer: Recommendation, every_series: Sequence[Series]) -> list[doc.Section]:
    plans, cluster, chosen = best_plans(answer), answer.question.cluster, answer.shown
    if not plans:
        return []
    device = device_label(cluster)
    memory_table, time_table = doc.plan_tables(plans)
    every = AnswerView(answer, all_candidates=True)

    def table(series: Series) -> Markup:
        rows: list[list[doc.Cell]] = [
            [value, "nothing fits", doc.speed(None), doc.size(None)]
            if plan is None
            else [value, plan.rung, doc.speed(plan.tokens_per_s), doc.size(plan.device_bytes)]
            for value, plan in zip(series.values, series.plans, strict=True)
        ]
        return doc.figures_table([series.title, "strategy", "tokens/s", "GPU GiB"], rows)

    def chapter(name: str, title: str, words: str, *figures: Markup) -> doc.Section:
        return doc.Section(name, title, joined(doc.note(words), *figures) if figures else Markup())

    hosts = [(name, host_parts(plan.memory)) for name, plan in plans.items()]
    return [
        chapter(
            "memory",
            f"Memory per {device}",
            "The best plan of every strategy; the dashed line is the card's memory. Longer bars are cut. "
            "Rest on a part for its bytes, formula and source.",
            doc.figure(memory_bars(plans, cluster, chosen=chosen, with_sources=True), draw_stacked_bars, memory_table),
        ),
        chapter(
            "ram",
            "Host RAM",
            "What a node's RAM holds. Pinned buffers take powers of two, as PyTorch allocates them. Loading counts "
            "where it takes more than training.",
            doc.figure(
                host_bars(plans, cluster, chosen=chosen), draw_stacked_bars, doc.parts_table(hosts, doc.size, "GiB")
            ),
        ),
        chapter(
            "time",
            "Time of a step",
            "For every 1,000 tokens, so that plans of different batches compare.",
            doc.figure(time_bars(plans, chosen=chosen, with_sources=True), draw_stacked_bars, time_table),
        ),
        chapter(
            "speed",
            "Speed against memory",
            "Every plan that was predicted. The line joins those that no other beats in both; hollow points do not "
            "fit, the green one is recommended.",
            doc.figure(
                answer.candidates,
                partial(draw_speed_against_memory, cluster=cluster, chosen=answer.recommended),
                doc.folded("Figures as a table", _plans_table(every)),
            ),
        ),
        chapter(
            "scaling",
            "Longer sequences, larger batches, more GPUs",
            "The fastest plan that fits for each value; for each micro batch the recommended one. "
            "Green: this question.",
            *(doc.figure(series, partial(draw_series, cluster), table(series)) for series in every_series),
        ),
    ]


_FIRST_COLUMNS = ("rung", "tokens_per_s", "verdict")
"""Columns that fit on a phone."""


def _plans_table(view: AnswerView) -> Markup:
    """Return a row for every plan; a rung without a plan has only its reason."""
    named = {"verdict": "verdict", **view.columns}
    titles = {name: named[name] for name in dict.fromkeys((*_FIRST_COLUMNS, *view.columns))}
    rows = [[_cell(row, name, getattr(row, name)) for name in titles] for row in view.ladder]
    classes = ["chosen" if row.is_chosen else "" if row.fits else "faded" for row in view.ladder]
    return doc.table([*titles.values()], rows, classes=classes)


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
    return doc.Figure(text or doc.NOTHING, value)
