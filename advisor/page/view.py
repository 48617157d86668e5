"""The page's texts and pictures of an answer; the browser only puts them in place."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ...ds_configs.training_script import script_lines, trainer_lines
from ...ds_configs.write import config_text
from ...estimators.json_form import to_json
from ..answer.advice import advice_of
from ..answer.recommendation import Recommendation
from ..answer.start import plan_config, start_commands, start_settings
from ..answer.view import view_of
from ..html_report.bar_charts import draw_stacked_bars
from ..html_report.canvas import NARROW, WIDE
from ..html_report.line_charts import draw_scatter
from ..html_report.plans import memory_bars, speed_against_memory, time_bars
from ..search.candidate import LIKELY
from ..text.labels import device_label

CONFIG_FILE = "ds_config.json"

PICTURES = ("memory", "time", "scatter")
"""Memory of every rung's best plan, time of those that may fit, and both of all plans."""

COLUMNS = {
    "rung": "rung",
    "batch": "batch",
    "checkpointing": "checkpointing",
    "gpu_gib": "GPU GiB",
    "ram_gib": "RAM GiB",
    "nvme_gib": "NVMe GiB",
    "tokens_per_s": "tokens/s",
    "verdict": "verdict",
}
"""Titles of the table's columns by field of `LadderRow`."""


def answer_view(answer: Recommendation) -> dict[str, Any]:
    """The answer without pictures and changes."""
    view, chosen = view_of(answer, config_path=CONFIG_FILE, details=True), answer.recommended
    used = {"seq-len": str(answer.question.workload.seq_len)}  # options that may be left to the advice
    if chosen is not None:
        used["micro-batch"] = str(chosen.plan.micro_batch_size)
    assumed = [f"Assumed: {'; '.join(view.assumptions)}."] if view.assumptions else []
    return {
        "used": used,
        "verdict": asdict(view.verdict),
        "subject": " · ".join(view.subject),
        "figures": [asdict(figure) for figure in view.figures],
        "table": [
            {"cells": [getattr(row, name) for name in COLUMNS], "chosen": row.is_chosen, "fits": row.fits}
            for row in view.ladder
        ],
        "why": [text for text in (view.time, *view.reasons, *assumed) if text],
        "start": _start(answer),
    }


def json_text(answer: Recommendation) -> str:
    """The answer as `ds-advise --json --no-write --no-deepspeed-estimate` prints it."""
    return json.dumps(to_json(advice_of(answer)), indent=2)


def picture(answer: Recommendation, name: str, width: int) -> str:
    """One of `PICTURES` as SVG, at most `width` pixels wide; "" where there is nothing to draw."""
    cluster, chosen = answer.question.cluster, answer.recommended
    limit, device, width = cluster.gpu.memory_bytes, device_label(cluster), min(max(width, NARROW), WIDE)
    plans = {step.candidate.rung: step.candidate for step in answer.ladder if step.candidate is not None}
    if name == "time":  # the time of a plan that cannot fit is of no use
        plans = {rung: plan for rung, plan in plans.items() if plan.fit.probability >= LIKELY}
    if not plans:
        return ""
    if name == "scatter":
        return draw_scatter(speed_against_memory(answer.candidates, limit, chosen=chosen, device=device), width)
    if name == "memory":
        return draw_stacked_bars(memory_bars(plans, limit, chosen=chosen, device=device), width)
    return draw_stacked_bars(time_bars(plans, chosen=chosen), width)


def _start(answer: Recommendation) -> dict[str, Any] | None:
    """The configuration, the script's lines and the commands; None where nothing fits."""
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
