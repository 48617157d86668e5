"""`ds-advise schema COMMAND`: the JSON Schema of what a command prints with --json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import click

from ...estimators.errors import WorkloadError
from ...estimators.json_form import SCHEMA_VERSION
from ...probes.dry_run import DryRunResult
from ...probes.real_run import ProbeResult
from ...probes.store import RecordFigures
from ...validate.doctor.examine import Checkup
from ..answer.advice import Advice
from ..answer.comparison import ComparisonFigures
from ..answer.explanation import ExplanationFigures
from ..answer.json_schema import DIALECT, Schema, schema_of
from ..answer.recommendation import DryRunFigures
from ..answer.requirements import CheckResult
from ..importers.answer import ImportJson
from ..render.history import History
from ..render.launch import LaunchReport
from ..render.lint import LintFigures
from ..rent.rent import RentFigures
from ..train.report import TrainingReport
from ..verification.probe import ProbeAdditions
from .options import DEBUG

_LEFT_OUT = ("timeline", "schedule")
"""Fields of a dry run that only `--timeline` writes."""

_SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "advise": lambda: schema_of([Advice]),
    "explain": lambda: schema_of([ExplanationFigures]),
    "dry-run": lambda: schema_of([DryRunResult, DryRunFigures], without=_LEFT_OUT),
    "probe": lambda: schema_of([ProbeResult, ProbeAdditions]),
    "launch": lambda: schema_of([LaunchReport]),
    "train": lambda: schema_of([TrainingReport]),
    "bench": lambda: schema_of([RecordFigures]),
    "history": lambda: schema_of([History]),
    "compare": lambda: schema_of([ComparisonFigures]),
    "check": lambda: schema_of([CheckResult]),
    "rent": lambda: schema_of([RentFigures]),
    "from": lambda: schema_of([ImportJson]),
    "lint": lambda: schema_of([LintFigures]),
    "doctor": lambda: schema_of([Checkup]),
}

NAMES = tuple(_SCHEMAS)


@click.command()
@click.argument("command", metavar="COMMAND")
@DEBUG
def schema(command: str) -> int:
    """Print the JSON Schema (2020-12) of what COMMAND prints with --json: advise, explain, dry-run, probe, launch,
    train, bench, history, compare, check, from, rent, lint or doctor.

    \b
    ds-advise schema advise
    ds-advise schema dry-run > dry_run.schema.json

    Its $id ends in the version, which increases when a field changes its meaning or is removed. Exit code: 0, or 2 for
    a command without a schema.
    """
    print(json.dumps(schema_of_command(command), indent=1))
    return 0


def schema_of_command(command: str) -> Schema:
    """The JSON Schema of what a command prints with --json. Raises WorkloadError for a command without one."""
    if command not in _SCHEMAS:
        raise WorkloadError(f"there is no schema of {command[:40]!r}", fix=f"pass one of {', '.join(NAMES)}")
    return {
        "$schema": DIALECT,
        "$id": f"urn:ds-advise:{command}:{SCHEMA_VERSION}",
        "title": f"ds-advise {command} --json",
        **_SCHEMAS[command](),
    }
