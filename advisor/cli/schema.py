"""`ds-advise schema COMMAND`: the JSON Schema of a command's output with --json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from ...estimators.errors import WorkloadError
from ...estimators.json_form import SCHEMA_VERSION
from ...probes.real_run.result import ProbeResult
from ...probes.recording.result import DryRunResult
from ...probes.store import Record
from ...validate.doctor.examine import Checkup
from ..answer.advice import Advice
from ..answer.command_answer import CommandFigures
from ..answer.comparison import ComparisonFigures
from ..answer.dry_run_answer import DryRunFigures
from ..answer.explained_key import KeyExplanation
from ..answer.explanation import ExplanationFigures
from ..answer.requirements import CheckResult
from ..command.advice import CommandAdviceFigures
from ..question.other_names import meant_choice
from ..render.checkpoint import CheckpointAnswer
from ..render.history import History
from ..render.imported_file import ImportJson
from ..render.launch import LaunchReport
from ..render.lint import LintFigures, LintFilesFigures
from ..render.why_report import WhyReport
from ..rent import RentFigures
from ..train.report import TrainingReport
from ..verification.contribution import Contribution
from ..verification.probe import ProbeAdditions
from .help import GroupedCommand
from .options import DEBUG

Schema = dict[str, Any]

_LEFT_OUT = ("timeline", "schedule")
"""Fields of a dry run that are written only with `--timeline`."""

_FORMS: Mapping[str, tuple[type, ...]] = {
    "advise": (Advice,),
    "explain": (ExplanationFigures,),
    "explain-key": (KeyExplanation,),
    "advise-command": (Advice, CommandAdviceFigures),
    "dry-run": (DryRunResult, DryRunFigures),
    "dry-run-command": (DryRunResult, DryRunFigures, CommandFigures),
    "probe": (ProbeResult, ProbeAdditions),
    "launch": (LaunchReport,),
    "train": (TrainingReport,),
    "checkpoint": (CheckpointAnswer,),
    "bench": (Record,),
    "history": (History,),
    "contribute": (Contribution,),
    "compare": (ComparisonFigures,),
    "check": (CheckResult,),
    "rent": (RentFigures,),
    "from": (ImportJson,),
    "lint": (LintFigures,),
    "lint-files": (LintFilesFigures,),
    "doctor": (Checkup,),
    "why": (WhyReport,),
}
"""Dataclasses with the fields of each command's JSON object."""

NAMES = tuple(_FORMS)


@click.command(cls=GroupedCommand)
@click.argument("command", metavar="COMMAND")
@DEBUG
def schema(command: str) -> int:
    """Print the JSON Schema (2020-12) of what COMMAND prints with --json: advise, explain, explain-key (of a key),
    dry-run, advise-command and dry-run-command (for the user's command), probe, launch, train, checkpoint, bench,
    history, contribute, compare, check, from, rent, lint, lint-files (of several files), doctor or why.

    \b
    ds-advise schema advise
    ds-advise schema dry-run > dry_run.schema.json

    Its $id ends in the version, which increases when a field is removed or changes its meaning. Exit code: 0, or 2 if
    the command has no schema.
    """
    print(json.dumps(command_schema(command), indent=1))
    return 0


def command_schema(command: str) -> Schema:
    """The JSON Schema of a command's output with --json. Raises WorkloadError for a command without one, and
    ModuleNotFoundError without pydantic."""
    if command not in _FORMS:
        near = meant_choice(command, NAMES)
        fix = f"write ds-advise schema {near}" if near else f"pass one of {', '.join(NAMES)}"
        raise WorkloadError(f"there is no schema of {command[:40]!r}", fix=fix)
    from pydantic.json_schema import GenerateJsonSchema  # imported here: `--help` works without the extra

    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:ds-advise:{command}:{SCHEMA_VERSION}",
        **build_schema(_FORMS[command]),
        "title": f"ds-advise {command} --json",
    }


def build_schema(forms: tuple[type, ...]) -> Schema:
    """The schema of one object with the fields of all forms, described by the docstrings under the fields. Every field
    is required. New fields may be added without a new version, so unknown fields are allowed."""
    from pydantic import ConfigDict, TypeAdapter

    whole: Schema = {"type": "object", "properties": {}, "required": [], "$defs": {}}
    config = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)
    for form in forms:
        listed: Any = list[form]  # type: ignore[valid-type]  # a dataclass itself takes no config
        found = TypeAdapter(listed, config=config).json_schema(mode="serialization")
        # Pydantic puts the dataclass itself among the definitions of the list; its fields move to the top.
        own = found["$defs"].pop(form.__name__)
        whole["properties"] |= {name: each for name, each in own["properties"].items() if name not in _LEFT_OUT}
        whole["required"] += [name for name in own["required"] if name not in _LEFT_OUT]
        whole["$defs"] |= found["$defs"]
    return whole
