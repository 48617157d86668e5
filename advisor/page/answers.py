"""Requests of the page and their answers, as JSON texts; the answer itself is the HTML of its document. The worker of a
static page calls these functions under Pyodide; `ds-advise page` calls them in its local server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...ds_configs.job import JOB_KINDS
from ...estimators.errors import DsAdviseError
from ...estimators.hardware import gpus
from ...estimators.json_form import to_json
from ...estimators.models import catalogue
from ..advise import predicted
from ..answer.advice import build_advice
from ..answer.jobs import build_jobs
from ..answer.recommendation import Recommendation
from ..answer.scaling import build_scaling
from ..answer.verdict import answer_verdict
from ..document.blocks import Block, Chart, Code, Commands, Folded, Sentence, sections
from ..document.charts import Drawing
from ..document.translation import translated
from ..html_report.canvas import NARROW, WIDE, dark_rules, joined
from ..html_report.charts import draw
from ..html_report.report import draw_blocks, draw_section
from ..render.answer import answer_document, change_blocks
from ..render.plans import best_plans, host_bars, memory_bars, series_chart, speed_against_memory, time_bars
from ..search.candidate import LIKELY
from ..text.labels import device_label
from ..text.language import Language, translate
from ..text.language import catalogue as translations
from ..text.units import gib, rate
from .options import OPTIONS, State, default_text, option_words, options_in, state_command, state_model, state_question

if TYPE_CHECKING:
    from ...validate.lint import LintReport

CONFIG_FILE = "ds_config.json"

FIRST = {"model": "Qwen2.5-14B", "gpus": "2x32GB"}
"""The question of a page that is opened without one; a build stores the intermediate results of its answer."""

PICTURES = ("memory", "ram", "time", "scatter")
"""Charts of each answer: memory and host RAM of every strategy's best plan, time of the plans that may fit, and all
plans."""

_EXCERPT_COLUMNS = 60
"""Columns per line of a configuration excerpt; a phone shows 40 and scrolls."""

MEMORY_SIZES_GB = (8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192)
"""Memory sizes of GPUs that are offered by memory alone."""


def choices(request: str = "{}") -> str:
    """Return the values to choose from, the style rules of charts on a dark screen, and the texts of the page in the
    language of the request."""
    language = asked_language(json.loads(request))
    known = {} if language == "en" else translations(language)
    return json.dumps(
        {
            "version": __version__,
            "models": catalogue.names(),
            "gpus": [*(f"{size}GB" for size in MEMORY_SIZES_GB), *(gpu.name.replace(" ", "-") for gpu in gpus())],
            "options": {name: list(option_words(option)) for name, option in OPTIONS.items()},
            "defaults": {name: default_text(option) for name, option in OPTIONS.items()},
            "texts": {text: translation for text, translation in known.items() if "{" not in text},
            "dark_rules": dark_rules(),
        }
    )


def asked_language(asked: Mapping[str, Any]) -> Language:
    """Return the language of a request."""
    return "zh" if asked.get("language") == "zh" else "en"


def answer(request: str) -> Iterator[str]:
    """Yield the parts of the answer to `{"state": {...}, "picture": name, "width": pixels, "language": "en"}`; each
    part is shown at once.

    "answer" holds everything but the changes as HTML, with the named chart; "pictures" holds the other charts; "pause"
    is empty, and a caller with a newer question stops there; "whole" holds the changes, the job files, and the answer
    as `ds-advise --json` prints it. "error" comes alone, with the reason why there is no answer.
    """
    asked = json.loads(request)
    language, draw_picture = asked_language(asked), partial(picture, width=int(asked["width"]))
    try:
        found = predicted(state_question(asked["state"]))
    except DsAdviseError as error:
        yield json.dumps(_error(error))
        return
    first = {asked["picture"]: draw_picture(found, asked["picture"], language=language)}
    command: list[Block] = [Sentence("The same question in a terminal:"), Commands([state_command(asked["state"])])]
    yield json.dumps(
        {
            "part": "answer",
            **_shown(found, language),
            "command": draw_blocks(translated(command, language)),
            "pictures": first,
        }
    )
    others = {name: draw_picture(found, name, language=language) for name in PICTURES if name not in first}
    yield json.dumps({"part": "pictures", "pictures": others})
    while found.changes.try_next():
        yield '{"part": "pause"}'
    _, *changed = sections(translated([*change_blocks(found, details=True)], language))
    yield json.dumps(
        {
            "part": "whole",
            "changes": joined(*(draw_section(heading, blocks) for heading, blocks in changed)),
            "options": {change.flags: options_in(change.flags) for change in found.changes},
            "files": draw_blocks(translated([*_files(found)], language)),
        }
    )


def _shown(answer: Recommendation, language: Language) -> dict[str, Any]:
    """Return the document's parts as HTML; charts are drawn by `picture`."""
    question, chosen = answer.question, answer.recommended
    document = translated(answer_document(answer, CONFIG_FILE, details=True, changes=False), language)
    (_, lead), *others = sections(block for block in document.blocks if not isinstance(block, Chart))
    used, figures = {"seq-len": str(question.workload.seq_len)}, ""  # options that the advice may choose
    if chosen is not None:
        used["micro-batch"] = str(chosen.plan.micro_batch_size)
        sizes = f"{gib(chosen.device_bytes)} of {gib(question.cluster.gpu.memory_bytes)} GiB"
        figures = f"{rate(chosen.tokens_per_s)} {question.model.unit}/s · {sizes} per {device_label(question.cluster)}"
    return {
        "used": used,
        "verdict": document.verdict,
        "tone": document.tone,
        "subject": document.subject,
        "short": translate(answer_verdict(answer).short, language),
        "figures": translate(figures, language),
        "lead": draw_blocks(lead),
        "sections": joined(*(draw_section(heading, blocks) for heading, blocks in others)),
    }


