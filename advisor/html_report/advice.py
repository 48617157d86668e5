"""The report of an advice."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from ...estimators.json_form import to_json
from ..answer.advice import advice_of
from ..answer.explanation import explain_plan
from ..answer.recommendation import Recommendation, closest
from ..answer.view import AnswerView, view_of
from ..render.answer import print_answer
from ..search.candidate import LIKELY, Candidate, duration_of
from ..text.job import hours, money
from ..text.labels import device_label, phase_title, shape_label
from ..text.units import rate, rough_rate, seconds
from .bar_charts import StackedBars, draw_stacked_bars
from .canvas import Markup, element, joined
from .document import (
    NOTHING,
    Cell,
    Figure,
    Report,
    Section,
    bullets,
    configuration,
    copyable,
    duration,
    figure,
    folded,
    html_of,
    note,
    parts_table,
    size,
    speed,
    table,
    terms_table,
    tiles,
)
from .line_charts import draw_scatter
from .output_files import write_outputs
from .plans import memory_bars, speed_against_memory, terms_by_key, time_bars

Plan = Mapping[str, Any]


def advice_html(answer: Recommendation, config_path: str) -> str:
    """The report as the text of one HTML file. config_path: what the commands call the configuration."""
    form = to_json(advice_of(answer))
    view = view_of(answer, config_path=config_path, details=True)
    return html_of(
        Report(
            subject=" · ".join(view.subject),
            verdict=view.headline,
            tone="bad" if answer.recommended is None else "good" if answer.recommended.fit.fits else "warn",
            lead=list(view.sentences),
            tiles=_tiles(answer),
            sections=(
                *_pictures(answer, form),
                Section(name="ladder", title="The ladder", body=_ladder(answer, form)),
                _terms(answer),
                _changes(form),
                _job(view),
                _configuration(view, config_path),
                _start(view),
                Section(name="evidence", title="Why, and how it is known", body=_evidence(answer, view)),
            ),
            data=form,
        )
    )


def write_advice_report(
    answer: Recommendation, config_path: str, html: Path | None, plot: Path | None, say: Callable[[str], None]
) -> None:
    """Write the report and the picture of every plan's memory, whichever is asked for."""
    write_outputs(
        html,
        plot,
        report=lambda: advice_html(answer, config_path),
        picture=lambda: draw_stacked_bars(_memory(answer)),
        heading=" · ".join(view_of(answer).subject),
        say=say,
    )


def _memory(answer: Recommendation) -> StackedBars:
    """Memory of every plan against the GPU."""
    form, device = to_json(advice_of(answer)), device_label(answer.question.cluster)
    return memory_bars(form["candidates"], form["cluster"]["gpu_memory_bytes"], chosen=_chosen(form), device=device)


def _chosen(form: Plan) -> int | None:
    """The index of the recommended plan among the candidates."""
    return next((at for at, plan in enumerate(form["candidates"]) if plan == form["recommended"]), None)


def _tiles(answer: Recommendation) -> Markup | None:
    chosen, cluster = answer.recommended, answer.question.cluster
    if chosen is None:
        return None
    low_high = chosen.time.tokens_per_s_range
    between = "" if low_high is None else f"{rough_rate(low_high[0])} to {rough_rate(low_high[1])}"
    device, host = device_label(cluster), cluster.host_memory_bytes_per_node
    return tiles(
        [
            ("tokens/s", rate(chosen.tokens_per_s), between),
            (f"GiB per {device}", size(chosen.device_bytes).text, f"of {size(cluster.gpu.memory_bytes).text}"),
            (
                "GiB of host RAM",
                size(chosen.memory.host_bytes_per_node).text,
                f"of {size(host).text}" if host else "per node, not checked",
            ),
            ("one step", seconds(chosen.time.step_s), f"{chosen.time.tokens_per_step:,} tokens"),
            *_job_tile(answer, chosen),
        ]
    )


def _job_tile(answer: Recommendation, chosen: Candidate) -> list[tuple[str, str, str]]:
    """The whole job's duration and cost, where it was told how much is trained."""
    duration, price = duration_of(answer.question, chosen), answer.question.price
    if duration is None:
        return []
    paid = "" if price is None else money(duration.cost(price), price.currency)
    return [("the whole job", hours(duration.duration_s), paid or f"{duration.steps:,} steps")]


def _pictures(answer: Recommendation, form: Plan) -> list[Section]:
    """Memory, time, and speed against memory."""
    plans, limit, chosen = form["candidates"], form["cluster"]["gpu_memory_bytes"], _chosen(form)
    if not plans:
        return []
    device = device_label(answer.question.cluster)
    sections = [to_json(explain_plan(step.candidate).figures())["sections"] for step in answer.ladder if step.candidate]
    memory_terms = [terms_by_key(section["gpu_memory"]["terms"]) for section in sections]
    time_terms = [terms_by_key(section["time"]["terms"]) for section in sections]
    memory = memory_bars(plans, limit, chosen=chosen, terms=memory_terms, device=device)
    every = to_json(advice_of(answer, all_candidates=True))["candidates"]
    return [
        Section(
            name="memory",
            title=f"Memory per {device}",
            body=joined(
                note(
                    "The best plan of every rung; the dashed line is what the card offers. Bars that leave the picture "
                    "are cut. Rest on a part for its bytes, formula and source."
                ),
                figure(memory, draw_stacked_bars, parts_table(plans, "components", size, "GiB")),
            ),
        ),
        Section(
            name="time",
            title="Time of a step",
            body=joined(
                note("For every 1,000 tokens, so that plans of different batches compare."),
                figure(
                    time_bars(plans, chosen=chosen, terms=time_terms),
                    draw_stacked_bars,
                    parts_table(plans, "time_components", duration, "of one step"),
                ),
            ),
        ),
        Section(
            name="speed",
            title="Speed against memory",
            body=joined(
                note(
                    "Every plan that was predicted. The line joins those that no other beats in both; hollow points "
                    "do not fit, the green one is recommended."
                ),
                figure(
                    speed_against_memory(every, limit, chosen=form["recommended"], device=device),
                    draw_scatter,
                    folded("Figures as a table", _plans_table(every, form["recommended"], device)),
                ),
            ),
        ),
    ]


