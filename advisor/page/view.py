"""What the page shows of an answer: every text and every picture, so that the browser only puts them in place."""

from __future__ import annotations

import json
from typing import Any

from ...ds_configs.training_script import script_lines, trainer_lines
from ...ds_configs.write import config_text
from ...estimators.json_form import to_json
from ..answer.advice import advice_of
from ..answer.reasons import gain_of_risk, time_shares
from ..answer.recommendation import Recommendation, closest
from ..answer.start import recommended_config, start_commands, start_settings
from ..html_report.bar_charts import draw_stacked_bars
from ..html_report.canvas import NARROW, WIDE
from ..html_report.line_charts import draw_scatter
from ..html_report.plans import memory_bars, speed_against_memory, time_bars
from ..search.candidate import LIKELY, MOST_HOST_BYTES, LadderStep, chance, fits_sentence
from ..text.labels import batch_label, checkpointing_label, cluster_title, device_label, method_title, plan_title
from ..text.units import count, gib, rate, rough_rate, seconds

CONFIG_FILE = "ds_config.json"

PICTURES = ("memory", "time", "scatter")
"""Memory of every rung's best plan, time of those that may fit, and both of all plans."""

COLUMNS = ("rung", "batch", "checkpointing", "GPU GiB", "RAM GiB", "NVMe GiB", "tokens/s", "verdict")


def answer_view(answer: Recommendation) -> dict[str, Any]:
    """The answer without pictures and without what would change it."""
    return {
        "used": _used(answer),
        "verdict": _verdict(answer),
        "subject": _subject(answer),
        "figures": _figures(answer),
        "table": [_row(step, step.candidate is answer.recommended) for step in answer.ladder],
        "why": _why(answer),
        "start": _start(answer),
    }


def json_text(answer: Recommendation) -> str:
    """The answer as `ds-advise --json --no-write --no-deepspeed-estimate` prints it."""
    return json.dumps(to_json(advice_of(answer)), indent=2)


def _used(answer: Recommendation) -> dict[str, str]:
    """What was taken for options that may be left to the advice."""
    chosen = answer.recommended
    found = {"seq-len": str(answer.question.workload.seq_len)}
    return found if chosen is None else found | {"micro-batch": str(chosen.plan.micro_batch_size)}


def _verdict(answer: Recommendation) -> dict[str, Any]:
    """The sentence that answers the question, how good the news is, and what one must know beside it."""
    chosen, risky = answer.recommended, answer.try_first
    if chosen is not None:
        plan, sure = chosen.plan, chosen.fit.fits
        return {
            "tone": "good" if sure else "unsure",
            "title": fits_sentence(plan_title(plan), chosen.fit),
            "short": fits_sentence(plan.rung, chosen.fit).removesuffix("."),
            "notes": [*([gain_of_risk(answer.question, risky, chosen)] if risky else []), *answer.doubts],
        }
    if risky is not None:
        return {
            "tone": "unsure",
            "title": "Nothing is sure to fit.",
            "short": "Nothing is sure to fit",
            "notes": [gain_of_risk(answer.question, risky, None)],
        }
    missed = closest(answer.ladder)
    notes = []
    if missed is not None:
        offer, device = gib(answer.question.cluster.gpu.memory_bytes), device_label(answer.question.cluster)
        notes = [f"The closest, {missed.rung}, would take {gib(missed.device_bytes)} of {offer} GiB per {device}."]
        have, need = answer.question.cluster.host_memory_bytes_per_node, missed.memory.host_bytes_per_node
        if need > (have or MOST_HOST_BYTES):
            notes.append(f"It needs {gib(need)} of {gib(have or MOST_HOST_BYTES)} GiB of RAM per node.")
        if missed.fit.limit == "nvme":
            notes.append(f"It needs {gib(missed.memory.nvme_bytes_per_node)} GiB of NVMe per node.")
    return {"tone": "bad", "title": "Nothing fits.", "short": "Nothing fits", "notes": notes}


def _subject(answer: Recommendation) -> str:
    question = answer.question
    model, workload, trained = question.model, question.workload, question.trainable_parameters
    size = f"{count(model.parameters)} parameters" + (
        f", {count(trained)} trained" if trained != model.parameters else ""
    )
    return " · ".join(
        (
            model.name,
            size,
            method_title(workload),
            workload.precision,
            workload.optimizer,
            f"sequence {workload.seq_len}",
            cluster_title(question.cluster),
        )
    )


