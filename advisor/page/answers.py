"""Requests of the page and their answers, as JSON texts with all content of the page. The worker of a static page calls
these functions under Pyodide; `ds-advise page` calls them in its local server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...ds_configs.files import config_text
from ...ds_configs.job import JOB_KINDS
from ...ds_configs.training_script import script_lines, trainer_lines
from ...estimators.errors import DsAdviseError
from ...estimators.hardware import gpus
from ...estimators.json_form import to_json
from ...estimators.models import catalogue
from ..advise import predicted
from ..answer.advice import build_advice
from ..answer.jobs import build_jobs
from ..answer.recommendation import Recommendation
from ..answer.scaling import build_scaling
from ..answer.start import plan_config, start_commands, start_settings
from ..answer.view import AnswerView
from ..html_report.canvas import NARROW, WIDE, dark_rules
from ..html_report.charts import draw
from ..render.plans import best_plans, host_bars, memory_bars, series_chart, speed_against_memory, time_bars
from ..search.candidate import LIKELY
from .options import OPTIONS, State, default_text, option_words, options_in, state_command, state_model, state_question

if TYPE_CHECKING:
    from ...validate.lint import LintReport

CONFIG_FILE = "ds_config.json"

FIRST = {"model": "Qwen2.5-14B", "gpus": "2x32GB"}
"""The question of a page that is opened without one; a build stores the intermediate results of its answer."""

PICTURES = ("memory", "ram", "time", "scatter")
"""Charts of each answer: memory and host RAM of every strategy's best plan, time of the plans that may fit, and all
plans."""

COLUMNS = {
    "strategy": "strategy",
    "tokens_per_s": "tokens/s",
    "verdict": "verdict",
    "gpu_gib": "GPU GiB",
    "ram_gib": "RAM GiB",
    "nvme_gib": "NVMe GiB",
    "batch": "batch",
    "checkpointing": "checkpointing",
}
"""Titles of the table's columns by field of `LadderRow`; the first three fit on a phone."""

_EXCERPT_COLUMNS = 60
"""Columns per line of a configuration excerpt; a phone shows 40 and scrolls."""

MEMORY_SIZES_GB = (8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192)
"""Memory sizes of GPUs that are offered by memory alone."""


def choices() -> str:
    """Return the values to choose from, and the style rules of charts on a dark screen."""
    return json.dumps(
        {
            "version": __version__,
            "models": catalogue.names(),
            "gpus": [*(f"{size}GB" for size in MEMORY_SIZES_GB), *(gpu.name.replace(" ", "-") for gpu in gpus())],
            "options": {name: list(option_words(option)) for name, option in OPTIONS.items()},
            "defaults": {name: default_text(option) for name, option in OPTIONS.items()},
            "columns": list(COLUMNS.values()),
            "dark_rules": dark_rules(),
        }
    )


def answer(request: str) -> Iterator[str]:
    """Yield the parts of the answer to `{"state": {...}, "picture": name, "width": pixels}`; each part is shown at
    once.

    "answer" holds everything but the changes, with the named chart; "pictures" holds the other charts; "pause" is
    empty, and a caller with a newer question stops there; "whole" holds the changes, the job files, and the answer as
    `ds-advise --json` prints it. "error" comes alone, with the reason why there is no answer.
    """
    asked = json.loads(request)
    state, width = asked["state"], int(asked["width"])
    try:
        recommendation = predicted(state_question(state))
    except DsAdviseError as error:
        yield json.dumps(_error(error))
        return
    first = {asked["picture"]: picture(recommendation, asked["picture"], width)}
    yield json.dumps({"part": "answer", "command": state_command(state), **_shown(recommendation), "pictures": first})
    others = {name: picture(recommendation, name, width) for name in PICTURES if name not in first}
    yield json.dumps({"part": "pictures", "pictures": others})
    while recommendation.changes.try_next():
        yield '{"part": "pause"}'
    jobs = []
    for kind in JOB_KINDS:
        with suppress(DsAdviseError, ImportError):  # SkyPilot has no name for some GPUs, a static page no PyYAML
            for file in build_jobs(recommendation, (kind,), CONFIG_FILE):
                jobs.append({"file": file.path.name, "title": file.title, "text": file.text})
    changes = [
        {"flags": change.flags, "outcome": change.outcome, "options": options_in(change.flags)}
        for change in recommendation.changes
    ]
    form = json.dumps(to_json(build_advice(recommendation)), indent=2)
    yield json.dumps({"part": "whole", "changes": changes, "jobs": jobs, "json": form})


def _shown(answer: Recommendation) -> dict[str, Any]:
    view, chosen = AnswerView(answer, CONFIG_FILE, details=True), answer.recommended
    used = {"seq-len": str(answer.question.workload.seq_len)}  # options that the advice may choose
    if chosen is not None:
        used["micro-batch"] = str(chosen.plan.micro_batch_size)
    assumed = [f"Assumed: {'; '.join(answer.assumptions)}."] if answer.assumptions else []
    return {
        "used": used,
        "verdict": asdict(view.verdict),
        "subject": " · ".join(view.subject),
        "figures": [asdict(figure) for figure in view.figures],
        "table": [
            {
                "cells": [getattr(row, name) for name in COLUMNS],
                "chosen": row.is_chosen and chosen is not None,
                "fits": row.fits or row.is_chosen,
            }
            for row in view.ladder
        ],
        "why": [text for text in (view.time, *view.phases, *answer.reasons, *assumed) if text],
        "start": _start(answer),
    }


