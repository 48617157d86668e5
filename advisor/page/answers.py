"""What the page asks, and the answers, as JSON texts: the one door between the browser and the advice.

The worker of a static page calls these functions under Pyodide, `ds-advise page` behind its local server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...estimators.errors import DsAdviseError
from ...estimators.hardware.gpus import gpus
from ...estimators.models import catalogue
from ..advise import predicted
from ..answer.recommendation import Change, Recommendation
from ..answer.what_if import changes_tried
from ..html_report.palette import dark_rules
from .options import OPTIONS, State, command_of, default_of, model_of, options_in, question_of, words_of
from .view import COLUMNS, PICTURES, answer_view, json_text, picture

if TYPE_CHECKING:
    from ...validate.lint import LintReport

MEMORY_SIZES_GB = (8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192)
"""GPUs that are named by their memory alone."""


def choices() -> str:
    """What the page offers to choose from, and the rules that redraw pictures on a dark screen."""
    return json.dumps(
        {
            "version": __version__,
            "models": catalogue.names(),
            "gpus": [*(f"{size}GB" for size in MEMORY_SIZES_GB), *(gpu.name.replace(" ", "-") for gpu in gpus())],
            "options": {name: list(words_of(option)) for name, option in OPTIONS.items()},
            "defaults": {name: default_of(option) for name, option in OPTIONS.items()},
            "columns": list(COLUMNS.values()),
            "dark_rules": dark_rules(),
        }
    )


def answer(request: str) -> Iterator[str]:
    """The answer to `{"state": {...}, "picture": name, "width": pixels}` in parts, each worth showing at once.

    "answer" is everything but what would change it, with the one picture that is looked at; "pictures" are the others;
    "pause" says nothing and lets a caller stop who has a newer question; "whole" has the changes and the answer as
    `ds-advise --json` prints it. "error" stands alone: the question cannot be answered, and why.
    """
    asked = json.loads(request)
    state, width = asked["state"], int(asked["width"])
    try:
        recommendation = predicted(question_of(state))
    except DsAdviseError as error:
        yield json.dumps(_error(error))
        return
    first = {asked["picture"]: picture(recommendation, asked["picture"], width)}
    yield json.dumps({"part": "answer", "command": command_of(state), **answer_view(recommendation), "pictures": first})
    others = {name: picture(recommendation, name, width) for name in PICTURES if name not in first}
    yield json.dumps({"part": "pictures", "pictures": others})
    found: list[Change] = []
    for change in changes_tried(recommendation.question, recommendation.ladder, recommendation.recommended):
        found += [change] if change is not None else []
        yield '{"part": "pause"}'
    yield json.dumps(_whole(replace(recommendation, changes=tuple(found))))


def judge(request: str) -> str:
    """Lint of `{"config": text, "state": {...} or null}`: findings; with a state for its model, GPUs and length."""
    asked = json.loads(request)
    try:
        return json.dumps(_lint_view(_linted(asked["config"], asked["state"])))
    except DsAdviseError as error:
        return json.dumps(_error(error))


def _linted(text: str, state: State | None) -> LintReport:
    # Imported here: in a browser it would delay the first answer.
    from ...validate.lint import lint, load_facts, read_document
    from ..question.lint_file import lint_settings

    document = read_document(text.encode(), name="the pasted text")
    settings: dict[str, Any] = {}
    if state is not None:
        length = state.get("seq-len", "")
        settings = lint_settings(
            document.root.value,
            model=model_of(state),
            gpus=state["gpus"],
            ram=state.get("ram") or None,
            seq_len=int(length) if length.isdigit() else None,
        )
    return lint(document, facts=load_facts(), **settings)


def _lint_view(report: LintReport) -> dict[str, Any]:
    counts = {name: report.count(name) for name in ("error", "warning", "advice")}
    told = [f"{number} {name}{'s' * (number > 1 and name != 'advice')}" for name, number in counts.items() if number]
    reader = "the Trainer or accelerate" if report.framework == "hf" else "plain DeepSpeed"
    return {
        "part": "lint",
        "title": ", ".join(told) or "Nothing found",
        "basis": f"By the sources of DeepSpeed {report.facts.version}, read by {reader}.",
        "findings": [
            {
                "severity": finding.severity,
                "place": f"{finding.code} · line {finding.line} · {'.'.join(finding.path)}".removesuffix(" · "),
                "what": _sentence(finding.what),
                "why": _sentence(finding.why),
                "fix": _sentence(finding.fix),
            }
            for finding in report.findings
        ],
    }


def _whole(recommendation: Recommendation) -> dict[str, Any]:
    return {
        "part": "whole",
        "changes": [
            {"flags": change.flags, "outcome": change.outcome, "options": options_in(change.flags)}
            for change in recommendation.changes
        ],
        "json": json_text(recommendation),
    }


def _error(error: DsAdviseError) -> dict[str, str]:
    """A question that cannot be answered, as one sentence or two."""
    reason = f"{error.what}: {error.why}" if error.why else error.what
    return {"part": "error", "sentence": " ".join(filter(None, (_sentence(reason), _sentence(error.fix))))}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}" if text else ""


REQUESTS: Mapping[str, Callable[[str], Iterator[str]]] = {
    "choices": lambda _request: iter((choices(),)),
    "answer": answer,
    "judge": lambda request: iter((judge(request),)),
}
"""What may be asked, by name; each yields JSON texts."""
