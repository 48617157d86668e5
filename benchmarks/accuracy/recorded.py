"""Figures of accuracy that docs/ states elsewhere, from the tables that longer benchmarks wrote there."""

from __future__ import annotations

import re

from ..document import written
from ..numbers import FROM, spaced, table

_CLOSED_FORM = "dry_run/analytic_vs_dry_run"
_SCHEDULE = "dry_run/schedule_vs_closed_form"
_ON_CPU = "dry_run/schedule_on_cpu"
_QUESTIONS = "search/question_grid"
_TRANSFER = "probes/transfer"
_CLIMB = "probes/climb"


def figures() -> dict[str, dict[str, str]]:
    """Groups of docs/numbers.json."""
    return {
        "closed_form": {FROM: f"benchmarks/{_CLOSED_FORM}.py", **_closed_form()},
        "closed_form_time": {FROM: f"benchmarks/{_SCHEDULE}.py", **_closed_form_time()},
        "cpu_steps": {FROM: f"benchmarks/{_ON_CPU}.py", **_cpu_steps()},
        "question_grid": {FROM: f"benchmarks/{_QUESTIONS}.py", **_question_grid()},
        "transfer": {FROM: f"benchmarks/{_TRANSFER}.py", **_transfer()},
        "climb": {FROM: f"benchmarks/{_CLIMB}.py", **_climb()},
    }


def _closed_form() -> dict[str, str]:
    rows = {name: cells for name, *cells in table("closed-form.md", _CLOSED_FORM)}
    plans, of = _numbers("closed-form.md", _CLOSED_FORM, r"^(\d+) of (\d+) cases, ")
    allocated, reserved, host, nvme = (rows[name] for name in ("allocated", "reserved", "host", "nvme"))
    return {
        "plans": plans,
        "of": of,
        "mean": spaced(allocated[1]),
        "worst": _worst(allocated),
        "reserved_below": spaced(reserved[2].lstrip("-")),
        "offload": host[0],
        "host_worst": _worst(host),
        "nvme_worst": _worst(nvme),
    }


def _closed_form_time() -> dict[str, str]:
    (plans, mean, worst), *_ = (cells[1:4] for cells in table("closed-form.md", _SCHEDULE) if cells[0] == "all")
    return {"plans": plans, "mean": spaced(mean), "worst": spaced(worst.lstrip("+-"))}


def _cpu_steps() -> dict[str, str]:
    *plans, middle, worst = table("dry-run.md", _ON_CPU)[1:]
    return {"plans": str(len(plans)), "median": spaced(middle[5]), "worst": spaced(worst[5])}


def _question_grid() -> dict[str, str]:
    sentence = r"^(\d+) questions: .* and (\d+) of .* nothing fits in (\d+) of them"
    questions, chosen, only = _numbers("question-grid.md", _QUESTIONS, sentence)
    return {"questions": questions, "with_feature": chosen, "only_with_feature": only}


def _transfer() -> dict[str, str]:
    rows = table("probe.md", _TRANSFER)[1:]
    after = sorted((cells[5] for cells in rows), key=lambda cell: int(cell.strip("%")))
    return {
        "models": str(len(rows)),
        "plans": str(sum(int(cells[1]) for cells in rows)),
        "least": after[0].strip("%"),
        "most": spaced(after[-1]),
    }


def _climb() -> dict[str, str]:
    limits, runs, all_runs = _numbers("probe.md", _CLIMB, r"^(\d+) pairs: (\d+) runs in place of (\d+)")
    regrets = [float(cells[-1].strip("%")) for cells in table("probe.md", _CLIMB)[1:]]
    return {"limits": limits, "runs": runs, "all_runs": all_runs, "regret": f"{max(regrets)} %"}


def _numbers(page: str, script: str, sentence: str) -> tuple[str, ...]:
    """The groups of a sentence that the script wrote."""
    found = re.search(sentence, written(page, script), re.MULTILINE)
    assert found is not None, f"docs/{page} lacks the sentence {sentence}"
    return found.groups()


def _worst(cells: list[str]) -> str:
    """The larger of the lowest and the highest error."""
    return f"{max(abs(float(cell.strip('%'))) for cell in cells[2:4]):.1f} %"