def _files(answer: Recommendation) -> Iterator[Block]:
    """Yield the job files, and the answer as JSON."""
    jobs = list[Block]()
    for kind in JOB_KINDS:
        with suppress(DsAdviseError, ImportError):  # SkyPilot has no name for some GPUs, a static page no PyYAML
            for file in build_jobs(answer, (kind,), CONFIG_FILE):
                jobs += [Sentence(f"{file.title}:"), Code(file.text.rstrip("\n").split("\n"), file.path.name)]
    yield Folded("Job files", jobs)
    form = json.dumps(to_json(build_advice(answer)), indent=2)
    yield Folded("The answer as JSON", [Code(form.splitlines(), "answer.json")])


def picture(answer: Recommendation, name: str, *, width: int, language: Language = "en") -> str:
    """Return one of `PICTURES` as SVG, at most `width` pixels wide; "" if there is nothing to draw."""
    cluster, width = answer.question.cluster, min(max(width, NARROW), WIDE)
    plans = best_plans(answer)
    if name == "time":  # the time of a plan that cannot fit is of no use
        plans = {strategy: plan for strategy, plan in plans.items() if plan.fit.probability >= LIKELY}
    if not plans:
        return ""
    drawing: Drawing
    if name == "scatter":
        drawing = speed_against_memory(answer.candidates, cluster, answer.recommended)
    elif name == "time":
        drawing = time_bars(plans, chosen=answer.shown)
    else:
        drawing = (host_bars if name == "ram" else memory_bars)(plans, cluster, chosen=answer.shown)
    return draw(translated(drawing, language), width)


def scaling(request: str) -> str:
    """Return speed and memory against sequence length, micro batch and GPUs, for a request of `answer`; "" if nothing
    fits. A separate request, because it asks twenty more questions."""
    asked = json.loads(request)
    recommendation = predicted(state_question(asked["state"]))
    question, chosen = recommendation.question, recommendation.recommended
    series = () if chosen is None else build_scaling(question, chosen)
    width = min(max(int(asked["width"]), NARROW), WIDE)
    charts = translated([series_chart(each, question.cluster) for each in series], asked_language(asked))
    return json.dumps({"part": "scaling", "picture": draw(charts, width) if charts else ""})


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
    "choices": lambda request: iter((choices(request),)),
    "answer": answer,
    "scaling": lambda request: iter((scaling(request),)),
    "judge": lambda request: iter((judge(request),)),
}
"""Functions by the name of the request; each yields JSON texts."""