def picture(answer: Recommendation, name: str, width: int) -> str:
    """Return one of `PICTURES` as SVG, at most `width` pixels wide; "" if there is nothing to draw."""
    cluster, width = answer.question.cluster, min(max(width, NARROW), WIDE)
    plans = best_plans(answer)
    if name == "time":  # the time of a plan that cannot fit is of no use
        plans = {strategy: plan for strategy, plan in plans.items() if plan.fit.probability >= LIKELY}
    if not plans:
        return ""
    if name == "scatter":
        return draw(speed_against_memory(answer.candidates, cluster, answer.recommended), width)
    if name == "time":
        return draw(time_bars(plans, chosen=answer.shown), width)
    bars = host_bars if name == "ram" else memory_bars
    return draw(bars(plans, cluster, chosen=answer.shown), width)


def scaling(request: str) -> str:
    """Return speed and memory against sequence length, micro batch and GPUs, for a request of `answer`; "" if nothing
    fits. A separate request, because it asks twenty more questions."""
    asked = json.loads(request)
    recommendation = predicted(state_question(asked["state"]))
    question, chosen = recommendation.question, recommendation.recommended
    series = () if chosen is None else build_scaling(question, chosen)
    width = min(max(int(asked["width"]), NARROW), WIDE)
    charts = [series_chart(each, question.cluster) for each in series]
    return json.dumps({"part": "scaling", "picture": draw(charts, width) if charts else ""})


def _start(answer: Recommendation) -> dict[str, Any] | None:
    chosen, question = answer.recommended, answer.question
    if chosen is None:
        return None
    workload, plan = question.workload, chosen.plan
    exports = [f"export {setting}" for setting, _ in start_settings(answer, chosen)]
    script = script_lines(question.model, workload, plan, question.cluster, CONFIG_FILE)
    if later := trainer_lines(question.model, workload, plan):
        script += ["", "# once the Trainer is made, before trainer.train():", *later]
    commands = start_commands(answer, chosen, CONFIG_FILE)
    return {
        "config": config_text(plan_config(answer, chosen)),
        "script": "\n".join(script),
        "commands": {name: "\n".join([*exports, *lines]) for name, lines in commands.items()},
    }


def judge(request: str) -> str:
    """Return the lint findings of `{"config": text, "state": {...} or null}`; a state supplies model, GPUs and
    length."""
    asked = json.loads(request)
    try:
        report = _linted(asked["config"], asked["state"])
    except DsAdviseError as error:
        return json.dumps(_error(error))
    counts = {name: report.count(name) for name in ("error", "warning", "advice")}
    found = [f"{number} {name}{'s' * (number > 1 and name != 'advice')}" for name, number in counts.items() if number]
    reader = "the Trainer or accelerate" if report.framework == "hf" else "plain DeepSpeed"
    findings = [
        {
            "severity": finding.severity,
            "place": f"{finding.code} · line {finding.line} · {'.'.join(finding.path)}".removesuffix(" · "),
            "excerpt": "\n".join(finding.excerpt(report.document.text, _EXCERPT_COLUMNS)),
            "what": _sentence(finding.sentence, capital=False),
            "why": _sentence(f"why: {finding.why}"),
            "fix": _sentence(f"fix: {finding.fix}"),
        }
        for finding in report.findings
    ]
    basis = f"By the sources of DeepSpeed {report.facts.version}, read by {reader}."
    title = ", ".join(found) or "Nothing found"
    return json.dumps({"part": "lint", "title": title, "basis": basis, "findings": findings})


def _linted(text: str, state: State | None) -> LintReport:
    # Imported here: in a browser it would delay the first answer.
    from ...validate.lint import lint, load_facts, read_document
    from ..answer.lint_file import lint_settings

    document = read_document(text.encode(), name="the pasted text")
    settings: dict[str, Any] = {}
    if state is not None:
        length = state.get("seq-len", "")
        settings = lint_settings(
            document.value,
            model=state_model(state),
            gpus=state["gpus"],
            ram=state.get("ram") or None,
            seq_len=int(length) if length.isdigit() else None,
        )
    return lint(document, facts=load_facts(), **settings)


def _error(error: DsAdviseError) -> dict[str, str]:
    reason = f"{error.what}: {error.why}" if error.why else error.what
    return {"part": "error", "sentence": " ".join(filter(None, (_sentence(reason), _sentence(error.fix))))}


def _sentence(text: str, *, capital: bool = True) -> str:
    first = text[:1].upper() if capital else text[:1]
    return f"{first}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}" if text else ""


REQUESTS: Mapping[str, Callable[[str], Iterator[str]]] = {
    "choices": lambda _request: iter((choices(),)),
    "answer": answer,
    "scaling": lambda request: iter((scaling(request),)),
    "judge": lambda request: iter((judge(request),)),
}
"""Functions by the name of the request; each yields JSON texts."""