def _figures(answer: Recommendation) -> list[dict[str, Any]]:
    """The four figures of the recommended plan; `share` is how much of what there is it takes."""
    chosen, cluster = answer.recommended, answer.question.cluster
    if chosen is None:
        return []
    plan, memory, ranks = chosen.plan, chosen.memory, cluster.world_size
    between, device = chosen.time.tokens_per_s_range, device_label(cluster)
    samples = plan.samples_per_step(ranks)
    have = cluster.host_memory_bytes_per_node
    nvme = f"{gib(memory.nvme_bytes_per_node)} GiB of NVMe" if memory.nvme_bytes_per_node else ""
    return [
        {
            "name": "speed",
            "title": "Speed",
            "value": rate(chosen.tokens_per_s),
            "unit": "tokens/s",
            "note": f"{rough_rate(between[0])} to {rough_rate(between[1])}" if between else "",
            "more": f"{rate(chosen.tokens_per_s / ranks)} per {device}" if ranks > 1 else "",
        },
        {
            "name": "gpu",
            "title": f"Memory per {device}",
            "value": gib(chosen.device_bytes),
            "unit": f"of {gib(cluster.gpu.memory_bytes)} GiB",
            "share": chosen.device_bytes / cluster.gpu.memory_bytes,
            "note": f"fits with {chance(chosen.fit.probability)}",
        },
        {
            "name": "ram",
            "title": "Host RAM" + (" per node" if cluster.nodes > 1 else ""),
            "value": gib(memory.host_bytes_per_node),
            "unit": f"of {gib(have)} GiB" if have is not None else "GiB",
            "share": None if have is None else memory.host_bytes_per_node / have,
            "note": nvme or ("" if have is not None else "not checked: say how much there is"),
        },
        {
            "name": "batch",
            "title": "Batch",
            "value": f"{samples:,}",
            "unit": f"sample{'s' * (samples != 1)} a step",
            "note": f"micro batch {plan.micro_batch_size}"
            + (f" x {plan.gradient_accumulation_steps} steps" if plan.gradient_accumulation_steps > 1 else "")
            + (f", shared by {plan.ranks_per_sample}" if plan.ranks_per_sample > 1 else ""),
            "more": f"checkpointing {checkpointing_label(plan)}",
        },
    ]


def _row(step: LadderStep, chosen: bool) -> dict[str, Any]:
    """A rung's row: its cells as texts, in the order of `COLUMNS`; "" where there is nothing to say."""
    candidate = step.candidate
    if candidate is None:
        return {"cells": [step.rung, *[""] * 6, step.reason], "chosen": False, "fits": False}
    plan, memory = candidate.plan, candidate.memory
    known = candidate.fit.gpu_likely_suffices
    return {
        "cells": [
            step.rung,
            batch_label(plan),
            checkpointing_label(plan),
            gib(candidate.device_bytes),
            gib(memory.host_bytes_per_node),
            gib(memory.nvme_bytes_per_node) if memory.nvme_bytes_per_node else "",
            rate(candidate.tokens_per_s) if known else "",
            candidate.fit.reason,
        ],
        "chosen": chosen,
        "fits": step.fits,
    }


def picture(answer: Recommendation, name: str, width: int) -> str:
    """One of `PICTURES` as SVG; "" where there is nothing to draw. width: pixels that there are for it."""
    cluster, chosen = answer.question.cluster, answer.recommended
    limit, device = cluster.gpu.memory_bytes, device_label(cluster)
    width = min(max(width, NARROW), WIDE)
    shown = [step.candidate for step in answer.ladder if step.candidate is not None]
    if name == "scatter":
        shown = list(answer.candidates)
    elif name == "time":  # of what cannot fit, nobody asks how long it takes
        shown = [candidate for candidate in shown if candidate.fit.probability >= LIKELY]
    if not shown:
        return ""
    if name == "scatter":
        return str(draw_scatter(speed_against_memory(shown, limit, chosen=chosen, device=device), width))
    plans = {candidate.rung: candidate for candidate in shown}
    if name == "memory":
        return str(draw_stacked_bars(memory_bars(plans, limit, chosen=chosen, device=device), width))
    return str(draw_stacked_bars(time_bars(plans, chosen=chosen), width))


def _why(answer: Recommendation) -> list[str]:
    """Where the time goes, the reasons, and what the figures rest on."""
    chosen = answer.recommended
    where = []
    if chosen is not None:
        where = [f"Where the {seconds(chosen.time.step_s)} of a step go: {time_shares(chosen.time, least=0.01)}."]
    assumed = [f"Assumed: {'; '.join(answer.assumptions)}."] if answer.assumptions else []
    return [*where, *answer.reasons, *assumed]


def _start(answer: Recommendation) -> dict[str, Any] | None:
    """The configuration and what starts a training with it; None where nothing fits."""
    config, chosen, question = recommended_config(answer), answer.recommended, answer.question
    if config is None or chosen is None:
        return None
    workload, plan, cluster = question.workload, chosen.plan, question.cluster
    exports = [f"export {setting}" for setting, _ in start_settings(answer, chosen)]
    script = script_lines(question.model, workload, plan, cluster, CONFIG_FILE)
    if later := trainer_lines(question.model, workload, plan):
        script += ["", "# once the Trainer is made, before trainer.train():", *later]
    commands = start_commands(answer, chosen, CONFIG_FILE)
    return {
        "config": config_text(config),
        "script": "\n".join(script),
        "commands": {name: "\n".join([*exports, *lines]) for name, lines in commands.items()},
    }
