"""What a file of another tool means, as one JSON object."""

from __future__ import annotations

from typing import Any, TypedDict

from ...estimators.json_form import SCHEMA_VERSION
from ..answer.advice import PlanFigures, plan_figures
from ..render.lint import LintFindingJson, finding_json
from .answer import ImportAnswer


class ImportedRunJson(TypedDict):
    """What the file says, with what the command line says in its place."""

    model: str | None
    training: dict[str, Any]
    """By the names of the question's options; what is not there has its default."""
    micro_batch_size: int | None
    """Null: the script decides it."""
    gradient_accumulation_steps: int | None
    """Null: as many as the tool's least global batch takes."""
    gradient_checkpointing: bool | str
    sharding: str
    """zero (DeepSpeed), fsdp or none."""
    nodes: int | None
    gpus_per_node: int | None
    deepspeed_config: dict[str, Any] | None
    deepspeed_config_name: str | None
    """As the file names it."""


class ChangedFileJson(TypedDict):
    """A file that would change, or has changed."""

    old: str
    """"" for a new file."""
    new: str
    text: str


class ImportJson(TypedDict):
    """A run of another tool, judged."""

    schema_version: int
    file: str
    format: str
    tool: str
    run: ImportedRunJson
    remarks: list[str]
    """Sentences: what is counted as something near it."""
    faults: list[str]
    """Sentences: what the tool itself refuses."""
    uncounted: list[str]
    """Keys that may decide memory or speed, and from which nothing is concluded."""
    unknown: list[str]
    """Keys that are none of the tool's, with the nearest that is."""
    obstacle: str | None
    """Why there are no figures."""
    refusal: str
    """Why the plan cannot run as it is; "" where it can."""
    as_is: PlanFigures | None
    recommended: PlanFigures | None
    """The fastest that fits with the same training and global batch."""
    is_better: bool
    """The recommended plan fits where the run does not, or is faster."""
    findings: list[LintFindingJson]
    """Of the DeepSpeed part."""
    changes: list[ChangedFileJson]
    files: list[str]
    """Files that were written."""


def import_json(answer: ImportAnswer) -> ImportJson:
    """One object, described in docs/json.md."""
    run, figures, part = answer.run, answer.figures, answer.run.deepspeed
    as_is = None if figures is None or figures.as_is is None else plan_figures(figures.as_is)
    better = None if figures is None or figures.recommended is None else plan_figures(figures.recommended)
    return {
        "schema_version": SCHEMA_VERSION,
        "file": str(answer.source.path),
        "format": answer.form.name,
        "tool": run.tool,
        "run": {
            "model": run.model,
            "training": dict(run.training),
            "micro_batch_size": run.micro_batch_size,
            "gradient_accumulation_steps": run.gradient_accumulation_steps,
            "gradient_checkpointing": run.gradient_checkpointing,
            "sharding": run.sharding,
            "nodes": run.nodes,
            "gpus_per_node": run.gpus_per_node,
            "deepspeed_config": None if part is None or part.config is None else dict(part.config),
            "deepspeed_config_name": None if part is None else part.name,
        },
        "remarks": [*run.remarks, *(figures.remarks if figures is not None else ())],
        "faults": list(run.faults),
        "uncounted": list(run.uncounted),
        "unknown": list(run.unknown),
        "obstacle": None if answer.obstacle is None else str(answer.obstacle),
        "refusal": figures.refusal if figures is not None else "",
        "as_is": as_is,
        "recommended": better,
        "is_better": figures is not None and figures.is_better,
        "findings": [finding_json(finding) for finding in answer.report.findings] if answer.report else [],
        "changes": [{"old": file.old_name, "new": str(file.new_path), "text": file.new_text} for file in answer.files],
        "files": [str(path) for path in answer.written],
    }