def _plans_table(plans: Sequence[Plan], chosen: Plan | None, device: str) -> Markup:
    """Every plan, the fastest that fits first."""
    ordered = sorted(plans, key=lambda plan: (not plan["fits"], -plan["tokens_per_second"]))
    rows: list[list[Cell]] = [
        [
            plan["rung"],
            shape_label(SimpleNamespace(**plan)),
            size(plan["device_bytes_per_gpu"]),
            speed(plan["tokens_per_second"]),
            plan["reason"],
        ]
        for plan in ordered
    ]
    classes = ["chosen" if plan == chosen else "" if plan["fits"] else "faded" for plan in ordered]
    return table(["rung", "shape", f"GiB per {device}", "tokens/s", ""], rows, classes=classes)


def _ladder(answer: Recommendation, form: Plan) -> Markup:
    """The rungs in the recipe's order, as they were walked."""
    by_rung = {plan["rung"]: plan for plan in form["candidates"]}
    rows: list[list[Cell]] = []
    classes = []
    for step in form["ladder"]:
        plan = by_rung.get(step["rung"])
        if plan is None:
            rows.append([step["rung"], "", *[Figure(NOTHING, None)] * 4, step["reason"]])
            classes.append("faded")
            continue
        rows.append(_ladder_row(plan))
        classes.append("chosen" if plan == form["recommended"] else "" if plan["fits"] else "faded")
    if form["pytorch_baseline"] is not None:
        rows.append(_ladder_row(form["pytorch_baseline"]))
        classes.append("faded")
    device = device_label(answer.question.cluster)
    return joined(
        note("From every GPU holding all to states on a drive. All were predicted; the fastest that fits is taken."),
        table(
            ["rung", "shape", f"GiB per {device}", "GiB RAM", "GiB NVMe", "tokens/s", "verdict"], rows, classes=classes
        ),
        element("ul", *(element("li", reason) for reason in answer.reasons)) if answer.reasons else None,
    )


def _ladder_row(plan: Plan) -> list[Cell]:
    shows_speed = plan["fits"] or plan["fit_probability"] >= LIKELY or plan["reason"].startswith("needs")
    return [
        plan["rung"],
        shape_label(SimpleNamespace(**plan)),
        size(plan["device_bytes_per_gpu"]),
        size(plan["host_bytes_per_node"]),
        size(plan["nvme_bytes_per_node"]),
        speed(plan["tokens_per_second"]) if shows_speed else Figure(NOTHING, plan["tokens_per_second"]),
        plan["reason"],
    ]


def _terms(answer: Recommendation) -> Section | None:
    """Formula, numbers and source of everything that the shown plan consists of."""
    shown = answer.recommended or closest(answer.ladder)
    if shown is None:
        return None
    sections = to_json(explain_plan(shown).figures())["sections"]
    device = device_label(answer.question.cluster)
    titles = {
        "gpu_memory": f"Memory per {device} at the peak ({phase_title(shown.memory.peak.name)})",
        "gpu_cache": "Cached pytorch_baselines until a request would fail, as nvidia-smi shows it",
        "host_memory": "Host RAM per node",
        "nvme": "NVMe per node",
        "time": "One optimizer step",
    }
    parts = [
        folded(f"{titles[name]}: {_total(name, section['total'])}", terms_table(section["terms"]))
        for name, section in sections.items()
    ]
    return Section(
        name="figures",
        title="Where the figures come from",
        body=joined(note(f"Every part of {shown.rung}: formula in words, numbers and source."), *parts),
    )


def _total(name: str, total: float) -> str:
    return seconds(total) if name == "time" else f"{size(int(total)).text} GiB"


def _changes(form: Plan) -> Section | None:
    if not form["changes"]:
        return None
    rows = [[change["flags"], change["outcome"]] for change in form["changes"]]
    title = "What would change the answer" if form["recommended"] else "What would make it fit"
    return Section(name="changes", title=title, body=table(["ask with", "and the answer is"], rows))


def _job(view: AnswerView) -> Section | None:
    """What the duration of the whole job consists of."""
    return Section(name="job", title="The whole job", body=bullets(view.job)) if view.job else None


def _configuration(view: AnswerView, config_path: str) -> Section | None:
    if view.config is None:
        return None
    return Section(name="configuration", title="The configuration", body=configuration(view.config, config_path))


def _start(view: AnswerView) -> Section | None:
    """The script's lines and the commands."""
    if not view.steps:
        return None
    parts: list[Markup] = []
    for block in view.steps:
        parts += [note(block.text), *([copyable("\n".join(block.code))] if block.code else [])]
    return Section(name="start", title="Start it", body=joined(*parts))


def _evidence(answer: Recommendation, view: AnswerView) -> Markup:
    """How it is known, what is assumed, and the answer as it is printed."""
    page = io.StringIO()
    print_answer(answer, Console(file=page, width=80, highlight=False, color_system=None), details=True)
    return joined(
        *(note(line) for line in view.evidence),
        element("h3", "Assumed") if view.assumptions else None,
        bullets(view.assumptions) if view.assumptions else None,
        note(view.deepspeed_estimate) if view.deepspeed_estimate else None,
        folded("The answer as it is printed", element("pre", page.getvalue().strip("\n"))),
    )
