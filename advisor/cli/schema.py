"""`ds-advise schema COMMAND`: the JSON Schema of what a command prints with --json."""

from __future__ import annotations

import json

import click

from .options import DEBUG


@click.command(short_help="Print the JSON Schema of a command's --json.")
@click.argument("command", metavar="COMMAND")
@DEBUG
def schema(command: str) -> int:
    """Print the JSON Schema (2020-12) of what COMMAND prints with --json: advise, explain, dry-run, probe, launch,
    train, bench, history, compare, check, from, rent, lint or doctor.

    \b
    ds-advise schema advise
    ds-advise schema dry-run > dry_run.schema.json

    Its $id ends in the version, which rises when a field changes its meaning or goes away. Exit code: 0, or 2 for a
    command without a schema.
    """
    from .schema_catalogue import schema as schema_of_command

    print(json.dumps(schema_of_command(command), indent=1))
    return 0
