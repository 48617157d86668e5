"""Requests of the page and their answers, as JSON texts; the answer itself is the HTML of its document. The worker of a
static page calls these functions under Pyodide; `ds-advise page` calls them in its local server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...ds_configs.files import CONFIG_NAME
from ...ds_configs.job import JOB_KINDS
from ...ds_configs.record import RECORD_KEY
from ...estimators.errors import ClusterError, DsAdviseError, UnknownModelError
from ...estimators.gpu_catalogue import gpus
from ...estimators.json_form import to_json
from ...estimators.models import catalogue
from ..advise import answer as answer_question
from ..answer.advice import build_advice
from ..answer.jobs import build_jobs
from ..answer.recommendation import Recommendation
from ..answer.verdict import answer_verdict
from ..document.blocks import Block, Code, Commands, Folded, Sentence, charts, sections
from ..document.translation import translated
from ..html_report.canvas import dark_rules, joined
from ..html_report.report import draw_blocks, draw_section
from ..question.gpu_text import MOST_GPUS_PER_NODE, MOST_NODES
from ..render.answer import answer_document, change_blocks, memory_and_time_blocks
from ..render.answer_charts import chart_blocks, scaling_blocks, source_blocks
from ..text.labels import device_label
from ..text.language import Language, translate
from ..text.language import catalogue as translations
from ..text.units import capitalised, ended, gib, rate
from .options import (
    OPTIONS,
    PASTED_TEXT,
    OfTerminalError,
    State,
    described_options,
    error_offers,
    error_options,
    file_options,
    given_counts,
    grouped_options,
    idle_options,
    options_in,
    page_fix,
    read_pasted,
    state_command,
    state_question,
    without_counts,
    without_waiting,
)

if TYPE_CHECKING:
    from ..answer.lint_file import Linted


FIRST = {"model": "Qwen2.5-14B", "gpus": "2x32GB"}
"""The question of a page that is opened without one; a build stores the intermediate results of its answer."""

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
            "options": described_options(),
            "most": {"count": MOST_GPUS_PER_NODE, "nodes": MOST_NODES},
            "groups": grouped_options(),
            "texts": {text: translation for text, translation in known.items() if "{" not in text},
            "dark_rules": dark_rules(),
        }
    )


def asked_language(asked: Mapping[str, Any]) -> Language:
    """Return the language of a request."""
    return "zh" if asked.get("language") == "zh" else "en"


def answer(request: str) -> Iterator[str]:
    """Yield the parts of the answer to `{"state": {...}, "language": "en"}` as HTML of its document; each part is shown
    at once.

    "answer" holds everything but charts and changes; "charts" holds a section for each chart; "pause" is empty, and a
    caller with a newer question stops there; "whole" holds the changes, the scaling charts, the source of every figure,
    the job files, and the answer as `ds-advise --json` prints it. "error" comes alone, with the reason why there is no
    answer.
    """
    asked = json.loads(request)
    language = asked_language(asked)
    try:
        state, warnings = without_waiting(asked["state"])
        found = answer_question(state_question(state, warnings.append))
    except DsAdviseError as error:
        yield json.dumps(_error(error, asked["state"]))
        return
    line = state_command(state)
    command: list[Block] = [Sentence("The same question in a terminal:"), Commands([line])]
    yield json.dumps(
        {
            "part": "answer",
            **_shown(found, language),
            "warnings": draw_blocks(translated([*map(Sentence, map(ended, warnings))], language)),
            "idle": idle_options(found.question),
            "command": draw_blocks(translated(command, language)),
            "line": line,
        }
    )
    drawn = [*memory_and_time_blocks(found, charts=True), *chart_blocks(found)]
    yield json.dumps({"part": "charts", "charts": _drawn(drawn, language)})
    while found.changes.try_next():
        yield '{"part": "pause"}'
    yield json.dumps(
        {
            "part": "whole",
            "changes": _drawn(change_blocks(found, details=True), language),
            "options": {change.flags: asks for change in found.changes if (asks := options_in(change.flags))},
            "scaling": _drawn(scaling_blocks(found), language),
            "sources": _drawn(source_blocks(found), language),
            "files": draw_blocks(translated([*_files(found)], language)),
        }
    )


def _drawn(blocks: Iterable[Block], language: Language) -> str:
    """Return the HTML of blocks that begin with a heading, section by section."""
    _, *found = sections(translated([*blocks], language))
    return joined(*(draw_section(heading, body) for heading, body in found))


def _shown(answer: Recommendation, language: Language) -> dict[str, Any]:
    """Return the document without the sections that have a chart."""
    question, chosen = answer.question, answer.recommended
    document = translated(answer_document(answer, CONFIG_NAME, details=True, changes=False), language)
    (_, lead), *others = sections(document.blocks)
    texts = [section for section in others if not any(charts(section[1]))]
    used, figures = _values(answer), ""
    if chosen is None and answer.closest is not None:
        figures = f"{answer.closest.strategy}: {answer.closest.fit.reason}"
    if chosen is not None:
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
        "sections": joined(*(draw_section(heading, blocks) for heading, blocks in texts)),
    }


def _values(answer: Recommendation) -> dict[str, str]:
    """Return the values of fields in plain figures: those that the advice chose, and those that were
    written in another form, such as 8k."""
    question, chosen = answer.question, answer.recommended
    values = {"seq-len": str(question.workload.seq_len), "lora-rank": str(question.workload.lora_rank)}
    if question.workload.global_batch_size is not None:
        values["global-batch"] = str(question.workload.global_batch_size)
    if chosen is not None:
        values["micro-batch"] = str(chosen.plan.micro_batch_size)
    if (ram := question.cluster.host_memory_bytes_per_node) is not None:
        values["ram"] = f"{ram / 2**30:g}GB"
    return values


def _files(answer: Recommendation) -> Iterator[Block]:
    """Yield the job files, and the answer as JSON."""
    jobs = list[Block]()
    for kind in JOB_KINDS:
        with suppress(DsAdviseError, ImportError):  # SkyPilot has no name for some GPUs, a static page no PyYAML
            for file in build_jobs(answer, (kind,), CONFIG_NAME):
                jobs += [Sentence(f"{file.title}:"), Code(file.text.rstrip("\n").split("\n"), file.path.name)]
    yield Folded("Job files", jobs)
    form = json.dumps(to_json(build_advice(answer)), indent=2)
    yield Folded("The answer as JSON", [Code(form.splitlines(), "answer.json")])


def judge(request: str) -> str:
    """Return the lint findings of `{"config": text, "state": {...} or null}` for the question of a state, the corrected
    text, and for advice on comments the text without them; "" for none."""
    asked = json.loads(request)
    try:
        found = _linted(asked["config"], asked["state"])
    except DsAdviseError as error:
        return json.dumps(_error(error))
    # Imported here: in a browser they would delay the first answer.
    from ...validate.lint.config_file import WritePlainJson, apply
    from ...validate.lint.rules_file import KEEPS_COMMENTS
    from ..render.lint import finding_blocks

    report, (after, corrected) = found.report, found.corrected()
    keeps_comments = any(each.fix == KEEPS_COMMENTS for each in report.shown)
    shown = replace(report, findings=tuple(replace(each, fix=page_fix(each.fix)) for each in report.findings))
    blocks = finding_blocks(capitalised(PASTED_TEXT), shown, found.basis, if_assumed=_TO_NAME_THE_READER)
    return json.dumps(
        {
            "part": "lint",
            "findings": draw_blocks(blocks),
            "plain": apply(report.document, [WritePlainJson()])[0] if keeps_comments else "",
            "corrected": after.document.text if corrected else "",
        }
    )


_TO_NAME_THE_READER = 'tick "for the model and machine above", which has the framework'


def _linted(text: str, state: State | None) -> Linted:
    from ..answer.lint_file import lint_for  # imported here: in a browser it would delay the first answer

    document, options = read_pasted(text), {} if state is None else file_options(state)
    if state is not None and RECORD_KEY not in document.value:  # else the record has it
        options.setdefault("framework", OPTIONS["framework"].default)
    return lint_for(document, options, name=PASTED_TEXT)


def _error(error: DsAdviseError, state: State = MappingProxyType({})) -> dict[str, Any]:
    error.fix = page_fix(error.fix)
    if isinstance(error, ClusterError):
        without_counts(error, state.get("gpus", ""))
    sentence = " ".join(ended(capitalised(text)) for text in (error.reason, error.fix) if text)
    return {
        "part": "error",
        "sentence": sentence,
        "names": error_options(error, state),
        "offers": error_offers(error),
        "used": given_counts(state),
        # An error of the terminal too has no command that runs; a model may be known there.
        "line": state_command(state) if isinstance(error, UnknownModelError | OfTerminalError) else "",
    }


REQUESTS: Mapping[str, Callable[[str], Iterator[str]]] = {
    "choices": lambda request: iter((choices(request),)),
    "answer": answer,
    "judge": lambda request: iter((judge(request),)),
}
"""Functions by the name of the request; each yields JSON texts."""

NEEDED: Mapping[str, frozenset[str]] = {
    "choices": frozenset(),
    "answer": frozenset({"state"}),
    "judge": frozenset({"config", "state"}),
}
"""Fields without which a request is no request."""
