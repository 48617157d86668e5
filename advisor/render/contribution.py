"""A contribution as a document: the measured next to the predicted figures, and the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...ds_configs.files import config_text
from ...estimators.json_form import to_json
from ..document import blocks as doc
from ..document.blocks import Figure, Row, Table
from ..text.units import gib, rate, seconds
from ..verification.contribution import ContributedRun, Contribution, RunFigures

_FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "allocated_bytes": ("allocated GiB", gib),
    "reserved_bytes": ("reserved GiB", gib),
    "device_bytes": ("device GiB", gib),
    "host_bytes": ("host GiB", gib),
    "step_s": ("step", seconds),
}

FORM, FORM_FILE = "Measured run", ".github/ISSUE_TEMPLATE/measured-run.yml"
"""Name of the issue form that takes the JSON object, and its file in the repository."""


def contribution_json(contribution: Contribution) -> str:
    """The text of the file."""
    return config_text(to_json(contribution))


def contribution_document(contribution: Contribution, *, file: str = "") -> doc.Document:
    """Return the figures of each run, and the rows unless they were written to a file."""
    blocks: list[doc.Block] = []
    for run in contribution.runs:
        blocks += [doc.Sentence(_title(run), "bold"), Table(["", "measured", "predicted", "error"], list(_rows(run)))]
        if _is_refuted(run):
            words = "The prediction is refuted: it fits the card, and memory ran out."
            blocks.append(doc.Sentence(words, "bad"))
        blocks.append(doc.Gap())
    if not file:
        blocks += [doc.Verbatim(contribution_json(contribution).splitlines()), doc.Gap()]
    whole = f"{file} has the rows." if file else "This is all. -o FILE writes it."
    takes = f"The form {FORM} for issues takes them ({FORM_FILE} in the repository of ds-advise)."
    blocks.append(doc.Sentence(f"{whole} Nothing is sent. {takes}", "dim"))
    return doc.Document(subject="Measured runs", verdict="", tone=None, blocks=blocks, data=contribution)


def _is_refuted(run: ContributedRun) -> bool:
    """Whether memory ran out though the prediction fits."""
    needed = run.predicted.device_bytes
    return run.out_of_memory and needed is not None and needed <= run.cluster.gpu.memory_bytes


def _title(run: ContributedRun) -> str:
    return f"{run.model}, {run.trained.method}, {run.gpus}, {run.trained.seq_len} tokens, {run.kind} of {run.date}"


def _rows(run: ContributedRun) -> Iterator[Row]:
    if run.out_of_memory and (needed := run.predicted.device_bytes) is not None:
        verdict = "refuted" if _is_refuted(run) else "agrees"
        yield Row([_FIGURES["device_bytes"][0], Figure("out of memory"), Figure(gib(needed), needed), verdict])
        memory = run.cluster.gpu.memory_bytes
        yield Row(["of the card, GiB", Figure(gib(memory), memory)])
    for name, (title, write) in _FIGURES.items():
        measured, predicted = (getattr(each, name) for each in (run.measured, run.predicted))
        if measured is not None and predicted is not None:
            yield _row(title, write, measured, predicted)
    measured, predicted = (_tokens_per_s(each) for each in (run.measured, run.predicted))
    if measured is not None and predicted is not None:
        yield _row("tokens/s", rate, measured, predicted)


def _row(title: str, write: Callable[[Any], str], measured: float, predicted: float) -> Row:
    error = predicted / measured - 1
    figures = (Figure(write(each), each) for each in (measured, predicted))
    return Row([title, *figures, Figure(f"{error:+.1%}", error)])


def _tokens_per_s(figures: RunFigures) -> float | None:
    if figures.step_s is None or figures.tokens_per_step is None:
        return None
    return figures.tokens_per_step / figures.step_s
