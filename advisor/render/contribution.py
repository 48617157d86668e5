"""A contribution as a document: the measured next to the predicted figures, and the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...ds_configs.files import config_text
from ...estimators.json_form import to_json
from ..document import blocks as doc
from ..document.blocks import Figure, Row, Table
from ..text.units import gib, seconds
from ..verification.contribution import ContributedRun, Contribution

_FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "allocated_bytes": ("allocated GiB", gib),
    "reserved_bytes": ("reserved GiB", gib),
    "device_bytes": ("device GiB", gib),
    "host_bytes": ("host GiB", gib),
    "step_s": ("step", seconds),
}

FORM = "Measured run"
"""Name of the issue form that takes the JSON object (.github/ISSUE_TEMPLATE/measured-run.yml)."""


def contribution_json(contribution: Contribution) -> str:
    """The text of the file."""
    return config_text(to_json(contribution))


def contribution_document(contribution: Contribution) -> doc.Document:
    blocks: list[doc.Block] = []
    for run in contribution.runs:
        blocks += [doc.Sentence(_title(run), "bold"), Table(["", "measured", "predicted", "error"], list(_rows(run)))]
        blocks.append(doc.Gap())
    words = f"This is all. -o FILE writes it; an issue of the form {FORM} takes it. Nothing is sent."
    blocks += [doc.Verbatim(contribution_json(contribution).splitlines()), doc.Gap(), doc.Sentence(words, "dim")]
    return doc.Document(subject="Measured runs", verdict="", tone=None, blocks=blocks, data=contribution)


def _title(run: ContributedRun) -> str:
    return f"{run.model}, {run.trained.method}, {run.gpus}, {run.trained.seq_len} tokens, {run.kind} of {run.date}"


def _rows(run: ContributedRun) -> Iterator[Row]:
    for name, (title, write) in _FIGURES.items():
        measured, predicted = (getattr(each, name) for each in (run.measured, run.predicted))
        if name == "allocated_bytes" and run.out_of_memory:
            yield Row([title, Figure("out of memory"), Figure(write(predicted), predicted)])
        elif measured is not None and predicted is not None:
            error = predicted / measured - 1
            yield Row(
                [title, *(Figure(write(each), each) for each in (measured, predicted)), Figure(f"{error:+.1%}", error)]
            )
